//! Several balancers in front of the same members. They exchange their observations, so that each acts as if
//! it were the only one.
//!
//! It is a value: others' reports go in ([`Fleet::receive_report`]) with the time, and this balancer's
//! reports come out ([`Fleet::poll_reports`]). The results are written where this balancer's choices read
//! them. These are the requests of others in flight with each member and this balancer's part of the member's
//! limits ([`Vitals`]), the unseen requests ([`PeerPresence`]), and the members' load reports. The slow path
//! gets updates ([`Fleet::poll_update`]). Nothing is ever stored.
//!
//! **Requests in flight of others** are reported as the present number and as the mean. A report fades into
//! the mean within the time of a request, as queues forget: `mean + (now - mean) e^(-age / latency)`. So a
//! fresh report counts as it is, and an old one as the mean, which favours no member for a difference that is
//! over. The requests of a silent balancer fade to nothing within two seconds, of all members alike; those of
//! a balancer known to be gone at once.
//!
//! **No herd.** Between two reports others begin requests that no other balancer sees. The requests in flight
//! from here, which are never outdated, count as many times as there are balancers, and those of others are
//! added: see [`PeerPresence`].
//!
//! **A report contains only its sender's own observations**: its requests, its checks, its ejections, its
//! members' load reports. So nothing counts twice, whichever way it came. A lost report makes the earlier one
//! less certain until the next: a slow sweep reports everything, whether it has changed or not.
//!
//! `tests/together.rs` runs several balancers in the simulated farm.

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::time::Duration;

use crate::{ReportedLoad, Time, Vitals, hash, mix};

mod broadcast;
mod peer;
mod peer_presence;
mod probe_ownership;
mod quota;
mod receive;
mod report;

pub use peer::PeerStats;
pub use peer_presence::PeerPresence;
pub use report::{
    FleetReport, GroupSection, MAX_REPORT_BYTES, MAX_SECTION_ENTRIES, MemberEntry, MonitorLoad, varint_size,
};

use peer::FleetPeer;

/// The settings of a balancer in a fleet.
#[derive(Clone, Debug, PartialEq)]
pub struct FleetSettings {
    /// The balancer's own number, which no other has, such as the hash of its address.
    pub own_id: u64,
    /// The time between two calls of [`Fleet::poll_reports`], which look for changes to report.
    pub interval: Duration,
    /// The bytes of reports that it may send in a second, to all others together.
    pub bytes_per_second: f64,
    /// The number of balancers that check the health of each member; at least 1.
    pub probers: usize,
    /// The time for which a lost balancer that did not announce its end keeps its part of limits.
    pub share_retention: Duration,
}

/// A group in the input of a [`Fleet`].
#[derive(Clone, Debug)]
pub struct FleetGroup {
    /// The configured name; groups of other balancers with this name are the same group.
    pub name: Arc<str>,
    /// The state that its plans read.
    pub presence: Arc<PeerPresence>,
    /// The members, in any order.
    pub members: Vec<FleetMember>,
}

/// A member in the input of a [`Fleet`].
#[derive(Clone, Debug)]
pub struct FleetMember {
    /// The configured name; members of other balancers with this name are the same member.
    pub name: Arc<str>,
    /// The live counts here.
    pub vitals: Arc<Vitals>,
    /// The maximum number of simultaneous requests of all balancers together; `u32::MAX` for no limit.
    pub limit: u32,
    /// Whether it has health checks.
    pub health_checked: bool,
}

/// An update for the slow path.
#[derive(Clone, Debug, PartialEq)]
pub struct FleetUpdate {
    /// The group.
    pub group: Arc<str>,
    /// The member.
    pub member: Arc<str>,
    /// The update.
    pub kind: FleetUpdateKind,
}

/// A report of others about a member, or a consequence of one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum FleetUpdateKind {
    /// Whether this balancer checks the member's health from now on, or others do.
    ProbeDuty(bool),
    /// A check by another balancer passed or failed.
    HealthChecked {
        /// Whether it passed.
        passed: bool,
        /// The age of the check.
        age: Duration,
        /// The balancer that checked.
        by: u64,
    },
    /// Another balancer has ejected the member, and no observation here contradicts.
    Ejected {
        /// The remaining length of the ejection there.
        remaining: Duration,
        /// The balancer that ejected it.
        by: u64,
    },
    /// Another balancer received a load report of the member.
    LoadReceived {
        /// The load in the unit of the group's metric.
        value: f64,
        /// Whether it is the load of the member's whole host.
        of_host: bool,
        /// The age of the measurement.
        age: Duration,
    },
    /// This balancer may have more requests there than before, and some wait.
    LimitRaised,
}

