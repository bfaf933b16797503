//! The counters that one process hands to the next, and those of its last work after the handoff.
//!
//! Each core has counters that only it writes. Counters from another process are kept in one more place
//! beside them ([`MemberRecord::predecessor`], [`SharedGroup::predecessor`],
//! [`ListenerShared::predecessor`]). Only the control plane writes these, under its lock, and all sums
//! include them.
//!
//! Everything that only grows is keyed by the names of group, member and listener. So versions that know more
//! or fewer counters understand each other.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use plimsoll_brain::Vitals;
use plimsoll_brain::status::BindingStatus;
use serde::{Deserialize, Serialize};

use crate::control::status_report;
use crate::control::{ControlPlane, GroupState};
use crate::listener::ListenerShared;
use crate::net::reason;
use crate::upstream::group::{GroupCounters, MemberCoreCounters, MemberRecord, SharedGroup};
use crate::upstream::stats::{Counter, Histogram, HistogramSnapshot};

/// A snapshot of all counters, or the difference to an earlier snapshot of the same process
/// ([`CounterSnapshot::since`]).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CounterSnapshot {
    groups: BTreeMap<String, GroupCounts>,
    listeners: BTreeMap<String, ListenerCounts>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
struct GroupCounts {
    latency: HistogramSnapshot,
    waits: HistogramSnapshot,
    rejected: BTreeMap<String, u64>,
    retries: u64,
    retries_denied: u64,
    /// The served and rejected requests, by urgency.
    urgencies: Vec<[u64; 2]>,
    hand_overs: u64,
    hand_overs_failed: u64,
    members: BTreeMap<String, MemberCounts>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
struct MemberCounts {
    /// The current value, not a counter.
    in_flight: u32,
    requests: u64,
    failures: u64,
    left: u64,
    answers: Vec<u64>,
    connects: u64,
    bytes_out: u64,
    bytes_in: u64,
    bytes_relayed: u64,
    moved: u64,
    latency: HistogramSnapshot,
    levels: Vec<[u64; 2]>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
struct ListenerCounts {
    accepted: u64,
    refused: u64,
    bindings: BTreeMap<String, BindingCounts>,
}

/// The sessions of a member.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
struct BindingCounts {
    /// The current value, not a counter.
    bound: u64,
    moved: u64,
}

/// The work in flight that another process has at members, as last reported.
#[derive(Default)]
pub(crate) struct PredecessorLoad(BTreeMap<(String, String), (Arc<Vitals>, u32)>);

impl CounterSnapshot {
    /// Returns the difference to an earlier snapshot.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let no_counts = GroupCounts::default();
        // Unchanged counters are left out.
        let groups = self.groups.iter().filter_map(|(name, current)| {
            let previous = earlier.groups.get(name).unwrap_or(&no_counts);
            (current != previous).then(|| (name.clone(), current.since(previous)))
        });
        let listeners = self.listeners.iter().filter_map(|(name, current)| {
            let previous = earlier.listeners.get(name).cloned().unwrap_or_default();
            (*current != previous).then(|| (name.clone(), current.since(&previous)))
        });
        Self { groups: groups.collect(), listeners: listeners.collect() }
    }
}

impl ListenerCounts {
    fn since(&self, earlier: &Self) -> Self {
        let bindings = self.bindings.iter().filter_map(|(member, current)| {
            let previous = earlier.bindings.get(member).copied().unwrap_or_default();
            let moved = current.moved.saturating_sub(previous.moved);
            (*current != previous).then(|| (member.clone(), BindingCounts { moved, ..*current }))
        });
        Self {
            accepted: self.accepted.saturating_sub(earlier.accepted),
            refused: self.refused.saturating_sub(earlier.refused),
            bindings: bindings.collect(),
        }
    }
}

impl GroupCounts {
    fn since(&self, earlier: &Self) -> Self {
        let no_counts = MemberCounts::default();
        let rejected = self.rejected.iter().map(|(reason, count)| {
            (reason.clone(), count.saturating_sub(earlier.rejected.get(reason).copied().unwrap_or_default()))
        });
        let members = self.members.iter().filter_map(|(name, current)| {
            let previous = earlier.members.get(name).unwrap_or(&no_counts);
            (current != previous).then(|| (name.clone(), current.since(previous)))
        });
        Self {
            latency: self.latency.since(&earlier.latency),
            waits: self.waits.since(&earlier.waits),
            rejected: rejected.collect(),
            retries: self.retries.saturating_sub(earlier.retries),
            retries_denied: self.retries_denied.saturating_sub(earlier.retries_denied),
            urgencies: pairs_since(&self.urgencies, &earlier.urgencies),
            hand_overs: self.hand_overs.saturating_sub(earlier.hand_overs),
            hand_overs_failed: self.hand_overs_failed.saturating_sub(earlier.hand_overs_failed),
            members: members.collect(),
        }
    }

