//! Overtaking: callers that return while the second phase of their previous request is still running.
//!
//! A server replies and continues. If the same thread calls again before that is over, it waits for its own
//! previous request, even if there are few others. The probability of this depends on the time until it calls
//! again. That time is not exponential: a call is often followed at once by another one, or by none for a
//! long time.
//!
//! So the time from a reply to the next request of the same thread is followed through the thread's
//! activities, slice by slice. The method resembles the chain of phases of Franks and Woodside (Effectiveness
//! of early replies in client-server systems, Performance Evaluation 36, 1999). Each slice is exponential,
//! and only the Laplace transform of their sum is needed. For an exponential second phase with rate s, the
//! transform at s is the probability that the thread returns before its end. Other second phases are
//! approximated by two exponentials.

use super::SolverState;
use super::network::{ActivitySide, NO_HOLDER, QueueDiscipline, SolverNetwork};
use super::service_times;
use crate::model::{CallOrder, TaskRole};

/// Precomputed lists of rows.
pub(super) struct OvertakingRows {
    /// The rows of each task.
    rows: Vec<Vec<usize>>,
    /// The rows that wait in each slot.
    waiting: Vec<Vec<usize>>,
}

/// The overtaking requests of one slot.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct OvertakingShare {
    /// The share of requests that arrive during the second phase of the thread's previous request.
    pub(super) share: f64,
    /// The mean remaining time of that phase.
    pub(super) remaining: f64,
}

impl OvertakingRows {
    pub(super) fn new(net: &SolverNetwork<'_>) -> Self {
        let mut overtaking_rows = Self {
            rows: vec![Vec::new(); net.model.tasks.len()],
            waiting: vec![Vec::new(); net.slots.len()],
        };
        for (index, row) in net.rows.iter().enumerate() {
            overtaking_rows.rows[row.task].push(index);
            if net.stations[row.task].has_second_phase {
                overtaking_rows.waiting[row.queue].push(index);
            }
        }
        overtaking_rows
    }

    /// Computes the overtaking for each slot of a task that continues after its reply.
    pub(super) fn overtaking(
        &self,
        net: &SolverNetwork<'_>,
        state: &SolverState,
        station: usize,
    ) -> Vec<OvertakingShare> {
        let slots = &net.stations[station].slots;
        let mut shares = vec![OvertakingShare::default(); slots.len()];
        for slot in slots {
            let holder = net.slots[*slot].holder;
            if holder == NO_HOLDER || net.max_requests_by(holder).is_infinite() {
                continue;
            }
            let rate = state.slots[*slot].rate;
            for (weight, at) in self.second_phase_mixture(state, *slot) {
                let return_time = ReturnTime {
                    net,
                    state,
                    slots,
                    rate_parameter: at,
                    idle: idle(net, state, holder, at),
                    is_first: is_first(net, holder, station),
                };
                let return_transforms = return_time.until_next_request(&self.rows[holder], *slot);
                for (share, return_probability) in shares.iter_mut().zip(return_transforms) {
                    share.share += rate * weight * return_probability;
                    share.remaining += rate * weight * return_probability / at;
                }
            }
        }
        for (share, slot) in shares.iter_mut().zip(slots) {
            let rate = state.slots[*slot].rate;
            if rate > 0.0 && share.share > 1e-9 * rate {
                *share = OvertakingShare {
                    share: (share.share / rate).clamp(0.0, 1.0),
                    remaining: (share.remaining / share.share).max(0.0),
                };
            } else {
                *share = OvertakingShare::default();
            }
        }
        shares
    }

    /// Returns the share of a slot's slices at a processor that directly follow a reply of this task.
    pub(super) fn share_after_reply(
        &self,
        net: &SolverNetwork<'_>,
        state: &SolverState,
        slot: usize,
        task: usize,
    ) -> f64 {
        let (mut slices, mut following) = (0.0, 0.0);
        for row_index in &self.rows[net.slots[slot].holder] {
            let sides = net.rows[*row_index].activities.iter().flat_map(|step| &step.sides);
            for side in sides.filter(|side| side.executions > 0.0 && side.work == slot) {
                let rate = state.rates[*row_index] * side.executions;
                slices += rate;
                for (to, count, waits) in &side.calls {
                    slices += rate * count;
                    if *waits && net.rows[*to].task == task {
                        following += rate * count;
                    }
                }
            }
        }
        if slices > 0.0 { following / slices } else { 0.0 }
    }

    /// Returns the second phases of a slot's requests as two exponentials with their weights and rates.
    fn second_phase_mixture(&self, state: &SolverState, slot: usize) -> [(f64, f64); 2] {
        let (mut rate, mut mean, mut square) = (0.0, 0.0, 0.0);
        for row in &self.waiting[slot] {
            let second = state.times[*row].second;
            rate += state.rates[*row];
            mean += state.rates[*row] * second.mean;
            square += state.rates[*row] * (second.variance + second.mean * second.mean);
        }
        if mean <= 0.0 {
            return [(0.0, 1.0); 2];
        }
        let mean: f64 = mean / rate;
        exponentials(mean, square / rate / (mean * mean) - 1.0)
    }
}

