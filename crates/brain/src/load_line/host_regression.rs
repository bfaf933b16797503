//! The cost of a request from reports of a whole host's processors, which include other work than the
//! server's.
//!
//! A request takes `d` of the host's processors' second, and other work keeps them busy for a varying share
//! `b`. At `X` requests a second they are busy for `b + d X`, and they are full at `X` plus the free share
//! over `d`. So only `d` is needed, and three facts bound it:
//!
//! - from above, other work is not negative: `d <= share / X`;
//! - from above, the response time. A request uses no more of one processor than that, if it works on one
//!   thread at a time and ends with its answer: `d <= R / processors`. This is an assumption, and [`BEYOND`]
//!   is allowed beyond it;
//! - from both sides, the slope of the regression of the share on the rate, with an intercept. Its error
//!   includes the scatter around the line. It also includes that both persist for longer than a window
//!   (Bartlett 1935: two autocorrelated series have fewer independent pairs). Reports are of other moments
//!   than counts, which makes a slope that rests on chance less steep than it is: [`SKEW`].
//!
//! If requests would take about their whole response time of a processor without other work, there is hardly
//! any. Otherwise requests would have to wait for something else for just as long as other work keeps the
//! processors busy. That is considered a coincidence, down to half of the cost.
//!
//! If the rate hardly varies the slope carries little information. The interval is then wide, possibly
//! without an upper end, and the most likely case is that requests caused all that they can have: the line
//! errs to the low side. Only windows of the last minutes count.

use alloc::collections::VecDeque;

use super::decay_factor;
use super::utilization::ThroughputBound;

/// The recent windows.
#[derive(Clone, Debug, Default)]
pub(super) struct HostRegression {
    points: VecDeque<RegressionPoint>,
    /// The seconds so far, and the windows in them.
    now: f64,
    windows: f64,
    processors: Option<f64>,
}

#[derive(Clone, Copy, Debug)]
struct RegressionPoint {
    at: f64,
    rate: f64,
    share: f64,
}

/// The result.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct HostEstimate {
    /// The requests a second that the processors can serve beside other work; the upper end may be infinite.
    pub(super) bound: ThroughputBound,
    /// The most likely share of the processors that other work keeps busy.
    pub(super) other_work: f64,
    /// Whether other work varies by more than requests' work does by chance.
    pub(super) other_work_varies: bool,
    /// Whether there is certainly hardly any other work.
    pub(super) no_other_work: bool,
}

impl HostRegression {
    /// Advances the time.
    pub(super) fn advance(&mut self, seconds: f64) {
        self.now += seconds;
        self.windows += 1.0;
        while self.points.front().is_some_and(|kept| self.now - kept.at > OLD) {
            self.points.pop_front();
        }
    }

    /// Adds a window that ends now.
    pub(super) fn add(&mut self, rate: f64, share: f64, processors: Option<f64>) {
        if self.points.len() == KEPT {
            self.points.pop_front();
        }
        self.points.push_back(RegressionPoint { at: self.now, rate, share: share.clamp(0.0, 1.0) });
        self.processors = processors.or(self.processors);
    }

    /// Returns the number of processors, if it was reported.
    pub(super) fn processors(&self) -> Option<f64> {
        self.processors
    }

