//! Computes service times from demands and waiting times, bottom-up from the entries without calls.
//!
//! Means are added. Variances are those of random sums: a stochastic activity makes a geometric number of
//! calls. So its time is one slice of work, and a geometric number of calls with one slice each.

use super::SolverState;
use super::forks::kth_completion;
use super::network::{ActivitySide, SolverNetwork, WorkRow, is_graph};
use crate::model::{CallOrder, Model, Successors};

/// A random time.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RandomTime {
    pub(super) mean: f64,
    pub(super) variance: f64,
    /// The part of the mean that is waiting for others.
    pub(super) waiting: f64,
}

/// The times of a row.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RowTimes {
    /// The time from the start on a thread until the reply or the forwarding.
    pub(super) first: RandomTime,
    /// The time from then until the thread is free.
    pub(super) second: RandomTime,
    /// The time from the arrival until the reply, including forwarding.
    pub(super) response: RandomTime,
}

impl RandomTime {
    pub(super) fn plus(self, other: Self) -> Self {
        Self {
            mean: self.mean + other.mean,
            variance: self.variance + other.variance,
            waiting: self.waiting + other.waiting,
        }
    }

    /// Returns the squared coefficient of variation.
    pub(super) fn variation(self) -> f64 {
        if self.mean > 0.0 { self.variance / (self.mean * self.mean) } else { 0.0 }
    }
}

/// Returns the mixture of several times by their probabilities; the rest of the probability takes no time.
fn mixture(weighted_times: impl Iterator<Item = (f64, RandomTime)>) -> RandomTime {
    let (mut mean, mut square, mut mean_waiting) = (0.0, 0.0, 0.0);
    for (weight, time) in weighted_times {
        mean += weight * time.mean;
        square += weight * (time.variance + time.mean * time.mean);
        mean_waiting += weight * time.waiting;
    }
    RandomTime { mean, variance: (square - mean * mean).max(0.0), waiting: mean_waiting }
}

/// Computes the times of all rows from the waiting times in `state`.
pub(super) fn update_service_times(net: &SolverNetwork<'_>, state: &mut SolverState) {
    for row_index in net.order.iter().rev() {
        let row = &net.rows[*row_index];
        let (first, second) =
            if is_graph(net.model, row.entry) { graph(net, state, row) } else { phases(net, state, row) };
        let slot = &state.slots[row.queue];
        let queue = RandomTime { mean: slot.wait, variance: slot.wait_variance, waiting: slot.wait };
        let mut response = queue.plus(first);
        if !row.forwards.is_empty() {
            response = response
                .plus(mixture(row.forwards.iter().map(|(to, share)| (*share, state.times[*to].response))));
        }
        state.times[*row_index] = RowTimes { first, second, response };
    }
}

fn phases(net: &SolverNetwork<'_>, state: &SolverState, row: &WorkRow) -> (RandomTime, RandomTime) {
    let mut phase_times = [RandomTime::default(); 2];
    for step in &row.activities {
        for (side, phase_time) in step.sides.iter().zip(&mut phase_times) {
            if side.executions > 0.0 {
                *phase_time = phase_time.plus(activity_time(net, state, step.activity, side));
            }
        }
    }
    (phase_times[0], phase_times[1])
}

/// Returns the time of one slice of work, including its waiting.
pub(super) fn slice_time(
    net: &SolverNetwork<'_>,
    state: &SolverState,
    activity_index: usize,
    slot: usize,
) -> RandomTime {
    let activity = &net.model.activities[activity_index];
    let processor = &net.model.processors[net.model.tasks[activity.task.0].processor.0];
    let calls: f64 = activity.calls.iter().map(|call| call.count).sum();
    let slice = activity.demand / processor.speed / (calls + 1.0);
    if slice <= 0.0 {
        return RandomTime::default();
    }
    let slot = &state.slots[slot];
    let waiting_time = slot.wait + slice * slot.stretch;
    let stretched = slice * (1.0 + slot.stretch);
    RandomTime {
        mean: slice + waiting_time,
        variance: activity.variation * stretched * stretched
            + slice * slice * slot.stretch
            + slot.wait_variance,
        waiting: waiting_time,
    }
}

