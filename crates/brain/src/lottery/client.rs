//! The client's side, as a value. Call [`pick`](Client::pick) for a member for a service, send the messages
//! of [`poll_transmit`](Client::poll_transmit), pass on received messages, and read
//! [`poll_outcome`](Client::poll_outcome).
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

mod known;
mod past;

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;
use core::net::SocketAddr;
use core::time::Duration;

use super::message::{Answer, Fetch, Listed, Message, Mode, Request, Status, Table, To};
use super::sip::Key;
use super::table::MEMBERS;
use crate::Time;
use known::{Daemons, Known};
use past::Past;

/// The settings of a client.
#[derive(Clone, Copy, Debug)]
pub struct ClientConfig {
    /// A random secret: the ids of requests are derived from it, and the next one cannot be predicted without
    /// it. Two clients with the same secret would choose the same ids.
    pub secret: Key,
    /// The mode of first attempts: one daemon, or all.
    pub mode: Mode,
    /// Whether it can ask all. If not, it always asks one.
    pub multicast: bool,
    /// The attempts with one daemon before all are asked, if one is asked first: the more, the more a packet
    /// to all costs.
    pub alone: u8,
    /// The minimum of the first wait for an answer.
    pub patience: Duration,
    /// The number of attempts after which it gives up.
    pub attempts: u8,
}

impl ClientConfig {
    /// Returns the defaults: referrals; 20 ms; eight attempts, which take 1.3 s if round trips are short.
    pub fn new(secret: Key) -> Self {
        Self {
            secret,
            mode: Mode::Referral,
            multicast: true,
            alone: 2,
            patience: Duration::from_millis(20),
            attempts: 8,
        }
    }
}

/// The result of [`Client::pick`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Picked {
    /// An answer that may still be used.
    Again(Answer),
    /// A request was sent, with this id.
    Asked(u64),
    /// Too many requests are open.
    Full,
}

/// The outcome of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// A member.
    Member(Answer),
    /// No member, and the reason; `None` without any answer.
    Nobody(u64, Option<Status>),
}

/// A client of a cluster.
#[derive(Clone, Debug)]
pub struct Client {
    config: ClientConfig,
    daemons: Daemons,
    generation: u32,
    /// The received part of a new table, and the part that was requested last.
    coming: Vec<Known>,
    fetched: Option<Fetched>,
    open: BTreeMap<u64, Open>,
    due: BTreeSet<(Time, u64)>,
    /// The answers by service, and their expiry.
    cache: BTreeMap<u32, (Answer, Time)>,
    avoid: Vec<(u16, Time)>,
    /// The smoothed round trip and its deviation.
    trip: Option<(Duration, Duration)>,
    turn: u64,
    outbox: VecDeque<(To, Message)>,
    outcomes: VecDeque<Outcome>,
    past: Past,
}

/// A requested part of a table.
#[derive(Clone, Copy, Debug)]
struct Fetched {
    from: SocketAddr,
    at: Time,
    id: u64,
    part: u16,
    /// The generation of the parts before it.
    generation: Option<u32>,
    /// Whether it has arrived.
    come: bool,
}

/// A request without an answer.
#[derive(Clone, Debug)]
struct Open {
    service: u32,
    info: Vec<u8>,
    attempt: u8,
    due: Time,
    /// The daemon asked last.
    asked: Option<SocketAddr>,
    /// The status of answers without a member, and their number.
    refused: Option<Status>,
    refusals: u8,
    /// The daemon and the attempt of the last such answer: a datagram may arrive twice.
    refuser: Option<(SocketAddr, u32)>,
}

/// The maximum of open requests, of remembered services, and of avoided members.
const OPEN: usize = 4096;
const SERVICES: usize = 256;
const AVOID: usize = 16;

/// The minimum bytes of a request: room for four further members of IPv4.
const ROOM: u16 = 128;

/// The time for which a failed member is avoided.
const GRUDGE: Duration = Duration::from_secs(5);

/// The requests in a row without an answer after which a daemon is avoided for that time: a loss is no death.
const SILENT: u8 = 2;

/// The longest wait between two attempts.
const LONGEST: Duration = Duration::from_secs(1);

/// The time between two requests for a table.
const FETCH: Duration = Duration::from_secs(1);

impl Client {
    /// Returns a client without known daemons, which asks all until it knows some.
    pub fn new(config: ClientConfig) -> Self {
        Self {
            config,
            daemons: Daemons::default(),
            generation: 0,
            coming: Vec::new(),
            fetched: None,
            open: BTreeMap::new(),
            due: BTreeSet::new(),
            cache: BTreeMap::new(),
            avoid: Vec::new(),
            trip: None,
            turn: 0,
            outbox: VecDeque::new(),
            outcomes: VecDeque::new(),
            past: Past::default(),
        }
    }

    /// Sets the daemons to ask, by number and address.
    pub fn learn(&mut self, daemons: impl IntoIterator<Item = (u16, SocketAddr)>) {
        let known = |(member, address)| Known::new(Some(member), address);
        self.daemons = Daemons::begin(daemons.into_iter().map(known));
    }

