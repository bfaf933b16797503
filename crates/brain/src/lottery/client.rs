//! The client's side, as a value. Call [`pick`](LotteryClient::pick) for a member for a service, send the
//! messages of [`poll_transmit`](LotteryClient::poll_transmit), pass on received messages, and read
//! [`poll_outcome`](LotteryClient::poll_outcome).
//!
//! A request goes to one daemon, drawn from the known ones, which refers to the winner. If no answer comes
//! within 20 ms or three round trips, the further attempts are:
//!
//! 1. once more to the same daemon, unless it was silent before;
//! 2. to all (without multicast: after two other daemons), where the ladder answers even if most daemons are
//!    dead;
//! 3. after longer and longer waits, to one and to all in turn.
//!
//! All attempts carry the same id, so that a daemon that has answered repeats its answer. The first answer
//! with a member ends the request; later ones are ignored.
//!
//! The daemons to ask are those of a daemon's table, once there is one. The initial ones are asked again when
//! none of these is left, as the table may be that of an isolated daemon.
//!
//! One daemon's answer without a member is not sufficient: another is asked at once (the same one if it is
//! the only one), and the second such answer ends the request.
//!
//! A failed member is avoided for five seconds: it is listed in requests, and its answers are not used again.
//! An answer with a ttl is used again for that time.

mod directory;
mod history;

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;
use core::net::SocketAddr;
use core::time::Duration;

use super::membership::MAX_MEMBERS;
use super::message::{
    AnswerMode, AnswerStatus, LotteryAnswer, LotteryMessage, LotteryRequest, MessageTarget, NodeDescription,
    TableFetch, TablePart,
};
use super::siphash::SipHashKey;
use crate::Time;
use directory::{KnownNode, NodeDirectory};
use history::AnswerHistory;

/// The settings of a client.
#[derive(Clone, Copy, Debug)]
pub struct LotteryClientConfig {
    /// A random secret: the ids of requests are derived from it, and the next one cannot be predicted without
    /// it. Two clients with the same secret would choose the same ids.
    pub secret: SipHashKey,
    /// The mode of first attempts: one daemon, or all.
    pub mode: AnswerMode,
    /// Whether it can ask all. If not, it always asks one.
    pub multicast: bool,
    /// The attempts with one daemon before all are asked, if one is asked first: the more, the more a packet
    /// to all costs.
    pub unicast_attempts: u8,
    /// The minimum of the first wait for an answer.
    pub first_timeout: Duration,
    /// The number of attempts after which it gives up.
    pub attempts: u8,
}

impl LotteryClientConfig {
    /// Returns the defaults: referrals; 20 ms; eight attempts, which take 1.3 s if round trips are short.
    pub fn new(secret: SipHashKey) -> Self {
        Self {
            secret,
            mode: AnswerMode::Referral,
            multicast: true,
            unicast_attempts: 2,
            first_timeout: Duration::from_millis(20),
            attempts: 8,
        }
    }
}

/// The result of [`LotteryClient::pick`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PickStatus {
    /// An answer that may still be used.
    Cached(LotteryAnswer),
    /// A request was sent, with this id.
    Requested(u64),
    /// Too many requests are open.
    TooManyOpen,
}

/// The outcome of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PickOutcome {
    /// A member.
    Member(LotteryAnswer),
    /// No member, and the reason; `None` without any answer.
    NoMember(u64, Option<AnswerStatus>),
}

/// A client of a cluster.
#[derive(Clone, Debug)]
pub struct LotteryClient {
    config: LotteryClientConfig,
    nodes: NodeDirectory,
    generation: u32,
    /// The received part of a new table, and the part that was requested last.
    incoming_table: Vec<KnownNode>,
    fetch_progress: Option<FetchProgress>,
    open: BTreeMap<u64, OpenRequest>,
    due: BTreeSet<(Time, u64)>,
    /// The answers by service, and their expiry.
    cache: BTreeMap<u32, (LotteryAnswer, Time)>,
    avoid: Vec<(u16, Time)>,
    /// The smoothed round trip and its deviation.
    round_trip: Option<(Duration, Duration)>,
    turn: u64,
    outbox: VecDeque<(MessageTarget, LotteryMessage)>,
    outcomes: VecDeque<PickOutcome>,
    history: AnswerHistory,
}

/// A requested part of a table.
#[derive(Clone, Copy, Debug)]
struct FetchProgress {
    from: SocketAddr,
    at: Time,
    id: u64,
    part: u16,
    /// The generation of the parts before it.
    generation: Option<u32>,
    /// Whether it has arrived.
    arrived: bool,
}

