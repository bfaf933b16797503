//! The capacity of a member from the utilization of its server's own processors: the utilization law.
//! (`host_regression` handles reports of whole hosts.)
//!
//! A request takes `d` of the processors' second, and other work keeps them busy for a share `b` at any load.
//! At `X` requests a second they are busy for `b + d X`; they are full at `(1 - b) / d`. If the load has
//! varied by much more than chance, a regression gives both. Otherwise `b` is assumed to be 0 (which errs to
//! the low side), and the upper end allows for a tenth of the utilization. Old windows count for less.

use super::host_regression::student_quantile;

/// The utilization of a member's processors.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CpuUtilization {
    /// The used share of them, 0 to 1 (more counts as 1).
    pub share: f64,
    /// Their number, if it was reported; above 0.
    pub processors: Option<f64>,
    /// Whether it is that of a whole host rather than of the server alone.
    pub whole_host: bool,
}

/// The sums over windows, which decay.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct UtilizationFit {
    window_weight: f64,
    /// The sum of the squared weights, from which the effective number of windows follows.
    squared_weight: f64,
    rate: f64,
    share: f64,
    rate_rate: f64,
    rate_share: f64,
    share_share: f64,
    /// The seconds of the windows.
    seconds: f64,
    processors: Option<f64>,
}

/// The requests a second that the processors can serve.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct ThroughputBound {
    pub(super) low: f64,
    pub(super) best: f64,
    pub(super) high: f64,
    /// The number of processors, if that is known, and then the processor seconds of a request.
    pub(super) processors: Option<(f64, f64)>,
}

impl UtilizationFit {
    /// Adds a window of `seconds`; the earlier ones keep the weight `kept`.
    pub(super) fn add(&mut self, rate: f64, cpu: CpuUtilization, seconds: f64, decay: f64) {
        let share = cpu.share.clamp(0.0, 1.0);
        let squared_decay = decay * decay;
        self.window_weight = self.window_weight * decay + 1.0;
        self.squared_weight = self.squared_weight * squared_decay + 1.0;
        self.rate = self.rate * decay + rate;
        self.share = self.share * decay + share;
        self.rate_rate = self.rate_rate * decay + rate * rate;
        self.rate_share = self.rate_share * decay + rate * share;
        self.share_share = self.share_share * decay + share * share;
        self.seconds = self.seconds * decay + seconds;
        self.processors = cpu.processors.or(self.processors);
    }

    /// Returns the bound; `None` while too little is known.
    pub(super) fn bound(&self) -> Option<ThroughputBound> {
        let weight = self.window_weight;
        let (rate, share) = (self.rate / weight, self.share / weight);
        if self.window_weight < MIN_WINDOWS || rate <= 0.0 || share < MIN_SHARE {
            return None;
        }
        let effective_windows = weight * weight / self.squared_weight;
        let rate_variance = (self.rate_rate / weight - rate * rate).max(0.0);
        let covariance = self.rate_share / weight - rate * share;
        let share_variance = (self.share_share / weight - share * share).max(0.0);
        let chance_variance =
            rate / (self.seconds / weight) + STEADY_VARIATION * rate * (STEADY_VARIATION * rate);
        let mut background = 0.0;
        let is_regressed = rate_variance > MIN_VARIANCE_RATIO * chance_variance;
        if is_regressed {
            background = (share - covariance / rate_variance * rate).clamp(0.0, MAX_BACKGROUND * share);
        }
        let demand = (share - background) / rate;
        // The part that the line leaves unexplained.
        let residual =
            (share_variance - 2.0 * demand * covariance + demand * demand * rate_variance).max(0.0);
        let rate_square = if is_regressed { rate_variance.min(rate * rate) } else { rate * rate };
        let error = (libm::sqrt(residual / effective_windows / rate_square) / demand).min(1.0);
        let best = (1.0 - background) / demand;
        let margin = MIN_MARGIN.max(student_quantile(effective_windows - 1.0) * error);
        let background_allowance = if is_regressed { 0.0 } else { BACKGROUND_ALLOWANCE * share };
        let high = (1.0 - background - background_allowance) / (demand - background_allowance / rate);
        Some(ThroughputBound {
            low: best / (1.0 + margin),
            best,
            high: high.max(best) * (1.0 + margin),
            processors: self.processors.map(|count| (count, demand * count)),
        })
    }
}

/// The number of windows below which there is no result.
const MIN_WINDOWS: f64 = 1.9;

/// The share below which processors count as idle: other work has as much.
const MIN_SHARE: f64 = 0.02;

/// The share of the rate by which it varies under a constant load, and the multiple of the random variance
/// that shows a change.
const STEADY_VARIATION: f64 = 0.05;
const MIN_VARIANCE_RATIO: f64 = 9.0;

/// The assumed share of the utilization that is other work under a constant load, and the maximum share.
const BACKGROUND_ALLOWANCE: f64 = 0.1;
const MAX_BACKGROUND: f64 = 0.9;

/// The minimum uncertainty of a bound.
const MIN_MARGIN: f64 = 0.03;

#[cfg(test)]
mod tests {
    use super::*;

    fn bound_after(rates: &[f64], share: impl Fn(f64) -> f64) -> ThroughputBound {
        let mut fit = UtilizationFit::default();
        for rate in rates {
            fit.add(
                *rate,
                CpuUtilization { share: share(*rate), processors: Some(2.0), whole_host: false },
                5.0,
                0.95,
            );
        }
        fit.bound().unwrap()
    }

    #[test]
    fn a_steady_load_gives_a_ratio_and_admits_that_it_may_be_low() {
        let bound = bound_after(&[80.0; 12], |rate| rate / 200.0);
        assert!((bound.best - 200.0).abs() < 1e-6 && bound.low > 190.0 && bound.high < 230.0, "{bound:?}");
        assert_eq!(
            bound.processors.map(|(count, demand)| (count, (demand * 1e6 + 0.5) as u32)),
            Some((2.0, 10_000))
        );
        let with_background = bound_after(&[80.0; 12], |rate| 0.02 + rate / 200.0);
        assert!(with_background.low < 196.0 && with_background.high > 196.0, "{with_background:?}");
    }

    #[test]
    fn a_varying_load_tells_the_background_apart() {
        let rates: Vec<f64> = (0..20).map(|window| 40.0 + 10.0 * f64::from(window % 10)).collect();
        let bound = bound_after(&rates, |rate| 0.2 + rate / 200.0);
        assert!((bound.best / 160.0 - 1.0).abs() < 0.01 && bound.high < 170.0, "{bound:?}");
    }

    #[test]
    fn what_is_idle_or_new_says_nothing() {
        assert_eq!(UtilizationFit::default().bound(), None);
        let mut fit = UtilizationFit::default();
        for _ in 0..10 {
            fit.add(5.0, CpuUtilization { share: 0.001, processors: None, whole_host: false }, 5.0, 0.95);
        }
        assert_eq!(fit.bound(), None);
    }

    use alloc::vec::Vec;
}
