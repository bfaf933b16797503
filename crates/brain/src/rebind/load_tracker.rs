//! The load of one member by its reports: a mean, and its noise.
//!
//! A load is a sum of contributions that come and go by themselves: requests of a second, work of a
//! processor. The variance of such a sum grows with the sum. So one number, the *dispersion* (variance over
//! mean), describes the noise of reports of any load: of a busy member, and of one that was idle a minute
//! ago. It is learnt from reports that agree.
//!
//! A member is in one of three states:
//!
//! - *Unknown*: no report counts. It is the first state, and the state after each decision that moves
//!   sessions from it or to it: all reports are left out that cover a time in which those sessions moved. The
//!   next report that counts makes it *new*.
//! - *New*: one report counts. If the next one agrees, the member is *settled*. If not, the load has changed
//!   meanwhile, and the member is new again with the later report alone; but after [`PATIENCE`] such reports
//!   in a row the differences are noise.
//! - *Settled*: the load is the mean of the last few reports. A report that noise does not explain makes the
//!   member new.
//!
//! Only the dispersion outlives a load, so an hour without traffic leaves no trace in the next one.

use core::time::Duration;

use super::{LoadAlert, MemberReport};
use crate::Time;

/// The state of one member.
#[derive(Clone, Debug)]
pub(super) struct LoadTracker {
    pub(super) capacity: f64,
    pub(super) effective: f64,
    /// The last report.
    pub(super) last: MemberReport,
    /// The mean of `count` reports that agree.
    pub(super) load: f64,
    report_count: u8,
    /// The successive reports that each showed another load.
    changes: u8,
    /// The reports that counted since loads were last compared.
    pub(super) reports: u8,
    /// The time of the first report that counts.
    due: Time,
    /// The variance of a report over its mean, both in units of capacity times load.
    dispersion: f64,
    /// The number of differences in the dispersion, up to [`MEMORY`].
    sample_count: u8,
    /// The fair load and the deficit below it, in units of capacity times load, by the last comparison.
    pub(super) fair: f64,
    pub(super) deficit: f64,
    pub(super) alert: Option<LoadAlert>,
    /// The previous alert, as it was when it was cleared.
    pub(super) previous_alert: Option<LoadAlert>,
}

impl LoadTracker {
    /// Returns the state of a member before its first report.
    pub(super) fn new(report: &MemberReport) -> Self {
        Self {
            capacity: report.capacity,
            effective: 0.0,
            last: *report,
            load: 0.0,
            report_count: 0,
            changes: 0,
            reports: 0,
            due: report.at,
            dispersion: 0.0,
            sample_count: 0,
            fair: f64::NAN,
            deficit: 0.0,
            alert: None,
            previous_alert: None,
        }
    }

    /// Records a report, and returns whether it counts.
    pub(super) fn record_report(&mut self, report: &MemberReport) -> bool {
        self.last = *report;
        (self.capacity, self.effective) = (report.capacity, report.effective.min(MAX_LOAD));
        if report.at < self.due {
            return false;
        }
        self.due = report.at + MIN_REPORT_INTERVAL;
        self.reports = self.reports.saturating_add(1);
        let load = report.load.min(MAX_LOAD);
        let (deviation, count) = (load - self.load, f64::from(self.report_count));
        let agrees = deviation * deviation
            <= CHANGE_DEVIATIONS * CHANGE_DEVIATIONS * self.variance(self.load) * (1.0 + 1.0 / count);
        if self.report_count > 0 && (agrees || self.changes >= MAX_CHANGES) {
            self.learn(deviation * deviation * count / (count + 1.0), load.max(self.load));
            self.changes = if agrees { 0 } else { self.changes };
            self.report_count = (self.report_count + 1).min(MAX_REPORTS);
            self.load += deviation / f64::from(self.report_count);
        } else {
            (self.load, self.report_count) = (load, 1);
            if self.sample_count == 0 {
                self.dispersion = PRIOR_NOISE * PRIOR_NOISE * load * self.capacity;
            }
            self.changes = self.changes.saturating_add(1);
        }
        true
    }

    /// Expects this load to arrive from now on, or to leave if negative. If that is more than noise, the
    /// member is measured anew: the first report counts that covers no time before the sessions have moved.
    pub(super) fn expect_load_change(&mut self, load: f64, now: Time) {
        if load.abs() <= self.noise() {
            self.load = (self.load + load).max(0.0);
        } else {
            let reporting_delay = self.last.period.mul_f64(PERIOD_SHARE).max(WINDOW);
            (self.report_count, self.changes, self.due) = (0, 0, now + MOVE_TIME + reporting_delay);
        }
    }

    /// Returns whether its load is known well enough to be compared.
    pub(super) fn is_settled(&self) -> bool {
        self.report_count >= AGREEING_REPORTS
    }

    /// Returns one standard deviation of the load.
    pub(super) fn noise(&self) -> f64 {
        libm::sqrt(self.load_variance())
    }

