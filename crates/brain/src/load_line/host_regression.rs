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
    window_count: f64,
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
        self.window_count += 1.0;
        while self.points.front().is_some_and(|point| self.now - point.at > MAX_POINT_AGE) {
            self.points.pop_front();
        }
    }

    /// Adds a window that ends now.
    pub(super) fn add(&mut self, rate: f64, share: f64, processors: Option<f64>) {
        if self.points.len() == MAX_POINTS {
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
        if line.rate <= 0.0 || line.share < MIN_SHARE {
            return None;
        }
        let observed_cost = line.share / line.rate;
        let response_cost =
            self.processors.zip(response).map_or(f64::INFINITY, |(processors, seconds)| seconds / processors);
        let likely_cost = observed_cost.min(response_cost);
        // Other work that happened to vary with the requests shows nothing.
        if line.slope - line.quantile * line.error > MAX_COST_RATIO * likely_cost {
            (line.slope, line.error) = (0.0, f64::INFINITY);
        }
        // Unless the slope contradicts.
        let max_slope = (line.slope + line.quantile * line.error) / (1.0 - SLOPE_SKEW);
        let costs_agree = (observed_cost / response_cost - 1.0).abs() <= COST_TOLERANCE
            && max_slope >= (1.0 - COST_TOLERANCE) * observed_cost;
        let slope = (line.slope - line.quantile * line.error).max(0.0);
        let uncertainty = MODEL_ERROR + line.quantile * line.share_error / line.share;
        let max_cost = (observed_cost * (1.0 + uncertainty)).min(response_cost * MAX_COST_RATIO);
        // A slope of mere chance bounds nothing.
        let max_cost =
            if max_slope > 0.0 { max_cost.min(max_slope.max(slope * (1.0 + MODEL_ERROR))) } else { max_cost };
        let min_cost = slope
            .max(if costs_agree { AGREED_MIN_COST * observed_cost } else { 0.0 })
            .min(max_cost / (1.0 + MODEL_ERROR));
        // Both count, each by its certainty.
        let prior_variance = likely_cost * if costs_agree { AGREED_PRIOR_DEVIATION } else { PRIOR_DEVIATION };
        let prior_variance = prior_variance * prior_variance;
        let weight = if line.error.is_finite() {
            prior_variance / (prior_variance + line.error * line.error)
        } else {
            0.0
        };
        let cost = if weight > 0.0 { likely_cost + (line.slope - likely_cost) * weight } else { likely_cost };
        // Requests have a cost, whatever the random slope.
        let cost = cost.clamp(min_cost.max(MIN_COST_SHARE * likely_cost).min(max_cost), max_cost);
        let free_share = 1.0 - line.share;
        let share_error = line.quantile * line.share_error;
        let high =
            if min_cost > 0.0 { line.rate + (free_share + share_error) / min_cost } else { f64::INFINITY };
        let bound = ThroughputBound {
            low: (line.rate + (free_share - share_error).max(0.0) / max_cost) / (1.0 + MODEL_ERROR),
            best: line.rate + free_share / cost,
            high: high * (1.0 + MODEL_ERROR),
            processors: self.processors.map(|count| (count, cost * count)),
        };
        let expected_scatter = observed_cost * libm::sqrt(REQUEST_VARIATION * line.rate / line.seconds);
        let is_intermittent = line.scatter > VARYING_SCATTER && line.persistence > MIN_PERSISTENCE;
        let varies = line.scatter > VARYING_SCATTER + 2.0 * expected_scatter || is_intermittent;
        let other_work = (line.share - cost * line.rate).max(0.0);
        let no_other_work =
            !varies && (costs_agree || line.share - min_cost * line.rate < REPORTED_OTHER_WORK);
        Some(HostEstimate { bound, other_work, other_work_varies: varies, no_other_work })
    }

    /// Computes the regression of the share on the rate; older windows count less.
    fn line(&self) -> Option<RegressionLine> {
        if self.points.len() < MIN_POINTS {
            return None;
        }
        let weight = |point: &RegressionPoint| decay_factor(self.now - point.at, super::LONG_HALF_LIFE);
        let (mut weight_sum, mut weight_square_sum, mut rate, mut share) = (0.0, 0.0, 0.0, 0.0);
        for point in &self.points {
            let weight = weight(point);
            weight_sum += weight;
            weight_square_sum += weight * weight;
            rate += weight * point.rate;
            share += weight * point.share;
        }
        (rate, share) = (rate / weight_sum, share / weight_sum);
        let (mut rate_variance, mut covariance) = (0.0, 0.0);
        for point in &self.points {
            rate_variance += weight(point) * (point.rate - rate) * (point.rate - rate) / weight_sum;
            covariance += weight(point) * (point.rate - rate) * (point.share - share) / weight_sum;
        }
        let slope = if rate_variance > 0.0 { covariance / rate_variance } else { 0.0 };
        let residual = |point: &RegressionPoint| point.share - share - slope * (point.rate - rate);
        let scatter = self
            .points
            .iter()
            .map(|point| weight(point) * residual(point) * residual(point) / weight_sum)
            .sum::<f64>();
        let autocorrelation = |value: &dyn Fn(&RegressionPoint) -> f64, variance: f64| {
            let pairs = self.points.iter().zip(self.points.iter().skip(1));
            let sum: f64 = pairs.map(|(previous, next)| weight(next) * value(previous) * value(next)).sum();
            if variance > 0.0 { (sum / weight_sum / variance).clamp(0.0, MAX_AUTOCORRELATION) } else { 0.0 }
        };
        let rate_autocorrelation = autocorrelation(&|kept| kept.rate - rate, rate_variance);
        let residual_autocorrelation = autocorrelation(&residual, scatter);
        let effective_windows = weight_sum * weight_sum / weight_square_sum;
        let joint_autocorrelation = rate_autocorrelation * residual_autocorrelation;
        let effective_pairs =
            effective_windows * (1.0 - joint_autocorrelation) / (1.0 + joint_autocorrelation);
        let degrees_of_freedom = effective_pairs - 2.0;
        let slope_known = degrees_of_freedom >= 1.0 && rate_variance > 0.0;
        let error = if slope_known {
            libm::sqrt(scatter / degrees_of_freedom / rate_variance)
        } else {
            f64::INFINITY
        };
        let effective_residuals =
            effective_windows * (1.0 - residual_autocorrelation) / (1.0 + residual_autocorrelation);
        Some(RegressionLine {
            rate,
            share,
            seconds: self.now / self.window_count.max(1.0),
            scatter: libm::sqrt(scatter),
            persistence: residual_autocorrelation,
            slope: if slope_known { slope } else { 0.0 },
            error,
            share_error: libm::sqrt(scatter / (effective_residuals - 1.0).max(0.5)),
            quantile: student_quantile(if slope_known {
                degrees_of_freedom
            } else {
                effective_windows - 1.0
            }),
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
    persistence: f64,
    slope: f64,
    /// The standard errors of the slope, infinite if nothing is known of it, and of the share at the mean
    /// rate.
    error: f64,
    share_error: f64,
    /// The number of errors for 95 %.
    quantile: f64,
}

/// Returns the quantile of 97.5 % of Student's distribution, to some hundredths from two degrees of freedom
/// on.
pub(super) fn student_quantile(degrees_of_freedom: f64) -> f64 {
    let degrees_of_freedom = degrees_of_freedom.max(1.0);
    1.96 + 2.4 / degrees_of_freedom + 4.3 / (degrees_of_freedom * degrees_of_freedom)
}

/// The number of windows kept: four minutes, after which one counts for a quarter.
const MAX_POINTS: usize = 48;

/// The seconds after which a window is outdated, such as the last ones before a night without traffic.
const MAX_POINT_AGE: f64 = 1200.0;

/// The number of windows below which there is no result.
const MIN_POINTS: usize = 2;

/// The share below which processors count as idle.
const MIN_SHARE: f64 = 0.02;

/// The multiple of its response time that a request may use of a processor: for work after its answer, and on
/// other threads.
const MAX_COST_RATIO: f64 = 1.5;

/// The part by which a slope may be less steep than it should be.
const SLOPE_SKEW: f64 = 0.2;

/// The maximum difference between a request's cost without other work and its response time at which there is
/// hardly any other work. Then the minimum part of that cost.
const COST_TOLERANCE: f64 = 0.25;
const AGREED_MIN_COST: f64 = 0.5;

/// The assumed error of the most likely cost without a slope, as a part of it, and that if processors and
/// response times agree.
const PRIOR_DEVIATION: f64 = 0.3;
const AGREED_PRIOR_DEVIATION: f64 = 0.05;

/// The minimum cost of a request, as a part of the most likely one, if the slope is level or falls.
const MIN_COST_SHARE: f64 = 0.1;

/// The squared coefficient of variation of requests' work, and the share by which a host varies beyond that
/// with varying other work.
const REQUEST_VARIATION: f64 = 2.0;
const VARYING_SCATTER: f64 = 0.03;

/// The correlation of successive residuals that is more than chance.
const MIN_PERSISTENCE: f64 = 0.4;

/// The share of a host that other work keeps busy from which it is reported.
pub(super) const REPORTED_OTHER_WORK: f64 = 0.1;

/// The minimum uncertainty of a bound.
const MODEL_ERROR: f64 = 0.03;

/// The maximum correlation with the previous window: a higher one could not be distinguished from 1.
const MAX_AUTOCORRELATION: f64 = 0.9;

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the result of windows of five seconds.
    fn estimate_of(rates: &[f64], share: impl Fn(usize, f64) -> f64, response: f64) -> HostEstimate {
        let mut host = HostRegression::default();
        for (window, rate) in rates.iter().enumerate() {
            host.advance(5.0);
            host.add(*rate, share(window, *rate), Some(2.0));
        }
        host.estimate(Some(response)).unwrap()
    }

    fn varied_rates() -> [f64; 20] {
        core::array::from_fn(|window| 40.0 + 10.0 * (window % 7) as f64)
    }

    #[test]
    fn where_the_load_varies_other_work_is_told_apart() {
        let estimate = estimate_of(&varied_rates(), |_, rate| 0.4 + rate / 400.0, 0.005);
        assert!((estimate.bound.best / 240.0 - 1.0).abs() < 0.01, "{estimate:?}");
        assert!(
            estimate.bound.low <= 240.0 && estimate.bound.high >= 240.0 && estimate.bound.high < 300.0,
            "{estimate:?}"
        );
        assert!(
            (estimate.other_work - 0.4).abs() < 0.01
                && !estimate.other_work_varies
                && !estimate.no_other_work,
            "{estimate:?}"
        );
    }

    #[test]
    fn where_it_does_not_only_the_response_time_bounds_what_a_request_costs() {
        // A request takes at most 5 ms: 100 of them a second do not explain a host of two at 80 %.
        let estimate = estimate_of(&[100.0; 20], |_, _| 0.8, 0.005);
        assert!(estimate.bound.high.is_infinite() && !estimate.no_other_work, "{estimate:?}");
        // 20 % of the two processors are free at least: 100 + 0.2 / 0.0025, less the allowance.
        assert!(
            (estimate.bound.best / 180.0 - 1.0).abs() < 0.01 && estimate.bound.low > 140.0,
            "{estimate:?}"
        );
        assert!((estimate.other_work - 0.55).abs() < 0.01, "{estimate:?}");
    }

    #[test]
    fn where_processors_and_response_times_agree_there_is_hardly_any_other_work() {
        let estimate = estimate_of(&[100.0; 20], |_, rate| rate / 400.0, 0.005);
        assert!(
            (estimate.bound.best / 400.0 - 1.0).abs() < 0.05 && estimate.bound.high < 800.0,
            "{estimate:?}"
        );
        assert!(estimate.no_other_work && estimate.other_work < 0.01, "{estimate:?}");
    }

    #[test]
    fn other_work_that_comes_and_goes_is_seen_and_makes_it_unsure() {
        let estimate =
            estimate_of(&[100.0; 20], |window, _| if window / 4 % 2 == 0 { 0.9 } else { 0.3 }, 0.005);
        assert!(
            estimate.other_work_varies
                && !estimate.no_other_work
                && estimate.bound.high > 3.0 * estimate.bound.low,
            "{estimate:?}"
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
        assert!(host.estimate(None).is_some_and(|estimate| estimate.bound.processors.is_none()));
        let mut idle = HostRegression::default();
        for _ in 0..5 {
            idle.advance(5.0);
            idle.add(10.0, 0.001, None);
        }
        assert_eq!(idle.estimate(None), None);
        let mut host = HostRegression::default();
        for _ in 0..5 {
            host.advance(5.0);
            host.add(10.0, 0.5, None);
        }
        assert!(host.estimate(None).is_some());
        host.advance(200_000.0);
        assert_eq!(host.estimate(None), None, "what was is over");
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
