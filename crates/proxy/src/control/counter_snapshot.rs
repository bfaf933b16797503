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
    pub fn since(&self, before: &Self) -> Self {
        let none = GroupCounts::default();
        // Unchanged counters are left out.
        let groups = self.groups.iter().filter_map(|(name, now)| {
            let before = before.groups.get(name).unwrap_or(&none);
            (now != before).then(|| (name.clone(), now.since(before)))
        });
        let listeners = self.listeners.iter().filter_map(|(name, now)| {
            let before = before.listeners.get(name).cloned().unwrap_or_default();
            (*now != before).then(|| (name.clone(), now.since(&before)))
        });
        Self { groups: groups.collect(), listeners: listeners.collect() }
    }
}

impl ListenerCounts {
    fn since(&self, before: &Self) -> Self {
        let bindings = self.bindings.iter().filter_map(|(member, now)| {
            let earlier = before.bindings.get(member).copied().unwrap_or_default();
            let moved = now.moved.saturating_sub(earlier.moved);
            (*now != earlier).then(|| (member.clone(), BindingCounts { moved, ..*now }))
        });
        Self {
            accepted: self.accepted.saturating_sub(before.accepted),
            refused: self.refused.saturating_sub(before.refused),
            bindings: bindings.collect(),
        }
    }
}

impl GroupCounts {
    fn since(&self, before: &Self) -> Self {
        let none = MemberCounts::default();
        let rejected = self.rejected.iter().map(|(reason, count)| {
            (reason.clone(), count.saturating_sub(before.rejected.get(reason).copied().unwrap_or_default()))
        });
        let members = self.members.iter().filter_map(|(name, now)| {
            let before = before.members.get(name).unwrap_or(&none);
            (now != before).then(|| (name.clone(), now.since(before)))
        });
        Self {
            latency: self.latency.since(&before.latency),
            waits: self.waits.since(&before.waits),
            rejected: rejected.collect(),
            retries: self.retries.saturating_sub(before.retries),
            retries_denied: self.retries_denied.saturating_sub(before.retries_denied),
            urgencies: pairs_since(&self.urgencies, &before.urgencies),
            hand_overs: self.hand_overs.saturating_sub(before.hand_overs),
            hand_overs_failed: self.hand_overs_failed.saturating_sub(before.hand_overs_failed),
            members: members.collect(),
        }
    }

    fn from_group(ruled: &GroupState) -> Self {
        let tallies = || ruled.group.all_counters();
        let sum = |count: &dyn Fn(&GroupCounters) -> &Counter| -> u64 {
            tallies().map(|tally| count(tally).value()).sum()
        };
        let rejected = reason::ALL
            .iter()
            .map(|reason| (reason.label().to_owned(), sum(&|tally| &tally.rejected[*reason as usize])));
        let urgencies = (0..plimsoll_brain::Urgency::COUNT).map(|urgency| {
            [sum(&|tally| &tally.urgencies[urgency].served), sum(&|tally| &tally.urgencies[urgency].rejected)]
        });
        let members = ruled.analyzer.members().filter_map(|(id, spec, vitals)| {
            Some((spec.name.to_string(), MemberCounts::from_record(ruled.record(id)?, vitals)))
        });
        Self {
            latency: HistogramSnapshot::merge(tallies().map(|tally| &tally.latency)),
            waits: HistogramSnapshot::merge(tallies().map(|tally| &tally.waits)),
            rejected: rejected.collect(),
            retries: sum(&|tally| &tally.retries),
            retries_denied: sum(&|tally| &tally.retries_denied),
            urgencies: urgencies.collect(),
            hand_overs: ruled.hooks.succeeded,
            hand_overs_failed: ruled.hooks.failed,
            members: members.collect(),
        }
    }

    fn add_to(&self, group: &SharedGroup) {
        let tally = group.predecessor_counters();
        add_to(&tally.latency, &self.latency);
        add_to(&tally.waits, &self.waits);
        for reason in reason::ALL {
            let more = self.rejected.get(reason.label()).copied().unwrap_or_default();
            tally.rejected[reason as usize].add(more);
        }
        tally.retries.add(self.retries);
        tally.retries_denied.add(self.retries_denied);
        for (waited, [served, refused]) in tally.urgencies.iter().zip(&self.urgencies) {
            waited.served.add(*served);
            waited.rejected.add(*refused);
        }
    }
}

