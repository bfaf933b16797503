//! The load that strategies use, computed from a member's reports.
//!
//! Dampening is an average over reports. With dampening d, the previous value has weight d and a new report
//! 1 - d, once for each report, however often members are chosen in between.
//!
//! Reports age. The period of a member's reports is learnt (a moving average of their spacing), so none has
//! to be configured. The weight of a report, against the mean of the group, depends on its age in periods:
//!
//! | age | weight |
//! |---|---|
//! | up to 2 | 1 |
//! | up to 10 | `e^((2 - age)/2)` |
//! | above 10 | none: the member counts as one without reports |
//!
//! So a monitor that dies makes its member an average one and then one with its static share. A member that
//! looked idle last does not get everything, and one that looked busy does not get nothing.

use core::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{EffectiveLoad, ReportedLoad, Time};

/// The reports of one member.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct LoadReports {
    /// The last report.
    pub(super) last: ReportedLoad,
    /// The average over reports.
    pub(super) value: f64,
    begun: u32,
    /// The spacing of reports; `None` before the second one.
    spacing: Option<Duration>,
}

impl LoadReports {
    /// Returns the state after the first report; `begun` as in [`EffectiveLoad`].
    pub(super) fn new(load: ReportedLoad, begun: u32) -> Self {
        Self { last: load, value: load.value, begun, spacing: None }
    }

    /// Returns the state of the previous process, if it is plausible.
    pub(super) fn restored(self, now: Time) -> Option<Self> {
        let is_valid = |value: f64| value.is_finite() && value >= 0.0;
        let spacing = self.spacing.map(|spacing| spacing.clamp(MIN_SPACING, MAX_SPACING));
        let is_plausible = is_valid(self.value) && is_valid(self.last.value) && self.last.at <= now;
        is_plausible.then_some(Self { spacing, ..self })
    }

    /// Adds a report. One that is older than the last is ignored.
    pub(super) fn add(&mut self, load: ReportedLoad, dampening: f64, begun: u32) {
        if load.at < self.last.at {
            return;
        }
        let spacing_sample = load.at.since(self.last.at);
        if spacing_sample > Duration::ZERO {
            let spacing_sample =
                spacing_sample.min(MAX_SPACING_RATIO * self.period()).clamp(MIN_SPACING, MAX_SPACING);
            let spacing = self.spacing.map_or(spacing_sample, |previous| {
                previous - previous / SPACING_SAMPLES + spacing_sample / SPACING_SAMPLES
            });
            self.spacing = Some(spacing);
        }
        self.value = dampening * self.value + (1.0 - dampening) * load.value;
        (self.last, self.begun) = (load, begun);
    }

    /// Returns the spacing of reports, or the assumed one.
    pub(super) fn period(&self) -> Duration {
        self.spacing.unwrap_or(DEFAULT_PERIOD)
    }

    /// Returns the remaining weight of the last report, 0 to 1; `None` if it is too old to count.
    pub(super) fn report_weight(&self, now: Time) -> Option<f64> {
        let age = now.since(self.last.at).as_secs_f64() / self.period().as_secs_f64();
        match age {
            ..=FRESH_PERIODS => Some(1.0),
            ..=EXPIRY_PERIODS => Some(libm::exp((FRESH_PERIODS - age) / FRESH_PERIODS)),
            _ => None,
        }
    }

    /// Returns the time of the next change of its weight that strategies need.
    pub(super) fn next_weight_change(&self, now: Time) -> Time {
        let fresh_until = self.last.at + FRESH_PERIODS as u32 * self.period();
        if now < fresh_until { fresh_until } else { now + self.period() }
    }

    /// Returns the load that strategies use, given the mean of the group.
    pub(super) fn effective(&self, mean: f64, now: Time) -> Option<EffectiveLoad> {
        let weight = self.report_weight(now)?;
        Some(EffectiveLoad { value: weight * self.value + (1.0 - weight) * mean, begun: self.begun })
    }
}

/// Returns the mean load of a group, each report with its remaining weight; 0 without any.
pub(super) fn mean<'a>(reports: impl Iterator<Item = &'a LoadReports>, now: Time) -> f64 {
    let (mut sum, mut weight_sum) = (0.0, 0.0);
    for report in reports {
        if let Some(weight) = report.report_weight(now) {
            // Added one by one: the sum of the greatest loads would not be finite.
            weight_sum += weight;
            sum += (report.value - sum) * weight / weight_sum;
        }
    }
    sum
}

