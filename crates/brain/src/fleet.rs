//! Several balancers in front of the same members. They exchange their observations, so that each acts as if
//! it were the only one.
//!
//! It is a value: others' reports go in ([`Fleet::hear`]) with the time, and this balancer's reports come out
//! ([`Fleet::round`]). The results are written where this balancer's choices read them. These are the
//! requests of others in flight with each member and this balancer's part of the member's limits
//! ([`Vitals`]), the unseen requests ([`Company`]), and the members' load reports. The slow path gets updates
//! ([`Fleet::poll_news`]). Nothing is ever stored.
//!
//! **Requests in flight of others** are reported as the present number and as the mean. A report fades into
//! the mean within the time of a request, as queues forget: `mean + (now - mean) e^(-age / latency)`. So a
//! fresh report counts as it is, and an old one as the mean, which favours no member for a difference that is
//! over. The requests of a silent balancer fade to nothing within two seconds, of all members alike; those of
//! a balancer known to be gone at once.
//!
//! **No herd.** Between two reports others begin requests that no other balancer sees. The requests in flight
//! from here, which are never outdated, count as many times as there are balancers, and those of others are
//! added: see [`Company`].
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

use crate::{Load, Time, Vitals, hash, mix};

mod company;
mod duty;
mod hear;
mod peer;
mod share;
mod tell;
mod word;

pub use company::Company;
pub use peer::Acquaintance;
pub use word::{MOST, Report, Reported, Section, WORDS, Word, varint};

use peer::Peer;

/// The settings of a balancer in a fleet.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// The balancer's own number, which no other has, such as the hash of its address.
    pub own: u64,
    /// The time between two calls of [`Fleet::round`], which look for changes to report.
    pub interval: Duration,
    /// The bytes of reports that it may send in a second, to all others together.
    pub bytes_per_second: f64,
    /// The number of balancers that check the health of each member; at least 1.
    pub probers: usize,
    /// The time for which a lost balancer that did not announce its end keeps its part of limits.
    pub forget: Duration,
}

/// A group in the input of a [`Fleet`].
#[derive(Clone, Debug)]
pub struct Listed {
    /// The configured name; groups of other balancers with this name are the same group.
    pub name: Arc<str>,
    /// The state that its plans read.
    pub company: Arc<Company>,
    /// The members, in any order.
    pub members: Vec<ListedMember>,
}

/// A member in the input of a [`Fleet`].
#[derive(Clone, Debug)]
pub struct ListedMember {
    /// The configured name; members of other balancers with this name are the same member.
    pub name: Arc<str>,
    /// The live counts here.
    pub vitals: Arc<Vitals>,
    /// The maximum number of simultaneous requests of all balancers together; `u32::MAX` for no limit.
    pub limit: u32,
    /// Whether it has health checks.
    pub checked: bool,
}

/// An update for the slow path.
#[derive(Clone, Debug, PartialEq)]
pub struct News {
    /// The group.
    pub group: Arc<str>,
    /// The member.
    pub member: Arc<str>,
    /// The update.
    pub what: What,
}

/// A report of others about a member, or a consequence of one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum What {
    /// Whether this balancer checks the member's health from now on, or others do.
    Duty(bool),
    /// A check by another balancer passed or failed.
    Checked {
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
        left: Duration,
        /// The balancer that ejected it.
        by: u64,
    },
    /// Another balancer received a load report of the member.
    Loaded {
        /// The load in the unit of the group's metric.
        value: f64,
        /// Whether it is the load of the member's whole host.
        of_host: bool,
        /// The age of the measurement.
        age: Duration,
    },
    /// This balancer may have more requests there than before, and some wait.
    Room,
}

/// One balancer's part of the fleet's state.
#[derive(Debug)]
pub struct Fleet {
    settings: Settings,
    groups: Vec<Group>,
    /// The index of each group, by its number.
    places: BTreeMap<u64, usize>,
    peers: BTreeMap<u64, Peer>,
    news: VecDeque<News>,
    /// The members, by group and index, to report before all others.
    urgent: BTreeSet<(usize, usize)>,
    /// The number of members of all groups.
    members: usize,
    /// The start of the next round, and that of the next refresh.
    told: Cursor,
    refreshed: Cursor,
    /// The bytes that may be sent, and the time of that balance.
    tokens: f64,
    at: Time,
    /// The time of the last report.
    spoke: Option<Time>,
    /// The time before which every report must be repeated, because a new balancer did not receive it.
    renewed: Time,
}

/// A position among the members of all groups.
#[derive(Clone, Copy, Debug, Default)]
struct Cursor {
    group: usize,
    member: usize,
}

