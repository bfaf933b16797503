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
    pub(crate) fn update_alerting(&mut self, lent: bool, now: Time) {
        self.has_leases = lent;
        self.analyzer.set_on_demand(self.on_demand || lent, now);
        self.analyzer.set_drain_hook(self.settings.hand_over.is_some());
    }
}

impl ControlPlane {
    /// Implements [`Engine::bind`](crate::Engine::bind).
    pub(crate) fn bind(&mut self, group: &str, wish: &LeaseRequest, now: Time) -> Result<Lease, LeaseError> {
        self.lease_table.sweep(now);
        let ruled = self.group_state(group)?;
        let group = Arc::clone(&ruled.group);
        let plan = group.published();
        if let Some(why) = self.limit_exceeded(&group.name, wish.from) {
            if self.lease_table.take_event_turn(EVENT_INTERVAL, now) {
                let name = Arc::clone(&group.name);
                self.event_log.write(Event {
                    kind: EventKind::Flooded,
                    group: name,
                    member: None,
                    why: format!("a lease was refused: {why}"),
                    inputs: vec![("leases".into(), self.lease_table.group_count(&group.name) as f64)],
                });
            }
            return Err(LeaseError::Refused(format!("{why}: release some, or wait")));
        }
        if group.wait_queue.queued() > 0 {
            return Err(LeaseError::Refused(format!(
                "every member of group {} is full, and others wait",
                group.name
            )));
        }
        let client = wish.key.as_ref().map(|key| hash(key.as_bytes()));
        let tried = member_ids(&plan, &wish.exclude);
        // A strategy that assigns keys to members decides by itself.
        let known = client.filter(|_| !plan.plan.strategy().reads_key);
        let had = known.and_then(|client| self.lease_table.find_existing(&group, &plan, client, &tried));
        let (id, chance) = draw_random().map_err(no_random_numbers)?;
        let again = had.is_some();
        let found = had.map_or_else(
            || {
                let ask = PickRequest {
                    random_bits: chance,
                    key: client.unwrap_or(chance),
                    now,
                    ..PickRequest::default()
                };
                self.lease_table.choose(&group, &plan, &ask, &tried)
            },
            PickOutcome::Member,
        );
        let place = match found {
            PickOutcome::Member(place) => place,
            PickOutcome::Full => {
                let why = format!("every member of group {} has as much to do as it can", group.name);
                return Err(LeaseError::Refused(why));
            }
            PickOutcome::NoCandidate => {
                let why = format!("no member of group {} can be used{}", group.name, exclusion_note(&tried));
                return Err(LeaseError::NoMember(why));
            }
        };
        let member = &plan.plan.members()[place];
        let why = match again {
            true => "the client of this key has it already".to_owned(),
            false => describe_choice(&plan, place),
        };
        let span = wish.span.unwrap_or(DEFAULT_LEASE).clamp(SHORTEST_LEASE, LONGEST_LEASE);
        let loan = HeldLease {
            slot: InFlightSlot::from_counted(&group, &plan.records[place]),
            name: Arc::clone(&member.name),
            address: member.address,
            span,
            until: now + span,
            client,
            from: wish.from,
            moves: MoveHistory::default(),
            group: Arc::clone(&group),
        };
        let lease = loan.to_lease(id, false, why);
        self.lease_table.insert(id, loan);
        self.update_has_leases(&group.name, now);
        Ok(lease)
    }

    /// Implements [`Engine::renew_lease`](crate::Engine::renew_lease).
    pub(crate) fn renew_lease(
        &mut self,
        group: &str,
        id: &str,
        wish: &LeaseRequest,
        now: Time,
    ) -> Result<Lease, LeaseError> {
        self.lease_table.sweep(now);
        // Before anything is changed.
        let (_, chance) = draw_random().map_err(no_random_numbers)?;
        let (id, mut loan) = self.take_lease(group, id)?;
        let plan = loan.group.published();
        let place = plan.records.iter().position(|record| Arc::ptr_eq(record, &loan.slot.record));
        let mut tried = member_ids(&plan, &wish.exclude);
        let own = place.map(|place| &plan.plan.members()[place]);
        let leaves = match own {
            None => Some(self.unusable_reason(&loan, now)),
            Some(own) if tried.contains(&own.id) => Some("is not wanted by its client".to_owned()),
            Some(own) => {
                let others = plan.plan.members().len() > 1;
                let goes = others && should_session_move(own.shed, &mut loan.moves, chance, now);
                let part = own.shed.share * 100.0;
                goes.then(|| format!("is under alert, and {part:.0} % of its sessions are to go"))
            }
        };
        // A reload may have found another address of its host.
        let address = own.map_or(loan.address, |own| own.address);
        let mut moved = address != loan.address;
        loan.address = address;
        let why = match leaves {
            None if moved => format!("{} is at another address now", loan.name),
            None => "it stays".to_owned(),
            Some(leaves) => {
                tried.extend(own.map(|own| own.id));
                // Not the same bits that decided on the move.
                let chance = mix(chance);
                let ask = PickRequest {
                    random_bits: chance,
                    key: loan.client.unwrap_or(chance),
                    now,
                    ..PickRequest::default()
                };
                let from = Arc::clone(&loan.name);
                let group = Arc::clone(&loan.group);
                match self.lease_table.choose(&group, &plan, &ask, &tried) {
                    PickOutcome::Member(place) => {
                        let member = &plan.plan.members()[place];
                        loan.slot.record.leases.rebinds.record(Some(member.id));
                        loan.slot.record.leases.moved.fetch_add(1, Relaxed);
                        loan.slot = InFlightSlot::from_counted(&group, &plan.records[place]);
                        (loan.name, loan.address) = (Arc::clone(&member.name), member.address);
                        moved = true;
                        format!("{from} {leaves}; {}", describe_choice(&plan, place))
                    }
                    PickOutcome::Full => {
                        format!("it stays: {from} {leaves}, but the others have as much to do as they can")
                    }
                    PickOutcome::NoCandidate => format!("it stays: {from} {leaves}, but there is no other"),
                }
            }
        };
        loan.span = wish.span.unwrap_or(loan.span).clamp(SHORTEST_LEASE, LONGEST_LEASE);
        loan.until = now + loan.span;
        let lease = loan.to_lease(id, moved, why);
        self.lease_table.insert(id, loan);
        Ok(lease)
    }

