//! What came of the requests: counts and latencies, in bounded memory whatever the length of the run.
//!
//! Latency is measured from the moment a request was *due*, not from when it was sent: a generator that
//! waits for a stalled server and then starts the clock leaves out exactly the waits its users would have
//! had (Gil Tene calls it coordinated omission). The time from sending to the last byte of the answer, the
//! service time, is kept beside it. A request that failed or timed out counts in the latencies with the
//! time-out at the least, so that failing fast never looks like being fast.
//!
//! Latencies go into HdrHistograms: three significant digits (two by member) from 1 µs to an hour, mergeable.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use hdrhistogram::Histogram;
use serde::{Serialize, Serializer};

mod stored;

pub use stored::Percentile;

/// Why a request failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// No connection: refused, reset, unreachable.
    Connect,
    /// No connection before the kernel would have sent its SYN a second time.
    ConnectTimeout,
    /// The connection ended before the answer did.
    Closed,
    /// No whole answer in time.
    Timeout,
    /// An answer with a status of 400 or more.
    Status,
    /// The 503 of a balancer that sheds load, by its `plimsoll-reason`: it is no member that failed.
    Shed,
    /// An answer that is an exception (iiop).
    Exception,
    /// An answer that is not one.
    Malformed,
    /// The generator could not send it: too many in flight, or no more sockets.
    Unsent,
    /// Nobody was picked for it: no daemon answered, or nobody serves it.
    Unpicked,
}

impl Fault {
    /// Every one.
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
        Self::Unpicked,
    ];

    /// The one of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|fault| fault.name() == name)
    }

    /// As in `-o json`.
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
            Self::Unpicked => "unpicked",
        }
    }
}

impl Serialize for Fault {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

/// A run, or a part of one: what ended in it.
#[derive(Clone, Debug)]
pub struct Record {
    /// Requests that were due.
    pub due: u64,
    /// Of those, requests that the generator turned to within the tolerance of their due time.
    pub on_time: u64,
    /// Requests that had to wait for a connection because all that were allowed were busy.
    pub waited: u64,
    /// Requests answered without fault.
    pub ok: u64,
    /// The others, by reason. Every request that was due is in the end in `ok`, in here or in `cut`.
    pub failed: BTreeMap<Fault, u64>,
    /// Of those, exceptions by their names (iiop).
    pub exceptions: BTreeMap<Arc<str>, u64>,
    /// How often a server sent a request elsewhere (iiop).
    pub forwarded: u64,
    /// How often a session that had been sent elsewhere ended there and began anew where it had first begun (iiop).
    pub returned: u64,
    /// Requests still in flight when the run was stopped before its end. They count in the latencies with
    /// what they had taken until then.
    pub cut: u64,
    /// From when a request was due to the last byte of its answer; failures count with the time-out.
    pub latency: Latencies,
    /// From when a request was sent (or its connection begun) to the last byte of its answer; answered requests only.
    pub service: Latencies,
    /// From when a request was due to when the generator turned to it.
    pub lateness: Latencies,
    /// From when it was asked where a request goes to when that was told; of those for which a member was picked.
    pub picks: Latencies,
    /// Requests for which two members were named, one after the other.
    pub picked_twice: u64,
    /// By the member that said it answered.
    pub members: BTreeMap<Arc<str>, Tally>,
    /// CPU time of the generator's thread, in user code and in the kernel.
    pub cpu: Duration,
}

/// Answers of one member.
#[derive(Clone, Debug)]
pub struct Tally {
    /// Without fault.
    pub ok: u64,
    /// With a fault.
    pub failed: u64,
    /// As [`Record::latency`], of the answers without fault, to two digits.
    pub latency: Latencies,
}

impl Record {
    /// Empty.
    pub fn new() -> Self {
        Self {
            due: 0,
            on_time: 0,
            waited: 0,
            ok: 0,
            failed: BTreeMap::new(),
            exceptions: BTreeMap::new(),
            forwarded: 0,
            returned: 0,
            cut: 0,
            latency: Latencies::new(),
            service: Latencies::new(),
            lateness: Latencies::new(),
            picks: Latencies::new(),
            picked_twice: 0,
            members: BTreeMap::new(),
            cpu: Duration::ZERO,
        }
    }

    /// Requests that failed, whatever the reason.
    pub fn failures(&self) -> u64 {
        self.failed.values().sum()
    }

    /// Share of the requests that the generator turned to in time; 1 when none was due.
    pub fn punctuality(&self) -> f64 {
        if self.due == 0 { 1.0 } else { self.on_time as f64 / self.due as f64 }
    }

    /// Share of the answers without fault that each member gave.
    pub fn shares(&self) -> BTreeMap<Arc<str>, f64> {
        let total = self.members.values().map(|tally| tally.ok).sum::<u64>().max(1) as f64;
        self.members.iter().map(|(name, tally)| (name.clone(), tally.ok as f64 / total)).collect()
    }

