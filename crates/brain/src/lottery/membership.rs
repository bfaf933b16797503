//! The members, their last reports, and the resulting candidate sets.
//!
//! A member is in the candidate set of a service if all of these hold:
//!
//! - it was described (by the membership protocol or another daemon's table);
//! - it is not down;
//! - it reported itself `Up` in its present life.
//!
//! A member without a report is not drawn. If members can be queried, one may begin another life at its
//! address (with another offer, or the same at another endpoint). It stays in the candidate set between its
//! two lives, by the combined information: only the querying daemon knows that something is missing.
//!
//! A member that is quiet for three reports is a *suspect*: it stays in the candidate set, as others may have
//! its reports, but no daemon waits for it. One that is quiet for [`MAX_MISSES`] reports is out, whatever the
//! membership protocol reports. Without such a protocol, one that has been out for a time is forgotten. When
//! it, or another life of it, reports again it is unknown, and is queried for its description.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::net::SocketAddr;
use core::time::Duration;

use super::draw::DrawCandidate;
use super::message::{
    self, CandidateEntry, CandidateQuery, CandidateSet, MAX_CANDIDATE_BYTES, MAX_SERVICES,
    MAX_TABLE_PART_BYTES, NodeDescription, NodeReport, NodeState, RelayedReport, ServiceOffer, ServiceState,
    TableFetch,
};
use super::node::PeerView;
use super::weight;
use crate::{Time, hash, mix};

/// The maximum number of members of a cluster.
pub const MAX_MEMBERS: usize = 1024;

/// The missed reports after which no daemon waits for a member.
pub(super) const SUSPECT_MISSES: u32 = 3;

/// The missed reports after which a member is not drawn.
const MAX_MISSES: u32 = 20;

#[derive(Clone, Debug)]
pub(super) struct MembershipTable {
    /// The member of this table.
    own_member: u16,
    peers: BTreeMap<u16, PeerRecord>,
    /// The entrants per service, by number of the member.
    candidates: BTreeMap<u32, Vec<DrawCandidate>>,
    /// The digest of all reports.
    pub(super) digest: u64,
    /// The hash of all descriptions of members that are not down; not 0.
    pub(super) generation: u32,
    fingerprints: u64,
    interval: Duration,
    /// Whether reports are relayed by others, too, with delays of their own.
    uses_relays: bool,
    /// See [`NodeConfig::forget_after`](super::node::NodeConfig::forget_after).
    forget_after: Option<Duration>,
}

#[derive(Clone, Debug)]
struct PeerRecord {
    description: NodeDescription,
    /// Whether it is not down.
    up: bool,
    report: Option<PeerReport>,
    /// The incarnation and the number of its newest report. An older one is ignored, even when that is
    /// forgotten: others may still relay it.
    newest: (u32, u32),
    /// Whether its last digest differed from ours.
    digest_differs: bool,
    /// The hash of its description; 0 if it is down.
    fingerprint: u64,
    /// The time since which it has been quiet.
    quiet_since: Option<Time>,
}

#[derive(Clone, Debug)]
struct PeerReport {
    at: Time,
    state: NodeState,
    services: Vec<ServiceState>,
    hash: u64,
    /// The smoothed spacing of its reports.
    report_interval: Duration,
    /// The number of times it was relayed.
    relay_count: u32,
}

/// The novelty of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReportNovelty {
    /// The member was never described.
    UnknownMember,
    /// It is older than the known one, or of an earlier life.
    Stale,
    Fresh,
    /// It is new, and of a later life than the description.
    NewIncarnation,
}

impl MembershipTable {
    pub(super) fn new(
        own_member: u16,
        interval: Duration,
        uses_relays: bool,
        forget_after: Option<Duration>,
    ) -> Self {
        Self {
            uses_relays,
            forget_after,
            own_member,
            peers: BTreeMap::new(),
            candidates: BTreeMap::new(),
            digest: 0,
            generation: 1,
            fingerprints: 0,
            interval,
        }
    }

