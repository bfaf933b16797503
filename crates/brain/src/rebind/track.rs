//! What is known of one member's load: its last report, how much reports scatter, and what moved since.

use super::{Alert, Report};
use crate::Time;

/// One member.
#[derive(Clone, Debug)]
pub(super) struct Track {
    pub(super) capacity: f64,
    /// Averaged over reports, as it was at the last one.
    load: f64,
    pub(super) effective: f64,
    /// As it was reported lately, without what was promised: the mean of reports since one that was another load, not noise; no more than
    /// an `f32` holds.
    pub(super) heard: f64,
    /// Weight of its last report in that.
    fresh: f64,
    /// What its load counts for: the estimate, bounded.
    pub(super) counted: f64,
    bound: f64,
    pub(super) at: Time,
    /// Of reports around what was expected of them; `None` before the second report.
    pub(super) variance: Option<f64>,
    /// Differences that went into it, as far as that matters.
    seen: u8,
    /// Ledger: load that came (or went, if negative) since the last report.
    came: f64,
    /// The same, each part times the seconds from the last report to its coming.
    came_late: f64,
    pub(super) alert: Option<Alert>,
    /// The alert before, as it was when it was cleared.
    pub(super) past: Option<Alert>,
}

impl Track {
    /// As after nothing; the first report is still to be given.
    pub(super) fn new(report: &Report) -> Self {
        Self {
            capacity: 0.0,
            load: report.load,
            effective: 0.0,
            heard: 0.0,
            fresh: 1.0,
            counted: 0.0,
            bound: f64::INFINITY,
            at: report.at,
            variance: None,
            seen: 0,
            came: 0.0,
            came_late: 0.0,
            alert: None,
            past: None,
        }
    }

    /// Knows nothing yet of its noise.
    pub(super) fn is_new(&self) -> bool {
        self.variance.is_none()
    }

    /// `prior`: the variance to begin with. `bound`: most that the load counts for.
    pub(super) fn report(&mut self, report: &Report, prior: Option<f64>, bound: f64) {
        let first = self.capacity == 0.0;
        // By the noise before it.
        self.hear(report.load.min(f64::from(f32::MAX)));
        let window = report.at.since(self.at).as_secs_f64();
        // A report is a mean over the time since the last one: it misses what came for as long as it was not there.
        let missed = if window > 0.0 { (self.came_late / window).clamp(-LARGEST, LARGEST) } else { 0.0 };
        let load = (report.load + missed).clamp(0.0, LARGEST);
        let load = if first {
            load
        } else {
            let (expected, off) = (self.estimate(), load - self.estimate());
            // Where much was to move, the difference says how much did, and nothing of noise.
            let doubt = self.variance.unwrap_or(f64::INFINITY).max((MUCH * expected) * (MUCH * expected));
            let much = self.came * self.came > doubt;
            if much {
                load
            } else {
                // As much of it as was to move, and did not, is no noise either.
                let stayed = off.max((-self.came).min(0.0)).min((-self.came).max(0.0));
                self.scatter(off - stayed, prior);
                load - (1.0 - GAIN) * (off - stayed)
            }
        };
        (self.came, self.came_late) = (0.0, 0.0);
        (self.load, self.capacity, self.effective) = (load, report.capacity, report.effective.min(LARGEST));
        (self.at, self.bound) = (report.at, bound);
        self.counted = load.min(bound);
    }

    /// So much load, in units of capacity times load, came (or went) at a time.
    pub(super) fn moved(&mut self, amount: f64, at: Time) {
        let load = amount / self.capacity;
        self.came += load;
        self.came_late += load * at.since(self.at).as_secs_f64();
        self.counted = self.estimate().min(self.bound);
    }

    /// The load it should have now.
    pub(super) fn estimate(&self) -> f64 {
        (self.load + self.came).max(0.0)
    }

    /// One standard deviation of the estimate, from that of reports; `None` before there were two reports.
    pub(super) fn noise(&self) -> Option<f64> {
        self.variance.map(|variance| libm::sqrt(variance * GAIN / 2.0))
    }

    /// The variance of what was heard.
    pub(super) fn doubt(&self) -> f64 {
        // Reports scatter by less around their own mean than around what was expected.
        let reports = self.variance.unwrap_or(0.0) * (1.0 - GAIN / 2.0);
        reports * self.fresh / (2.0 - self.fresh)
    }

    /// What it has beyond the fair load and beyond doubt, in units of capacity times load.
    pub(super) fn surplus(&self, fair: f64) -> f64 {
        let Some(gate) = self.gate(fair) else { return 0.0 };
        // The doubt is about what was reported: a load far above the bound is above it beyond doubt.
        ((self.estimate() - gate).min(self.bound) - fair).max(0.0) * self.capacity
    }

