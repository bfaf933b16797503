//! The results of requests: counts and latencies, in bounded memory whatever the length of the run.
//!
//! Latency is measured from the time at which a request was *due*, not from when it was sent. A generator
//! that waits for a stalled server and then starts the clock leaves out exactly the waits its users would
//! have had (Gil Tene calls it coordinated omission). The time from sending to the last byte of the answer,
//! the service time, is kept separately. A request that failed or timed out counts with at least the
//! time-out, so that fast failures do not lower the latencies.
//!
//! Latencies go into HdrHistograms: three significant digits (two per member) from 1 µs to an hour,
//! mergeable.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use hdrhistogram::Histogram;
use serde::{Serialize, Serializer};

mod encoding;

pub use encoding::PercentileStep;

/// The reason why a request failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FailureKind {
    /// No connection: refused, reset, unreachable.
    Connect,
    /// No connection before the kernel would have sent its SYN a second time.
    ConnectTimeout,
    /// The connection ended before the answer did.
    Closed,
    /// No complete answer before the time-out.
    Timeout,
    /// An answer with a status of 400 or more.
    Status,
    /// The 503 of a balancer that sheds load, by its `plimsoll-reason`: no member failed.
    Shed,
    /// An answer that is an exception (iiop).
    Exception,
    /// An answer that breaks its protocol.
    Malformed,
    /// The generator could not send it: too many requests in flight, or no more sockets.
    Unsent,
    /// No member was picked for it: no daemon answered, or no member serves it.
    NoPick,
}

impl FailureKind {
    /// All faults.
    pub const ALL: [Self; 10] = [
        Self::Connect,
        Self::ConnectTimeout,
        Self::Closed,
        Self::Timeout,
        Self::Status,
        Self::Shed,
        Self::Exception,
        Self::Malformed,
        Self::Unsent,
        Self::NoPick,
    ];

    /// Returns the fault of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|failure| failure.name() == name)
    }

    /// Returns the name as in `-o json`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Connect => "connect",
            Self::ConnectTimeout => "connect_timeout",
            Self::Closed => "closed",
            Self::Timeout => "timeout",
            Self::Status => "status",
            Self::Shed => "shed",
            Self::Exception => "exception",
            Self::Malformed => "malformed",
            Self::Unsent => "unsent",
            Self::NoPick => "unpicked",
        }
    }
}

impl Serialize for FailureKind {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

/// The record of a run, or of a part of one.
#[derive(Clone, Debug)]
pub struct RunRecord {
    /// The number of requests that were due.
    pub due: u64,
    /// The number of those that the generator handled within the tolerance of their due time.
    pub on_time: u64,
    /// The number of requests that waited for a connection because all allowed ones were busy.
    pub waited: u64,
    /// The number of requests answered without fault.
    pub ok: u64,
    /// The number of the others, by reason. In the end every request that was due is in `ok`, in here or in
    /// `cut`.
    pub failed: BTreeMap<FailureKind, u64>,
    /// The number of exceptions among those, by name (iiop).
    pub exceptions: BTreeMap<Arc<str>, u64>,
    /// The number of redirections of a request by a server (iiop).
    pub forwarded: u64,
    /// The number of redirected sessions that ended and began anew at their first address (iiop).
    pub returned_sessions: u64,
    /// The number of requests still in flight when the run was stopped early. They count in the latencies
    /// with the time they had taken until then.
    pub cut: u64,
    /// The times from when a request was due to the last byte of its answer; failures count with the
    /// time-out.
    pub latency: LatencyHistogram,
    /// The times from when a request was sent (or its connection begun) to the last byte of its answer;
    /// answered requests only.
    pub service: LatencyHistogram,
    /// The times from when a request was due to when the generator handled it.
    pub lateness: LatencyHistogram,
    /// The times of the picks that returned a member.
    pub picks: LatencyHistogram,
    /// The number of requests for which two members were named, one after the other.
    pub duplicate_picks: u64,
    /// The results by the member that named itself in the answer.
    pub members: BTreeMap<Arc<str>, MemberTally>,
    /// The CPU time of the generator's thread, in user code and in the kernel.
    pub cpu: Duration,
}

/// The answers of one member.
#[derive(Clone, Debug)]
pub struct MemberTally {
    /// The number without fault.
    pub ok: u64,
    /// The number with a fault.
    pub failed: u64,
    /// The latencies as in [`RunRecord::latency`], of the answers without fault, to two digits.
    pub latency: LatencyHistogram,
}

impl RunRecord {
    /// Creates an empty record.
    pub fn new() -> Self {
        Self {
            due: 0,
            on_time: 0,
            waited: 0,
            ok: 0,
            failed: BTreeMap::new(),
            exceptions: BTreeMap::new(),
            forwarded: 0,
            returned_sessions: 0,
            cut: 0,
            latency: LatencyHistogram::new(),
            service: LatencyHistogram::new(),
            lateness: LatencyHistogram::new(),
            picks: LatencyHistogram::new(),
            duplicate_picks: 0,
            members: BTreeMap::new(),
            cpu: Duration::ZERO,
        }
    }

