//! Counters with one writing core and any number of readers: relaxed loads and stores, no read-modify-write.

use std::collections::BTreeMap;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use plimsoll_brain::load_line::{CONCURRENCY_LEVELS, concurrency_level};
use plimsoll_brain::status::LatencySummary;
use serde::{Deserialize, Serialize};

/// A number with one writer.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, more: u64) {
        self.0.store(self.0.load(Relaxed).wrapping_add(more), Relaxed);
    }

    pub(crate) fn sub(&self, less: u64) {
        self.0.store(self.0.load(Relaxed).wrapping_sub(less), Relaxed);
    }

    pub(crate) fn value(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// The number of sub-buckets per octave, as a shift.
const SUB: u32 = 3;
/// The number of buckets: from 1.024 µs in steps of an eighth of an octave to 2^40 ns, 18 minutes.
const BUCKETS: usize = (30 - SUB as usize + 1) << SUB;

/// A log-linear histogram of latencies: each sample is known within 6 %. Allocated at the first sample: of a
/// hundred thousand members, most have no samples on most cores.
#[derive(Debug, Default)]
pub(crate) struct Histogram {
    buckets: OnceLock<Box<[Counter; BUCKETS]>>,
    sum: Counter,
}

impl Histogram {
    pub(crate) fn record(&self, latency: Duration) {
        let nanos = latency.as_nanos() as u64;
        self.buckets()[bucket(nanos)].add(1);
        self.sum.add(nanos);
    }

    /// Adds time to a sample that was already recorded: to the sum, without moving it to another bucket.
    pub(crate) fn add_time(&self, more: Duration) {
        self.sum.add(more.as_nanos() as u64);
    }

    fn buckets(&self) -> &[Counter; BUCKETS] {
        self.buckets.get_or_init(|| Box::new([const { Counter(AtomicU64::new(0)) }; BUCKETS]))
    }

    /// Records several samples with this average latency.
    pub(crate) fn record_many(&self, latency: Duration, count: u64) {
        let nanos = latency.as_nanos() as u64;
        self.buckets()[bucket(nanos)].add(count);
        self.sum.add(nanos.saturating_mul(count));
    }
}

impl Histogram {
    /// Returns the sum of all samples, in seconds.
    pub(crate) fn seconds(&self) -> f64 {
        self.sum.value() as f64 / 1e9
    }

    /// Adds the counts of another process.
    pub(crate) fn add(&self, more: &HistogramSnapshot) {
        for (place, count) in &more.counts {
            if let Some(bucket) = self.buckets().get(*place) {
                bucket.add(*count);
            }
        }
        self.sum.add(more.nanos);
    }
}

/// A snapshot of a [`Histogram`] for another process, without empty buckets.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct HistogramSnapshot {
    nanos: u64,
    counts: BTreeMap<usize, u64>,
}

impl HistogramSnapshot {
    /// Returns the sum of several histograms.
    pub(crate) fn merge<'a>(histograms: impl Iterator<Item = &'a Histogram>) -> Self {
        let HistogramSum { counts, sum } = HistogramSum::merge(histograms);
        let counts = counts.into_iter().enumerate().filter(|(_, count)| *count > 0).collect();
        Self { nanos: sum, counts }
    }

    /// Returns the difference to an earlier snapshot.
    pub(crate) fn since(&self, before: &Self) -> Self {
        let less = |(place, count): (&usize, &u64)| {
            let more = count.saturating_sub(before.counts.get(place).copied().unwrap_or_default());
            (more > 0).then_some((*place, more))
        };
        let counts = self.counts.iter().filter_map(less).collect();
        Self { nanos: self.nanos.saturating_sub(before.nanos), counts }
    }
}

/// The numbers and latencies of successful requests by the requests in flight at their member when they
/// began. Like a [`Histogram`], allocated at the first one.
#[derive(Debug, Default)]
pub(crate) struct LatencyByConcurrency(OnceLock<Box<[[Counter; 2]; CONCURRENCY_LEVELS]>>);

impl LatencyByConcurrency {
    fn counts(&self) -> &[[Counter; 2]; CONCURRENCY_LEVELS] {
        self.0.get_or_init(|| {
            Box::new([const { [Counter(AtomicU64::new(0)), Counter(AtomicU64::new(0))] }; CONCURRENCY_LEVELS])
        })
    }

    pub(crate) fn record(&self, in_flight: u32, latency: Duration) {
        let [requests, nanos] = &self.counts()[concurrency_level(in_flight)];
        requests.add(1);
        nanos.add(latency.as_nanos() as u64);
    }

    /// Adds the counts of another process.
    pub(crate) fn add(&self, more: &[[u64; 2]]) {
        for ([requests, nanos], more) in self.counts().iter().zip(more) {
            requests.add(more[0]);
            nanos.add(more[1]);
        }
    }

    /// Adds these counts to `into`.
    pub(crate) fn sum(&self, into: &mut [[u64; 2]; CONCURRENCY_LEVELS]) {
        let Some(counts) = self.0.get() else { return };
        for (sum, [requests, nanos]) in into.iter_mut().zip(counts.iter()) {
            *sum = [sum[0].wrapping_add(requests.value()), sum[1].wrapping_add(nanos.value())];
        }
    }
}

