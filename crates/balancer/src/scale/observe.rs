//! A scaler's view of its group: two looks, and the changes between them.
//!
//! Members may also serve other balancers that act together with this one (`[fleet]`). Their requests count
//! like those here, in flight or waiting.

use std::sync::Arc;
use std::time::Duration;

use plimsoll_brain::MemberState;
use plimsoll_brain::autoscale::instances::{InstanceSet, InstanceState};
use plimsoll_brain::autoscale::{MemberObservation, ScaledMemberState};
use plimsoll_brain::status::{GroupStatus, MemberStatus};
use plimsoll_proxy::GroupSnapshot;

/// The counts at the look before.
#[derive(Debug, Default)]
pub(super) struct PreviousCounters {
    /// The requests that ended or were rejected, and those in flight.
    counts: Option<(u64, u64)>,
    /// The requests that were rejected for want of room.
    refused: u64,
    /// The requests by their duration, when that was last evaluated.
    duration_counts: Vec<u64>,
}

/// The changes since then.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct GroupRates {
    /// The arrival rate in requests a second, that at other balancers included.
    pub(super) rate: f64,
    /// The part of it at other balancers.
    pub(super) rate_elsewhere: f64,
    /// The requests that wait for a member.
    pub(super) queued: f64,
    /// The requests a second that were rejected for want of room.
    pub(super) refused: f64,
    /// The 95th percentile of the duration of those that ended, in seconds; `None` if too few did since the
    /// last one.
    pub(super) response_p95: Option<f64>,
}

impl PreviousCounters {
    /// Returns the changes; `None` at the first look.
    pub(super) fn rates_since(&mut self, snapshot: &GroupSnapshot, seconds: f64) -> Option<GroupRates> {
        let status = &snapshot.status;
        let refused: u64 = status.rejected.values().sum();
        let in_flight: u64 =
            status.members.iter().map(|member| u64::from(member.in_flight)).sum::<u64>() + status.queued;
        let counts = (status.latency.count + refused, in_flight);
        let previous = self.counts.replace(counts);
        let capacity_rejections: u64 =
            CAPACITY_REASONS.iter().filter_map(|reason| status.rejected.get(*reason)).sum();
        let new_rejections =
            capacity_rejections.saturating_sub(std::mem::replace(&mut self.refused, capacity_rejections));
        let new_durations: Vec<u64> = match self.duration_counts.len() == snapshot.latency_counts.len() {
            true => snapshot
                .latency_counts
                .iter()
                .zip(&self.duration_counts)
                .map(|(current, previous)| current.saturating_sub(*previous))
                .collect(),
            false => Vec::new(),
        };
        let response = quantile(&new_durations, 0.95);
        // Too few are kept for the next look.
        if response.is_some() || new_durations.is_empty() {
            self.duration_counts.clone_from(&snapshot.latency_counts);
        }
        let previous = previous.filter(|_| seconds > 0.0)?;
        // The requests in flight at a drained member when it left are not counted any more, which could make
        // the count negative.
        let completed = counts.0.saturating_sub(previous.0) as f64;
        let arrived = (completed + counts.1 as f64 - previous.1 as f64).max(0.0);
        let refused = new_rejections as f64 / seconds;
        let (rate_elsewhere, peer_queued) = snapshot
            .other_balancers
            .values()
            .fold((0.0, 0.0), |sums, peer| (sums.0 + peer.0, sums.1 + peer.1));
        let queued = status.queued as f64 + peer_queued;
        Some(GroupRates {
            rate: arrived / seconds + rate_elsewhere,
            rate_elsewhere,
            queued,
            refused,
            response_p95: response,
        })
    }
}

/// Returns the seconds below which a share of the requests lies, if there are enough of them.
fn quantile(times: &[u64], share: f64) -> Option<f64> {
    let count: u64 = times.iter().sum();
    if count < MIN_SAMPLES {
        return None;
    }
    let rank = (count as f64 * share).ceil() as u64;
    let mut cumulative = 0;
    let bucket = times.iter().position(|bucket_count| {
        cumulative += bucket_count;
        cumulative >= rank
    })?;
    GroupSnapshot::bucket_seconds().get(bucket).copied()
}

/// The reasons of rejections that another member would avoid.
const CAPACITY_REASONS: [&str; 3] = ["queue_full", "queue_timeout", "shed"];

