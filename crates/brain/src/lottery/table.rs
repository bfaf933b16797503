//! The members, their last reports, and the resulting drums.
//!
//! A member is in the drum of a service if all of these hold:
//!
//! - it was described (by the membership protocol or another daemon's table);
//! - it is not down;
//! - it reported itself `Up` in its present life.
//!
//! A member without a report is not drawn. If members can be queried, one may begin another life at its
//! address (with another offer, or the same at another endpoint). It stays in the drum between its two lives,
//! by the combined information: only the querying daemon knows that something is missing.
//!
//! A member that is quiet for three reports is a *suspect*: it stays in the drum, as others may have its
//! reports, but no daemon waits for it. One that is quiet for [`SILENT`] reports is out, whatever the
//! membership protocol reports. Without such a protocol, one that has been out for a time is forgotten. When
//! it, or another life of it, reports again it is unknown, and is queried for its description.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::net::SocketAddr;
use core::time::Duration;

use super::daemon::Other;
use super::draw::Entrant;
use super::gauge;
use super::message::{
    self, DRUM, Drum, Fetch, Hearsay, Listed, Look, Offer, PART, Place, Report, SERVICES, Share, Standing,
};
use crate::{Time, hash, mix};

/// The maximum number of members of a cluster.
pub const MEMBERS: usize = 1024;

/// The missed reports after which no daemon waits for a member.
pub(super) const SUSPECT: u32 = 3;

/// The missed reports after which a member is not drawn.
const SILENT: u32 = 20;

#[derive(Clone, Debug)]
pub(super) struct Table {
    /// The member of this table.
    me: u16,
    peers: BTreeMap<u16, Peer>,
    /// The entrants per service, by number of the member.
    drums: BTreeMap<u32, Vec<Entrant>>,
    /// The digest of all reports.
    pub(super) digest: u64,
    /// The hash of all descriptions of members that are not down; not 0.
    pub(super) generation: u32,
    prints: u64,
    interval: Duration,
    /// Whether reports are relayed by others, too, with delays of their own.
    relayed: bool,
    /// See [`Config::forget`](super::daemon::Config::forget).
    forget: Option<Duration>,
}

#[derive(Clone, Debug)]
struct Peer {
    listed: Listed,
    /// Whether it is not down.
    up: bool,
    heard: Option<Heard>,
    /// The incarnation and the number of its newest report. An older one is ignored, even when that is
    /// forgotten: others may still relay it.
    newest: (u32, u32),
    /// Whether its last digest differed from ours.
    differs: bool,
    /// The hash of its description; 0 if it is down.
    print: u64,
    /// The time since which it has been quiet.
    quiet: Option<Time>,
}

#[derive(Clone, Debug)]
struct Heard {
    at: Time,
    state: Standing,
    services: Vec<Share>,
    hash: u64,
    /// The smoothed spacing of its reports.
    gap: Duration,
    /// The number of times it was relayed.
    told: u32,
}

/// The novelty of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum News {
    /// The member was never described.
    Stranger,
    /// It is older than the known one, or of an earlier life.
    Old,
    Fresh,
    /// It is new, and of a later life than the description.
    Later,
}

impl Table {
    pub(super) fn new(me: u16, interval: Duration, relayed: bool, forget: Option<Duration>) -> Self {
        Self {
            relayed,
            forget,
            me,
            peers: BTreeMap::new(),
            drums: BTreeMap::new(),
            digest: 0,
            generation: 1,
            prints: 0,
            interval,
        }
    }

