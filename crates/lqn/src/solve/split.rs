//! The split of requests among the targets of an entry with a policy, which the solver needs because it has
//! no state.
//!
//! Random choice, weights and sessions give each target its share; round robin gives all the same. These are
//! exact as rates. The least loaded policy gives requests in proportion to a target's speed: the lesser of
//! its threads and cores, times the processor's speed, divided by the demand. The less loaded of two gives
//! each its share, by which the two are drawn. First available gives everything to the first target with
//! unlimited threads, and to those before it. [`policy_gain`](super::policy_gain) covers the reduction of
//! waiting.
//!
//! For equal targets the split is exact. For others it is exact if all are busy; at a lower load, the split
//! approaches the weights, since several targets are often idle. The solver ignores that
//! ([`are_targets_alike`]).

use std::borrow::Cow;

use super::visits;
use crate::model::{Entry, EntryId, Model, Multiplicity, RoutingPolicy};

/// Replaces the shares of forwarding entries by those of their policies.
pub(super) fn apply_policy_splits(model: &Model) -> Cow<'_, Model> {
    let mut own = Cow::Borrowed(model);
    for (place, entry) in model.entries.iter().enumerate() {
        let Some(routing) = entry.routing else { continue };
        let parts: Vec<f64> = match routing.policy {
            RoutingPolicy::Random
            | RoutingPolicy::Weighted
            | RoutingPolicy::Sticky
            | RoutingPolicy::PowerOfTwo => continue,
            RoutingPolicy::RoundRobin => vec![1.0; entry.forwards.len()],
            RoutingPolicy::LeastLoaded => entry.forwards.iter().map(|(to, _)| speed(model, *to)).collect(),
            RoutingPolicy::FirstAvailable => filled(model, entry),
        };
        let all: f64 = parts.iter().sum();
        if !(all > 0.0 && all.is_finite()) {
            continue;
        }
        let same =
            entry.forwards.iter().zip(&parts).all(|((_, share), part)| (share - part / all).abs() < 1e-12);
        if same {
            continue;
        }
        for ((_, share), part) in own.to_mut().entries[place].forwards.iter_mut().zip(parts) {
            *share = part / all;
        }
    }
    own
}

/// Returns the split of first available: the targets up to the first with unlimited threads. The overflow of
/// the first ones depends on the load; each counts by its speed, which is exact while all are busy.
fn filled(model: &Model, entry: &Entry) -> Vec<f64> {
    let endless = |to: &EntryId| model.task_of(*to).copies == Multiplicity::Infinite;
    let last = entry.forwards.iter().position(|(to, _)| endless(to));
    let part = |place: usize, to: EntryId| match last {
        Some(last) if place > last => 0.0,
        _ => speed(model, to),
    };
    entry.forwards.iter().enumerate().map(|(place, (to, _))| part(place, *to)).collect()
}

/// Returns `true` if the first target has unlimited threads, so that the others are never used.
pub(super) fn is_first_unlimited(model: &Model, entry: &Entry) -> bool {
    entry.forwards.first().is_some_and(|(to, _)| model.task_of(*to).copies == Multiplicity::Infinite)
}

/// Returns the largest rate of requests of an entry, by its threads and its processor; 1 if it is unlimited.
fn speed(model: &Model, entry: EntryId) -> f64 {
    let TargetCapacity { servers, service } = TargetCapacity::of(model, entry);
    let rate = servers / service;
    if rate.is_finite() && rate > 0.0 { rate } else { 1.0 }
}

/// A target of forwarding.
#[derive(Clone, Copy, Debug, PartialEq)]
struct TargetCapacity {
    /// The number of requests that it can serve at once: the lesser of its threads and cores.
    servers: f64,
    /// The total demand of a request in time units.
    service: f64,
}

impl TargetCapacity {
    fn of(model: &Model, entry: EntryId) -> Self {
        let task = model.task_of(entry);
        let processor = &model.processors[task.processor.0];
        let course = visits::entry_visits(model, entry.0);
        let work: f64 = course
            .iter()
            .map(|part| (part.before + part.after) * model.activities[part.activity].demand)
            .sum();
        let servers =
            super::network::server_count(task.copies).min(super::network::server_count(processor.copies));
        Self { servers, service: work / processor.speed }
    }
}

/// Returns `true` if all targets of an entry have equal capacity and equal shares.
pub(super) fn are_targets_alike(model: &Model, entry: &Entry) -> bool {
    let mut targets = entry.forwards.iter().map(|(to, share)| (TargetCapacity::of(model, *to), *share));
    let Some((first, part)) = targets.next() else { return true };
    let same =
        |one: f64, other: f64| one == other || (one - other).abs() <= 1e-9 * one.abs().max(other.abs());
    targets.all(|(own, share)| {
        same(own.servers, first.servers) && same(own.service, first.service) && same(share, part)
    })
}