/// Returns the weights and rates of two exponentials with this mean and squared coefficient of variation.
/// Below 1 they are consecutive, and one of the weights is negative; above 1 they are alternatives.
fn exponentials(mean: f64, variation: f64) -> [(f64, f64); 2] {
    if variation >= 1.0 {
        let first = 0.5 * (1.0 + ((variation - 1.0) / (variation + 1.0)).sqrt());
        let last = (1.0 - first).max(1e-6);
        return [(first, 2.0 * first / mean), (last, 2.0 * last / mean)];
    }
    // Two equal exponentials have the least variation; they are kept apart so that the weights stay finite.
    let spread = (2.0 * variation.clamp(0.505, 1.0) - 1.0).sqrt();
    let [longer, shorter] = [0.5 * mean * (1.0 + spread), (0.5 * mean * (1.0 - spread)).max(1e-9 * mean)];
    [(longer / (longer - shorter), 1.0 / longer), (-shorter / (longer - shorter), 1.0 / shorter)]
}

/// Returns `true` if both tasks use the same single core in order of arrival: the thread that got the reply
/// then runs first.
fn is_first(net: &SolverNetwork<'_>, holder: usize, task: usize) -> bool {
    let [holder_processor, task_processor] = [holder, task].map(|task| net.model.tasks[task].processor.0);
    let core = &net.stations[net.model.tasks.len() + holder_processor];
    holder_processor == task_processor && core.servers == 1.0 && core.discipline == QueueDiscipline::Fifo
}

/// Returns the transform of the time from the end of a request until a thread of the holder starts the next.
fn idle(net: &SolverNetwork<'_>, state: &SolverState, holder: usize, rate_parameter: f64) -> f64 {
    let transform = |mean: f64| 1.0 / (1.0 + rate_parameter * mean);
    if let TaskRole::Client { think } = net.model.tasks[holder].role {
        return transform(think);
    }
    let holder_station = &net.stations[holder];
    let rate: f64 = holder_station.slots.iter().map(|slot| state.slots[*slot].rate).sum();
    let held: f64 = holder_station.slots.iter().map(|slot| state.slots[*slot].held).sum();
    let threads = net.active_threads[holder];
    if rate <= 0.0 || threads <= 0.0 {
        return 0.0;
    }
    let mean = (threads - held).max(0.0) / rate;
    let busy = if holder_station.max_requests <= threads { 0.0 } else { (held / threads).min(0.99) };
    busy + (1.0 - busy) * transform(mean / (1.0 - busy))
}

/// The time from a reply to the next request of the same thread.
struct ReturnTime<'a, 'm> {
    net: &'a SolverNetwork<'m>,
    state: &'a SolverState,
    /// The slots of the station.
    slots: &'a [usize],
    /// The argument of the transform.
    rate_parameter: f64,
    idle: f64,
    /// Whether the thread runs its next slice before the second phase can begin.
    is_first: bool,
}

/// The transforms of the time until the next request by its slot, and of that until the end without one.
#[derive(Clone)]
struct ReturnTransforms {
    to_request: Vec<f64>,
    to_end: f64,
}

/// A part of an activity.
struct ActivityStage {
    /// The transforms from its start to the first request, and to its end without one.
    from_start: ReturnTransforms,
    /// The transforms after a reply.
    from_reply: ReturnTransforms,
    /// The number of requests by slot.
    counts: Vec<f64>,
}

impl ReturnTime<'_, '_> {
    fn slice_transform(&self, mean: f64) -> f64 {
        1.0 / (1.0 + self.rate_parameter * mean)
    }

