//! A daemon with its keys. It opens received datagrams and drops forged and replayed ones; it seals the
//! datagrams to send.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use plimsoll_brain::Time;
use plimsoll_brain::lottery::{
    Change, Config, Daemon, Key, Message, Offer, Report, Sources, Standing, Table, To,
};
use plimsoll_wire::rfs::{Encode as _, Gossip as Told, Keys, Opened, Recent, Refused, Replay, Role, Seen};
use tokio::net::UdpSocket;

use super::gossip::{self, Gossip, News, Node};
use super::socket::{BATCH, Outbox};
use super::twin::Twin;
use super::{Order, Service, Settings, Statistics, draw_key, incarnation};

/// The time that a silent member stays in the table for clients.
const FORGET: Duration = Duration::from_secs(10);

/// The minimum burst of requests of a source, at any rate. A part of the table counts as ten requests; with
/// less, daemons could never read each other's tables.
const LEAST_BURST: u32 = 40;

/// The interval of checks for daemons that are alive but silent.
const LOOK: Duration = Duration::from_secs(1);

/// The maximum number of incarnations tracked for replays of gossip.
const LIVES: usize = 4096;

/// The limit on gossip datagrams per second from one source: four times as many as a daemon receives from all
/// others, at any cluster size. The response to each may be ten times as long.
const GOSSIP: u32 = 300;

/// The limit on join requests among them, from one source or to one address of the response. Each response
/// contains all known members.
const JOINS: u32 = 50;

/// The maximum number of seconds that an incarnation may be in the future, as clocks differ. Without a limit,
/// a single datagram with a member's highest possible incarnation would exclude that member forever.
pub(super) const AHEAD: u32 = 24 * 3600;

/// The minimum interval between two log lines about implausible incarnations.
const COMPLAINT: Duration = Duration::from_secs(60);

pub(super) struct Desk {
    member: u16,
    address: SocketAddr,
    keys: Keys,
    /// Each key for clients, to seal the responses to requests under it.
    askers: Vec<Keys>,
    gossips: Sources,
    joins: Sources,
    /// The time of the last log line about an implausible incarnation.
    complained: Option<std::time::Instant>,
    replay: Replay,
    recent: Recent,
    daemon: Daemon,
    gossip: Gossip,
    looked: Time,
    /// The source address of each member's latest report.
    homes: HashMap<u16, SocketAddr>,
    twin: Twin,
    services: Vec<Service>,
    /// The configured addresses of peers.
    peers: Vec<SocketAddr>,
    group: Option<SocketAddr>,
    outbox: Outbox,
    statistics: Statistics,
    /// The number of gossip datagrams over the limit.
    limited: u64,
}

impl Desk {
    /// Creates a daemon that joins at time 0, and announces that it is at `address`. No other process knows
    /// `secret`.
    pub(super) fn new(settings: &Settings, address: SocketAddr, secret: Key) -> Self {
        let offers = offers(&settings.services);
        let (member, incarnation) = (settings.member, settings.incarnation);
        let mut config = Config::new(member, incarnation, address, offers, draw_key(&settings.keys));
        (config.secret, config.seed) = (secret, secret.hash(b"reports"));
        config.ttl = millis(settings.ttl);
        config.slow_start = settings.slow_start;
        config.forget = Some(FORGET);
        config.multicast = settings.multicast.is_some();
        (config.rate, config.burst) = (settings.rate, burst(settings.rate));
        let mut daemon = Daemon::new(config, Time(0));
        for service in settings.services.iter().filter(|service| service.check.is_some()) {
            // Services are not ready before their first check.
            daemon.set_ready(Time(0), service.id, false);
        }
        let peers = settings.peers.iter().copied().filter(|peer| *peer != address).collect();
        let own = Node { member, life: incarnation, address };
        Self {
            member,
            address,
            askers: askers(&settings.keys),
            keys: settings.keys.clone(),
            gossips: Sources::new(secret, GOSSIP, 2 * GOSSIP),
            joins: Sources::new(secret, JOINS, 2 * JOINS),
            complained: None,
            // There are no more member numbers.
            replay: Replay::new(usize::from(u16::MAX) + 1),
            recent: Recent::new(LIVES),
            daemon,
            gossip: Gossip::new(own, secret.hash(b"gossip"), Time(0)),
            looked: Time(0),
            homes: HashMap::new(),
            twin: Twin::default(),
            services: settings.services.clone(),
            peers,
            group: settings.multicast,
            outbox: Outbox::default(),
            statistics: Statistics::default(),
            limited: 0,
        }
    }