    /// Returns the variance of the load.
    pub(super) fn load_variance(&self) -> f64 {
        self.variance(self.load) / f64::from(self.report_count.max(1))
    }

    /// Returns the difference above the fair load from which there is a surplus; `None` while the load is not
    /// settled.
    pub(super) fn surplus_threshold(&self) -> Option<f64> {
        self.is_settled().then(|| (SURPLUS_DEVIATIONS * self.noise()).max(MIN_SURPLUS_SHARE * self.fair))
    }

    /// Returns the load above the fair one if it is above the [`surplus_threshold`](Self::surplus_threshold),
    /// in units of capacity times load; else 0.
    pub(super) fn surplus(&self) -> f64 {
        let is_over = self.surplus_threshold().is_some_and(|threshold| self.load > self.fair + threshold);
        if is_over { (self.load - self.fair) * self.capacity } else { 0.0 }
    }

    /// Returns the variance of a report of this load.
    fn variance(&self, load: f64) -> f64 {
        let (dispersion, sum) = (self.dispersion, load * self.capacity);
        let min_noise = MIN_NOISE * load;
        (dispersion * sum.max(dispersion) / (self.capacity * self.capacity)).max(min_noise * min_noise)
    }

    /// Records a square whose mean is the variance of a report of this load.
    fn learn(&mut self, squared_deviation: f64, load: f64) {
        let (previous_dispersion, sum) = (self.dispersion, load * self.capacity);
        if sum <= 0.0 {
            return;
        }
        let sample = squared_deviation * self.capacity * self.capacity / sum;
        let max_sample = MAX_SAMPLE_RATIO * previous_dispersion.max(MIN_NOISE * MIN_NOISE * sum);
        // A plain mean with the assumed value at first, then a moving one. A load that is less than one
        // contribution shows little.
        self.sample_count = (self.sample_count + 1).min(MAX_SAMPLES);
        let weight =
            libm::sqrt((sum / previous_dispersion).min(1.0)) / f64::from(self.sample_count + PRIOR_SAMPLES);
        self.dispersion += weight * (sample.min(max_sample) - previous_dispersion);
    }
}

/// The minimum spacing of reports that count: a second, for senders that are a little early. Most metrics
/// cover a second, so reports in between repeat the same.
const MIN_REPORT_INTERVAL: Duration = Duration::from_millis(900);

/// The time that a report covers, unless reports are farther apart.
pub(super) const WINDOW: Duration = Duration::from_secs(1);

/// The part of its period after which a report may come.
const PERIOD_SHARE: f64 = 0.9;

/// The time in which most of the sessions to move do so: they move with their next requests.
const MOVE_TIME: Duration = Duration::from_millis(150);

/// The reports that must agree before a load is compared. After twice as many of one member the others are
/// not waited for.
pub(super) const AGREEING_REPORTS: u8 = 2;

/// The successive reports of different loads after which the differences are noise.
const MAX_CHANGES: u8 = 3;

/// The maximum number of reports in the mean of a load.
const MAX_REPORTS: u8 = 6;

/// The standard deviations by which a report of the same load may differ.
const CHANGE_DEVIATIONS: f64 = 4.0;

/// The standard deviations that a load must be above the fair one.
const SURPLUS_DEVIATIONS: f64 = 2.5;

/// The part of the fair load below which a surplus is not worth a move.
const MIN_SURPLUS_SHARE: f64 = 0.01;

/// The assumed standard deviation of reports, as a part of their load, while nothing is known.
const PRIOR_NOISE: f64 = 0.05;

/// The number of differences that the assumption counts for.
const PRIOR_SAMPLES: u8 = 3;

/// The minimum noise of a report: some reports are all equal, and the first different one is no surprise.
const MIN_NOISE: f64 = 0.003;

/// The maximum that a single square counts for, as a multiple of the expected variance.
const MAX_SAMPLE_RATIO: f64 = 25.0;

/// The number of differences after which old ones fade.
const MAX_SAMPLES: u8 = 30;

