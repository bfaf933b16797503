//! A member: its configuration, its load reports, and its live counts.

use alloc::sync::Arc;
use core::net::SocketAddr;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use core::time::Duration;

use serde::{Deserialize, Serialize};

use crate::load_line::MeterReport;
use crate::time::nanos;
use crate::{MigrationProgress, ShedDecision, Time};
use failure_detector::FailureDetector;
use last_report::LastReport;

pub(crate) mod concurrency_limit;
pub(crate) mod failure_detector;
mod fleet_counts;
pub(crate) mod handoff;
mod headroom;
pub(crate) mod last_report;
pub(crate) mod token_bucket;

/// The identity of a member of one group. It is stable during the member's life and never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MemberId(pub u32);

/// The state of a member, which decides whether it may be chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MemberState {
    /// Takes its share.
    Up,
    /// Came up recently: takes a growing part of its share.
    SlowStart,
    /// Health checks are configured and none has passed yet: not used.
    Unchecked,
    /// Its health checks fail.
    Down,
    /// Ejected because its traffic fails (outlier ejection); returns by itself.
    Ejected,
    /// Drained by an operator: its work ends, and it gets nothing new.
    Draining,
    /// Disabled by an operator: gets nothing new.
    Disabled,
}

impl MemberState {
    /// Returns `true` if this member may be chosen.
    pub fn is_eligible(self) -> bool {
        matches!(self, Self::Up | Self::SlowStart)
    }

    /// Returns the glyph and the label for display, the same in a terminal and on a page. Each state has its
    /// own glyph.
    pub fn glyph_and_label(self) -> (&'static str, &'static str) {
        match self {
            Self::Up => ("●", "up"),
            Self::SlowStart => ("◐", "slow start"),
            Self::Unchecked => ("○", "unchecked"),
            Self::Down => ("✘", "down"),
            Self::Ejected => ("⊘", "ejected"),
            Self::Draining => ("◌", "draining"),
            Self::Disabled => ("⊖", "disabled"),
        }
    }
}

/// A load from a monitor's report, in the unit of the group's metric.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReportedLoad {
    /// The load; finite and not negative.
    pub value: f64,
    /// The time of the measurement by the clock of this process, never later than now.
    pub at: Time,
    /// Whether it is the load of the member's whole host, of all groups: see
    /// [`LoadAttribution`](crate::shared_hosts::LoadAttribution).
    #[serde(default)]
    pub of_host: bool,
}

/// The load that strategies use, computed from a member's reports.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EffectiveLoad {
    /// The load in the unit of the group's metric. It is averaged over reports as the strategy demands, and
    /// mixed with the group's mean if the last report is old.
    pub value: f64,
    /// The [`Vitals::begun`] at the last report, which does not contain the requests begun since.
    pub begun: u32,
}

/// A member's report of its whole work, for weights by report (gRPC A58).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct UsageReport {
    /// The requests that it completes a second; finite and not negative.
    pub rps: f64,
    /// The utilization: 1 if fully used, possibly more; finite and not negative.
    pub utilization: f64,
    /// The requests that it fails a second; finite and not negative.
    pub eps: f64,
    /// The time of the measurement by the clock of this process, never later than now.
    pub at: Time,
}

/// A member in a [`Plan`](crate::Plan) or a view of the group.
#[derive(Clone, Debug)]
pub struct Member {
    /// The identity, stable within the group's life.
    pub id: MemberId,
    /// The name in the configuration: `host:port`.
    pub name: Arc<str>,
    /// The address to connect to.
    pub address: SocketAddr,
    /// A hash of `name`: the same in every process and on every machine.
    pub seed: u64,
    /// The configured capacity relative to the other members; finite, above 0.
    pub capacity: f64,
    /// `capacity` times the part of its share that slow start allows now; finite, above 0.
    pub weight: f64,
    /// The maximum number of simultaneous requests; `u32::MAX` for no limit.
    pub limit: u32,
    /// The state, which decides whether it may be chosen.
    pub state: MemberState,
    /// The last report of its monitor, if it has one.
    pub load: Option<ReportedLoad>,
    /// The load by its reports; `None` if no report counts any more.
    pub effective: Option<EffectiveLoad>,
    /// The last report of its work, if that gives a weight: not in its first seconds, and not when it is old.
    pub usage: Option<UsageReport>,
    /// The part of its sessions to move elsewhere; none without an alert.
    pub shed: ShedDecision,
    /// The part of the others' surplus that it can take, in units of capacity times load; 0 for none.
    pub deficit: f64,
    /// The live counts.
    pub vitals: Arc<Vitals>,
}