    /// Returns the result; `None` while too little is known. `response`: the maximum seconds that a request
    /// takes at low concurrency.
    pub(super) fn estimate(&self, response: Option<f64>) -> Option<HostEstimate> {
        let mut line = self.line()?;
        if line.rate <= 0.0 || line.share < IDLE {
            return None;
        }
        let all = line.share / line.rate;
        let whole =
            self.processors.zip(response).map_or(f64::INFINITY, |(processors, seconds)| seconds / processors);
        let likely = all.min(whole);
        // Other work that happened to vary with the requests shows nothing.
        if line.slope - line.sure * line.error > BEYOND * likely {
            (line.slope, line.error) = (0.0, f64::INFINITY);
        }
        // Unless the slope contradicts.
        let steepest = (line.slope + line.sure * line.error) / (1.0 - SKEW);
        let alike = (all / whole - 1.0).abs() <= ALIKE && steepest >= (1.0 - ALIKE) * all;
        let slope = (line.slope - line.sure * line.error).max(0.0);
        let unsure = SURE + line.sure * line.unsure / line.share;
        let most = (all * (1.0 + unsure)).min(whole * BEYOND);
        // A slope of mere chance bounds nothing.
        let most = if steepest > 0.0 { most.min(steepest.max(slope * (1.0 + SURE))) } else { most };
        let least = slope.max(if alike { HALF * all } else { 0.0 }).min(most / (1.0 + SURE));
        // Both count, each by its certainty.
        let trust = likely * if alike { BELIEVED_ALIKE } else { BELIEVED };
        let trust = trust * trust;
        let weight = if line.error.is_finite() { trust / (trust + line.error * line.error) } else { 0.0 };
        let cost = if weight > 0.0 { likely + (line.slope - likely) * weight } else { likely };
        // Requests have a cost, whatever the random slope.
        let cost = cost.clamp(least.max(LITTLE * likely).min(most), most);
        let free = 1.0 - line.share;
        let off = line.sure * line.unsure;
        let high = if least > 0.0 { line.rate + (free + off) / least } else { f64::INFINITY };
        let bound = ThroughputBound {
            low: (line.rate + (free - off).max(0.0) / most) / (1.0 + SURE),
            best: line.rate + free / cost,
            high: high * (1.0 + SURE),
            processors: self.processors.map(|count| (count, cost * count)),
        };
        let chance = all * libm::sqrt(VARIATION * line.rate / line.seconds);
        let comes_and_goes = line.scatter > RESTLESS && line.persists > PERSISTS;
        let restless = line.scatter > RESTLESS + 2.0 * chance || comes_and_goes;
        let other = (line.share - cost * line.rate).max(0.0);
        let alone = !restless && (alike || line.share - least * line.rate < REPORTED_OTHER_WORK);
        Some(HostEstimate { bound, other_work: other, other_work_varies: restless, no_other_work: alone })
    }

    /// Computes the regression of the share on the rate; older windows count less.
    fn line(&self) -> Option<RegressionLine> {
        if self.points.len() < LEAST {
            return None;
        }
        let weight = |kept: &RegressionPoint| decay_factor(self.now - kept.at, super::MEMORY);
        let (mut weights, mut squares, mut rate, mut share) = (0.0, 0.0, 0.0, 0.0);
        for kept in &self.points {
            let weight = weight(kept);
            weights += weight;
            squares += weight * weight;
            rate += weight * kept.rate;
            share += weight * kept.share;
        }
        (rate, share) = (rate / weights, share / weights);
        let (mut spread, mut together) = (0.0, 0.0);
        for kept in &self.points {
            spread += weight(kept) * (kept.rate - rate) * (kept.rate - rate) / weights;
            together += weight(kept) * (kept.rate - rate) * (kept.share - share) / weights;
        }
        let slope = if spread > 0.0 { together / spread } else { 0.0 };
        let left = |kept: &RegressionPoint| kept.share - share - slope * (kept.rate - rate);
        let scatter =
            self.points.iter().map(|kept| weight(kept) * left(kept) * left(kept) / weights).sum::<f64>();
        let persists = |of: &dyn Fn(&RegressionPoint) -> f64, variance: f64| {
            let pairs = self.points.iter().zip(self.points.iter().skip(1));
            let sum: f64 = pairs.map(|(one, next)| weight(next) * of(one) * of(next)).sum();
            if variance > 0.0 { (sum / weights / variance).clamp(0.0, LONGEST) } else { 0.0 }
        };
        let by_rate = persists(&|kept| kept.rate - rate, spread);
        let by_left = persists(&left, scatter);
        let windows = weights * weights / squares;
        let both = by_rate * by_left;
        let pairs = windows * (1.0 - both) / (1.0 + both);
        let free = pairs - 2.0;
        let known = free >= 1.0 && spread > 0.0;
        let error = if known { libm::sqrt(scatter / free / spread) } else { f64::INFINITY };
        let alone = windows * (1.0 - by_left) / (1.0 + by_left);
        Some(RegressionLine {
            rate,
            share,
            seconds: self.now / self.windows.max(1.0),
            scatter: libm::sqrt(scatter),
            persists: by_left,
            slope: if known { slope } else { 0.0 },
            error,
            unsure: libm::sqrt(scatter / (alone - 1.0).max(0.5)),
            sure: student(if known { free } else { windows - 1.0 }),
        })
    }
}

