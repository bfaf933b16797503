//! Leases: members lent to clients that connect to them directly. Clients request the brain's decision over
//! HTTP.
//!
//! A lease counts as one in flight at its member, like a byte stream, so that strategies, limits and other
//! clients include it. The client renews the lease before it ends, and learns whether it stays. The client of
//! a member that is out of use (drained, down, ejected) leaves it at the next renewal. Of a member under
//! alert, the alert's share of clients leave, each drawn once for each decision and no more often than
//! sessions move ([`should_session_move`]). A lease that is not renewed expires; a restart drops all.
//!
//! All of this is behind the lock of the slow path. Data-plane threads see only the members' live counts.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use plimsoll_brain::{
    Event, EventKind, MemberId, MoveHistory, PickRequest, Time, hash, mix, should_session_move,
};

use crate::control::{ControlPlane, GroupState};
use crate::upstream::group::PublishedPlan;
use table::{HeldLease, InFlightSlot, PickOutcome, draw_random};

mod handoff;
mod holders;
mod table;

pub use holders::LeaseHolder;
pub(crate) use table::LeaseTable;

/// The maximum number of leases.
const MAX_LEASES: usize = 65_536;
/// The maximum of one group, which leaves room for others.
const MAX_PER_GROUP: usize = 32_768;
/// The maximum of clients at one address, which leaves room for others.
const MAX_PER_SOURCE: usize = 4096;
/// The minimum time between two events about too many leases.
const EVENT_INTERVAL: Duration = Duration::from_secs(10);
/// The shortest lease that is granted.
pub const SHORTEST_LEASE: Duration = Duration::from_secs(1);
/// The longest lease that is granted.
pub const LONGEST_LEASE: Duration = Duration::from_secs(3600);
/// The duration if the client states none.
const DEFAULT_LEASE: Duration = Duration::from_secs(60);

/// A client's request for a lease.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeaseRequest {
    /// The client's identity: for strategies that read a key, and so that a client that asks again gets the
    /// same member.
    pub key: Option<String>,
    /// The duration, between [`SHORTEST_LEASE`] and [`LONGEST_LEASE`]. If none is stated: a minute, or at a
    /// renewal the same as before.
    pub span: Option<Duration>,
    /// The names of members to exclude, such as those that the client could not reach.
    pub exclude: Vec<String>,
    /// The client's address, if it has one. The number of its leases is [limited](LeaseError::Refused).
    pub from: Option<IpAddr>,
}

/// A granted lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    /// The lease's number, which is impossible to guess: 32 hexadecimal digits.
    pub id: String,
    /// The member, as configured.
    pub member: Arc<str>,
    /// The member's address.
    pub address: SocketAddr,
    /// The duration from now.
    pub span: Duration,
    /// Whether the member, or its address, has changed.
    pub moved: bool,
    /// The reason of the choice, for people.
    pub why: String,
}

/// The reason why there is no lease, in one line for the client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaseError {
    /// There is no such group or lease.
    Unknown(String),
    /// There is no usable member.
    NoMember(String),
    /// All members are at capacity, or there are too many leases.
    Refused(String),
}

impl GroupState {
    /// Enables alerts if sessions or clients follow them: sessions that a listener binds on demand, or
    /// clients with leases.
    pub(crate) fn update_alerting(&mut self, has_leases: bool, now: Time) {
        self.has_leases = has_leases;
        self.analyzer.set_on_demand(self.on_demand || has_leases, now);
        self.analyzer.set_drain_hook(self.settings.hand_over.is_some());
    }
}