    /// Records a description of a member. `alive`: its source knows that it is not down. Returns `false` if
    /// there is no room for it or it is of an earlier life.
    pub(super) fn describe(&mut self, mut description: NodeDescription, alive: bool) -> bool {
        description.offers.truncate(MAX_SERVICES);
        let member = description.member;
        let is_full = self.peers.len() >= MAX_MEMBERS;
        match self.peers.get_mut(&member) {
            Some(peer) if description.incarnation < peer.description.incarnation => return false,
            Some(peer) => {
                peer.up |= alive || description.incarnation > peer.description.incarnation;
                peer.description = description;
            }
            None if is_full => return false,
            None => {
                self.peers.insert(
                    member,
                    PeerRecord {
                        description,
                        up: true,
                        report: None,
                        newest: (0, 0),
                        digest_differs: false,
                        fingerprint: 0,
                        quiet_since: None,
                    },
                );
            }
        }
        self.refresh_member(member);
        true
    }

    /// Records that a member's life is over, unless a later one is known.
    pub(super) fn mark_down(&mut self, member: u16, incarnation: u32) {
        if let Some(peer) = self.peers.get_mut(&member)
            && incarnation >= peer.description.incarnation.max(peer.newest.0)
        {
            peer.up = false;
            peer.description.incarnation = incarnation;
            self.forget(member);
            self.refresh_member(member);
        }
    }

    pub(super) fn record_report(&mut self, now: Time, report: &NodeReport) -> ReportNovelty {
        let NodeReport { member, incarnation, seq, state, .. } = *report;
        self.record_state(now, member, (incarnation, seq), state, &report.services)
    }

    /// Records a report that another daemon relays.
    pub(super) fn record_relayed(&mut self, now: Time, relayed: &RelayedReport) -> ReportNovelty {
        let RelayedReport { member, incarnation, seq, state, ref services } = *relayed;
        self.record_state(now, member, (incarnation, seq), state, services)
    }

    fn record_state(
        &mut self,
        now: Time,
        member: u16,
        newest: (u32, u32),
        state: NodeState,
        services: &[ServiceState],
    ) -> ReportNovelty {
        let (incarnation, _) = newest;
        let Some(peer) = self.peers.get_mut(&member) else { return ReportNovelty::UnknownMember };
        let is_later_life = incarnation > peer.description.incarnation;
        let is_outdated = incarnation < peer.description.incarnation || (!peer.up && !is_later_life);
        if is_outdated || newest <= peer.newest {
            return ReportNovelty::Stale;
        }
        let services = &services[..services.len().min(MAX_SERVICES)];
        let hash = fingerprint(member, incarnation, state, services);
        let previous_hash = peer.report.as_ref().map_or(0, |report| report.hash);
        let report_interval = peer
            .report
            .as_ref()
            .map_or(self.interval, |report| (3 * report.report_interval + now.since(report.at)) / 4);
        peer.newest = newest;
        peer.report = Some(PeerReport {
            at: now,
            state,
            services: services.to_vec(),
            hash,
            report_interval,
            relay_count: 0,
        });
        self.digest ^= previous_hash ^ hash;
        // Its known offer holds until there is another description.
        if is_later_life && self.forget_after.is_some() {
            self.update_candidates(member);
            return ReportNovelty::NewIncarnation;
        }
        if is_later_life {
            // It is back.
            peer.up = true;
            peer.description.incarnation = incarnation;
            self.refresh_member(member);
        } else if state == NodeState::Leaving {
            // It is about to stop, and clients are to know.
            peer.up = false;
            self.refresh_member(member);
        } else if previous_hash != hash {
            self.update_candidates(member);
        }
        ReportNovelty::Fresh
    }

    /// Returns the reports of others to relay within these bytes: those relayed least first, and of those the
    /// latest.
    pub(super) fn reports_to_relay(&mut self, now: Time, mut room: usize) -> Vec<RelayedReport> {
        let mut relay_order: Vec<(u32, Duration, u16)> = self
            .peers
            .iter()
            .filter(|(member, peer)| **member != self.own_member && peer.up)
            .filter_map(|(member, peer)| {
                peer.report.as_ref().map(|report| (report.relay_count, now.since(report.at), *member))
            })
            .collect();
        relay_order.sort_unstable();
        let mut relayed_reports = Vec::new();
        for (_, _, member) in relay_order {
            let Some(peer) = self.peers.get_mut(&member) else { continue };
            let (Some(report), (incarnation, seq)) = (&mut peer.report, peer.newest) else { continue };
            let (state, services) = (report.state, report.services.clone());
            let relayed = RelayedReport { member, incarnation, seq, state, services };
            let Some(remaining_room) = room.checked_sub(relayed.encoded_size()) else { break };
            room = remaining_room;
            report.relay_count += 1;
            relayed_reports.push(relayed);
        }
        relayed_reports
    }

