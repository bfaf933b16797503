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
        let mut all = Self {
            rows: vec![Vec::new(); net.model.tasks.len()],
            waiting: vec![Vec::new(); net.slots.len()],
        };
        for (place, row) in net.rows.iter().enumerate() {
            all.rows[row.task].push(place);
            if net.stations[row.task].has_second_phase {
                all.waiting[row.queue].push(place);
            }
        }
        all
    }

    /// Computes the overtaking for each slot of a task that continues after its reply.
    pub(super) fn overtaking(
        &self,
        net: &SolverNetwork<'_>,
        state: &SolverState,
        station: usize,
    ) -> Vec<OvertakingShare> {
        let slots = &net.stations[station].slots;
        let mut found = vec![OvertakingShare::default(); slots.len()];
        for slot in slots {
            let holder = net.slots[*slot].holder;
            if holder == NO_HOLDER || net.max_requests_by(holder).is_infinite() {
                continue;
            }
            let rate = state.slots[*slot].rate;
            for (weight, at) in self.second(state, *slot) {
                let gap = ReturnTime {
                    net,
                    state,
                    slots,
                    at,
                    idle: idle(net, state, holder, at),
                    first: is_first(net, holder, station),
                };
                let back = gap.until_next_request(&self.rows[holder], *slot);
                for (found, back) in found.iter_mut().zip(back) {
                    found.share += rate * weight * back;
                    found.remaining += rate * weight * back / at;
                }
            }
        }
        for (own, slot) in found.iter_mut().zip(slots) {
            let rate = state.slots[*slot].rate;
            if rate > 0.0 && own.share > 1e-9 * rate {
                *own = OvertakingShare {
                    share: (own.share / rate).clamp(0.0, 1.0),
                    remaining: (own.remaining / own.share).max(0.0),
                };
            } else {
                *own = OvertakingShare::default();
            }
        }
        found
    }

    /// Returns the share of a slot's slices at a processor that directly follow a reply of this task.
    pub(super) fn share_after_reply(
        &self,
        net: &SolverNetwork<'_>,
        state: &SolverState,
        slot: usize,
        task: usize,
    ) -> f64 {
        let (mut pieces, mut following) = (0.0, 0.0);
        for place in &self.rows[net.slots[slot].holder] {
            let sides = net.rows[*place].activities.iter().flat_map(|step| &step.sides);
            for side in sides.filter(|side| side.executions > 0.0 && side.work == slot) {
                let rate = state.rates[*place] * side.executions;
                pieces += rate;
                for (to, count, waits) in &side.calls {
                    pieces += rate * count;
                    if *waits && net.rows[*to].task == task {
                        following += rate * count;
                    }
                }
            }
        }
        if pieces > 0.0 { following / pieces } else { 0.0 }
    }

    /// Returns the second phases of a slot's requests as two exponentials with their weights and rates.
    fn second(&self, state: &SolverState, slot: usize) -> [(f64, f64); 2] {
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
    let apart = (2.0 * variation.clamp(0.505, 1.0) - 1.0).sqrt();
    let [one, other] = [0.5 * mean * (1.0 + apart), (0.5 * mean * (1.0 - apart)).max(1e-9 * mean)];
    [(one / (one - other), 1.0 / one), (-other / (one - other), 1.0 / other)]
}

/// Returns `true` if both tasks use the same single core in order of arrival: the thread that got the reply
/// then runs first.
fn is_first(net: &SolverNetwork<'_>, holder: usize, task: usize) -> bool {
    let [one, other] = [holder, task].map(|task| net.model.tasks[task].processor.0);
    let core = &net.stations[net.model.tasks.len() + one];
    one == other && core.servers == 1.0 && core.discipline == QueueDiscipline::Fifo
}

/// Returns the transform of the time from the end of a request until a thread of the holder starts the next.
fn idle(net: &SolverNetwork<'_>, state: &SolverState, holder: usize, at: f64) -> f64 {
    let after = |mean: f64| 1.0 / (1.0 + at * mean);
    if let TaskRole::Client { think } = net.model.tasks[holder].role {
        return after(think);
    }
    let own = &net.stations[holder];
    let rate: f64 = own.slots.iter().map(|slot| state.slots[*slot].rate).sum();
    let held: f64 = own.slots.iter().map(|slot| state.slots[*slot].held).sum();
    let threads = net.active_threads[holder];
    if rate <= 0.0 || threads <= 0.0 {
        return 0.0;
    }
    let mean = (threads - held).max(0.0) / rate;
    let busy = if own.max_requests <= threads { 0.0 } else { (held / threads).min(0.99) };
    busy + (1.0 - busy) * after(mean / (1.0 - busy))
}

