//! Counts that one core writes and anyone may read: relaxed loads and stores, no read-modify-write.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use plimsoll_brain::load_line::{LEVELS, level};
use plimsoll_brain::status::Latency;

/// A number with one writer.
#[derive(Debug, Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
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

/// Sub-buckets per octave, as a shift.
const SUB: u32 = 3;
/// From 1.024 µs in steps of an eighth of an octave to 2^40 ns, 18 minutes.
const BUCKETS: usize = (30 - SUB as usize + 1) << SUB;

/// A log-linear histogram of latencies: each sample is known within 6 %.
#[derive(Debug)]
pub(crate) struct Histogram {
    buckets: Box<[Count; BUCKETS]>,
    sum: Count,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { buckets: Box::new([const { Count(AtomicU64::new(0)) }; BUCKETS]), sum: Count::default() }
    }
}

impl Histogram {
    pub(crate) fn record(&self, latency: Duration) {
        let nanos = latency.as_nanos() as u64;
        self.buckets[bucket(nanos)].add(1);
        self.sum.add(nanos);
    }

    /// So many that took as long, on average.
    pub(crate) fn record_many(&self, latency: Duration, count: u64) {
        let nanos = latency.as_nanos() as u64;
        self.buckets[bucket(nanos)].add(count);
        self.sum.add(nanos.saturating_mul(count));
    }
}

impl Histogram {
    /// All samples added up.
    pub(crate) fn seconds(&self) -> f64 {
        self.sum.value() as f64 / 1e9
    }
}

/// Requests that succeeded, and how long they took, by how many their member had when they began.
#[derive(Debug)]
pub(crate) struct Levels(Box<[[Count; 2]; LEVELS]>);

impl Default for Levels {
    fn default() -> Self {
        Self(Box::new([const { [Count(AtomicU64::new(0)), Count(AtomicU64::new(0))] }; LEVELS]))
    }
}

impl Levels {
    pub(crate) fn record(&self, in_flight: u32, latency: Duration) {
        let [requests, nanos] = &self.0[level(in_flight)];
        requests.add(1);
        nanos.add(latency.as_nanos() as u64);
    }

    /// Adds what is counted here.
    pub(crate) fn sum(&self, into: &mut [[u64; 2]; LEVELS]) {
        for (sum, [requests, nanos]) in into.iter_mut().zip(self.0.iter()) {
            *sum = [sum[0].wrapping_add(requests.value()), sum[1].wrapping_add(nanos.value())];
        }
    }
}

/// Which bucket counts a latency of so many nanoseconds.
fn bucket(nanos: u64) -> usize {
    let micros = nanos >> 10;
    if micros < 1 << SUB {
        return micros as usize;
    }
    let octave = 63 - micros.leading_zeros();
    let sub = (micros >> (octave - SUB)) as usize & ((1 << SUB) - 1);
    ((((octave - SUB + 1) as usize) << SUB) + sub).min(BUCKETS - 1)
}

/// The least number of nanoseconds that a bucket counts.
fn floor(bucket: usize) -> u64 {
    let (octave, sub) = (bucket >> SUB, (bucket & ((1 << SUB) - 1)) as u64);
    match octave {
        0 => sub << 10,
        _ => ((1 << SUB) + sub) << (octave - 1) << 10,
    }
}

/// The sum of several histograms at one moment.
#[derive(Debug)]
pub(crate) struct Merged {
    counts: Vec<u64>,
    sum: u64,
}

impl Merged {
    pub(crate) fn of<'a>(histograms: impl Iterator<Item = &'a Histogram>) -> Self {
        let mut merged = Self { counts: vec![0; BUCKETS], sum: 0 };
        for histogram in histograms {
            for (count, bucket) in merged.counts.iter_mut().zip(histogram.buckets.iter()) {
                *count += bucket.value();
            }
            merged.sum = merged.sum.wrapping_add(histogram.sum.value());
        }
        merged
    }

    /// Samples by bucket.
    pub(crate) fn counts(&self) -> &[u64] {
        &self.counts
    }

    /// Seconds in the middle of each bucket.
    pub(crate) fn middles() -> Vec<f64> {
        (0..BUCKETS).map(|index| (floor(index) + floor(index + 1)) as f64 / 2e9).collect()
    }

    pub(crate) fn latency(&self) -> Latency {
        let count = self.counts.iter().sum();
        Latency {
            count,
            sum: self.sum as f64 / 1e9,
            p50: self.quantile(count, 0.5),
            p90: self.quantile(count, 0.9),
            p99: self.quantile(count, 0.99),
            p999: self.quantile(count, 0.999),
        }
    }

    /// Seconds below which a share of the samples lies; the middle of the bucket.
    fn quantile(&self, count: u64, share: f64) -> f64 {
        let rank = (count as f64 * share).ceil() as u64;
        let mut seen = 0;
        for (index, here) in self.counts.iter().enumerate() {
            seen += here;
            if seen >= rank && *here > 0 {
                return (floor(index) + floor(index + 1)) as f64 / 2e9;
            }
        }
        0.0
    }

    /// How many samples lie below each of `bounds` (seconds, ascending); a bucket counts where its middle lies.
    pub(crate) fn below(&self, bounds: &[f64]) -> Vec<(f64, u64)> {
        let middles = Self::middles();
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
            assert_eq!(bucket(floor(index)), index);
            assert_eq!(bucket(floor(index + 1) - 1), index);
            if index >= 1 << SUB {
                let (low, high) = (floor(index) as f64, floor(index + 1) as f64);
                assert!((high - low) / 2.0 / low < 0.0626, "bucket {index}");
            }
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn quantiles_are_within_six_percent() {
        let histogram = Histogram::default();
        (1..=10_000).for_each(|micros| histogram.record(Duration::from_micros(micros)));
        let latency = Merged::of([&histogram].into_iter()).latency();
        assert_eq!(latency.count, 10_000);
        for (found, truth) in
            [(latency.p50, 5e-3), (latency.p90, 9e-3), (latency.p99, 9.9e-3), (latency.p999, 9.99e-3)]
        {
            assert!((found / truth - 1.0).abs() < 0.063, "{found} for {truth}");
        }
        assert!((latency.sum - 50.005).abs() < 1e-6);
    }

    #[test]
    fn cumulative_counts_grow_to_the_total() {
        let histogram = Histogram::default();
        (1..=100).for_each(|millis| histogram.record(Duration::from_millis(millis)));
        let below = Merged::of([&histogram].into_iter()).below(&[0.01, 0.05, f64::INFINITY]);
        assert!((8..=12).contains(&below[0].1) && (46..=54).contains(&below[1].1), "{below:?}");
        assert_eq!(below[2].1, 100);
    }
}
