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
    recent: GossipReplayFilter,
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
    life: u32,
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
        life: u32,
        seed: u64,
        now: Time,
    ) -> Self {
        let own = peer_id(address);
        let node = NodeIdentity { member: own as u16, incarnation: life, address };
        let fleet = Fleet::new(fleet::FleetSettings {
            own_id: own,
            interval: settings.interval,
            bytes_per_second: settings.bytes_per_second as f64,
            probers: settings.probers,
            share_retention: settings.forget_after,
        });
        Self {
            name: settings.name.clone(),
            address,
            keys: settings.keys.clone(),
            recent: GossipReplayFilter::new(MAX_TRACKED_INCARNATIONS),
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
        let there = self.peers.iter().filter(|(_, known)| known.lost_at.is_none() && known.is_join_reported);
        FleetHandoff {
            life: self.gossip.incarnation(),
            seqs: (self.seq, self.gossip.sequence()),
            others: there.map(|(address, known)| (*address, known.life, known.name.clone())).collect(),
            lost: self.lost_peers(now),
        }
    }

    /// Returns the lost balancers that keep their share of limits.
    fn lost_peers(&self, now: Time) -> Vec<LostPeer> {
        let known: BTreeMap<u64, (&SocketAddr, &PeerRecord)> =
            self.peers.iter().map(|one| (peer_id(*one.0), one)).collect();
        let lost = self.fleet.lost_peers().filter_map(|(id, since, groups)| {
            let (address, known) = known.get(&id)?;
            let age_ms = u64::try_from(now.since(since).as_millis()).unwrap_or(u64::MAX);
            Some(LostPeer { other: (**address, known.life, known.name.clone()), age_ms, groups })
        });
        lost.collect()
    }

    /// Continues as the balancer of a previous process: known balancers are not reported as joining.
    pub(super) fn restore(&mut self, past: FleetHandoff, now: Time) {
        self.seq = past.seqs.0;
        self.gossip.resume_sequence(past.seqs.1);
        for (address, life, name) in past.others {
            let known = PeerRecord {
                name,
                is_join_reported: true,
                expected_by: Some(now + REJOIN_TIMEOUT),
                ..PeerRecord::new(life, now)
            };
            self.peers.insert(address, known);
            self.fleet.peer_joined(peer_id(address), now);
        }
        for LostPeer { other: (address, life, name), age_ms, groups } in past.lost {
            let since = now - Duration::from_millis(age_ms);
            let known = PeerRecord {
                name,
                is_join_reported: true,
                lost_at: Some(since),
                ..PeerRecord::new(life, now)
            };
            self.peers.entry(address).or_insert(known);
            self.fleet.restore_lost_peer(peer_id(address), since, groups.into_iter(), now);
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
        let FleetDatagram { from, incarnation: life, seq, payload: says } = datagram;
        let kind: u64 = match says {
            FleetPayload::Membership(_) => 1,
            FleetPayload::Report { .. } | FleetPayload::Leave => 2,
        };
        let speaker = mix(peer_id(from) ^ mix(u64::from(life) << 8 | kind));
        if from == self.address || self.recent.check(speaker, seq) != ReplayVerdict::Fresh {
            self.counts.rejected += u64::from(from != self.address);
            return;
        }
        match says {
            FleetPayload::Membership(said) => self.gossip.receive(now, &said),
            FleetPayload::Report { name, report } => {
                // Membership decides which balancers exist: reports of an unknown one are dropped until it
                // appears there.
                let Some(known) = self.peers.get_mut(&from) else { return };
                if known.life != life || known.lost_at.is_some() {
                    return;
                }
                if known.name != name {
                    known.name = name;
                }
                if !std::mem::replace(&mut known.is_join_reported, true) {
                    self.record_change(from, PeerTransition::Joined);
                }
                self.fleet.receive_report(peer_id(from), seq, &report, now);
            }
            FleetPayload::Leave => {
                if self.peers.get(&from).is_some_and(|known| known.life == life) {
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
            MemberAction::Ejected(lasts) => self.fleet.record_ejection(group, member, lasts, now),
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
            let known = seeds.iter().copied().chain(self.peers.keys().copied());
            self.gossip.run_due(now, known.collect::<Vec<_>>().into_iter());
        }
        while let Some(news) = self.gossip.poll_event() {
            self.apply_membership(news, now);
        }
        let tends = now >= self.next_maintenance;
        if tends {
            self.next_maintenance = now + MAINTENANCE_INTERVAL;
            self.fleet.age_reports(now);
            self.detect_silence(now);
        }
        if now >= self.next_round {
            // Without others there are no reports to send, but the averages must be right when one joins.
            let others = self.peers.values().any(|known| known.lost_at.is_none());
            self.next_round =
                now + if others { self.interval } else { self.interval.max(MAINTENANCE_INTERVAL) };
            self.send_reports(now, out);
        }
        while let Some((to, datagram)) = self.gossip.poll_transmit() {
            let (life, seq) = (datagram.incarnation, datagram.seq);
            self.queue_datagram(&[to], life, seq, FleetPayload::Membership(datagram.payload), out);
        }
        tends
    }

    /// Returns the time at which work is next due.
    pub(super) fn next_due(&self) -> Time {
        self.gossip.next_due().min(self.next_round).min(self.next_maintenance)
    }

    /// Sends a farewell.
    pub(super) fn leave(&mut self, now: Time, out: &mut SendQueue) {
        let life = self.gossip.incarnation();
        // A datagram may be lost, three hardly ever are. They precede the membership's notice, after which
        // the balancer would be lost.
        for _ in 0..3 {
            self.seq = self.seq.wrapping_add(1);
            let to = self.peer_addresses();
            self.queue_datagram(&to, life, self.seq, FleetPayload::Leave, out);
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
    pub(super) fn poll_news(&mut self) -> Option<(FleetUpdate, String)> {
        let news = self.fleet.poll_update()?;
        let by = match news.kind {
            FleetUpdateKind::HealthChecked { by, .. } | FleetUpdateKind::Ejected { by, .. } => {
                self.peer_name(by)
            }
            FleetUpdateKind::ProbeDuty(_)
            | FleetUpdateKind::LoadReceived { .. }
            | FleetUpdateKind::LimitRaised => String::new(),
        };
        Some((news, by))
    }

    /// Returns the changes of other balancers' states.
    pub(super) fn take_changes(&mut self) -> Vec<PeerChange> {
        std::mem::take(&mut self.changes)
    }

    /// Returns the status of the fleet.
    pub(super) fn status(&self, now: Time) -> FleetStatus {
        let heard: BTreeMap<u64, fleet::PeerStats> =
            self.fleet.peer_stats(now).map(|one| (one.id, one)).collect();
        let balancer = |(address, known): (&SocketAddr, &PeerRecord)| {
            let heard = heard.get(&peer_id(*address));
            let ((came, missed), (had, had_not)) =
                (heard.map_or((0, 0), |one| (one.received, one.missed)), known.earlier_counts[0]);
            let (came_since, missed_since) = (came.saturating_sub(had), missed.saturating_sub(had_not));
            let state = match known {
                PeerRecord { lost_at: Some(_), .. } => "lost",
                PeerRecord { is_silent: true, .. } => "silent",
                _ => "up",
            };
            BalancerStatus {
                name: known.name.clone(),
                address: address.to_string(),
                state: state.to_owned(),
                age_seconds: heard.map_or(0.0, |one| one.age.as_secs_f64()),
                reports: came,
                loss: missed_since as f64 / (came_since + missed_since).max(1) as f64,
                groups: heard.map_or(0, |one| one.groups),
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

    fn apply_membership(&mut self, news: Member, now: Time) {
        match news {
            Member::Up(node) => {
                let known =
                    self.peers.entry(node.address).or_insert_with(|| PeerRecord::new(node.incarnation, now));
                known.expected_by = None;
                if known.life != node.incarnation || known.lost_at.is_some() {
                    *known = PeerRecord {
                        name: std::mem::take(&mut known.name),
                        ..PeerRecord::new(node.incarnation, now)
                    };
                }
                self.fleet.peer_joined(peer_id(node.address), now);
            }
            Member::Down(node) => {
                let Some(known) = self.peers.get_mut(&node.address) else { return };
                if known.life == node.incarnation && known.lost_at.is_none() {
                    known.lost_at = Some(now);
                    if known.is_join_reported {
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
        let missing =
            |(_, known): &(&SocketAddr, &mut PeerRecord)| known.expected_by.is_some_and(|by| by <= now);
        let missing: Vec<SocketAddr> = self
            .peers
            .iter_mut()
            .filter(missing)
            .map(|(address, known)| {
                (known.expected_by, known.lost_at) = (None, Some(now));
                *address
            })
            .collect();
        for address in missing {
            self.record_change(address, PeerTransition::Lost);
            self.fleet.peer_left(peer_id(address), false, now);
        }
        let heard: Vec<(u64, fleet::PeerStats)> =
            self.fleet.peer_stats(now).map(|one| (one.id, one)).collect();
        let mut changed = Vec::new();
        for (address, known) in &mut self.peers {
            let id = peer_id(*address);
            let Some((_, one)) = heard.iter().find(|(of, _)| *of == id) else { continue };
            if now.since(known.counts_marked_at) >= LOSS_RATE_PERIOD {
                known.counts_marked_at = now;
                known.earlier_counts = [known.earlier_counts[1], (one.received, one.missed)];
            }
            let silent = known.lost_at.is_none() && one.age >= SILENCE_LIMIT;
            if known.is_join_reported && known.lost_at.is_none() && silent != known.is_silent {
                changed.push((
                    *address,
                    if silent { PeerTransition::Silent } else { PeerTransition::ReportsResumed },
                ));
            }
            known.is_silent = silent;
        }
        for (address, what) in changed {
            self.record_change(address, what);
        }
        // The state of a lost balancer is dropped, and its address is no longer tried.
        self.peers.retain(|address, known| {
            known.lost_at.is_none() || heard.iter().any(|(of, _)| *of == peer_id(*address))
        });
    }

    fn send_reports(&mut self, now: Time, out: &mut SendQueue) {
        let reports = self.fleet.poll_reports(now);
        if reports.is_empty() {
            return;
        }
        let (to, life) = (self.peer_addresses(), self.gossip.incarnation());
        for report in reports {
            self.seq = self.seq.wrapping_add(1);
            let says = FleetPayload::Report { name: self.name.clone(), report };
            self.queue_datagram(&to, life, self.seq, says, out);
        }
    }

    fn queue_datagram(
        &mut self,
        to: &[SocketAddr],
        life: u32,
        seq: u32,
        says: FleetPayload,
        out: &mut SendQueue,
    ) {
        let start = out.bytes().len();
        let datagram = FleetDatagram { from: self.address, incarnation: life, seq, payload: says };
        if datagram.encode(&self.keys, out.bytes()).is_err() {
            self.counts.unsent += 1;
            return;
        }
        self.counts.sent_bytes += (out.bytes().len() - start) as u64 * to.len() as u64;
        for address in to {
            out.queue(start, *address);
        }
    }

    fn peer_addresses(&self) -> Vec<SocketAddr> {
        self.peers.iter().filter(|(_, known)| known.lost_at.is_none()).map(|(address, _)| *address).collect()
    }

    fn peer_name(&self, id: u64) -> String {
        let known = self.peers.iter().find(|(address, _)| peer_id(**address) == id);
        known.map(|(address, known)| known.display_name(*address)).unwrap_or_default()
    }

    fn record_change(&mut self, address: SocketAddr, what: PeerTransition) {
        if let Some(known) = self.peers.get(&address) {
            self.changes.push(PeerChange { name: known.display_name(address), address, transition: what });
        }
    }
}

impl PeerRecord {
    fn new(life: u32, now: Time) -> Self {
        Self {
            life,
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
