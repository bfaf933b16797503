//! A balancer's fleet membership with its keys and counters. It opens received datagrams and drops forged and
//! replayed ones; it seals the datagrams to send. Time is an argument, so that tests run in virtual time.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use plimsoll_brain::fleet::{self, Fleet, FleetGroup, FleetUpdate, FleetUpdateKind};
use plimsoll_brain::status::{BalancerStatus, FleetStatus};
use plimsoll_brain::{Time, hash, mix};
use plimsoll_wire::fleet::{FleetDatagram, FleetPayload};
use plimsoll_wire::rfs::{GossipReplayFilter, KeyRing, ReplayVerdict};

use super::{FleetHandoff, FleetSettings, LostPeer, MemberAction, MemberNotice, PeerChange, PeerTransition};
use crate::lottery::gossip::{MAX_SEQUENCE, MembershipEvent as Member, NodeIdentity, SwimMembership};
use crate::lottery::socket::SendQueue;

pub(super) struct FleetNode {
    name: String,
    address: SocketAddr,
    keys: KeyRing,
    gossip_replay: GossipReplayFilter,
    gossip: SwimMembership,
    pub(super) fleet: Fleet,
    interval: Duration,
    /// The times of the next report round and of the next maintenance.
    next_round: Time,
    next_maintenance: Time,
    /// The sequence number of reports and farewells.
    seq: u32,
    /// The other balancers, by address.
    peers: BTreeMap<SocketAddr, PeerRecord>,
    changes: Vec<PeerChange>,
    pub(super) counts: DatagramCounts,
}

/// The state of another balancer, apart from its observations of members.
struct PeerRecord {
    incarnation: u32,
    /// The name; empty until the balancer has sent it.
    name: String,
    /// Whether its joining was reported.
    is_join_reported: bool,
    is_silent: bool,
    /// The time since which it is gone without a farewell.
    lost_at: Option<Time>,
    /// The deadline to see a balancer that was present before a handoff.
    expected_by: Option<Time>,
    /// Its received and missed reports at two earlier times: the loss rate counts from the older one.
    earlier_counts: [(u64, u64); 2],
    counts_marked_at: Time,
}

/// Counters of datagrams.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct DatagramCounts {
    pub(super) sent: u64,
    pub(super) sent_bytes: u64,
    received: u64,
    received_bytes: u64,
    rejected: u64,
    pub(super) unsent: u64,
}

impl FleetNode {
    pub(super) fn new(
        settings: &FleetSettings,
        address: SocketAddr,
        incarnation: u32,
        seed: u64,
        now: Time,
    ) -> Self {
        let own_id = peer_id(address);
        let node = NodeIdentity { member: own_id as u16, incarnation, address };
        let fleet = Fleet::new(fleet::FleetSettings {
            own_id,
            interval: settings.interval,
            bytes_per_second: settings.bytes_per_second as f64,
            probers: settings.probers,
            share_retention: settings.forget_after,
        });
        Self {
            name: settings.name.clone(),
            address,
            keys: settings.keys.clone(),
            gossip_replay: GossipReplayFilter::new(MAX_TRACKED_INCARNATIONS),
            gossip: SwimMembership::new(node, mix(seed), now),
            fleet,
            interval: settings.interval,
            next_round: now,
            next_maintenance: now,
            seq: 0,
            peers: BTreeMap::new(),
            changes: Vec::new(),
            counts: DatagramCounts::default(),
        }
    }

    /// Returns the handoff state for the next process.
    pub(super) fn handoff_state(&self, now: Time) -> FleetHandoff {
        let joined_peers =
            self.peers.iter().filter(|(_, peer)| peer.lost_at.is_none() && peer.is_join_reported);
        FleetHandoff {
            life: self.gossip.incarnation(),
            seqs: (self.seq, self.gossip.sequence()),
            others: joined_peers
                .map(|(address, peer)| (*address, peer.incarnation, peer.name.clone()))
                .collect(),
            lost: self.lost_peers(now),
        }
    }