    /// Notes the time that the next datagram has waited since its arrival.
    pub(super) fn late(&mut self, now: Time, waited: Duration) {
        self.daemon.note_lag(now, waited);
    }

    /// Processes a received datagram.
    pub(super) fn take(&mut self, now: Time, from: SocketAddr, bytes: &[u8]) {
        self.statistics.received += 1;
        if let Err(refused) = self.keys.open(bytes).and_then(|opened| self.hear(now, from, opened)) {
            let count = match refused {
                Refused::Forged => &mut self.statistics.forged,
                Refused::UnknownKey(_) => &mut self.statistics.unknown_key,
                Refused::Misused => &mut self.statistics.misused,
                Refused::Size(_) | Refused::Malformed(_) => &mut self.statistics.malformed,
            };
            *count += 1;
        }
    }

    fn hear(&mut self, now: Time, from: SocketAddr, opened: Opened<'_>) -> Result<(), Refused> {
        opened.entitled()?;
        if let Some(told) = opened.gossip()? {
            return self.told(now, from, &told);
        }
        let mut message = opened.message()?;
        let believed = match &mut message {
            Message::Report(report) => {
                report.heard.retain(|said| self.plausible(said.member, said.incarnation));
                self.plausible(report.member, report.incarnation) && self.fresh(from, report)
            }
            Message::Table(Table { members, .. }) => {
                members.retain(|listed| self.plausible(listed.member, listed.incarnation));
                true
            }
            _ => true,
        };
        if believed {
            self.daemon.handle_by(now, from, opened.client(), message);
        }
        Ok(())
    }

    /// Processes gossip of another daemon.
    fn told(&mut self, now: Time, from: SocketAddr, told: &Told) -> Result<(), Refused> {
        let about = gossip::about(&told.said).ok_or(Refused::Malformed("gossip that says nothing"))?;
        if !self.plausible(told.member, about.latest) {
            return Ok(());
        }
        // A daemon with this daemon's number is detected by its gossip.
        match self.recent.see(gossip::life(&told.said), told.seq) {
            Seen::Fresh if self.bears(now, from, about.joins) => self.gossip.take(now, &told.said),
            Seen::Fresh => self.limited += 1,
            Seen::Stale | Seen::NoPlace => self.statistics.replayed += 1,
        }
        Ok(())
    }

    /// Returns `true` if a source is within the limits on gossip. The response to a join request goes to the
    /// address in the request, which may differ from the source if a host has several. Then that address
    /// counts, too.
    fn bears(&mut self, now: Time, from: SocketAddr, joins: Option<SocketAddr>) -> bool {
        let joins = joins.is_none_or(|told| {
            let there = told.ip() == from.ip() || self.joins.admit(now, told.ip(), 1);
            there && self.joins.admit(now, from.ip(), 1)
        });
        joins && self.gossips.admit(now, from.ip(), 1)
    }

    /// Returns `true` if an incarnation is plausible within the tolerance for clocks.
    fn plausible(&mut self, member: u16, life: u32) -> bool {
        let latest = incarnation().saturating_add(AHEAD);
        if life <= latest {
            return true;
        }
        self.statistics.implausible += 1;
        if self.complained.is_none_or(|at| at.elapsed() >= COMPLAINT) {
            self.complained = Some(std::time::Instant::now());
            tracing::warn!(
                "what is said of or by member {member} is dropped: a life that begins {} s from now, by the clock of this host; set \
                 the clocks of both",
                life - incarnation().min(life)
            );
        }
        false
    }