    /// Returns the transforms from a reply to this slot until the next request, by its slot.
    fn until_next_request(&self, rows: &[usize], slot: usize) -> Vec<f64> {
        let count = self.slots.len();
        let slot_index = self.slots.iter().position(|candidate| *candidate == slot);
        let stages: Vec<(f64, Vec<ActivityStage>)> =
            rows.iter().map(|row| (self.state.rates[*row], self.stages(*row))).collect();
        let total_rate: f64 = stages.iter().map(|(rate, _)| rate).sum();
        let mut next_cycle = ReturnTransforms { to_request: vec![0.0; count], to_end: 0.0 };
        let mut probabilities = vec![0.0; count];
        if total_rate <= 0.0 {
            return probabilities;
        }
        // The transforms from the start of any request of the thread.
        for (rate, stages) in &stages {
            let mut following = ReturnTransforms { to_request: vec![0.0; count], to_end: 1.0 };
            for stage in stages.iter().rev() {
                following = stage.from_start.then(&following);
            }
            next_cycle.to_end += rate / total_rate * following.to_end;
            for (sum, probability) in next_cycle.to_request.iter_mut().zip(&following.to_request) {
                *sum += rate / total_rate * probability;
            }
        }
        let repeat_factor = self.idle / (1.0 - (self.idle * next_cycle.to_end).min(0.999_999));
        let after_end = ReturnTransforms {
            to_request: next_cycle.to_request.iter().map(|probability| probability * repeat_factor).collect(),
            to_end: 0.0,
        };
        let mut total_requests = 0.0;
        for (rate, stages) in &stages {
            let mut following = after_end.clone();
            for stage in stages.iter().rev() {
                let request_count = slot_index.map_or(0.0, |index| stage.counts[index]) * rate;
                if request_count > 0.0 {
                    total_requests += request_count;
                    let return_path = stage.from_reply.then(&following);
                    for (sum, probability) in probabilities.iter_mut().zip(&return_path.to_request) {
                        *sum += request_count * probability;
                    }
                }
                following = stage.from_start.then(&following);
            }
        }
        if total_requests > 0.0 {
            probabilities.iter_mut().for_each(|sum| *sum /= total_requests);
        }
        probabilities
    }

    /// Returns the activities of a row's request, in order.
    fn stages(&self, row: usize) -> Vec<ActivityStage> {
        let row = &self.net.rows[row];
        let steps = row.activities.iter().rev();
        let first = steps.clone().map(|step| (step.activity, &step.sides[0]));
        let second = steps.map(|step| (step.activity, &step.sides[1]));
        first
            .chain(second)
            .filter(|(_, side)| side.executions > 0.0)
            .map(|(activity, side)| self.stage(activity, side))
            .collect()
    }

    fn stage(&self, activity: usize, side: &ActivitySide) -> ActivityStage {
        let activity_data = &self.net.model.activities[activity];
        let slice =
            self.slice_transform(service_times::slice_time(self.net, self.state, activity, side.work).mean);
        let (mut counts, mut own_calls, mut other_calls, mut other_transform) =
            (vec![0.0; self.slots.len()], 0.0, 0.0, 0.0);
        for (to, count, waits) in &side.calls {
            let queue = self.net.rows[*to].queue;
            match self.slots.iter().position(|slot| *slot == queue && *waits) {
                Some(index) => {
                    counts[index] += count;
                    own_calls += count;
                }
                None => {
                    let mean = if *waits { self.state.times[*to].response.mean } else { 0.0 };
                    other_calls += count;
                    other_transform += count * self.slice_transform(mean);
                }
            }
        }
        let restart = if self.is_first { 1.0 } else { slice };
        let scaled_counts = |factor: f64| -> Vec<f64> { counts.iter().map(|count| count * factor).collect() };
        let (mut from_start, from_reply) = if activity_data.order == CallOrder::Stochastic {
            let slice_ratio = slice
                / (1.0 + own_calls + other_calls)
                / (1.0 - slice * other_transform / (1.0 + own_calls + other_calls));
            let after_reply = slice_ratio / slice * restart;
            (
                ReturnTransforms { to_request: scaled_counts(slice_ratio), to_end: slice_ratio },
                ReturnTransforms { to_request: scaled_counts(after_reply), to_end: after_reply },
            )
        } else {
            let between_calls = |call_count: f64| {
                if other_calls > 0.0 {
                    slice * (slice * other_transform / other_calls).powf(call_count)
                } else {
                    slice
                }
            };
            if own_calls > 0.0 {
                let full_count = own_calls.max(1.0);
                let probability = own_calls.min(1.0);
                let half_way = between_calls(other_calls / 2.0);
                (
                    ReturnTransforms {
                        to_request: scaled_counts(half_way * probability / own_calls),
                        to_end: (1.0 - probability) * between_calls(other_calls),
                    },
                    ReturnTransforms {
                        to_request: scaled_counts(restart * (1.0 - 1.0 / full_count) / own_calls),
                        to_end: half_way / slice * restart / full_count,
                    },
                )
            } else {
                let passing =
                    ReturnTransforms { to_request: scaled_counts(0.0), to_end: between_calls(other_calls) };
                (passing.clone(), passing)
            }
        };
        let think = self.slice_transform(activity_data.think);
        let execution_probability = side.executions.min(1.0);
        from_start
            .to_request
            .iter_mut()
            .for_each(|probability| *probability *= think * execution_probability);
        from_start.to_end = from_start.to_end * think * execution_probability + 1.0 - execution_probability;
        counts.iter_mut().for_each(|count| *count *= side.executions);
        ActivityStage { from_start, from_reply, counts }
    }
}

impl ReturnTransforms {
    fn then(&self, next: &Self) -> Self {
        let probabilities = self
            .to_request
            .iter()
            .zip(&next.to_request)
            .map(|(direct, onward)| direct + self.to_end * onward);
        Self { to_request: probabilities.collect(), to_end: self.to_end * next.to_end }
    }
}
