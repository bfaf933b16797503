//! Percentiles of times of any size in bounded memory: a histogram with 64 buckets per octave.

use std::borrow::Cow;

/// A histogram of times, accurate to 1.6 %.
#[derive(Clone, Debug, Default)]
pub(super) struct TimeHistogram {
    counts: Vec<u64>,
    total: u64,
}

/// The bits of the fraction that select a bucket.
const BITS: u32 = 6;
/// The range of exponents, from 2^-40 to 2^40 of the unit; greater times are in the last bucket.
const MIN_EXPONENT: i64 = 1023 - 40;
const OCTAVES: i64 = 80;

impl TimeHistogram {
    pub(super) fn record(&mut self, time: f64) {
        if self.counts.is_empty() {
            self.counts = vec![0; ((OCTAVES as usize) << BITS) + 1];
        }
        // The exponent and the first bits of the fraction, as they are in the number.
        let bits = time.max(0.0).to_bits() >> (52 - BITS);
        let index = (bits as i64 - (MIN_EXPONENT << BITS)).clamp(0, OCTAVES << BITS) as usize;
        self.counts[index] += 1;
        self.total += 1;
    }

    /// Adds several histograms.
    pub(super) fn merged<'p>(mut histograms: impl Iterator<Item = &'p Self>) -> Cow<'p, Self> {
        let Some(first) = histograms.next() else { return Cow::Owned(Self::default()) };
        histograms.fold(Cow::Borrowed(first), |merged, histogram| {
            let mut merged_histogram = merged.into_owned();
            merged_histogram.counts.resize(merged_histogram.counts.len().max(histogram.counts.len()), 0);
            merged_histogram.counts.iter_mut().zip(&histogram.counts).for_each(|(sum, count)| *sum += count);
            merged_histogram.total += histogram.total;
            Cow::Owned(merged_histogram)
        })
    }

    /// Returns the time below which the share `part` of the times is; `None` if there are none.
    pub(super) fn percentile(&self, quantile: f64) -> Option<f64> {
        let target_count = (self.total as f64 * quantile).ceil().max(1.0) as u64;
        let mut cumulative = 0;
        let index = self.counts.iter().position(|count| {
            cumulative += count;
            cumulative >= target_count
        })?;
        if index == 0 {
            return Some(0.0);
        }
        // The middle of the bucket.
        let bound = |index: i64| f64::from_bits(((index + (MIN_EXPONENT << BITS)) as u64) << (52 - BITS));
        let index = index as i64;
        Some((bound(index) + bound(index + 1)) / 2.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_as_close_as_is_said() {
        let mut histogram = TimeHistogram::default();
        assert_eq!(histogram.percentile(0.5), None);
        (1..=10_000).for_each(|time| histogram.record(f64::from(time) * 0.01));
        for (quantile, time) in [(0.5, 50.0), (0.95, 95.0), (0.99, 99.0), (1.0, 100.0)] {
            let estimate = histogram.percentile(quantile).unwrap();
            assert!((estimate / time - 1.0).abs() < 0.016, "{quantile}: {estimate}");
        }
        histogram.record(0.0);
        histogram.record(f64::INFINITY);
        assert_eq!(histogram.percentile(0.0), Some(0.0));
    }
}
