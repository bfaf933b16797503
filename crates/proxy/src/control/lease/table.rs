//! The lease table: the leases, their holders and their ends, and the choice of a member, for which the table
//! is like another core.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use plimsoll_brain::{Choice, MemberId, MoveHistory, PickRequest, PickerState, Time};
use rustix::io::retry_on_intr;
use rustix::rand::{GetRandomFlags, getrandom};

use super::Lease;
use crate::upstream::group::{MemberRecord, PublishedPlan, SharedGroup};

/// The lease table.
#[derive(Default)]
pub(crate) struct LeaseTable {
    leases: HashMap<u128, HeldLease>,
    /// The leases by their ends.
    expirations: BTreeSet<(Time, u128)>,
    /// The last lease of each identified client, by group.
    clients: HashMap<(Arc<str>, u64), u128>,
    counts: BTreeMap<Arc<str>, usize>,
    /// The number of leases by client address.
    sources: HashMap<IpAddr, usize>,
    /// The time of the last event about too many leases.
    last_event: Option<Time>,
    /// The strategies' state, by group: the table is like another core.
    pickers: BTreeMap<Arc<str>, PickerState>,
}

/// A lease, which counts with its member while it is kept.
pub(super) struct HeldLease {
    pub(super) group: Arc<SharedGroup>,
    pub(super) slot: InFlightSlot,
    pub(super) name: Arc<str>,
    pub(super) address: SocketAddr,
    pub(super) span: Duration,
    pub(super) expires_at: Time,
    pub(super) client: Option<u64>,
    /// The client's address.
    pub(super) from: Option<IpAddr>,
    pub(super) moves: MoveHistory,
}

/// One in flight at a member.
pub(super) struct InFlightSlot {
    group: Arc<SharedGroup>,
    pub(super) record: Arc<MemberRecord>,
}

impl InFlightSlot {
    /// Creates a guard for a member whose count was already increased.
    pub(super) fn from_counted(group: &Arc<SharedGroup>, record: &Arc<MemberRecord>) -> Self {
        record.vitals.mark_leased();
        record.leases.held.fetch_add(1, Relaxed);
        Self { group: Arc::clone(group), record: Arc::clone(record) }
    }
}

impl Drop for InFlightSlot {
    fn drop(&mut self) {
        self.record.leases.held.fetch_sub(1, Relaxed);
        self.record.vitals.end_lease();
        if !self.group.wait_queue.is_empty() {
            self.group.wait_queue.wake_one();
        }
    }
}

impl HeldLease {
    pub(super) fn to_lease(&self, id: u128, moved: bool, why: String) -> Lease {
        Lease {
            id: format!("{id:032x}"),
            member: Arc::clone(&self.name),
            address: self.address,
            span: self.span,
            moved,
            why,
        }
    }
}

/// The result of a choice.
pub(super) enum PickOutcome {
    /// The member at this index of the plan, whose count was increased.
    Member(usize),
    Full,
    NoCandidate,
}

impl LeaseTable {
    /// Returns all leases, in no order.
    pub(super) fn all(&self) -> impl Iterator<Item = (&u128, &HeldLease)> {
        self.leases.iter()
    }

    /// Returns the number of leases in force.
    pub(super) fn len(&self) -> usize {
        self.leases.len()
    }

    /// Returns the group of a lease.
    pub(super) fn group_of(&self, id: u128) -> Option<Arc<SharedGroup>> {
        self.leases.get(&id).map(|held_lease| Arc::clone(&held_lease.group))
    }

    /// Drops the state of removed groups without leases. Returns the names of all other groups that ever had
    /// a lease.
    pub(super) fn retain(&mut self, exists: impl Fn(&str) -> bool) -> Vec<Arc<str>> {
        self.pickers.retain(|name, _| exists(name));
        self.counts.retain(|name, count| *count > 0 || exists(name));
        self.counts.keys().cloned().collect()
    }

    /// Returns the number of leases of a group in force.
    pub(crate) fn group_count(&self, group: &str) -> usize {
        self.counts.get(group).copied().unwrap_or_default()
    }

    /// Returns the number of leases of clients at an address.
    pub(super) fn source_count(&self, client: IpAddr) -> usize {
        self.sources.get(&client).copied().unwrap_or_default()
    }

    /// Returns all leases.
    pub(super) fn leases(&self) -> impl Iterator<Item = &HeldLease> {
        self.leases.values()
    }

    /// Ends the selected leases, and returns their number.
    pub(super) fn end(&mut self, should_end: impl Fn(&HeldLease) -> bool) -> usize {
        let ids: Vec<u128> =
            self.leases.iter().filter(|(_, held_lease)| should_end(held_lease)).map(|(id, _)| *id).collect();
        ids.into_iter().filter_map(|id| self.remove(id)).count()
    }