/// The assumed period before the second report: the longer of the papers' two periods.
const DEFAULT_PERIOD: Duration = Duration::from_secs(5);

/// The periods for which a report counts in full.
const FRESH_PERIODS: f64 = 2.0;

/// The periods after which it does not count any more.
const EXPIRY_PERIODS: f64 = 10.0;

/// The inverse of the weight of a new spacing.
const SPACING_SAMPLES: u32 = 4;

/// The maximum of a spacing, as a multiple of the known one: a monitor that was away has not become slow.
const MAX_SPACING_RATIO: u32 = 4;

const MIN_SPACING: Duration = Duration::from_millis(10);

const MAX_SPACING: Duration = Duration::from_secs(3600);

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn load(value: f64, seconds: f64) -> ReportedLoad {
        ReportedLoad { value, at: Time(7) + Duration::from_secs_f64(seconds), of_host: false }
    }

    fn reports(values: &[f64], dampening: f64) -> LoadReports {
        let mut reports = LoadReports::new(load(values[0], 0.0), 0);
        for (value, second) in values.iter().zip(0_u32..).skip(1) {
            reports.add(load(*value, f64::from(second)), dampening, second);
        }
        reports
    }

    #[test]
    fn dampening_is_an_average_over_reports() {
        assert_eq!(reports(&[100.0, 0.0], 0.9).value, 90.0);
        assert_eq!(reports(&[100.0, 0.0, 0.0], 0.5).value, 25.0);
        assert_eq!(reports(&[100.0, 7.0], 0.0).value, 7.0);
    }

    #[test]
    fn the_period_is_learned_and_silence_is_not_taken_for_it() {
        let mut reports = reports(&[1.0; 20], 0.0);
        assert!(reports.period() > SECOND * 9 / 10 && reports.period() < SECOND * 11 / 10);
        reports.add(load(1.0, 4000.0), 0.0, 0);
        assert!(reports.period() < 2 * SECOND, "{:?}", reports.period());
        // Reports from the past, or all at once, change no period.
        reports.add(load(9.0, 100.0), 0.0, 0);
        assert_eq!(reports.last.value, 1.0);
        reports.add(load(2.0, 4000.0), 0.0, 0);
        assert!(reports.last.value == 2.0 && reports.period() < 2 * SECOND);
    }

    #[test]
    fn an_old_report_becomes_average_and_then_nothing() {
        let reports = reports(&[1.0, 1.0], 0.0);
        let at_age = |seconds: f64| reports.last.at + Duration::from_secs_f64(seconds);
        let value_at = |seconds| reports.effective(5.0, at_age(seconds)).map(|effective| effective.value);
        assert_eq!(value_at(2.0), Some(1.0));
        let value_at_four = value_at(4.0).unwrap();
        assert!((value_at_four - (5.0 - 4.0 / core::f64::consts::E)).abs() < 1e-12, "{value_at_four}");
        assert!((4.9..5.0).contains(&value_at(10.0).unwrap()));
        assert_eq!(value_at(10.1), None);
        assert_eq!(reports.effective(5.0, Time(0)).unwrap().value, 1.0, "a time before it has no age");
        assert_eq!(
            (reports.next_weight_change(at_age(0.5)), reports.next_weight_change(at_age(3.0))),
            (at_age(2.0), at_age(4.0))
        );
    }

    #[test]
    fn the_mean_is_of_those_that_count() {
        let (ones, threes) = (reports(&[1.0, 1.0], 0.0), reports(&[3.0, 3.0], 0.0));
        let mean_at = |seconds: f64| mean([&ones, &threes].into_iter(), load(0.0, seconds).at);
        assert_eq!((mean_at(1.0), mean_at(5.0), mean_at(100.0)), (2.0, 2.0, 0.0));
        let huge_reports = reports(&[f64::MAX, f64::MAX], 0.5);
        assert!(mean([&huge_reports, &huge_reports].into_iter(), Time(0)).is_finite());
    }
}
