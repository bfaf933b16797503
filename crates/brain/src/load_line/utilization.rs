//! The capacity of a member from the utilization of its server's own processors: the utilization law.
//! (`host_regression` handles reports of whole hosts.)
//!
//! A request takes `d` of the processors' second, and other work keeps them busy for a share `b` at any load.
//! At `X` requests a second they are busy for `b + d X`; they are full at `(1 - b) / d`. If the load has
//! varied by much more than chance, a regression gives both. Otherwise `b` is assumed to be 0 (which errs to
//! the low side), and the upper end allows for a tenth of the utilization. Old windows count for less.

use super::host_regression::student;

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
    windows: f64,
    /// The sum of the squared weights, from which the effective number of windows follows.
    squared: f64,
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
    pub(super) fn add(&mut self, rate: f64, cpu: CpuUtilization, seconds: f64, kept: f64) {
        let share = cpu.share.clamp(0.0, 1.0);
        let squared = kept * kept;
        self.windows = self.windows * kept + 1.0;
        self.squared = self.squared * squared + 1.0;
        self.rate = self.rate * kept + rate;
        self.share = self.share * kept + share;
        self.rate_rate = self.rate_rate * kept + rate * rate;
        self.rate_share = self.rate_share * kept + rate * share;
        self.share_share = self.share_share * kept + share * share;
        self.seconds = self.seconds * kept + seconds;
        self.processors = cpu.processors.or(self.processors);
    }

    /// Returns the bound; `None` while too little is known.
    pub(super) fn bound(&self) -> Option<ThroughputBound> {
        let windows = self.windows;
        let (rate, share) = (self.rate / windows, self.share / windows);
        if self.windows < LEAST || rate <= 0.0 || share < IDLE {
            return None;
        }
        let independent = windows * windows / self.squared;
        let spread = (self.rate_rate / windows - rate * rate).max(0.0);
        let together = self.rate_share / windows - rate * share;
        let scatter = (self.share_share / windows - share * share).max(0.0);
        let chance = rate / (self.seconds / windows) + VARIES * rate * (VARIES * rate);
        let mut background = 0.0;
        let regressed = spread > MUCH * chance;
        if regressed {
            background = (share - together / spread * rate).clamp(0.0, MOST_BACKGROUND * share);
        }
        let demand = (share - background) / rate;
        // The part that the line leaves unexplained.
        let off = (scatter - 2.0 * demand * together + demand * demand * spread).max(0.0);
        let lever = if regressed { spread.min(rate * rate) } else { rate * rate };
        let error = (libm::sqrt(off / independent / lever) / demand).min(1.0);
        let best = (1.0 - background) / demand;
        let sure = SURE.max(student(independent - 1.0) * error);
        let allowed = if regressed { 0.0 } else { BACKGROUND * share };
        let high = (1.0 - background - allowed) / (demand - allowed / rate);
        Some(ThroughputBound {
            low: best / (1.0 + sure),
            best,
            high: high.max(best) * (1.0 + sure),
            processors: self.processors.map(|count| (count, demand * count)),
        })
    }
}

/// The number of windows below which there is no result.
const LEAST: f64 = 1.9;

/// The share below which processors count as idle: other work has as much.
const IDLE: f64 = 0.02;

/// The share of the rate by which it varies under a constant load, and the multiple of the random variance
/// that shows a change.
const VARIES: f64 = 0.05;
const MUCH: f64 = 9.0;

/// The assumed share of the utilization that is other work under a constant load, and the maximum share.
const BACKGROUND: f64 = 0.1;
const MOST_BACKGROUND: f64 = 0.9;

/// The minimum uncertainty of a bound.
const SURE: f64 = 0.03;

#[cfg(test)]
mod tests {
    use super::*;

    fn windows(rates: &[f64], share: impl Fn(f64) -> f64) -> ThroughputBound {
        let mut busy = UtilizationFit::default();
        for rate in rates {
            busy.add(
                *rate,
                CpuUtilization { share: share(*rate), processors: Some(2.0), whole_host: false },
                5.0,
                0.95,
            );
        }
        busy.bound().unwrap()
    }

    #[test]
    fn a_steady_load_gives_a_ratio_and_admits_that_it_may_be_low() {
        let bound = windows(&[80.0; 12], |rate| rate / 200.0);
        assert!((bound.best - 200.0).abs() < 1e-6 && bound.low > 190.0 && bound.high < 230.0, "{bound:?}");
        assert_eq!(
            bound.processors.map(|(count, demand)| (count, (demand * 1e6 + 0.5) as u32)),
            Some((2.0, 10_000))
        );
        let other = windows(&[80.0; 12], |rate| 0.02 + rate / 200.0);
        assert!(other.low < 196.0 && other.high > 196.0, "{other:?}");
    }

    #[test]
    fn a_varying_load_tells_the_background_apart() {
        let rates: Vec<f64> = (0..20).map(|window| 40.0 + 10.0 * f64::from(window % 10)).collect();
        let bound = windows(&rates, |rate| 0.2 + rate / 200.0);
        assert!((bound.best / 160.0 - 1.0).abs() < 0.01 && bound.high < 170.0, "{bound:?}");
    }

    #[test]
    fn what_is_idle_or_new_says_nothing() {
        assert_eq!(UtilizationFit::default().bound(), None);
        let mut busy = UtilizationFit::default();
        for _ in 0..10 {
            busy.add(5.0, CpuUtilization { share: 0.001, processors: None, whole_host: false }, 5.0, 0.95);
        }
        assert_eq!(busy.bound(), None);
    }

    use alloc::vec::Vec;
}