/// The least number of requests for a percentile: that of 20 would be the longest but one.
const MIN_SAMPLES: u64 = 50;

/// The members of a group, as its scaler counts them.
pub(super) struct MemberRoster<'a> {
    pub(super) instance_set: &'a InstanceSet,
    /// Whether the scaler can remove members that it did not start, because it only sets their number.
    pub(super) removes_any: bool,
    /// The number of members that were asked for and have not been found yet.
    pub(super) awaited: u32,
    /// The capacity of a member that is started.
    pub(super) unit_capacity: f64,
    /// The time after which an unusable member is lost.
    pub(super) grace: Duration,
}

impl MemberRoster<'_> {
    pub(super) fn observe_members<'l>(&self, snapshot: &'l GroupSnapshot) -> Vec<MemberObservation<'l>> {
        let listed = snapshot.status.members.iter().map(|member| self.observe_member(member, snapshot));
        let mut observations: Vec<MemberObservation<'l>> = listed.collect();
        let is_listed = |name: &Arc<str>| snapshot.status.members.iter().any(|member| *member.name == **name);
        let is_starting =
            |stage| matches!(stage, InstanceState::Asked | InstanceState::Coming | InstanceState::Serving);
        let unlisted = self.instance_set.instances().iter().filter(|instance| {
            is_starting(instance.state) && !instance.member.as_ref().is_some_and(is_listed)
        });
        let awaited = unlisted.count() + self.awaited as usize;
        observations.extend((0..awaited).map(|_| MemberObservation {
            name: "",
            capacity: self.unit_capacity,
            state: ScaledMemberState::Starting,
            is_removable: false,
            in_flight: 0,
            utilization: None,
            line: None,
            share: 1.0,
        }));
        observations
    }

    fn observe_member<'l>(
        &self,
        member: &'l MemberStatus,
        snapshot: &GroupSnapshot,
    ) -> MemberObservation<'l> {
        let instance = self
            .instance_set
            .instances()
            .iter()
            .find(|instance| instance.member.as_deref() == Some(&*member.name));
        let is_overdue = Duration::from_secs_f64(member.since_seconds.clamp(0.0, 1e9)) >= self.grace;
        let member_state = match (instance.map(|instance| instance.state), member.state) {
            (Some(InstanceState::Draining | InstanceState::Stopping), _) | (_, MemberState::Draining) => {
                ScaledMemberState::Draining
            }
            (_, MemberState::Disabled) => ScaledMemberState::Unavailable,
            (_, state) if state.is_eligible() => ScaledMemberState::Usable,
            (Some(InstanceState::Asked | InstanceState::Coming), _) => ScaledMemberState::Starting,
            // The member may come back before another one could be started.
            _ if is_overdue => ScaledMemberState::Unavailable,
            _ => ScaledMemberState::Starting,
        };
        MemberObservation {
            name: &member.name,
            capacity: member.capacity,
            state: member_state,
            is_removable: instance.is_some() || self.removes_any,
            in_flight: member.in_flight.saturating_add(member.in_flight_elsewhere.round() as u32),
            utilization: snapshot.processors.get(&member.name).copied(),
            // The load line is the part that others leave; with the others' part it is the capacity for all.
            line: member
                .load_line
                .as_ref()
                .and_then(|line| line.capacity)
                .map(|line| line + snapshot.other_balancers.get(&member.name).map_or(0.0, |(rate, _)| *rate)),
            // The capacity of a host counts once, however many groups are there.
            share: member.host.as_ref().map_or(1.0, |host| host.own),
        }
    }
}