struct RegressionLine {
    /// The means.
    rate: f64,
    share: f64,
    /// The seconds of a window.
    seconds: f64,
    /// The residual of the share, as a standard deviation.
    scatter: f64,
    /// The correlation of one window's residual with the next one's.
    persists: f64,
    slope: f64,
    /// The standard errors of the slope, infinite if nothing is known of it, and of the share at the mean
    /// rate.
    error: f64,
    unsure: f64,
    /// The number of errors for 95 %.
    sure: f64,
}

/// Returns the quantile of 97.5 % of Student's distribution, to some hundredths from two degrees of freedom
/// on.
pub(super) fn student(free: f64) -> f64 {
    let free = free.max(1.0);
    1.96 + 2.4 / free + 4.3 / (free * free)
}

/// The number of windows kept: four minutes, after which one counts for a quarter.
const KEPT: usize = 48;

/// The seconds after which a window is outdated, such as the last ones before a night without traffic.
const OLD: f64 = 1200.0;

/// The number of windows below which there is no result.
const LEAST: usize = 2;

/// The share below which processors count as idle.
const IDLE: f64 = 0.02;

/// The multiple of its response time that a request may use of a processor: for work after its answer, and on
/// other threads.
const BEYOND: f64 = 1.5;

/// The part by which a slope may be less steep than it should be.
const SKEW: f64 = 0.2;

/// The maximum difference between a request's cost without other work and its response time at which there is
/// hardly any other work. Then the minimum part of that cost.
const ALIKE: f64 = 0.25;
const HALF: f64 = 0.5;

/// The assumed error of the most likely cost without a slope, as a part of it, and that if processors and
/// response times agree.
const BELIEVED: f64 = 0.3;
const BELIEVED_ALIKE: f64 = 0.05;

/// The minimum cost of a request, as a part of the most likely one, if the slope is level or falls.
const LITTLE: f64 = 0.1;

/// The squared coefficient of variation of requests' work, and the share by which a host varies beyond that
/// with varying other work.
const VARIATION: f64 = 2.0;
const RESTLESS: f64 = 0.03;

/// The correlation of successive residuals that is more than chance.
const PERSISTS: f64 = 0.4;

/// The share of a host that other work keeps busy from which it is reported.
pub(super) const REPORTED_OTHER_WORK: f64 = 0.1;

/// The minimum uncertainty of a bound.
const SURE: f64 = 0.03;