/// The time from a reply to the next request of the same thread.
struct ReturnTime<'a, 'm> {
    net: &'a SolverNetwork<'m>,
    state: &'a SolverState,
    /// The slots of the station.
    slots: &'a [usize],
    /// The argument of the transform.
    at: f64,
    idle: f64,
    /// Whether the thread runs its next slice before the second phase can begin.
    first: bool,
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
        1.0 / (1.0 + self.at * mean)
    }

    /// Returns the transforms from a reply to this slot until the next request, by its slot.
    fn until_next_request(&self, rows: &[usize], slot: usize) -> Vec<f64> {
        let count = self.slots.len();
        let own = self.slots.iter().position(|other| *other == slot);
        let stages: Vec<(f64, Vec<ActivityStage>)> =
            rows.iter().map(|row| (self.state.rates[*row], self.stages(*row))).collect();
        let all: f64 = stages.iter().map(|(rate, _)| rate).sum();
        let mut next = ReturnTransforms { to_request: vec![0.0; count], to_end: 0.0 };
        let mut found = vec![0.0; count];
        if all <= 0.0 {
            return found;
        }
        // The transforms from the start of any request of the thread.
        for (rate, stages) in &stages {
            let mut onward = ReturnTransforms { to_request: vec![0.0; count], to_end: 1.0 };
            for stage in stages.iter().rev() {
                onward = stage.from_start.then(&onward);
            }
            next.to_end += rate / all * onward.to_end;
            for (sum, asks) in next.to_request.iter_mut().zip(&onward.to_request) {
                *sum += rate / all * asks;
            }
        }
        let again = self.idle / (1.0 - (self.idle * next.to_end).min(0.999_999));
        let ended = ReturnTransforms {
            to_request: next.to_request.iter().map(|asks| asks * again).collect(),
            to_end: 0.0,
        };
        let mut asked = 0.0;
        for (rate, stages) in &stages {
            let mut onward = ended.clone();
            for stage in stages.iter().rev() {
                let times = own.map_or(0.0, |own| stage.counts[own]) * rate;
                if times > 0.0 {
                    asked += times;
                    let back = stage.from_reply.then(&onward);
                    for (sum, asks) in found.iter_mut().zip(&back.to_request) {
                        *sum += times * asks;
                    }
                }
                onward = stage.from_start.then(&onward);
            }
        }
        if asked > 0.0 {
            found.iter_mut().for_each(|sum| *sum /= asked);
        }
        found
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
        let own = &self.net.model.activities[activity];
        let piece =
            self.slice_transform(service_times::slice_time(self.net, self.state, activity, side.work).mean);
        let (mut counts, mut here, mut others, mut other) = (vec![0.0; self.slots.len()], 0.0, 0.0, 0.0);
        for (to, count, waits) in &side.calls {
            let queue = self.net.rows[*to].queue;
            match self.slots.iter().position(|slot| *slot == queue && *waits) {
                Some(place) => {
                    counts[place] += count;
                    here += count;
                }
                None => {
                    let mean = if *waits { self.state.times[*to].response.mean } else { 0.0 };
                    others += count;
                    other += count * self.slice_transform(mean);
                }
            }
        }
        let again = if self.first { 1.0 } else { piece };
        let part = |factor: f64| -> Vec<f64> { counts.iter().map(|count| count * factor).collect() };
        let (mut begins, goes_on) = if own.order == CallOrder::Stochastic {
            let next = piece / (1.0 + here + others) / (1.0 - piece * other / (1.0 + here + others));
            let after = next / piece * again;
            (
                ReturnTransforms { to_request: part(next), to_end: next },
                ReturnTransforms { to_request: part(after), to_end: after },
            )
        } else {
            let around = |times: f64| {
                if others > 0.0 { piece * (piece * other / others).powf(times) } else { piece }
            };
            if here > 0.0 {
                let whole = here.max(1.0);
                let some = here.min(1.0);
                let half = around(others / 2.0);
                (
                    ReturnTransforms {
                        to_request: part(half * some / here),
                        to_end: (1.0 - some) * around(others),
                    },
                    ReturnTransforms {
                        to_request: part(again * (1.0 - 1.0 / whole) / here),
                        to_end: half / piece * again / whole,
                    },
                )
            } else {
                let onward = ReturnTransforms { to_request: part(0.0), to_end: around(others) };
                (onward.clone(), onward)
            }
        };
        let think = self.slice_transform(own.think);
        let often = side.executions.min(1.0);
        begins.to_request.iter_mut().for_each(|asks| *asks *= think * often);
        begins.to_end = begins.to_end * think * often + 1.0 - often;
        counts.iter_mut().for_each(|count| *count *= side.executions);
        ActivityStage { from_start: begins, from_reply: goes_on, counts }
    }
}

impl ReturnTransforms {
    fn then(&self, next: &Self) -> Self {
        let asks = self.to_request.iter().zip(&next.to_request).map(|(own, next)| own + self.to_end * next);
        Self { to_request: asks.collect(), to_end: self.to_end * next.to_end }
    }
}
