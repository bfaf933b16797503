//! Jitter, so that agents that were started together do not report together: SplitMix64 (Steele, Lea and
//! Flood 2014) with a random seed.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::time::Duration;

/// A stream of random numbers.
#[derive(Debug)]
pub(crate) struct JitterSource(u64);

impl JitterSource {
    /// Creates a stream with a random seed.
    pub(crate) fn new() -> Self {
        Self(RandomState::new().build_hasher().finish())
    }

    /// Returns `time * f`, with `f` uniformly distributed from `low` to `high`.
    pub(crate) fn scale(&mut self, duration: Duration, low: f64, high: f64) -> Duration {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        let unit = ((mixed ^ mixed >> 31) >> 11) as f64 / (1_u64 << 53) as f64;
        duration.mul_f64(low + (high - low) * unit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_spreads_evenly() {
        let mut jitter = JitterSource::new();
        let times: Vec<f64> =
            (0..10_000).map(|_| jitter.scale(Duration::from_secs(1), 0.9, 1.1).as_secs_f64()).collect();
        assert!(times.iter().all(|time| (0.9..=1.1).contains(time)));
        let mean = times.iter().sum::<f64>() / times.len() as f64;
        assert!((mean - 1.0).abs() < 0.01, "{mean}");
    }
}
