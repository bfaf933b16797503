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
    count: u8,
    /// The successive reports that each showed another load.
    changes: u8,
    /// The reports that counted since loads were last compared.
    pub(super) reports: u8,
    /// The time of the first report that counts.
    due: Time,
    /// The variance of a report over its mean, both in units of capacity times load.
    dispersion: f64,
    /// The number of differences in the dispersion, up to [`MEMORY`].
    seen: u8,
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
            count: 0,
            changes: 0,
            reports: 0,
            due: report.at,
            dispersion: 0.0,
            seen: 0,
            fair: f64::NAN,
            deficit: 0.0,
            alert: None,
            previous_alert: None,
        }
    }

    /// Records a report, and returns whether it counts.
    pub(super) fn record_report(&mut self, report: &MemberReport) -> bool {
        self.last = *report;
        (self.capacity, self.effective) = (report.capacity, report.effective.min(LARGEST));
        if report.at < self.due {
            return false;
        }
        self.due = report.at + APART;
        self.reports = self.reports.saturating_add(1);
        let load = report.load.min(LARGEST);
        let (off, count) = (load - self.load, f64::from(self.count));
        let agrees = off * off <= CHANGE * CHANGE * self.variance(self.load) * (1.0 + 1.0 / count);
        if self.count > 0 && (agrees || self.changes >= PATIENCE) {
            self.learn(off * off * count / (count + 1.0), load.max(self.load));
            self.changes = if agrees { 0 } else { self.changes };
            self.count = (self.count + 1).min(MOST_REPORTS);
            self.load += off / f64::from(self.count);
        } else {
            (self.load, self.count) = (load, 1);
            if self.seen == 0 {
                self.dispersion = PRIOR * PRIOR * load * self.capacity;
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
            let covers = self.last.period.mul_f64(EARLY).max(WINDOW);
            (self.count, self.changes, self.due) = (0, 0, now + MOVING + covers);
        }
    }

    /// Returns whether its load is known well enough to be compared.
    pub(super) fn is_settled(&self) -> bool {
        self.count >= AGREEING_REPORTS
    }

    /// Returns one standard deviation of the load.
    pub(super) fn noise(&self) -> f64 {
        libm::sqrt(self.doubt())
    }

    /// Returns the variance of the load.
    pub(super) fn doubt(&self) -> f64 {
        self.variance(self.load) / f64::from(self.count.max(1))
    }

    /// Returns the difference above the fair load from which there is a surplus; `None` while the load is not
    /// settled.
    pub(super) fn surplus_threshold(&self) -> Option<f64> {
        self.is_settled().then(|| (GATE * self.noise()).max(LEAST * self.fair))
    }

    /// Returns the load above the fair one if it is above the [`surplus_threshold`](Self::surplus_threshold),
    /// in units of capacity times load; else 0.
    pub(super) fn surplus(&self) -> f64 {
        let over = self.surplus_threshold().is_some_and(|gate| self.load > self.fair + gate);
        if over { (self.load - self.fair) * self.capacity } else { 0.0 }
    }

    /// Returns the variance of a report of this load.
    fn variance(&self, load: f64) -> f64 {
        let (dispersion, sum) = (self.dispersion, load * self.capacity);
        let least = LEAST_NOISE * load;
        (dispersion * sum.max(dispersion) / (self.capacity * self.capacity)).max(least * least)
    }

    /// Records a square whose mean is the variance of a report of this load.
    fn learn(&mut self, square: f64, load: f64) {
        let (before, sum) = (self.dispersion, load * self.capacity);
        if sum <= 0.0 {
            return;
        }
        let one = square * self.capacity * self.capacity / sum;
        let most = MOST_TIMES * before.max(LEAST_NOISE * LEAST_NOISE * sum);
        // A plain mean with the assumed value at first, then a moving one. A load that is less than one
        // contribution shows little.
        self.seen = (self.seen + 1).min(MEMORY);
        let weight = libm::sqrt((sum / before).min(1.0)) / f64::from(self.seen + SUPPOSED);
        self.dispersion += weight * (one.min(most) - before);
    }
}

/// The minimum spacing of reports that count: a second, for senders that are a little early. Most metrics
/// cover a second, so reports in between repeat the same.
const APART: Duration = Duration::from_millis(900);

/// The time that a report covers, unless reports are farther apart.
pub(super) const WINDOW: Duration = Duration::from_secs(1);

/// The part of its period after which a report may come.
const EARLY: f64 = 0.9;

/// The time in which most of the sessions to move do so: they move with their next requests.
const MOVING: Duration = Duration::from_millis(150);

/// The reports that must agree before a load is compared. After twice as many of one member the others are
/// not waited for.
pub(super) const AGREEING_REPORTS: u8 = 2;

/// The successive reports of different loads after which the differences are noise.
const PATIENCE: u8 = 3;

/// The maximum number of reports in the mean of a load.
const MOST_REPORTS: u8 = 6;

/// The standard deviations by which a report of the same load may differ.
const CHANGE: f64 = 4.0;

/// The standard deviations that a load must be above the fair one.
const GATE: f64 = 2.5;

/// The part of the fair load below which a surplus is not worth a move.
const LEAST: f64 = 0.01;

/// The assumed standard deviation of reports, as a part of their load, while nothing is known.
const PRIOR: f64 = 0.05;

/// The number of differences that the assumption counts for.
const SUPPOSED: u8 = 3;

