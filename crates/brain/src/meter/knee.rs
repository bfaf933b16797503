//! How many requests a member can work on at once before they slow one another down.
//!
//! A member with c processors gives each of n requests the share min(1, c/n) of one. So the more run at once,
//! the less often they end, and from c on in proportion to c/n. How long requests are is not known, and need not
//! be: of all requests that have had the same service so far, the next one to end is any of them with a
//! chance in proportion to its share at that moment. That is the partial likelihood of Cox (Regression models
//! and life-tables, 1972) with the service attained as the age and min(1, c/n) as the hazard ratio; it depends
//! neither on the distribution of work nor on how fast the member is, only on c.
//!
//! Every [`WINDOW`] completions the log-likelihood of each candidate c is added to its score. Scores fade by as
//! much as the window could tell the candidates apart, so a member that idles does not forget what it is.

use alloc::vec;
use alloc::vec::Vec;

/// The learner.
#[derive(Clone, Debug)]
pub(super) struct Knee {
    estimate: f64,
    /// Log-likelihood of each candidate, by its level, less that of the best.
    scores: Vec<f64>,
    /// The highest level there was.
    highest: usize,
    /// Of this window: seconds that requests of each bin were in flight at each level.
    exposure: Vec<[f32; BINS]>,
    /// Of this window: completions of each bin, and at each level.
    ended_in_bin: [f32; BINS],
    ended_at_level: Vec<f32>,
    ended: u32,
}

impl Default for Knee {
    fn default() -> Self {
        Self {
            estimate: 2.0,
            scores: vec![0.0; LEVELS + 1],
            highest: 1,
            exposure: vec![[0.0; BINS]; LEVELS + 1],
            ended_in_bin: [0.0; BINS],
            ended_at_level: vec![0.0; LEVELS + 1],
            ended: 0,
        }
    }
}

impl Knee {
    pub(super) fn estimate(&self) -> f64 {
        self.estimate
    }

    /// So many requests are in flight.
    pub(super) fn saw(&mut self, in_flight: u32) {
        self.highest = self.highest.max(level(in_flight));
    }

    /// A request of this bin was in flight with so many for these seconds.
    pub(super) fn exposed(&mut self, bin: usize, in_flight: u32, seconds: f32) {
        self.exposure[level(in_flight)][bin] += seconds;
    }

    /// A request of this bin ended when so many were in flight, itself among them.
    pub(super) fn ended(&mut self, bin: usize, in_flight: u32) {
        self.ended_in_bin[bin] += 1.0;
        self.ended_at_level[level(in_flight)] += 1.0;
        self.ended += 1;
        if self.ended == WINDOW {
            self.learn();
        }
    }

    fn learn(&mut self) {
        let top = (self.highest + 1).min(LEVELS);
        let gains: Vec<f64> = (1..=top).map(|candidate| self.likelihood(value(candidate))).collect();
        let most = gains.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let least = gains.iter().copied().fold(f64::INFINITY, f64::min);
        let told = ((most - least) / core::f64::consts::LN_2).min(1.0);
        for (index, gain) in gains.iter().enumerate() {
            let score = &mut self.scores[index + 1];
            *score = (1.0 - FORGET * told) * *score + gain - most;
        }
        // The smallest that is about as likely as the likeliest. A member believed too small gets less, runs with
        // fewer requests at once and shows what it can do; one believed too large never again runs with few enough
        // to be found out.
        let likeliest = self.scores[1..=top].iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let best = (1..=top).find(|level| self.scores[*level] >= likeliest - DOUBT).unwrap_or(top);
        // Candidates above anything seen are like the highest that was.
        for candidate in top + 1..=LEVELS {
            self.scores[candidate] = self.scores[top];
        }
        let found = if best >= self.highest { value((self.highest + 1).min(LEVELS)) } else { value(best) };
        self.estimate += (found - self.estimate) / 4.0;
        self.exposure[1..=top].fill([0.0; BINS]);
        self.ended_in_bin = [0.0; BINS];
        self.ended_at_level[1..=top].fill(0.0);
        self.ended = 0;
    }

    /// Log partial likelihood of this window if `knee` requests fit.
    fn likelihood(&self, knee: f64) -> f64 {
        let mut sum = 0.0;
        let mut at_risk = [0.0_f64; BINS];
        for level in 1..=self.highest {
            let share = (knee / value(level)).min(1.0);
            let ended = f64::from(self.ended_at_level[level]);
            if ended > 0.0 {
                sum += ended * libm::log(share);
            }
            for (risk, exposure) in at_risk.iter_mut().zip(&self.exposure[level]) {
                *risk += f64::from(*exposure) * share;
            }
        }
        for (risk, ended) in at_risk.iter().zip(&self.ended_in_bin) {
            if *ended > 0.0 && *risk > 0.0 {
                sum -= f64::from(*ended) * libm::log(*risk);
            }
        }
        sum
    }
}

/// Which part of its life a request is in that has attained so many seconds of service, where a request needs
/// `work` of them: bins double in width, from a sixteenth of the work to sixteen times.
pub(super) fn bin(attained: f32, work: f32) -> usize {
    let ratio = attained / work;
    // The exponent is the whole part of the logarithm. What is no ratio (no work known yet) is young.
    if !(ratio.is_finite() && ratio > 0.0) {
        return 0;
    }
    let exponent = (ratio.to_bits() >> 23) as i32 - 127;
    (exponent + 4).clamp(0, BINS as i32 - 1) as usize
}

/// Levels of requests in flight: every number up to [`EXACT`], then eight to each doubling, up to 4096.
fn level(in_flight: u32) -> usize {
    let in_flight = in_flight.max(1) as usize;
    if in_flight <= EXACT {
        return in_flight;
    }
    let doublings = libm::log2(in_flight as f64 / EXACT as f64);
    (EXACT + libm::ceil(doublings * STEPS as f64) as usize).min(LEVELS)
}

/// How many requests a level stands for.
fn value(level: usize) -> f64 {
    if level <= EXACT {
        return level as f64;
    }
    EXACT as f64 * libm::exp2((level - EXACT) as f64 / STEPS as f64)
}

/// Completions after which the scores are brought up to date.
const WINDOW: u32 = 64;

/// Share of the scores that a window makes forget that told the candidates well apart.
const FORGET: f64 = 0.01;

/// Log-likelihood by which a larger candidate must be better.
const DOUBT: f64 = 2.0;

const BINS: usize = 9;
const EXACT: usize = 64;
const STEPS: usize = 8;
const LEVELS: usize = EXACT + 6 * STEPS;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_exact_and_then_logarithmic() {
        assert_eq!((level(0), level(1), level(64), level(65)), (1, 1, 64, 65));
        assert_eq!((level(128), level(4096), level(u32::MAX)), (EXACT + STEPS, LEVELS, LEVELS));
        assert!((value(level(4096)) - 4096.0).abs() < 1e-9);
    }

    #[test]
    fn bins_double() {
        assert_eq!((bin(0.0, 1.0), bin(1.0, 1.0), bin(2.0, 1.0), bin(100.0, 1.0)), (0, 4, 5, 8));
        assert_eq!((bin(1.0, 0.0), bin(f32::NAN, 1.0)), (0, 0));
    }
}