/// A request without an answer.
#[derive(Clone, Debug)]
struct OpenRequest {
    service: u32,
    info: Vec<u8>,
    attempt: u8,
    due: Time,
    /// The daemon asked last.
    last_target: Option<SocketAddr>,
    /// The status of answers without a member, and their number.
    refusal_status: Option<AnswerStatus>,
    refusals: u8,
    /// The daemon and the attempt of the last such answer: a datagram may arrive twice.
    last_refusal: Option<(SocketAddr, u32)>,
}

/// The maximum of open requests, of remembered services, and of avoided members.
const MAX_OPEN: usize = 4096;
const MAX_CACHED_SERVICES: usize = 256;
const MAX_AVOIDED: usize = 16;

/// The minimum bytes of a request: room for four further members of IPv4.
const MIN_REQUEST_BYTES: u16 = 128;

/// The time for which a failed member is avoided.
const AVOID_TIME: Duration = Duration::from_secs(5);

/// The requests in a row without an answer after which a daemon is avoided for that time: a loss is no death.
const MAX_UNANSWERED: u8 = 2;

/// The longest wait between two attempts.
const MAX_RETRY_TIMEOUT: Duration = Duration::from_secs(1);

/// The time between two requests for a table.
const FETCH_INTERVAL: Duration = Duration::from_secs(1);

impl LotteryClient {
    /// Returns a client without known daemons, which asks all until it knows some.
    pub fn new(config: LotteryClientConfig) -> Self {
        Self {
            config,
            nodes: NodeDirectory::default(),
            generation: 0,
            incoming_table: Vec::new(),
            fetch_progress: None,
            open: BTreeMap::new(),
            due: BTreeSet::new(),
            cache: BTreeMap::new(),
            avoid: Vec::new(),
            round_trip: None,
            turn: 0,
            outbox: VecDeque::new(),
            outcomes: VecDeque::new(),
            history: AnswerHistory::default(),
        }
    }

    /// Sets the daemons to ask, by number and address.
    pub fn set_nodes(&mut self, nodes: impl IntoIterator<Item = (u16, SocketAddr)>) {
        let known_node = |(member, address)| KnownNode::new(Some(member), address);
        self.nodes = NodeDirectory::with_seeds(nodes.into_iter().map(known_node));
    }

    /// Sets the daemons to ask, by address alone.
    pub fn set_seeds(&mut self, nodes: impl IntoIterator<Item = SocketAddr>) {
        self.nodes =
            NodeDirectory::with_seeds(nodes.into_iter().map(|address| KnownNode::new(None, address)));
    }

    /// Returns the addresses of the known daemons.
    pub fn node_addresses(&self) -> impl Iterator<Item = SocketAddr> {
        self.nodes.addresses()
    }

    /// Requests a member for `service`; `info` is for the application (at most 1000 bytes are sent).
    pub fn pick(&mut self, now: Time, service: u32, info: &[u8]) -> PickStatus {
        self.avoid.retain(|(_, until)| *until > now);
        if let Some((answer, until)) = self.cache.get(&service)
            && *until > now
            && !self.is_avoided(answer.member)
        {
            return PickStatus::Cached(answer.clone());
        }
        if self.open.len() >= MAX_OPEN {
            return PickStatus::TooManyOpen;
        }
        let id = self.random_bits();
        let info = info.get(..1000).unwrap_or(info).to_vec();
        let open_request = OpenRequest {
            service,
            info,
            attempt: 0,
            due: now,
            last_target: None,
            refusal_status: None,
            refusals: 0,
            last_refusal: None,
        };
        self.open.insert(id, open_request);
        self.send_request(now, id);
        PickStatus::Requested(id)
    }

    /// Records that a member failed: it is avoided for a while.
    pub fn record_failure(&mut self, now: Time, member: u16) {
        self.avoid.retain(|(avoided, until)| *avoided != member && *until > now);
        if self.avoid.len() >= MAX_AVOIDED {
            self.avoid.remove(0);
        }
        self.avoid.push((member, now + AVOID_TIME));
        self.cache.retain(|_, (answer, _)| answer.member != member);
    }

    /// Handles a received message.
    pub fn handle(&mut self, now: Time, from: SocketAddr, message: LotteryMessage) {
        match message {
            LotteryMessage::Answer(answer) => self.handle_answer(now, from, answer),
            LotteryMessage::Table(table) => self.handle_table(now, from, table),
            _ => {}
        }
    }

    /// Returns the next message to send.
    pub fn poll_transmit(&mut self) -> Option<(MessageTarget, LotteryMessage)> {
        self.outbox.pop_front()
    }

    /// Returns the next request that has ended.
    pub fn poll_outcome(&mut self) -> Option<PickOutcome> {
        self.outcomes.pop_front()
    }

    /// Returns the time to call [`handle_timeout`](Self::handle_timeout).
    pub fn poll_timeout(&self) -> Option<Time> {
        self.due.first().map(|(due, _)| *due)
    }