    /// Records a description of a member. `alive`: its source knows that it is not down. Returns `false` if
    /// there is no room for it or it is of an earlier life.
    pub(super) fn describe(&mut self, mut listed: Listed, alive: bool) -> bool {
        listed.offers.truncate(SERVICES);
        let member = listed.member;
        let full = self.peers.len() >= MEMBERS;
        match self.peers.get_mut(&member) {
            Some(peer) if listed.incarnation < peer.listed.incarnation => return false,
            Some(peer) => {
                peer.up |= alive || listed.incarnation > peer.listed.incarnation;
                peer.listed = listed;
            }
            None if full => return false,
            None => {
                self.peers.insert(
                    member,
                    Peer {
                        listed,
                        up: true,
                        heard: None,
                        newest: (0, 0),
                        differs: false,
                        print: 0,
                        quiet: None,
                    },
                );
            }
        }
        self.changed(member);
        true
    }

    /// Records that a member's life is over, unless a later one is known.
    pub(super) fn down(&mut self, member: u16, incarnation: u32) {
        if let Some(peer) = self.peers.get_mut(&member)
            && incarnation >= peer.listed.incarnation.max(peer.newest.0)
        {
            peer.up = false;
            peer.listed.incarnation = incarnation;
            self.forget(member);
            self.changed(member);
        }
    }

    pub(super) fn hear(&mut self, now: Time, report: &Report) -> News {
        let Report { member, incarnation, seq, state, .. } = *report;
        self.note(now, member, (incarnation, seq), state, &report.services)
    }

    /// Records a report that another daemon relays.
    pub(super) fn hear_of(&mut self, now: Time, said: &Hearsay) -> News {
        let Hearsay { member, incarnation, seq, state, ref services } = *said;
        self.note(now, member, (incarnation, seq), state, services)
    }

    fn note(&mut self, now: Time, member: u16, newest: (u32, u32), state: Standing, said: &[Share]) -> News {
        let (incarnation, _) = newest;
        let Some(peer) = self.peers.get_mut(&member) else { return News::Stranger };
        let later = incarnation > peer.listed.incarnation;
        let over = incarnation < peer.listed.incarnation || (!peer.up && !later);
        if over || newest <= peer.newest {
            return News::Old;
        }
        let said = &said[..said.len().min(SERVICES)];
        let hash = fingerprint(member, incarnation, state, said);
        let before = peer.heard.as_ref().map_or(0, |heard| heard.hash);
        let gap =
            peer.heard.as_ref().map_or(self.interval, |heard| (3 * heard.gap + now.since(heard.at)) / 4);
        peer.newest = newest;
        peer.heard = Some(Heard { at: now, state, services: said.to_vec(), hash, gap, told: 0 });
        self.digest ^= before ^ hash;
        // Its known offer holds until there is another description.
        if later && self.forget.is_some() {
            self.redraw(member);
            return News::Later;
        }
        if later {
            // It is back.
            peer.up = true;
            peer.listed.incarnation = incarnation;
            self.changed(member);
        } else if state == Standing::Leaving {
            // It is about to stop, and clients are to know.
            peer.up = false;
            self.changed(member);
        } else if before != hash {
            self.redraw(member);
        }
        News::Fresh
    }

    /// Returns the reports of others to relay within these bytes: those relayed least first, and of those the
    /// latest.
    pub(super) fn gossip(&mut self, now: Time, mut room: usize) -> Vec<Hearsay> {
        let mut order: Vec<(u32, Duration, u16)> = self
            .peers
            .iter()
            .filter(|(member, peer)| **member != self.me && peer.up)
            .filter_map(|(member, peer)| {
                peer.heard.as_ref().map(|heard| (heard.told, now.since(heard.at), *member))
            })
            .collect();
        order.sort_unstable();
        let mut said = Vec::new();
        for (_, _, member) in order {
            let Some(peer) = self.peers.get_mut(&member) else { continue };
            let (Some(heard), (incarnation, seq)) = (&mut peer.heard, peer.newest) else { continue };
            let (state, services) = (heard.state, heard.services.clone());
            let hearsay = Hearsay { member, incarnation, seq, state, services };
            let Some(left) = room.checked_sub(hearsay.bytes()) else { break };
            room = left;
            heard.told += 1;
            said.push(hearsay);
        }
        said
    }