/// One balancer's part of the fleet's state.
#[derive(Debug)]
pub struct Fleet {
    settings: FleetSettings,
    groups: Vec<FleetGroupState>,
    /// The index of each group, by its number.
    group_indices: BTreeMap<u64, usize>,
    peers: BTreeMap<u64, FleetPeer>,
    updates: VecDeque<FleetUpdate>,
    /// The members, by group and index, to report before all others.
    urgent: BTreeSet<(usize, usize)>,
    /// The number of members of all groups.
    member_count: usize,
    /// The start of the next round, and that of the next refresh.
    report_cursor: MemberCursor,
    refresh_cursor: MemberCursor,
    /// The bytes that may be sent, and the time of that balance.
    tokens: f64,
    tokens_at: Time,
    /// The time of the last report.
    last_report: Option<Time>,
    /// The time before which every report must be repeated, because a new balancer did not receive it.
    renewed_at: Time,
}

/// A position among the members of all groups.
#[derive(Clone, Copy, Debug, Default)]
struct MemberCursor {
    group: usize,
    member: usize,
}

#[derive(Debug)]
struct FleetGroupState {
    id: u64,
    name: Arc<str>,
    presence: Arc<PeerPresence>,
    members: Vec<LocalMember>,
    /// The members by their number.
    member_indices: Vec<(u64, u32)>,
    /// The requests that wait for a member, divided by the number of members.
    waiting: f64,
    /// The requests a second that this balancer begins with the group.
    rate: f64,
}

/// The state of a member here.
#[derive(Debug)]
struct LocalMember {
    id: u64,
    name: Arc<str>,
    vitals: Arc<Vitals>,
    limit: u32,
    health_checked: bool,
    /// The time of the last look, and the requests begun by then.
    sampled_at: Option<Time>,
    begun_at_sample: u32,
    /// The mean of the requests in flight, and the requests a second, over about [`HORIZON`].
    mean_in_flight: f64,
    rate: f64,
    last_report: Option<broadcast::SentReport>,
    ejected_until: Option<Time>,
    last_check: Option<(bool, Time)>,
    load: Option<ReportedLoad>,
    /// The time of the load report received from another balancer, which is not sent again.
    relayed_report_at: Time,
    /// Whether this balancer checks it.
    is_prober: bool,
}

/// Returns the number of a group: the same at every balancer.
pub fn group_id(name: &str) -> u64 {
    hash(name.as_bytes())
}

/// Returns the number of a member of a group.
pub fn member_id(group: u64, name: &str) -> u64 {
    mix(group ^ hash(name.as_bytes()))
}

impl Fleet {
    /// Returns the state of a balancer without other balancers and groups.
    pub fn new(settings: FleetSettings) -> Self {
        Self {
            settings,
            groups: Vec::new(),
            group_indices: BTreeMap::new(),
            peers: BTreeMap::new(),
            updates: VecDeque::new(),
            urgent: BTreeSet::new(),
            member_count: 0,
            report_cursor: MemberCursor::default(),
            refresh_cursor: MemberCursor::default(),
            tokens: 0.0,
            tokens_at: Time(0),
            last_report: None,
            renewed_at: Time(0),
        }
    }

