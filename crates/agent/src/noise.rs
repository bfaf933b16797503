//! When does a move matter? When it is more than the number's own noise.
//!
//! The noise is learned as in the analyzer's gate for rebinding: an exponentially weighted mean of squared surprises,
//! each clipped at five standard deviations so that one jump is not mistaken for much noise. A move matters if it is
//! more than twice that deviation and more than a twentieth of the range that the number has gone through; the range
//! forgets slowly.

/// Of a surprise in the noise.
const WEIGHT: f64 = 0.1;
/// Of a value in the level that the next is compared with.
const FOLLOW: f64 = 0.3;
/// How fast the ends of the range come back.
const FORGET: f64 = 0.001;

/// What is known of a number's ways.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Noise {
    level: f64,
    variance: f64,
    low: f64,
    high: f64,
    /// Least range.
    floor: f64,
}

impl Noise {
    /// Of a number whose first value this is, and whose range is no less than `floor`.
    pub(crate) fn new(value: f64, floor: f64) -> Self {
        Self { level: value, variance: 0.0, low: value.min(0.0), high: value.max(0.0), floor }
    }

    /// Does it matter that the number is `value` now, after it was told to be `told`?
    pub(crate) fn matters(&self, told: f64, value: f64) -> bool {
        let moved = (value - told).abs();
        let range = (self.high.max(value) - self.low.min(value)).max(self.floor);
        moved > 2.0 * self.variance.sqrt() && moved > 0.05 * range
    }

    /// Learns from another value.
    pub(crate) fn learn(&mut self, value: f64) {
        let surprise = value - self.level;
        let squared = if self.variance > 0.0 {
            (surprise * surprise).min(25.0 * self.variance)
        } else {
            surprise * surprise
        };
        self.variance += WEIGHT * (squared - self.variance);
        self.level += FOLLOW * surprise;
        self.low = (self.low + FORGET * (value - self.low)).min(value);
        self.high = (self.high + FORGET * (value - self.high)).max(value);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn noise_does_not_matter_and_a_step_does() {
        // Between 0.3 and 0.5, evenly by the golden ratio.
        let values = (0..200).map(|n| 0.3 + 0.2 * (f64::from(n) * 0.618_034).fract());
        let mut noise = Noise::new(0.4, 1.0);
        let mut alarms = 0;
        for value in values {
            alarms += u32::from(noise.matters(0.4, value));
            noise.learn(value);
        }
        assert!(alarms <= 5, "{alarms}");
        assert!(noise.matters(0.4, 0.7));
        assert!(!noise.matters(0.4, 0.44), "within the noise");
        let mut quiet = Noise::new(0.4, 1.0);
        (0..50).for_each(|_| quiet.learn(0.4));
        assert!(!quiet.matters(0.4, 0.44), "within a twentieth of the range");
        assert!(quiet.matters(0.4, 0.46));
    }

    #[test]
    fn the_range_is_what_it_has_gone_through() {
        let mut noise = Noise::new(1000.0, 0.0);
        (0..50).for_each(|_| noise.learn(1000.0));
        assert!(!noise.matters(1000.0, 1040.0));
        assert!(noise.matters(1000.0, 1100.0));
        assert!(noise.matters(1000.0, 0.0));
    }

    proptest! {
        #[test]
        fn finite_values_keep_it_finite(values in prop::collection::vec(-1e100..1e100, 1..50)) {
            let mut noise = Noise::new(values[0], 1.0);
            for value in values {
                noise.matters(value, 0.0);
                noise.learn(value);
                prop_assert!(noise.variance.is_finite() && noise.variance >= 0.0 && noise.level.is_finite());
            }
        }
    }
}