    /// Records whether a member has the same information. Call it after [`hear`](Self::hear).
    pub(super) fn compare(&mut self, member: u16, digest: u64) {
        let differs = digest != self.digest;
        if let Some(peer) = self.peers.get_mut(&member) {
            peer.differs = differs;
        }
    }

    /// Removes members that have been quiet for too long; forgets those without a report for a while after
    /// that.
    pub(super) fn sweep(&mut self, now: Time) {
        let quiet = |peer: &Peer| {
            peer.heard.as_ref().is_some_and(|heard| now.since(heard.at) > self.usual(heard) * SILENT)
        };
        let gone: Vec<u16> = self
            .peers
            .iter()
            .filter(|(member, peer)| **member != self.me && quiet(peer))
            .map(|(member, _)| *member)
            .collect();
        for member in gone {
            self.forget(member);
            self.redraw(member);
        }
        let Some(forget) = self.forget else { return };
        let mut lost = Vec::new();
        for (member, peer) in self.peers.iter_mut().filter(|(member, _)| **member != self.me) {
            peer.quiet = if peer.heard.is_some() { None } else { Some(peer.quiet.unwrap_or(now)) };
            if peer.quiet.is_some_and(|quiet| now.since(quiet) > forget) {
                lost.push(*member);
            }
        }
        lost.into_iter().for_each(|member| self.remove(member));
    }

    /// Records the life of a member, and its `address` if known.
    ///
    /// If it is a later life than the description, and the member was down or is at another address, its
    /// state is discarded; unless members cannot be queried.
    pub(super) fn outdate(&mut self, member: u16, incarnation: u32, address: Option<SocketAddr>) {
        let over = |peer: &Peer| {
            let moved = address.is_some_and(|address| address != peer.listed.address);
            peer.listed.incarnation < incarnation && (!peer.up || moved)
        };
        if self.forget.is_some() && self.peers.get(&member).is_some_and(over) {
            self.remove(member);
        }
    }

    /// Returns the entrants of the lottery for a service.
    pub(super) fn drum(&self, service: u32) -> &[Entrant] {
        self.drums.get(&service).map_or(&[], Vec::as_slice)
    }

    /// Returns the members that may answer for a service without a member that can be drawn, all alike.
    pub(super) fn speakers(&self) -> impl Iterator<Item = Entrant> {
        let up = |peer: &Peer| peer.heard.as_ref().is_some_and(|heard| heard.state != Standing::Leaving);
        let entrant = |member: &u16| Entrant { member: *member, capacity: 1, weight: super::code::ONE };
        self.peers.iter().filter(move |(_, peer)| up(peer)).map(move |(member, _)| entrant(member))
    }

    /// Returns the states of those that offer a service and are not down; `None` for one without a report.
    pub(super) fn states(&self, service: u32) -> impl Iterator<Item = Option<Standing>> {
        let offers =
            move |peer: &&Peer| peer.up && peer.listed.offers.iter().any(|offer| offer.service == service);
        self.peers.values().filter(offers).map(|peer| peer.heard.as_ref().map(|heard| heard.state))
    }

    pub(super) fn draws(&self, member: u16, service: u32) -> bool {
        self.drum(service).binary_search_by_key(&member, |entrant| entrant.member).is_ok()
    }

    /// Returns `true` if it has been quiet for [`SUSPECT`] reports, give or take the spread of their times.
    pub(super) fn suspect(&self, member: u16, now: Time) -> bool {
        let heard = self.peers.get(&member).and_then(|peer| peer.heard.as_ref());
        member != self.me
            && heard.is_none_or(|heard| now.since(heard.at) > self.usual(heard) * (SUSPECT * 11) / 10)
    }

    /// Returns the expected time until the next report of a member: an interval, or the recent spacing if
    /// reports are relayed.
    fn usual(&self, heard: &Heard) -> Duration {
        if self.relayed { self.interval.max(heard.gap) } else { self.interval }
    }