impl Member {
    /// Returns the requests, sessions or flows in flight, seen from this process.
    pub fn in_flight(&self) -> u32 {
        self.vitals.in_flight()
    }

    /// Returns the requests in flight, including the known ones of other balancers. Choices compare this
    /// figure.
    #[inline]
    pub fn in_flight_everywhere(&self) -> f64 {
        f64::from(self.vitals.in_flight()) + self.vitals.peer_in_flight()
    }

    /// Returns the requests that await an answer's head, plus the known requests of other balancers.
    #[inline]
    pub(crate) fn awaiting_everywhere(&self) -> f64 {
        f64::from(self.vitals.awaiting()) + self.vitals.peer_in_flight()
    }

    /// Returns the maximum number of requests from here: the limit, or this balancer's part of it.
    #[inline]
    pub fn max_in_flight(&self) -> u32 {
        self.limit.min(self.vitals.part().unwrap_or(u32::MAX))
    }

    /// Returns `true` if the member is at its limit of requests in flight or of requests a second. After an
    /// ejection it may have one request until one succeeds.
    pub fn is_full(&self) -> bool {
        let in_flight = self.in_flight();
        in_flight >= self.max_in_flight()
            || self.vitals.failure_detector.has_trial_in_flight(in_flight)
            || self.vitals.is_rate_exhausted()
    }

    /// Returns `true` if it is back from an ejection and its one trial request is in flight.
    pub fn has_trial_in_flight(&self) -> bool {
        self.vitals.failure_detector.has_trial_in_flight(self.in_flight())
    }
}

/// The live counts of one member, shared by all cores, on cache lines of their own.
///
/// They are shared rather than per core because an exact `least_connections` and a limit on connections need
/// the sum at the moment of the choice.
#[derive(Debug, Default)]
#[repr(align(64))]
pub struct Vitals {
    /// Requests in flight in the low half, requests begun in the high half: 32 bits each, so that one
    /// addition counts both.
    work: AtomicU64,
    /// The same counts of direct work between clients and the member, whose latency no balancer sees.
    direct_work: AtomicU64,
    /// Requests in flight from here that await no answer's head: their bodies are still being sent, or
    /// answers, streams and tunnels follow the head.
    streaming: AtomicU32,
    /// The tick of the oldest request that awaits an answer, if no answer has come since.
    oldest_awaited: AtomicU32,
    streak: AtomicU32,
    /// The requests in flight from here at which it gets no more, with admission; 0 for none (see
    /// `concurrency_limit`).
    concurrency_limit: AtomicU32,
    /// Requests that were not served.
    unserved: AtomicU32,
    /// Requests in flight from other balancers, f32 bits; written by the slow path (see
    /// [`fleet`](crate::fleet)).
    peer_in_flight: AtomicU32,
    /// The requests a second that other balancers begin (low half) and their waiting requests (high half),
    /// f32 bits each; written by the slow path.
    peer_rate_and_waiting: AtomicU64,
    /// One more than this balancer's part of the member's limit; 0 for all of it.
    limit_part: AtomicU32,
    /// This balancer's part of the member's requests a second, f32 bits; 0 for all of them.
    rate_share: AtomicU32,
    /// [`RATED`] and the number of requests that may have begun (see `token_bucket`); 0 for no limit.
    rate_cutoff: AtomicU64,
    /// The evidence against the member from the outcomes of its requests.
    pub(crate) failure_detector: FailureDetector,
    /// The latency estimate, nanoseconds as f32 bits, above the tick of its update; 0 for none.
    latency: AtomicU64,
    /// The last load report that the member sent with an answer.
    pub(crate) last_report: LastReport,
    /// The progress of decisions about its sessions.
    pub migration: MigrationProgress,
    /// Whether health checks have declared it down.
    down: AtomicBool,
}