    /// Repeats requests without an answer in time.
    pub fn handle_timeout(&mut self, now: Time) {
        let due: Vec<u64> = self.due.iter().take_while(|(due, _)| *due <= now).map(|(_, id)| *id).collect();
        for id in due {
            let last_target = self.open.get(&id).and_then(|open_request| open_request.last_target);
            if let Some(last_target) = last_target {
                self.nodes.record_silence(last_target, MAX_UNANSWERED, now + AVOID_TIME);
            }
            self.retry(now, id);
        }
    }

    /// Returns the number of open requests.
    pub fn open(&self) -> usize {
        self.open.len()
    }

    /// Returns the number of requests that got two members: a later answer named another one than the first,
    /// which counts.
    pub fn answered_twice(&self) -> u64 {
        self.history.answered_twice
    }

    fn retry(&mut self, now: Time, id: u64) {
        let Some(open_request) = self.open.get_mut(&id) else { return };
        open_request.attempt = open_request.attempt.saturating_add(1);
        if open_request.attempt >= self.config.attempts {
            let refusal_status = open_request.refusal_status;
            self.close_request(id);
            self.outcomes.push_back(PickOutcome::NoMember(id, refusal_status));
        } else {
            self.send_request(now, id);
        }
    }

    fn close_request(&mut self, id: u64) {
        if let Some(open_request) = self.open.remove(&id) {
            self.due.remove(&(open_request.due, id));
        }
    }

    fn send_request(&mut self, now: Time, id: u64) {
        let bits = self.random_bits();
        let timeout = self.retry_timeout();
        let same_target = self.retry_target(now, id);
        let Some(open_request) = self.open.get_mut(&id) else { return };
        let sends_to_all = self.config.multicast
            && (self.nodes.is_empty()
                || match self.config.mode {
                    // All attempts but the fourth and every second one from there.
                    AnswerMode::Lottery => open_request.attempt < 3 || open_request.attempt % 2 == 0,
                    // The third attempt, or a later one, and every second one from there.
                    AnswerMode::Referral => open_request
                        .attempt
                        .checked_sub(self.config.unicast_attempts)
                        .is_some_and(|attempts_past| attempts_past % 2 == 0),
                });
        let is_avoided = |member: &u16| self.avoid.iter().any(|(avoided, _)| avoided == member);
        let (to, mode) = if sends_to_all {
            open_request.last_target = None;
            (MessageTarget::AllNodes, AnswerMode::Lottery)
        } else if let Some(same_target) = same_target {
            (MessageTarget::Address(same_target), AnswerMode::Referral)
        } else {
            let target = self.nodes.draw_random(now, bits, open_request.last_target, is_avoided);
            let Some(target) = target else {
                // No daemon is known and none can be found.
                open_request.attempt = self.config.attempts;
                self.due.remove(&(open_request.due, id));
                open_request.due = now;
                self.due.insert((now, id));
                return;
            };
            open_request.last_target = Some(target);
            (MessageTarget::Address(target), AnswerMode::Referral)
        };
        // Three times the same, then twice as long each time.
        let backoff_factor = 1_u32 << open_request.attempt.saturating_sub(2).min(10);
        self.due.remove(&(open_request.due, id));
        open_request.due = now + (timeout * backoff_factor).min(MAX_RETRY_TIMEOUT.max(timeout));
        self.due.insert((open_request.due, id));
        let request = LotteryRequest {
            id,
            service: open_request.service,
            attempt: open_request.attempt,
            mode,
            generation: self.generation,
            client_time: micros(now),
            avoid: self.avoid.iter().map(|(member, _)| *member).collect(),
            info: open_request.info.clone(),
            max_answer_bytes: MIN_REQUEST_BYTES,
        };
        if self.outbox.len() < 2 * MAX_OPEN {
            self.outbox.push_back((to, LotteryMessage::Request(request)));
        }
    }

    /// Returns the daemon to ask again: once, the one that was asked first and did not answer. Its answer
    /// would be the same one if the first was lost or is late. Another daemon may know other loads, and name
    /// another member.
    fn retry_target(&mut self, now: Time, id: u64) -> Option<SocketAddr> {
        let open_request = self
            .open
            .get(&id)
            .filter(|open_request| open_request.attempt == 1 && open_request.refusals == 0)?;
        open_request.last_target.filter(|target| self.nodes.is_usable(now, *target))
    }

