//! A daemon of the lottery, as a value: received messages go to [`handle`](Daemon::handle), messages to send
//! come from [`poll_transmit`](Daemon::poll_transmit), and [`poll_timeout`](Daemon::poll_timeout) returns the
//! time to call [`handle_timeout`](Daemon::handle_timeout). It reads no clock, opens no socket and uses no
//! random source.
//!
//! - `ask.rs`: requests. Referrals, the ladder, repeated answers.
//! - `rounds.rs`: reports, commits, tables, and timers. `change.rs`: new settings. `view.rs`: the state for
//!   display.
//!
//! All its state is bounded: [`MEMBERS`](super::MEMBERS) members with [`SERVICES`](super::SERVICES) services
//! each, [`Config::memory`] requests, 8192 that wait on the ladder, 8192 commits to be repeated, 8192
//! messages to be sent.

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

/// The settings of a daemon.
#[derive(Clone, Debug)]
pub struct Config {
    /// Its number, unique in the cluster.
    pub member: u16,
    /// Its incarnation, greater than in any earlier life.
    pub incarnation: u32,
    /// The address of the daemon.
    pub address: SocketAddr,
    /// The services of the server beside it; at most [`SERVICES`] count.
    pub offers: Vec<Offer>,
    /// The key of the draw, the same on all daemons.
    pub key: Key,
    /// The seed of random delays; any number.
    pub seed: u64,
    /// A random secret: the ids of its own queries are derived from it, so that others cannot answer in place
    /// of the queried daemon. [`new`](Self::new) takes `key`, which suffices if no daemon is hostile.
    pub secret: Key,
    /// The time between two reports, give or take a tenth.
    pub interval: Duration,
    /// Whether one packet reaches all. If not, reports go to as many daemons as requests pay for, and relay
    /// others' reports.
    pub multicast: bool,
    /// The time for which it collects members before it takes part.
    pub joining: Duration,
    /// The number of candidates of a request: up to [`CANDIDATES`].
    pub candidates: usize,
    /// The number of candidates that may answer.
    pub responders: usize,
    /// The maximum number of remembered requests, 40 bytes each.
    ///
    /// The table grows with the requests within [`remember`](Self::remember), and takes half as much memory
    /// again while it grows. With less room some late repeats are drawn anew ([`Statistics::forgotten`]).
    pub memory: usize,
    /// The time for which requests are remembered.
    pub remember: Duration,
    /// The milliseconds for which a client may use an answer again.
    pub ttl: u16,
    /// The time in which a member reaches its whole share.
    pub slow_start: Duration,
    /// The time after which a member outside the drum is forgotten; new ones are queried for their
    /// description. `None` if a membership protocol provides both.
    pub forget: Option<Duration>,
    /// The requests per second from one source, 0 for no limit.
    pub rate: u32,
    /// The maximum burst of requests from one source.
    pub burst: u32,
}

impl Config {
    /// Returns the settings that were best in the study of the lottery.
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

/// A daemon's counts since it started, and its present state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// The answers by lottery, for this member.
    pub won: u64,
    /// Those of them in place of another member that did not answer in time.
    pub stood_in: u64,
    /// The answers by referral.
    pub referred: u64,
    /// The answers without a member.
    pub turned_away: u64,
    /// The answers repeated for a repeated request.
    pub repeated: u64,
    /// The requests that this daemon answered and another as well.
    pub duplicates: u64,
    /// The messages of commits sent.
    pub commits: u64,
    /// The reports sent.
    pub reports: u64,
    /// The new reports of others.
    pub heard: u64,
    /// The reports that were not newer than the known ones.
    pub stale: u64,
    /// The requests of sources over their limit, and the reports of unknown members over their limit of
    /// queries.
    pub limited: u64,
    /// The requests forgotten before their time for want of room.
    pub forgotten: u64,
    /// The number of requests that there is room to remember.
    pub room: usize,
    /// The messages and requests that did not fit into their queue.
    pub dropped: u64,
    /// The requests for which it answered last, because it lags.
    pub doubted: u64,
    /// The requests that wait for another daemon to answer.
    pub waiting: usize,
    /// The messages to be sent, commits to be repeated, ids to be committed and to be listed.
    pub queued: usize,
    /// The number of other members that are not down.
    pub members: usize,
    /// The number of those that have reported.
    pub members_heard: usize,
    /// The number of those whose last report had another digest than ours when it arrived.
    pub members_differ: usize,
    /// The time after the request within which 39 of 40 commits of a winner arrived, if that is known.
    pub commit_delay: Option<Duration>,
    /// The time that each rank waits for the previous one.
    pub step: Duration,
    /// Whether clients would do better with referrals, because the step is long.
    pub prefer_referral: bool,
    /// Its recent lag.
    pub lag: Duration,
    /// The number of its own services whose load was reported once and is not known any more.
    pub loads_lost: usize,
}

/// A daemon.
#[derive(Clone, Debug)]
pub struct Daemon {
    config: Config,
    state: Standing,
    /// The time at which it joined, came back or ended its drain.
    since: Time,
    /// The end of the collection of members.
    joined: Time,
    services: Vec<Local>,
    table: Table,
    spread: Spread,
    memory: Memory,
    sources: Sources,
    /// The limits of queries that unknown senders may cause.
    strangers: Sources,
    delays: Delays,
    lag: Lag,
    /// The time until which others may consider it dead, because it was stopped.
    away: Time,
    /// The last lag from the shell: when, and how long.
    waited: (Time, Duration),
    pending: BTreeMap<u64, Pending>,
    due: BTreeSet<(Time, u64)>,
    repeats: VecDeque<Repeat>,
    /// The ids per member, to be sent together.
    commits: BTreeMap<u16, Vec<u64>>,
    outbox: VecDeque<(To, Message)>,
    /// The answered ids, and the number of reports that contained each.
    recent: VecDeque<(u64, u8)>,
    seq: u32,
    reported: Time,
    next_report: Time,
    /// The part of a table that was requested last.
    fetched: Option<rounds::Fetched>,
    fetches: u64,
    statistics: Statistics,
}

