//! The mapping of values to positions, with ticks at round numbers (1, 2 and 5 times a power of ten).

use super::ChartAxis;

/// One axis with its ends.
pub(super) struct AxisScale {
    low: f64,
    high: f64,
    log: bool,
    /// The distance of two ticks on a linear axis.
    step: f64,
    start_position: f64,
    end_position: f64,
}

impl AxisScale {
    /// Creates a scale for all `values`; `from` and `to` are the positions of its ends. Without values it is
    /// 0 to 1 (logarithmic: 1 to 10).
    pub(super) fn of(
        values: impl Iterator<Item = f64>,
        axis: &ChartAxis,
        start_position: f64,
        end_position: f64,
    ) -> Self {
        let is_plottable = |value: &f64| value.is_finite() && (!axis.log || *value > 0.0);
        let (mut low, mut high) = values
            .filter(is_plottable)
            .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| (low.min(value), high.max(value)));
        if low > high {
            (low, high) = if axis.log { (1.0, 10.0) } else { (0.0, 1.0) };
        }
        let mut tick_interval = 1.0;
        if axis.log {
            (low, high) = (10f64.powf(low.log10().floor()), 10f64.powf(high.log10().ceil()));
            if low >= high {
                high = low * 10.0;
            }
        } else {
            if axis.zero {
                (low, high) = (low.min(0.0), high.max(0.0));
            }
            if low >= high {
                high = low + low.abs().max(1.0);
            }
            tick_interval = tick_step(high - low);
            (low, high) = (
                (low / tick_interval).floor() * tick_interval,
                (high / tick_interval).ceil() * tick_interval,
            );
        }
        Self { low, high, log: axis.log, step: tick_interval, start_position, end_position }
    }

    /// Returns the position of a value; values beyond an end map to that end.
    pub(super) fn position(&self, value: f64) -> f64 {
        let fraction = if self.log {
            (value.max(f64::MIN_POSITIVE) / self.low).log10() / (self.high / self.low).log10()
        } else {
            (value - self.low) / (self.high - self.low)
        };
        self.start_position + fraction.clamp(0.0, 1.0) * (self.end_position - self.start_position)
    }

    /// Returns round numbers along the axis.
    pub(super) fn ticks(&self) -> Vec<f64> {
        if self.log {
            let (first, last) = (self.low.log10().round() as i32, self.high.log10().round() as i32);
            // At most about ten labels fit.
            let stride = (last - first) / 10 + 1;
            return (first..=last).step_by(stride as usize).map(|power| 10f64.powi(power)).collect();
        }
        let first = (self.low / self.step).round() as i64;
        let last = (self.high / self.step).round() as i64;
        (first..=last).map(|n| n as f64 * self.step).collect()
    }
}

/// Returns a step of 1, 2 or 5 times a power of ten that divides the span into about six.
fn tick_step(span: f64) -> f64 {
    let rough_step = span / 6.0;
    let power = 10f64.powf(rough_step.log10().floor());
    let multiplier = match rough_step / power {
        ratio if ratio <= 1.25 => 1.0,
        ratio if ratio <= 2.5 => 2.0,
        ratio if ratio <= 6.0 => 5.0,
        _ => 10.0,
    };
    multiplier * power
}

/// Formats a number with at most four significant digits.
pub(super) fn label(value: f64) -> String {
    if value == 0.0 {
        return "0".to_owned();
    }
    let magnitude = value.abs();
    if !(1e-4..1e7).contains(&magnitude) {
        let text = format!("{value:.1e}");
        return text.replace(".0e", "e");
    }
    let digits = (3 - magnitude.log10().floor() as i32).clamp(0, 7) as usize;
    let text = format!("{value:.digits$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn numbers_are_short_and_right() {
        let labels = [0.0, 1.0, 0.25, 1234.5, 99999.0, 0.001, 1e-6, 2.5e9, -3.5].map(label);
        assert_eq!(labels, ["0", "1", "0.25", "1234", "99999", "0.001", "1e-6", "2.5e9", "-3.5"]);
    }

    proptest! {
        #[test]
        fn every_value_lies_between_the_ends_and_in_order(
            mut values in proptest::collection::vec(-1e6f64..1e6, 1..20), zero: bool,
        ) {
            let axis = ChartAxis { zero, ..ChartAxis::default() };
            let scale = AxisScale::of(values.iter().copied(), &axis, 10.0, 200.0);
            prop_assert!((2..=14).contains(&scale.ticks().len()), "{:?}", scale.ticks());
            values.sort_by(f64::total_cmp);
            let positions: Vec<f64> = values.iter().map(|value| scale.position(*value)).collect();
            prop_assert!(positions.is_sorted());
            prop_assert!(positions.iter().all(|position| (10.0..=200.0).contains(position)));
            prop_assert!(!zero || scale.ticks().iter().any(|tick| tick.abs() < 1e-6));
        }

        #[test]
        fn decades_hold_what_they_should(values in proptest::collection::vec(1e-6f64..1e6, 1..20)) {
            let axis = ChartAxis { log: true, ..ChartAxis::default() };
            let scale = AxisScale::of(values.iter().copied(), &axis, 0.0, 100.0);
            for value in values {
                prop_assert!(scale.low <= value * 1.000_001 && value <= scale.high * 1.000_001);
            }
            prop_assert!((2..=12).contains(&scale.ticks().len()));
        }
    }
}
