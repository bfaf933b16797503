//! Leases: members lent to clients that connect to them directly. Clients request the brain's decision over
//! HTTP.
//!
//! A lease counts as one in flight at its member, like a byte stream, so that strategies, limits and other
//! clients include it. The client renews the lease before it ends, and learns whether it stays. The client of
//! a member that is out of use (drained, down, ejected) leaves it at the next renewal. Of a member under
//! alert, the alert's share of clients leave, each drawn once for each decision and no more often than
//! sessions move ([`session_moves`]). A lease that is not renewed expires; a restart drops all.
//!
//! All of this is behind the lock of the slow path. Data-plane threads see only the members' live counts.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use plimsoll_brain::{Ask, Event, EventKind, MemberId, Moves, Time, hash, mix, session_moves};

use crate::control::{Control, Ruled};
use crate::group::Published;
use desk::{Found, Loan, Seat, drawn};

mod desk;
mod list;
mod past;

pub(crate) use desk::Desk;
pub use list::Lessee;

/// The maximum number of leases.
const MOST: usize = 65_536;
/// The maximum of one group, which leaves room for others.
const MOST_OF_GROUP: usize = 32_768;
/// The maximum of clients at one address, which leaves room for others.
const MOST_OF_SOURCE: usize = 4096;
/// The minimum time between two events about too many leases.
const TOLD: Duration = Duration::from_secs(10);
/// The shortest lease that is granted.
pub const SHORTEST_LEASE: Duration = Duration::from_secs(1);
/// The longest lease that is granted.
pub const LONGEST_LEASE: Duration = Duration::from_secs(3600);
/// The duration if the client states none.
const USUAL: Duration = Duration::from_secs(60);

/// A client's request for a lease.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeaseWish {
    /// The client's identity: for strategies that read a key, and so that a client that asks again gets the
    /// same member.
    pub key: Option<String>,
    /// The duration, between [`SHORTEST_LEASE`] and [`LONGEST_LEASE`]. If none is stated: a minute, or at a
    /// renewal the same as before.
    pub span: Option<Duration>,
    /// The names of members to exclude, such as those that the client could not reach.
    pub exclude: Vec<String>,
    /// The client's address, if it has one. The number of its leases is [limited](NoLease::Refused).
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
pub enum NoLease {
    /// There is no such group or lease.
    Unknown(String),
    /// There is no usable member.
    Nobody(String),
    /// All members are at capacity, or there are too many leases.
    Refused(String),
}

impl Ruled {
    /// Enables alerts if sessions or clients follow them: sessions that a listener binds on demand, or
    /// clients with leases.
    pub(crate) fn watch_loads(&mut self, lent: bool, now: Time) {
        self.lent = lent;
        self.analyzer.set_on_demand(self.on_demand || lent, now);
        self.analyzer.set_hand_over(self.settings.hand_over.is_some());
    }
}

