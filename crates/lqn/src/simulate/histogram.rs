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
const LEAST: i64 = 1023 - 40;
const OCTAVES: i64 = 80;

impl TimeHistogram {
    pub(super) fn record(&mut self, time: f64) {
        if self.counts.is_empty() {
            self.counts = vec![0; ((OCTAVES as usize) << BITS) + 1];
        }
        // The exponent and the first bits of the fraction, as they are in the number.
        let bits = time.max(0.0).to_bits() >> (52 - BITS);
        let place = (bits as i64 - (LEAST << BITS)).clamp(0, OCTAVES << BITS) as usize;
        self.counts[place] += 1;
        self.total += 1;
    }

    /// Adds several histograms.
    pub(super) fn merged<'p>(mut those: impl Iterator<Item = &'p Self>) -> Cow<'p, Self> {
        let Some(first) = those.next() else { return Cow::Owned(Self::default()) };
        those.fold(Cow::Borrowed(first), |all, own| {
            let mut all = all.into_owned();
            all.counts.resize(all.counts.len().max(own.counts.len()), 0);
            all.counts.iter_mut().zip(&own.counts).for_each(|(sum, count)| *sum += count);
            all.total += own.total;
            Cow::Owned(all)
        })
    }

    /// Returns the time below which the share `part` of the times is; `None` if there are none.
    pub(super) fn percentile(&self, part: f64) -> Option<f64> {
        let wanted = (self.total as f64 * part).ceil().max(1.0) as u64;
        let mut passed = 0;
        let place = self.counts.iter().position(|count| {
            passed += count;
            passed >= wanted
        })?;
        if place == 0 {
            return Some(0.0);
        }
        // The middle of the bucket.
        let bound = |place: i64| f64::from_bits(((place + (LEAST << BITS)) as u64) << (52 - BITS));
        let place = place as i64;
        Some((bound(place) + bound(place + 1)) / 2.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_as_close_as_is_said() {
        let mut percentiles = TimeHistogram::default();
        assert_eq!(percentiles.percentile(0.5), None);
        (1..=10_000).for_each(|time| percentiles.record(f64::from(time) * 0.01));
        for (part, time) in [(0.5, 50.0), (0.95, 95.0), (0.99, 99.0), (1.0, 100.0)] {
            let found = percentiles.percentile(part).unwrap();
            assert!((found / time - 1.0).abs() < 0.016, "{part}: {found}");
        }
        percentiles.record(0.0);
        percentiles.record(f64::INFINITY);
        assert_eq!(percentiles.percentile(0.0), Some(0.0));
    }
}
