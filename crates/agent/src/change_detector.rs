//! Detects significant changes: those larger than a value's own noise.
//!
//! The noise is learnt as in the analyzer's gate for rebinding: an exponentially weighted mean of squared
//! deviations. Each deviation is clipped at five standard deviations, so that a single jump does not inflate
//! the noise. A change is significant if `|change| > 2 * deviation` and `|change| > range / 20`. The range
//! covers the past values and shrinks slowly.

/// The weight of a new deviation in the variance.
const VARIANCE_WEIGHT: f64 = 0.1;
/// The weight of a new value in the level that the next one is compared with.
const LEVEL_WEIGHT: f64 = 0.3;
/// The rate at which the ends of the range approach the value.
const RANGE_DECAY: f64 = 0.001;

/// The noise and the range of a value.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ChangeDetector {
    level: f64,
    variance: f64,
    low: f64,
    high: f64,
    /// The least range.
    min_range: f64,
}

impl ChangeDetector {
    /// Starts with a first value. The range is at least `min_range`.
    pub(crate) fn new(value: f64, min_range: f64) -> Self {
        Self { level: value, variance: 0.0, low: value.min(0.0), high: value.max(0.0), min_range }
    }

    /// Returns `true` if the change from `told`, the value of the last report, to `value` is significant.
    pub(crate) fn is_significant(&self, last_reported: f64, value: f64) -> bool {
        let change = (value - last_reported).abs();
        let range = (self.high.max(value) - self.low.min(value)).max(self.min_range);
        change > 2.0 * self.variance.sqrt() && change > 0.05 * range
    }

    /// Updates the noise and the range with a new value.
    pub(crate) fn update(&mut self, value: f64) {
        let deviation = value - self.level;
        let squared_deviation = if self.variance > 0.0 {
            (deviation * deviation).min(25.0 * self.variance)
        } else {
            deviation * deviation
        };
        self.variance += VARIANCE_WEIGHT * (squared_deviation - self.variance);
        self.level += LEVEL_WEIGHT * deviation;
        self.low = (self.low + RANGE_DECAY * (value - self.low)).min(value);
        self.high = (self.high + RANGE_DECAY * (value - self.high)).max(value);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn noise_does_not_matter_and_a_step_does() {
        // Evenly distributed values between 0.3 and 0.5, by the golden ratio.
        let values = (0..200).map(|n| 0.3 + 0.2 * (f64::from(n) * 0.618_034).fract());
        let mut detector = ChangeDetector::new(0.4, 1.0);
        let mut significant_count = 0;
        for value in values {
            significant_count += u32::from(detector.is_significant(0.4, value));
            detector.update(value);
        }
        assert!(significant_count <= 5, "{significant_count}");
        assert!(detector.is_significant(0.4, 0.7));
        assert!(!detector.is_significant(0.4, 0.44), "within the noise");
        let mut quiet_detector = ChangeDetector::new(0.4, 1.0);
        (0..50).for_each(|_| quiet_detector.update(0.4));
        assert!(!quiet_detector.is_significant(0.4, 0.44), "within a twentieth of the range");
        assert!(quiet_detector.is_significant(0.4, 0.46));
    }

    #[test]
    fn the_range_is_what_it_has_gone_through() {
        let mut detector = ChangeDetector::new(1000.0, 0.0);
        (0..50).for_each(|_| detector.update(1000.0));
        assert!(!detector.is_significant(1000.0, 1040.0));
        assert!(detector.is_significant(1000.0, 1100.0));
        assert!(detector.is_significant(1000.0, 0.0));
    }

    proptest! {
        #[test]
        fn finite_values_keep_it_finite(values in prop::collection::vec(-1e100..1e100, 1..50)) {
            let mut detector = ChangeDetector::new(values[0], 1.0);
            for value in values {
                detector.is_significant(value, 0.0);
                detector.update(value);
                prop_assert!(
                    detector.variance.is_finite() && detector.variance >= 0.0 && detector.level.is_finite()
                );
            }
        }
    }
}
