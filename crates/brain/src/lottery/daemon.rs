//! A daemon of the lottery, as a value: what comes in goes to [`handle`](Daemon::handle), what is to go out comes from
//! [`poll_transmit`](Daemon::poll_transmit), and [`poll_timeout`](Daemon::poll_timeout) says when to call
//! [`handle_timeout`](Daemon::handle_timeout). It reads no clock, opens no socket and rolls no dice.
//!
//! * `ask.rs`: requests. Referrals, the ladder, answers that are repeated.
//! * `rounds.rs`: reports, commits, tables, and what is due at a time. `change.rs`: other settings. `view.rs`: for people.
//!
//! Everything it keeps is bounded: [`MEMBERS`](super::MEMBERS) members with [`SERVICES`](super::SERVICES) services each,
//! [`Config::memory`] requests, 8192 that wait on the ladder, 8192 commits to be repeated, 8192 messages to be sent.

mod ask;
mod change;
mod rounds;
mod view;

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;
use core::net::SocketAddr;
use core::time::Duration;

use super::draw::{CANDIDATES, Ranking};
use super::gauge::{Gauge, RAMP};
use super::memory::Memory;
use super::message::{Commit, IDS, Listed, Message, Offer, SERVICES, Standing, To};
use super::pace::{Delays, Lag, REFERRAL};
use super::sip::Key;
use super::sources::Sources;
use super::spread::Spread;
use super::table::{SUSPECT, Table};
use crate::{Time, mix};

pub use change::Change;
pub use view::{Other, Own, View};

/// What a daemon is told when it starts.
#[derive(Clone, Debug)]
pub struct Config {
    /// Its number, alone in the cluster.
    pub member: u16,
    /// Greater than in any life before.
    pub incarnation: u32,
    /// Of the daemon.
    pub address: SocketAddr,
    /// What the server beside it offers; at most [`SERVICES`] count.
    pub offers: Vec<Offer>,
    /// The same on all daemons.
    pub key: Key,
    /// For what is spread in time; any number.
    pub seed: u64,
    /// Random, and known to nobody else, or others could answer in the place of those whom it asks: the ids of what it asks are
    /// made of it. [`new`](Self::new) takes `key`, which will do where nobody is to be kept out.
    pub secret: Key,
    /// Between two reports, give or take a tenth.
    pub interval: Duration,
    /// Does one packet reach all? If not, reports go to as many as requests pay for, and pass on what others said.
    pub multicast: bool,
    /// For how long it gathers who is there before it takes part.
    pub joining: Duration,
    /// Candidates of a request: up to [`CANDIDATES`].
    pub candidates: usize,
    /// Those of them who may answer.
    pub responders: usize,
    /// Most requests to remember, 40 bytes each. As many are taken as come in the time of [`remember`](Self::remember), and half as
    /// many again for a while when more come. With fewer some that are repeated late are drawn anew
    /// ([`Statistics::forgotten`]).
    pub memory: usize,
    /// For how long.
    pub remember: Duration,
    /// For how many milliseconds a client may use an answer again.
    pub ttl: u16,
    /// How long a member takes to come to its whole share.
    pub slow_start: Duration,
    /// Others are asked who they are, and who was out of the drum for so long is forgotten. `None` where a membership protocol says
    /// all that.
    pub forget: Option<Duration>,
    /// Requests per second from one source, 0 for any number; and how many at once.
    pub rate: u32,
    /// Most requests from one source at once.
    pub burst: u32,
}

impl Config {
    /// With what the study of the lottery found best.
    pub fn new(member: u16, incarnation: u32, address: SocketAddr, offers: Vec<Offer>, key: Key) -> Self {
        Self {
            member,
            incarnation,
            address,
            offers,
            key,
            seed: mix(u64::from(member) << 32 ^ u64::from(incarnation)),
            secret: key,
            interval: Duration::from_millis(250),
            multicast: true,
            joining: Duration::from_millis(600),
            candidates: 4,
            responders: 3,
            // In 10 s 150,000 a second, and 84 MB then.
            memory: 1 << 21,
            remember: Duration::from_secs(10),
            ttl: 0,
            slow_start: RAMP,
            forget: None,
            rate: 20_000,
            burst: 4_000,
        }
    }
}