impl ControlPlane {
    /// Implements [`Engine::bind`](crate::Engine::bind).
    pub(crate) fn bind(
        &mut self,
        group: &str,
        request: &LeaseRequest,
        now: Time,
    ) -> Result<Lease, LeaseError> {
        self.lease_table.sweep(now);
        let group_state = self.group_state(group)?;
        let group = Arc::clone(&group_state.group);
        let plan = group.published();
        if let Some(limit) = self.limit_exceeded(&group.name, request.from) {
            if self.lease_table.take_event_turn(EVENT_INTERVAL, now) {
                let name = Arc::clone(&group.name);
                self.event_log.write(Event {
                    kind: EventKind::Flooded,
                    group: name,
                    member: None,
                    why: format!("a lease was refused: {limit}"),
                    inputs: vec![("leases".into(), self.lease_table.group_count(&group.name) as f64)],
                });
            }
            return Err(LeaseError::Refused(format!("{limit}: release some, or wait")));
        }
        if group.wait_queue.queued() > 0 {
            return Err(LeaseError::Refused(format!(
                "every member of group {} is full, and others wait",
                group.name
            )));
        }
        let client = request.key.as_ref().map(|key| hash(key.as_bytes()));
        let tried = member_ids(&plan, &request.exclude);
        // A strategy that assigns keys to members decides by itself.
        let client_key = client.filter(|_| !plan.plan.strategy().reads_key);
        let existing =
            client_key.and_then(|client| self.lease_table.find_existing(&group, &plan, client, &tried));
        let (id, random_bits) = draw_random().map_err(no_random_numbers)?;
        let is_existing = existing.is_some();
        let picked = existing.map_or_else(
            || {
                let pick_request = PickRequest {
                    random_bits,
                    key: client.unwrap_or(random_bits),
                    now,
                    ..PickRequest::default()
                };
                self.lease_table.choose(&group, &plan, &pick_request, &tried)
            },
            PickOutcome::Member,
        );
        let index = match picked {
            PickOutcome::Member(index) => index,
            PickOutcome::Full => {
                let reason = format!("every member of group {} has as much to do as it can", group.name);
                return Err(LeaseError::Refused(reason));
            }
            PickOutcome::NoCandidate => {
                let reason =
                    format!("no member of group {} can be used{}", group.name, exclusion_note(&tried));
                return Err(LeaseError::NoMember(reason));
            }
        };
        let member = &plan.plan.members()[index];
        let reason = match is_existing {
            true => "the client of this key has it already".to_owned(),
            false => describe_choice(&plan, index),
        };
        let duration = request.span.unwrap_or(DEFAULT_LEASE).clamp(SHORTEST_LEASE, LONGEST_LEASE);
        let held_lease = HeldLease {
            slot: InFlightSlot::from_counted(&group, &plan.records[index]),
            name: Arc::clone(&member.name),
            address: member.address,
            span: duration,
            expires_at: now + duration,
            client,
            from: request.from,
            moves: MoveHistory::default(),
            group: Arc::clone(&group),
        };
        let lease = held_lease.to_lease(id, false, reason);
        self.lease_table.insert(id, held_lease);
        self.update_has_leases(&group.name, now);
        Ok(lease)
    }

    /// Implements [`Engine::renew_lease`](crate::Engine::renew_lease).
    pub(crate) fn renew_lease(
        &mut self,
        group: &str,
        id: &str,
        request: &LeaseRequest,
        now: Time,
    ) -> Result<Lease, LeaseError> {
        self.lease_table.sweep(now);
        // Before anything is changed.
        let (_, random_bits) = draw_random().map_err(no_random_numbers)?;
        let (id, mut held_lease) = self.take_lease(group, id)?;
        let plan = held_lease.group.published();
        let index = plan.records.iter().position(|record| Arc::ptr_eq(record, &held_lease.slot.record));
        let mut tried = member_ids(&plan, &request.exclude);
        let current_member = index.map(|index| &plan.plan.members()[index]);
        let leave_reason = match current_member {
            None => Some(self.unusable_reason(&held_lease, now)),
            Some(member) if tried.contains(&member.id) => Some("is not wanted by its client".to_owned()),
            Some(member) => {
                let has_others = plan.plan.members().len() > 1;
                let is_rebound =
                    has_others && should_session_move(member.shed, &mut held_lease.moves, random_bits, now);
                let percent = member.shed.share * 100.0;
                is_rebound.then(|| format!("is under alert, and {percent:.0} % of its sessions are to go"))
            }
        };
        // A reload may have found another address of its host.
        let address = current_member.map_or(held_lease.address, |member| member.address);
        let mut moved = address != held_lease.address;
        held_lease.address = address;
        let reason = match leave_reason {
            None if moved => format!("{} is at another address now", held_lease.name),
            None => "it stays".to_owned(),
            Some(leave_reason) => {
                tried.extend(current_member.map(|member| member.id));
                // Not the same bits that decided on the move.
                let random_bits = mix(random_bits);
                let pick_request = PickRequest {
                    random_bits,
                    key: held_lease.client.unwrap_or(random_bits),
                    now,
                    ..PickRequest::default()
                };
                let previous_name = Arc::clone(&held_lease.name);
                let group = Arc::clone(&held_lease.group);
                match self.lease_table.choose(&group, &plan, &pick_request, &tried) {
                    PickOutcome::Member(index) => {
                        let member = &plan.plan.members()[index];
                        held_lease.slot.record.leases.rebinds.record(Some(member.id));
                        held_lease.slot.record.leases.moved.fetch_add(1, Relaxed);
                        held_lease.slot = InFlightSlot::from_counted(&group, &plan.records[index]);
                        (held_lease.name, held_lease.address) = (Arc::clone(&member.name), member.address);
                        moved = true;
                        format!("{previous_name} {leave_reason}; {}", describe_choice(&plan, index))
                    }
                    PickOutcome::Full => {
                        format!(
                            "it stays: {previous_name} {leave_reason}, but the others have as much to do \
                             as they can"
                        )
                    }
                    PickOutcome::NoCandidate => {
                        format!("it stays: {previous_name} {leave_reason}, but there is no other")
                    }
                }
            }
        };
        held_lease.span = request.span.unwrap_or(held_lease.span).clamp(SHORTEST_LEASE, LONGEST_LEASE);
        held_lease.expires_at = now + held_lease.span;
        let lease = held_lease.to_lease(id, moved, reason);
        self.lease_table.insert(id, held_lease);
        Ok(lease)
    }

