//! The lease table: the leases, their holders and their ends, and the choice of a member, for which the table
//! is like another core.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use plimsoll_brain::{Ask, Choice, Hand, MemberId, Moves, Time};
use rustix::io::retry_on_intr;
use rustix::rand::{GetRandomFlags, getrandom};

use super::Lease;
use crate::group::{Group, Published, Record};

/// The lease table.
#[derive(Default)]
pub(crate) struct Desk {
    leases: HashMap<u128, Loan>,
    /// The leases by their ends.
    ends: BTreeSet<(Time, u128)>,
    /// The last lease of each identified client, by group.
    clients: HashMap<(Arc<str>, u64), u128>,
    counts: BTreeMap<Arc<str>, usize>,
    /// The number of leases by client address.
    sources: HashMap<IpAddr, usize>,
    /// The time of the last event about too many leases.
    told: Option<Time>,
    /// The strategies' state, by group: the table is like another core.
    hands: BTreeMap<Arc<str>, Hand>,
}

/// A lease, which counts with its member while it is kept.
pub(super) struct Loan {
    pub(super) group: Arc<Group>,
    pub(super) seat: Seat,
    pub(super) name: Arc<str>,
    pub(super) address: SocketAddr,
    pub(super) span: Duration,
    pub(super) until: Time,
    pub(super) client: Option<u64>,
    /// The client's address.
    pub(super) from: Option<IpAddr>,
    pub(super) moves: Moves,
}

/// One in flight at a member.
pub(super) struct Seat {
    group: Arc<Group>,
    pub(super) record: Arc<Record>,
}

impl Seat {
    /// Creates a guard for a member whose count was already increased.
    pub(super) fn taken(group: &Arc<Group>, record: &Arc<Record>) -> Self {
        record.vitals.lend();
        record.lent.held.fetch_add(1, Relaxed);
        Self { group: Arc::clone(group), record: Arc::clone(record) }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.record.lent.held.fetch_sub(1, Relaxed);
        self.record.vitals.give_back();
        if !self.group.room.calm() {
            self.group.room.ring();
        }
    }
}