    /// Adds another part of the run, or another generator's.
    pub fn add(&mut self, other: &Self) {
        self.due += other.due;
        self.on_time += other.on_time;
        self.waited += other.waited;
        self.cpu += other.cpu;
        self.ok += other.ok;
        self.cut += other.cut;
        for (fault, count) in &other.failed {
            *self.failed.entry(*fault).or_default() += count;
        }
        for (name, count) in &other.exceptions {
            *self.exceptions.entry(name.clone()).or_default() += count;
        }
        self.forwarded += other.forwarded;
        self.returned += other.returned;
        self.latency.add(&other.latency);
        self.service.add(&other.service);
        self.lateness.add(&other.lateness);
        self.picks.add(&other.picks);
        self.picked_twice += other.picked_twice;
        for (name, tally) in &other.members {
            self.members.entry(name.clone()).or_default().add(tally);
        }
    }

    /// Counts a request that the generator turned to `late` after it was due.
    pub(crate) fn left(&mut self, late: Duration, tolerance: Duration) {
        self.due += 1;
        self.on_time += u64::from(late <= tolerance);
        self.lateness.record(late);
    }

    /// Counts a pick that took so long.
    pub(crate) fn picked(&mut self, time: Duration) {
        self.picks.record(time);
    }

    /// Counts a request that could not leave, with the least latency it could have had.
    pub(crate) fn unsent(&mut self, timeout: Duration) {
        self.due += 1;
        *self.failed.entry(Fault::Unsent).or_default() += 1;
        self.latency.record(timeout);
    }

    /// Counts a request that was in flight when the run was stopped, with the latency it had until then: its
    /// own would have been greater.
    pub(crate) fn cut(&mut self, latency: Duration) {
        self.cut += 1;
        self.latency.record(latency);
    }

    /// Counts an answer without fault.
    pub(crate) fn answered(&mut self, member: Option<&Arc<str>>, latency: Duration, service: Duration) {
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
    pub(crate) fn failed(&mut self, member: Option<&Arc<str>>, fault: Fault, latency: Duration) {
        *self.failed.entry(fault).or_default() += 1;
        self.latency.record(latency);
        if let Some(name) = member {
            self.tally(name).failed += 1;
        }
    }

    /// Counts the name of an exception.
    pub(crate) fn named(&mut self, reason: Option<&Arc<str>>) {
        if let Some(reason) = reason {
            *self.exceptions.entry(reason.clone()).or_default() += 1;
        }
    }

    fn tally(&mut self, name: &Arc<str>) -> &mut Tally {
        self.members.entry(name.clone()).or_default()
    }
}

impl Default for Record {
    fn default() -> Self {
        Self::new()
    }
}

impl Default for Tally {
    fn default() -> Self {
        Self { ok: 0, failed: 0, latency: Latencies::of(2) }
    }
}

impl Tally {
    fn add(&mut self, other: &Self) {
        self.ok += other.ok;
        self.failed += other.failed;
        self.latency.add(&other.latency);
    }
}

/// Durations from 1 µs to an hour; what lies outside counts as the bound.
#[derive(Clone, Debug)]
pub struct Latencies(Histogram<u64>);

impl Latencies {
    /// Empty; keeps three digits.
    pub fn new() -> Self {
        Self::of(3)
    }

    fn of(digits: u8) -> Self {
        let hour = 3_600_000_000;
        Self(Histogram::new_with_bounds(1, hour, digits).expect("constant bounds that the histogram allows"))
    }

    /// Adds one.
    pub fn record(&mut self, value: Duration) {
        self.0.saturating_record(u64::try_from(value.as_micros()).unwrap_or(u64::MAX));
    }

    /// Adds all of another.
    pub fn add(&mut self, other: &Self) {
        if other.count() > 0 {
            self.0.add(&other.0).expect("both have the same bounds");
        }
    }

    /// How many.
    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// The value that a share `q` of them does not exceed; zero when empty.
    pub fn quantile(&self, q: f64) -> Duration {
        Duration::from_micros(self.0.value_at_quantile(q))
    }

    /// Arithmetic mean; zero when empty.
    pub fn mean(&self) -> Duration {
        Duration::from_nanos((self.0.mean() * 1e3) as u64)
    }

    /// The greatest; zero when empty.
    pub fn max(&self) -> Duration {
        Duration::from_micros(self.0.max())
    }
}

impl Default for Latencies {
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
        let mut first = Record::new();
        first.left(Duration::ZERO, MS);
        first.left(2 * MS, MS);
        first.answered(Some(&a), 10 * MS, 8 * MS);
        first.failed(None, Fault::Timeout, 1000 * MS);
        let mut second = Record::new();
        second.left(MS, MS);
        second.answered(Some(&b), 20 * MS, 20 * MS);
        second.unsent(1000 * MS);
        let mut whole = Record::new();
        whole.add(&first);
        whole.add(&second);
        assert_eq!((whole.due, whole.ok, whole.failures()), (4, 2, 2));
        assert_eq!(whole.punctuality(), 0.5);
        assert_eq!(whole.shares()[&a], 0.5);
        assert_eq!(whole.latency.count(), 4);
        assert_eq!(whole.service.count(), 2);
        assert!(whole.latency.quantile(0.5).abs_diff(20 * MS) < MS / 10);
        assert!(whole.latency.quantile(0.75) >= 1000 * MS);
    }

    #[test]
    fn out_of_range_counts_as_the_bound() {
        let mut latencies = Latencies::new();
        latencies.record(Duration::from_secs(86_400));
        latencies.record(Duration::ZERO);
        assert_eq!(latencies.count(), 2);
        assert!(latencies.max() >= Duration::from_secs(3600));
        assert_eq!(Latencies::new().quantile(0.99), Duration::ZERO);
    }
}
