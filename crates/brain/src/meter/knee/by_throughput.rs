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
    spans: Vec<f64>,
    seconds: f64,
    due: f64,
    ended: f64,
    /// The blocks of this window. For each candidate: the sum of the squares of the possible work, and of its
    /// products with the completions. For all: the sum of the squares of the completions.
    squares: Vec<f64>,
    products: Vec<f64>,
    ended_squared: f64,
    blocks: u32,
    /// The seconds of this window, and those with more in flight than fit.
    window: f64,
    crowded: f64,
    pressed: bool,
    /// Whether this block admits fewer requests.
    trying: bool,
    /// Whether this window has such a block.
    tried: bool,
    /// The knee at the last trial.
    confirmed: f64,
    /// The windows without a trial: those still to come, and those after the next trial if it changes
    /// nothing.
    rest: u32,
    pause: u32,
}

impl Default for ThroughputEstimator {
    fn default() -> Self {
        Self {
            spans: vec![0.0; LEVELS + 1],
            seconds: 0.0,
            due: 0.0,
            ended: 0.0,
            squares: vec![0.0; LEVELS + 1],
            products: vec![0.0; LEVELS + 1],
            ended_squared: 0.0,
            blocks: 0,
            window: 0.0,
            crowded: 0.0,
            pressed: false,
            trying: false,
            tried: false,
            confirmed: 0.0,
            rest: 0,
            pause: 0,
        }
    }
}

impl ThroughputEstimator {
    /// Returns `true` if more were in flight than fit nearly all the time of the last window.
    pub(super) fn is_crowded(&self) -> bool {
        self.pressed
    }

    /// Returns the requests in flight at which one more is rejected, with this knee; if it is `open` only in
    /// a trial.
    pub(super) fn rejection_limit(&self, knee: f64, open: bool) -> f64 {
        match () {
            () if self.trying => TRIAL * knee,
            () if open => f64::INFINITY,
            () => knee + 3.0 * libm::sqrt(knee),
        }
    }

    /// Records a success.
    pub(super) fn record_success(&mut self) {
        self.ended += 1.0;
    }

    /// Records `seconds` with `in_flight` requests, with the present estimate `knee`.
    pub(super) fn advance(&mut self, in_flight: u32, seconds: f64, knee: f64) {
        if in_flight > 0 {
            self.spans[level(in_flight)] += seconds;
        }
        self.seconds += seconds;
        self.window += seconds;
        if f64::from(in_flight) > knee + libm::sqrt(knee) {
            self.crowded += seconds;
        }
    }

    /// Returns the log-likelihoods of the candidates from 1 to `top`, at the end of a window with a trial.
    pub(super) fn evaluate(&mut self, sojourn: f64, mean: f64, knee: f64, top: usize) -> Option<Vec<f64>> {
        if self.seconds < self.due || sojourn <= 0.0 {
            return None;
        }
        if self.due > 0.0 {
            self.close(top);
        }
        self.due = sojourn * (ENDS / mean.max(0.1)).max(SOJOURNS);
        self.seconds = 0.0;
        self.ended = 0.0;
        self.spans.fill(0.0);
        let drifted = (knee - self.confirmed).abs() > DRIFT * self.confirmed;
        self.trying = self.pressed && self.blocks == TRIED && (self.rest == 0 || drifted);
        self.tried |= self.trying;
        if self.blocks < BLOCKS {
            return None;
        }
        let gains = self.tried.then(|| (1..=top).map(|candidate| self.likelihood(candidate)).collect());
        if self.tried {
            self.pause = if drifted { 0 } else { (2 * self.pause + 1).min(LONGEST) };
            (self.rest, self.confirmed) = (self.pause, knee);
        } else {
            self.rest = self.rest.saturating_sub(1);
        }
        self.tried = false;
        self.pressed = self.crowded > CROWDED * self.window;
        (self.window, self.crowded) = (0.0, 0.0);
        self.squares.fill(0.0);
        self.products.fill(0.0);
        self.ended_squared = 0.0;
        self.blocks = 0;
        gains
    }

    fn close(&mut self, top: usize) {
        let mut below = 0.0;
        let mut above: f64 = self.spans.iter().sum();
        for candidate in 1..=top {
            let done = below + above * value(candidate);
            self.squares[candidate] += done * done;
            self.products[candidate] += done * self.ended;
            below += self.spans[candidate] * value(candidate);
            above -= self.spans[candidate];
        }
        self.ended_squared += self.ended * self.ended;
        self.blocks += 1;
    }

    fn likelihood(&self, candidate: usize) -> f64 {
        let (squares, products) = (self.squares[candidate], self.products[candidate]);
        let explained = if squares > 0.0 { products * products / squares } else { 0.0 };
        let blocks = f64::from(BLOCKS);
        -0.5 * (blocks - 1.0) * libm::log((self.ended_squared - explained).max(0.0) + NOISE * blocks)
    }
}

/// The minimum length of a block, in sojourns and in approximate completions.
const SOJOURNS: f64 = 10.0;
const ENDS: f64 = 20.0;

/// The blocks of a window.
const BLOCKS: u32 = 8;

/// The block of the trial, and the part of the knee that it admits.
const TRIED: u32 = 4;
const TRIAL: f64 = 0.8;

/// A trial that finds the knee within `DRIFT` of the last one needs no other soon: one window is left out,
/// then three, then `LONGEST`. If the knee has moved further it is tried again at once.
const DRIFT: f64 = 0.1;
const LONGEST: u32 = 7;

/// The share of the time with more in flight than fit from which a window counts.
const CROWDED: f64 = 0.75;

/// The variance of a block's completions from the position of its ends, which carries no information.
const NOISE: f64 = 0.25;
