//! Several balancers in front of the same members, who tell one another what they see, so that each acts as if it were the only one.
//!
//! A value: what others said goes in ([`Fleet::hear`]) with the time, what they are to be told comes out ([`Fleet::round`]), and
//! what follows for this balancer is written where its choices read it: what others have in flight with each member and this
//! balancer's part of the member's limits ([`Vitals`]), how much is not seen yet ([`Company`]), what a member said of itself.
//! What the slow path has to know is news ([`Fleet::poll_news`]). Nothing of it is ever stored.
//!
//! **What others have in flight** is told as it is and as it is in the mean. What was told is on its way to the mean for as long
//! as a request takes: `mean + (now - mean) e^(-age / latency)`, as queues forget. So what is fresh counts as it is,
//! what is old as what is usual, which favours no member over another for a difference that is over. Of a balancer that is not heard
//! of for longer nothing is left within two seconds, of all members alike; of one that is known to be gone nothing at once.
//!
//! **No herd.** Between two reports others begin requests that nobody sees. What is in flight from here, which is never old, counts
//! as many times as there are balancers, and what others have is added: see [`Company`].
//!
//! **Whatever is told is its teller's own**: its requests, its checks, its ejections, what members said to it. So nothing counts
//! twice, whichever way it came. A report that is lost makes what was told before it less certain until it is told
//! again: a slow sweep tells everything, whether it has changed or not.
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

/// How a balancer takes part.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Its own number: one that no other has, such as the hash of its address.
    pub own: u64,
    /// How often it looks for something to tell: between two calls of [`Fleet::round`].
    pub interval: Duration,
    /// Bytes of reports that it may send in a second, to all others together.
    pub bytes_per_second: f64,
    /// How many balancers check the health of each member; at least 1.
    pub probers: usize,
    /// How long one that was lost, and did not say that it goes, keeps its part of limits.
    pub forget: Duration,
}

/// A group as it is given to a [`Fleet`].
#[derive(Clone, Debug)]
pub struct Listed {
    /// As configured; groups of other balancers are the same if they are called the same.
    pub name: Arc<str>,
    /// What its plans read.
    pub company: Arc<Company>,
    /// In any order.
    pub members: Vec<ListedMember>,
}

/// A member as it is given to a [`Fleet`].
#[derive(Clone, Debug)]
pub struct ListedMember {
    /// As configured; members of other balancers are the same if they are called the same.
    pub name: Arc<str>,
    /// What is counted of it here.
    pub vitals: Arc<Vitals>,
    /// Most requests at once, by all balancers together; `u32::MAX` for no limit.
    pub limit: u32,
    /// Are there health checks of it?
    pub checked: bool,
}

/// What the slow path has to know or do.
#[derive(Clone, Debug, PartialEq)]
pub struct News {
    /// Of which group.
    pub group: Arc<str>,
    /// Of which member.
    pub member: Arc<str>,
    /// What there is to know.
    pub what: What,
}

/// What others said of a member, or what follows from it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum What {
    /// Its health is for this balancer to check, or for others from now on.
    Duty(bool),
    /// A check by another passed or not, so long ago.
    Checked {
        /// Did it pass?
        passed: bool,
        /// How long ago that was.
        age: Duration,
        /// Who checked.
        by: u64,
    },
    /// Another has ejected it for so long from now on, and nothing that is seen here contradicts.
    Ejected {
        /// How long it stays out there.
        left: Duration,
        /// Who did.
        by: u64,
    },
    /// A load was reported of it to another, so long ago.
    Loaded {
        /// In the unit of the group's metric.
        value: f64,
        /// It is of all that goes on at the member's host.
        of_host: bool,
        /// How long ago it was measured.
        age: Duration,
    },
    /// This balancer may have more requests there than before, and some wait.
    Room,
}

/// One balancer's part of what all know.
#[derive(Debug)]
pub struct Fleet {
    settings: Settings,
    groups: Vec<Group>,
    /// Where a group is, by its number.
    places: BTreeMap<u64, usize>,
    peers: BTreeMap<u64, Peer>,
    news: VecDeque<News>,
    /// Members, by group and place, of which something is to be told before anything else.
    urgent: BTreeSet<(usize, usize)>,
    /// Members of all groups.
    members: usize,
    /// Where the next round begins to look, and where the next refreshment does.
    told: Cursor,
    refreshed: Cursor,
    /// Bytes that may be sent, and as of when.
    tokens: f64,
    at: Time,
    /// When a report was made last.
    spoke: Option<Time>,
    /// What was told before this has to be told again: somebody has come who did not hear it.
    renewed: Time,
}

/// A place among the members of all groups.
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
    /// Members by their number.
    places: Vec<(u64, u32)>,
    /// Requests that wait for a member, each member's part.
    waiting: f64,
    /// Requests that this balancer begins with it, a second.
    rate: f64,
}

