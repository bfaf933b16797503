//! A daemon of the lottery, as a value: received messages go to [`handle`](LotteryNode::handle), messages to
//! send come from [`poll_transmit`](LotteryNode::poll_transmit), and
//! [`poll_timeout`](LotteryNode::poll_timeout) returns the time to call
//! [`handle_timeout`](LotteryNode::handle_timeout). It reads no clock, opens no socket and uses no random
//! source.
//!
//! - `requests.rs`: requests. Referrals, the ladder, repeated answers.
//! - `gossip.rs`: reports, commits, tables, and timers. `config_change.rs`: new settings. `view.rs`: the
//!   state for display.
//!
//! All its state is bounded: [`MAX_MEMBERS`](super::MAX_MEMBERS) members with
//! [`MAX_SERVICES`] services each, [`NodeConfig::memory`] requests, 8192 that wait on
//! the ladder, 8192 commits to be repeated, 8192 messages to be sent.

mod config_change;
mod gossip;
mod requests;
mod view;

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;
use core::net::SocketAddr;
use core::time::Duration;

use super::dedup::DedupCache;
use super::draw::{CANDIDATES, CandidateRanking};
use super::fanout::ReportFanout;
use super::membership::{MembershipTable, SUSPECT_MISSES};
use super::message::{
    AnswerCommit, LotteryMessage, MAX_IDS, MAX_SERVICES, MessageTarget, NodeDescription, NodeState,
    ServiceOffer,
};
use super::siphash::SipHashKey;
use super::source_limits::SourceLimits;
use super::step_timer::{CommitDelays, LagTracker, REFERRAL_STEP};
use super::weight::{DEFAULT_SLOW_START, SmoothedLoad};
use crate::{Time, mix};

pub use config_change::NodeConfigChange;
pub use view::{NodeView, PeerView, ServiceView};

/// The settings of a daemon.
#[derive(Clone, Debug)]
pub struct NodeConfig {
    /// Its number, unique in the cluster.
    pub member: u16,
    /// Its incarnation, greater than in any earlier life.
    pub incarnation: u32,
    /// The address of the daemon.
    pub address: SocketAddr,
    /// The services of the server beside it; at most [`MAX_SERVICES`] count.
    pub offers: Vec<ServiceOffer>,
    /// The key of the draw, the same on all daemons.
    pub key: SipHashKey,
    /// The seed of random delays; any number.
    pub seed: u64,
    /// A random secret: the ids of its own queries are derived from it, so that others cannot answer in place
    /// of the queried daemon. [`new`](Self::new) takes `key`, which suffices if no daemon is hostile.
    pub secret: SipHashKey,
    /// The time between two reports, give or take a tenth.
    pub interval: Duration,
    /// Whether one packet reaches all. If not, reports go to as many daemons as requests pay for, and relay
    /// others' reports.
    pub multicast: bool,
    /// The time for which it collects members before it takes part.
    pub join_time: Duration,
    /// The number of candidates of a request: up to [`CANDIDATES`].
    pub candidates: usize,
    /// The number of candidates that may answer.
    pub responders: usize,
    /// The maximum number of remembered requests, 40 bytes each.
    ///
    /// The table grows with the requests within [`remember`](Self::remember), and takes half as much memory
    /// again while it grows. With less room some late repeats are drawn anew ([`NodeStatistics::forgotten`]).
    pub memory: usize,
    /// The time for which requests are remembered.
    pub remember: Duration,
    /// The milliseconds for which a client may use an answer again.
    pub ttl: u16,
    /// The time in which a member reaches its whole share.
    pub slow_start: Duration,
    /// The time after which a member outside the candidate set is forgotten; new ones are queried for their
    /// description. `None` if a membership protocol provides both.
    pub forget_after: Option<Duration>,
    /// The requests per second from one source, 0 for no limit.
    pub rate: u32,
    /// The maximum burst of requests from one source.
    pub burst: u32,
}

impl NodeConfig {
    /// Returns the settings that were best in the study of the lottery.
    pub fn new(
        member: u16,
        incarnation: u32,
        address: SocketAddr,
        offers: Vec<ServiceOffer>,
        key: SipHashKey,
    ) -> Self {
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
            join_time: Duration::from_millis(600),
            candidates: 4,
            responders: 3,
            // In 10 s 150,000 a second, and 84 MB then.
            memory: 1 << 21,
            remember: Duration::from_secs(10),
            ttl: 0,
            slow_start: DEFAULT_SLOW_START,
            forget_after: None,
            rate: 20_000,
            burst: 4_000,
        }
    }
}