    fn from_group(group_state: &GroupState) -> Self {
        let all_counters = || group_state.group.all_counters();
        let sum = |count: &dyn Fn(&GroupCounters) -> &Counter| -> u64 {
            all_counters().map(|counters| count(counters).value()).sum()
        };
        let rejected = reason::ALL
            .iter()
            .map(|reason| (reason.label().to_owned(), sum(&|counters| &counters.rejected[*reason as usize])));
        let urgencies = (0..plimsoll_brain::Urgency::COUNT).map(|urgency| {
            [
                sum(&|counters| &counters.urgencies[urgency].served),
                sum(&|counters| &counters.urgencies[urgency].rejected),
            ]
        });
        let members = group_state.analyzer.members().filter_map(|(id, spec, vitals)| {
            Some((spec.name.to_string(), MemberCounts::from_record(group_state.record(id)?, vitals)))
        });
        Self {
            latency: HistogramSnapshot::merge(all_counters().map(|counters| &counters.latency)),
            waits: HistogramSnapshot::merge(all_counters().map(|counters| &counters.waits)),
            rejected: rejected.collect(),
            retries: sum(&|counters| &counters.retries),
            retries_denied: sum(&|counters| &counters.retries_denied),
            urgencies: urgencies.collect(),
            hand_overs: group_state.hooks.succeeded,
            hand_overs_failed: group_state.hooks.failed,
            members: members.collect(),
        }
    }

    fn add_to(&self, group: &SharedGroup) {
        let counters = group.predecessor_counters();
        add_to(&counters.latency, &self.latency);
        add_to(&counters.waits, &self.waits);
        for reason in reason::ALL {
            let added = self.rejected.get(reason.label()).copied().unwrap_or_default();
            counters.rejected[reason as usize].add(added);
        }
        counters.retries.add(self.retries);
        counters.retries_denied.add(self.retries_denied);
        for (outcomes, [served, rejected]) in counters.urgencies.iter().zip(&self.urgencies) {
            outcomes.served.add(*served);
            outcomes.rejected.add(*rejected);
        }
    }
}

impl MemberCounts {
    fn since(&self, earlier: &Self) -> Self {
        let earlier_responses = earlier.answers.iter().copied().chain(std::iter::repeat(0));
        Self {
            in_flight: self.in_flight,
            requests: self.requests.saturating_sub(earlier.requests),
            failures: self.failures.saturating_sub(earlier.failures),
            left: self.left.saturating_sub(earlier.left),
            answers: self
                .answers
                .iter()
                .zip(earlier_responses)
                .map(|(current, previous)| current.saturating_sub(previous))
                .collect(),
            connects: self.connects.saturating_sub(earlier.connects),
            bytes_out: self.bytes_out.saturating_sub(earlier.bytes_out),
            bytes_in: self.bytes_in.saturating_sub(earlier.bytes_in),
            bytes_relayed: self.bytes_relayed.saturating_sub(earlier.bytes_relayed),
            moved: self.moved.saturating_sub(earlier.moved),
            latency: self.latency.since(&earlier.latency),
            levels: pairs_since(&self.levels, &earlier.levels),
        }
    }

