//! An estimate of the requests that a member can work on at once before they slow one another down.
//!
//! A member with c processors gives each of n requests the share min(1, c/n) of one, or works on c and lets
//! the others wait. Neither the length of requests nor the speed of the member need be known. Three
//! estimators score each c:
//!
//! - `by_sharing`: where processors are shared, requests end in proportion to their shares. It needs the
//!   least traffic, and is meaningless where requests wait in order.
//! - `by_arrival`: the number of requests that a request finds at its arrival does not depend on its length.
//!   So with the right c, neither does the service that it gets. It bounds the first estimate, and needs
//!   moments with few and with many.
//! - `by_throughput`: with the right c completions are in proportion to the time at each level times min(n,
//!   c). It alone is used if more are in flight than fit nearly all the time. The rejections then make the
//!   levels; now and then it admits fewer, to see the effect.
//!
//! Each result of an estimator adds the log-likelihoods of all candidates to its scores. Scores fade in
//! proportion to how well the result separates the candidates, so an idle member keeps its knee. Of the
//! candidates about as likely as the likeliest, the smallest is used. If that is too small, the member runs
//! with fewer requests and shows its capacity. If it were too large, the member would never run with few
//! enough requests to reveal it.
//!
//! The knee is *open* while no evidence speaks against the largest candidate: no request was seen to be
//! slowed down by the others. An open knee is a lower bound and no limit. The likelihoods of `by_arrival` are
//! no such evidence: they compare candidates, and if the number in flight hardly changes all fit by chance.
//! Its correlation with the largest candidate is evidence.
//!
//! Limits of the method:
//!
//! - If clients wait for their answers, a few more of them than fit, and none is rejected, the number in
//!   flight never changes. Any knee up to that is then equally good.
//! - With a queue in order `by_arrival` finds the knee too small, by a third, and in the worst case by half.
//! - A batch counts twice its size: one is processed while the next one fills.
//!
//! All of that is harmless, since promises and rejections use the knee and twice its square root.
//!
//! Known weakness: of members that work in batches of four or eight, at 90 % of the capacity, about a tenth
//! has an estimate of one at any time. A batch that gets three requests looks like a server of one at a time,
//! so it is given three. `by_throughput` does not correct that, because it counts only windows in which more
//! are in flight than fit for three quarters of the time.

use alloc::vec;
use alloc::vec::Vec;

use by_arrival::ArrivalEstimator;
pub(super) use by_arrival::CohortSlot;
use by_sharing::SharingEstimator;
use by_throughput::ThroughputEstimator;

mod by_arrival;
mod by_sharing;
mod by_throughput;

/// The estimator of the knee.
#[derive(Clone, Debug)]
pub(super) struct KneeEstimator {
    estimate: f64,
    /// Whether the estimate is a lower bound only: no evidence speaks against the largest candidate.
    open: bool,
    /// The highest level so far.
    highest_level: usize,
    by_sharing: SharingEstimator,
    by_arrival: ArrivalEstimator,
    by_throughput: ThroughputEstimator,
    /// The scores of `by_sharing`.
    sharing_scores: CandidateScores,
    /// The scores of the other two.
    bound_scores: CandidateScores,
}

/// The log-likelihood of each candidate, by its level, less that of the likeliest.
#[derive(Clone, Debug)]
struct CandidateScores(Vec<f64>);

impl Default for KneeEstimator {
    fn default() -> Self {
        Self {
            estimate: 2.0,
            open: true,
            highest_level: 1,
            by_sharing: SharingEstimator::default(),
            by_arrival: ArrivalEstimator::default(),
            by_throughput: ThroughputEstimator::default(),
            sharing_scores: CandidateScores(vec![0.0; LEVELS + 1]),
            bound_scores: CandidateScores(vec![0.0; LEVELS + 1]),
        }
    }
}

impl KneeEstimator {
    /// Returns a knee that evidence bounds.
    #[cfg(test)]
    pub(super) fn bounded(estimate: f64) -> Self {
        Self { estimate, open: false, ..Self::default() }
    }

    pub(super) fn estimate(&self) -> f64 {
        self.estimate
    }

    /// Returns `true` while the estimate is a lower bound only.
    pub(super) fn is_open(&self) -> bool {
        self.open
    }

    /// Returns the requests in flight at which one more is rejected; infinite while nothing is known.
    pub(super) fn rejection_limit(&self) -> f64 {
        self.by_throughput.rejection_limit(self.estimate, self.open)
    }

    /// Records the arrival of a request that found `found` in flight.
    pub(super) fn record_arrival(&mut self, job: u32, in_flight: u32) -> CohortSlot {
        self.highest_level = self.highest_level.max(level(in_flight.saturating_add(1)));
        self.by_sharing.record_arrival(job);
        self.by_arrival.record_arrival(in_flight)
    }