/// A daemon's counts since it started, and its present state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeStatistics {
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
    pub stale_reports: u64,
    /// The requests of sources over their limit, and the reports of unknown members over their limit of
    /// queries.
    pub rate_limited: u64,
    /// The requests forgotten before their time for want of room.
    pub forgotten: u64,
    /// The number of requests that there is room to remember.
    pub request_capacity: usize,
    /// The messages and requests that did not fit into their queue.
    pub dropped: u64,
    /// The requests for which it answered last, because it lags.
    pub deferred_by_lag: u64,
    /// The requests that wait for another daemon to answer.
    pub waiting: usize,
    /// The messages to be sent, commits to be repeated, ids to be committed and to be listed.
    pub queued: usize,
    /// The number of other members that are not down.
    pub members: usize,
    /// The number of those that have reported.
    pub members_reporting: usize,
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
pub struct LotteryNode {
    config: NodeConfig,
    state: NodeState,
    /// The time at which it joined, came back or ended its drain.
    since: Time,
    /// The end of the collection of members.
    joined: Time,
    services: Vec<LocalService>,
    table: MembershipTable,
    fanout: ReportFanout,
    dedup: DedupCache,
    source_limits: SourceLimits,
    /// The limits of queries that unknown senders may cause.
    unknown_source_limits: SourceLimits,
    commit_delays: CommitDelays,
    lag: LagTracker,
    /// The time until which others may consider it dead, because it was stopped.
    away_until: Time,
    /// The last lag from the shell: when, and how long.
    last_lag: (Time, Duration),
    pending: BTreeMap<u64, PendingRequest>,
    due: BTreeSet<(Time, u64)>,
    repeats: VecDeque<CommitRepeat>,
    /// The ids per member, to be sent together.
    commits: BTreeMap<u16, Vec<u64>>,
    outbox: VecDeque<(MessageTarget, LotteryMessage)>,
    /// The answered ids, and the number of reports that contained each.
    recent: VecDeque<(u64, u8)>,
    seq: u32,
    last_report: Time,
    next_report: Time,
    /// The part of a table that was requested last.
    open_fetch: Option<gossip::OpenFetch>,
    fetches: u64,
    statistics: NodeStatistics,
}

/// A service of the server beside the daemon.
#[derive(Clone, Debug)]
struct LocalService {
    service: u32,
    capacity: u16,
    gauge: SmoothedLoad,
    in_flight: u16,
    /// The code last reported.
    sent_weight: u16,
    /// Whether the server can serve it now, and the time of the last change.
    ready: bool,
    since: Time,
    /// Whether an operator holds it, so that no client is sent to it.
    held: bool,
}

impl LocalService {
    /// Returns the code of its weight, given the time at which its daemon came.
    fn weight(&self, since: Time, now: Time, ramp: Duration) -> u16 {
        let up_for = now.since(self.since.max(since));
        if self.ready && !self.held { self.gauge.weight(now, self.capacity, up_for, ramp) } else { 0 }
    }
}

/// A request that waits for a better rank.
#[derive(Clone, Copy, Debug)]
struct PendingRequest {
    due: Time,
    request: requests::RequestContext,
    draw: requests::DrawResult,
    /// Whether it was late once.
    was_late: bool,
}

#[derive(Clone, Copy, Debug)]
struct CommitRepeat {
    due: Time,
    id: u64,
    others: CandidateRanking,
}

/// The queries per second that one source may cause, each of which takes many times the bytes of a report.
const UNKNOWN_SOURCE_RATE: u32 = 4;

/// The maximum length of each queue: requests, commits to repeat, messages.
const MAX_QUEUE: usize = 8192;