    /// By how much its load has to be above the fair one for a surplus; `None` before there were two reports.
    pub(super) fn gate(&self, fair: f64) -> Option<f64> {
        Some((GATE * self.noise()?).max(LEAST * fair))
    }

    /// What it lacks of the fair load.
    pub(super) fn deficit(&self, fair: f64) -> f64 {
        (fair - self.estimate()).max(0.0) * self.capacity
    }

    /// How likely it is to be where a session goes: what it lacks and, a trace of that, what its last report lacked. The
    /// trace counts only where the ledger has promised everything: the sessions that bring it still have to be told
    /// where to go.
    pub(super) fn pull(&self, fair: f64) -> f64 {
        self.deficit(fair) + TRACE * (fair - self.load).max(0.0) * self.capacity
    }

    /// Takes in a report as it stands there.
    fn hear(&mut self, load: f64) {
        let off = load - self.heard;
        let another = self.variance.is_none_or(|variance| off * off > ANOTHER * ANOTHER * variance);
        // A plain mean at first, then a moving one.
        self.fresh = if another { 1.0 } else { (self.fresh / (1.0 + self.fresh)).max(SAME) };
        self.heard += self.fresh * off;
    }

    /// Takes in how far a report was from what was expected.
    fn scatter(&mut self, off: f64, prior: Option<f64>) {
        let square = off * off;
        let floor = (LEAST * self.estimate()) * (LEAST * self.estimate());
        self.variance = Some(match (self.variance, prior) {
            (Some(before), _) => {
                // A plain mean at first, then a moving one.
                let weight = (1.0 / f64::from(self.seen + 1)).max(NEW);
                before + weight * (square.min(CLIP * CLIP * before.max(floor)) - before)
            }
            // What the others show counts as one observation.
            (None, Some(prior)) => (prior + square.min(CLIP * CLIP * prior.max(floor))) / 2.0,
            (None, None) => square,
        });
        self.seen = self.seen.saturating_add(1).min(SEEN);
    }
}

/// Part of an unexpected difference that is taken for load and not for noise. Of reports that scatter by s around a
/// constant load the average then scatters by s sqrt(g / (2 - g)), and reports around the average by
/// s sqrt(2 / (2 - g)): the ratio is sqrt(g / 2).
const GAIN: f64 = 0.4;

/// Standard deviations that a load must be above the fair one. With 2 there are twice as many moves at rest, for a
/// hundredth less of imbalance (`tests/sessions.rs`).
const GATE: f64 = 2.5;

/// A surplus below this part of the fair load is none: nobody gains by it. And reports that are all the same, as of
/// a member that is simply full, do not make the first that differs a wonder.
const LEAST: f64 = 0.01;

/// Part of a load above which what was to move, and not noise, makes the next report differ.
const MUCH: f64 = 0.1;

/// Weight of what is promised against what is not.
const TRACE: f64 = 1e-6;

/// Standard deviations at which a report is another load.
const ANOTHER: f64 = 4.0;

/// Weight of a report of the same one, when there were many.
const SAME: f64 = 0.2;

/// Standard deviations at which a difference is clipped.
const CLIP: f64 = 5.0;

/// Weight of a new difference.
const NEW: f64 = 0.1;

/// Differences after which the mean becomes a moving one.
const SEEN: u8 = 10;