#[derive(Debug)]
struct Group {
    id: u64,
    name: Arc<str>,
    company: Arc<Company>,
    members: Vec<Own>,
    /// The members by their number.
    places: Vec<(u64, u32)>,
    /// The requests that wait for a member, divided by the number of members.
    waiting: f64,
    /// The requests a second that this balancer begins with the group.
    rate: f64,
}

/// The state of a member here.
#[derive(Debug)]
struct Own {
    id: u64,
    name: Arc<str>,
    vitals: Arc<Vitals>,
    limit: u32,
    checked: bool,
    /// The time of the last look, and the requests begun by then.
    at: Option<Time>,
    begun: u32,
    /// The mean of the requests in flight, and the requests a second, over about [`HORIZON`].
    mean: f64,
    rate: f64,
    told: Option<tell::Told>,
    ejected: Option<Time>,
    check: Option<(bool, Time)>,
    load: Option<Load>,
    /// The time of the load report received from another balancer, which is not sent again.
    borrowed: Time,
    /// Whether this balancer checks it.
    mine: bool,
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
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            groups: Vec::new(),
            places: BTreeMap::new(),
            peers: BTreeMap::new(),
            news: VecDeque::new(),
            urgent: BTreeSet::new(),
            members: 0,
            told: Cursor::default(),
            refreshed: Cursor::default(),
            tokens: 0.0,
            at: Time(0),
            spoke: None,
            renewed: Time(0),
        }
    }

    /// Sets the groups and members. The state of those that stay is kept, by their names and counts. If two
    /// members have the same number (one in 2^64), only the first takes part.
    pub fn list(&mut self, listed: Vec<Listed>, now: Time) {
        let mut before: BTreeMap<u64, Group> =
            core::mem::take(&mut self.groups).into_iter().map(|group| (group.id, group)).collect();
        for one in listed {
            let id = group_id(&one.name);
            let kept = before.remove(&id);
            let places = kept.as_ref().map(|group| group.places.clone()).unwrap_or_default();
            let group = Group::new(id, one, kept);
            for peer in self.peers.values_mut() {
                peer.arrange(id, &places, &group.places);
            }
            self.groups.push(group);
        }
        for gone in before.into_values() {
            gone.leave();
            self.peers.values_mut().for_each(|peer| peer.drop_group(gone.id));
        }
        self.places = self.groups.iter().enumerate().map(|(place, group)| (group.id, place)).collect();
        self.members = self.groups.iter().map(|group| group.members.len()).sum();
        (self.told, self.refreshed) = (Cursor::default(), Cursor::default());
        self.urgent.clear();
        self.refresh_all(now);
    }

    /// Records the requests that wait for a member of a group, below its limit.
    pub fn waits(&mut self, group: &str, waiting: u32) {
        if let Some(group) = self.place(group).and_then(|place| self.groups.get_mut(place)) {
            group.waiting = f64::from(waiting) / group.members.len().max(1) as f64;
        }
    }

    /// Records the end of a health check of this balancer.
    pub fn checked(&mut self, group: &str, member: &str, passed: bool, now: Time) {
        let Some((place, own)) = self.own(group, member) else { return };
        let before = own.check.replace((passed, now));
        if before.is_some_and(|(before, _)| before != passed) || !passed {
            self.urgent.insert(place);
        }
    }

    /// Records that this balancer itself has ejected a member, for the time `lasts`, or has readmitted it
    /// (zero).
    pub fn ejected(&mut self, group: &str, member: &str, lasts: Duration, now: Time) {
        let Some((place, own)) = self.own(group, member) else { return };
        own.ejected = (!lasts.is_zero()).then_some(now + lasts);
        self.urgent.insert(place);
    }

    /// Records a load report of a member to this balancer.
    pub fn loaded(&mut self, group: &str, member: &str, load: Load) {
        let told = load.value as f32;
        if let Some((_, own)) = self.own(group, member).filter(|_| told.is_finite() && told >= 0.0) {
            own.load = Some(load);
        }
    }

    /// Records that another balancer is present.
    pub fn up(&mut self, peer: u64, now: Time) {
        if peer == self.settings.own {
            return;
        }
        let known = self.peers.entry(peer).or_insert_with(|| Peer::new(now));
        if !known.there() {
            *known = Peer::new(now);
        }
        // It needs all reports.
        self.renewed = self.renewed.max(now);
    }

    /// Records that another balancer is gone. `bye`: it announced that, and nothing is kept for it.
    pub fn down(&mut self, peer: u64, bye: bool, now: Time) {
        if bye {
            self.peers.remove(&peer);
        } else if let Some(peer) = self.peers.get_mut(&peer) {
            peer.lose(now);
        }
        self.refresh_all(now);
    }

    /// Returns the lost balancers that keep their parts of limits: the number, the time of the loss, and the
    /// [groups' numbers](group_id).
    pub fn lost(&self) -> impl Iterator<Item = (u64, Time, Vec<u64>)> {
        self.peers.iter().filter_map(|(id, peer)| Some((*id, peer.lost()?, peer.groups().collect())))
    }

    /// Restores a balancer that the previous process lost at `since`: it keeps its parts for the rest of the
    /// time. Does nothing if it is known here.
    pub fn recall_lost(&mut self, peer: u64, since: Time, groups: impl Iterator<Item = u64>, now: Time) {
        if peer != self.settings.own && !self.peers.contains_key(&peer) {
            self.peers.insert(peer, Peer::gone_since(since, groups));
            self.refresh_all(now);
        }
    }

    /// Returns the next update for the slow path, the oldest first.
    pub fn poll_news(&mut self) -> Option<News> {
        self.news.pop_front()
    }

    /// Returns the other balancers and the quality of their reports.
    pub fn others(&self, now: Time) -> impl Iterator<Item = Acquaintance> {
        self.peers.iter().map(move |(id, peer)| peer.known(*id, now))
    }

    /// Returns the number of members of all groups.
    pub fn members(&self) -> usize {
        self.members
    }

    /// Leaves the fleet: removes all state of the others from what choices read.
    pub fn leave(&mut self) {
        self.groups.iter().for_each(Group::leave);
    }

    fn place(&self, group: &str) -> Option<usize> {
        self.places.get(&group_id(group)).copied()
    }

    fn own(&mut self, group: &str, member: &str) -> Option<((usize, usize), &mut Own)> {
        let at = self.place(group)?;
        let group = self.groups.get_mut(at)?;
        let place = find(&group.places, member_id(group.id, member))?;
        Some(((at, place), group.members.get_mut(place)?))
    }

    fn tell(&mut self, group: usize, member: usize, what: What) {
        // If no caller collects updates, others repeat the oldest ones, or they are outdated.
        if self.news.len() >= NEWS {
            self.news.pop_front();
        }
        let Some(group) = self.groups.get(group) else { return };
        let Some(own) = group.members.get(member) else { return };
        self.news.push_back(News { group: group.name.clone(), member: own.name.clone(), what });
    }
}

