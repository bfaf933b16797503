//! A daemon with its keys. It opens received datagrams and drops forged and replayed ones; it seals the
//! datagrams to send.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use plimsoll_brain::Time;
use plimsoll_brain::lottery::{
    LotteryMessage, LotteryNode, MessageTarget, NodeConfig, NodeConfigChange, NodeReport, NodeState,
    ServiceOffer, SipHashKey, SourceLimits, TablePart,
};
use plimsoll_wire::rfs::{
    DatagramDecodeError, EncodeDatagram as _, GossipDatagram as Told, GossipReplayFilter, KeyRing, KeyRole,
    OpenedDatagram, ReplayVerdict, ReportReplayFilter,
};
use tokio::net::UdpSocket;

use super::duplicate_id::DuplicateDetector;
use super::gossip::{self, MembershipEvent, NodeIdentity, SwimMembership};
use super::socket::{MAX_BATCH, SendQueue};
use super::{DaemonCommand, DaemonSettings, DaemonStatistics, LotteryService, draw_key, incarnation};

/// The time that a silent member stays in the table for clients.
const FORGET_AFTER: Duration = Duration::from_secs(10);

/// The minimum burst of requests of a source, at any rate. A part of the table counts as ten requests; with
/// less, daemons could never read each other's tables.
const MIN_BURST: u32 = 40;

/// The interval of checks for daemons that are alive but silent.
const SILENCE_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// The maximum number of incarnations tracked for replays of gossip.
const MAX_TRACKED_INCARNATIONS: usize = 4096;

/// The limit on gossip datagrams per second from one source: four times as many as a daemon receives from all
/// others, at any cluster size. The response to each may be ten times as long.
const MAX_GOSSIP_RATE: u32 = 300;

/// The limit on join requests among them, from one source or to one address of the response. Each response
/// contains all known members.
const MAX_JOIN_RATE: u32 = 50;

/// The maximum number of seconds that an incarnation may be in the future, as clocks differ. Without a limit,
/// a single datagram with a member's highest possible incarnation would exclude that member forever.
pub(super) const MAX_CLOCK_SKEW_SECONDS: u32 = 24 * 3600;

/// The minimum interval between two log lines about implausible incarnations.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

pub(super) struct DaemonNode {
    member: u16,
    address: SocketAddr,
    keys: KeyRing,
    /// Each key for clients, to seal the responses to requests under it.
    client_keys: Vec<KeyRing>,
    gossip_limits: SourceLimits,
    join_limits: SourceLimits,
    /// The time of the last log line about an implausible incarnation.
    last_logged_at: Option<std::time::Instant>,
    report_replay: ReportReplayFilter,
    gossip_replay: GossipReplayFilter,
    daemon: LotteryNode,
    gossip: SwimMembership,
    last_check_at: Time,
    /// The source address of each member's latest report.
    report_sources: HashMap<u16, SocketAddr>,
    duplicates: DuplicateDetector,
    services: Vec<LotteryService>,
    /// The configured addresses of peers.
    peers: Vec<SocketAddr>,
    multicast: Option<SocketAddr>,
    outbox: SendQueue,
    statistics: DaemonStatistics,
    /// The number of gossip datagrams over the limit.
    limited: u64,
}

impl DaemonNode {
    /// Creates a daemon that joins at time 0, and announces that it is at `address`. No other process knows
    /// `secret`.
    pub(super) fn new(settings: &DaemonSettings, address: SocketAddr, secret: SipHashKey) -> Self {
        let offers = offers(&settings.services);
        let (member, incarnation) = (settings.member, settings.incarnation);
        let mut config = NodeConfig::new(member, incarnation, address, offers, draw_key(&settings.keys));
        (config.secret, config.seed) = (secret, secret.hash(b"reports"));
        config.ttl = millis(settings.ttl);
        config.slow_start = settings.slow_start;
        config.forget_after = Some(FORGET_AFTER);
        config.multicast = settings.multicast.is_some();
        (config.rate, config.burst) = (settings.rate, burst(settings.rate));
        let mut daemon = LotteryNode::new(config, Time(0));
        for service in settings.services.iter().filter(|service| service.check.is_some()) {
            // Services are not ready before their first check.
            daemon.set_ready(Time(0), service.id, false);
        }
        let peers = settings.peers.iter().copied().filter(|peer| *peer != address).collect();
        let identity = NodeIdentity { member, incarnation, address };
        Self {
            member,
            address,
            client_keys: client_key_sets(&settings.keys),
            keys: settings.keys.clone(),
            gossip_limits: SourceLimits::new(secret, MAX_GOSSIP_RATE, 2 * MAX_GOSSIP_RATE),
            join_limits: SourceLimits::new(secret, MAX_JOIN_RATE, 2 * MAX_JOIN_RATE),
            last_logged_at: None,
            // There are no more member numbers.
            report_replay: ReportReplayFilter::new(usize::from(u16::MAX) + 1),
            gossip_replay: GossipReplayFilter::new(MAX_TRACKED_INCARNATIONS),
            daemon,
            gossip: SwimMembership::new(identity, secret.hash(b"gossip"), Time(0)),
            last_check_at: Time(0),
            report_sources: HashMap::new(),
            duplicates: DuplicateDetector::default(),
            services: settings.services.clone(),
            peers,
            multicast: settings.multicast,
            outbox: SendQueue::default(),
            statistics: DaemonStatistics::default(),
            limited: 0,
        }
    }