impl Vitals {
    /// Returns counts with `in_flight` requests begun; for tests and simulations.
    pub fn with_in_flight(in_flight: u32) -> Self {
        Self { work: AtomicU64::new(u64::from(in_flight)), ..Self::default() }
    }

    #[cfg(test)]
    pub(crate) fn begun_before(begun: u32) -> Self {
        Self { work: AtomicU64::new(u64::from(begun) << 32), ..Self::default() }
    }

    /// Returns a separate copy of the present counts.
    pub(crate) fn copy(&self) -> Self {
        let (load_u32, load_u64) =
            (|cell: &AtomicU32| cell.load(Relaxed).into(), |cell: &AtomicU64| cell.load(Relaxed).into());
        Self {
            work: load_u64(&self.work),
            direct_work: load_u64(&self.direct_work),
            streaming: load_u32(&self.streaming),
            oldest_awaited: load_u32(&self.oldest_awaited),
            streak: load_u32(&self.streak),
            concurrency_limit: load_u32(&self.concurrency_limit),
            unserved: load_u32(&self.unserved),
            peer_in_flight: load_u32(&self.peer_in_flight),
            peer_rate_and_waiting: load_u64(&self.peer_rate_and_waiting),
            limit_part: load_u32(&self.limit_part),
            rate_share: load_u32(&self.rate_share),
            rate_cutoff: load_u64(&self.rate_cutoff),
            failure_detector: self.failure_detector.copy(),
            latency: load_u64(&self.latency),
            last_report: self.last_report.copy(),
            migration: MigrationProgress::default(),
            down: self.is_down().into(),
        }
    }

    /// Returns whether health checks have declared the member down.
    pub fn is_down(&self) -> bool {
        self.down.load(Relaxed)
    }

    /// Records whether health checks have declared the member down.
    pub(crate) fn declare_down(&self, down: bool) {
        self.down.store(down, Relaxed);
    }

    /// Records the requests that clients have at the member directly, by their own count: `now`, after
    /// `before`.
    ///
    /// Returns `false` and changes nothing if the requests in flight would exceed 10^9.
    pub fn record_direct_work(&self, previous: u32, current: u32) -> bool {
        if current > previous {
            let added = current - previous;
            if self.in_flight().saturating_add(added) > MAX_DIRECT {
                return false;
            }
            self.work.fetch_add(u64::from(added), Relaxed);
            self.direct_work.fetch_add(u64::from(added), Relaxed);
        } else {
            self.direct_work.fetch_sub(u64::from(previous - current), Relaxed);
            self.work.fetch_sub(u64::from(previous - current), Relaxed);
        }
        true
    }

    /// Marks the last request begun as a lease: its client goes to the member directly, unseen here.
    pub fn mark_leased(&self) {
        self.direct_work.fetch_add(BEGUN | 1, Relaxed);
    }

    /// Counts the end of a lease: once for each [`mark_leased`](Self::mark_leased), in place of
    /// [`end`](Self::end).
    pub fn end_lease(&self) {
        self.direct_work.fetch_sub(1, Relaxed);
        self.end();
    }

    /// Counts the start of a request; returns the number in flight with it.
    pub fn begin(&self) -> u32 {
        (self.work.fetch_add(BEGUN | 1, Relaxed) as u32).wrapping_add(1)
    }

    /// Counts the start of a request, as [`begin`](Self::begin) does, and records when the first awaited
    /// answer was asked for.
    pub fn begin_at(&self, now: Time) -> u32 {
        let in_flight = self.begin();
        if in_flight == self.streaming.load(Relaxed).wrapping_add(1) {
            self.oldest_awaited.store(tick(now), Relaxed);
        }
        in_flight
    }

