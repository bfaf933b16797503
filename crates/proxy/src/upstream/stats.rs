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
    pub(crate) fn add(&self, amount: u64) {
        self.0.store(self.0.load(Relaxed).wrapping_add(amount), Relaxed);
    }

    pub(crate) fn sub(&self, amount: u64) {
        self.0.store(self.0.load(Relaxed).wrapping_sub(amount), Relaxed);
    }

    pub(crate) fn value(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// The number of sub-buckets per octave, as a shift.
const SUB_BUCKET_BITS: u32 = 3;
/// The number of buckets: from 1.024 µs in steps of an eighth of an octave to 2^40 ns, 18 minutes.
const BUCKETS: usize = (30 - SUB_BUCKET_BITS as usize + 1) << SUB_BUCKET_BITS;

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
    pub(crate) fn add_time(&self, duration: Duration) {
        self.sum.add(duration.as_nanos() as u64);
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
    pub(crate) fn add(&self, snapshot: &HistogramSnapshot) {
        for (index, count) in &snapshot.counts {
            if let Some(bucket) = self.buckets().get(*index) {
                bucket.add(*count);
            }
        }
        self.sum.add(snapshot.nanos);
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
    pub(crate) fn since(&self, previous: &Self) -> Self {
        let increase = |(index, count): (&usize, &u64)| {
            let new_count = count.saturating_sub(previous.counts.get(index).copied().unwrap_or_default());
            (new_count > 0).then_some((*index, new_count))
        };
        let counts = self.counts.iter().filter_map(increase).collect();
        Self { nanos: self.nanos.saturating_sub(previous.nanos), counts }
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
    pub(crate) fn add(&self, sums: &[[u64; 2]]) {
        for ([requests, nanos], added) in self.counts().iter().zip(sums) {
            requests.add(added[0]);
            nanos.add(added[1]);
        }
    }

    /// Adds these counts to `into`.
    pub(crate) fn sum(&self, sums: &mut [[u64; 2]; CONCURRENCY_LEVELS]) {
        let Some(counts) = self.0.get() else { return };
        for (sum, [requests, nanos]) in sums.iter_mut().zip(counts.iter()) {
            *sum = [sum[0].wrapping_add(requests.value()), sum[1].wrapping_add(nanos.value())];
        }
    }
}

/// Returns the bucket of a latency in nanoseconds.
fn bucket(nanos: u64) -> usize {
    let micros = nanos >> 10;
    if micros < 1 << SUB_BUCKET_BITS {
        return micros as usize;
    }
    let octave = 63 - micros.leading_zeros();
    let sub_bucket = (micros >> (octave - SUB_BUCKET_BITS)) as usize & ((1 << SUB_BUCKET_BITS) - 1);
    ((((octave - SUB_BUCKET_BITS + 1) as usize) << SUB_BUCKET_BITS) + sub_bucket).min(BUCKETS - 1)
}

/// Returns the lower bound of a bucket, in nanoseconds.
fn lower_bound(bucket: usize) -> u64 {
    let (octave, sub_bucket) = (bucket >> SUB_BUCKET_BITS, (bucket & ((1 << SUB_BUCKET_BITS) - 1)) as u64);
    match octave {
        0 => sub_bucket << 10,
        _ => ((1 << SUB_BUCKET_BITS) + sub_bucket) << (octave - 1) << 10,
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
        let mut total = Self { counts: vec![0; BUCKETS], sum: 0 };
        for histogram in histograms {
            let Some(buckets) = histogram.buckets.get() else { continue };
            for (count, bucket) in total.counts.iter_mut().zip(buckets.iter()) {
                *count += bucket.value();
            }
            total.sum = total.sum.wrapping_add(histogram.sum.value());
        }
        total
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
        for (index, bucket_count) in self.counts.iter().enumerate() {
            seen += bucket_count;
            if seen >= rank && *bucket_count > 0 {
                return (lower_bound(index) + lower_bound(index + 1)) as f64 / 2e9;
            }
        }
        0.0
    }

    /// Returns the number of samples below each of `bounds` (seconds, ascending); the middle of a bucket
    /// decides.
    pub(crate) fn below(&self, bounds: &[f64]) -> Vec<(f64, u64)> {
        let middles = Self::bucket_middles();
        let count_below = |bound: f64| -> u64 {
            self.counts
                .iter()
                .zip(&middles)
                .filter(|(_, middle)| **middle <= bound)
                .map(|(count, _)| count)
                .sum()
        };
        bounds.iter().map(|bound| (*bound, count_below(*bound))).collect()
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
            if index >= 1 << SUB_BUCKET_BITS {
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
        for (measured, expected) in
            [(latency.p50, 5e-3), (latency.p90, 9e-3), (latency.p99, 9.9e-3), (latency.p999, 9.99e-3)]
        {
            assert!((measured / expected - 1.0).abs() < 0.063, "{measured} for {expected}");
        }
        assert!((latency.sum - 50.005).abs() < 1e-6);
    }

    #[test]
    fn what_another_process_counted_is_added() {
        let (old_process, new_process) = (Histogram::default(), Histogram::default());
        old_process.record(Duration::from_millis(3));
        let first_snapshot = HistogramSnapshot::merge([&old_process].into_iter());
        old_process.record(Duration::from_millis(400));
        let second_snapshot = HistogramSnapshot::merge([&old_process].into_iter());
        new_process.add(&first_snapshot);
        new_process.add(&second_snapshot.since(&first_snapshot));
        assert_eq!(HistogramSnapshot::merge([&new_process].into_iter()), second_snapshot);
        // Written by a version with other buckets.
        let text = "{\"nanos\": 5, \"counts\": {\"99999\": 1}}";
        new_process.add(&serde_json::from_str(text).unwrap());
        assert_eq!(HistogramSum::merge([&new_process].into_iter()).latency().count, 2);
    }

    #[test]
    fn cumulative_counts_grow_to_the_total() {
        let histogram = Histogram::default();
        (1..=100).for_each(|millis| histogram.record(Duration::from_millis(millis)));
        let cumulative = HistogramSum::merge([&histogram].into_iter()).below(&[0.01, 0.05, f64::INFINITY]);
        assert!(
            (8..=12).contains(&cumulative[0].1) && (46..=54).contains(&cumulative[1].1),
            "{cumulative:?}"
        );
        assert_eq!(cumulative[2].1, 100);
    }
}
