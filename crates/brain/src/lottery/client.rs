//! The client's side, as a value: [`pick`](Client::pick) a member for a service, send what
//! [`poll_transmit`](Client::poll_transmit) gives, pass on what comes, and look at [`poll_outcome`](Client::poll_outcome).
//!
//! A request goes to one daemon, drawn from those known, which refers to the winner. If nothing comes within 20 ms or three
//! round trips it goes to the same once more, unless that was silent before; then (without multicast: after two others) to all, where
//! the ladder answers even if most are dead; then, after longer and longer waits, to one and to all in turn. All attempts carry the
//! same id, so that whoever answered answers again. The first answer that names a member ends it; later ones find nobody waiting.
//!
//! The daemons to ask are those of a daemon's table, once there is one; those that it began with are asked again when none of these
//! is left, as the table may be that of a daemon that was alone.
//!
//! A daemon that says that there is nobody is not believed alone: another is asked at once, the same one if it is the only one, and
//! the second that says so ends the request.
//!
//! A member that failed is avoided for five seconds: it is listed in requests, and its answers are not used again. An answer with a
//! ttl is used again for so long.

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

/// What a client is told when it starts.
#[derive(Clone, Copy, Debug)]
pub struct ClientConfig {
    /// Random, and known to nobody else: the ids of requests are made of it, and who does not know it cannot tell the next
    /// from those before. Two clients with the same would choose the same ids.
    pub secret: Key,
    /// How to ask first: one daemon, or all.
    pub mode: Mode,
    /// Can it ask all? If not, it always asks one.
    pub multicast: bool,
    /// Attempts with one daemon before all are asked, where one is asked first: the more, the more a packet to all costs.
    pub alone: u8,
    /// The first wait for an answer at the least.
    pub patience: Duration,
    /// After so many attempts it gives up.
    pub attempts: u8,
}

impl ClientConfig {
    /// Referrals; 20 ms; eight attempts, which take 1.3 s where round trips are short.
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

/// What came of [`Client::pick`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Picked {
    /// An answer that may still be used.
    Again(Answer),
    /// A request is on its way: its id.
    Asked(u64),
    /// Too many are on their way.
    Full,
}

/// What became of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// A member.
    Member(Answer),
    /// No member, and why; `None` if nobody said anything.
    Nobody(u64, Option<Status>),
}

/// A client of a cluster.
#[derive(Clone, Debug)]
pub struct Client {
    config: ClientConfig,
    daemons: Daemons,
    generation: u32,
    /// The table that comes, and the part of it that was asked for last.
    coming: Vec<Known>,
    fetched: Option<Fetched>,
    open: BTreeMap<u64, Open>,
    due: BTreeSet<(Time, u64)>,
    /// By service, and until when.
    cache: BTreeMap<u32, (Answer, Time)>,
    avoid: Vec<(u16, Time)>,
    /// Smoothed round trip and its deviation.
    trip: Option<(Duration, Duration)>,
    turn: u64,
    outbox: VecDeque<(To, Message)>,
    outcomes: VecDeque<Outcome>,
    past: Past,
}

/// A part of a table that was asked for.
#[derive(Clone, Copy, Debug)]
struct Fetched {
    from: SocketAddr,
    at: Time,
    id: u64,
    part: u16,
    /// Of the parts before it.
    generation: Option<u32>,
    /// It has come.
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
    /// What daemons said instead of naming a member, and how often.
    refused: Option<Status>,
    refusals: u8,
    /// Who said it last, to which attempt: a datagram may come twice.
    refuser: Option<(SocketAddr, u32)>,
}

/// Most requests on their way, services remembered, members avoided.
const OPEN: usize = 4096;
const SERVICES: usize = 256;
const AVOID: usize = 16;

/// Bytes of a request at the least: room for four further members of IPv4.
const ROOM: u16 = 128;

/// How long a member that failed is avoided.
const GRUDGE: Duration = Duration::from_secs(5);