    /// Returns the number of requests that failed, whatever the reason.
    pub fn failures(&self) -> u64 {
        self.failed.values().sum()
    }

    /// Returns the share of the requests that the generator handled on time; 1 if none was due.
    pub fn punctuality(&self) -> f64 {
        if self.due == 0 { 1.0 } else { self.on_time as f64 / self.due as f64 }
    }

    /// Returns each member's share of the answers without fault.
    pub fn shares(&self) -> BTreeMap<Arc<str>, f64> {
        let total = self.members.values().map(|tally| tally.ok).sum::<u64>().max(1) as f64;
        self.members.iter().map(|(name, tally)| (name.clone(), tally.ok as f64 / total)).collect()
    }

    /// Adds another part of the run, or the record of another generator.
    pub fn merge(&mut self, other: &Self) {
        self.due += other.due;
        self.on_time += other.on_time;
        self.waited += other.waited;
        self.cpu += other.cpu;
        self.ok += other.ok;
        self.cut += other.cut;
        for (failure, count) in &other.failed {
            *self.failed.entry(*failure).or_default() += count;
        }
        for (name, count) in &other.exceptions {
            *self.exceptions.entry(name.clone()).or_default() += count;
        }
        self.forwarded += other.forwarded;
        self.returned_sessions += other.returned_sessions;
        self.latency.merge(&other.latency);
        self.service.merge(&other.service);
        self.lateness.merge(&other.lateness);
        self.picks.merge(&other.picks);
        self.duplicate_picks += other.duplicate_picks;
        for (name, tally) in &other.members {
            self.members.entry(name.clone()).or_default().merge(tally);
        }
    }

    /// Counts a request that the generator handled `late` after it was due.
    pub(crate) fn record_departure(&mut self, lateness: Duration, tolerance: Duration) {
        self.due += 1;
        self.on_time += u64::from(lateness <= tolerance);
        self.lateness.record(lateness);
    }

    /// Counts a pick that took `time`.
    pub(crate) fn record_pick(&mut self, time: Duration) {
        self.picks.record(time);
    }

    /// Counts a request that could not be sent, with the minimum latency it could have had.
    pub(crate) fn record_unsent(&mut self, timeout: Duration) {
        self.due += 1;
        *self.failed.entry(FailureKind::Unsent).or_default() += 1;
        self.latency.record(timeout);
    }

    /// Counts a request that was in flight when the run was stopped, with its latency until then, a lower
    /// bound.
    pub(crate) fn record_cut(&mut self, latency: Duration) {
        self.cut += 1;
        self.latency.record(latency);
    }

    /// Counts an answer without fault.
    pub(crate) fn record_success(&mut self, member: Option<&Arc<str>>, latency: Duration, service: Duration) {
        self.ok += 1;
        self.latency.record(latency);
        self.service.record(service);
        if let Some(name) = member {
            let tally = self.tally(name);
            tally.ok += 1;
            tally.latency.record(latency);
        }
    }

    /// Counts a failure; `latency` is at least the time-out.
    pub(crate) fn record_failure(
        &mut self,
        member: Option<&Arc<str>>,
        failure: FailureKind,
        latency: Duration,
    ) {
        *self.failed.entry(failure).or_default() += 1;
        self.latency.record(latency);
        if let Some(name) = member {
            self.tally(name).failed += 1;
        }
    }