impl LotteryNode {
    /// Returns a daemon that joins at `now`.
    pub fn new(mut config: NodeConfig, now: Time) -> Self {
        config.offers.truncate(MAX_SERVICES);
        config.candidates = config.candidates.clamp(1, CANDIDATES);
        config.responders = config.responders.clamp(1, config.candidates);
        config.interval = config.interval.max(Duration::from_millis(10));
        let mut node = Self {
            state: NodeState::Joining,
            since: now,
            joined: now + config.join_time,
            services: config.offers.iter().map(|offer| LocalService::new(offer, now)).collect(),
            table: MembershipTable::new(
                config.member,
                config.interval,
                !config.multicast,
                config.forget_after,
            ),
            fanout: ReportFanout::default(),
            dedup: DedupCache::new(config.key, config.memory, config.remember),
            source_limits: SourceLimits::new(config.key, config.rate, config.burst),
            unknown_source_limits: SourceLimits::new(
                config.key,
                UNKNOWN_SOURCE_RATE,
                2 * UNKNOWN_SOURCE_RATE,
            ),
            commit_delays: CommitDelays::default(),
            lag: LagTracker::default(),
            away_until: Time(0),
            last_lag: (now, Duration::ZERO),
            pending: BTreeMap::new(),
            due: BTreeSet::new(),
            repeats: VecDeque::new(),
            commits: BTreeMap::new(),
            outbox: VecDeque::new(),
            recent: VecDeque::new(),
            seq: 0,
            last_report: now,
            next_report: now,
            open_fetch: None,
            fetches: 0,
            statistics: NodeStatistics::default(),
            config,
        };
        node.describe_self();
        node
    }

    /// Handles a message from `from`, which was authenticated before.
    pub fn handle(&mut self, now: Time, from: SocketAddr, message: LotteryMessage) {
        self.handle_with_key(now, from, None, message);
    }

    /// Handles a message that may be sealed with the client key of this number: the answer goes to
    /// [`MessageTarget::KeyedClient`].
    pub fn handle_with_key(
        &mut self,
        now: Time,
        from: SocketAddr,
        key: Option<u32>,
        message: LotteryMessage,
    ) {
        let reply_to = key.map_or(MessageTarget::Address(from), |key| MessageTarget::KeyedClient(from, key));
        match message {
            LotteryMessage::Request(request) => self.handle_request(now, from, reply_to, &request),
            LotteryMessage::Commit(commit) => self.handle_commit(now, &commit),
            LotteryMessage::Report(report) => self.handle_report(now, from, &report),
            LotteryMessage::Fetch(fetch) => self.handle_fetch(now, from, reply_to, fetch),
            LotteryMessage::Table(table) => self.handle_table(now, from, table),
            LotteryMessage::CandidateQuery(query) => self.handle_candidate_query(now, from, reply_to, query),
            LotteryMessage::Answer(_) | LotteryMessage::CandidateSet(_) => {}
        }
    }

    /// Returns the next message to send, if there is one. Commits to the same member are combined: take
    /// messages after a batch was handled, not after each.
    pub fn poll_transmit(&mut self) -> Option<(MessageTarget, LotteryMessage)> {
        if let Some(next) = self.outbox.pop_front() {
            return Some(next);
        }
        while let Some((member, ids)) = self.commits.pop_first() {
            if let Some(message) = self.send_commit(member, ids) {
                return Some(message);
            }
        }
        None
    }