/// After so many requests in a row without an answer a daemon is left alone for as long: a loss is no death.
const SILENT: u8 = 2;

/// The longest wait between two attempts.
const LONGEST: Duration = Duration::from_secs(1);

/// Between two requests for a table.
const FETCH: Duration = Duration::from_secs(1);

impl Client {
    /// A client that knows nobody yet: it asks all until it does.
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

    /// The daemons to ask, by number and address.
    pub fn learn(&mut self, daemons: impl IntoIterator<Item = (u16, SocketAddr)>) {
        let known = |(member, address)| Known::new(Some(member), address);
        self.daemons = Daemons::begin(daemons.into_iter().map(known));
    }

    /// The same, where only addresses are known.
    pub fn begin_with(&mut self, daemons: impl IntoIterator<Item = SocketAddr>) {
        self.daemons = Daemons::begin(daemons.into_iter().map(|address| Known::new(None, address)));
    }

    /// Where the daemons are that it knows.
    pub fn daemons(&self) -> impl Iterator<Item = SocketAddr> {
        self.daemons.addresses()
    }

    /// Wants a member for `service`; `info` is for the application (at most 1000 bytes go).
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

    /// A member failed a moment ago: not that one again for a while.
    pub fn failed(&mut self, now: Time, member: u16) {
        self.avoid.retain(|(other, until)| *other != member && *until > now);
        if self.avoid.len() >= AVOID {
            self.avoid.remove(0);
        }
        self.avoid.push((member, now + GRUDGE));
        self.cache.retain(|_, (answer, _)| answer.member != member);
    }

    /// A message came.
    pub fn handle(&mut self, now: Time, from: SocketAddr, message: Message) {
        match message {
            Message::Answer(answer) => self.answered(now, from, answer),
            Message::Table(table) => self.told(now, from, table),
            _ => {}
        }
    }

    /// The next message to send.
    pub fn poll_transmit(&mut self) -> Option<(To, Message)> {
        self.outbox.pop_front()
    }

    /// The next request that has ended.
    pub fn poll_outcome(&mut self) -> Option<Outcome> {
        self.outcomes.pop_front()
    }

    /// When to call [`handle_timeout`](Self::handle_timeout).
    pub fn poll_timeout(&self) -> Option<Time> {
        self.due.first().map(|(due, _)| *due)
    }

    /// Asks again what got no answer in time.
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

    /// How many requests are on their way.
    pub fn open(&self) -> usize {
        self.open.len()
    }

    /// Requests that were given two members: a later answer named another one than the first, which is the one that counts.
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
                    // All but the fourth and every second one from there.
                    Mode::Lottery => open.attempt < 3 || open.attempt % 2 == 0,
                    // The third, or a later one, and every second one from there.
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
                // Nobody is known and nobody can be found out.
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

    /// The daemon that is to be asked again: once, the one that was asked first and said nothing, as it says the same if its answer
    /// was lost or is late. Another one may know other loads, and name another member.
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
        // What is longer than any attempt is no round trip.
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
            // That nobody is known here says less than that nobody can.
            if open.refused.is_none() || answer.status != Status::UnknownService {
                open.refused = Some(answer.status);
            }
            open.refusals += 1;
            // One that answers no has answered: another at once, if it was asked last; nobody else knows if the second says so.
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

    /// A part of the table: when all have come, they are the daemons to ask. If it changed meanwhile the next answer asks
    /// anew, after a while.
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

    /// Three round trips, and more where they differ.
    fn wait(&self) -> Duration {
        let trips =
            self.trip.map_or(Duration::ZERO, |(mean, deviation)| (3 * mean).max(mean + 4 * deviation));
        self.config.patience.max(trips).min(LONGEST)
    }

    /// Bits that only who has the secret can foretell.
    fn bits(&mut self) -> u64 {
        self.turn += 1;
        self.config.secret.hash(&self.turn.to_be_bytes())
    }
}

/// The client's clock in requests: wraps after 71 minutes.
fn micros(now: Time) -> u32 {
    (now.0 / 1000) as u32
}