/// Returns the time of an activity before or after the reply.
pub(super) fn activity_time(
    net: &SolverNetwork<'_>,
    state: &SolverState,
    activity_index: usize,
    side: &ActivitySide,
) -> RandomTime {
    let activity = &net.model.activities[activity_index];
    let slice = slice_time(net, state, activity_index, side.work);
    let call_count: f64 = side.calls.iter().map(|(_, count, _)| count).sum();
    let call_response =
        |row: &usize, waits: bool| if waits { state.times[*row].response } else { RandomTime::default() };
    let think = RandomTime { mean: activity.think, variance: activity.think * activity.think, waiting: 0.0 };
    let (mut mean, mut variance, mut waiting_time) = (
        slice.mean * (1.0 + call_count),
        slice.variance * (1.0 + call_count),
        slice.waiting * (1.0 + call_count),
    );
    for (row, count, is_waiting) in &side.calls {
        let response_time = call_response(row, *is_waiting);
        mean += count * response_time.mean;
        waiting_time += count * response_time.waiting;
        if activity.order != CallOrder::Stochastic {
            variance += count * response_time.variance;
        }
    }
    if activity.order == CallOrder::Stochastic && call_count > 0.0 {
        let mean_call = mixture(
            side.calls
                .iter()
                .map(|(row, count, is_waiting)| (count / call_count, call_response(row, *is_waiting))),
        );
        variance += call_count * mean_call.variance
            + call_count * (call_count + 1.0) * (slice.mean + mean_call.mean).powi(2);
    }
    think.plus(RandomTime { mean, variance, waiting: waiting_time })
}

/// The path from the start of an activity to a join or to the end.
#[derive(Clone, Copy, Default)]
struct ActivityPath<'m> {
    span: RandomTime,
    /// The probability of a reply on the path, and the time until then multiplied by it.
    answers: f64,
    reply_time: f64,
    waited: f64,
    /// The join at the end of the path: its quorum and its successor.
    stop: Option<(u32, &'m Successors)>,
}

impl<'m> ActivityPath<'m> {
    fn then(self, other: Self) -> Self {
        let total = self.span.plus(other.span);
        if self.answers >= 1.0 {
            return Self { span: total, stop: other.stop, ..self };
        }
        Self {
            span: total,
            answers: self.answers + other.answers,
            reply_time: self.reply_time + other.reply_time + other.answers * self.span.mean,
            waited: self.waited + other.waited + other.answers * self.span.waiting,
            stop: other.stop,
        }
    }
}

struct ActivityPaths<'a, 'm> {
    model: &'m Model,
    positions: &'a std::collections::HashMap<usize, usize>,
    finished: Vec<ActivityPath<'m>>,
}