impl Control {
    /// Implements [`Engine::bind`](crate::Engine::bind).
    pub(crate) fn bind(&mut self, group: &str, wish: &LeaseWish, now: Time) -> Result<Lease, NoLease> {
        self.desk.sweep(now);
        let ruled = self.ruled(group)?;
        let group = Arc::clone(&ruled.group);
        let plan = group.published();
        if let Some(why) = self.too_many(&group.name, wish.from) {
            if self.desk.tells(TOLD, now) {
                let name = Arc::clone(&group.name);
                self.journal.write(Event {
                    kind: EventKind::Flooded,
                    group: name,
                    member: None,
                    why: format!("a lease was refused: {why}"),
                    inputs: vec![("leases".into(), self.desk.lent(&group.name) as f64)],
                });
            }
            return Err(NoLease::Refused(format!("{why}: release some, or wait")));
        }
        if group.room.queued() > 0 {
            return Err(NoLease::Refused(format!(
                "every member of group {} is full, and others wait",
                group.name
            )));
        }
        let client = wish.key.as_ref().map(|key| hash(key.as_bytes()));
        let tried = ids(&plan, &wish.exclude);
        // A strategy that assigns keys to members decides by itself.
        let known = client.filter(|_| !plan.plan.strategy().reads_key);
        let had = known.and_then(|client| self.desk.has(&group, &plan, client, &tried));
        let (id, chance) = drawn().map_err(unlucky)?;
        let again = had.is_some();
        let found = had.map_or_else(
            || {
                let ask = Ask { chance, key: client.unwrap_or(chance), now, ..Ask::default() };
                self.desk.choose(&group, &plan, &ask, &tried)
            },
            Found::Place,
        );
        let place = match found {
            Found::Place(place) => place,
            Found::Full => {
                let why = format!("every member of group {} has as much to do as it can", group.name);
                return Err(NoLease::Refused(why));
            }
            Found::Nobody => {
                let why = format!("no member of group {} can be used{}", group.name, but(&tried));
                return Err(NoLease::Nobody(why));
            }
        };
        let member = &plan.plan.members()[place];
        let why = match again {
            true => "the client of this key has it already".to_owned(),
            false => chosen(&plan, place),
        };
        let span = wish.span.unwrap_or(USUAL).clamp(SHORTEST_LEASE, LONGEST_LEASE);
        let loan = Loan {
            seat: Seat::taken(&group, &plan.records[place]),
            name: Arc::clone(&member.name),
            address: member.address,
            span,
            until: now + span,
            client,
            from: wish.from,
            moves: Moves::default(),
            group: Arc::clone(&group),
        };
        let lease = loan.shown(id, false, why);
        self.desk.keep(id, loan);
        self.tell_lent(&group.name, now);
        Ok(lease)
    }

    /// Implements [`Engine::renew`](crate::Engine::renew).
    pub(crate) fn renew(
        &mut self,
        group: &str,
        id: &str,
        wish: &LeaseWish,
        now: Time,
    ) -> Result<Lease, NoLease> {
        self.desk.sweep(now);
        // Before anything is changed.
        let (_, chance) = drawn().map_err(unlucky)?;
        let (id, mut loan) = self.taken(group, id)?;
        let plan = loan.group.published();
        let place = plan.records.iter().position(|record| Arc::ptr_eq(record, &loan.seat.record));
        let mut tried = ids(&plan, &wish.exclude);
        let own = place.map(|place| &plan.plan.members()[place]);
        let leaves = match own {
            None => Some(self.out_of_use(&loan, now)),
            Some(own) if tried.contains(&own.id) => Some("is not wanted by its client".to_owned()),
            Some(own) => {
                let others = plan.plan.members().len() > 1;
                let goes = others && session_moves(own.shed, &mut loan.moves, chance, now);
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
                let ask = Ask { chance, key: loan.client.unwrap_or(chance), now, ..Ask::default() };
                let from = Arc::clone(&loan.name);
                let group = Arc::clone(&loan.group);
                match self.desk.choose(&group, &plan, &ask, &tried) {
                    Found::Place(place) => {
                        let member = &plan.plan.members()[place];
                        loan.seat.record.lent.moves.note(Some(member.id));
                        loan.seat.record.lent.moved.fetch_add(1, Relaxed);
                        loan.seat = Seat::taken(&group, &plan.records[place]);
                        (loan.name, loan.address) = (Arc::clone(&member.name), member.address);
                        moved = true;
                        format!("{from} {leaves}; {}", chosen(&plan, place))
                    }
                    Found::Full => {
                        format!("it stays: {from} {leaves}, but the others have as much to do as they can")
                    }
                    Found::Nobody => format!("it stays: {from} {leaves}, but there is no other"),
                }
            }
        };
        loan.span = wish.span.unwrap_or(loan.span).clamp(SHORTEST_LEASE, LONGEST_LEASE);
        loan.until = now + loan.span;
        let lease = loan.shown(id, moved, why);
        self.desk.keep(id, loan);
        Ok(lease)
    }

    /// Implements [`Engine::release`](crate::Engine::release).
    pub(crate) fn release(&mut self, group: &str, id: &str, now: Time) -> Result<(), NoLease> {
        self.desk.sweep(now);
        drop(self.taken(group, id)?);
        Ok(())
    }