/// Returns the state of a member, for the instance set.
pub(super) fn find_member(
    status: &GroupStatus,
    name: &str,
) -> Option<plimsoll_brain::autoscale::instances::InstanceObservation> {
    let member = status.members.iter().find(|member| member.name == name)?;
    let elsewhere = member.in_flight_elsewhere.round() as u32;
    let in_flight = member.in_flight.max(u32::try_from(member.leases).unwrap_or(u32::MAX));
    let in_flight = in_flight.saturating_add(elsewhere);
    Some(plimsoll_brain::autoscale::instances::InstanceObservation {
        usable: member.state.is_eligible(),
        in_flight,
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use plimsoll_brain::autoscale::instances::InstanceTimeouts;
    use plimsoll_brain::status::MemberLoadLine;

    use super::*;

    fn group_snapshot(completed: u64, in_flight: u64, queued: u64, times: &[u64]) -> GroupSnapshot {
        let mut status = GroupStatus { queued: queued + in_flight, ..GroupStatus::default() };
        status.latency.count = completed;
        GroupSnapshot {
            status,
            latency_counts: times.to_vec(),
            processors: BTreeMap::new(),
            other_balancers: BTreeMap::new(),
        }
    }

    #[test]
    fn what_comes_to_other_balancers_comes_too() {
        let mut counters = PreviousCounters::default();
        counters.rates_since(&group_snapshot(100, 0, 0, &[]), 1.0);
        let mut current = group_snapshot(150, 30, 5, &[]);
        current.other_balancers =
            BTreeMap::from([("a".to_owned(), (30.0, 2.0)), ("b".to_owned(), (10.5, 0.0))]);
        let rates = counters.rates_since(&current, 1.0).unwrap();
        assert_eq!((rates.rate, rates.rate_elsewhere, rates.queued), (50.0 + 35.0 + 40.5, 40.5, 37.0));
        // A member's capacity for all is the part that others leave and the part that they use; a member that
        // serves others is not idle.
        let line = MemberLoadLine { capacity: Some(70.0), ..MemberLoadLine::default() };
        current.status.members = vec![MemberStatus {
            name: "a".into(),
            load_line: Some(line),
            in_flight: 2,
            in_flight_elsewhere: 3.4,
            ..crate::test_data::sample_status().groups[0].members[0].clone()
        }];
        let instance_set = InstanceSet::new(InstanceTimeouts::default());
        let roster = MemberRoster {
            instance_set: &instance_set,
            removes_any: true,
            awaited: 0,
            unit_capacity: 1.0,
            grace: Duration::ZERO,
        };
        let observations = roster.observe_members(&current);
        assert_eq!((observations[0].line, observations[0].in_flight), (Some(100.0), 5));
        assert_eq!(find_member(&current.status, "a").unwrap().in_flight, 5);
    }

    #[test]
    fn what_came_is_what_ended_and_what_is_under_way() {
        let mut counters = PreviousCounters::default();
        assert_eq!(counters.rates_since(&group_snapshot(100, 0, 0, &[]), 1.0), None);
        let rates = counters.rates_since(&group_snapshot(150, 30, 0, &[]), 2.0).unwrap();
        assert_eq!((rates.rate, rates.queued, rates.response_p95), (40.0, 30.0, None));
        // The requests in flight end, and none come.
        assert_eq!(counters.rates_since(&group_snapshot(180, 0, 0, &[]), 1.0).unwrap().rate, 0.0);
    }

    #[test]
    fn only_want_of_room_counts_as_refused() {
        let mut counters = PreviousCounters::default();
        let snapshot_with = |reasons: &[(&str, u64)]| {
            let mut snapshot = group_snapshot(0, 0, 0, &[]);
            snapshot.status.rejected =
                reasons.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect();
            snapshot
        };
        counters.rates_since(&snapshot_with(&[("shed", 7)]), 1.0);
        let current = snapshot_with(&[("shed", 9), ("queue_full", 4), ("no_member", 50), ("bad_request", 3)]);
        assert_eq!(counters.rates_since(&current, 2.0).unwrap().refused, 3.0);
        assert_eq!(counters.rates_since(&current, 1.0).unwrap().refused, 0.0);
    }

    #[test]
    fn times_are_those_since_the_look_before() {
        let mut counters = PreviousCounters::default();
        let mut times = vec![0; GroupSnapshot::bucket_seconds().len()];
        times[3] = 1000;
        counters.rates_since(&group_snapshot(0, 0, 0, &times), 1.0);
        times[40] = 95;
        times[50] = 5;
        let response =
            counters.rates_since(&group_snapshot(0, 0, 0, &times), 1.0).unwrap().response_p95.unwrap();
        assert_eq!(response, GroupSnapshot::bucket_seconds()[40]);
        assert_eq!(counters.rates_since(&group_snapshot(0, 0, 0, &times), 1.0).unwrap().response_p95, None);
    }
}
