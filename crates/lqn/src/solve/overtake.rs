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

use super::State;
use super::elapsed;
use super::net::{NOBODY, Net, Rule, Side};
use crate::model::{Order, Role};

/// Precomputed lists of rows.
pub(super) struct Overtakes {
    /// The rows of each task.
    rows: Vec<Vec<usize>>,
    /// The rows that wait in each slot.
    waiting: Vec<Vec<usize>>,
}

/// The overtaking requests of one slot.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Back {
    /// The share of requests that arrive during the second phase of the thread's previous request.
    pub(super) part: f64,
    /// The mean remaining time of that phase.
    pub(super) left: f64,
}

impl Overtakes {
    pub(super) fn new(net: &Net<'_>) -> Self {
        let mut all = Self {
            rows: vec![Vec::new(); net.model.tasks.len()],
            waiting: vec![Vec::new(); net.slots.len()],
        };
        for (place, row) in net.rows.iter().enumerate() {
            all.rows[row.task].push(place);
            if net.stations[row.task].after {
                all.waiting[row.queue].push(place);
            }
        }
        all
    }

    /// Computes the overtaking for each slot of a task that continues after its reply.
    pub(super) fn of(&self, net: &Net<'_>, state: &State, station: usize) -> Vec<Back> {
        let slots = &net.stations[station].slots;
        let mut found = vec![Back::default(); slots.len()];
        for slot in slots {
            let holder = net.slots[*slot].holder;
            if holder == NOBODY || net.holds(holder).is_infinite() {
                continue;
            }
            let rate = state.slots[*slot].rate;
            for (weight, at) in self.second(state, *slot) {
                let gap = Gap {
                    net,
                    state,
                    slots,
                    at,
                    idle: idle(net, state, holder, at),
                    first: is_first(net, holder, station),
                };
                let back = gap.back(&self.rows[holder], *slot);
                for (found, back) in found.iter_mut().zip(back) {
                    found.part += rate * weight * back;
                    found.left += rate * weight * back / at;
                }
            }
        }
        for (own, slot) in found.iter_mut().zip(slots) {
            let rate = state.slots[*slot].rate;
            if rate > 0.0 && own.part > 1e-9 * rate {
                *own = Back { part: (own.part / rate).clamp(0.0, 1.0), left: (own.left / own.part).max(0.0) };
            } else {
                *own = Back::default();
            }
        }
        found
    }