/// The maximum of a load, so that sums and squares stay finite.
const MAX_LOAD: f64 = 1e100;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hash::unit;
    use crate::mix;

    const T: Duration = Duration::from_secs(3);

    fn report(load: f64, count: u32) -> MemberReport {
        MemberReport { capacity: 2.0, load, effective: load, at: Time(0) + T * count, period: T }
    }

    /// Returns a member that has sent these reports, one in each period.
    fn tracker_with(loads: impl IntoIterator<Item = f64>) -> LoadTracker {
        let mut tracker = LoadTracker::new(&report(0.0, 0));
        (0..).zip(loads).for_each(|(count, load)| assert!(tracker.record_report(&report(load, count))));
        tracker
    }

    /// Returns reports of a load around 10, uniform over a width of 1.
    fn noisy(count: u64) -> impl Iterator<Item = f64> {
        (0..count).map(|count| 9.5 + unit(mix(count)))
    }

    #[test]
    fn noise_is_the_scatter_of_reports_and_not_a_step() {
        let mut tracker = tracker_with(noisy(200));
        let expected = libm::sqrt(1.0 / 12.0 / f64::from(MAX_REPORTS));
        let ratio = tracker.noise() / expected;
        assert!((0.7..1.4).contains(&ratio), "{ratio}");
        assert!((tracker.load - 10.0).abs() < 3.0 * expected);
        let previous_dispersion = tracker.dispersion;
        tracker.record_report(&report(40.0, 200));
        assert!(!tracker.is_settled() && tracker.load == 40.0 && tracker.dispersion == previous_dispersion);
    }

    #[test]
    fn one_dispersion_fits_every_load() {
        // Sums of contributions of 3 each, with low and with high load.
        let mut tracker = tracker_with([50.0, 50.0]);
        let mut ratios = [0.0; 2];
        for round in 0..4_000_u64 {
            let index = (round / 20 % 2) as usize;
            let load = [50.0, 5_000.0][index];
            // The variance of a uniform variable is a twelfth of the square of its width.
            let deviation = (unit(mix(round)) - 0.5) * libm::sqrt(12.0 * 3.0 * load / 2.0);
            tracker.record_report(&report(load + deviation, 2 + round as u32));
            ratios[index] += tracker.variance(load) / (3.0 * load / 2.0) / 2_000.0;
        }
        assert!(ratios.iter().all(|ratio| (0.8..1.2).contains(ratio)), "{ratios:?}");
    }

    #[test]
    fn a_load_is_settled_once_two_reports_agree() {
        let mut tracker = tracker_with(noisy(20));
        for (load, settled) in
            [(3.0, false), (7.0, false), (7.1, true), (7.0, true), (0.0, false), (0.0, true)]
        {
            let next_report = MemberReport { at: tracker.last.at + T, ..report(load, 0) };
            assert!(tracker.record_report(&next_report));
            assert_eq!(tracker.is_settled(), settled, "{load}");
            assert_eq!(tracker.surplus_threshold().is_some(), settled, "{load}");
        }
        assert!(tracker.load < 1e-9, "nothing is left of a load before");
    }

    #[test]
    fn what_differs_each_time_is_noise() {
        let mut tracker = tracker_with([100.0, 100.0]);
        for count in 2..60 {
            tracker.record_report(&report(if count % 2 == 0 { 50.0 } else { 150.0 }, count));
            // Three changes in a row.
            assert!(count < 6 || tracker.is_settled(), "{count}");
        }
        assert!(
            (80.0..120.0).contains(&tracker.load) && tracker.noise() > 10.0,
            "{} {}",
            tracker.load,
            tracker.noise()
        );
    }

    #[test]
    fn reports_that_say_the_same_again_do_not_count() {
        let mut tracker = tracker_with([10.0, 10.0]);
        let is_counted = |tracker: &mut LoadTracker, millis: u64| {
            let at = Time(0) + T + Duration::from_millis(millis);
            tracker.record_report(&MemberReport { at, period: Duration::from_millis(100), ..report(10.0, 0) })
        };
        let counted_millis: Vec<u64> =
            (1..40).map(|tenth| 100 * tenth).filter(|millis| is_counted(&mut tracker, *millis)).collect();
        assert_eq!(counted_millis, [900, 1_800, 2_700, 3_600]);
        // The next one that covers no time before those sessions have moved.
        tracker.expect_load_change(-5.0, Time(0) + T + Duration::from_millis(4_000));
        let counted_millis: Vec<u64> =
            (41..64).map(|tenth| 100 * tenth).filter(|millis| is_counted(&mut tracker, *millis)).collect();
        assert_eq!(counted_millis, [5_200, 6_100]);
        assert!(tracker.is_settled());
    }

    #[test]
    fn what_is_less_than_noise_is_expected_and_not_measured_anew() {
        let mut tracker = tracker_with(noisy(50));
        let (load, noise) = (tracker.load, tracker.noise());
        tracker.expect_load_change(0.9 * noise, tracker.last.at);
        assert!(tracker.is_settled() && (tracker.load - load - 0.9 * noise).abs() < 1e-9);
        tracker.expect_load_change(-1.1 * tracker.noise(), tracker.last.at);
        assert!(!tracker.is_settled());
    }

    #[test]
    fn no_report_makes_nonsense() {
        for load in [0.0, f64::MIN_POSITIVE, 1e300, f64::MAX] {
            let mut tracker = tracker_with([1.0, load, 1.0, load, load]);
            tracker.expect_load_change(-1e300, Time(u64::MAX));
            tracker.record_report(&report(load, 9));
            assert!(tracker.load.is_finite() && tracker.load >= 0.0 && tracker.noise() >= 0.0);
        }
    }

    use alloc::vec::Vec;
}