impl<'m> ActivityPaths<'_, 'm> {
    fn path(&self, activity: usize) -> ActivityPath<'m> {
        // An activity that leads back is not known yet, and counts as the end.
        self.positions.get(&activity).and_then(|index| self.finished.get(*index)).copied().unwrap_or_default()
    }

    fn follow(&self, successors: &'m Successors) -> ActivityPath<'m> {
        match successors {
            Successors::End => ActivityPath::default(),
            Successors::Or(branches) => {
                let paths: Vec<(f64, ActivityPath<'m>)> =
                    branches.iter().map(|(share, to)| (*share, self.path(to.0))).collect();
                let sum = |value: &dyn Fn(&ActivityPath<'m>) -> f64| {
                    paths.iter().map(|(share, path)| share * value(path)).sum::<f64>()
                };
                ActivityPath {
                    span: mixture(paths.iter().map(|(share, path)| (*share, path.span))),
                    answers: sum(&|path| path.answers),
                    reply_time: sum(&|path| path.reply_time),
                    waited: sum(&|path| path.waited),
                    stop: paths.iter().find_map(|(_, path)| path.stop),
                }
            }
            Successors::And(branches) => {
                let paths: Vec<ActivityPath<'m>> = branches.iter().map(|to| self.path(to.0)).collect();
                let stop = paths.iter().find_map(|path| path.stop);
                let quorum = stop.map_or(paths.len(), |(wanted, _)| wanted as usize);
                let times: Vec<RandomTime> = paths.iter().map(|path| path.span).collect();
                let answers = paths.iter().find(|path| path.answers > 0.0);
                let fork = ActivityPath {
                    span: kth_completion(&times, quorum),
                    answers: answers.map_or(0.0, |path| path.answers),
                    reply_time: answers.map_or(0.0, |path| path.reply_time),
                    waited: answers.map_or(0.0, |path| path.waited),
                    stop: None,
                };
                match stop {
                    Some((_, then)) => fork.then(self.follow(then)),
                    None => fork,
                }
            }
            Successors::Join { wanted, then, .. } => {
                ActivityPath { stop: Some((*wanted, &**then)), ..ActivityPath::default() }
            }
            Successors::Loop { bodies, exit } => {
                let loop_turns: f64 = bodies.iter().map(|(count, _)| count).sum();
                let mut loop_time = RandomTime::default();
                if loop_turns > 0.0 {
                    let mean_turn =
                        mixture(bodies.iter().map(|(count, to)| (count / loop_turns, self.path(to.0).span)));
                    loop_time = RandomTime {
                        mean: loop_turns * mean_turn.mean,
                        variance: loop_turns * mean_turn.variance
                            + loop_turns * (loop_turns + 1.0) * mean_turn.mean * mean_turn.mean,
                        waiting: loop_turns * mean_turn.waiting,
                    };
                }
                let loop_path = ActivityPath { span: loop_time, ..ActivityPath::default() };
                exit.map_or(loop_path, |exit| loop_path.then(self.path(exit.0)))
            }
        }
    }
}

fn graph(net: &SolverNetwork<'_>, state: &SolverState, row: &WorkRow) -> (RandomTime, RandomTime) {
    let model = net.model;
    let is_client = model.tasks[row.task].is_client();
    let mut paths = ActivityPaths {
        model,
        positions: &net.graph_positions[row.entry],
        finished: Vec::with_capacity(row.activities.len()),
    };
    for step in &row.activities {
        let executed_side = if step.sides[0].executions > 0.0 { &step.sides[0] } else { &step.sides[1] };
        let step_time = if executed_side.executions > 0.0 {
            activity_time(net, state, step.activity, executed_side)
        } else {
            RandomTime::default()
        };
        let activity = &paths.model.activities[step.activity];
        let mut path = ActivityPath { span: step_time, ..ActivityPath::default() };
        if !is_client && activity.replies.iter().any(|entry| entry.0 == row.entry) {
            (path.answers, path.reply_time, path.waited) = (1.0, step_time.mean, step_time.waiting);
        }
        let full_path = path.then(paths.follow(&activity.successors));
        paths.finished.push(full_path);
    }
    let entry_path = paths.finished.last().copied().unwrap_or_default();
    if entry_path.answers <= 1e-9 || entry_path.span.mean <= 0.0 {
        return (entry_path.span, RandomTime::default());
    }
    let mean = (entry_path.reply_time / entry_path.answers).min(entry_path.span.mean);
    let waiting_time = (entry_path.waited / entry_path.answers).min(entry_path.span.waiting).min(mean);
    let first_share = mean / entry_path.span.mean;
    let first = RandomTime { mean, variance: entry_path.span.variance * first_share, waiting: waiting_time };
    let second = RandomTime {
        mean: entry_path.span.mean - mean,
        variance: entry_path.span.variance * (1.0 - first_share),
        waiting: (entry_path.span.waiting - waiting_time).max(0.0),
    };
    (first, second)
}