/// What a daemon counted since it started, and how it sees things now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Answers by lottery, for this member.
    pub won: u64,
    /// Those of them that were another's, who did not answer in time.
    pub stood_in: u64,
    /// Answers by referral.
    pub referred: u64,
    /// Answers that there is nobody.
    pub turned_away: u64,
    /// Answers repeated for a repeated request.
    pub repeated: u64,
    /// Requests that this daemon answered and another as well.
    pub duplicates: u64,
    /// Messages of commits sent.
    pub commits: u64,
    /// Reports sent.
    pub reports: u64,
    /// Reports of others that were news.
    pub heard: u64,
    /// Reports that were not newer than what was known.
    pub stale: u64,
    /// Requests of sources that ask too much, and reports of strangers who have too much asked of them.
    pub limited: u64,
    /// Requests forgotten before their time, as there were too many.
    pub forgotten: u64,
    /// Requests that there is room to remember.
    pub room: usize,
    /// Messages and requests that did not fit into their queue.
    pub dropped: u64,
    /// Requests for which it went last, as it is late itself.
    pub doubted: u64,
    /// Requests that wait for another to answer.
    pub waiting: usize,
    /// Messages to be sent, commits to be repeated, ids to be committed and to be listed.
    pub queued: usize,
    /// Members that are not down, without this one.
    pub members: usize,
    /// Those of them that have reported.
    pub members_heard: usize,
    /// Those of them whose last report was of another view than ours when it came.
    pub members_differ: usize,
    /// 39 of 40 commits of a winner came within this time after the request, if that is known.
    pub commit_delay: Option<Duration>,
    /// How long each rank waits for the one before.
    pub step: Duration,
    /// Would clients do better with referrals, as the step is long?
    pub prefer_referral: bool,
    /// How late it was of late.
    pub lag: Duration,
    /// Services of its own server whose load was told once and is not known any more.
    pub loads_lost: usize,
}

/// One daemon.
#[derive(Clone, Debug)]
pub struct Daemon {
    config: Config,
    state: Standing,
    /// When it came, came back or was drained no more.
    since: Time,
    /// When it has gathered enough.
    joined: Time,
    services: Vec<Local>,
    table: Table,
    spread: Spread,
    memory: Memory,
    sources: Sources,
    /// Those who have a daemon ask who they are.
    strangers: Sources,
    delays: Delays,
    lag: Lag,
    /// Until when others may hold it for dead, as it was away.
    away: Time,
    /// When the shell said last how long what is handled has waited, and how long.
    waited: (Time, Duration),
    pending: BTreeMap<u64, Pending>,
    due: BTreeSet<(Time, u64)>,
    repeats: VecDeque<Repeat>,
    /// Ids per member, to be sent together.
    commits: BTreeMap<u16, Vec<u64>>,
    outbox: VecDeque<(To, Message)>,
    /// Ids answered, and in how many reports each was.
    recent: VecDeque<(u64, u8)>,
    seq: u32,
    reported: Time,
    next_report: Time,
    /// The part of a table that was asked for last.
    fetched: Option<rounds::Fetched>,
    fetches: u64,
    statistics: Statistics,
}

/// One service of the server beside the daemon.
#[derive(Clone, Debug)]
struct Local {
    service: u32,
    capacity: u16,
    gauge: Gauge,
    in_flight: u16,
    /// The code last reported.
    sent: u16,
    /// Can the server do it now, and since when?
    ready: bool,
    since: Time,
    /// Is nobody sent to it whatever the server can do, as somebody said so?
    held: bool,
}

impl Local {
    /// The code of what the server wants of it, where its daemon came at `since`.
    fn weight(&self, since: Time, now: Time, ramp: Duration) -> u16 {
        let gone = now.since(self.since.max(since));
        if self.ready && !self.held { self.gauge.weight(now, self.capacity, gone, ramp) } else { 0 }
    }
}

/// A request that waits for one before in rank.
#[derive(Clone, Copy, Debug)]
struct Pending {
    due: Time,
    asked: ask::Asked,
    drawn: ask::Drawn,
    /// Its time has come once, late.
    late: bool,
}

#[derive(Clone, Copy, Debug)]
struct Repeat {
    due: Time,
    id: u64,
    others: Ranking,
}

/// How often a second one source may have a daemon ask who it is, which takes many times the bytes that a report has.
const STRANGERS: u32 = 4;

/// Most of what waits: requests, commits to repeat, messages.
const QUEUE: usize = 8192;