    /// Returns the latest time to call [`handle_timeout`](Self::handle_timeout).
    pub fn poll_timeout(&self) -> Option<Time> {
        let mut next = self.next_report;
        if self.state == NodeState::Joining {
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
        self.record_lag(now, lag);
        self.last_lag = (now, lag);
    }

    /// Records a lag. After a lag in which others suspect it, it is away for as long as a new daemon takes to
    /// be known.
    fn record_lag(&mut self, now: Time, lag: Duration) {
        self.lag.record(now, lag);
        if lag >= self.config.interval * SUSPECT_MISSES {
            self.away_until = now + self.config.join_time;
        }
    }

    /// Sets the load of a service, in thousandths of the server's capacity, and its requests in flight. It is
    /// to be repeated each second or more often: after three seconds it is unknown, and the weight follows
    /// from the capacity alone.
    pub fn set_load(&mut self, now: Time, service: u32, load: u16, in_flight: u16) {
        let (since, interval) = (self.since, self.config.interval);
        let Some(local_service) =
            self.services.iter_mut().find(|local_service| local_service.service == service)
        else {
            return;
        };
        local_service.gauge.record(now, load);
        local_service.in_flight = in_flight;
        let weight = local_service.weight(since, now, self.config.slow_start);
        // A report to a few daemons is no faster than the next.
        if self.config.multicast
            && self.state == NodeState::Up
            && weight.abs_diff(local_service.sent_weight) > REPORTED_WEIGHT_STEP
        {
            self.next_report = self.next_report.min(now.max(self.last_report + interval / 4));
        }
    }

    /// Drains it, or lets it take part again (slowly).
    pub fn set_draining(&mut self, now: Time, drain: bool) {
        match (self.state, drain) {
            (NodeState::Joining | NodeState::Up, true) => self.state = NodeState::Draining,
            (NodeState::Draining, false) => {
                self.state = NodeState::Up;
                self.since = now;
            }
            _ => return,
        }
        self.next_report = now;
    }

    /// Announces its stop, and answers nothing more. Send the remaining messages before it stops.
    pub fn leave(&mut self, now: Time) {
        self.state = NodeState::Leaving;
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
    pub fn member_up(&mut self, description: NodeDescription) -> bool {
        description.member != self.config.member && self.table.describe(description, true)
    }

    /// Records from the membership protocol that a member is dead.
    pub fn member_down(&mut self, member: u16, incarnation: u32) {
        if member != self.config.member {
            self.table.mark_down(member, incarnation);
        }
    }

    /// Returns the addresses of the other members' daemons that are not down.
    pub fn node_addresses(&self) -> impl Iterator<Item = SocketAddr> {
        self.table.node_addresses()
    }

    /// Returns its state.
    pub fn state(&self) -> NodeState {
        self.state
    }

    /// Returns `true` if this daemon draws the member for the service.
    pub fn can_draw(&self, member: u16, service: u32) -> bool {
        self.table.is_candidate(member, service)
    }

    /// Returns the counts, and the present state.
    pub fn statistics(&self, now: Time) -> NodeStatistics {
        let (members, members_reporting, members_differ) = self.table.member_counts();
        let step = self.commit_delays.step();
        NodeStatistics {
            forgotten: self.dedup.forgotten,
            request_capacity: self.dedup.capacity(),
            waiting: self.pending.len(),
            queued: self.outbox.len()
                + self.repeats.len()
                + self.commits.values().map(Vec::len).sum::<usize>()
                + self.recent.len(),
            members,
            members_reporting,
            members_differ,
            commit_delay: self.commit_delays.delay_bound(),
            step,
            prefer_referral: step > REFERRAL_STEP,
            lag: self.lag.current(now),
            loads_lost: self.services.iter().filter(|local_service| local_service.gauge.is_lost(now)).count(),
            ..self.statistics
        }
    }

    fn describe_self(&mut self) {
        let NodeConfig { member, incarnation, address, .. } = self.config;
        let description =
            NodeDescription { member, incarnation, address, offers: self.config.offers.clone() };
        self.table.describe(description, true);
    }

    fn send(&mut self, to: MessageTarget, message: LotteryMessage) {
        if self.outbox.len() < MAX_QUEUE {
            self.outbox.push_back((to, message));
        } else {
            self.statistics.dropped += 1;
        }
    }

    fn send_commit(&mut self, member: u16, ids: Vec<u64>) -> Option<(MessageTarget, LotteryMessage)> {
        if ids.is_empty() {
            return None;
        }
        let to = MessageTarget::Address(self.table.description(member)?.address);
        self.statistics.commits += 1;
        let NodeConfig { member, incarnation, .. } = self.config;
        Some((to, LotteryMessage::Commit(AnswerCommit { member, incarnation, ids })))
    }

    /// Notifies the other candidates that `id` was answered.
    fn queue_commits(&mut self, id: u64, others: &CandidateRanking) {
        for candidate in others.candidates() {
            if candidate.member == self.config.member {
                continue;
            }
            let ids = self.commits.entry(candidate.member).or_default();
            ids.push(id);
            if ids.len() >= MAX_IDS {
                let ids = core::mem::take(ids);
                if let Some((to, message)) = self.send_commit(candidate.member, ids) {
                    self.send(to, message);
                }
            }
        }
    }
}

/// The change of a weight, in sixteenths of an octave, above which it is reported at once: a quarter.
const REPORTED_WEIGHT_STEP: u16 = 5;