    /// Notes the time that the next datagram has waited since its arrival.
    pub(super) fn record_delay(&mut self, now: Time, delay: Duration) {
        self.daemon.note_lag(now, delay);
    }

    /// Processes a received datagram.
    pub(super) fn receive(&mut self, now: Time, from: SocketAddr, bytes: &[u8]) {
        self.statistics.received += 1;
        if let Err(error) =
            self.keys.open(bytes).and_then(|datagram| self.process_message(now, from, datagram))
        {
            let count = match error {
                DatagramDecodeError::Forged => &mut self.statistics.forged,
                DatagramDecodeError::UnknownKey(_) => &mut self.statistics.unknown_key,
                DatagramDecodeError::NotPermitted => &mut self.statistics.misused,
                DatagramDecodeError::Size(_) | DatagramDecodeError::Malformed(_) => {
                    &mut self.statistics.malformed
                }
            };
            *count += 1;
        }
    }

    fn process_message(
        &mut self,
        now: Time,
        from: SocketAddr,
        datagram: OpenedDatagram<'_>,
    ) -> Result<(), DatagramDecodeError> {
        datagram.check_permission()?;
        if let Some(gossip_datagram) = datagram.gossip()? {
            return self.process_gossip(now, from, &gossip_datagram);
        }
        let mut message = datagram.message()?;
        let is_credible = match &mut message {
            LotteryMessage::Report(report) => {
                report.heard.retain(|entry| self.is_plausible(entry.member, entry.incarnation));
                self.is_plausible(report.member, report.incarnation) && self.is_new_report(from, report)
            }
            LotteryMessage::Table(TablePart { members, .. }) => {
                members.retain(|entry| self.is_plausible(entry.member, entry.incarnation));
                true
            }
            _ => true,
        };
        if is_credible {
            self.daemon.handle_with_key(now, from, datagram.client(), message);
        }
        Ok(())
    }

    /// Processes gossip of another daemon.
    fn process_gossip(
        &mut self,
        now: Time,
        from: SocketAddr,
        datagram: &Told,
    ) -> Result<(), DatagramDecodeError> {
        let subject = gossip::subject(&datagram.payload)
            .ok_or(DatagramDecodeError::Malformed("gossip that says nothing"))?;
        if !self.is_plausible(datagram.member, subject.latest) {
            return Ok(());
        }
        // A daemon with this daemon's number is detected by its gossip.
        match self.gossip_replay.check(gossip::sender_incarnation(&datagram.payload), datagram.seq) {
            ReplayVerdict::Fresh if self.is_within_limits(now, from, subject.joins) => {
                self.gossip.receive(now, &datagram.payload)
            }
            ReplayVerdict::Fresh => self.limited += 1,
            ReplayVerdict::Stale | ReplayVerdict::Untracked => self.statistics.replayed += 1,
        }
        Ok(())
    }

    /// Returns `true` if a source is within the limits on gossip. The response to a join request goes to the
    /// address in the request, which may differ from the source if a host has several. Then that address
    /// counts, too.
    fn is_within_limits(&mut self, now: Time, from: SocketAddr, joining_address: Option<SocketAddr>) -> bool {
        let join_admitted = joining_address.is_none_or(|address| {
            let source_admitted = address.ip() == from.ip() || self.join_limits.admit(now, address.ip(), 1);
            source_admitted && self.join_limits.admit(now, from.ip(), 1)
        });
        join_admitted && self.gossip_limits.admit(now, from.ip(), 1)
    }