    /// Returns the share of a slot's slices at a processor that directly follow a reply of this task.
    pub(super) fn follows(&self, net: &Net<'_>, state: &State, slot: usize, task: usize) -> f64 {
        let (mut pieces, mut following) = (0.0, 0.0);
        for place in &self.rows[net.slots[slot].holder] {
            let sides = net.rows[*place].steps.iter().flat_map(|step| &step.sides);
            for side in sides.filter(|side| side.times > 0.0 && side.work == slot) {
                let rate = state.rates[*place] * side.times;
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
    fn second(&self, state: &State, slot: usize) -> [(f64, f64); 2] {
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
fn is_first(net: &Net<'_>, holder: usize, task: usize) -> bool {
    let [one, other] = [holder, task].map(|task| net.model.tasks[task].processor.0);
    let core = &net.stations[net.model.tasks.len() + one];
    one == other && core.servers == 1.0 && core.rule == Rule::Fifo
}

/// Returns the transform of the time from the end of a request until a thread of the holder starts the next.
fn idle(net: &Net<'_>, state: &State, holder: usize, at: f64) -> f64 {
    let after = |mean: f64| 1.0 / (1.0 + at * mean);
    if let Role::Client { think } = net.model.tasks[holder].role {
        return after(think);
    }
    let own = &net.stations[holder];
    let rate: f64 = own.slots.iter().map(|slot| state.slots[*slot].rate).sum();
    let held: f64 = own.slots.iter().map(|slot| state.slots[*slot].held).sum();
    let threads = net.active[holder];
    if rate <= 0.0 || threads <= 0.0 {
        return 0.0;
    }
    let mean = (threads - held).max(0.0) / rate;
    let busy = if own.most <= threads { 0.0 } else { (held / threads).min(0.99) };
    busy + (1.0 - busy) * after(mean / (1.0 - busy))
}

/// The time from a reply to the next request of the same thread.
struct Gap<'a, 'm> {
    net: &'a Net<'m>,
    state: &'a State,
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
struct Onward {
    asks: Vec<f64>,
    ends: f64,
}

/// A part of an activity.
struct Stage {
    /// The transforms from its start to the first request, and to its end without one.
    begins: Onward,
    /// The transforms after a reply.
    goes_on: Onward,
    /// The number of requests by slot.
    counts: Vec<f64>,
}

impl Gap<'_, '_> {
    fn after(&self, mean: f64) -> f64 {
        1.0 / (1.0 + self.at * mean)
    }

    /// Returns the transforms from a reply to this slot until the next request, by its slot.
    fn back(&self, rows: &[usize], slot: usize) -> Vec<f64> {
        let count = self.slots.len();
        let own = self.slots.iter().position(|other| *other == slot);
        let stages: Vec<(f64, Vec<Stage>)> =
            rows.iter().map(|row| (self.state.rates[*row], self.stages(*row))).collect();
        let all: f64 = stages.iter().map(|(rate, _)| rate).sum();
        let mut next = Onward { asks: vec![0.0; count], ends: 0.0 };
        let mut found = vec![0.0; count];
        if all <= 0.0 {
            return found;
        }
        // The transforms from the start of any request of the thread.
        for (rate, stages) in &stages {
            let mut onward = Onward { asks: vec![0.0; count], ends: 1.0 };
            for stage in stages.iter().rev() {
                onward = stage.begins.then(&onward);
            }
            next.ends += rate / all * onward.ends;
            for (sum, asks) in next.asks.iter_mut().zip(&onward.asks) {
                *sum += rate / all * asks;
            }
        }
        let again = self.idle / (1.0 - (self.idle * next.ends).min(0.999_999));
        let ended = Onward { asks: next.asks.iter().map(|asks| asks * again).collect(), ends: 0.0 };
        let mut asked = 0.0;
        for (rate, stages) in &stages {
            let mut onward = ended.clone();
            for stage in stages.iter().rev() {
                let times = own.map_or(0.0, |own| stage.counts[own]) * rate;
                if times > 0.0 {
                    asked += times;
                    let back = stage.goes_on.then(&onward);
                    for (sum, asks) in found.iter_mut().zip(&back.asks) {
                        *sum += times * asks;
                    }
                }
                onward = stage.begins.then(&onward);
            }
        }
        if asked > 0.0 {
            found.iter_mut().for_each(|sum| *sum /= asked);
        }
        found
    }

    /// Returns the activities of a row's request, in order.
    fn stages(&self, row: usize) -> Vec<Stage> {
        let row = &self.net.rows[row];
        let steps = row.steps.iter().rev();
        let first = steps.clone().map(|step| (step.activity, &step.sides[0]));
        let second = steps.map(|step| (step.activity, &step.sides[1]));
        first
            .chain(second)
            .filter(|(_, side)| side.times > 0.0)
            .map(|(activity, side)| self.stage(activity, side))
            .collect()
    }

    fn stage(&self, activity: usize, side: &Side) -> Stage {
        let own = &self.net.model.activities[activity];
        let piece = self.after(elapsed::piece(self.net, self.state, activity, side.work).mean);
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
                    other += count * self.after(mean);
                }
            }
        }
        let again = if self.first { 1.0 } else { piece };
        let part = |factor: f64| -> Vec<f64> { counts.iter().map(|count| count * factor).collect() };
        let (mut begins, goes_on) = if own.order == Order::Stochastic {
            let next = piece / (1.0 + here + others) / (1.0 - piece * other / (1.0 + here + others));
            let after = next / piece * again;
            (Onward { asks: part(next), ends: next }, Onward { asks: part(after), ends: after })
        } else {
            let around = |times: f64| {
                if others > 0.0 { piece * (piece * other / others).powf(times) } else { piece }
            };
            if here > 0.0 {
                let whole = here.max(1.0);
                let some = here.min(1.0);
                let half = around(others / 2.0);
                (
                    Onward { asks: part(half * some / here), ends: (1.0 - some) * around(others) },
                    Onward {
                        asks: part(again * (1.0 - 1.0 / whole) / here),
                        ends: half / piece * again / whole,
                    },
                )
            } else {
                let onward = Onward { asks: part(0.0), ends: around(others) };
                (onward.clone(), onward)
            }
        };
        let think = self.after(own.think);
        let often = side.times.min(1.0);
        begins.asks.iter_mut().for_each(|asks| *asks *= think * often);
        begins.ends = begins.ends * think * often + 1.0 - often;
        counts.iter_mut().for_each(|count| *count *= side.times);
        Stage { begins, goes_on, counts }
    }
}

impl Onward {
    fn then(&self, next: &Self) -> Self {
        let asks = self.asks.iter().zip(&next.asks).map(|(own, next)| own + self.ends * next);
        Self { asks: asks.collect(), ends: self.ends * next.ends }
    }
}