    /// Removes a request in flight from those that await an answer's head: its body is still being sent, or
    /// the head has come and more follows it.
    pub fn begin_streaming(&self) {
        self.streaming.fetch_add(1, Relaxed);
    }

    /// Returns a request to those that await an answer's head, or ends it with its [`end`](Self::end): once
    /// for each [`begin_streaming`](Self::begin_streaming).
    pub fn end_streaming(&self) {
        self.streaming.fetch_sub(1, Relaxed);
    }

    /// Returns the requests in flight that await no answer's head.
    pub fn streaming(&self) -> u32 {
        self.streaming.load(Relaxed)
    }

    /// Returns the requests that await an answer's head: the load of the member as known here.
    pub fn awaiting(&self) -> u32 {
        // Concurrent updates may make it negative by a few.
        self.in_flight().saturating_sub(self.streaming())
    }

    /// Returns the requests that await an answer's head, without the direct ones of clients.
    pub fn awaiting_here(&self) -> u32 {
        self.in_flight_here().saturating_sub(self.streaming())
    }

    /// Returns the time for which answers have been awaited and none has come, in nanoseconds. It is at most
    /// the age of the oldest request that awaits one, and 0 if none is awaited.
    pub(crate) fn silence_nanos(&self, now: Time) -> u64 {
        if self.awaiting() == 0 {
            return 0;
        }
        let age = tick(now).wrapping_sub(self.oldest_awaited.load(Relaxed));
        let age = if age > u32::MAX - FUTURE { 0 } else { u64::from(age) << 20 };
        self.latency_and_age(now).map_or(age, |(_, nanos_since)| nanos_since.min(age))
    }

    /// Returns the part of [`silence_nanos`](Self::silence_nanos) that indicates a slow member, in
    /// nanoseconds.
    ///
    /// One unanswered request may be a long one. So the silence counts up to `4^n * usual` with `n`
    /// unanswered requests.
    pub(crate) fn excess_silence(&self, typical_latency: f64, now: Time) -> f64 {
        let silence = self.silence_nanos(now) as i64 as f64;
        silence.min(typical_latency * (1_u64 << (2 * self.awaiting().min(16))) as i64 as f64)
    }

    /// Counts the end of a request: once for each [`begin`](Self::begin).
    pub fn end(&self) {
        self.work.fetch_sub(1, Relaxed);
    }

    /// Returns the requests in flight.
    pub fn in_flight(&self) -> u32 {
        self.work.load(Relaxed) as u32
    }

    /// Returns the requests begun so far, and those in flight, at one moment.
    pub(crate) fn begun_and_in_flight(&self) -> (u32, u32) {
        let work = self.work.load(Relaxed);
        ((work >> 32) as u32, work as u32)
    }

    /// Returns `true` if the member has reached its limit of requests a second.
    #[inline]
    pub fn is_rate_exhausted(&self) -> bool {
        let cutoff = self.rate_cutoff.load(Relaxed);
        cutoff != 0 && self.begun().wrapping_sub(cutoff as u32) < u32::MAX / 2
    }

    /// Returns `true` if the member has a limit of requests a second.
    pub(crate) fn is_rate_limited(&self) -> bool {
        self.rate_cutoff.load(Relaxed) != 0
    }

    /// Sets the number of begun requests at which the member has reached its limit of requests a second.
    pub(crate) fn set_rate_cutoff(&self, begun: u32) {
        self.rate_cutoff.store(RATED | u64::from(begun), Relaxed);
    }

    /// Removes the limit of requests a second.
    pub(crate) fn clear_rate_limit(&self) {
        if self.is_rate_limited() {
            self.rate_cutoff.store(0, Relaxed);
        }
    }