    /// Records whether a member has the same information. Call it after
    /// [`record_report`](Self::record_report).
    pub(super) fn record_digest(&mut self, member: u16, digest: u64) {
        let differs = digest != self.digest;
        if let Some(peer) = self.peers.get_mut(&member) {
            peer.digest_differs = differs;
        }
    }

    /// Removes members that have been quiet for too long; forgets those without a report for a while after
    /// that.
    pub(super) fn sweep(&mut self, now: Time) {
        let is_out = |peer: &PeerRecord| {
            peer.report
                .as_ref()
                .is_some_and(|report| now.since(report.at) > self.expected_interval(report) * MAX_MISSES)
        };
        let out_members: Vec<u16> = self
            .peers
            .iter()
            .filter(|(member, peer)| **member != self.own_member && is_out(peer))
            .map(|(member, _)| *member)
            .collect();
        for member in out_members {
            self.forget(member);
            self.update_candidates(member);
        }
        let Some(forget_after) = self.forget_after else { return };
        let mut forgotten_members = Vec::new();
        for (member, peer) in self.peers.iter_mut().filter(|(member, _)| **member != self.own_member) {
            peer.quiet_since =
                if peer.report.is_some() { None } else { Some(peer.quiet_since.unwrap_or(now)) };
            if peer.quiet_since.is_some_and(|quiet_since| now.since(quiet_since) > forget_after) {
                forgotten_members.push(*member);
            }
        }
        forgotten_members.into_iter().for_each(|member| self.remove(member));
    }

    /// Records the life of a member, and its `address` if known.
    ///
    /// If it is a later life than the description, and the member was down or is at another address, its
    /// state is discarded; unless members cannot be queried.
    pub(super) fn supersede(&mut self, member: u16, incarnation: u32, address: Option<SocketAddr>) {
        let is_superseded = |peer: &PeerRecord| {
            let address_changed = address.is_some_and(|address| address != peer.description.address);
            peer.description.incarnation < incarnation && (!peer.up || address_changed)
        };
        if self.forget_after.is_some() && self.peers.get(&member).is_some_and(is_superseded) {
            self.remove(member);
        }
    }

    /// Returns the entrants of the lottery for a service.
    pub(super) fn candidates(&self, service: u32) -> &[DrawCandidate] {
        self.candidates.get(&service).map_or(&[], Vec::as_slice)
    }

    /// Returns the members that may answer for a service without a member that can be drawn, all alike.
    pub(super) fn fallback_responders(&self) -> impl Iterator<Item = DrawCandidate> {
        let is_reporting =
            |peer: &PeerRecord| peer.report.as_ref().is_some_and(|report| report.state != NodeState::Leaving);
        let candidate = |member: &u16| DrawCandidate {
            member: *member,
            capacity: 1,
            weight: super::weight_codec::UNIT_CODE,
        };
        self.peers
            .iter()
            .filter(move |(_, peer)| is_reporting(peer))
            .map(move |(member, _)| candidate(member))
    }

    /// Returns the states of those that offer a service and are not down; `None` for one without a report.
    pub(super) fn states(&self, service: u32) -> impl Iterator<Item = Option<NodeState>> {
        let offers = move |peer: &&PeerRecord| {
            peer.up && peer.description.offers.iter().any(|offer| offer.service == service)
        };
        self.peers.values().filter(offers).map(|peer| peer.report.as_ref().map(|report| report.state))
    }

    pub(super) fn is_candidate(&self, member: u16, service: u32) -> bool {
        self.candidates(service).binary_search_by_key(&member, |candidate| candidate.member).is_ok()
    }

    /// Returns `true` if it has been quiet for [`SUSPECT_MISSES`] reports, give or take the spread of their
    /// times.
    pub(super) fn is_suspect(&self, member: u16, now: Time) -> bool {
        let report = self.peers.get(&member).and_then(|peer| peer.report.as_ref());
        member != self.own_member
            && report.is_none_or(|report| {
                now.since(report.at) > self.expected_interval(report) * (SUSPECT_MISSES * 11) / 10
            })
    }

