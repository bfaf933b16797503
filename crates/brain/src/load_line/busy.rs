//! What a member can do, from how busy the server itself keeps its processors: the utilization law. (What is told of all that runs
//! at a host is read by `host`.)
//!
//! A request is `d` of the processors' second, and something else keeps them busy for a share `b` whatever comes, so at `X`
//! requests a second they are busy for `b + d X`; they are full at `(1 - b) / d`. Where the load has varied by much more than
//! chance makes it vary, both follow by regression; else `b` is taken for nothing (which errs to the low side), and the upper end
//! allows for a tenth of what was busy. Old windows count for less.

use super::host::student;

/// How busy a member's processors are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cpu {
    /// Share of them that is in use, 0 to 1 (more is taken for 1).
    pub share: f64,
    /// How many there are, if that was told; above 0.
    pub processors: Option<f64>,
    /// Is that all that runs at a host, rather than the server alone?
    pub whole: bool,
}

/// What is kept of windows, in sums that decay.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Busy {
    windows: f64,
    /// Of the weights squared: how many windows these are worth.
    squared: f64,
    rate: f64,
    share: f64,
    rate_rate: f64,
    rate_share: f64,
    share_share: f64,
    /// Seconds of a window.
    seconds: f64,
    processors: Option<f64>,
}

/// Requests a second that the processors can do.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Bound {
    pub(super) low: f64,
    pub(super) best: f64,
    pub(super) high: f64,
    /// How many there are, if that is known, and processor seconds of a request then.
    pub(super) processors: Option<(f64, f64)>,
}

impl Busy {
    /// Takes a window of so many seconds; what was known weighs `kept` from now on.
    pub(super) fn add(&mut self, rate: f64, cpu: Cpu, seconds: f64, kept: f64) {
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

    /// What that makes; `None` while too little is known.
    pub(super) fn bound(&self) -> Option<Bound> {
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
        // What the line leaves unexplained.
        let off = (scatter - 2.0 * demand * together + demand * demand * spread).max(0.0);
        let lever = if regressed { spread.min(rate * rate) } else { rate * rate };
        let error = (libm::sqrt(off / independent / lever) / demand).min(1.0);
        let best = (1.0 - background) / demand;
        let sure = SURE.max(student(independent - 1.0) * error);
        let allowed = if regressed { 0.0 } else { BACKGROUND * share };
        let high = (1.0 - background - allowed) / (demand - allowed / rate);
        Some(Bound {
            low: best / (1.0 + sure),
            best,
            high: high.max(best) * (1.0 + sure),
            processors: self.processors.map(|count| (count, demand * count)),
        })
    }
}

/// Windows below which nothing is said.
const LEAST: f64 = 1.9;

/// A share below which processors are as good as idle: what else they do is as much.
const IDLE: f64 = 0.02;

/// Share of the rate by which it varies without that being a change of the load, and how many times the variance by chance
/// shows a change.
const VARIES: f64 = 0.05;
const MUCH: f64 = 9.0;

/// Share of what is busy that may be nothing of the requests', where the load never changed; and that can be at all.
const BACKGROUND: f64 = 0.1;
const MOST_BACKGROUND: f64 = 0.9;

/// No bound is surer than this.
const SURE: f64 = 0.03;

#[cfg(test)]
mod tests {
    use super::*;

    fn windows(rates: &[f64], share: impl Fn(f64) -> f64) -> Bound {
        let mut busy = Busy::default();
        for rate in rates {
            busy.add(*rate, Cpu { share: share(*rate), processors: Some(2.0), whole: false }, 5.0, 0.95);
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
        assert_eq!(Busy::default().bound(), None);
        let mut busy = Busy::default();
        for _ in 0..10 {
            busy.add(5.0, Cpu { share: 0.001, processors: None, whole: false }, 5.0, 0.95);
        }
        assert_eq!(busy.bound(), None);
    }

    use alloc::vec::Vec;
}
