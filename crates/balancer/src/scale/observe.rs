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
    pub(super) fn rates_since(&mut self, look: &GroupSnapshot, seconds: f64) -> Option<GroupRates> {
        let status = &look.status;
        let refused: u64 = status.rejected.values().sum();
        let under_way: u64 =
            status.members.iter().map(|member| u64::from(member.in_flight)).sum::<u64>() + status.queued;
        let now = (status.latency.count + refused, under_way);
        let before = self.counts.replace(now);
        let no_room: u64 = NO_ROOM.iter().filter_map(|reason| status.rejected.get(*reason)).sum();
        let no_room_since = no_room.saturating_sub(std::mem::replace(&mut self.refused, no_room));
        let fresh: Vec<u64> = match self.duration_counts.len() == look.latency_counts.len() {
            true => look
                .latency_counts
                .iter()
                .zip(&self.duration_counts)
                .map(|(now, before)| now.saturating_sub(*before))
                .collect(),
            false => Vec::new(),
        };
        let response = quantile(&fresh, 0.95);
        // Too few are kept for the next look.
        if response.is_some() || fresh.is_empty() {
            self.duration_counts.clone_from(&look.latency_counts);
        }
        let before = before.filter(|_| seconds > 0.0)?;
        // The requests in flight at a drained member when it left are not counted any more, which could make
        // the count negative.
        let ended = now.0.saturating_sub(before.0) as f64;
        let came = (ended + now.1 as f64 - before.1 as f64).max(0.0);
        let refused = no_room_since as f64 / seconds;
        let (elsewhere, waiting) =
            look.other_balancers.values().fold((0.0, 0.0), |sums, one| (sums.0 + one.0, sums.1 + one.1));
        let waiting = status.queued as f64 + waiting;
        Some(GroupRates {
            rate: came / seconds + elsewhere,
            rate_elsewhere: elsewhere,
            queued: waiting,
            refused,
            response_p95: response,
        })
    }
}

/// Returns the seconds below which a share of the requests lies, if there are enough of them.
fn quantile(times: &[u64], share: f64) -> Option<f64> {
    let count: u64 = times.iter().sum();
    if count < FEW {
        return None;
    }
    let rank = (count as f64 * share).ceil() as u64;
    let mut seen = 0;
    let place = times.iter().position(|here| {
        seen += here;
        seen >= rank
    })?;
    GroupSnapshot::bucket_seconds().get(place).copied()
}

/// The reasons of rejections that another member would avoid.
const NO_ROOM: [&str; 3] = ["queue_full", "queue_timeout", "shed"];

/// The least number of requests for a percentile: that of 20 would be the longest but one.
const FEW: u64 = 50;