impl Loan {
    pub(super) fn shown(&self, id: u128, moved: bool, why: String) -> Lease {
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
pub(super) enum Found {
    /// The member at this index of the plan, whose count was increased.
    Place(usize),
    Full,
    Nobody,
}

impl Desk {
    /// Returns all leases, in no order.
    pub(super) fn all(&self) -> impl Iterator<Item = (&u128, &Loan)> {
        self.leases.iter()
    }

    /// Returns the number of leases in force.
    pub(super) fn len(&self) -> usize {
        self.leases.len()
    }

    /// Returns the group of a lease.
    pub(super) fn group_of(&self, id: u128) -> Option<Arc<Group>> {
        self.leases.get(&id).map(|loan| Arc::clone(&loan.group))
    }

    /// Drops the state of removed groups without leases. Returns the names of all other groups that ever had
    /// a lease.
    pub(super) fn retain(&mut self, there: impl Fn(&str) -> bool) -> Vec<Arc<str>> {
        self.hands.retain(|name, _| there(name));
        self.counts.retain(|name, count| *count > 0 || there(name));
        self.counts.keys().cloned().collect()
    }

    /// Returns the number of leases of a group in force.
    pub(crate) fn lent(&self, group: &str) -> usize {
        self.counts.get(group).copied().unwrap_or_default()
    }

    /// Returns the number of leases of clients at an address.
    pub(super) fn held(&self, from: IpAddr) -> usize {
        self.sources.get(&from).copied().unwrap_or_default()
    }

    /// Returns all leases.
    pub(super) fn loans(&self) -> impl Iterator<Item = &Loan> {
        self.leases.values()
    }

    /// Ends the selected leases, and returns their number.
    pub(super) fn end(&mut self, which: impl Fn(&Loan) -> bool) -> usize {
        let ids: Vec<u128> = self.leases.iter().filter(|(_, loan)| which(loan)).map(|(id, _)| *id).collect();
        ids.into_iter().filter_map(|id| self.take(id)).count()
    }

    /// Returns `true` if an event about too many leases is due: at most one per `apart`.
    pub(super) fn tells(&mut self, apart: Duration, now: Time) -> bool {
        let tells = self.told.is_none_or(|told| now.since(told) >= apart);
        if tells {
            self.told = Some(now);
        }
        tells
    }

    /// Ends expired leases.
    pub(super) fn sweep(&mut self, now: Time) {
        while let Some((until, id)) = self.ends.first().copied()
            && until <= now
        {
            drop(self.take(id));
            // A lease in the list is in the table; otherwise this would loop forever.
            self.ends.remove(&(until, id));
        }
    }

    /// Chooses a member of a plan and increases its count. While a member is under alert, a new session goes
    /// to a member that lacks load, as with listeners that bind on demand.
    pub(super) fn choose(&mut self, group: &Group, plan: &Published, ask: &Ask, tried: &[MemberId]) -> Found {
        let (members, strategy) = (plan.plan.members(), plan.plan.strategy());
        let begin = |place: usize| {
            let member = &members[place];
            // Another client may have taken the last place in the meantime.
            let taken = member.vitals.begin() <= member.allowed();
            if !taken {
                member.vitals.end();
            }
            taken
        };
        if members.iter().any(|member| member.shed.share > 0.0)
            && !strategy.reads_key
            && let Some(place) = plan.plan.target(ask.chance, tried, ask.now).filter(|place| begin(*place))
        {
            return Found::Place(place);
        }
        let hand = self.hands.entry(Arc::clone(&group.name)).or_insert_with(|| Hand::new(ask.chance));
        loop {
            match plan.plan.choose(hand, &Ask { turn: group.turn(), ..*ask }, tried) {
                Choice::Member(place) if begin(place) => return Found::Place(place),
                Choice::Member(_) => {}
                Choice::Full | Choice::Shed => return Found::Full,
                Choice::Nobody => return Found::Nobody,
            }
        }
    }

    /// Adds a lease.
    pub(super) fn keep(&mut self, id: u128, loan: Loan) {
        self.ends.insert((loan.until, id));
        *self.counts.entry(Arc::clone(&loan.group.name)).or_default() += 1;
        if let Some(client) = loan.client {
            self.clients.insert((Arc::clone(&loan.group.name), client), id);
        }
        if let Some(from) = loan.from {
            *self.sources.entry(from).or_default() += 1;
        }
        self.leases.insert(id, loan);
    }

    /// Removes a lease, if there is such a lease.
    pub(super) fn take(&mut self, id: u128) -> Option<Loan> {
        let loan = self.leases.remove(&id)?;
        self.ends.remove(&(loan.until, id));
        if let Some(count) = self.counts.get_mut(&loan.group.name) {
            *count = count.saturating_sub(1);
        }
        if let Some(from) = loan.from
            && let Some(count) = self.sources.get_mut(&from)
        {
            *count -= 1;
            if *count == 0 {
                self.sources.remove(&from);
            }
        }
        if let Some(client) = loan.client {
            let client = (Arc::clone(&loan.group.name), client);
            if self.clients.get(&client) == Some(&id) {
                self.clients.remove(&client);
            }
        }
        Some(loan)
    }

    /// Returns the index of the member of which a client already has a lease, and increases its count.
    /// Returns `None` if the member may not be chosen, or is to lose sessions.
    pub(super) fn has(
        &self,
        group: &Arc<Group>,
        plan: &Published,
        client: u64,
        tried: &[MemberId],
    ) -> Option<usize> {
        let id = self.clients.get(&(Arc::clone(&group.name), client))?;
        let loan = self.leases.get(id)?;
        let place = plan.records.iter().position(|record| Arc::ptr_eq(record, &loan.seat.record))?;
        let member = &plan.plan.members()[place];
        if tried.contains(&member.id) || member.full() || member.shed.share > 0.0 {
            return None;
        }
        member.vitals.begin();
        Some(place)
    }
}

/// Returns a number that is impossible to guess, and random bits for a choice.
///
/// # Errors
/// The system has no random numbers.
pub(super) fn drawn() -> io::Result<(u128, u64)> {
    let mut bytes = [0; 24];
    let mut filled = 0;
    while filled < bytes.len() {
        filled += retry_on_intr(|| getrandom(&mut bytes[filled..], GetRandomFlags::empty()))?;
    }
    let (id, chance) = bytes.split_at(16);
    let number = |bytes: &[u8]| bytes.iter().fold(0_u128, |number, byte| number << 8 | u128::from(*byte));
    Ok((number(id), number(chance) as u64))
}