    /// Returns the expected time until the next report of a member: an interval, or the recent spacing if
    /// reports are relayed.
    fn expected_interval(&self, report: &PeerReport) -> Duration {
        if self.uses_relays { self.interval.max(report.report_interval) } else { self.interval }
    }

    pub(super) fn offer(&self, member: u16, service: u32) -> Option<&ServiceOffer> {
        self.peers.get(&member)?.description.offers.iter().find(|offer| offer.service == service)
    }

    pub(super) fn description(&self, member: u16) -> Option<&NodeDescription> {
        self.peers.get(&member).filter(|peer| peer.up).map(|peer| &peer.description)
    }

    /// Returns the incarnation of a member that is not down.
    pub(super) fn incarnation(&self, member: u16) -> Option<u32> {
        self.description(member).map(|description| description.incarnation)
    }

    /// Returns the number of other members that are not down, of those with a report, and of those whose
    /// digest differed.
    pub(super) fn member_counts(&self) -> (usize, usize, usize) {
        let others = self.peers.iter().filter(|(member, peer)| **member != self.own_member && peer.up);
        others.fold((0, 0, 0), |(up_count, reported_count, differ_count), (_, peer)| {
            let has_report = peer.report.is_some();
            (
                up_count + 1,
                reported_count + usize::from(has_report),
                differ_count + usize::from(has_report && peer.digest_differs),
            )
        })
    }

    /// Returns the other members that are not down, for display.
    pub(super) fn view(&self, now: Time) -> Vec<PeerView> {
        let others = self.peers.iter().filter(|(member, peer)| **member != self.own_member && peer.up);
        let peer_view = |(member, peer): (&u16, &PeerRecord)| PeerView {
            member: *member,
            address: peer.description.address,
            state: peer.report.as_ref().map(|report| report.state),
            is_suspect: self.is_suspect(*member, now),
            digest_differs: peer.report.is_some() && peer.digest_differs,
            shares: peer.report.as_ref().map(|report| report.services.clone()).unwrap_or_default(),
        };
        others.map(peer_view).collect()
    }

    /// Returns the requested part, if there is one. Parts are in order of members' numbers, and as full as
    /// possible: all with the same information cut them alike.
    pub(super) fn table_part(&self, query: TableFetch) -> Option<message::TablePart> {
        // Not more than members.
        let (mut last_part, mut bytes, mut members) = (0_u16, 0, Vec::new());
        let descriptions = self.peers.values().filter(|peer| peer.up).map(|peer| &peer.description);
        for (description, len) in descriptions
            .map(|description| (description, description.encoded_size()))
            .filter(|(_, len)| *len <= MAX_TABLE_PART_BYTES)
        {
            if bytes + len > MAX_TABLE_PART_BYTES {
                (last_part, bytes) = (last_part + 1, 0);
            }
            bytes += len;
            if last_part == query.part {
                members.push(description.clone());
            }
        }
        let TableFetch { id, part, .. } = query;
        let table_part =
            message::TablePart { id, generation: self.generation, part, parts: last_part + 1, members };
        (part <= last_part).then_some(table_part)
    }

    /// Returns the requested part of a candidate set, if there is one; suspects have no weight.
    pub(super) fn candidate_set(&self, now: Time, query: CandidateQuery) -> Option<CandidateSet> {
        let (mut last_part, mut bytes, mut entries) = (0_u16, 0, Vec::new());
        for candidate in self.candidates(query.service) {
            let Some(description) = self.description(candidate.member) else { continue };
            let Some(offer) = self.offer(candidate.member, query.service) else { continue };
            let entry = CandidateEntry {
                member: candidate.member,
                capacity: candidate.capacity,
                weight: if self.is_suspect(candidate.member, now) { 0 } else { candidate.weight },
                address: description.address,
                endpoint: offer.endpoint,
            };
            if bytes + entry.encoded_size() > MAX_CANDIDATE_BYTES {
                (last_part, bytes) = (last_part + 1, 0);
            }
            bytes += entry.encoded_size();
            if last_part == query.part {
                entries.push(entry);
            }
        }
        let CandidateQuery { id, service, part } = query;
        let candidate_set = CandidateSet { id, service, part, parts: last_part + 1, candidates: entries };
        (part <= last_part).then_some(candidate_set)
    }