    /// Returns the requests in flight through this process, without the direct ones of clients.
    pub fn in_flight_here(&self) -> u32 {
        // Concurrent updates may make it negative by a few.
        self.in_flight().saturating_sub(self.direct_work.load(Relaxed) as u32)
    }

    /// Returns the number of requests that this process has begun, modulo 2^32.
    pub fn begun_here(&self) -> u32 {
        self.begun().wrapping_sub((self.direct_work.load(Relaxed) >> 32) as u32)
    }

    /// Returns `true` if the requests from here have reached the learnt concurrency limit.
    pub(crate) fn is_at_learnt_limit(&self) -> bool {
        let limit = self.concurrency_limit.load(Relaxed);
        limit != 0 && self.awaiting_here() >= limit
    }

    /// Returns whether a request took longer than the latest ones.
    pub(crate) fn is_longer(&self, latency: Duration) -> bool {
        nanos(latency) > self.mean_latency().unwrap_or(f32::INFINITY)
    }

    /// Counts a request that was not served, which [`end`](Self::end) cannot distinguish: it failed, or its
    /// client gave up.
    pub fn record_unserved(&self) {
        self.unserved.fetch_add(1, Relaxed);
    }

    /// Returns the knee and the work from the member's last load report, if it is at most ten seconds old.
    pub fn meter_report(&self, now: Time) -> Option<MeterReport> {
        let report = self.last_report.view().filter(|report| now.since(report.at) <= REPORT_EXPIRY)?;
        Some(MeterReport { knee: f64::from(report.reading.knee), work: f64::from(report.reading.work) })
    }

    /// Returns the number of requests that were not served, modulo 2^32.
    pub(crate) fn unserved(&self) -> u32 {
        self.unserved.load(Relaxed)
    }

    /// Sets the learnt concurrency limit; 0 for none.
    pub(crate) fn set_concurrency_limit(&self, limit: u32) {
        if self.concurrency_limit.load(Relaxed) != limit {
            self.concurrency_limit.store(limit, Relaxed);
        }
    }

    /// Returns the learnt concurrency limit, if there is one.
    pub(crate) fn concurrency_limit(&self) -> Option<u32> {
        Some(self.concurrency_limit.load(Relaxed)).filter(|limit| *limit != 0)
    }

    /// Returns the number of requests begun, modulo 2^32.
    pub fn begun(&self) -> u32 {
        (self.work.load(Relaxed) >> 32) as u32
    }

    /// Returns the number of failures since the last success.
    pub fn streak(&self) -> u32 {
        self.streak.load(Relaxed)
    }

    /// Counts a failure; returns the length of the streak of failures with it.
    pub fn record_failure(&self) -> u32 {
        self.streak.fetch_add(1, Relaxed).wrapping_add(1)
    }

    /// Records that a request succeeded, or begins well. It writes only if there was something to end.
    pub fn record_success(&self) {
        self.failure_detector.end_probation();
        if self.streak.load(Relaxed) != 0 {
            self.streak.store(0, Relaxed);
        }
    }

    /// Folds one latency into the peak-sensitive moving average. A higher one counts at once, a lower one
    /// with weight `1 - e^(-dt/decay)` (Finagle's PeakEwma).
    ///
    /// If several latencies fall into one tick (about a millisecond), the highest and the first count.
    /// Concurrent updates may lose one another: an estimate tolerates that, and a lock on the request path
    /// would cost more.
    pub fn record_latency(&self, latency: Duration, now: Time, decay: Duration) {
        // At least a nanosecond, so that a stored estimate is never mistaken for none.
        let sample = nanos(latency).max(1.0);
        let average = match self.decayed(now, decay) {
            Some((value, share)) if sample < value => value * share + sample * (1.0 - share),
            _ => sample,
        };
        self.latency.store(u64::from(average.to_bits()) << 32 | u64::from(tick(now)), Relaxed);
    }

    /// Folds one latency into a plain moving average of about `over` latencies.
    pub(crate) fn blend(&self, latency: f32, sample_count: f32, now: Time) {
        self.blend_from(self.mean_latency().unwrap_or(latency), latency, sample_count, now);
    }