    /// Returns `true` if an incarnation is plausible within the tolerance for clocks.
    fn is_plausible(&mut self, member: u16, claimed_incarnation: u32) -> bool {
        let latest = incarnation().saturating_add(MAX_CLOCK_SKEW_SECONDS);
        if claimed_incarnation <= latest {
            return true;
        }
        self.statistics.implausible += 1;
        if self.last_logged_at.is_none_or(|at| at.elapsed() >= LOG_INTERVAL) {
            self.last_logged_at = Some(std::time::Instant::now());
            tracing::warn!(
                "what is said of or by member {member} is dropped: a life that begins {} s from now, by the \
                 clock of this host; set \
                 the clocks of both",
                claimed_incarnation - incarnation().min(claimed_incarnation)
            );
        }
        false
    }

    /// Returns `true` for a new report of another daemon.
    fn is_new_report(&mut self, from: SocketAddr, report: &NodeReport) -> bool {
        // The daemon's own reports return through the multicast group, or late from an earlier incarnation.
        if report.member == self.member {
            return false;
        }
        if self.report_replay.check(report) == ReplayVerdict::Fresh {
            self.report_sources.insert(report.member, from);
            return true;
        }
        self.statistics.replayed += 1;
        if let Some(known_address) =
            self.report_sources.get(&report.member).filter(|known_address| **known_address != from)
        {
            self.statistics.stray_reports += 1;
            self.duplicates.record_stray(report.member, *known_address, from);
        }
        false
    }

    /// Performs the work that is due. Its delay shows how much this daemon may trust its view of the next
    /// datagrams.
    pub(super) fn run_due(&mut self, now: Time) {
        if self.daemon.poll_timeout().is_some_and(|due| due <= now) {
            self.daemon.handle_timeout(now);
        }
    }

    /// Maintains the membership. Callers read the received datagrams first, as they may contain the awaited
    /// responses.
    pub(super) fn maintain(&mut self, now: Time) {
        if self.gossip.next_due() <= now {
            let addresses = self.peers.iter().copied().chain(self.daemon.node_addresses());
            self.gossip.run_due(now, addresses);
        }
        while let Some(event) = self.gossip.poll_event() {
            match event {
                MembershipEvent::Up(node) => {
                    self.daemon.member_alive(now, node.member, node.incarnation, node.address)
                }
                MembershipEvent::Down(node) => self.daemon.member_down(node.member, node.incarnation),
                MembershipEvent::Renewed(incarnation) => self.daemon.rejoin(now, incarnation),
            }
        }
        if now.since(self.last_check_at) >= SILENCE_CHECK_INTERVAL {
            self.last_check_at = now;
            for node in self.gossip.others() {
                self.daemon.member_alive(now, node.member, node.incarnation, node.address);
            }
            let identity = NodeIdentity {
                member: self.member,
                incarnation: self.gossip.incarnation(),
                address: self.address,
            };
            let verdict = self.duplicates.check(now, identity, self.gossip.others());
            self.statistics.duplicate = verdict.by;
            if let Some(incarnation) = verdict.renew_after {
                self.gossip.renew_after(now, incarnation);
            }
        }
    }

    /// Returns the time at which work is next due.
    pub(super) fn next_due(&self) -> Option<Time> {
        let due = self.gossip.next_due().min(self.last_check_at + SILENCE_CHECK_INTERVAL);
        Some(self.daemon.poll_timeout().map_or(due, |timeout| timeout.min(due)))
    }

    /// Executes a command.
    pub(super) fn execute(&mut self, now: Time, command: DaemonCommand) {
        match command {
            DaemonCommand::Load { service, load, in_flight } => {
                self.daemon.set_load(now, service, load, in_flight)
            }
            DaemonCommand::Ready { service, ready } => self.daemon.set_ready(now, service, ready),
            DaemonCommand::Drain(drain) => self.daemon.set_draining(now, drain),
            DaemonCommand::Hold { service, held } => drop(self.daemon.hold(now, service, held)),
            DaemonCommand::Reconfigure(settings) => self.reconfigure(now, *settings),
            DaemonCommand::Leave => {
                self.daemon.leave(now);
                self.gossip.leave(now);
            }
            // The receiver may be gone.
            DaemonCommand::ReadStatistics(reply) => drop(reply.send(self.statistics(now))),
            DaemonCommand::ReadView(reply) => drop(reply.send((self.statistics(now), self.daemon.view(now)))),
        }
    }

    fn statistics(&self, now: Time) -> DaemonStatistics {
        let draining = matches!(self.daemon.state(), NodeState::Draining | NodeState::Leaving);
        let (mut protocol, alive) = (self.daemon.statistics(now), self.gossip.others().count());
        protocol.rate_limited += self.limited;
        DaemonStatistics { protocol, draining, alive, ..self.statistics }
    }