    fn from_record(record: &MemberRecord, vitals: &Vitals) -> Self {
        let sum = |count: &dyn Fn(&MemberCoreCounters) -> &Counter| -> u64 {
            record.all_counters().map(|counters| count(counters).value()).fold(0, u64::wrapping_add)
        };
        let mut levels = [[0; 2]; plimsoll_brain::load_line::CONCURRENCY_LEVELS];
        record.all_counters().for_each(|counters| counters.latency_by_concurrency.sum(&mut levels));
        Self {
            // Leases move to the other process; the rest of them here is not its work.
            in_flight: vitals
                .in_flight()
                .saturating_sub(u32::try_from(record.leases.held.load(Relaxed)).unwrap_or(u32::MAX)),
            requests: sum(&|counters| &counters.requests),
            failures: sum(&|counters| &counters.failures),
            left: sum(&|counters| &counters.client_left),
            answers: (0..6).map(|class| sum(&|counters| &counters.responses[class])).collect(),
            connects: sum(&|counters| &counters.connects),
            bytes_out: sum(&|counters| &counters.bytes_out),
            bytes_in: sum(&|counters| &counters.bytes_in),
            bytes_relayed: sum(&|counters| &counters.bytes_relayed),
            moved: sum(&|counters| &counters.moved),
            latency: HistogramSnapshot::merge(record.all_counters().map(|counters| &counters.latency)),
            levels: levels[..levels.iter().rposition(|level| *level != [0; 2]).map_or(0, |index| index + 1)]
                .to_vec(),
        }
    }

    fn add_to(&self, record: &MemberRecord) {
        let sessions = [self.requests, self.left, self.moved];
        let bytes = [self.bytes_out, self.bytes_in, self.bytes_relayed];
        let counts = sessions.iter().chain(&bytes).chain([&self.connects]);
        if counts.copied().all(|count| count == 0) {
            return;
        }
        let counters = record.predecessor_counters();
        counters.requests.add(self.requests);
        counters.failures.add(self.failures);
        counters.client_left.add(self.left);
        for (count, added) in counters.responses.iter().zip(&self.answers) {
            count.add(*added);
        }
        counters.connects.add(self.connects);
        counters.bytes_out.add(self.bytes_out);
        counters.bytes_in.add(self.bytes_in);
        counters.bytes_relayed.add(self.bytes_relayed);
        counters.moved.add(self.moved);
        add_to(&counters.latency, &self.latency);
        counters.latency_by_concurrency.add(&self.levels);
    }
}

fn pairs_since(current: &[[u64; 2]], earlier: &[[u64; 2]]) -> Vec<[u64; 2]> {
    let earlier_padded = earlier.iter().copied().chain(std::iter::repeat([0; 2]));
    let difference = |(current, previous): (&[u64; 2], [u64; 2])| {
        [current[0].saturating_sub(previous[0]), current[1].saturating_sub(previous[1])]
    };
    current.iter().zip(earlier_padded).map(difference).collect()
}

fn add_to(histogram: &Histogram, buckets: &HistogramSnapshot) {
    histogram.add(buckets);
}

impl ControlPlane {
    /// Returns a snapshot of all counters.
    pub(crate) fn counts(&self) -> CounterSnapshot {
        let groups = self
            .groups
            .iter()
            .map(|(name, group_state)| (name.to_string(), GroupCounts::from_group(group_state)));
        let states = self.listeners.iter().zip(&self.settings.listeners);
        let listeners = self.listener_names().into_iter().zip(states).map(|(name, (state, settings))| {
            let sum = |count: fn(&crate::listener::ListenerCounters) -> &Counter| {
                state.shared.all_counters().map(|counters| count(counters).value()).sum()
            };
            let bindings = status_report::bindings(self, settings, state).into_iter();
            let bindings = bindings
                .map(|BindingStatus { member, bound, moved }| (member, BindingCounts { bound, moved }))
                .filter(|(_, counts)| *counts != BindingCounts::default());
            let (accepted, refused) = (sum(|counters| &counters.accepted), sum(|counters| &counters.refused));
            (name, ListenerCounts { accepted, refused, bindings: bindings.collect() })
        });
        CounterSnapshot { groups: groups.collect(), listeners: listeners.collect() }
    }