impl Group {
    fn new(id: u64, listed: Listed, kept: Option<Self>) -> Self {
        let Listed { name, company, members: all } = listed;
        let mut before: BTreeMap<u64, Own> =
            kept.into_iter().flat_map(|group| group.members).map(|own| (own.id, own)).collect();
        let (members, places) = (Vec::new(), Vec::new());
        let mut group = Self { id, name, company, members, places, waiting: 0.0, rate: 0.0 };
        let mut seen = BTreeMap::new();
        for member in all {
            let number = member_id(id, &member.name);
            if seen.insert(number, group.members.len() as u32).is_some() {
                continue;
            }
            let kept = before.remove(&number).filter(|own| Arc::ptr_eq(&own.vitals, &member.vitals));
            let own = match kept {
                Some(own) => Own { limit: member.limit, checked: member.checked, ..own },
                None => Own::new(number, member),
            };
            group.members.push(own);
        }
        for gone in before.into_values() {
            gone.vitals.alone();
        }
        group.places = seen.into_iter().collect();
        group
    }

    fn leave(&self) {
        self.company.set(0);
        self.members.iter().for_each(|own| own.vitals.alone());
    }
}

impl Own {
    fn new(id: u64, listed: ListedMember) -> Self {
        let ListedMember { name, vitals, limit, checked } = listed;
        Self {
            id,
            name,
            begun: vitals.begun(),
            vitals,
            limit,
            checked,
            at: None,
            mean: 0.0,
            rate: 0.0,
            told: None,
            ejected: None,
            check: None,
            load: None,
            borrowed: Time(0),
            mine: true,
        }
    }
}

fn find(places: &[(u64, u32)], id: u64) -> Option<usize> {
    let place = places.binary_search_by_key(&id, |(id, _)| *id).ok()?;
    Some(places[place].1 as usize)
}

/// The maximum number of updates that wait for the slow path; each member has a few at most.
const NEWS: usize = 65_536;

/// The maximum number of members of a round; the next round continues after them.
const LOOKS: usize = 4096;

/// The seconds over which reported numbers are averaged.
const HORIZON: f64 = 0.5;

/// The assumed latency of a request, seconds, if it is unknown.
const LATENCY: f64 = 0.010;

#[cfg(test)]
mod tests;