    /// Applies other settings.
    fn reconfigure(&mut self, now: Time, settings: DaemonSettings) {
        let change = NodeConfigChange {
            offers: offers(&settings.services),
            key: draw_key(&settings.keys),
            ttl: millis(settings.ttl),
            slow_start: settings.slow_start,
            rate: settings.rate,
            burst: burst(settings.rate),
        };
        // Others accept a changed offer only from a later incarnation, and the membership must have the same
        // one.
        let incarnation = self.gossip.incarnation();
        if !self.daemon.apply_change(now, change.clone(), incarnation) {
            self.gossip.renew_after(now, incarnation);
            self.daemon.apply_change(now, change, self.gossip.incarnation());
        }
        for service in settings.services.iter().filter(|service| service.check.is_some()) {
            let previous = self.services.iter().find(|candidate| candidate.id == service.id);
            if previous.is_none_or(|previous| previous.check.is_none()) {
                self.daemon.set_ready(now, service.id, false);
            }
        }
        for service in settings.services.iter().filter(|service| service.check.is_none()) {
            self.daemon.set_ready(now, service.id, true);
        }
        self.peers = settings.peers.into_iter().filter(|peer| *peer != self.address).collect();
        self.client_keys = client_key_sets(&settings.keys);
        (self.keys, self.services) = (settings.keys, settings.services);
    }

    /// Sends the pending datagrams.
    pub(super) fn flush(&mut self, socket: &UdpSocket) {
        while self.seal_next() {
            if self.outbox.len() >= MAX_BATCH {
                self.send(socket);
            }
        }
        self.send(socket);
    }

    /// Returns the pending datagrams instead of sending them, for tests without sockets.
    #[cfg(test)]
    pub(super) fn take_datagrams(&mut self) -> Vec<(SocketAddr, Vec<u8>)> {
        while self.seal_next() {}
        let mut datagrams = Vec::new();
        self.outbox.drain(|to, bytes| datagrams.push((to, bytes.to_vec())));
        datagrams
    }

    /// Seals the next pending datagram. Returns `false` if there is none.
    fn seal_next(&mut self) -> bool {
        let start = self.outbox.bytes().len();
        if let Some((to, message)) = self.daemon.poll_transmit() {
            let keys = match to {
                MessageTarget::KeyedClient(_, key) => {
                    self.client_keys.iter().find(|keys| keys.ids().next() == Some(key))
                }
                MessageTarget::Address(_) | MessageTarget::AllNodes => Some(&self.keys),
            };
            // A request under a removed key is not answered.
            let encoded = keys.is_some_and(|keys| message.encode(keys, self.outbox.bytes()).is_ok());
            match to {
                _ if !encoded => self.statistics.unsent += 1,
                MessageTarget::Address(address) | MessageTarget::KeyedClient(address, _) => {
                    self.outbox.queue(start, address)
                }
                MessageTarget::AllNodes => self.broadcast(start),
            }
            return true;
        }
        let Some((to, datagram)) = self.gossip.poll_transmit() else { return false };
        match datagram.encode(&self.keys, self.outbox.bytes()) {
            Ok(()) => self.outbox.queue(start, to),
            Err(_) => self.statistics.unsent += 1,
        }
        true
    }

    /// Sends to the multicast group if there is one, to the configured peers, and without a group to all
    /// other known daemons.
    fn broadcast(&mut self, start: usize) {
        if let Some(group) = self.multicast {
            self.outbox.queue(start, group);
        }
        self.peers.iter().for_each(|peer| self.outbox.queue(start, *peer));
        if self.multicast.is_none() {
            let others = self.daemon.node_addresses().filter(|other| !self.peers.contains(other));
            others.for_each(|other| self.outbox.queue(start, other));
        }
    }

    fn send(&mut self, socket: &UdpSocket) {
        let count = self.outbox.len();
        if count > 0 {
            let sent = self.outbox.send(socket);
            self.statistics.sent += sent as u64;
            self.statistics.unsent += (count - sent) as u64;
        }
    }
}

fn client_key_sets(keys: &KeyRing) -> Vec<KeyRing> {
    keys.ids_for_role(KeyRole::Client).filter_map(|id| keys.client_key(id)).collect()
}

fn offers(services: &[LotteryService]) -> Vec<ServiceOffer> {
    let offer = |service: &LotteryService| ServiceOffer {
        service: service.id,
        capacity: service.capacity,
        endpoint: service.server,
        info: Arc::clone(&service.info),
    };
    services.iter().map(offer).collect()
}

fn burst(rate: u32) -> u32 {
    rate.div_ceil(5).max(MIN_BURST)
}

fn millis(ttl: Duration) -> u16 {
    u16::try_from(ttl.as_millis()).unwrap_or(u16::MAX)
}
