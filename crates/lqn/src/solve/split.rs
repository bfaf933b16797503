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
    let mut split_model = Cow::Borrowed(model);
    for (index, entry) in model.entries.iter().enumerate() {
        let Some(routing) = entry.routing else { continue };
        let weights: Vec<f64> = match routing.policy {
            RoutingPolicy::Random
            | RoutingPolicy::Weighted
            | RoutingPolicy::Sticky
            | RoutingPolicy::PowerOfTwo => continue,
            RoutingPolicy::RoundRobin => vec![1.0; entry.forwards.len()],
            RoutingPolicy::LeastLoaded => entry.forwards.iter().map(|(to, _)| speed(model, *to)).collect(),
            RoutingPolicy::FirstAvailable => first_available_weights(model, entry),
        };
        let total_weight: f64 = weights.iter().sum();
        if !(total_weight > 0.0 && total_weight.is_finite()) {
            continue;
        }
        let is_unchanged = entry
            .forwards
            .iter()
            .zip(&weights)
            .all(|((_, share), weight)| (share - weight / total_weight).abs() < 1e-12);
        if is_unchanged {
            continue;
        }
        for ((_, share), weight) in split_model.to_mut().entries[index].forwards.iter_mut().zip(weights) {
            *share = weight / total_weight;
        }
    }
    split_model
}

/// Returns the split of first available: the targets up to the first with unlimited threads. The overflow of
/// the first ones depends on the load; each counts by its speed, which is exact while all are busy.
fn first_available_weights(model: &Model, entry: &Entry) -> Vec<f64> {
    let is_unlimited = |to: &EntryId| model.task_of(*to).copies == Multiplicity::Infinite;
    let last = entry.forwards.iter().position(|(to, _)| is_unlimited(to));
    let target_weight = |index: usize, to: EntryId| match last {
        Some(last) if index > last => 0.0,
        _ => speed(model, to),
    };
    entry.forwards.iter().enumerate().map(|(index, (to, _))| target_weight(index, *to)).collect()
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
        let entry_visits = visits::entry_visits(model, entry.0);
        let work: f64 = entry_visits
            .iter()
            .map(|visit| (visit.before + visit.after) * model.activities[visit.activity].demand)
            .sum();
        let servers =
            super::network::server_count(task.copies).min(super::network::server_count(processor.copies));
        Self { servers, service: work / processor.speed }
    }
}

/// Returns `true` if all targets of an entry have equal capacity and equal shares.
pub(super) fn are_targets_alike(model: &Model, entry: &Entry) -> bool {
    let mut targets = entry.forwards.iter().map(|(to, share)| (TargetCapacity::of(model, *to), *share));
    let Some((first, first_share)) = targets.next() else { return true };
    let is_close =
        |left: f64, right: f64| left == right || (left - right).abs() <= 1e-9 * left.abs().max(right.abs());
    targets.all(|(capacity, share)| {
        is_close(capacity.servers, first.servers)
            && is_close(capacity.service, first.service)
            && is_close(share, first_share)
    })
}
