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
fn mixture(ways: impl Iterator<Item = (f64, RandomTime)>) -> RandomTime {
    let (mut mean, mut square, mut waits) = (0.0, 0.0, 0.0);
    for (part, span) in ways {
        mean += part * span.mean;
        square += part * (span.variance + span.mean * span.mean);
        waits += part * span.waiting;
    }
    RandomTime { mean, variance: (square - mean * mean).max(0.0), waiting: waits }
}

/// Computes the times of all rows from the waiting times in `state`.
pub(super) fn update_service_times(net: &SolverNetwork<'_>, state: &mut SolverState) {
    for place in net.order.iter().rev() {
        let row = &net.rows[*place];
        let (first, second) =
            if is_graph(net.model, row.entry) { graph(net, state, row) } else { phases(net, state, row) };
        let slot = &state.slots[row.queue];
        let queue = RandomTime { mean: slot.wait, variance: slot.wait_variance, waiting: slot.wait };
        let mut response = queue.plus(first);
        if !row.forwards.is_empty() {
            response = response
                .plus(mixture(row.forwards.iter().map(|(to, part)| (*part, state.times[*to].response))));
        }
        state.times[*place] = RowTimes { first, second, response };
    }
}

fn phases(net: &SolverNetwork<'_>, state: &SolverState, row: &WorkRow) -> (RandomTime, RandomTime) {
    let mut both = [RandomTime::default(); 2];
    for step in &row.activities {
        for (side, span) in step.sides.iter().zip(&mut both) {
            if side.executions > 0.0 {
                *span = span.plus(activity_time(net, state, step.activity, side));
            }
        }
    }
    (both[0], both[1])
}

/// Returns the time of one slice of work, including its waiting.
pub(super) fn slice_time(
    net: &SolverNetwork<'_>,
    state: &SolverState,
    place: usize,
    slot: usize,
) -> RandomTime {
    let own = &net.model.activities[place];
    let processor = &net.model.processors[net.model.tasks[own.task.0].processor.0];
    let calls: f64 = own.calls.iter().map(|call| call.count).sum();
    let slice = own.demand / processor.speed / (calls + 1.0);
    if slice <= 0.0 {
        return RandomTime::default();
    }
    let slot = &state.slots[slot];
    let waits = slot.wait + slice * slot.stretch;
    let long = slice * (1.0 + slot.stretch);
    RandomTime {
        mean: slice + waits,
        variance: own.variation * long * long + slice * slice * slot.stretch + slot.wait_variance,
        waiting: waits,
    }
}

/// Returns the time of an activity before or after the reply.
pub(super) fn activity_time(
    net: &SolverNetwork<'_>,
    state: &SolverState,
    place: usize,
    side: &ActivitySide,
) -> RandomTime {
    let own = &net.model.activities[place];
    let piece = slice_time(net, state, place, side.work);
    let all: f64 = side.calls.iter().map(|(_, count, _)| count).sum();
    let answer =
        |row: &usize, waits: bool| if waits { state.times[*row].response } else { RandomTime::default() };
    let think = RandomTime { mean: own.think, variance: own.think * own.think, waiting: 0.0 };
    let (mut mean, mut variance, mut waits) =
        (piece.mean * (1.0 + all), piece.variance * (1.0 + all), piece.waiting * (1.0 + all));
    for (row, count, waited) in &side.calls {
        let span = answer(row, *waited);
        mean += count * span.mean;
        waits += count * span.waiting;
        if own.order != CallOrder::Stochastic {
            variance += count * span.variance;
        }
    }
    if own.order == CallOrder::Stochastic && all > 0.0 {
        let one = mixture(side.calls.iter().map(|(row, count, waited)| (count / all, answer(row, *waited))));
        variance += all * one.variance + all * (all + 1.0) * (piece.mean + one.mean).powi(2);
    }
    think.plus(RandomTime { mean, variance, waiting: waits })
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
        let span = self.span.plus(other.span);
        if self.answers >= 1.0 {
            return Self { span, stop: other.stop, ..self };
        }
        Self {
            span,
            answers: self.answers + other.answers,
            reply_time: self.reply_time + other.reply_time + other.answers * self.span.mean,
            waited: self.waited + other.waited + other.answers * self.span.waiting,
            stop: other.stop,
        }
    }
}