/// The minimum noise of a report: some reports are all equal, and the first different one is no surprise.
const LEAST_NOISE: f64 = 0.003;

/// The maximum that a single square counts for, as a multiple of the expected variance.
const MOST_TIMES: f64 = 25.0;

/// The number of differences after which old ones fade.
const MEMORY: u8 = 30;

/// The maximum of a load, so that sums and squares stay finite.
const LARGEST: f64 = 1e100;

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
    fn track(loads: impl IntoIterator<Item = f64>) -> LoadTracker {
        let mut track = LoadTracker::new(&report(0.0, 0));
        (0..).zip(loads).for_each(|(count, load)| assert!(track.record_report(&report(load, count))));
        track
    }

    /// Returns reports of a load around 10, uniform over a width of 1.
    fn noisy(count: u64) -> impl Iterator<Item = f64> {
        (0..count).map(|count| 9.5 + unit(mix(count)))
    }

    #[test]
    fn noise_is_the_scatter_of_reports_and_not_a_step() {
        let mut quiet = track(noisy(200));
        let expected = libm::sqrt(1.0 / 12.0 / f64::from(MOST_REPORTS));
        let ratio = quiet.noise() / expected;
        assert!((0.7..1.4).contains(&ratio), "{ratio}");
        assert!((quiet.load - 10.0).abs() < 3.0 * expected);
        let before = quiet.dispersion;
        quiet.record_report(&report(40.0, 200));
        assert!(!quiet.is_settled() && quiet.load == 40.0 && quiet.dispersion == before);
    }

    #[test]
    fn one_dispersion_fits_every_load() {
        // Sums of contributions of 3 each, with low and with high load.
        let mut track = track([50.0, 50.0]);
        let mut ratios = [0.0; 2];
        for round in 0..4_000_u64 {
            let place = (round / 20 % 2) as usize;
            let load = [50.0, 5_000.0][place];
            // The variance of a uniform variable is a twelfth of the square of its width.
            let off = (unit(mix(round)) - 0.5) * libm::sqrt(12.0 * 3.0 * load / 2.0);
            track.record_report(&report(load + off, 2 + round as u32));
            ratios[place] += track.variance(load) / (3.0 * load / 2.0) / 2_000.0;
        }
        assert!(ratios.iter().all(|ratio| (0.8..1.2).contains(ratio)), "{ratios:?}");
    }

    #[test]
    fn a_load_is_settled_once_two_reports_agree() {
        let mut track = track(noisy(20));
        for (load, settled) in
            [(3.0, false), (7.0, false), (7.1, true), (7.0, true), (0.0, false), (0.0, true)]
        {
            let next = MemberReport { at: track.last.at + T, ..report(load, 0) };
            assert!(track.record_report(&next));
            assert_eq!(track.is_settled(), settled, "{load}");
            assert_eq!(track.surplus_threshold().is_some(), settled, "{load}");
        }
        assert!(track.load < 1e-9, "nothing is left of a load before");
    }

    #[test]
    fn what_differs_each_time_is_noise() {
        let mut track = track([100.0, 100.0]);
        for count in 2..60 {
            track.record_report(&report(if count % 2 == 0 { 50.0 } else { 150.0 }, count));
            // Three changes in a row.
            assert!(count < 6 || track.is_settled(), "{count}");
        }
        assert!(
            (80.0..120.0).contains(&track.load) && track.noise() > 10.0,
            "{} {}",
            track.load,
            track.noise()
        );
    }

    #[test]
    fn reports_that_say_the_same_again_do_not_count() {
        let mut track = track([10.0, 10.0]);
        let counts = |track: &mut LoadTracker, millis: u64| {
            let at = Time(0) + T + Duration::from_millis(millis);
            track.record_report(&MemberReport { at, period: Duration::from_millis(100), ..report(10.0, 0) })
        };
        let counted: Vec<u64> =
            (1..40).map(|tenth| 100 * tenth).filter(|at| counts(&mut track, *at)).collect();
        assert_eq!(counted, [900, 1_800, 2_700, 3_600]);
        // The next one that covers no time before those sessions have moved.
        track.expect_load_change(-5.0, Time(0) + T + Duration::from_millis(4_000));
        let counted: Vec<u64> =
            (41..64).map(|tenth| 100 * tenth).filter(|at| counts(&mut track, *at)).collect();
        assert_eq!(counted, [5_200, 6_100]);
        assert!(track.is_settled());
    }

    #[test]
    fn what_is_less_than_noise_is_expected_and_not_measured_anew() {
        let mut track = track(noisy(50));
        let (load, noise) = (track.load, track.noise());
        track.expect_load_change(0.9 * noise, track.last.at);
        assert!(track.is_settled() && (track.load - load - 0.9 * noise).abs() < 1e-9);
        track.expect_load_change(-1.1 * track.noise(), track.last.at);
        assert!(!track.is_settled());
    }

    #[test]
    fn no_report_makes_nonsense() {
        for load in [0.0, f64::MIN_POSITIVE, 1e300, f64::MAX] {
            let mut track = track([1.0, load, 1.0, load, load]);
            track.expect_load_change(-1e300, Time(u64::MAX));
            track.record_report(&report(load, 9));
            assert!(track.load.is_finite() && track.load >= 0.0 && track.noise() >= 0.0);
        }
    }

    use alloc::vec::Vec;
}