    /// Returns `true` if an event about too many leases is due: at most one per `apart`.
    pub(super) fn take_event_turn(&mut self, min_interval: Duration, now: Time) -> bool {
        let is_due = self.last_event.is_none_or(|last| now.since(last) >= min_interval);
        if is_due {
            self.last_event = Some(now);
        }
        is_due
    }

    /// Ends expired leases.
    pub(super) fn sweep(&mut self, now: Time) {
        while let Some((expires_at, id)) = self.expirations.first().copied()
            && expires_at <= now
        {
            drop(self.remove(id));
            // A lease in the list is in the table; otherwise this would loop forever.
            self.expirations.remove(&(expires_at, id));
        }
    }

    /// Chooses a member of a plan and increases its count. While a member is under alert, a new session goes
    /// to a member that lacks load, as with listeners that bind on demand.
    pub(super) fn choose(
        &mut self,
        group: &SharedGroup,
        plan: &PublishedPlan,
        request: &PickRequest,
        tried: &[MemberId],
    ) -> PickOutcome {
        let (members, strategy) = (plan.plan.members(), plan.plan.strategy());
        let try_begin = |index: usize| {
            let member = &members[index];
            // Another client may have taken the last place in the meantime.
            let has_room = member.vitals.begin() <= member.max_in_flight();
            if !has_room {
                member.vitals.end();
            }
            has_room
        };
        if members.iter().any(|member| member.shed.share > 0.0)
            && !strategy.reads_key
            && let Some(index) = plan
                .plan
                .target(request.random_bits, tried, request.now)
                .filter(|candidate| try_begin(*candidate))
        {
            return PickOutcome::Member(index);
        }
        let picker = self
            .pickers
            .entry(Arc::clone(&group.name))
            .or_insert_with(|| PickerState::new(request.random_bits));
        loop {
            match plan.plan.choose(picker, &PickRequest { turn: group.turn(), ..*request }, tried) {
                Choice::Member(index) if try_begin(index) => return PickOutcome::Member(index),
                Choice::Member(_) => {}
                Choice::Full | Choice::Shed => return PickOutcome::Full,
                Choice::NoMember => return PickOutcome::NoCandidate,
            }
        }
    }

    /// Adds a lease.
    pub(super) fn insert(&mut self, id: u128, held_lease: HeldLease) {
        self.expirations.insert((held_lease.expires_at, id));
        *self.counts.entry(Arc::clone(&held_lease.group.name)).or_default() += 1;
        if let Some(client) = held_lease.client {
            self.clients.insert((Arc::clone(&held_lease.group.name), client), id);
        }
        if let Some(client_address) = held_lease.from {
            *self.sources.entry(client_address).or_default() += 1;
        }
        self.leases.insert(id, held_lease);
    }

    /// Removes a lease, if there is such a lease.
    pub(super) fn remove(&mut self, id: u128) -> Option<HeldLease> {
        let held_lease = self.leases.remove(&id)?;
        self.expirations.remove(&(held_lease.expires_at, id));
        if let Some(count) = self.counts.get_mut(&held_lease.group.name) {
            *count = count.saturating_sub(1);
        }
        if let Some(client_address) = held_lease.from
            && let Some(count) = self.sources.get_mut(&client_address)
        {
            *count -= 1;
            if *count == 0 {
                self.sources.remove(&client_address);
            }
        }
        if let Some(client) = held_lease.client {
            let client = (Arc::clone(&held_lease.group.name), client);
            if self.clients.get(&client) == Some(&id) {
                self.clients.remove(&client);
            }
        }
        Some(held_lease)
    }

    /// Returns the index of the member of which a client already has a lease, and increases its count.
    /// Returns `None` if the member may not be chosen, or is to lose sessions.
    pub(super) fn find_existing(
        &self,
        group: &Arc<SharedGroup>,
        plan: &PublishedPlan,
        client: u64,
        tried: &[MemberId],
    ) -> Option<usize> {
        let id = self.clients.get(&(Arc::clone(&group.name), client))?;
        let held_lease = self.leases.get(id)?;
        let index = plan.records.iter().position(|record| Arc::ptr_eq(record, &held_lease.slot.record))?;
        let member = &plan.plan.members()[index];
        if tried.contains(&member.id) || member.is_full() || member.shed.share > 0.0 {
            return None;
        }
        member.vitals.begin();
        Some(index)
    }
}

/// Returns a number that is impossible to guess, and random bits for a choice.
///
/// # Errors
/// The system has no random numbers.
pub(super) fn draw_random() -> io::Result<(u128, u64)> {
    let mut bytes = [0; 24];
    let mut filled = 0;
    while filled < bytes.len() {
        filled += retry_on_intr(|| getrandom(&mut bytes[filled..], GetRandomFlags::empty()))?;
    }
    let (id, random_bits) = bytes.split_at(16);
    let from_big_endian =
        |bytes: &[u8]| bytes.iter().fold(0_u128, |value, byte| value << 8 | u128::from(*byte));
    Ok((from_big_endian(id), from_big_endian(random_bits) as u64))
}