    /// Records the end of the request with this `seat`. `in_flight` includes it; `work` is the work of a
    /// request.
    pub(super) fn record_end(
        &mut self,
        job: u32,
        cohort_slot: CohortSlot,
        succeeded: bool,
        in_flight: u32,
        work: f64,
    ) {
        if succeeded {
            self.by_throughput.record_success();
        }
        let top = self.top();
        let sharing_gains = self.by_sharing.record_end(job, succeeded, in_flight, work, top);
        let arrival_gains = self.by_arrival.record_end(cohort_slot, succeeded, top);
        if self.by_throughput.is_crowded() {
            return;
        }
        if let Some(gains) = arrival_gains {
            self.bound_scores.add(&gains, top);
        }
        if let Some(gains) = sharing_gains {
            self.sharing_scores.add(&gains, top);
            let (min_level, max_level) = self.bound_scores.within(BOUND_TOLERANCE, top);
            let (best_level, _) = self.sharing_scores.within(ESTIMATE_TOLERANCE, top);
            self.open =
                self.sharing_scores.allows(top, OPEN_TOLERANCE) && !self.by_arrival.is_slowdown_significant();
            self.move_toward(best_level.clamp(min_level, max_level));
        }
    }

    /// Records `seconds` with `in_flight` requests. Requests recently take `sojourn`, of which `work` is
    /// their own, and `mean` is their mean number.
    pub(super) fn advance(&mut self, in_flight: u32, seconds: f64, sojourn: f64, work: f64, mean: f64) {
        self.by_sharing.advance(in_flight, seconds, self.estimate, work);
        self.by_arrival.advance(in_flight, seconds);
        self.by_throughput.advance(in_flight, seconds, self.estimate);
        let top = self.top();
        if let Some(gains) = self.by_throughput.evaluate(sojourn, mean, self.estimate, top) {
            self.bound_scores.add(&gains, top);
            let (smallest, largest) = self.bound_scores.within(THROUGHPUT_TOLERANCE, top);
            self.open = largest == top;
            self.move_toward(smallest);
        }
    }

    fn move_toward(&mut self, level: usize) {
        self.estimate += (value(level) - self.estimate) / 4.0;
    }

    /// Returns the last candidate; those above are equal to it.
    fn top(&self) -> usize {
        (self.highest_level + 1).min(LEVELS)
    }
}

impl CandidateScores {
    /// Adds an estimator's log-likelihoods of the candidates from 1 to `top`.
    fn add(&mut self, gains: &[f64], top: usize) {
        let max_gain = gains.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let min_gain = gains.iter().copied().fold(f64::INFINITY, f64::min);
        let information = ((max_gain - min_gain) / core::f64::consts::LN_2).min(1.0);
        for (score, gain) in self.0[1..].iter_mut().zip(gains) {
            *score = (1.0 - FORGETTING_RATE * information) * *score + gain - max_gain;
        }
        let top_score = self.0[top];
        self.0[top + 1..].fill(top_score);
    }

    /// Returns `true` if the candidate is not less likely than the likeliest by more than `doubt`.
    fn allows(&self, candidate: usize, tolerance: f64) -> bool {
        self.within(tolerance, candidate).1 == candidate
    }

    /// Returns the smallest and the largest candidate that are not less likely than the likeliest by more
    /// than `doubt`.
    fn within(&self, tolerance: f64, top: usize) -> (usize, usize) {
        let scores = &self.0[1..=top];
        let min_score = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max) - tolerance;
        let smallest = scores.iter().position(|score| *score >= min_score);
        let largest = scores.iter().rposition(|score| *score >= min_score);
        (smallest.map_or(1, |index| index + 1), largest.map_or(top, |index| index + 1))
    }
}

/// Returns the level of a number in flight: every number up to [`EXACT`], then eight to each doubling, up
/// to 4096.
fn level(in_flight: u32) -> usize {
    let in_flight = in_flight.max(1) as usize;
    if in_flight <= EXACT_LEVELS {
        return in_flight;
    }
    let doublings = libm::log2(in_flight as f64 / EXACT_LEVELS as f64);
    (EXACT_LEVELS + libm::ceil(doublings * STEPS_PER_DOUBLING as f64) as usize).min(LEVELS)
}

/// Returns the number of requests of a level.
fn value(level: usize) -> f64 {
    if level <= EXACT_LEVELS {
        return level as f64;
    }
    EXACT_LEVELS as f64 * libm::exp2((level - EXACT_LEVELS) as f64 / STEPS_PER_DOUBLING as f64)
}

/// The share of the scores that a window with a clear result removes.
const FORGETTING_RATE: f64 = 0.01;

/// The log-likelihood by which a larger candidate must be better.
const ESTIMATE_TOLERANCE: f64 = 2.0;

/// The same if rejections have made the levels differ.
const THROUGHPUT_TOLERANCE: f64 = 0.5;

/// The log-likelihood by which the largest candidate must be worse by `by_sharing` before the knee is a
/// limit.
const OPEN_TOLERANCE: f64 = 8.0;

/// The log-likelihood by which a candidate must be worse to be ruled out.
const BOUND_TOLERANCE: f64 = 3.0;

const EXACT_LEVELS: usize = 64;
const STEPS_PER_DOUBLING: usize = 8;
const LEVELS: usize = EXACT_LEVELS + 6 * STEPS_PER_DOUBLING;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_exact_and_then_logarithmic() {
        assert_eq!((level(0), level(1), level(64), level(65)), (1, 1, 64, 65));
        assert_eq!(
            (level(128), level(4096), level(u32::MAX)),
            (EXACT_LEVELS + STEPS_PER_DOUBLING, LEVELS, LEVELS)
        );
        assert!((value(level(4096)) - 4096.0).abs() < 1e-9);
    }
}
