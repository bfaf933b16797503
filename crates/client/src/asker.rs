//! The state machine of a client with keys, sockets and a clock, for one owner. No function of it waits.
//!
//! The caller passes a tag with each request and gets it back with the outcome. This module depends on
//! neither threads nor event loops.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use plimsoll_brain::Time;
use plimsoll_brain::lottery::{self as brain, ClientConfig, Outcome, Picked, Status, To};
use plimsoll_wire::rfs::{Encode as _, LONGEST_REPORT};

use crate::keys::Ring;
use crate::socket::Sockets;
use crate::{OpenError, Pick, Settings, Unserved};

/// A finished request: its tag and its outcome.
pub(crate) type Ended<T> = (T, Result<Pick, Unserved>);

/// The number of attempts with a single daemon before all daemons are asked, without multicast.
const ALONE: u8 = 4;

#[derive(Debug)]
pub(crate) struct Asker<T> {
    client: brain::Client,
    ring: Ring,
    sockets: Arc<Sockets>,
    multicast: Option<std::net::SocketAddr>,
    begin: Instant,
    /// The tags of open requests by request id.
    open: HashMap<u64, T>,
    ended: VecDeque<Ended<T>>,
    datagram: Vec<u8>,
    /// One byte longer than the longest message, so that a longer datagram is detected.
    buffer: Box<[u8]>,
}

impl<T> Asker<T> {
    /// Opens the sockets and reads the keys.
    ///
    /// # Errors
    /// Returns an error if the settings are invalid, the keys cannot be read or no socket can be opened.
    pub(crate) fn open(settings: Settings) -> Result<(Self, Arc<Sockets>), OpenError> {
        settings.check()?;
        let begin = Instant::now();
        let ring = Ring::open(settings.keys, begin)?;
        let sockets = Arc::new(Sockets::open(settings.interface)?);
        let mut config = ClientConfig::new(brain::Key::new(secret()));
        (config.mode, config.attempts) = (settings.mode, settings.attempts.max(1));
        if settings.multicast.is_none() {
            // Without multicast, asking all daemons takes one packet per daemon.
            config.alone = ALONE;
        }
        let mut client = brain::Client::new(config);
        client.begin_with(settings.daemons);
        let asker = Self {
            client,
            ring,
            sockets: Arc::clone(&sockets),
            multicast: settings.multicast,
            begin,
            open: HashMap::new(),
            ended: VecDeque::new(),
            datagram: Vec::new(),
            buffer: vec![0; LONGEST_REPORT + 1].into(),
        };
        Ok((asker, sockets))
    }

    /// Asks for a member. The outcome is available at once if a cached answer can be used.
    ///
    /// # Errors
    /// [`Unserved::TooMany`] if too many requests are open.
    pub(crate) fn ask(&mut self, tag: T, service: u32, info: &[u8]) -> Result<(), Unserved> {
        match self.client.pick(self.now(), service, info) {
            Picked::Again(answer) => self.ended.push_back((tag, made(answer))),
            Picked::Full => return Err(Unserved::TooMany),
            Picked::Asked(id) => drop(self.open.insert(id, tag)),
        }
        self.flush();
        Ok(())
    }

    /// Records a failure of a member, so that it is not picked for a while.
    pub(crate) fn failed(&mut self, member: u16) {
        self.client.failed(self.now(), member);
    }

    /// Returns the number of requests that were answered with two different members.
    pub(crate) fn answered_twice(&self) -> u64 {
        self.client.answered_twice()
    }

    /// Receives datagrams and handles timeouts. Returns `true` if more datagrams may be waiting.
    pub(crate) fn process(&mut self) -> bool {
        let now = self.now();
        let Self { client, ring, sockets, buffer, .. } = self;
        let more = sockets.receive(buffer, |from, bytes| {
            // Ignore datagrams that do not authenticate.
            let message = ring.keys().open_answer(bytes).and_then(|opened| opened.message());
            if let Ok(message) = message {
                client.handle(now, from, message);
            }
        });
        if client.poll_timeout().is_some_and(|due| due <= now) {
            client.handle_timeout(now);
        }
        self.flush();
        more
    }

    /// Returns the time until [`process`](Self::process) is due without a datagram; `None` if no request is
    /// open.
    pub(crate) fn timeout(&self) -> Option<Duration> {
        self.client.poll_timeout().map(|due| due.since(self.now()))
    }

    /// Takes the next finished request.
    pub(crate) fn next(&mut self) -> Option<Ended<T>> {
        self.ended.pop_front()
    }

    /// Sends the pending messages and collects the finished requests.
    fn flush(&mut self) {
        let mut looked = false;
        while let Some((to, message)) = self.client.poll_transmit() {
            if !looked {
                self.ring.look(Instant::now());
                looked = true;
            }
            self.datagram.clear();
            // A client's messages always fit.
            if message.encode(self.ring.keys(), &mut self.datagram).is_err() {
                continue;
            }
            match (to, self.multicast) {
                (To::Address(to) | To::Asker(to, _), _) | (To::Everyone, Some(to)) => {
                    self.sockets.send(&self.datagram, to)
                }
                (To::Everyone, None) => {
                    self.client.daemons().for_each(|to| self.sockets.send(&self.datagram, to));
                }
            }
        }
        while let Some(outcome) = self.client.poll_outcome() {
            let (id, outcome) = match outcome {
                Outcome::Member(answer) => (answer.id, made(answer)),
                Outcome::Nobody(id, None) => (id, Err(Unserved::Silence)),
                Outcome::Nobody(id, Some(Status::UnknownService)) => (id, Err(Unserved::Unknown)),
                Outcome::Nobody(id, Some(Status::Draining)) => (id, Err(Unserved::Draining)),
                Outcome::Nobody(id, Some(Status::Busy | Status::Ok)) => (id, Err(Unserved::Busy)),
            };
            if let Some(tag) = self.open.remove(&id) {
                self.ended.push_back((tag, outcome));
            }
        }
    }

    fn now(&self) -> Time {
        Time(u64::try_from(self.begin.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }
}

/// Converts an answer. An answer without an address means that no member is available now.
fn made(answer: brain::Answer) -> Result<Pick, Unserved> {
    let further = answer.further.iter().map(|further| (further.member, further.endpoint));
    Ok(Pick {
        member: answer.member,
        address: answer.endpoint.ok_or(Unserved::Busy)?,
        info: answer.info.to_vec(),
        further: further.collect(),
    })
}

/// Returns unpredictable random bytes.
fn secret() -> [u8; 16] {
    let mut bytes = [0; 16];
    if let Ok(16) = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()) {
        return bytes;
    }
    // On a kernel without `getrandom` (before 3.17) the standard library seeds its hashers from /dev/urandom.
    let half = || std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), 0);
    (u128::from(half()) << 64 | u128::from(half())).to_ne_bytes()
}