    /// Sets the daemons to ask, by address alone.
    pub fn begin_with(&mut self, daemons: impl IntoIterator<Item = SocketAddr>) {
        self.daemons = Daemons::begin(daemons.into_iter().map(|address| Known::new(None, address)));
    }

    /// Returns the addresses of the known daemons.
    pub fn daemons(&self) -> impl Iterator<Item = SocketAddr> {
        self.daemons.addresses()
    }

    /// Requests a member for `service`; `info` is for the application (at most 1000 bytes are sent).
    pub fn pick(&mut self, now: Time, service: u32, info: &[u8]) -> Picked {
        self.avoid.retain(|(_, until)| *until > now);
        if let Some((answer, until)) = self.cache.get(&service)
            && *until > now
            && !self.avoids(answer.member)
        {
            return Picked::Again(answer.clone());
        }
        if self.open.len() >= OPEN {
            return Picked::Full;
        }
        let id = self.bits();
        let info = info.get(..1000).unwrap_or(info).to_vec();
        let open = Open {
            service,
            info,
            attempt: 0,
            due: now,
            asked: None,
            refused: None,
            refusals: 0,
            refuser: None,
        };
        self.open.insert(id, open);
        self.ask(now, id);
        Picked::Asked(id)
    }

    /// Records that a member failed: it is avoided for a while.
    pub fn failed(&mut self, now: Time, member: u16) {
        self.avoid.retain(|(other, until)| *other != member && *until > now);
        if self.avoid.len() >= AVOID {
            self.avoid.remove(0);
        }
        self.avoid.push((member, now + GRUDGE));
        self.cache.retain(|_, (answer, _)| answer.member != member);
    }

    /// Handles a received message.
    pub fn handle(&mut self, now: Time, from: SocketAddr, message: Message) {
        match message {
            Message::Answer(answer) => self.answered(now, from, answer),
            Message::Table(table) => self.told(now, from, table),
            _ => {}
        }
    }

    /// Returns the next message to send.
    pub fn poll_transmit(&mut self) -> Option<(To, Message)> {
        self.outbox.pop_front()
    }