    /// Adds the counters of another process. Its work in flight counts as the members' until it reports
    /// otherwise.
    pub(crate) fn add_counts(&mut self, counts: &CounterSnapshot) {
        for (name, group_counts) in &counts.groups {
            let Some(group_state) = self.groups.get_mut(&**name) else { continue };
            group_counts.add_to(&group_state.group);
            group_state.hooks.succeeded += group_counts.hand_overs;
            group_state.hooks.failed += group_counts.hand_overs_failed;
            for (member, member_counts) in &group_counts.members {
                let Some(id) = group_state.id(member) else { continue };
                let Some(record) = group_state.record(id).cloned() else { continue };
                member_counts.add_to(&record);
                // The process that counted these has reported their targets.
                *group_state.reported_moves.entry(id).or_default() += member_counts.moved;
                self.predecessor_load.set_in_flight(
                    (name.clone(), member.clone()),
                    &record.vitals,
                    member_counts.in_flight,
                );
            }
        }
        let states = self.listeners.iter().zip(&self.settings.listeners);
        for (name, (state, settings)) in self.listener_names().iter().zip(states) {
            let Some(listener_counts) = counts.listeners.get(name) else { continue };
            let ListenerShared { predecessor: predecessor_counters, bindings, counts, .. } = &*state.shared;
            predecessor_counters.accepted.add(listener_counts.accepted);
            predecessor_counters.refused.add(listener_counts.refused);
            let Some(group_state) = self.groups.get(&settings.group) else { continue };
            for (member, BindingCounts { bound, moved }) in &listener_counts.bindings {
                if let Some(record) = group_state.id(member).and_then(|id| group_state.record(id)) {
                    bindings.record_predecessor(record, counts.len(), *bound, *moved);
                }
            }
        }
    }
}

impl PredecessorLoad {
    /// Records the number of requests that another process has in flight at a member now.
    fn set_in_flight(&mut self, member: (String, String), vitals: &Arc<Vitals>, in_flight: u32) {
        let (known_vitals, previous) = self.0.entry(member).or_insert_with(|| (Arc::clone(vitals), 0));
        if !Arc::ptr_eq(known_vitals, vitals) {
            // Another member with the same name.
            known_vitals.record_direct_work(*previous, 0);
            (*known_vitals, *previous) = (Arc::clone(vitals), 0);
        }
        if known_vitals.record_direct_work(*previous, in_flight) {
            *previous = in_flight;
        }
    }

    /// Forgets the work of the other process, which has ended.
    pub(crate) fn clear(&mut self) {
        for (vitals, in_flight) in std::mem::take(&mut self.0).into_values() {
            vitals.record_direct_work(in_flight, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(requests: u64, in_flight: u32) -> MemberCounts {
        MemberCounts {
            requests,
            in_flight,
            answers: vec![0, 0, requests],
            levels: vec![[requests, 9]],
            ..MemberCounts::default()
        }
    }

    fn counts(requests: u64, in_flight: u32) -> CounterSnapshot {
        let members = [("a:1".to_owned(), member(requests, in_flight))].into();
        let group = GroupCounts { members, retries: requests, ..GroupCounts::default() };
        CounterSnapshot { groups: [("web".to_owned(), group)].into(), listeners: BTreeMap::new() }
    }

    #[test]
    fn what_was_counted_in_between() {
        let difference = counts(7, 3).since(&counts(5, 9));
        let group = &difference.groups["web"];
        assert_eq!((group.retries, group.members["a:1"].requests), (2, 2));
        assert_eq!(group.members["a:1"].answers, [0, 0, 2]);
        assert_eq!(group.members["a:1"].levels, [[2, 0]]);
        assert_eq!(group.members["a:1"].in_flight, 3, "what is in flight is so now");
        assert_eq!(counts(7, 3).since(&CounterSnapshot::default()), counts(7, 3));
        assert_eq!(counts(7, 3).since(&counts(7, 3)), CounterSnapshot::default(), "nothing has changed");
    }

    #[test]
    fn what_another_process_has_in_flight_comes_and_goes() {
        let vitals = Arc::new(Vitals::with_in_flight(2));
        let mut predecessor = PredecessorLoad::default();
        let key = || ("web".to_owned(), "a:1".to_owned());
        predecessor.set_in_flight(key(), &vitals, 5);
        predecessor.set_in_flight(key(), &vitals, 3);
        assert_eq!(vitals.in_flight(), 5);
        let other = Arc::new(Vitals::default());
        predecessor.set_in_flight(key(), &other, 4);
        assert_eq!((vitals.in_flight(), other.in_flight()), (2, 4));
        predecessor.clear();
        assert_eq!((vitals.in_flight(), other.in_flight()), (2, 0));
    }

    #[test]
    fn versions_that_know_more_or_less_are_understood() {
        let text = "{\"groups\": {\"web\": {\"retries\": 3, \"colour\": 1, \
                    \"members\": {\"a:1\": {\"requests\": 2}}}}}";
        let snapshot: CounterSnapshot = serde_json::from_str(text).unwrap();
        assert_eq!((snapshot.groups["web"].retries, snapshot.groups["web"].members["a:1"].requests), (3, 2));
    }
}
