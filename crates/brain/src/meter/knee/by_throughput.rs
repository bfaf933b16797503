//! The estimate of the knee from completions against the work that was possible.
//!
//! A member with knee c does work min(n, c) of the time at a level of n requests in flight. So over *blocks*
//! of several sojourns the completions of each block are in proportion to the sum of that. The closer they
//! are, the likelier is c. A request is longer than a level lasts, hence the blocks. The likelihood is that
//! of a regression through zero.
//!
//! If the level follows from earlier work (a member that has served much has few left), this is biased. So it
//! is used only if more are in flight than fit nearly all the time. Rejections then set the level, and in one
//! block of a window they lower it to a little below the knee. If that changes nothing, the knee is there or
//! below; if it costs its share of completions, the knee is above. Because a trial has a cost, it is repeated
//! less often while its result stays the same.

use alloc::vec;
use alloc::vec::Vec;

use super::{LEVELS, level, value};

/// The estimator by flow.
#[derive(Clone, Debug)]
pub(super) struct ThroughputEstimator {
    /// The present block: the seconds at each level and in all, its planned length, and its completions.
    level_seconds: Vec<f64>,
    block_seconds: f64,
    block_length: f64,
    block_successes: f64,
    /// The blocks of this window. For each candidate: the sum of the squares of the possible work, and of its
    /// products with the completions. For all: the sum of the squares of the completions.
    squares: Vec<f64>,
    products: Vec<f64>,
    ended_squared: f64,
    blocks: u32,
    /// The seconds of this window, and those with more in flight than fit.
    window: f64,
    crowded_seconds: f64,
    is_crowded: bool,
    /// Whether this block admits fewer requests.
    trial_running: bool,
    /// Whether this window has such a block.
    had_trial: bool,
    /// The knee at the last trial.
    confirmed_knee: f64,
    /// The windows without a trial: those still to come, and those after the next trial if it changes
    /// nothing.
    trial_pause_left: u32,
    trial_pause: u32,
}

impl Default for ThroughputEstimator {
    fn default() -> Self {
        Self {
            level_seconds: vec![0.0; LEVELS + 1],
            block_seconds: 0.0,
            block_length: 0.0,
            block_successes: 0.0,
            squares: vec![0.0; LEVELS + 1],
            products: vec![0.0; LEVELS + 1],
            ended_squared: 0.0,
            blocks: 0,
            window: 0.0,
            crowded_seconds: 0.0,
            is_crowded: false,
            trial_running: false,
            had_trial: false,
            confirmed_knee: 0.0,
            trial_pause_left: 0,
            trial_pause: 0,
        }
    }
}

impl ThroughputEstimator {
    /// Returns `true` if more were in flight than fit nearly all the time of the last window.
    pub(super) fn is_crowded(&self) -> bool {
        self.is_crowded
    }

    /// Returns the requests in flight at which one more is rejected, with this knee; if it is `open` only in
    /// a trial.
    pub(super) fn rejection_limit(&self, knee: f64, open: bool) -> f64 {
        match () {
            () if self.trial_running => TRIAL_SHARE * knee,
            () if open => f64::INFINITY,
            () => knee + 3.0 * libm::sqrt(knee),
        }
    }

    /// Records a success.
    pub(super) fn record_success(&mut self) {
        self.block_successes += 1.0;
    }

    /// Records `seconds` with `in_flight` requests, with the present estimate `knee`.
    pub(super) fn advance(&mut self, in_flight: u32, seconds: f64, knee: f64) {
        if in_flight > 0 {
            self.level_seconds[level(in_flight)] += seconds;
        }
        self.block_seconds += seconds;
        self.window += seconds;
        if f64::from(in_flight) > knee + libm::sqrt(knee) {
            self.crowded_seconds += seconds;
        }
    }

    /// Returns the log-likelihoods of the candidates from 1 to `top`, at the end of a window with a trial.
    pub(super) fn evaluate(&mut self, sojourn: f64, mean: f64, knee: f64, top: usize) -> Option<Vec<f64>> {
        if self.block_seconds < self.block_length || sojourn <= 0.0 {
            return None;
        }
        if self.block_length > 0.0 {
            self.close_block(top);
        }
        self.block_length = sojourn * (MIN_ENDS / mean.max(0.1)).max(MIN_SOJOURNS);
        self.block_seconds = 0.0;
        self.block_successes = 0.0;
        self.level_seconds.fill(0.0);
        let has_drifted = (knee - self.confirmed_knee).abs() > MAX_DRIFT * self.confirmed_knee;
        self.trial_running =
            self.is_crowded && self.blocks == TRIAL_BLOCK && (self.trial_pause_left == 0 || has_drifted);
        self.had_trial |= self.trial_running;
        if self.blocks < BLOCKS_PER_EVALUATION {
            return None;
        }
        let gains = self.had_trial.then(|| (1..=top).map(|candidate| self.likelihood(candidate)).collect());
        if self.had_trial {
            self.trial_pause = if has_drifted { 0 } else { (2 * self.trial_pause + 1).min(MAX_PAUSE) };
            (self.trial_pause_left, self.confirmed_knee) = (self.trial_pause, knee);
        } else {
            self.trial_pause_left = self.trial_pause_left.saturating_sub(1);
        }
        self.had_trial = false;
        self.is_crowded = self.crowded_seconds > CROWDED_SHARE * self.window;
        (self.window, self.crowded_seconds) = (0.0, 0.0);
        self.squares.fill(0.0);
        self.products.fill(0.0);
        self.ended_squared = 0.0;
        self.blocks = 0;
        gains
    }

    fn close_block(&mut self, top: usize) {
        let mut work_below = 0.0;
        let mut seconds_above: f64 = self.level_seconds.iter().sum();
        for candidate in 1..=top {
            let expected = work_below + seconds_above * value(candidate);
            self.squares[candidate] += expected * expected;
            self.products[candidate] += expected * self.block_successes;
            work_below += self.level_seconds[candidate] * value(candidate);
            seconds_above -= self.level_seconds[candidate];
        }
        self.ended_squared += self.block_successes * self.block_successes;
        self.blocks += 1;
    }

    fn likelihood(&self, candidate: usize) -> f64 {
        let (squares, products) = (self.squares[candidate], self.products[candidate]);
        let explained = if squares > 0.0 { products * products / squares } else { 0.0 };
        let blocks = f64::from(BLOCKS_PER_EVALUATION);
        -0.5 * (blocks - 1.0) * libm::log((self.ended_squared - explained).max(0.0) + COUNT_NOISE * blocks)
    }
}

/// The minimum length of a block, in sojourns and in approximate completions.
const MIN_SOJOURNS: f64 = 10.0;
const MIN_ENDS: f64 = 20.0;

/// The blocks of a window.
const BLOCKS_PER_EVALUATION: u32 = 8;

/// The block of the trial, and the part of the knee that it admits.
const TRIAL_BLOCK: u32 = 4;
const TRIAL_SHARE: f64 = 0.8;

/// A trial that finds the knee within `DRIFT` of the last one needs no other soon: one window is left out,
/// then three, then `LONGEST`. If the knee has moved further it is tried again at once.
const MAX_DRIFT: f64 = 0.1;
const MAX_PAUSE: u32 = 7;

/// The share of the time with more in flight than fit from which a window counts.
const CROWDED_SHARE: f64 = 0.75;

/// The variance of a block's completions from the position of its ends, which carries no information.
const COUNT_NOISE: f64 = 0.25;