    /// Sets the groups and members. The state of those that stay is kept, by their names and counts. If two
    /// members have the same number (one in 2^64), only the first takes part.
    pub fn set_groups(&mut self, groups: Vec<FleetGroup>, now: Time) {
        let mut previous_groups: BTreeMap<u64, FleetGroupState> =
            core::mem::take(&mut self.groups).into_iter().map(|group| (group.id, group)).collect();
        for group_spec in groups {
            let id = group_id(&group_spec.name);
            let previous_group = previous_groups.remove(&id);
            let previous_indices =
                previous_group.as_ref().map(|group| group.member_indices.clone()).unwrap_or_default();
            let group = FleetGroupState::new(id, group_spec, previous_group);
            for peer in self.peers.values_mut() {
                peer.reorder_members(id, &previous_indices, &group.member_indices);
            }
            self.groups.push(group);
        }
        for removed_group in previous_groups.into_values() {
            removed_group.leave();
            self.peers.values_mut().for_each(|peer| peer.drop_group(removed_group.id));
        }
        self.group_indices = self.groups.iter().enumerate().map(|(index, group)| (group.id, index)).collect();
        self.member_count = self.groups.iter().map(|group| group.members.len()).sum();
        (self.report_cursor, self.refresh_cursor) = (MemberCursor::default(), MemberCursor::default());
        self.urgent.clear();
        self.refresh_all(now);
    }

    /// Records the requests that wait for a member of a group, below its limit.
    pub fn set_waiting(&mut self, group: &str, waiting: u32) {
        if let Some(group) = self.group_index(group).and_then(|index| self.groups.get_mut(index)) {
            group.waiting = f64::from(waiting) / group.members.len().max(1) as f64;
        }
    }

    /// Records the end of a health check of this balancer.
    pub fn record_check(&mut self, group: &str, member: &str, passed: bool, now: Time) {
        let Some((position, local_member)) = self.local_member(group, member) else { return };
        let previous_check = local_member.last_check.replace((passed, now));
        if previous_check.is_some_and(|(previous_passed, _)| previous_passed != passed) || !passed {
            self.urgent.insert(position);
        }
    }

    /// Records that this balancer itself has ejected a member, for the time `lasts`, or has readmitted it
    /// (zero).
    pub fn record_ejection(&mut self, group: &str, member: &str, duration: Duration, now: Time) {
        let Some((position, local_member)) = self.local_member(group, member) else { return };
        local_member.ejected_until = (!duration.is_zero()).then_some(now + duration);
        self.urgent.insert(position);
    }

    /// Records a load report of a member to this balancer.
    pub fn record_load(&mut self, group: &str, member: &str, load: ReportedLoad) {
        let value = load.value as f32;
        if let Some((_, local_member)) =
            self.local_member(group, member).filter(|_| value.is_finite() && value >= 0.0)
        {
            local_member.load = Some(load);
        }
    }

    /// Records that another balancer is present.
    pub fn peer_joined(&mut self, peer: u64, now: Time) {
        if peer == self.settings.own_id {
            return;
        }
        let known_peer = self.peers.entry(peer).or_insert_with(|| FleetPeer::new(now));
        if !known_peer.is_present() {
            *known_peer = FleetPeer::new(now);
        }
        // It needs all reports.
        self.renewed_at = self.renewed_at.max(now);
    }

    /// Records that another balancer is gone. `bye`: it announced that, and nothing is kept for it.
    pub fn peer_left(&mut self, peer: u64, announced: bool, now: Time) {
        if announced {
            self.peers.remove(&peer);
        } else if let Some(peer) = self.peers.get_mut(&peer) {
            peer.mark_lost(now);
        }
        self.refresh_all(now);
    }

    /// Returns the lost balancers that keep their parts of limits: the number, the time of the loss, and the
    /// [groups' numbers](group_id).
    pub fn lost_peers(&self) -> impl Iterator<Item = (u64, Time, Vec<u64>)> {
        self.peers.iter().filter_map(|(id, peer)| Some((*id, peer.lost_at()?, peer.groups().collect())))
    }

    /// Restores a balancer that the previous process lost at `since`: it keeps its parts for the rest of the
    /// time. Does nothing if it is known here.
    pub fn restore_lost_peer(
        &mut self,
        peer: u64,
        since: Time,
        groups: impl Iterator<Item = u64>,
        now: Time,
    ) {
        if peer != self.settings.own_id && !self.peers.contains_key(&peer) {
            self.peers.insert(peer, FleetPeer::lost_since(since, groups));
            self.refresh_all(now);
        }
    }

    /// Returns the next update for the slow path, the oldest first.
    pub fn poll_update(&mut self) -> Option<FleetUpdate> {
        self.updates.pop_front()
    }