/// The members of a group, as its scaler counts them.
pub(super) struct MemberRoster<'a> {
    pub(super) crew: &'a InstanceSet,
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
    pub(super) fn observe_members<'l>(&self, look: &'l GroupSnapshot) -> Vec<MemberObservation<'l>> {
        let listed = look.status.members.iter().map(|member| self.observe_member(member, look));
        let mut seen: Vec<MemberObservation<'l>> = listed.collect();
        let known = |name: &Arc<str>| look.status.members.iter().any(|member| *member.name == **name);
        let coming =
            |stage| matches!(stage, InstanceState::Asked | InstanceState::Coming | InstanceState::Serving);
        let hidden = self
            .crew
            .instances()
            .iter()
            .filter(|hand| coming(hand.state) && !hand.member.as_ref().is_some_and(known));
        let awaited = hidden.count() + self.awaited as usize;
        seen.extend((0..awaited).map(|_| MemberObservation {
            name: "",
            capacity: self.unit_capacity,
            state: ScaledMemberState::Starting,
            is_removable: false,
            in_flight: 0,
            utilization: None,
            line: None,
            share: 1.0,
        }));
        seen
    }

    fn observe_member<'l>(&self, member: &'l MemberStatus, look: &GroupSnapshot) -> MemberObservation<'l> {
        let hand = self.crew.instances().iter().find(|hand| hand.member.as_deref() == Some(&*member.name));
        let lost = Duration::from_secs_f64(member.since_seconds.clamp(0.0, 1e9)) >= self.grace;
        let standing = match (hand.map(|hand| hand.state), member.state) {
            (Some(InstanceState::Draining | InstanceState::Stopping), _) | (_, MemberState::Draining) => {
                ScaledMemberState::Draining
            }
            (_, MemberState::Disabled) => ScaledMemberState::Unavailable,
            (_, state) if state.is_eligible() => ScaledMemberState::Usable,
            (Some(InstanceState::Asked | InstanceState::Coming), _) => ScaledMemberState::Starting,
            // The member may come back before another one could be started.
            _ if lost => ScaledMemberState::Unavailable,
            _ => ScaledMemberState::Starting,
        };
        MemberObservation {
            name: &member.name,
            capacity: member.capacity,
            state: standing,
            is_removable: hand.is_some() || self.removes_any,
            in_flight: member.in_flight.saturating_add(member.in_flight_elsewhere.round() as u32),
            utilization: look.processors.get(&member.name).copied(),
            // The load line is the part that others leave; with the others' part it is the capacity for all.
            line: member
                .load_line
                .as_ref()
                .and_then(|line| line.capacity)
                .map(|line| line + look.other_balancers.get(&member.name).map_or(0.0, |(rate, _)| *rate)),
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

    fn look(ended: u64, in_flight: u64, queued: u64, times: &[u64]) -> GroupSnapshot {
        let mut status = GroupStatus { queued: queued + in_flight, ..GroupStatus::default() };
        status.latency.count = ended;
        GroupSnapshot {
            status,
            latency_counts: times.to_vec(),
            processors: BTreeMap::new(),
            other_balancers: BTreeMap::new(),
        }
    }

    #[test]
    fn what_comes_to_other_balancers_comes_too() {
        let mut before = PreviousCounters::default();
        before.rates_since(&look(100, 0, 0, &[]), 1.0);
        let mut look = look(150, 30, 5, &[]);
        look.other_balancers = BTreeMap::from([("a".to_owned(), (30.0, 2.0)), ("b".to_owned(), (10.5, 0.0))]);
        let since = before.rates_since(&look, 1.0).unwrap();
        assert_eq!((since.rate, since.rate_elsewhere, since.queued), (50.0 + 35.0 + 40.5, 40.5, 37.0));
        // A member's capacity for all is the part that others leave and the part that they use; a member that
        // serves others is not idle.
        let line = MemberLoadLine { capacity: Some(70.0), ..MemberLoadLine::default() };
        look.status.members = vec![MemberStatus {
            name: "a".into(),
            load_line: Some(line),
            in_flight: 2,
            in_flight_elsewhere: 3.4,
            ..crate::test_data::sample_status().groups[0].members[0].clone()
        }];
        let crew = InstanceSet::new(InstanceTimeouts::default());
        let roster = MemberRoster {
            crew: &crew,
            removes_any: true,
            awaited: 0,
            unit_capacity: 1.0,
            grace: Duration::ZERO,
        };
        let seen = roster.observe_members(&look);
        assert_eq!((seen[0].line, seen[0].in_flight), (Some(100.0), 5));
        assert_eq!(find_member(&look.status, "a").unwrap().in_flight, 5);
    }

    #[test]
    fn what_came_is_what_ended_and_what_is_under_way() {
        let mut before = PreviousCounters::default();
        assert_eq!(before.rates_since(&look(100, 0, 0, &[]), 1.0), None);
        let since = before.rates_since(&look(150, 30, 0, &[]), 2.0).unwrap();
        assert_eq!((since.rate, since.queued, since.response_p95), (40.0, 30.0, None));
        // The requests in flight end, and none come.
        assert_eq!(before.rates_since(&look(180, 0, 0, &[]), 1.0).unwrap().rate, 0.0);
    }

    #[test]
    fn only_want_of_room_counts_as_refused() {
        let mut before = PreviousCounters::default();
        let refused = |reasons: &[(&str, u64)]| {
            let mut look = look(0, 0, 0, &[]);
            look.status.rejected = reasons.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect();
            look
        };
        before.rates_since(&refused(&[("shed", 7)]), 1.0);
        let now = refused(&[("shed", 9), ("queue_full", 4), ("no_member", 50), ("bad_request", 3)]);
        assert_eq!(before.rates_since(&now, 2.0).unwrap().refused, 3.0);
        assert_eq!(before.rates_since(&now, 1.0).unwrap().refused, 0.0);
    }

    #[test]
    fn times_are_those_since_the_look_before() {
        let mut before = PreviousCounters::default();
        let mut times = vec![0; GroupSnapshot::bucket_seconds().len()];
        times[3] = 1000;
        before.rates_since(&look(0, 0, 0, &times), 1.0);
        times[40] = 95;
        times[50] = 5;
        let response = before.rates_since(&look(0, 0, 0, &times), 1.0).unwrap().response_p95.unwrap();
        assert_eq!(response, GroupSnapshot::bucket_seconds()[40]);
        assert_eq!(before.rates_since(&look(0, 0, 0, &times), 1.0).unwrap().response_p95, None);
    }
}