    pub(super) fn offer(&self, member: u16, service: u32) -> Option<&Offer> {
        self.peers.get(&member)?.listed.offers.iter().find(|offer| offer.service == service)
    }

    pub(super) fn listed(&self, member: u16) -> Option<&Listed> {
        self.peers.get(&member).filter(|peer| peer.up).map(|peer| &peer.listed)
    }

    /// Returns the incarnation of a member that is not down.
    pub(super) fn incarnation(&self, member: u16) -> Option<u32> {
        self.listed(member).map(|listed| listed.incarnation)
    }

    /// Returns the number of other members that are not down, of those with a report, and of those whose
    /// digest differed.
    pub(super) fn count(&self) -> (usize, usize, usize) {
        let others = self.peers.iter().filter(|(member, peer)| **member != self.me && peer.up);
        others.fold((0, 0, 0), |(up, heard, differ), (_, peer)| {
            let known = peer.heard.is_some();
            (up + 1, heard + usize::from(known), differ + usize::from(known && peer.differs))
        })
    }

    /// Returns the other members that are not down, for display.
    pub(super) fn view(&self, now: Time) -> Vec<Other> {
        let others = self.peers.iter().filter(|(member, peer)| **member != self.me && peer.up);
        let other = |(member, peer): (&u16, &Peer)| Other {
            member: *member,
            address: peer.listed.address,
            state: peer.heard.as_ref().map(|heard| heard.state),
            suspect: self.suspect(*member, now),
            differs: peer.heard.is_some() && peer.differs,
            shares: peer.heard.as_ref().map(|heard| heard.services.clone()).unwrap_or_default(),
        };
        others.map(other).collect()
    }

    /// Returns the requested part, if there is one. Parts are in order of members' numbers, and as full as
    /// possible: all with the same information cut them alike.
    pub(super) fn part(&self, asked: Fetch) -> Option<message::Table> {
        // Not more than members.
        let (mut last, mut bytes, mut members) = (0_u16, 0, Vec::new());
        let all = self.peers.values().filter(|peer| peer.up).map(|peer| &peer.listed);
        for (listed, len) in all.map(|listed| (listed, listed.bytes())).filter(|(_, len)| *len <= PART) {
            if bytes + len > PART {
                (last, bytes) = (last + 1, 0);
            }
            bytes += len;
            if last == asked.part {
                members.push(listed.clone());
            }
        }
        let Fetch { id, part, .. } = asked;
        let table = message::Table { id, generation: self.generation, part, parts: last + 1, members };
        (part <= last).then_some(table)
    }

    /// Returns the requested part of a drum, if there is one; suspects have no weight.
    pub(super) fn places(&self, now: Time, asked: Look) -> Option<Drum> {
        let (mut last, mut bytes, mut places) = (0_u16, 0, Vec::new());
        for entrant in self.drum(asked.service) {
            let Some(listed) = self.listed(entrant.member) else { continue };
            let Some(offer) = self.offer(entrant.member, asked.service) else { continue };
            let place = Place {
                member: entrant.member,
                capacity: entrant.capacity,
                weight: if self.suspect(entrant.member, now) { 0 } else { entrant.weight },
                address: listed.address,
                endpoint: offer.endpoint,
            };
            if bytes + place.bytes() > DRUM {
                (last, bytes) = (last + 1, 0);
            }
            bytes += place.bytes();
            if last == asked.part {
                places.push(place);
            }
        }
        let Look { id, service, part } = asked;
        let drum = Drum { id, service, part, parts: last + 1, places };
        (part <= last).then_some(drum)
    }

    /// Returns the addresses of the other members' daemons that are not down.
    pub(super) fn daemons(&self) -> impl Iterator<Item = SocketAddr> {
        let others = self.peers.iter().filter(|(member, peer)| **member != self.me && peer.up);
        others.map(|(_, peer)| peer.listed.address)
    }

