//! How many requests a member can work on at once before they slow one another down.
//!
//! A member with c processors gives each of n requests the share min(1, c/n) of one, or works on c and lets the others
//! wait. Neither how long requests are nor how fast the member is need be known. Three witnesses say what c is:
//!
//! - `shares`: where processors are shared, requests end as often as their shares say. That takes the least traffic, and
//!   is nonsense where requests wait in order.
//! - `visits`: what a request finds when it comes does not depend on how long it is. So with the right c, neither
//!   does the service it gets. That bounds what the first one says, and needs moments with few and with many.
//! - `flow`: with the right c completions keep step with the time at each level times min(n, c). It alone is asked where more
//!   are in flight than fit nearly all the time. Then refusals make the levels; now and then it has fewer let in, to
//!   see what that changes.
//!
//! Each time a witness is heard, the log-likelihoods of all candidates are added to its scores. Scores fade by as much as
//! it could tell the candidates apart, so a member that idles does not forget what it is. Of those about as likely as the
//! likeliest the smallest is believed: a member believed too small gets less, runs with fewer requests at once and shows what
//! it can do; one believed too large never again runs with few enough to be found out.
//!
//! The knee is *open* while no evidence speaks against the largest candidate: no request was seen to be slowed down by the others. An
//! open knee is a lower bound and no limit. The likelihoods of `visits` do not count as such evidence: they say which candidate fits better, and
//! where the number in flight hardly changes all fit by chance. Its correlation with the largest candidate counts.
//!
//! What cannot be told: with clients that wait for their answers, a few more of them than fit and none refused, the number
//! in flight never changes, and any knee up to that is as good. With a queue in order `visits` finds the knee too small, by
//! a third and in the worst case half. A batch is twice its size: one is done while the next one fills. All of that is
//! harmless, since what is promised and refused goes by the knee and twice its square root.
//!
//! Known weakness: of members that work in batches of four or eight, at 90 % of the capacity, about a tenth
//! has an estimate of one at any time. A batch that gets three requests looks like a server of one at a
//! time, so it is given three. `flow` does not correct that, because it counts only windows in which more
//! are in flight than fit for three quarters of the time.

use alloc::vec;
use alloc::vec::Vec;

use flow::Flow;
use shares::Shares;
pub(super) use visits::Seat;
use visits::Visits;

mod flow;
mod shares;
mod visits;

/// The learner.
#[derive(Clone, Debug)]
pub(super) struct Knee {
    estimate: f64,
    /// Whether the estimate is a lower bound only: no evidence speaks against the largest candidate.
    open: bool,
    /// The highest level there was.
    highest: usize,
    shares: Shares,
    visits: Visits,
    flow: Flow,
    /// What `shares` has come to.
    guess: Scores,
    /// What the other two have.
    bounds: Scores,
}

/// Log-likelihood of each candidate, by its level, less that of the likeliest.
#[derive(Clone, Debug)]
struct Scores(Vec<f64>);

impl Default for Knee {
    fn default() -> Self {
        Self {
            estimate: 2.0,
            open: true,
            highest: 1,
            shares: Shares::default(),
            visits: Visits::default(),
            flow: Flow::default(),
            guess: Scores(vec![0.0; LEVELS + 1]),
            bounds: Scores(vec![0.0; LEVELS + 1]),
        }
    }
}

impl Knee {
    /// A knee that evidence bounds.
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

    /// Requests in flight at which one more is refused; infinite while nothing is known.
    pub(super) fn most(&self) -> f64 {
        self.flow.most(self.estimate, self.open)
    }

    /// A request has come and found so many.
    pub(super) fn came(&mut self, job: u32, found: u32) -> Seat {
        self.highest = self.highest.max(level(found.saturating_add(1)));
        self.shares.came(job);
        self.visits.came(found)
    }

    /// A request that came so has left when so many were in flight, itself among them; `work` is what one needs.
    pub(super) fn left(&mut self, job: u32, seat: Seat, succeeded: bool, in_flight: u32, work: f64) {
        if succeeded {
            self.flow.ended();
        }
        let top = self.top();
        let shares = self.shares.left(job, succeeded, in_flight, work, top);
        let visits = self.visits.left(seat, succeeded, top);
        if self.flow.pressed() {
            return;
        }
        if let Some(gains) = visits {
            self.bounds.add(&gains, top);
        }
        if let Some(gains) = shares {
            self.guess.add(&gains, top);
            let (least, most) = self.bounds.within(BOUND, top);
            let (smallest, _) = self.guess.within(DOUBT, top);
            self.open = self.guess.allows(top, CERTAIN) && !self.visits.slowed();
            self.follow(smallest.clamp(least, most));
        }
    }

    /// So many were in flight for these seconds. Requests take `sojourn` lately, of which `work` is their own, and
    /// there are `mean` of them.
    pub(super) fn passed(&mut self, in_flight: u32, seconds: f64, sojourn: f64, work: f64, mean: f64) {
        self.shares.passed(in_flight, seconds, self.estimate, work);
        self.visits.passed(in_flight, seconds);
        self.flow.passed(in_flight, seconds, self.estimate);
        let top = self.top();
        if let Some(gains) = self.flow.judge(sojourn, mean, self.estimate, top) {
            self.bounds.add(&gains, top);
            let (smallest, largest) = self.bounds.within(CLOSE, top);
            self.open = largest == top;
            self.follow(smallest);
        }
    }

    fn follow(&mut self, level: usize) {
        self.estimate += (value(level) - self.estimate) / 4.0;
    }

    /// The last candidate: what is above is like it.
    fn top(&self) -> usize {
        (self.highest + 1).min(LEVELS)
    }
}

impl Scores {
    /// A witness finds candidates from 1 to `top` as likely as that.
    fn add(&mut self, gains: &[f64], top: usize) {
        let most = gains.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let least = gains.iter().copied().fold(f64::INFINITY, f64::min);
        let told = ((most - least) / core::f64::consts::LN_2).min(1.0);
        for (score, gain) in self.0[1..].iter_mut().zip(gains) {
            *score = (1.0 - FORGET * told) * *score + gain - most;
        }
        let above = self.0[top];
        self.0[top + 1..].fill(above);
    }

    /// Returns `true` if the candidate is not less likely than the likeliest by more than `doubt`.
    fn allows(&self, candidate: usize, doubt: f64) -> bool {
        self.within(doubt, candidate).1 == candidate
    }

    /// The smallest and the largest candidate that are not less likely than the likeliest by more than this.
    fn within(&self, doubt: f64, top: usize) -> (usize, usize) {
        let scores = &self.0[1..=top];
        let likely = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max) - doubt;
        let smallest = scores.iter().position(|score| *score >= likely);
        let largest = scores.iter().rposition(|score| *score >= likely);
        (smallest.map_or(1, |place| place + 1), largest.map_or(top, |place| place + 1))
    }
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

/// Share of the scores that a window makes forget that told the candidates well apart.
const FORGET: f64 = 0.01;

/// Log-likelihood by which a larger candidate must be better.
const DOUBT: f64 = 2.0;

/// The same where refusals have made the levels differ.
const CLOSE: f64 = 0.5;

/// Log-likelihood by which the largest candidate must be worse by `shares` before the knee is a limit.
const CERTAIN: f64 = 8.0;

/// Log-likelihood by which a candidate must be worse to be ruled out.
const BOUND: f64 = 3.0;

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
}
