//! A daemon with its keys: what came is opened, and dropped if it is forged or was sent before; what is to go is sealed.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::Duration;

use plimsoll_brain::lottery::{Change, Config, Daemon, Message, Offer, Report, Standing, To};
use plimsoll_brain::{Time, mix};
use plimsoll_wire::rfs::{Encode as _, Keys, Opened, Recent, Refused, Replay, Seen};
use tokio::net::UdpSocket;

use super::gossip::{self, Gossip, News, Node};
use super::socket::{BATCH, Outbox};
use super::twin::Twin;
use super::{Order, Service, Settings, Statistics, draw_key};

/// How long a member that is not heard of any more stays in the table that clients are told of.
const FORGET: Duration = Duration::from_secs(10);

/// Requests at once that every source may ask, whatever the rate: a part of the table counts as ten, and daemons that could
/// not pay for it would never hear of one another.
const LEAST_BURST: u32 = 40;

/// Between two looks at who is there and was not heard of.
const LOOK: Duration = Duration::from_secs(1);

/// Lives whose gossip is told apart.
const LIVES: usize = 4096;

pub(super) struct Desk {
    member: u16,
    address: SocketAddr,
    keys: Keys,
    replay: Replay,
    recent: Recent,
    daemon: Daemon,
    gossip: Gossip,
    looked: Time,
    /// Where the latest report of each member came from.
    homes: HashMap<u16, SocketAddr>,
    twin: Twin,
    services: Vec<Service>,
    /// Told where they are by the configuration.
    peers: Vec<SocketAddr>,
    group: Option<SocketAddr>,
    outbox: Outbox,
    statistics: Statistics,
}

impl Desk {
    /// A daemon that joins at the beginning of its time, and tells the others that it is at `address`.
    pub(super) fn new(settings: &Settings, address: SocketAddr, seed: u64) -> Self {
        let offers = offers(&settings.services);
        let (member, incarnation) = (settings.member, settings.incarnation);
        let mut config = Config::new(member, incarnation, address, offers, draw_key(&settings.keys));
        config.seed = seed;
        config.ttl = millis(settings.ttl);
        config.slow_start = settings.slow_start;
        config.forget = Some(FORGET);
        (config.rate, config.burst) = (settings.rate, burst(settings.rate));
        let mut daemon = Daemon::new(config, Time(0));
        for service in settings.services.iter().filter(|service| service.check.is_some()) {
            // Not yet checked means not used.
            daemon.set_ready(Time(0), service.id, false);
        }
        let peers = settings.peers.iter().copied().filter(|peer| *peer != address).collect();
        let own = Node { member, life: incarnation, address };
        Self {
            member,
            address,
            keys: settings.keys.clone(),
            // There are no more numbers than that.
            replay: Replay::new(usize::from(u16::MAX) + 1),
            recent: Recent::new(LIVES),
            daemon,
            gossip: Gossip::new(own, mix(seed), Time(0)),
            looked: Time(0),
            homes: HashMap::new(),
            twin: Twin::default(),
            services: settings.services.clone(),
            peers,
            group: settings.multicast,
            outbox: Outbox::default(),
            statistics: Statistics::default(),
        }
    }

    /// A datagram came.
    pub(super) fn take(&mut self, now: Time, from: SocketAddr, bytes: &[u8]) {
        self.statistics.received += 1;
        if let Err(refused) = self.keys.open(bytes).and_then(|opened| self.hear(now, from, opened)) {
            let count = match refused {
                Refused::Forged => &mut self.statistics.forged,
                Refused::UnknownKey(_) => &mut self.statistics.unknown_key,
                Refused::Size(_) | Refused::Malformed(_) => &mut self.statistics.malformed,
            };
            *count += 1;
        }
    }

    fn hear(&mut self, now: Time, from: SocketAddr, opened: Opened<'_>) -> Result<(), Refused> {
        if let Some(said) = opened.gossip()? {
            // What a daemon of its own number says is news of that daemon.
            match self.recent.see(gossip::life(&said.said), said.seq) {
                Seen::Fresh => self.gossip.take(now, &said.said),
                Seen::Stale | Seen::NoPlace => self.statistics.replayed += 1,
            }
            return Ok(());
        }
        let message = opened.message()?;
        if let Message::Report(report) = &message
            && !self.fresh(from, report)
        {
            return Ok(());
        }
        self.daemon.handle(now, from, message);
        Ok(())
    }

