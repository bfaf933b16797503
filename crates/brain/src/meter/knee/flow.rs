//! Completions against the work that could be done.
//!
//! In a time that a member with knee c spends at several levels n of requests in flight it does work min(n, c) of the time, so of
//! *blocks* of several sojourns the completions of each are to be in proportion to that; the better they are, the likelier is c. A
//! request is longer than a level lasts, hence the blocks, and the likelihood is that of a regression through zero.
//!
//! Where the level follows from what was done before (a member that has served much has few left), this is biased. So it is
//! asked only where more are in flight than fit nearly all the time. The level is then what refusals make it, and in one block of a
//! window they make it less: a little below the knee. If that changes nothing, the knee is there or below; if it costs its share, it is not.
//! As it does cost, it is done less often while it keeps saying the same.

use alloc::vec;
use alloc::vec::Vec;

use super::{LEVELS, level, value};

/// The witness.
#[derive(Clone, Debug)]
pub(super) struct Flow {
    /// Of this block: seconds at each level, in all, and what they are to come to; completions.
    spans: Vec<f64>,
    seconds: f64,
    due: f64,
    ended: f64,
    /// Of the blocks of this window: for each candidate the sums of the squares of the work that could be done, and of
    /// its products with the completions; the sum of the squares of the completions.
    squares: Vec<f64>,
    products: Vec<f64>,
    ended_squared: f64,
    blocks: u32,
    /// Seconds of this window, and those of them with more in flight than fit.
    window: f64,
    crowded: f64,
    pressed: bool,
    /// Are fewer let in in this block?
    trying: bool,
    /// Has this window such a block?
    tried: bool,
    /// The knee when it was tried last.
    confirmed: f64,
    /// Windows without a trial: still to come; after the next trial, if it changes nothing.
    rest: u32,
    pause: u32,
}

impl Default for Flow {
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

impl Flow {
    /// Were there more in flight than fit nearly all the time of the last window?
    pub(super) fn pressed(&self) -> bool {
        self.pressed
    }

    /// Requests in flight at which one more is refused, with this knee; only a trial refuses where it is `open`.
    pub(super) fn most(&self, knee: f64, open: bool) -> f64 {
        match () {
            () if self.trying => TRIAL * knee,
            () if open => f64::INFINITY,
            () => knee + 3.0 * libm::sqrt(knee),
        }
    }

    /// A request has been served.
    pub(super) fn ended(&mut self) {
        self.ended += 1.0;
    }

    /// So many were in flight for these seconds, and `knee` are believed to fit.
    pub(super) fn passed(&mut self, in_flight: u32, seconds: f64, knee: f64) {
        if in_flight > 0 {
            self.spans[level(in_flight)] += seconds;
        }
        self.seconds += seconds;
        self.window += seconds;
        if f64::from(in_flight) > knee + libm::sqrt(knee) {
            self.crowded += seconds;
        }
    }

    /// The log-likelihoods of the candidates from 1 to `top`, at the end of a window that says something.
    pub(super) fn judge(&mut self, sojourn: f64, mean: f64, knee: f64, top: usize) -> Option<Vec<f64>> {
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

/// A block lasts for this many sojourns and has about this many completions, at least.
const SOJOURNS: f64 = 10.0;
const ENDS: f64 = 20.0;

/// Blocks of a window.
const BLOCKS: u32 = 8;

/// The block in which fewer are let in, and how many, of those that fit.
const TRIED: u32 = 4;
const TRIAL: f64 = 0.8;

/// A trial that finds the knee within this share of where it was needs no other soon: one window is left out, then three, then
/// this many. When the knee has moved by more it is tried again at once.
const DRIFT: f64 = 0.1;
const LONGEST: u32 = 7;

/// Share of the time with more in flight than fit from which a window counts.
const CROWDED: f64 = 0.75;

/// Variance of the completions of a block that nothing can be read from: where its ends happen to be.
const NOISE: f64 = 0.25;