    fn handle_answer(&mut self, now: Time, from: SocketAddr, answer: LotteryAnswer) {
        self.nodes.record_answer(now, from);
        let Some(open_request) = self.open.get(&answer.id) else {
            if answer.status == AnswerStatus::Ok {
                self.history.record_repeat(answer.id, answer.member);
            }
            return;
        };
        if open_request.service != answer.service
            || (answer.status == AnswerStatus::Ok && answer.endpoint.is_none())
        {
            return;
        }
        let round_trip = Duration::from_micros(u64::from(micros(now).wrapping_sub(answer.client_time)));
        // A time longer than any attempt is no round trip.
        if round_trip <= 4 * MAX_RETRY_TIMEOUT {
            let (mean, deviation) = self.round_trip.unwrap_or((round_trip, round_trip / 2));
            let error = mean.abs_diff(round_trip);
            self.round_trip = Some(((mean * 7 + round_trip) / 8, (deviation * 3 + error) / 4));
        }
        if answer.generation != self.generation
            && self.fetch_progress.is_none_or(|progress| now.since(progress.at) >= FETCH_INTERVAL)
        {
            self.fetch_table(now, from, 0, None);
        }
        let Some(open_request) = self.open.get_mut(&answer.id) else { return };
        if answer.status != AnswerStatus::Ok {
            if open_request.last_refusal.replace((from, answer.client_time))
                == Some((from, answer.client_time))
            {
                return;
            }
            // A missing service is weaker evidence than a service without a usable member.
            if open_request.refusal_status.is_none() || answer.status != AnswerStatus::UnknownService {
                open_request.refusal_status = Some(answer.status);
            }
            open_request.refusals += 1;
            // An answer without a member asks another daemon at once, if its sender was asked last; the
            // second such answer ends the request.
            if open_request.refusals > 1 {
                let refusal_status = open_request.refusal_status;
                self.close_request(answer.id);
                self.outcomes.push_back(PickOutcome::NoMember(answer.id, refusal_status));
            } else if open_request.last_target == Some(from) && open_request.attempt < 2 {
                self.retry(now, answer.id);
            }
            return;
        }
        self.close_request(answer.id);
        self.history.record_first(answer.id, answer.member);
        if answer.ttl > 0
            && (self.cache.len() < MAX_CACHED_SERVICES || self.cache.contains_key(&answer.service))
        {
            let until = now + Duration::from_millis(u64::from(answer.ttl));
            self.cache.insert(answer.service, (answer.clone(), until));
        }
        self.cache.retain(|_, (_, until)| *until > now);
        self.outcomes.push_back(PickOutcome::Member(answer));
    }

    /// Records a part of the table: when all have arrived, they are the daemons to ask. If the table changed
    /// meanwhile, a later answer starts a new request for it.
    fn handle_table(&mut self, now: Time, from: SocketAddr, table: TablePart) {
        let Some(progress) = &mut self.fetch_progress else { return };
        let FetchProgress { from: expected_from, id, part, generation, arrived, .. } = *progress;
        if arrived
            || (expected_from, id, part) != (from, table.id, table.part)
            || generation.is_some_and(|generation| generation != table.generation)
        {
            return;
        }
        progress.arrived = true;
        let known_node =
            |description: &NodeDescription| KnownNode::new(Some(description.member), description.address);
        self.incoming_table.extend(table.members.iter().map(known_node));
        self.incoming_table.truncate(MAX_MEMBERS);
        match part.checked_add(1).filter(|next| *next < table.parts) {
            Some(next) => self.fetch_table(now, from, next, Some(table.generation)),
            None if self.incoming_table.is_empty() => {}
            None => {
                self.nodes.set_listed(core::mem::take(&mut self.incoming_table));
                self.generation = table.generation;
            }
        }
    }

    fn fetch_table(&mut self, now: Time, from: SocketAddr, part: u16, generation: Option<u32>) {
        if part == 0 {
            self.incoming_table.clear();
        }
        let id = self.random_bits();
        self.fetch_progress = Some(FetchProgress { from, at: now, id, part, generation, arrived: false });
        let fetch = TableFetch { id, generation: self.generation, part };
        self.outbox.push_back((MessageTarget::Address(from), LotteryMessage::Fetch(fetch)));
    }

    fn is_avoided(&self, member: u16) -> bool {
        self.avoid.iter().any(|(avoided, _)| *avoided == member)
    }

    /// Returns three round trips, and more if they vary.
    fn retry_timeout(&self) -> Duration {
        let timeout =
            self.round_trip.map_or(Duration::ZERO, |(mean, deviation)| (3 * mean).max(mean + 4 * deviation));
        self.config.first_timeout.max(timeout).min(MAX_RETRY_TIMEOUT)
    }

    /// Returns bits that cannot be predicted without the secret.
    fn random_bits(&mut self) -> u64 {
        self.turn += 1;
        self.config.secret.hash(&self.turn.to_be_bytes())
    }
}

/// Returns the client's clock in requests, which wraps after 71 minutes.
fn micros(now: Time) -> u32 {
    (now.0 / 1000) as u32
}