    /// Returns the other balancers and the quality of their reports.
    pub fn peer_stats(&self, now: Time) -> impl Iterator<Item = PeerStats> {
        self.peers.iter().map(move |(id, peer)| peer.stats(*id, now))
    }

    /// Returns the number of members of all groups.
    pub fn members(&self) -> usize {
        self.member_count
    }

    /// Leaves the fleet: removes all state of the others from what choices read.
    pub fn leave(&mut self) {
        self.groups.iter().for_each(FleetGroupState::leave);
    }

    fn group_index(&self, group: &str) -> Option<usize> {
        self.group_indices.get(&group_id(group)).copied()
    }

    fn local_member(&mut self, group: &str, member: &str) -> Option<((usize, usize), &mut LocalMember)> {
        let group_index = self.group_index(group)?;
        let group = self.groups.get_mut(group_index)?;
        let member_index = find_index(&group.member_indices, member_id(group.id, member))?;
        Some(((group_index, member_index), group.members.get_mut(member_index)?))
    }

    fn push_update(&mut self, group: usize, member: usize, kind: FleetUpdateKind) {
        // If no caller collects updates, others repeat the oldest ones, or they are outdated.
        if self.updates.len() >= MAX_PENDING_UPDATES {
            self.updates.pop_front();
        }
        let Some(group) = self.groups.get(group) else { return };
        let Some(local_member) = group.members.get(member) else { return };
        self.updates.push_back(FleetUpdate {
            group: group.name.clone(),
            member: local_member.name.clone(),
            kind,
        });
    }
}

impl FleetGroupState {
    fn new(id: u64, spec: FleetGroup, previous: Option<Self>) -> Self {
        let FleetGroup { name, presence, members: member_specs } = spec;
        let mut previous_members: BTreeMap<u64, LocalMember> = previous
            .into_iter()
            .flat_map(|group| group.members)
            .map(|local_member| (local_member.id, local_member))
            .collect();
        let (members, member_indices) = (Vec::new(), Vec::new());
        let mut group = Self { id, name, presence, members, member_indices, waiting: 0.0, rate: 0.0 };
        let mut indices_by_id = BTreeMap::new();
        for member in member_specs {
            let local_id = member_id(id, &member.name);
            if indices_by_id.insert(local_id, group.members.len() as u32).is_some() {
                continue;
            }
            let previous_member = previous_members
                .remove(&local_id)
                .filter(|local_member| Arc::ptr_eq(&local_member.vitals, &member.vitals));
            let local_member = match previous_member {
                Some(previous) => {
                    LocalMember { limit: member.limit, health_checked: member.health_checked, ..previous }
                }
                None => LocalMember::new(local_id, member),
            };
            group.members.push(local_member);
        }
        for removed_member in previous_members.into_values() {
            removed_member.vitals.clear_peers();
        }
        group.member_indices = indices_by_id.into_iter().collect();
        group
    }

    fn leave(&self) {
        self.presence.set_peers(0);
        self.members.iter().for_each(|local_member| local_member.vitals.clear_peers());
    }
}

impl LocalMember {
    fn new(id: u64, spec: FleetMember) -> Self {
        let FleetMember { name, vitals, limit, health_checked } = spec;
        Self {
            id,
            name,
            begun_at_sample: vitals.begun(),
            vitals,
            limit,
            health_checked,
            sampled_at: None,
            mean_in_flight: 0.0,
            rate: 0.0,
            last_report: None,
            ejected_until: None,
            last_check: None,
            load: None,
            relayed_report_at: Time(0),
            is_prober: true,
        }
    }
}

fn find_index(indices: &[(u64, u32)], id: u64) -> Option<usize> {
    let position = indices.binary_search_by_key(&id, |(id, _)| *id).ok()?;
    Some(indices[position].1 as usize)
}

/// The maximum number of updates that wait for the slow path; each member has a few at most.
const MAX_PENDING_UPDATES: usize = 65_536;

/// The maximum number of members of a round; the next round continues after them.
const MAX_MEMBERS_PER_ROUND: usize = 4096;

/// The seconds over which reported numbers are averaged.
const HORIZON: f64 = 0.5;

/// The assumed latency of a request, seconds, if it is unknown.
const DEFAULT_LATENCY: f64 = 0.010;

#[cfg(test)]
mod tests;