/// Returns the bucket of a latency in nanoseconds.
fn bucket(nanos: u64) -> usize {
    let micros = nanos >> 10;
    if micros < 1 << SUB {
        return micros as usize;
    }
    let octave = 63 - micros.leading_zeros();
    let sub = (micros >> (octave - SUB)) as usize & ((1 << SUB) - 1);
    ((((octave - SUB + 1) as usize) << SUB) + sub).min(BUCKETS - 1)
}

/// Returns the lower bound of a bucket, in nanoseconds.
fn lower_bound(bucket: usize) -> u64 {
    let (octave, sub) = (bucket >> SUB, (bucket & ((1 << SUB) - 1)) as u64);
    match octave {
        0 => sub << 10,
        _ => ((1 << SUB) + sub) << (octave - 1) << 10,
    }
}

/// The sum of several histograms at one point in time.
#[derive(Debug)]
pub(crate) struct HistogramSum {
    counts: Vec<u64>,
    sum: u64,
}

impl HistogramSum {
    pub(crate) fn merge<'a>(histograms: impl Iterator<Item = &'a Histogram>) -> Self {
        let mut merged = Self { counts: vec![0; BUCKETS], sum: 0 };
        for histogram in histograms {
            let Some(buckets) = histogram.buckets.get() else { continue };
            for (count, bucket) in merged.counts.iter_mut().zip(buckets.iter()) {
                *count += bucket.value();
            }
            merged.sum = merged.sum.wrapping_add(histogram.sum.value());
        }
        merged
    }

    /// Returns the samples by bucket.
    pub(crate) fn counts(&self) -> &[u64] {
        &self.counts
    }

    /// Returns the middle of each bucket, in seconds.
    pub(crate) fn bucket_middles() -> Vec<f64> {
        (0..BUCKETS).map(|index| (lower_bound(index) + lower_bound(index + 1)) as f64 / 2e9).collect()
    }

    pub(crate) fn latency(&self) -> LatencySummary {
        let count = self.counts.iter().sum();
        LatencySummary {
            count,
            sum: self.sum as f64 / 1e9,
            p50: self.quantile(count, 0.5),
            p90: self.quantile(count, 0.9),
            p99: self.quantile(count, 0.99),
            p999: self.quantile(count, 0.999),
        }
    }

    /// Returns a quantile in seconds: the middle of its bucket.
    fn quantile(&self, count: u64, share: f64) -> f64 {
        let rank = (count as f64 * share).ceil() as u64;
        let mut seen = 0;
        for (index, here) in self.counts.iter().enumerate() {
            seen += here;
            if seen >= rank && *here > 0 {
                return (lower_bound(index) + lower_bound(index + 1)) as f64 / 2e9;
            }
        }
        0.0
    }

    /// Returns the number of samples below each of `bounds` (seconds, ascending); the middle of a bucket
    /// decides.
    pub(crate) fn below(&self, bounds: &[f64]) -> Vec<(f64, u64)> {
        let middles = Self::bucket_middles();
        let below = |bound: f64| -> u64 {
            self.counts
                .iter()
                .zip(&middles)
                .filter(|(_, middle)| **middle <= bound)
                .map(|(count, _)| count)
                .sum()
        };
        bounds.iter().map(|bound| (*bound, below(*bound))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_contiguous_and_narrow() {
        for index in 0..BUCKETS - 1 {
            assert_eq!(bucket(lower_bound(index)), index);
            assert_eq!(bucket(lower_bound(index + 1) - 1), index);
            if index >= 1 << SUB {
                let (low, high) = (lower_bound(index) as f64, lower_bound(index + 1) as f64);
                assert!((high - low) / 2.0 / low < 0.0626, "bucket {index}");
            }
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn quantiles_are_within_six_percent() {
        let histogram = Histogram::default();
        (1..=10_000).for_each(|micros| histogram.record(Duration::from_micros(micros)));
        let latency = HistogramSum::merge([&histogram].into_iter()).latency();
        assert_eq!(latency.count, 10_000);
        for (found, truth) in
            [(latency.p50, 5e-3), (latency.p90, 9e-3), (latency.p99, 9.9e-3), (latency.p999, 9.99e-3)]
        {
            assert!((found / truth - 1.0).abs() < 0.063, "{found} for {truth}");
        }
        assert!((latency.sum - 50.005).abs() < 1e-6);
    }

    #[test]
    fn what_another_process_counted_is_added() {
        let (before, after) = (Histogram::default(), Histogram::default());
        before.record(Duration::from_millis(3));
        let first = HistogramSnapshot::merge([&before].into_iter());
        before.record(Duration::from_millis(400));
        let both = HistogramSnapshot::merge([&before].into_iter());
        after.add(&first);
        after.add(&both.since(&first));
        assert_eq!(HistogramSnapshot::merge([&after].into_iter()), both);
        // Written by a version with other buckets.
        let text = "{\"nanos\": 5, \"counts\": {\"99999\": 1}}";
        after.add(&serde_json::from_str(text).unwrap());
        assert_eq!(HistogramSum::merge([&after].into_iter()).latency().count, 2);
    }

    #[test]
    fn cumulative_counts_grow_to_the_total() {
        let histogram = Histogram::default();
        (1..=100).for_each(|millis| histogram.record(Duration::from_millis(millis)));
        let below = HistogramSum::merge([&histogram].into_iter()).below(&[0.01, 0.05, f64::INFINITY]);
        assert!((8..=12).contains(&below[0].1) && (46..=54).contains(&below[1].1), "{below:?}");
        assert_eq!(below[2].1, 100);
    }
}