    /// Counts the name of an exception.
    pub(crate) fn record_exception(&mut self, reason: Option<&Arc<str>>) {
        if let Some(reason) = reason {
            *self.exceptions.entry(reason.clone()).or_default() += 1;
        }
    }

    fn tally(&mut self, name: &Arc<str>) -> &mut MemberTally {
        self.members.entry(name.clone()).or_default()
    }
}

impl Default for RunRecord {
    fn default() -> Self {
        Self::new()
    }
}

impl Default for MemberTally {
    fn default() -> Self {
        Self { ok: 0, failed: 0, latency: LatencyHistogram::of(2) }
    }
}

impl MemberTally {
    fn merge(&mut self, other: &Self) {
        self.ok += other.ok;
        self.failed += other.failed;
        self.latency.merge(&other.latency);
    }
}

/// Durations from 1 µs to an hour; values outside count as the bound.
#[derive(Clone, Debug)]
pub struct LatencyHistogram(Histogram<u64>);

impl LatencyHistogram {
    /// Creates an empty histogram of three digits.
    pub fn new() -> Self {
        Self::of(3)
    }

    fn of(significant_digits: u8) -> Self {
        let max_micros = 3_600_000_000;
        Self(
            Histogram::new_with_bounds(1, max_micros, significant_digits)
                .expect("constant bounds that the histogram allows"),
        )
    }

    /// Adds a value.
    pub fn record(&mut self, value: Duration) {
        self.0.saturating_record(u64::try_from(value.as_micros()).unwrap_or(u64::MAX));
    }

    /// Adds all values of another histogram.
    pub fn merge(&mut self, other: &Self) {
        if other.count() > 0 {
            self.0.add(&other.0).expect("both have the same bounds");
        }
    }

    /// Returns the number of values.
    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// Returns the value that a share `q` of the values does not exceed; zero if empty.
    pub fn quantile(&self, q: f64) -> Duration {
        Duration::from_micros(self.0.value_at_quantile(q))
    }

    /// Returns the arithmetic mean; zero if empty.
    pub fn mean(&self) -> Duration {
        Duration::from_nanos((self.0.mean() * 1e3) as u64)
    }

    /// Returns the maximum; zero if empty.
    pub fn max(&self) -> Duration {
        Duration::from_micros(self.0.max())
    }
}

impl Default for LatencyHistogram {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn parts_add_up_to_the_whole() {
        let (a, b): (Arc<str>, Arc<str>) = ("a".into(), "b".into());
        let mut first_record = RunRecord::new();
        first_record.record_departure(Duration::ZERO, MS);
        first_record.record_departure(2 * MS, MS);
        first_record.record_success(Some(&a), 10 * MS, 8 * MS);
        first_record.record_failure(None, FailureKind::Timeout, 1000 * MS);
        let mut second_record = RunRecord::new();
        second_record.record_departure(MS, MS);
        second_record.record_success(Some(&b), 20 * MS, 20 * MS);
        second_record.record_unsent(1000 * MS);
        let mut merged = RunRecord::new();
        merged.merge(&first_record);
        merged.merge(&second_record);
        assert_eq!((merged.due, merged.ok, merged.failures()), (4, 2, 2));
        assert_eq!(merged.punctuality(), 0.5);
        assert_eq!(merged.shares()[&a], 0.5);
        assert_eq!(merged.latency.count(), 4);
        assert_eq!(merged.service.count(), 2);
        assert!(merged.latency.quantile(0.5).abs_diff(20 * MS) < MS / 10);
        assert!(merged.latency.quantile(0.75) >= 1000 * MS);
    }

    #[test]
    fn out_of_range_counts_as_the_bound() {
        let mut latencies = LatencyHistogram::new();
        latencies.record(Duration::from_secs(86_400));
        latencies.record(Duration::ZERO);
        assert_eq!(latencies.count(), 2);
        assert!(latencies.max() >= Duration::from_secs(3600));
        assert_eq!(LatencyHistogram::new().quantile(0.99), Duration::ZERO);
    }
}