    /// Implements [`Engine::release_lease`](crate::Engine::release_lease).
    pub(crate) fn release_lease(&mut self, group: &str, id: &str, now: Time) -> Result<(), LeaseError> {
        self.lease_table.sweep(now);
        drop(self.take_lease(group, id)?);
        Ok(())
    }

    /// Returns the reason against another lease of a group for clients at an address, if there are too many.
    fn limit_exceeded(&self, group: &str, from: Option<IpAddr>) -> Option<String> {
        let of = |from: &IpAddr| self.lease_table.source_count(*from) >= MAX_PER_SOURCE;
        match from.filter(of) {
            Some(from) => Some(format!("clients at {from} have {MAX_PER_SOURCE} leases")),
            None if self.lease_table.group_count(group) >= MAX_PER_GROUP => {
                Some(format!("group {group} has {MAX_PER_GROUP} leases"))
            }
            None => (self.lease_table.len() >= MAX_LEASES).then(|| format!("there are {MAX_LEASES} leases")),
        }
    }

    /// Ends the leases of removed groups.
    pub(crate) fn end_removed_groups(&mut self) {
        let Self { lease_table: desk, groups, .. } = self;
        desk.end(|loan| {
            groups.get(&loan.group.name).is_none_or(|ruled| !Arc::ptr_eq(&ruled.group, &loan.group))
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
        let lent = self.lease_table.group_count(group) > 0;
        if let Some(ruled) = self.groups.get_mut(group).filter(|ruled| ruled.has_leases != lent) {
            ruled.update_alerting(lent, now);
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
        let none = || {
            let why = format!("group {group} has no such lease, or no more: bind again");
            LeaseError::Unknown(why)
        };
        let plain = id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
        let number = u128::from_str_radix(id, 16).ok().filter(|_| plain).ok_or_else(none)?;
        let same = Arc::ptr_eq(
            &self.lease_table.group_of(number).filter(|of| *of.name == *group).ok_or_else(none)?,
            &current,
        );
        let loan = self.lease_table.remove(number).filter(|_| same).ok_or_else(none)?;
        Ok((number, loan))
    }

    /// Returns the reason why the member of a lease is not in the plan, to follow its name.
    fn unusable_reason(&self, loan: &HeldLease, now: Time) -> String {
        let id = loan.slot.record.id;
        let ruled = self.groups.get(&loan.group.name);
        let all = ruled.map(|ruled| ruled.analyzer.status(now)).unwrap_or_default();
        match all.into_iter().find(|(other, _)| *other == id) {
            Some((_, status)) => format!("is out of use: {}", status.why),
            None => "is no longer in the group".to_owned(),
        }
    }
}

/// Returns the members with these names that are in the plan.
fn member_ids(plan: &PublishedPlan, names: &[String]) -> Vec<MemberId> {
    let named = plan.plan.members().iter().filter(|member| names.iter().any(|name| **name == *member.name));
    named.map(|member| member.id).collect()
}

/// Returns the error for missing random numbers, as lease numbers must be impossible to guess.
fn no_random_numbers(error: io::Error) -> LeaseError {
    LeaseError::NoMember(format!("the system gives no random numbers: {error}"))
}

/// Describes the strategy's choice, for people.
fn describe_choice(plan: &PublishedPlan, place: usize) -> String {
    let member = &plan.plan.members()[place];
    let strategy = plan.plan.strategy().name;
    format!("{strategy} chose {}, which has {} in flight with this one", member.name, member.in_flight())
}

fn exclusion_note(tried: &[MemberId]) -> &'static str {
    if tried.is_empty() { "" } else { ", beside those that were excluded" }
}