    /// Returns the lost balancers that keep their share of limits.
    fn lost_peers(&self, now: Time) -> Vec<LostPeer> {
        let peers_by_id: BTreeMap<u64, (&SocketAddr, &PeerRecord)> =
            self.peers.iter().map(|entry| (peer_id(*entry.0), entry)).collect();
        let lost = self.fleet.lost_peers().filter_map(|(id, lost_at, groups)| {
            let (address, peer) = peers_by_id.get(&id)?;
            let age_ms = u64::try_from(now.since(lost_at).as_millis()).unwrap_or(u64::MAX);
            Some(LostPeer { other: (**address, peer.incarnation, peer.name.clone()), age_ms, groups })
        });
        lost.collect()
    }

    /// Continues as the balancer of a previous process: known balancers are not reported as joining.
    pub(super) fn restore(&mut self, handoff: FleetHandoff, now: Time) {
        self.seq = handoff.seqs.0;
        self.gossip.resume_sequence(handoff.seqs.1);
        for (address, incarnation, name) in handoff.others {
            let peer = PeerRecord {
                name,
                is_join_reported: true,
                expected_by: Some(now + REJOIN_TIMEOUT),
                ..PeerRecord::new(incarnation, now)
            };
            self.peers.insert(address, peer);
            self.fleet.peer_joined(peer_id(address), now);
        }
        for LostPeer { other: (address, incarnation, name), age_ms, groups } in handoff.lost {
            let lost_at = now - Duration::from_millis(age_ms);
            let peer = PeerRecord {
                name,
                is_join_reported: true,
                lost_at: Some(lost_at),
                ..PeerRecord::new(incarnation, now)
            };
            self.peers.entry(address).or_insert(peer);
            self.fleet.restore_lost_peer(peer_id(address), lost_at, groups.into_iter(), now);
        }
    }

    /// Returns the address that the others use.
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Applies other groups.
    pub(super) fn set_groups(&mut self, groups: Vec<FleetGroup>, now: Time) {
        self.fleet.set_groups(groups, now);
    }

    /// Processes a received datagram.
    pub(super) fn receive(&mut self, now: Time, bytes: &[u8]) {
        self.counts.received += 1;
        self.counts.received_bytes += bytes.len() as u64;
        let Ok(datagram) = FleetDatagram::decode(&self.keys, bytes) else {
            self.counts.rejected += 1;
            return;
        };
        let FleetDatagram { from, incarnation, seq, payload } = datagram;
        let kind: u64 = match payload {
            FleetPayload::Membership(_) => 1,
            FleetPayload::Report { .. } | FleetPayload::Leave => 2,
        };
        let sender_id = mix(peer_id(from) ^ mix(u64::from(incarnation) << 8 | kind));
        if from == self.address || self.gossip_replay.check(sender_id, seq) != ReplayVerdict::Fresh {
            self.counts.rejected += u64::from(from != self.address);
            return;
        }
        match payload {
            FleetPayload::Membership(message) => self.gossip.receive(now, &message),
            FleetPayload::Report { name, report } => {
                // Membership decides which balancers exist: reports of an unknown one are dropped until it
                // appears there.
                let Some(peer) = self.peers.get_mut(&from) else { return };
                if peer.incarnation != incarnation || peer.lost_at.is_some() {
                    return;
                }
                if peer.name != name {
                    peer.name = name;
                }
                if !std::mem::replace(&mut peer.is_join_reported, true) {
                    self.record_change(from, PeerTransition::Joined);
                }
                self.fleet.receive_report(peer_id(from), seq, &report, now);
            }
            FleetPayload::Leave => {
                if self.peers.get(&from).is_some_and(|peer| peer.incarnation == incarnation) {
                    self.record_change(from, PeerTransition::Left);
                    self.peers.remove(&from);
                    self.fleet.peer_left(peer_id(from), true, now);
                }
            }
        }
    }

