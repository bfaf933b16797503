//! The state machine of a client with keys, sockets and a clock, for one owner. No function of it waits.
//!
//! The caller passes a tag with each request and gets it back with the outcome. This module depends on
//! neither threads nor event loops.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use plimsoll_brain::Time;
use plimsoll_brain::lottery::{
    self as brain, AnswerStatus, LotteryClientConfig, MessageTarget, PickOutcome, PickStatus,
};
use plimsoll_wire::rfs::{EncodeDatagram as _, MAX_REPORT_LEN};

use crate::keys::ReloadableKeys;
use crate::sockets::SocketSet;
use crate::{ClientSettings, OpenError, PickError, PickedMember};

/// A finished request: its tag and its outcome.
pub(crate) type FinishedRequest<T> = (T, Result<PickedMember, PickError>);

/// The number of attempts with a single daemon before all daemons are asked, without multicast.
const UNICAST_ATTEMPTS: u8 = 4;

#[derive(Debug)]
pub(crate) struct RequestEngine<T> {
    client: brain::LotteryClient,
    keys: ReloadableKeys,
    sockets: Arc<SocketSet>,
    multicast: Option<std::net::SocketAddr>,
    started: Instant,
    /// The tags of open requests by request id.
    open_requests: HashMap<u64, T>,
    finished: VecDeque<FinishedRequest<T>>,
    datagram: Vec<u8>,
    /// One byte longer than the longest message, so that a longer datagram is detected.
    buffer: Box<[u8]>,
}

impl<T> RequestEngine<T> {
    /// Opens the sockets and reads the keys.
    ///
    /// # Errors
    /// Returns an error if the settings are invalid, the keys cannot be read or no socket can be opened.
    pub(crate) fn open(settings: ClientSettings) -> Result<(Self, Arc<SocketSet>), OpenError> {
        settings.validate()?;
        let started = Instant::now();
        let keys = ReloadableKeys::open(settings.keys, started)?;
        let sockets = Arc::new(SocketSet::open(settings.interface)?);
        let mut config = LotteryClientConfig::new(brain::SipHashKey::new(random_secret()));
        (config.mode, config.attempts) = (settings.mode, settings.attempts.max(1));
        if settings.multicast.is_none() {
            // Without multicast, asking all daemons takes one packet per daemon.
            config.unicast_attempts = UNICAST_ATTEMPTS;
        }
        let mut client = brain::LotteryClient::new(config);
        client.set_seeds(settings.daemons);
        let engine = Self {
            client,
            keys,
            sockets: Arc::clone(&sockets),
            multicast: settings.multicast,
            started,
            open_requests: HashMap::new(),
            finished: VecDeque::new(),
            datagram: Vec::new(),
            buffer: vec![0; MAX_REPORT_LEN + 1].into(),
        };
        Ok((engine, sockets))
    }

    /// Asks for a member. The outcome is available at once if a cached answer can be used.
    ///
    /// # Errors
    /// [`PickError::TooMany`] if too many requests are open.
    pub(crate) fn start_request(&mut self, tag: T, service: u32, info: &[u8]) -> Result<(), PickError> {
        match self.client.pick(self.now(), service, info) {
            PickStatus::Cached(answer) => self.finished.push_back((tag, to_picked_member(answer))),
            PickStatus::TooManyOpen => return Err(PickError::TooMany),
            PickStatus::Requested(id) => drop(self.open_requests.insert(id, tag)),
        }
        self.flush();
        Ok(())
    }

    /// Records a failure of a member, so that it is not picked for a while.
    pub(crate) fn record_failure(&mut self, member: u16) {
        self.client.record_failure(self.now(), member);
    }

    /// Returns the number of requests that were answered with two different members.
    pub(crate) fn answered_twice(&self) -> u64 {
        self.client.answered_twice()
    }

    /// Receives datagrams and handles timeouts. Returns `true` if more datagrams may be waiting.
    pub(crate) fn process(&mut self) -> bool {
        let now = self.now();
        let Self { client, keys, sockets, buffer, .. } = self;
        let has_more = sockets.receive(buffer, |from, bytes| {
            // Ignore datagrams that do not authenticate.
            let message = keys.keys().open_answer(bytes).and_then(|open_message| open_message.message());
            if let Ok(message) = message {
                client.handle(now, from, message);
            }
        });
        if client.poll_timeout().is_some_and(|due| due <= now) {
            client.handle_timeout(now);
        }
        self.flush();
        has_more
    }

    /// Returns the time until [`process`](Self::process) is due without a datagram; `None` if no request is
    /// open.
    pub(crate) fn timeout(&self) -> Option<Duration> {
        self.client.poll_timeout().map(|due| due.since(self.now()))
    }

    /// Takes the next finished request.
    pub(crate) fn next_finished(&mut self) -> Option<FinishedRequest<T>> {
        self.finished.pop_front()
    }

    /// Sends the pending messages and collects the finished requests.
    fn flush(&mut self) {
        let mut keys_checked = false;
        while let Some((target, message)) = self.client.poll_transmit() {
            if !keys_checked {
                self.keys.reload_if_changed(Instant::now());
                keys_checked = true;
            }
            self.datagram.clear();
            // A client's messages always fit.
            if message.encode(self.keys.keys(), &mut self.datagram).is_err() {
                continue;
            }
            match (target, self.multicast) {
                (MessageTarget::Address(address) | MessageTarget::KeyedClient(address, _), _)
                | (MessageTarget::AllNodes, Some(address)) => self.sockets.send(&self.datagram, address),
                (MessageTarget::AllNodes, None) => {
                    self.client
                        .node_addresses()
                        .for_each(|address| self.sockets.send(&self.datagram, address));
                }
            }
        }
        while let Some(outcome) = self.client.poll_outcome() {
            let (id, outcome) = match outcome {
                PickOutcome::Member(answer) => (answer.id, to_picked_member(answer)),
                PickOutcome::NoMember(id, None) => (id, Err(PickError::NoResponse)),
                PickOutcome::NoMember(id, Some(AnswerStatus::UnknownService)) => {
                    (id, Err(PickError::UnknownService))
                }
                PickOutcome::NoMember(id, Some(AnswerStatus::Draining)) => (id, Err(PickError::Draining)),
                PickOutcome::NoMember(id, Some(AnswerStatus::Busy | AnswerStatus::Ok)) => {
                    (id, Err(PickError::Busy))
                }
            };
            if let Some(tag) = self.open_requests.remove(&id) {
                self.finished.push_back((tag, outcome));
            }
        }
    }

    fn now(&self) -> Time {
        Time(u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }
}

/// Converts an answer. An answer without an address means that no member is available now.
fn to_picked_member(answer: brain::LotteryAnswer) -> Result<PickedMember, PickError> {
    let fallbacks = answer.fallbacks.iter().map(|fallback| (fallback.member, fallback.endpoint));
    Ok(PickedMember {
        member: answer.member,
        address: answer.endpoint.ok_or(PickError::Busy)?,
        info: answer.info.to_vec(),
        fallbacks: fallbacks.collect(),
    })
}

/// Returns unpredictable random bytes.
fn random_secret() -> [u8; 16] {
    let mut bytes = [0; 16];
    if let Ok(16) = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()) {
        return bytes;
    }
    // On a kernel without `getrandom` (before 3.17) the standard library seeds its hashers from /dev/urandom.
    let random_half = || std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), 0);
    (u128::from(random_half()) << 64 | u128::from(random_half())).to_ne_bytes()
}
