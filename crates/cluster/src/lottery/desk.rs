//! A daemon with its keys: what came is opened, and dropped if it is forged or was sent before; what is to go is sealed.

use std::net::SocketAddr;

use plimsoll_brain::Time;
use plimsoll_brain::lottery::{Config, Daemon, Offer, To};
use plimsoll_wire::rfs::{Encode as _, Keys, Message, Refused, Replay, Seen};
use tokio::net::UdpSocket;

use super::socket::{BATCH, Outbox};
use super::{Order, Settings, Statistics, draw_key};

/// How long a member that is not heard of any more stays in the table that clients are told of.
const FORGET: std::time::Duration = std::time::Duration::from_secs(10);

/// Requests at once that every source may ask, whatever the rate: a part of the table counts as ten, and daemons that could
/// not pay for it would never hear of one another.
const LEAST_BURST: u32 = 40;

pub(super) struct Desk {
    member: u16,
    incarnation: u32,
    keys: Keys,
    replay: Replay,
    daemon: Daemon,
    /// Told where they are by the configuration.
    peers: Vec<SocketAddr>,
    group: Option<SocketAddr>,
    outbox: Outbox,
    statistics: Statistics,
    /// Somebody else has this daemon's number, and that was said.
    twin: bool,
}

impl Desk {
    /// A daemon that joins at the beginning of its time, and tells the others that it is at `address`.
    pub(super) fn new(settings: &Settings, address: SocketAddr, seed: u64) -> Self {
        let offer = |service: &super::Service| Offer {
            service: service.id,
            capacity: service.capacity,
            endpoint: service.server,
            info: [].into(),
        };
        let offers = settings.services.iter().map(offer).collect();
        let (member, incarnation) = (settings.member, settings.incarnation);
        let mut config = Config::new(member, incarnation, address, offers, draw_key(&settings.keys));
        config.seed = seed;
        config.ttl = u16::try_from(settings.ttl.as_millis()).unwrap_or(u16::MAX);
        config.slow_start = settings.slow_start;
        config.forget = Some(FORGET);
        (config.rate, config.burst) = (settings.rate, settings.rate.div_ceil(5).max(LEAST_BURST));
        let mut daemon = Daemon::new(config, Time(0));
        for service in settings.services.iter().filter(|service| service.check.is_some()) {
            // Not yet checked means not used.
            daemon.set_ready(Time(0), service.id, false);
        }
        let peers = settings.peers.iter().copied().filter(|peer| *peer != address).collect();
        Self {
            member,
            incarnation,
            keys: settings.keys.clone(),
            // There are no more numbers than that.
            replay: Replay::new(usize::from(u16::MAX) + 1),
            daemon,
            peers,
            group: settings.multicast,
            outbox: Outbox::default(),
            statistics: Statistics::default(),
            twin: false,
        }
    }

    /// A datagram came.
    pub(super) fn take(&mut self, now: Time, from: SocketAddr, bytes: &[u8]) {
        self.statistics.received += 1;
        let message = match self.keys.open(bytes).and_then(|opened| opened.message()) {
            Ok(message) => message,
            Err(refused) => {
                let count = match refused {
                    Refused::Forged => &mut self.statistics.forged,
                    Refused::UnknownKey(_) => &mut self.statistics.unknown_key,
                    Refused::Size(_) | Refused::Malformed(_) => &mut self.statistics.malformed,
                };
                *count += 1;
                return;
            }
        };
        if let Message::Report(report) = &message {
            if report.member == self.member {
                // Its own, by way of the group, or one that it sent in a life before.
                if report.incarnation > self.incarnation && !self.twin {
                    self.twin = true;
                    tracing::error!(
                        "another daemon at {from} is member {}, too: give each a number of its own",
                        self.member
                    );
                }
                return;
            }
            if self.replay.see(report) != Seen::Fresh {
                self.statistics.replayed += 1;
                return;
            }
        }
        self.daemon.handle(now, from, message);
    }

    /// Does what is due. What is late says how far this daemon may trust itself with what it reads next.
    pub(super) fn wake(&mut self, now: Time) {
        if self.due().is_some_and(|due| due <= now) {
            self.daemon.handle_timeout(now);
        }
    }

    /// When something is due next.
    pub(super) fn due(&self) -> Option<Time> {
        self.daemon.poll_timeout()
    }

    /// Its host tells it something.
    pub(super) fn obey(&mut self, now: Time, order: Order) {
        match order {
            Order::Load { service, load, in_flight } => self.daemon.set_load(now, service, load, in_flight),
            Order::Ready { service, ready } => self.daemon.set_ready(now, service, ready),
            Order::Drain => self.daemon.drain(now, true),
            Order::Leave => self.daemon.leave(now),
            Order::Tell(tell) => {
                // Whoever asked may have gone.
                let _ = tell.send(Statistics { lots: self.daemon.statistics(now), ..self.statistics });
            }
        }
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