    /// Is it a report that was not sent before, of another daemon?
    fn fresh(&mut self, from: SocketAddr, report: &Report) -> bool {
        // Its own come back by way of the group, or come late from a life before.
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

    /// Does what is due. What is late says how far this daemon may trust itself with what it reads next.
    pub(super) fn wake(&mut self, now: Time) {
        if self.daemon.poll_timeout().is_some_and(|due| due <= now) {
            self.daemon.handle_timeout(now);
        }
    }

    /// Looks after who is there. To be called when what has come was read: it may be the answer that is waited for.
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

    /// When something is due next.
    pub(super) fn due(&self) -> Option<Time> {
        let due = self.gossip.next().min(self.looked + LOOK);
        Some(self.daemon.poll_timeout().map_or(due, |other| other.min(due)))
    }

    /// Its host tells it something.
    pub(super) fn obey(&mut self, now: Time, order: Order) {
        match order {
            Order::Load { service, load, in_flight } => self.daemon.set_load(now, service, load, in_flight),
            Order::Ready { service, ready } => self.daemon.set_ready(now, service, ready),
            Order::Drain(drain) => self.daemon.drain(now, drain),
            Order::Change(settings) => self.change(now, *settings),
            Order::Leave => {
                self.daemon.leave(now);
                self.gossip.leave(now);
            }
            // Whoever asked may have gone.
            Order::Tell(tell) => drop(tell.send(self.statistics(now))),
            Order::Show(show) => drop(show.send((self.statistics(now), self.daemon.view(now)))),
        }
    }

    fn statistics(&self, now: Time) -> Statistics {
        let draining = matches!(self.daemon.state(), Standing::Draining | Standing::Leaving);
        let (lots, alive) = (self.daemon.statistics(now), self.gossip.others().count());
        Statistics { lots, draining, alive, ..self.statistics }
    }

    /// Takes other settings.
    fn change(&mut self, now: Time, settings: Settings) {
        let change = Change {
            offers: offers(&settings.services),
            key: draw_key(&settings.keys),
            ttl: millis(settings.ttl),
            slow_start: settings.slow_start,
            rate: settings.rate,
            burst: burst(settings.rate),
        };
        // Others believe an offer only of a later life, and its place among those who are there is of the same.
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
        (self.keys, self.services) = (settings.keys, settings.services);
    }

    /// Sends what is to be sent.
    pub(super) fn flush(&mut self, socket: &UdpSocket) {
        while let Some((to, message)) = self.daemon.poll_transmit() {
            let start = self.outbox.bytes().len();
            if message.encode(&self.keys, self.outbox.bytes()).is_err() {
                self.statistics.unsent += 1;
                continue;
            }
            match to {
                To::Address(address) => self.outbox.post(start, address),
                To::Everyone => self.everyone(start),
            }
            if self.outbox.len() >= BATCH {
                self.send(socket);
            }
        }
        while let Some((to, datagram)) = self.gossip.poll_transmit() {
            let start = self.outbox.bytes().len();
            match datagram.encode(&self.keys, self.outbox.bytes()) {
                Ok(()) => self.outbox.post(start, to),
                Err(_) => self.statistics.unsent += 1,
            }
            if self.outbox.len() >= BATCH {
                self.send(socket);
            }
        }
        self.send(socket);
    }

    /// To the group if there is one, to those of the configuration, and without a group to all others that are known.
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

fn offers(services: &[Service]) -> Vec<Offer> {
    let offer = |service: &Service| Offer {
        service: service.id,
        capacity: service.capacity,
        endpoint: service.server,
        info: [].into(),
    };
    services.iter().map(offer).collect()
}

fn burst(rate: u32) -> u32 {
    rate.div_ceil(5).max(LEAST_BURST)
}

fn millis(ttl: Duration) -> u16 {
    u16::try_from(ttl.as_millis()).unwrap_or(u16::MAX)
}