    /// Returns the next request that has ended.
    pub fn poll_outcome(&mut self) -> Option<Outcome> {
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
            let asked = self.open.get(&id).and_then(|open| open.asked);
            if let Some(asked) = asked {
                self.daemons.silent(asked, SILENT, now + GRUDGE);
            }
            self.again(now, id);
        }
    }

    /// Returns the number of open requests.
    pub fn open(&self) -> usize {
        self.open.len()
    }

    /// Returns the number of requests that got two members: a later answer named another one than the first,
    /// which counts.
    pub fn answered_twice(&self) -> u64 {
        self.past.twice
    }

    fn again(&mut self, now: Time, id: u64) {
        let Some(open) = self.open.get_mut(&id) else { return };
        open.attempt = open.attempt.saturating_add(1);
        if open.attempt >= self.config.attempts {
            let refused = open.refused;
            self.close(id);
            self.outcomes.push_back(Outcome::Nobody(id, refused));
        } else {
            self.ask(now, id);
        }
    }

    fn close(&mut self, id: u64) {
        if let Some(open) = self.open.remove(&id) {
            self.due.remove(&(open.due, id));
        }
    }

    fn ask(&mut self, now: Time, id: u64) {
        let bits = self.bits();
        let wait = self.wait();
        let same = self.same(now, id);
        let Some(open) = self.open.get_mut(&id) else { return };
        let everyone = self.config.multicast
            && (self.daemons.is_empty()
                || match self.config.mode {
                    // All attempts but the fourth and every second one from there.
                    Mode::Lottery => open.attempt < 3 || open.attempt % 2 == 0,
                    // The third attempt, or a later one, and every second one from there.
                    Mode::Referral => {
                        open.attempt.checked_sub(self.config.alone).is_some_and(|more| more % 2 == 0)
                    }
                });
        let avoided = |member: &u16| self.avoid.iter().any(|(other, _)| other == member);
        let (to, mode) = if everyone {
            open.asked = None;
            (To::Everyone, Mode::Lottery)
        } else if let Some(same) = same {
            (To::Address(same), Mode::Referral)
        } else {
            let one = self.daemons.draw(now, bits, open.asked, avoided);
            let Some(one) = one else {
                // No daemon is known and none can be found.
                open.attempt = self.config.attempts;
                self.due.remove(&(open.due, id));
                open.due = now;
                self.due.insert((now, id));
                return;
            };
            open.asked = Some(one);
            (To::Address(one), Mode::Referral)
        };
        // Three times the same, then twice as long each time.
        let times = 1_u32 << open.attempt.saturating_sub(2).min(10);
        self.due.remove(&(open.due, id));
        open.due = now + (wait * times).min(LONGEST.max(wait));
        self.due.insert((open.due, id));
        let request = Request {
            id,
            service: open.service,
            attempt: open.attempt,
            mode,
            generation: self.generation,
            client_time: micros(now),
            avoid: self.avoid.iter().map(|(member, _)| *member).collect(),
            info: open.info.clone(),
            room: ROOM,
        };
        if self.outbox.len() < 2 * OPEN {
            self.outbox.push_back((to, Message::Request(request)));
        }
    }

    /// Returns the daemon to ask again: once, the one that was asked first and did not answer. Its answer
    /// would be the same one if the first was lost or is late. Another daemon may know other loads, and name
    /// another member.
    fn same(&mut self, now: Time, id: u64) -> Option<SocketAddr> {
        let open = self.open.get(&id).filter(|open| open.attempt == 1 && open.refusals == 0)?;
        open.asked.filter(|asked| self.daemons.bears(now, *asked))
    }

    fn answered(&mut self, now: Time, from: SocketAddr, answer: Answer) {
        self.daemons.heard(now, from);
        let Some(open) = self.open.get(&answer.id) else {
            if answer.status == Status::Ok {
                self.past.again(answer.id, answer.member);
            }
            return;
        };
        if open.service != answer.service || (answer.status == Status::Ok && answer.endpoint.is_none()) {
            return;
        }
        let trip = Duration::from_micros(u64::from(micros(now).wrapping_sub(answer.client_time)));
        // A time longer than any attempt is no round trip.
        if trip <= 4 * LONGEST {
            let (mean, deviation) = self.trip.unwrap_or((trip, trip / 2));
            let off = mean.abs_diff(trip);
            self.trip = Some(((mean * 7 + trip) / 8, (deviation * 3 + off) / 4));
        }
        if answer.generation != self.generation
            && self.fetched.is_none_or(|fetched| now.since(fetched.at) >= FETCH)
        {
            self.fetch(now, from, 0, None);
        }
        let Some(open) = self.open.get_mut(&answer.id) else { return };
        if answer.status != Status::Ok {
            if open.refuser.replace((from, answer.client_time)) == Some((from, answer.client_time)) {
                return;
            }
            // A missing service is weaker evidence than a service without a usable member.
            if open.refused.is_none() || answer.status != Status::UnknownService {
                open.refused = Some(answer.status);
            }
            open.refusals += 1;
            // An answer without a member asks another daemon at once, if its sender was asked last; the
            // second such answer ends the request.
            if open.refusals > 1 {
                let refused = open.refused;
                self.close(answer.id);
                self.outcomes.push_back(Outcome::Nobody(answer.id, refused));
            } else if open.asked == Some(from) && open.attempt < 2 {
                self.again(now, answer.id);
            }
            return;
        }
        self.close(answer.id);
        self.past.first(answer.id, answer.member);
        if answer.ttl > 0 && (self.cache.len() < SERVICES || self.cache.contains_key(&answer.service)) {
            let until = now + Duration::from_millis(u64::from(answer.ttl));
            self.cache.insert(answer.service, (answer.clone(), until));
        }
        self.cache.retain(|_, (_, until)| *until > now);
        self.outcomes.push_back(Outcome::Member(answer));
    }

    /// Records a part of the table: when all have arrived, they are the daemons to ask. If the table changed
    /// meanwhile, a later answer starts a new request for it.
    fn told(&mut self, now: Time, from: SocketAddr, table: Table) {
        let Some(fetched) = &mut self.fetched else { return };
        let Fetched { from: asked, id, part, generation, come, .. } = *fetched;
        if come
            || (asked, id, part) != (from, table.id, table.part)
            || generation.is_some_and(|generation| generation != table.generation)
        {
            return;
        }
        fetched.come = true;
        let known = |listed: &Listed| Known::new(Some(listed.member), listed.address);
        self.coming.extend(table.members.iter().map(known));
        self.coming.truncate(MEMBERS);
        match part.checked_add(1).filter(|next| *next < table.parts) {
            Some(next) => self.fetch(now, from, next, Some(table.generation)),
            None if self.coming.is_empty() => {}
            None => {
                self.daemons.told(core::mem::take(&mut self.coming));
                self.generation = table.generation;
            }
        }
    }

    fn fetch(&mut self, now: Time, from: SocketAddr, part: u16, generation: Option<u32>) {
        if part == 0 {
            self.coming.clear();
        }
        let id = self.bits();
        self.fetched = Some(Fetched { from, at: now, id, part, generation, come: false });
        let fetch = Fetch { id, generation: self.generation, part };
        self.outbox.push_back((To::Address(from), Message::Fetch(fetch)));
    }

    fn avoids(&self, member: u16) -> bool {
        self.avoid.iter().any(|(other, _)| *other == member)
    }

    /// Returns three round trips, and more if they vary.
    fn wait(&self) -> Duration {
        let trips =
            self.trip.map_or(Duration::ZERO, |(mean, deviation)| (3 * mean).max(mean + 4 * deviation));
        self.config.patience.max(trips).min(LONGEST)
    }

    /// Returns bits that cannot be predicted without the secret.
    fn bits(&mut self) -> u64 {
        self.turn += 1;
        self.config.secret.hash(&self.turn.to_be_bytes())
    }
}

/// Returns the client's clock in requests, which wraps after 71 minutes.
fn micros(now: Time) -> u32 {
    (now.0 / 1000) as u32
}