/// What is known here of a member.
#[derive(Debug)]
struct Own {
    id: u64,
    name: Arc<str>,
    vitals: Arc<Vitals>,
    limit: u32,
    checked: bool,
    /// When it was looked at last, and requests begun by then.
    at: Option<Time>,
    begun: u32,
    /// In flight in the mean, and requests a second, over about [`HORIZON`].
    mean: f64,
    rate: f64,
    told: Option<tell::Told>,
    ejected: Option<Time>,
    check: Option<(bool, Time)>,
    load: Option<Load>,
    /// When the reading was made that another passed on: it is not told.
    borrowed: Time,
    /// Is it for this balancer to check?
    mine: bool,
}

/// The number of a group: the same at every balancer.
pub fn group_id(name: &str) -> u64 {
    hash(name.as_bytes())
}

/// The number of a member of a group.
pub fn member_id(group: u64, name: &str) -> u64 {
    mix(group ^ hash(name.as_bytes()))
}

impl Fleet {
    /// Of a balancer that is alone so far and has no groups.
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

    /// Takes other groups and members. What is known of those that stay is kept, by their names and counts; of two members of
    /// one number (one in 2^64) only the first takes part.
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

    /// Requests that wait for a member of a group, below its limit.
    pub fn waits(&mut self, group: &str, waiting: u32) {
        if let Some(group) = self.place(group).and_then(|place| self.groups.get_mut(place)) {
            group.waiting = f64::from(waiting) / group.members.len().max(1) as f64;
        }
    }

    /// A health check of this balancer ended.
    pub fn checked(&mut self, group: &str, member: &str, passed: bool, now: Time) {
        let Some((place, own)) = self.own(group, member) else { return };
        let before = own.check.replace((passed, now));
        if before.is_some_and(|(before, _)| before != passed) || !passed {
            self.urgent.insert(place);
        }
    }

    /// This balancer has ejected a member on its own account, for so long; or has taken it back (zero).
    pub fn ejected(&mut self, group: &str, member: &str, lasts: Duration, now: Time) {
        let Some((place, own)) = self.own(group, member) else { return };
        own.ejected = (!lasts.is_zero()).then_some(now + lasts);
        self.urgent.insert(place);
    }

    /// A load was reported of a member to this balancer.
    pub fn loaded(&mut self, group: &str, member: &str, load: Load) {
        let told = load.value as f32;
        if let Some((_, own)) = self.own(group, member).filter(|_| told.is_finite() && told >= 0.0) {
            own.load = Some(load);
        }
    }

    /// Another balancer is there.
    pub fn up(&mut self, peer: u64, now: Time) {
        if peer == self.settings.own {
            return;
        }
        let known = self.peers.entry(peer).or_insert_with(|| Peer::new(now));
        if !known.there() {
            *known = Peer::new(now);
        }
        // It has to be told everything.
        self.renewed = self.renewed.max(now);
    }

    /// It is not there any more. `bye`: it said so before, and nothing is kept for it.
    pub fn down(&mut self, peer: u64, bye: bool, now: Time) {
        if bye {
            self.peers.remove(&peer);
        } else if let Some(peer) = self.peers.get_mut(&peer) {
            peer.lose(now);
        }
        self.refresh_all(now);
    }

    /// Those that were lost and keep their parts of limits: who, since when, and in which groups, by the [groups' numbers](group_id).
    pub fn lost(&self) -> impl Iterator<Item = (u64, Time, Vec<u64>)> {
        self.peers.iter().filter_map(|(id, peer)| Some((*id, peer.lost()?, peer.groups().collect())))
    }

    /// One was lost to the process before this one, at `since`: it keeps its parts for the rest of the time. Nothing if it is known here.
    pub fn recall_lost(&mut self, peer: u64, since: Time, groups: impl Iterator<Item = u64>, now: Time) {
        if peer != self.settings.own && !self.peers.contains_key(&peer) {
            self.peers.insert(peer, Peer::gone_since(since, groups));
            self.refresh_all(now);
        }
    }

    /// The next thing that the slow path has to know, the oldest first.
    pub fn poll_news(&mut self) -> Option<News> {
        self.news.pop_front()
    }

    /// The others, and how they are heard.
    pub fn others(&self, now: Time) -> impl Iterator<Item = Acquaintance> {
        self.peers.iter().map(move |(id, peer)| peer.known(*id, now))
    }

    /// Members of all groups.
    pub fn members(&self) -> usize {
        self.members
    }

    /// This balancer goes: nothing of the others is left in what choices read.
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
        // Where nobody asks for a while, what is oldest is told again by others, or is over.
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

/// News that wait for the slow path; each member has a few at most.
const NEWS: usize = 65_536;

/// Members that are looked at in a round: what a look at more of them would cost is put off to the next.
const LOOKS: usize = 4096;

/// Over how long numbers are averaged that are told as usual.
const HORIZON: f64 = 0.5;

/// What a request takes where that is not known.
const LATENCY: f64 = 0.010;

#[cfg(test)]
mod tests;