/// A load beyond this is one, so that sums and squares stay finite.
const LARGEST: f64 = 1e100;

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use super::*;

    const T: Duration = Duration::from_secs(3);

    fn report(load: f64, count: u32) -> Report {
        Report { capacity: 2.0, load, effective: load, at: Time(0) + T * count, period: T }
    }

    fn track(loads: &[f64]) -> Track {
        let mut track = Track::new(&report(loads[0], 0));
        for (load, count) in loads.iter().zip(0..) {
            track.report(&report(*load, count), None, f64::INFINITY);
        }
        track
    }

    #[test]
    fn noise_is_the_scatter_of_reports_and_not_a_step() {
        let chance = |count: u64| crate::hash::unit(crate::mix(count)) - 0.5;
        let loads: Vec<f64> = (0..200).map(|count| 1.0 + chance(count)).collect();
        // Uniform over a width of 1: a deviation of sqrt(1/12), half of which is left in the average.
        let quiet = track(&loads);
        let expected = libm::sqrt(GAIN / (2.0 - GAIN) / 12.0);
        let ratio = quiet.noise().unwrap() / expected;
        assert!((0.7..1.4).contains(&ratio), "{ratio}");
        assert!((quiet.estimate() - 1.0).abs() < 3.0 * expected);
        let stepped: Vec<f64> = loads.iter().copied().chain([20.0]).collect();
        let ratio = track(&stepped).noise().unwrap() / quiet.noise().unwrap();
        assert!(ratio < 2.0, "{ratio}: a step of sixty deviations counts as one of five");
        assert_eq!(track(&[1.0]).noise(), None, "one report says nothing of noise");
    }

    #[test]
    fn what_is_heard_is_a_mean_until_it_is_another_load() {
        let chance = |count: u64| crate::hash::unit(crate::mix(count)) - 0.5;
        let loads: Vec<f64> = (0..100).map(|count| 10.0 + chance(count)).collect();
        let mut track = track(&loads);
        let doubt = libm::sqrt(track.doubt());
        assert!((0.05..0.2).contains(&doubt), "a third of a report's 0.29: {doubt}");
        assert!((track.heard - 10.0).abs() < 3.0 * doubt, "{}", track.heard);
        // What was promised is not heard, and what was not is at once.
        track.moved(-10.0, track.at);
        assert!((track.heard - 10.0).abs() < 3.0 * doubt, "{}", track.heard);
        track.report(&report(15.0, 100), None, f64::INFINITY);
        assert_eq!(track.heard, 15.0);
    }

    #[test]
    fn what_moved_within_a_report_is_put_right() {
        let mut track = track(&[1.0, 1.0]);
        // A third of the way into the next window half of its load goes.
        track.moved(-1.0, Time(0) + T + T / 3);
        assert_eq!(track.estimate(), 0.5);
        // The report still shows a third of the time at 1, two thirds at 0.5.
        track.report(&report(2.0 / 3.0, 2), None, f64::INFINITY);
        assert!((track.estimate() - 0.5).abs() < 1e-12, "{}", track.estimate());
        assert!(track.noise().unwrap() < 1e-6, "it came as expected");
        track.report(&report(0.5, 3), None, f64::INFINITY);
        assert!((track.estimate() - 0.5).abs() < 1e-12, "the ledger is used once");
    }

    #[test]
    fn sessions_that_do_not_go_are_not_taken_for_noise() {
        let mut track = track(&[1.0, 1.01, 0.99, 1.0, 1.01]);
        let before = track.noise();
        for count in 5..30 {
            track.moved(-1.0, track.at);
            track.report(&report(1.0, count), None, f64::INFINITY);
        }
        assert_eq!(track.noise(), before);
        assert_eq!(track.estimate(), 1.0, "it still has what it had");
    }

    #[test]
    fn a_little_that_does_not_go_is_not_either() {
        let mut track = track(&[1.0, 1.01, 0.99, 1.0, 1.01, 1.0]);
        let before = track.noise().unwrap();
        for count in 6..60 {
            track.moved(-0.1, track.at);
            track.report(&report(1.0, count), None, f64::INFINITY);
        }
        assert!(track.noise().unwrap() <= before, "{:?}", track.noise());
        assert!((track.estimate() - 1.0).abs() < 1e-3, "it still has what it had: {}", track.estimate());
        // What is beyond that is noise, as always.
        let mut noisy = track.clone();
        noisy.moved(-0.1, noisy.at);
        noisy.report(&report(1.1, 60), None, f64::INFINITY);
        assert!((noisy.estimate() - (1.0 + GAIN * 0.1)).abs() < 1e-3, "{}", noisy.estimate());
        assert!(noisy.noise().unwrap() > track.noise().unwrap());
        // Who was to get it, and did not, has what it had.
        let mut taker = track.clone();
        taker.moved(0.1, taker.at);
        taker.report(&report(1.0, 60), None, f64::INFINITY);
        assert!((taker.estimate() - 1.0).abs() < 1e-3 && taker.noise().unwrap() <= track.noise().unwrap());
        // What went is believed as well, and so is half of it.
        for (left, count) in [(0.95, 60), (0.925, 61)] {
            track.moved(-0.1, track.at);
            track.report(&report(left, count), None, f64::INFINITY);
            assert!((track.estimate() - left).abs() < 1e-3, "{}", track.estimate());
        }
    }

    #[test]
    fn no_report_makes_nonsense() {
        for load in [0.0, f64::MIN_POSITIVE, 1e300, f64::MAX] {
            let mut track = track(&[1.0, load, 1.0, load]);
            track.moved(-1e300, Time(u64::MAX));
            track.report(&report(load, 9), Some(f64::MAX), f64::INFINITY);
            assert!(track.estimate().is_finite() && track.noise().unwrap() >= 0.0);
            assert!(track.surplus(1.0) >= 0.0 && track.deficit(1.0) >= 0.0);
        }
    }

    use alloc::vec::Vec;
}