impl MemberCounts {
    fn since(&self, before: &Self) -> Self {
        let earlier = before.answers.iter().copied().chain(std::iter::repeat(0));
        Self {
            in_flight: self.in_flight,
            requests: self.requests.saturating_sub(before.requests),
            failures: self.failures.saturating_sub(before.failures),
            left: self.left.saturating_sub(before.left),
            answers: self
                .answers
                .iter()
                .zip(earlier)
                .map(|(now, before)| now.saturating_sub(before))
                .collect(),
            connects: self.connects.saturating_sub(before.connects),
            bytes_out: self.bytes_out.saturating_sub(before.bytes_out),
            bytes_in: self.bytes_in.saturating_sub(before.bytes_in),
            bytes_relayed: self.bytes_relayed.saturating_sub(before.bytes_relayed),
            moved: self.moved.saturating_sub(before.moved),
            latency: self.latency.since(&before.latency),
            levels: pairs_since(&self.levels, &before.levels),
        }
    }

    fn from_record(record: &MemberRecord, vitals: &Vitals) -> Self {
        let sum = |count: &dyn Fn(&MemberCoreCounters) -> &Counter| -> u64 {
            record.all_counters().map(|stripe| count(stripe).value()).fold(0, u64::wrapping_add)
        };
        let mut levels = [[0; 2]; plimsoll_brain::load_line::CONCURRENCY_LEVELS];
        record.all_counters().for_each(|stripe| stripe.latency_by_concurrency.sum(&mut levels));
        Self {
            // Leases move to the other process; the rest of them here is not its work.
            in_flight: vitals
                .in_flight()
                .saturating_sub(u32::try_from(record.leases.held.load(Relaxed)).unwrap_or(u32::MAX)),
            requests: sum(&|stripe| &stripe.requests),
            failures: sum(&|stripe| &stripe.failures),
            left: sum(&|stripe| &stripe.client_left),
            answers: (0..6).map(|class| sum(&|stripe| &stripe.responses[class])).collect(),
            connects: sum(&|stripe| &stripe.connects),
            bytes_out: sum(&|stripe| &stripe.bytes_out),
            bytes_in: sum(&|stripe| &stripe.bytes_in),
            bytes_relayed: sum(&|stripe| &stripe.bytes_relayed),
            moved: sum(&|stripe| &stripe.moved),
            latency: HistogramSnapshot::merge(record.all_counters().map(|stripe| &stripe.latency)),
            levels: levels[..levels.iter().rposition(|level| *level != [0; 2]).map_or(0, |last| last + 1)]
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
        let stripe = record.predecessor_counters();
        stripe.requests.add(self.requests);
        stripe.failures.add(self.failures);
        stripe.client_left.add(self.left);
        for (count, more) in stripe.responses.iter().zip(&self.answers) {
            count.add(*more);
        }
        stripe.connects.add(self.connects);
        stripe.bytes_out.add(self.bytes_out);
        stripe.bytes_in.add(self.bytes_in);
        stripe.bytes_relayed.add(self.bytes_relayed);
        stripe.moved.add(self.moved);
        add_to(&stripe.latency, &self.latency);
        stripe.latency_by_concurrency.add(&self.levels);
    }
}

fn pairs_since(now: &[[u64; 2]], before: &[[u64; 2]]) -> Vec<[u64; 2]> {
    let earlier = before.iter().copied().chain(std::iter::repeat([0; 2]));
    let less = |(now, before): (&[u64; 2], [u64; 2])| {
        [now[0].saturating_sub(before[0]), now[1].saturating_sub(before[1])]
    };
    now.iter().zip(earlier).map(less).collect()
}

fn add_to(histogram: &Histogram, buckets: &HistogramSnapshot) {
    histogram.add(buckets);
}

impl ControlPlane {
    /// Returns a snapshot of all counters.
    pub(crate) fn counts(&self) -> CounterSnapshot {
        let groups =
            self.groups.iter().map(|(name, ruled)| (name.to_string(), GroupCounts::from_group(ruled)));
        let open = self.listeners.iter().zip(&self.settings.listeners);
        let listeners = self.listener_names().into_iter().zip(open).map(|(name, (open, settings))| {
            let sum = |count: fn(&crate::listener::ListenerCounters) -> &Counter| {
                open.shared.all_counters().map(|of| count(of).value()).sum()
            };
            let bindings = status_report::bindings(self, settings, open).into_iter();
            let bindings = bindings
                .map(|BindingStatus { member, bound, moved }| (member, BindingCounts { bound, moved }))
                .filter(|(_, known)| *known != BindingCounts::default());
            let (accepted, refused) = (sum(|of| &of.accepted), sum(|of| &of.refused));
            (name, ListenerCounts { accepted, refused, bindings: bindings.collect() })
        });
        CounterSnapshot { groups: groups.collect(), listeners: listeners.collect() }
    }