struct ActivityPaths<'a, 'm> {
    model: &'m Model,
    places: &'a std::collections::HashMap<usize, usize>,
    known: Vec<ActivityPath<'m>>,
}

impl<'m> ActivityPaths<'_, 'm> {
    fn of(&self, activity: usize) -> ActivityPath<'m> {
        // An activity that leads back is not known yet, and counts as the end.
        self.places.get(&activity).and_then(|place| self.known.get(*place)).copied().unwrap_or_default()
    }

    fn follow(&self, next: &'m Successors) -> ActivityPath<'m> {
        match next {
            Successors::End => ActivityPath::default(),
            Successors::Or(ways) => {
                let paths: Vec<(f64, ActivityPath<'m>)> =
                    ways.iter().map(|(part, to)| (*part, self.of(to.0))).collect();
                let sum = |what: &dyn Fn(&ActivityPath<'m>) -> f64| {
                    paths.iter().map(|(part, path)| part * what(path)).sum::<f64>()
                };
                ActivityPath {
                    span: mixture(paths.iter().map(|(part, path)| (*part, path.span))),
                    answers: sum(&|path| path.answers),
                    reply_time: sum(&|path| path.reply_time),
                    waited: sum(&|path| path.waited),
                    stop: paths.iter().find_map(|(_, path)| path.stop),
                }
            }
            Successors::And(ways) => {
                let paths: Vec<ActivityPath<'m>> = ways.iter().map(|to| self.of(to.0)).collect();
                let stop = paths.iter().find_map(|path| path.stop);
                let wanted = stop.map_or(paths.len(), |(wanted, _)| wanted as usize);
                let spans: Vec<RandomTime> = paths.iter().map(|path| path.span).collect();
                let answers = paths.iter().find(|path| path.answers > 0.0);
                let fork = ActivityPath {
                    span: kth_completion(&spans, wanted),
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
                let turns: f64 = bodies.iter().map(|(count, _)| count).sum();
                let mut span = RandomTime::default();
                if turns > 0.0 {
                    let one = mixture(bodies.iter().map(|(count, to)| (count / turns, self.of(to.0).span)));
                    span = RandomTime {
                        mean: turns * one.mean,
                        variance: turns * one.variance + turns * (turns + 1.0) * one.mean * one.mean,
                        waiting: turns * one.waiting,
                    };
                }
                let all = ActivityPath { span, ..ActivityPath::default() };
                exit.map_or(all, |exit| all.then(self.of(exit.0)))
            }
        }
    }
}

fn graph(net: &SolverNetwork<'_>, state: &SolverState, row: &WorkRow) -> (RandomTime, RandomTime) {
    let model = net.model;
    let client = model.tasks[row.task].is_client();
    let mut paths = ActivityPaths {
        model,
        places: &net.graph_positions[row.entry],
        known: Vec::with_capacity(row.activities.len()),
    };
    for step in &row.activities {
        let side = if step.sides[0].executions > 0.0 { &step.sides[0] } else { &step.sides[1] };
        let span = if side.executions > 0.0 {
            activity_time(net, state, step.activity, side)
        } else {
            RandomTime::default()
        };
        let own = &paths.model.activities[step.activity];
        let mut path = ActivityPath { span, ..ActivityPath::default() };
        if !client && own.replies.iter().any(|entry| entry.0 == row.entry) {
            (path.answers, path.reply_time, path.waited) = (1.0, span.mean, span.waiting);
        }
        let path = path.then(paths.follow(&own.successors));
        paths.known.push(path);
    }
    let whole = paths.known.last().copied().unwrap_or_default();
    if whole.answers <= 1e-9 || whole.span.mean <= 0.0 {
        return (whole.span, RandomTime::default());
    }
    let mean = (whole.reply_time / whole.answers).min(whole.span.mean);
    let waits = (whole.waited / whole.answers).min(whole.span.waiting).min(mean);
    let part = mean / whole.span.mean;
    let first = RandomTime { mean, variance: whole.span.variance * part, waiting: waits };
    let second = RandomTime {
        mean: whole.span.mean - mean,
        variance: whole.span.variance * (1.0 - part),
        waiting: (whole.span.waiting - waits).max(0.0),
    };
    (first, second)
}