    /// Records an action of the data plane.
    pub(super) fn record_action(&mut self, notice: &MemberNotice, now: Time) {
        let (group, member) = (&notice.group, &notice.member);
        match notice.action {
            MemberAction::HealthChecked(passed) => self.fleet.record_check(group, member, passed, now),
            MemberAction::Ejected(duration) => self.fleet.record_ejection(group, member, duration, now),
            MemberAction::LoadReported(load) => self.fleet.record_load(group, member, load),
        }
    }

    /// Performs all work that is due: membership, with `seeds` as possible addresses of others, and reports.
    /// Returns `true` if periodic maintenance was due, too.
    pub(super) fn run_due(&mut self, now: Time, seeds: &[SocketAddr], out: &mut SendQueue) -> bool {
        if self.seq.max(self.gossip.sequence()) >= MAX_SEQUENCE {
            // To the others the balancer is lost and returns at once.
            self.gossip.renew_after(now, self.gossip.incarnation());
            self.seq = 0;
            self.gossip.resume_sequence(0);
        }
        if self.gossip.next_due() <= now {
            // Lost balancers may have returned.
            let addresses = seeds.iter().copied().chain(self.peers.keys().copied());
            self.gossip.run_due(now, addresses.collect::<Vec<_>>().into_iter());
        }
        while let Some(event) = self.gossip.poll_event() {
            self.apply_membership(event, now);
        }
        let maintenance_due = now >= self.next_maintenance;
        if maintenance_due {
            self.next_maintenance = now + MAINTENANCE_INTERVAL;
            self.fleet.age_reports(now);
            self.detect_silence(now);
        }
        if now >= self.next_round {
            // Without others there are no reports to send, but the averages must be right when one joins.
            let has_peers = self.peers.values().any(|peer| peer.lost_at.is_none());
            self.next_round =
                now + if has_peers { self.interval } else { self.interval.max(MAINTENANCE_INTERVAL) };
            self.send_reports(now, out);
        }
        while let Some((to, datagram)) = self.gossip.poll_transmit() {
            let (incarnation, seq) = (datagram.incarnation, datagram.seq);
            self.queue_datagram(&[to], incarnation, seq, FleetPayload::Membership(datagram.payload), out);
        }
        maintenance_due
    }

    /// Returns the time at which work is next due.
    pub(super) fn next_due(&self) -> Time {
        self.gossip.next_due().min(self.next_round).min(self.next_maintenance)
    }

    /// Sends a farewell.
    pub(super) fn leave(&mut self, now: Time, out: &mut SendQueue) {
        let incarnation = self.gossip.incarnation();
        // A datagram may be lost, three hardly ever are. They precede the membership's notice, after which
        // the balancer would be lost.
        for _ in 0..3 {
            self.seq = self.seq.wrapping_add(1);
            let recipients = self.peer_addresses();
            self.queue_datagram(&recipients, incarnation, self.seq, FleetPayload::Leave, out);
        }
        self.gossip.leave(now);
        while let Some((to, datagram)) = self.gossip.poll_transmit() {
            self.queue_datagram(
                &[to],
                datagram.incarnation,
                datagram.seq,
                FleetPayload::Membership(datagram.payload),
                out,
            );
        }
        self.fleet.leave();
    }

    /// Returns the next news about members, with the name of the balancer that reported it.
    pub(super) fn poll_update(&mut self) -> Option<(FleetUpdate, String)> {
        let update = self.fleet.poll_update()?;
        let reporter = match update.kind {
            FleetUpdateKind::HealthChecked { by, .. } | FleetUpdateKind::Ejected { by, .. } => {
                self.peer_name(by)
            }
            FleetUpdateKind::ProbeDuty(_)
            | FleetUpdateKind::LoadReceived { .. }
            | FleetUpdateKind::LimitRaised => String::new(),
        };
        Some((update, reporter))
    }

    /// Returns the changes of other balancers' states.
    pub(super) fn take_changes(&mut self) -> Vec<PeerChange> {
        std::mem::take(&mut self.changes)
    }