/// The maximum correlation with the previous window: a higher one could not be distinguished from 1.
const LONGEST: f64 = 0.9;

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the result of windows of five seconds.
    fn found(rates: &[f64], share: impl Fn(usize, f64) -> f64, response: f64) -> HostEstimate {
        let mut host = HostRegression::default();
        for (window, rate) in rates.iter().enumerate() {
            host.advance(5.0);
            host.add(*rate, share(window, *rate), Some(2.0));
        }
        host.estimate(Some(response)).unwrap()
    }

    fn varied() -> [f64; 20] {
        core::array::from_fn(|window| 40.0 + 10.0 * (window % 7) as f64)
    }

    #[test]
    fn where_the_load_varies_other_work_is_told_apart() {
        let found = found(&varied(), |_, rate| 0.4 + rate / 400.0, 0.005);
        assert!((found.bound.best / 240.0 - 1.0).abs() < 0.01, "{found:?}");
        assert!(
            found.bound.low <= 240.0 && found.bound.high >= 240.0 && found.bound.high < 300.0,
            "{found:?}"
        );
        assert!(
            (found.other_work - 0.4).abs() < 0.01 && !found.other_work_varies && !found.no_other_work,
            "{found:?}"
        );
    }

    #[test]
    fn where_it_does_not_only_the_response_time_bounds_what_a_request_costs() {
        // A request takes at most 5 ms: 100 of them a second do not explain a host of two at 80 %.
        let found = found(&[100.0; 20], |_, _| 0.8, 0.005);
        assert!(found.bound.high.is_infinite() && !found.no_other_work, "{found:?}");
        // 20 % of the two processors are free at least: 100 + 0.2 / 0.0025, less the allowance.
        assert!((found.bound.best / 180.0 - 1.0).abs() < 0.01 && found.bound.low > 140.0, "{found:?}");
        assert!((found.other_work - 0.55).abs() < 0.01, "{found:?}");
    }

    #[test]
    fn where_processors_and_response_times_agree_there_is_hardly_any_other_work() {
        let found = found(&[100.0; 20], |_, rate| rate / 400.0, 0.005);
        assert!((found.bound.best / 400.0 - 1.0).abs() < 0.05 && found.bound.high < 800.0, "{found:?}");
        assert!(found.no_other_work && found.other_work < 0.01, "{found:?}");
    }

    #[test]
    fn other_work_that_comes_and_goes_is_seen_and_makes_it_unsure() {
        let found = found(&[100.0; 20], |window, _| if window / 4 % 2 == 0 { 0.9 } else { 0.3 }, 0.005);
        assert!(
            found.other_work_varies && !found.no_other_work && found.bound.high > 3.0 * found.bound.low,
            "{found:?}"
        );
    }

    #[test]
    fn requests_that_seem_to_cost_less_than_nothing_leave_a_number() {
        let mut host = HostRegression::default();
        for (rate, share) in [(77_060.05, 0.0), (0.1, 0.7776), (0.1, 0.9643), (0.1, 0.8716)] {
            host.advance(5.0);
            host.add(rate, share, Some(4.0));
        }
        let bound = host.estimate(None).unwrap().bound;
        assert!(bound.low <= bound.best && bound.best.is_finite(), "{bound:?}");
    }

    #[test]
    fn what_is_idle_or_new_says_nothing() {
        assert_eq!(HostRegression::default().estimate(None), None);
        let mut host = HostRegression::default();
        host.advance(5.0);
        host.add(10.0, 0.5, None);
        assert_eq!(host.estimate(None), None, "one window");
        host.advance(5.0);
        host.add(10.0, 0.5, None);
        assert!(host.estimate(None).is_some_and(|found| found.bound.processors.is_none()));
        let mut idle = HostRegression::default();
        for _ in 0..5 {
            idle.advance(5.0);
            idle.add(10.0, 0.001, None);
        }
        assert_eq!(idle.estimate(None), None);
        let mut night = HostRegression::default();
        for _ in 0..5 {
            night.advance(5.0);
            night.add(10.0, 0.5, None);
        }
        assert!(night.estimate(None).is_some());
        night.advance(200_000.0);
        assert_eq!(night.estimate(None), None, "what was is over");
    }

    proptest::proptest! {
        /// Checks for any reports that the ends are in order, numbers, and never below the rate carried while
        /// the host had room.
        #[test]
        fn ends_are_in_order(
            windows in proptest::collection::vec((0.1..1e5_f64, 0.0..1.0_f64), 2..60),
            response in proptest::option::of(1e-6..10.0_f64),
        ) {
            let mut host = HostRegression::default();
            for (rate, share) in &windows {
                host.advance(5.0);
                host.add(*rate, *share, Some(4.0));
            }
            let Some(estimate) = host.estimate(response) else { return Ok(()) };
            let HostEstimate { bound, other_work: other_work_share, .. } = estimate;
            proptest::prop_assert!(
                bound.low > 0.0 && bound.low <= bound.best && bound.best <= bound.high,
                "{bound:?}"
            );
            proptest::prop_assert!(
                bound.best.is_finite() && (0.0..=1.0).contains(&other_work_share),
                "{bound:?} {other_work_share}"
            );
        }
    }
}