    /// Folds one latency into a plain moving average whose value so far is taken to be `mean`.
    pub(crate) fn blend_from(&self, mean: f32, latency: f32, sample_count: f32, now: Time) {
        debug_assert!(latency.is_finite());
        let average = mean + (latency - mean) * (2.0 / (sample_count + 1.0));
        // A late observation, as of the beginning of a tunnel at its end, is not newer than an earlier one.
        let (previous_tick, current_tick) = (self.latency.load(Relaxed) as u32, tick(now));
        let updated_tick = if previous_tick.wrapping_sub(current_tick) < u32::MAX / 2 && previous_tick != 0 {
            previous_tick
        } else {
            current_tick
        };
        self.latency.store(u64::from(average.max(1.0).to_bits()) << 32 | u64::from(updated_tick), Relaxed);
    }

    /// Returns the stored estimate, nanoseconds, however old; `None` before the first.
    pub(crate) fn mean_latency(&self) -> Option<f32> {
        let packed = self.latency.load(Relaxed);
        (packed != 0).then(|| f32::from_bits((packed >> 32) as u32))
    }

    /// Returns the stored estimate and its age, both in nanoseconds.
    pub(crate) fn latency_and_age(&self, now: Time) -> Option<(f32, u64)> {
        let packed = self.latency.load(Relaxed);
        if packed == 0 {
            return None;
        }
        let age = tick(now).wrapping_sub(packed as u32);
        let age = if age > u32::MAX - FUTURE { 0 } else { age };
        Some((f32::from_bits((packed >> 32) as u32), u64::from(age) << 20))
    }

    /// Returns the latency estimate in nanoseconds. Without traffic it decays towards zero, so that a slow
    /// member is tried again.
    ///
    /// Returns `None` before the first observation, and when the last one is older than ten times `decay`:
    /// the rest carries no information.
    pub fn latency(&self, now: Time, decay: Duration) -> Option<f32> {
        self.decayed(now, decay).map(|(value, share)| value * share)
    }

    /// Discards the member's history: it was out of use and returns.
    pub(crate) fn reset_history(&self) {
        self.streak.store(0, Relaxed);
        self.latency.store(0, Relaxed);
        self.last_report.forget();
    }

    /// Returns the stored estimate and the share of it that is left after the time since it was stored.
    fn decayed(&self, now: Time, decay: Duration) -> Option<(f32, f32)> {
        let packed = self.latency.load(Relaxed);
        if packed == 0 {
            return None;
        }
        let mut age = tick(now).wrapping_sub(packed as u32);
        if age > u32::MAX - FUTURE {
            // Cores may disagree on now by a batch of events: an estimate stored ahead of now has age 0.
            age = 0;
        }
        let ages = age as f32 * TICK_SECONDS / decay.as_secs_f32().max(TICK_SECONDS);
        (ages <= 10.0).then(|| (f32::from_bits((packed >> 32) as u32), libm::expf(-ages)))
    }
}

/// Returns the tick of a time. A tick is 2^20 ns, 1.05 ms: 32 bits of them last for 52 days. A member that
/// was unused for that time has, for a few seconds, an estimate that looks fresh.
fn tick(now: Time) -> u32 {
    (now.0 >> 20) as u32
}

/// One begun request in [`Vitals::work`].
const BEGUN: u64 = 1 << 32;

/// The mark of a limit on requests a second, in [`Vitals::rate_cutoff`].
const RATED: u64 = 1 << 32;

/// The maximum number of requests in flight with those that clients count themselves.
const MAX_DIRECT: u32 = 1_000_000_000;

/// The time after which a load report is ignored.
const REPORT_EXPIRY: Duration = Duration::from_secs(10);

const TICK_SECONDS: f32 = 1.048_576e-3;

/// The maximum lead of a time over now, in ticks: a minute. A greater one is taken for a wrapped past.
const FUTURE: u32 = 60_000;

#[cfg(test)]
mod tests;