    /// Returns the reason against another lease of a group for clients at an address, if there are too many.
    fn too_many(&self, group: &str, from: Option<IpAddr>) -> Option<String> {
        let of = |from: &IpAddr| self.desk.held(*from) >= MOST_OF_SOURCE;
        match from.filter(of) {
            Some(from) => Some(format!("clients at {from} have {MOST_OF_SOURCE} leases")),
            None if self.desk.lent(group) >= MOST_OF_GROUP => {
                Some(format!("group {group} has {MOST_OF_GROUP} leases"))
            }
            None => (self.desk.len() >= MOST).then(|| format!("there are {MOST} leases")),
        }
    }

    /// Ends the leases of removed groups.
    pub(crate) fn end_gone(&mut self) {
        let Self { desk, groups, .. } = self;
        desk.end(|loan| {
            groups.get(&loan.group.name).is_none_or(|ruled| !Arc::ptr_eq(&ruled.group, &loan.group))
        });
    }

    /// Ends expired leases, and notifies groups that have none left.
    pub(crate) fn end_leases(&mut self, now: Time) {
        self.desk.sweep(now);
        for name in self.desk.retain(|name| self.groups.contains_key(name)) {
            self.tell_lent(&name, now);
        }
    }

    /// Updates whether a group has leases.
    fn tell_lent(&mut self, group: &Arc<str>, now: Time) {
        let lent = self.desk.lent(group) > 0;
        if let Some(ruled) = self.groups.get_mut(group).filter(|ruled| ruled.lent != lent) {
            ruled.watch_loads(lent, now);
        }
    }

    fn ruled(&self, group: &str) -> Result<&Ruled, NoLease> {
        self.groups.get(group).ok_or_else(|| {
            let names: Vec<&str> = self.groups.keys().map(|name| &**name).collect();
            NoLease::Unknown(format!("there is no group {group}; there are: {}", names.join(", ")))
        })
    }

    /// Removes a lease from the table. A lease of a group that was removed or created anew is invalid.
    fn taken(&mut self, group: &str, id: &str) -> Result<(u128, Loan), NoLease> {
        let current = Arc::clone(&self.ruled(group)?.group);
        let none = || {
            let why = format!("group {group} has no such lease, or no more: bind again");
            NoLease::Unknown(why)
        };
        let plain = id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
        let number = u128::from_str_radix(id, 16).ok().filter(|_| plain).ok_or_else(none)?;
        let same = Arc::ptr_eq(
            &self.desk.group_of(number).filter(|of| *of.name == *group).ok_or_else(none)?,
            &current,
        );
        let loan = self.desk.take(number).filter(|_| same).ok_or_else(none)?;
        Ok((number, loan))
    }

    /// Returns the reason why the member of a lease is not in the plan, to follow its name.
    fn out_of_use(&self, loan: &Loan, now: Time) -> String {
        let id = loan.seat.record.id;
        let ruled = self.groups.get(&loan.group.name);
        let all = ruled.map(|ruled| ruled.analyzer.status(now)).unwrap_or_default();
        match all.into_iter().find(|(other, _)| *other == id) {
            Some((_, status)) => format!("is out of use: {}", status.why),
            None => "is no longer in the group".to_owned(),
        }
    }
}

/// Returns the members with these names that are in the plan.
fn ids(plan: &Published, names: &[String]) -> Vec<MemberId> {
    let named = plan.plan.members().iter().filter(|member| names.iter().any(|name| **name == *member.name));
    named.map(|member| member.id).collect()
}

/// Returns the error for missing random numbers, as lease numbers must be impossible to guess.
fn unlucky(error: io::Error) -> NoLease {
    NoLease::Nobody(format!("the system gives no random numbers: {error}"))
}

/// Describes the strategy's choice, for people.
fn chosen(plan: &Published, place: usize) -> String {
    let member = &plan.plan.members()[place];
    let strategy = plan.plan.strategy().name;
    format!("{strategy} chose {}, which has {} in flight with this one", member.name, member.in_flight())
}

fn but(tried: &[MemberId]) -> &'static str {
    if tried.is_empty() { "" } else { ", beside those that were excluded" }
}