    /// Returns the status of the fleet.
    pub(super) fn status(&self, now: Time) -> FleetStatus {
        let stats_by_id: BTreeMap<u64, fleet::PeerStats> =
            self.fleet.peer_stats(now).map(|stats| (stats.id, stats)).collect();
        let balancer = |(address, peer): (&SocketAddr, &PeerRecord)| {
            let stats = stats_by_id.get(&peer_id(*address));
            let ((received, missed), (earlier_received, earlier_missed)) =
                (stats.map_or((0, 0), |stats| (stats.received, stats.missed)), peer.earlier_counts[0]);
            let (received_since, missed_since) =
                (received.saturating_sub(earlier_received), missed.saturating_sub(earlier_missed));
            let state = match peer {
                PeerRecord { lost_at: Some(_), .. } => "lost",
                PeerRecord { is_silent: true, .. } => "silent",
                _ => "up",
            };
            BalancerStatus {
                name: peer.name.clone(),
                address: address.to_string(),
                state: state.to_owned(),
                age_seconds: stats.map_or(0.0, |stats| stats.age.as_secs_f64()),
                reports: received,
                loss: missed_since as f64 / (received_since + missed_since).max(1) as f64,
                groups: stats.map_or(0, |stats| stats.groups),
            }
        };
        let mut balancers: Vec<BalancerStatus> = self.peers.iter().map(balancer).collect();
        balancers.sort_by(|a, b| (&a.name, &a.address).cmp(&(&b.name, &b.address)));
        let DatagramCounts { sent, sent_bytes, received, received_bytes, rejected: refused, unsent } =
            self.counts;
        FleetStatus {
            name: self.name.clone(),
            address: self.address.to_string(),
            balancers,
            sent,
            sent_bytes,
            received,
            received_bytes,
            refused,
            unsent,
        }
    }

    fn apply_membership(&mut self, event: Member, now: Time) {
        match event {
            Member::Up(node) => {
                let peer =
                    self.peers.entry(node.address).or_insert_with(|| PeerRecord::new(node.incarnation, now));
                peer.expected_by = None;
                if peer.incarnation != node.incarnation || peer.lost_at.is_some() {
                    *peer = PeerRecord {
                        name: std::mem::take(&mut peer.name),
                        ..PeerRecord::new(node.incarnation, now)
                    };
                }
                self.fleet.peer_joined(peer_id(node.address), now);
            }
            Member::Down(node) => {
                let Some(peer) = self.peers.get_mut(&node.address) else { return };
                if peer.incarnation == node.incarnation && peer.lost_at.is_none() {
                    peer.lost_at = Some(now);
                    if peer.is_join_reported {
                        self.record_change(node.address, PeerTransition::Lost);
                    }
                    self.fleet.peer_left(peer_id(node.address), false, now);
                }
            }
            // All its datagrams carry the new incarnation from now on.
            Member::Renewed(_) => {}
        }
    }

    /// Detects balancers that are silent, and those that are gone for good.
    fn detect_silence(&mut self, now: Time) {
        let is_overdue = |(_, peer): &(&SocketAddr, &mut PeerRecord)| {
            peer.expected_by.is_some_and(|deadline| deadline <= now)
        };
        let overdue: Vec<SocketAddr> = self
            .peers
            .iter_mut()
            .filter(is_overdue)
            .map(|(address, peer)| {
                (peer.expected_by, peer.lost_at) = (None, Some(now));
                *address
            })
            .collect();
        for address in overdue {
            self.record_change(address, PeerTransition::Lost);
            self.fleet.peer_left(peer_id(address), false, now);
        }
        let peer_stats: Vec<(u64, fleet::PeerStats)> =
            self.fleet.peer_stats(now).map(|stats| (stats.id, stats)).collect();
        let mut changed = Vec::new();
        for (address, peer) in &mut self.peers {
            let id = peer_id(*address);
            let Some((_, stats)) = peer_stats.iter().find(|(stats_id, _)| *stats_id == id) else { continue };
            if now.since(peer.counts_marked_at) >= LOSS_RATE_PERIOD {
                peer.counts_marked_at = now;
                peer.earlier_counts = [peer.earlier_counts[1], (stats.received, stats.missed)];
            }
            let is_silent = peer.lost_at.is_none() && stats.age >= SILENCE_LIMIT;
            if peer.is_join_reported && peer.lost_at.is_none() && is_silent != peer.is_silent {
                changed.push((
                    *address,
                    if is_silent { PeerTransition::Silent } else { PeerTransition::ReportsResumed },
                ));
            }
            peer.is_silent = is_silent;
        }
        for (address, transition) in changed {
            self.record_change(address, transition);
        }
        // The state of a lost balancer is dropped, and its address is no longer tried.
        self.peers.retain(|address, peer| {
            peer.lost_at.is_none() || peer_stats.iter().any(|(stats_id, _)| *stats_id == peer_id(*address))
        });
    }