/// A service of the server beside the daemon.
#[derive(Clone, Debug)]
struct Local {
    service: u32,
    capacity: u16,
    gauge: Gauge,
    in_flight: u16,
    /// The code last reported.
    sent: u16,
    /// Whether the server can serve it now, and the time of the last change.
    ready: bool,
    since: Time,
    /// Whether an operator holds it, so that no client is sent to it.
    held: bool,
}

impl Local {
    /// Returns the code of its weight, given the time at which its daemon came.
    fn weight(&self, since: Time, now: Time, ramp: Duration) -> u16 {
        let gone = now.since(self.since.max(since));
        if self.ready && !self.held { self.gauge.weight(now, self.capacity, gone, ramp) } else { 0 }
    }
}

/// A request that waits for a better rank.
#[derive(Clone, Copy, Debug)]
struct Pending {
    due: Time,
    asked: ask::Asked,
    drawn: ask::Drawn,
    /// Whether it was late once.
    late: bool,
}

#[derive(Clone, Copy, Debug)]
struct Repeat {
    due: Time,
    id: u64,
    others: Ranking,
}

/// The queries per second that one source may cause, each of which takes many times the bytes of a report.
const STRANGERS: u32 = 4;

/// The maximum length of each queue: requests, commits to repeat, messages.
const QUEUE: usize = 8192;

impl Daemon {
    /// Returns a daemon that joins at `now`.
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

    /// Handles a message from `from`, which was authenticated before.
    pub fn handle(&mut self, now: Time, from: SocketAddr, message: Message) {
        self.handle_by(now, from, None, message);
    }

    /// Handles a message that may be sealed with the client key of this number: the answer goes to
    /// [`To::Asker`].
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

    /// Returns the next message to send, if there is one. Commits to the same member are combined: take
    /// messages after a batch was handled, not after each.
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

    /// Returns the latest time to call [`handle_timeout`](Self::handle_timeout).
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

    /// Records the wait, since its arrival, of the message handled next, at `now`, if the shell knows it (a
    /// receive timestamp). A daemon that lags lets others answer first, which have probably done so already,
    /// or leaves the answer to them.
    pub fn note_lag(&mut self, now: Time, lag: Duration) {
        self.lagged(now, lag);
        self.waited = (now, lag);
    }

    /// Records a lag. After a lag in which others suspect it, it is away for as long as a new daemon takes to
    /// be known.
    fn lagged(&mut self, now: Time, late: Duration) {
        self.lag.note(now, late);
        if late >= self.config.interval * SUSPECT {
            self.away = now + self.config.joining;
        }
    }

    /// Sets the load of a service, in thousandths of the server's capacity, and its requests in flight. It is
    /// to be repeated each second or more often: after three seconds it is unknown, and the weight follows
    /// from the capacity alone.
    pub fn set_load(&mut self, now: Time, service: u32, load: u16, in_flight: u16) {
        let (since, interval) = (self.since, self.config.interval);
        let Some(local) = self.services.iter_mut().find(|local| local.service == service) else { return };
        local.gauge.note(now, load);
        local.in_flight = in_flight;
        let weight = local.weight(since, now, self.config.slow_start);
        // A report to a few daemons is no faster than the next.
        if self.config.multicast && self.state == Standing::Up && weight.abs_diff(local.sent) > STEP {
            self.next_report = self.next_report.min(now.max(self.reported + interval / 4));
        }
    }

    /// Drains it, or lets it take part again (slowly).
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

    /// Announces its stop, and answers nothing more. Send the remaining messages before it stops.
    pub fn leave(&mut self, now: Time) {
        self.state = Standing::Leaving;
        self.next_report = now;
        self.pending.clear();
        self.due.clear();
    }

    /// Begins a new life with a new incarnation, slowly, because others considered it dead.
    pub fn rejoin(&mut self, now: Time, incarnation: u32) {
        if incarnation > self.config.incarnation {
            self.config.incarnation = incarnation;
            self.seq = 0;
            self.since = now;
            self.next_report = now;
            self.describe_self();
        }
    }

    /// Records from the membership protocol that a member is present. Returns `false` if there is no room for
    /// it, or a later life is known.
    pub fn member_up(&mut self, listed: Listed) -> bool {
        listed.member != self.config.member && self.table.describe(listed, true)
    }

    /// Records from the membership protocol that a member is dead.
    pub fn member_down(&mut self, member: u16, incarnation: u32) {
        if member != self.config.member {
            self.table.down(member, incarnation);
        }
    }

    /// Returns the addresses of the other members' daemons that are not down.
    pub fn daemons(&self) -> impl Iterator<Item = SocketAddr> {
        self.table.daemons()
    }

    /// Returns its state.
    pub fn state(&self) -> Standing {
        self.state
    }

    /// Returns `true` if this daemon draws the member for the service.
    pub fn draws(&self, member: u16, service: u32) -> bool {
        self.table.draws(member, service)
    }

    /// Returns the counts, and the present state.
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

    /// Notifies the other candidates that `id` was answered.
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

/// The change of a weight, in sixteenths of an octave, above which it is reported at once: a quarter.
const STEP: u16 = 5;