    /// Implements [`Engine::release_lease`](crate::Engine::release_lease).
    pub(crate) fn release_lease(&mut self, group: &str, id: &str, now: Time) -> Result<(), LeaseError> {
        self.lease_table.sweep(now);
        drop(self.take_lease(group, id)?);
        Ok(())
    }

    /// Returns the reason against another lease of a group for clients at an address, if there are too many.
    fn limit_exceeded(&self, group: &str, client: Option<IpAddr>) -> Option<String> {
        let is_at_limit = |client: &IpAddr| self.lease_table.source_count(*client) >= MAX_PER_SOURCE;
        match client.filter(is_at_limit) {
            Some(client) => Some(format!("clients at {client} have {MAX_PER_SOURCE} leases")),
            None if self.lease_table.group_count(group) >= MAX_PER_GROUP => {
                Some(format!("group {group} has {MAX_PER_GROUP} leases"))
            }
            None => (self.lease_table.len() >= MAX_LEASES).then(|| format!("there are {MAX_LEASES} leases")),
        }
    }

    /// Ends the leases of removed groups.
    pub(crate) fn end_removed_groups(&mut self) {
        let Self { lease_table, groups, .. } = self;
        lease_table.end(|held_lease| {
            groups
                .get(&held_lease.group.name)
                .is_none_or(|group_state| !Arc::ptr_eq(&group_state.group, &held_lease.group))
        });
    }

    /// Ends expired leases, and notifies groups that have none left.
    pub(crate) fn end_expired_leases(&mut self, now: Time) {
        self.lease_table.sweep(now);
        for name in self.lease_table.retain(|name| self.groups.contains_key(name)) {
            self.update_has_leases(&name, now);
        }
    }

    /// Updates whether a group has leases.
    fn update_has_leases(&mut self, group: &Arc<str>, now: Time) {
        let has_leases = self.lease_table.group_count(group) > 0;
        if let Some(group_state) =
            self.groups.get_mut(group).filter(|group_state| group_state.has_leases != has_leases)
        {
            group_state.update_alerting(has_leases, now);
        }
    }

    fn group_state(&self, group: &str) -> Result<&GroupState, LeaseError> {
        self.groups.get(group).ok_or_else(|| {
            let names: Vec<&str> = self.groups.keys().map(|name| &**name).collect();
            LeaseError::Unknown(format!("there is no group {group}; there are: {}", names.join(", ")))
        })
    }

    /// Removes a lease from the table. A lease of a group that was removed or created anew is invalid.
    fn take_lease(&mut self, group: &str, id: &str) -> Result<(u128, HeldLease), LeaseError> {
        let current = Arc::clone(&self.group_state(group)?.group);
        let unknown_lease = || {
            let message = format!("group {group} has no such lease, or no more: bind again");
            LeaseError::Unknown(message)
        };
        let is_well_formed = id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
        let lease_id =
            u128::from_str_radix(id, 16).ok().filter(|_| is_well_formed).ok_or_else(unknown_lease)?;
        let same_group = Arc::ptr_eq(
            &self
                .lease_table
                .group_of(lease_id)
                .filter(|holder| *holder.name == *group)
                .ok_or_else(unknown_lease)?,
            &current,
        );
        let held_lease =
            self.lease_table.remove(lease_id).filter(|_| same_group).ok_or_else(unknown_lease)?;
        Ok((lease_id, held_lease))
    }

    /// Returns the reason why the member of a lease is not in the plan, to follow its name.
    fn unusable_reason(&self, held_lease: &HeldLease, now: Time) -> String {
        let id = held_lease.slot.record.id;
        let group_state = self.groups.get(&held_lease.group.name);
        let statuses = group_state.map(|group_state| group_state.analyzer.status(now)).unwrap_or_default();
        match statuses.into_iter().find(|(other, _)| *other == id) {
            Some((_, status)) => format!("is out of use: {}", status.why),
            None => "is no longer in the group".to_owned(),
        }
    }
}

/// Returns the members with these names that are in the plan.
fn member_ids(plan: &PublishedPlan, names: &[String]) -> Vec<MemberId> {
    let members = plan.plan.members().iter().filter(|member| names.iter().any(|name| **name == *member.name));
    members.map(|member| member.id).collect()
}

/// Returns the error for missing random numbers, as lease numbers must be impossible to guess.
fn no_random_numbers(error: io::Error) -> LeaseError {
    LeaseError::NoMember(format!("the system gives no random numbers: {error}"))
}

/// Describes the strategy's choice, for people.
fn describe_choice(plan: &PublishedPlan, index: usize) -> String {
    let member = &plan.plan.members()[index];
    let strategy = plan.plan.strategy().name;
    format!("{strategy} chose {}, which has {} in flight with this one", member.name, member.in_flight())
}

fn exclusion_note(tried: &[MemberId]) -> &'static str {
    if tried.is_empty() { "" } else { ", beside those that were excluded" }
}