impl Daemon {
    /// A daemon that joins at `now`.
    pub fn new(mut config: Config, now: Time) -> Self {
        config.offers.truncate(SERVICES);
        config.candidates = config.candidates.clamp(1, CANDIDATES);
        config.responders = config.responders.clamp(1, config.candidates);
        config.interval = config.interval.max(Duration::from_millis(10));
        let mut daemon = Self {
            state: Standing::Joining,
            since: now,
            joined: now + config.joining,
            services: config.offers.iter().map(|offer| Local::new(offer, now)).collect(),
            table: Table::new(config.member, config.interval, !config.multicast, config.forget),
            spread: Spread::default(),
            memory: Memory::new(config.key, config.memory, config.remember),
            sources: Sources::new(config.key, config.rate, config.burst),
            strangers: Sources::new(config.key, STRANGERS, 2 * STRANGERS),
            delays: Delays::default(),
            lag: Lag::default(),
            away: Time(0),
            waited: (now, Duration::ZERO),
            pending: BTreeMap::new(),
            due: BTreeSet::new(),
            repeats: VecDeque::new(),
            commits: BTreeMap::new(),
            outbox: VecDeque::new(),
            recent: VecDeque::new(),
            seq: 0,
            reported: now,
            next_report: now,
            fetched: None,
            fetches: 0,
            statistics: Statistics::default(),
            config,
        };
        daemon.describe_self();
        daemon
    }

    /// A message came from `from`. Whether it may be believed was decided before.
    pub fn handle(&mut self, now: Time, from: SocketAddr, message: Message) {
        self.handle_by(now, from, None, message);
    }

    /// The same, where it may be sealed with a key for clients, of this number: what answers it goes to [`To::Asker`].
    pub fn handle_by(&mut self, now: Time, from: SocketAddr, key: Option<u32>, message: Message) {
        let back = key.map_or(To::Address(from), |key| To::Asker(from, key));
        match message {
            Message::Request(request) => self.requested(now, from, back, &request),
            Message::Commit(commit) => self.committed(now, &commit),
            Message::Report(report) => self.reported(now, from, &report),
            Message::Fetch(fetch) => self.asked_for_table(now, from, back, fetch),
            Message::Table(table) => self.told_table(now, from, table),
            Message::Look(look) => self.looked_at(now, from, back, look),
            Message::Answer(_) | Message::Drum(_) => {}
        }
    }

    /// The next message to send, if there is one. Commits go together with others to the same member: take messages
    /// after a batch was handled, not after each.
    pub fn poll_transmit(&mut self) -> Option<(To, Message)> {
        if let Some(next) = self.outbox.pop_front() {
            return Some(next);
        }
        while let Some((member, ids)) = self.commits.pop_first() {
            if let Some(message) = self.commit_to(member, ids) {
                return Some(message);
            }
        }
        None
    }

    /// When to call [`handle_timeout`](Self::handle_timeout) at the latest.
    pub fn poll_timeout(&self) -> Option<Time> {
        let mut next = self.next_report;
        if self.state == Standing::Joining {
            next = next.min(self.joined);
        }
        if let Some((due, _)) = self.due.first() {
            next = next.min(*due);
        }
        if let Some(repeat) = self.repeats.front() {
            next = next.min(repeat.due);
        }
        Some(next)
    }

    /// How long what is handled next, at `now`, has waited since it arrived, if the shell can tell (a receive timestamp). A daemon that is
    /// late lets others answer first, who have probably done so already, or leaves it to them.
    pub fn note_lag(&mut self, now: Time, lag: Duration) {
        self.lagged(now, lag);
        self.waited = (now, lag);
    }

    /// It is so late. After as long as others wait for a report it takes as long as one that is new takes to be known to them.
    fn lagged(&mut self, now: Time, late: Duration) {
        self.lag.note(now, late);
        if late >= self.config.interval * SUSPECT {
            self.away = now + self.config.joining;
        }
    }

    /// The load of a service: in thousandths of what the server can do, and requests that it works on. To be told again each
    /// second or more often: what was not told for three is not known, and the weight follows from the capacity alone.
    pub fn set_load(&mut self, now: Time, service: u32, load: u16, in_flight: u16) {
        let (since, interval) = (self.since, self.config.interval);
        let Some(local) = self.services.iter_mut().find(|local| local.service == service) else { return };
        local.gauge.note(now, load);
        local.in_flight = in_flight;
        let weight = local.weight(since, now, self.config.slow_start);
        // A report that few hear is no quicker than the next.
        if self.config.multicast && self.state == Standing::Up && weight.abs_diff(local.sent) > STEP {
            self.next_report = self.next_report.min(now.max(self.reported + interval / 4));
        }
    }