    /// Returns `true` for a new report of another daemon.
    fn fresh(&mut self, from: SocketAddr, report: &Report) -> bool {
        // The daemon's own reports return through the multicast group, or late from an earlier incarnation.
        if report.member == self.member {
            return false;
        }
        if self.replay.see(report) == Seen::Fresh {
            self.homes.insert(report.member, from);
            return true;
        }
        self.statistics.replayed += 1;
        if let Some(home) = self.homes.get(&report.member).filter(|home| **home != from) {
            self.statistics.strays += 1;
            self.twin.stray(report.member, *home, from);
        }
        false
    }

    /// Performs the work that is due. Its delay shows how much this daemon may trust its view of the next
    /// datagrams.
    pub(super) fn wake(&mut self, now: Time) {
        if self.daemon.poll_timeout().is_some_and(|due| due <= now) {
            self.daemon.handle_timeout(now);
        }
    }

    /// Maintains the membership. Callers read the received datagrams first, as they may contain the awaited
    /// responses.
    pub(super) fn tend(&mut self, now: Time) {
        if self.gossip.next() <= now {
            let known = self.peers.iter().copied().chain(self.daemon.daemons());
            self.gossip.wake(now, known);
        }
        while let Some(news) = self.gossip.poll_news() {
            match news {
                News::Up(node) => self.daemon.alive(now, node.member, node.life, node.address),
                News::Down(node) => self.daemon.member_down(node.member, node.life),
                News::Renewed(life) => self.daemon.rejoin(now, life),
            }
        }
        if now.since(self.looked) >= LOOK {
            self.looked = now;
            for node in self.gossip.others() {
                self.daemon.alive(now, node.member, node.life, node.address);
            }
            let own = Node { member: self.member, life: self.gossip.life(), address: self.address };
            let twin = self.twin.look(now, own, self.gossip.others());
            self.statistics.twin = twin.by;
            if let Some(life) = twin.renew {
                self.gossip.renew(now, life);
            }
        }
    }

    /// Returns the time at which work is next due.
    pub(super) fn due(&self) -> Option<Time> {
        let due = self.gossip.next().min(self.looked + LOOK);
        Some(self.daemon.poll_timeout().map_or(due, |other| other.min(due)))
    }

    /// Executes a command.
    pub(super) fn obey(&mut self, now: Time, order: Order) {
        match order {
            Order::Load { service, load, in_flight } => self.daemon.set_load(now, service, load, in_flight),
            Order::Ready { service, ready } => self.daemon.set_ready(now, service, ready),
            Order::Drain(drain) => self.daemon.drain(now, drain),
            Order::Hold { service, held } => drop(self.daemon.hold(now, service, held)),
            Order::Change(settings) => self.change(now, *settings),
            Order::Leave => {
                self.daemon.leave(now);
                self.gossip.leave(now);
            }
            // The receiver may be gone.
            Order::Tell(tell) => drop(tell.send(self.statistics(now))),
            Order::Show(show) => drop(show.send((self.statistics(now), self.daemon.view(now)))),
        }
    }

    fn statistics(&self, now: Time) -> Statistics {
        let draining = matches!(self.daemon.state(), Standing::Draining | Standing::Leaving);
        let (mut lots, alive) = (self.daemon.statistics(now), self.gossip.others().count());
        lots.limited += self.limited;
        Statistics { lots, draining, alive, ..self.statistics }
    }