    fn send_reports(&mut self, now: Time, out: &mut SendQueue) {
        let reports = self.fleet.poll_reports(now);
        if reports.is_empty() {
            return;
        }
        let (recipients, incarnation) = (self.peer_addresses(), self.gossip.incarnation());
        for report in reports {
            self.seq = self.seq.wrapping_add(1);
            let payload = FleetPayload::Report { name: self.name.clone(), report };
            self.queue_datagram(&recipients, incarnation, self.seq, payload, out);
        }
    }

    fn queue_datagram(
        &mut self,
        recipients: &[SocketAddr],
        incarnation: u32,
        seq: u32,
        payload: FleetPayload,
        out: &mut SendQueue,
    ) {
        let start = out.bytes().len();
        let datagram = FleetDatagram { from: self.address, incarnation, seq, payload };
        if datagram.encode(&self.keys, out.bytes()).is_err() {
            self.counts.unsent += 1;
            return;
        }
        self.counts.sent_bytes += (out.bytes().len() - start) as u64 * recipients.len() as u64;
        for address in recipients {
            out.queue(start, *address);
        }
    }

    fn peer_addresses(&self) -> Vec<SocketAddr> {
        self.peers.iter().filter(|(_, peer)| peer.lost_at.is_none()).map(|(address, _)| *address).collect()
    }

    fn peer_name(&self, id: u64) -> String {
        let peer = self.peers.iter().find(|(address, _)| peer_id(**address) == id);
        peer.map(|(address, peer)| peer.display_name(*address)).unwrap_or_default()
    }

    fn record_change(&mut self, address: SocketAddr, transition: PeerTransition) {
        if let Some(peer) = self.peers.get(&address) {
            self.changes.push(PeerChange { name: peer.display_name(address), address, transition });
        }
    }
}

impl PeerRecord {
    fn new(incarnation: u32, now: Time) -> Self {
        Self {
            incarnation,
            name: String::new(),
            is_join_reported: false,
            is_silent: false,
            lost_at: None,
            expected_by: None,
            earlier_counts: [(0, 0); 2],
            counts_marked_at: now,
        }
    }

    fn display_name(&self, address: SocketAddr) -> String {
        if self.name.is_empty() { address.to_string() } else { self.name.clone() }
    }
}

/// Returns the number of a balancer, the same for all observers.
pub(super) fn peer_id(address: SocketAddr) -> u64 {
    hash(address.to_string().as_bytes())
}

/// The maximum number of incarnations tracked for replays.
const MAX_TRACKED_INCARNATIONS: usize = 4096;

/// The interval of maintenance.
const MAINTENANCE_INTERVAL: Duration = Duration::from_millis(50);

/// The time within which a balancer from before a handoff must be seen; else it is lost.
const REJOIN_TIMEOUT: Duration = Duration::from_secs(5);

/// The time without reports after which a live balancer counts as silent.
const SILENCE_LIMIT: Duration = Duration::from_secs(2);

/// The loss rate covers the last ten to twenty seconds.
const LOSS_RATE_PERIOD: Duration = Duration::from_secs(10);