    /// Returns the addresses of the other members' daemons that are not down.
    pub(super) fn node_addresses(&self) -> impl Iterator<Item = SocketAddr> {
        let others = self.peers.iter().filter(|(member, peer)| **member != self.own_member && peer.up);
        others.map(|(_, peer)| peer.description.address)
    }

    /// Returns the numbers of the other members that are not down.
    pub(super) fn peer_ids(&self) -> impl Iterator<Item = u16> {
        let others = self.peers.iter().filter(|(member, peer)| **member != self.own_member && peer.up);
        others.map(|(member, _)| *member)
    }

    /// Discards the report of a member.
    fn forget(&mut self, member: u16) {
        if let Some(report) = self.peers.get_mut(&member).and_then(|peer| peer.report.take()) {
            self.digest ^= report.hash;
        }
    }

    /// Removes a member as if it had never been there.
    fn remove(&mut self, member: u16) {
        self.forget(member);
        if let Some(peer) = self.peers.get_mut(&member) {
            peer.up = false;
        }
        self.refresh_member(member);
        self.peers.remove(&member);
    }

    /// Follows a change of a description or a life.
    fn refresh_member(&mut self, member: u16) {
        if let Some(peer) = self.peers.get_mut(&member) {
            let fingerprint = if peer.up { description_hash(&peer.description) } else { 0 };
            self.fingerprints ^= peer.fingerprint ^ fingerprint;
            peer.fingerprint = fingerprint;
            self.generation = (self.fingerprints as u32).max(1);
        }
        self.update_candidates(member);
    }

    /// Puts a member into the candidate sets it belongs to, and removes it from all others.
    fn update_candidates(&mut self, member: u16) {
        self.candidates.retain(|_, candidates| {
            candidates.retain(|candidate| candidate.member != member);
            !candidates.is_empty()
        });
        let Some(peer) = self.peers.get(&member).filter(|peer| peer.up) else { return };
        let Some(report) = &peer.report else { return };
        // The report of one life and the offer of another are combined only if the rest is queried.
        let offer_known = peer.newest.0 == peer.description.incarnation || self.forget_after.is_some();
        if report.state != NodeState::Up || !offer_known {
            return;
        }
        for service in &report.services {
            let weight = bounded_weight(service);
            if weight == 0 || !peer.description.offers.iter().any(|offer| offer.service == service.service) {
                continue;
            }
            let candidate = DrawCandidate { member, capacity: service.capacity, weight };
            let candidates = self.candidates.entry(service.service).or_default();
            match candidates.binary_search_by_key(&member, |candidate| candidate.member) {
                Ok(index) => candidates[index] = candidate,
                Err(index) => candidates.insert(index, candidate),
            }
        }
    }
}

/// Returns the weight of a member within its bounds. A member that reports more than any load makes of its
/// capacity would attract all requests. All daemons apply the same bounds, so that they draw alike.
fn bounded_weight(service: &ServiceState) -> u16 {
    if service.weight == 0 || service.capacity == 0 {
        return 0;
    }
    let bounds = weight::weight_bounds(service.capacity);
    service.weight.clamp(*bounds.start(), *bounds.end())
}

/// Returns the hash of a report's weights and states; 0 is none.
fn fingerprint(member: u16, incarnation: u32, state: NodeState, services: &[ServiceState]) -> u64 {
    let mut digest = mix(u64::from(member) << 40 | u64::from(incarnation) << 8 | state as u64);
    for service in services {
        let capacity_and_weight = u64::from(service.capacity) << 16 | u64::from(service.weight);
        digest = mix(digest ^ u64::from(service.service) << 32 ^ capacity_and_weight);
    }
    digest
}

fn description_hash(description: &NodeDescription) -> u64 {
    let address_hash = |address: &SocketAddr| {
        let ip = match address.ip() {
            core::net::IpAddr::V4(ip) => hash(&ip.octets()),
            core::net::IpAddr::V6(ip) => hash(&ip.octets()),
        };
        mix(ip ^ u64::from(address.port()))
    };
    let mut digest = mix(u64::from(description.member) << 32 | u64::from(description.incarnation))
        ^ address_hash(&description.address);
    for offer in &description.offers {
        // Without the capacity, which is in each report, and changes without another description.
        digest =
            mix(mix(digest ^ u64::from(offer.service)) ^ address_hash(&offer.endpoint) ^ hash(&offer.info));
    }
    digest
}