    /// Adds the counters of another process. Its work in flight counts as the members' until it reports
    /// otherwise.
    pub(crate) fn add_counts(&mut self, counts: &CounterSnapshot) {
        for (name, more) in &counts.groups {
            let Some(ruled) = self.groups.get_mut(&**name) else { continue };
            more.add_to(&ruled.group);
            ruled.hooks.succeeded += more.hand_overs;
            ruled.hooks.failed += more.hand_overs_failed;
            for (member, more) in &more.members {
                let Some(id) = ruled.id(member) else { continue };
                let Some(record) = ruled.record(id).cloned() else { continue };
                more.add_to(&record);
                // The process that counted these has reported their targets.
                *ruled.reported_moves.entry(id).or_default() += more.moved;
                self.predecessor_load.set_in_flight(
                    (name.clone(), member.clone()),
                    &record.vitals,
                    more.in_flight,
                );
            }
        }
        let open = self.listeners.iter().zip(&self.settings.listeners);
        for (name, (open, settings)) in self.listener_names().iter().zip(open) {
            let Some(more) = counts.listeners.get(name) else { continue };
            let ListenerShared { predecessor: before, bindings: ties, counts, .. } = &*open.shared;
            before.accepted.add(more.accepted);
            before.refused.add(more.refused);
            let Some(ruled) = self.groups.get(&settings.group) else { continue };
            for (member, BindingCounts { bound, moved }) in &more.bindings {
                if let Some(record) = ruled.id(member).and_then(|id| ruled.record(id)) {
                    ties.record_predecessor(record, counts.len(), *bound, *moved);
                }
            }
        }
    }
}

impl PredecessorLoad {
    /// Records the number of requests that another process has in flight at a member now.
    fn set_in_flight(&mut self, member: (String, String), vitals: &Arc<Vitals>, now: u32) {
        let (known, before) = self.0.entry(member).or_insert_with(|| (Arc::clone(vitals), 0));
        if !Arc::ptr_eq(known, vitals) {
            // Another member with the same name.
            known.record_direct_work(*before, 0);
            (*known, *before) = (Arc::clone(vitals), 0);
        }
        if known.record_direct_work(*before, now) {
            *before = now;
        }
    }

    /// Forgets the work of the other process, which has ended.
    pub(crate) fn clear(&mut self) {
        for (vitals, before) in std::mem::take(&mut self.0).into_values() {
            vitals.record_direct_work(before, 0);
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
        let between = counts(7, 3).since(&counts(5, 9));
        let group = &between.groups["web"];
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
        let mut elsewhere = PredecessorLoad::default();
        let name = || ("web".to_owned(), "a:1".to_owned());
        elsewhere.set_in_flight(name(), &vitals, 5);
        elsewhere.set_in_flight(name(), &vitals, 3);
        assert_eq!(vitals.in_flight(), 5);
        let other = Arc::new(Vitals::default());
        elsewhere.set_in_flight(name(), &other, 4);
        assert_eq!((vitals.in_flight(), other.in_flight()), (2, 4));
        elsewhere.clear();
        assert_eq!((vitals.in_flight(), other.in_flight()), (2, 0));
    }

    #[test]
    fn versions_that_know_more_or_less_are_understood() {
        let text = "{\"groups\": {\"web\": {\"retries\": 3, \"colour\": 1, \
                    \"members\": {\"a:1\": {\"requests\": 2}}}}}";
        let read: CounterSnapshot = serde_json::from_str(text).unwrap();
        assert_eq!((read.groups["web"].retries, read.groups["web"].members["a:1"].requests), (3, 2));
    }
}