    /// Returns the numbers of the other members that are not down.
    pub(super) fn others(&self) -> impl Iterator<Item = u16> {
        let others = self.peers.iter().filter(|(member, peer)| **member != self.me && peer.up);
        others.map(|(member, _)| *member)
    }

    /// Discards the report of a member.
    fn forget(&mut self, member: u16) {
        if let Some(heard) = self.peers.get_mut(&member).and_then(|peer| peer.heard.take()) {
            self.digest ^= heard.hash;
        }
    }

    /// Removes a member as if it had never been there.
    fn remove(&mut self, member: u16) {
        self.forget(member);
        if let Some(peer) = self.peers.get_mut(&member) {
            peer.up = false;
        }
        self.changed(member);
        self.peers.remove(&member);
    }

    /// Follows a change of a description or a life.
    fn changed(&mut self, member: u16) {
        if let Some(peer) = self.peers.get_mut(&member) {
            let print = if peer.up { description(&peer.listed) } else { 0 };
            self.prints ^= peer.print ^ print;
            peer.print = print;
            self.generation = (self.prints as u32).max(1);
        }
        self.redraw(member);
    }

    /// Puts a member into the drums it belongs to, and removes it from all others.
    fn redraw(&mut self, member: u16) {
        self.drums.retain(|_, drum| {
            drum.retain(|entrant| entrant.member != member);
            !drum.is_empty()
        });
        let Some(peer) = self.peers.get(&member).filter(|peer| peer.up) else { return };
        let Some(heard) = &peer.heard else { return };
        // The report of one life and the offer of another are combined only if the rest is queried.
        let whole = peer.newest.0 == peer.listed.incarnation || self.forget.is_some();
        if heard.state != Standing::Up || !whole {
            return;
        }
        for share in &heard.services {
            let weight = weight(share);
            if weight == 0 || !peer.listed.offers.iter().any(|offer| offer.service == share.service) {
                continue;
            }
            let entrant = Entrant { member, capacity: share.capacity, weight };
            let drum = self.drums.entry(share.service).or_default();
            match drum.binary_search_by_key(&member, |entrant| entrant.member) {
                Ok(at) => drum[at] = entrant,
                Err(at) => drum.insert(at, entrant),
            }
        }
    }
}

/// Returns the weight of a member within its bounds. A member that reports more than any load makes of its
/// capacity would attract all requests. All daemons apply the same bounds, so that they draw alike.
fn weight(share: &Share) -> u16 {
    if share.weight == 0 || share.capacity == 0 {
        return 0;
    }
    let bounds = gauge::bounds(share.capacity);
    share.weight.clamp(*bounds.start(), *bounds.end())
}

/// Returns the hash of a report's weights and states; 0 is none.
fn fingerprint(member: u16, incarnation: u32, state: Standing, services: &[Share]) -> u64 {
    let mut print = mix(u64::from(member) << 40 | u64::from(incarnation) << 8 | state as u64);
    for share in services {
        let figures = u64::from(share.capacity) << 16 | u64::from(share.weight);
        print = mix(print ^ u64::from(share.service) << 32 ^ figures);
    }
    print
}

fn description(listed: &Listed) -> u64 {
    let address = |address: &SocketAddr| {
        let ip = match address.ip() {
            core::net::IpAddr::V4(ip) => hash(&ip.octets()),
            core::net::IpAddr::V6(ip) => hash(&ip.octets()),
        };
        mix(ip ^ u64::from(address.port()))
    };
    let mut state =
        mix(u64::from(listed.member) << 32 | u64::from(listed.incarnation)) ^ address(&listed.address);
    for offer in &listed.offers {
        // Without the capacity, which is in each report, and changes without another description.
        state = mix(mix(state ^ u64::from(offer.service)) ^ address(&offer.endpoint) ^ hash(&offer.info));
    }
    state
}