    /// Takes nothing more, or takes part again (slowly).
    pub fn drain(&mut self, now: Time, drain: bool) {
        match (self.state, drain) {
            (Standing::Joining | Standing::Up, true) => self.state = Standing::Draining,
            (Standing::Draining, false) => {
                self.state = Standing::Up;
                self.since = now;
            }
            _ => return,
        }
        self.next_report = now;
    }

    /// Is about to stop: says so, and answers nothing more. Send what is to be sent before it stops.
    pub fn leave(&mut self, now: Time) {
        self.state = Standing::Leaving;
        self.next_report = now;
        self.pending.clear();
        self.due.clear();
    }

    /// Others thought it dead: a new life begins, with a new incarnation, slowly.
    pub fn rejoin(&mut self, now: Time, incarnation: u32) {
        if incarnation > self.config.incarnation {
            self.config.incarnation = incarnation;
            self.seq = 0;
            self.since = now;
            self.next_report = now;
            self.describe_self();
        }
    }

    /// The membership protocol says that a member is there. False if there is no room for it, or a later life is known.
    pub fn member_up(&mut self, listed: Listed) -> bool {
        listed.member != self.config.member && self.table.describe(listed, true)
    }

    /// The membership protocol says that a member is dead.
    pub fn member_down(&mut self, member: u16, incarnation: u32) {
        if member != self.config.member {
            self.table.down(member, incarnation);
        }
    }

    /// Where the daemons of other members are, of those that are not down.
    pub fn daemons(&self) -> impl Iterator<Item = SocketAddr> {
        self.table.daemons()
    }

    /// What it is about.
    pub fn state(&self) -> Standing {
        self.state
    }

    /// Is a member drawn for a service, as far as this daemon knows?
    pub fn draws(&self, member: u16, service: u32) -> bool {
        self.table.draws(member, service)
    }

    /// Counts, and how it sees things.
    pub fn statistics(&self, now: Time) -> Statistics {
        let (members, members_heard, members_differ) = self.table.count();
        let step = self.delays.step();
        Statistics {
            forgotten: self.memory.forgotten,
            room: self.memory.room(),
            waiting: self.pending.len(),
            queued: self.outbox.len()
                + self.repeats.len()
                + self.commits.values().map(Vec::len).sum::<usize>()
                + self.recent.len(),
            members,
            members_heard,
            members_differ,
            commit_delay: self.delays.most(),
            step,
            prefer_referral: step > REFERRAL,
            lag: self.lag.now(now),
            loads_lost: self.services.iter().filter(|local| local.gauge.lost(now)).count(),
            ..self.statistics
        }
    }

    fn describe_self(&mut self) {
        let Config { member, incarnation, address, .. } = self.config;
        let listed = Listed { member, incarnation, address, offers: self.config.offers.clone() };
        self.table.describe(listed, true);
    }

    fn send(&mut self, to: To, message: Message) {
        if self.outbox.len() < QUEUE {
            self.outbox.push_back((to, message));
        } else {
            self.statistics.dropped += 1;
        }
    }

    fn commit_to(&mut self, member: u16, ids: Vec<u64>) -> Option<(To, Message)> {
        if ids.is_empty() {
            return None;
        }
        let to = To::Address(self.table.listed(member)?.address);
        self.statistics.commits += 1;
        let Config { member, incarnation, .. } = self.config;
        Some((to, Message::Commit(Commit { member, incarnation, ids })))
    }

    /// Tells the other candidates that `id` was answered.
    fn commit(&mut self, id: u64, others: &Ranking) {
        for place in others.places() {
            if place.member == self.config.member {
                continue;
            }
            let ids = self.commits.entry(place.member).or_default();
            ids.push(id);
            if ids.len() >= IDS {
                let ids = core::mem::take(ids);
                if let Some((to, message)) = self.commit_to(place.member, ids) {
                    self.send(to, message);
                }
            }
        }
    }
}

/// A weight that moves further than this, in sixteenths of an octave, is reported at once: by a quarter.
const STEP: u16 = 5;