    /// Applies other settings.
    fn change(&mut self, now: Time, settings: Settings) {
        let change = Change {
            offers: offers(&settings.services),
            key: draw_key(&settings.keys),
            ttl: millis(settings.ttl),
            slow_start: settings.slow_start,
            rate: settings.rate,
            burst: burst(settings.rate),
        };
        // Others accept a changed offer only from a later incarnation, and the membership must have the same
        // one.
        let life = self.gossip.life();
        if !self.daemon.change(now, change.clone(), life) {
            self.gossip.renew(now, life);
            self.daemon.change(now, change, self.gossip.life());
        }
        for service in settings.services.iter().filter(|service| service.check.is_some()) {
            let known = self.services.iter().find(|before| before.id == service.id);
            if known.is_none_or(|before| before.check.is_none()) {
                self.daemon.set_ready(now, service.id, false);
            }
        }
        for service in settings.services.iter().filter(|service| service.check.is_none()) {
            self.daemon.set_ready(now, service.id, true);
        }
        self.peers = settings.peers.into_iter().filter(|peer| *peer != self.address).collect();
        self.askers = askers(&settings.keys);
        (self.keys, self.services) = (settings.keys, settings.services);
    }

    /// Sends the pending datagrams.
    pub(super) fn flush(&mut self, socket: &UdpSocket) {
        while self.write() {
            if self.outbox.len() >= BATCH {
                self.send(socket);
            }
        }
        self.send(socket);
    }

    /// Returns the pending datagrams instead of sending them, for tests without sockets.
    #[cfg(test)]
    pub(super) fn letters(&mut self) -> Vec<(SocketAddr, Vec<u8>)> {
        while self.write() {}
        let mut letters = Vec::new();
        self.outbox.empty(|to, bytes| letters.push((to, bytes.to_vec())));
        letters
    }

    /// Seals the next pending datagram. Returns `false` if there is none.
    fn write(&mut self) -> bool {
        let start = self.outbox.bytes().len();
        if let Some((to, message)) = self.daemon.poll_transmit() {
            let keys = match to {
                To::Asker(_, key) => self.askers.iter().find(|keys| keys.ids().next() == Some(key)),
                To::Address(_) | To::Everyone => Some(&self.keys),
            };
            // A request under a removed key is not answered.
            let written = keys.is_some_and(|keys| message.encode(keys, self.outbox.bytes()).is_ok());
            match to {
                _ if !written => self.statistics.unsent += 1,
                To::Address(address) | To::Asker(address, _) => self.outbox.post(start, address),
                To::Everyone => self.everyone(start),
            }
            return true;
        }
        let Some((to, datagram)) = self.gossip.poll_transmit() else { return false };
        match datagram.encode(&self.keys, self.outbox.bytes()) {
            Ok(()) => self.outbox.post(start, to),
            Err(_) => self.statistics.unsent += 1,
        }
        true
    }

    /// Sends to the multicast group if there is one, to the configured peers, and without a group to all
    /// other known daemons.
    fn everyone(&mut self, start: usize) {
        if let Some(group) = self.group {
            self.outbox.post(start, group);
        }
        self.peers.iter().for_each(|peer| self.outbox.post(start, *peer));
        if self.group.is_none() {
            let others = self.daemon.daemons().filter(|other| !self.peers.contains(other));
            others.for_each(|other| self.outbox.post(start, other));
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

fn askers(keys: &Keys) -> Vec<Keys> {
    keys.ids_of(Role::Client).filter_map(|id| keys.answering(id)).collect()
}

fn offers(services: &[Service]) -> Vec<Offer> {
    let offer = |service: &Service| Offer {
        service: service.id,
        capacity: service.capacity,
        endpoint: service.server,
        info: Arc::clone(&service.info),
    };
    services.iter().map(offer).collect()
}

fn burst(rate: u32) -> u32 {
    rate.div_ceil(5).max(LEAST_BURST)
}

fn millis(ttl: Duration) -> u16 {
    u16::try_from(ttl.as_millis()).unwrap_or(u16::MAX)
}
