//! A member in virtual time: its workers, its requests, and its troubles.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use plimsoll_brain::Time;
use plimsoll_brain::meter::Meter;

use super::composition::MemberKind;

/// A member.
pub(crate) struct Server {
    workers: usize,
    sharing: bool,
    speed: f64,
    /// The present speed as a multiple of the usual one.
    pub(crate) factor: f64,
    /// Whether it is stopped, answers nothing, fails at once, or refuses connections.
    pub(crate) collecting: bool,
    pub(crate) hangs: bool,
    pub(crate) fails: bool,
    pub(crate) dead: bool,
    /// Whether it is in the group.
    pub(crate) there: bool,
    /// Its meter, if it sends load reports.
    pub(crate) meter: Option<Meter>,
    /// The requests that wait for a worker, and the number in progress.
    pub(crate) waiting: VecDeque<usize>,
    pub(crate) running: usize,
    /// The work done on a request that has been in progress from the start, seconds.
    attained: f64,
    at: f64,
    /// The attained work at which each request is done, nanoseconds.
    pub(crate) ends: BinaryHeap<Reverse<(u64, usize)>>,
    /// The version, which invalidates earlier scheduled ends.
    pub(crate) version: u64,
}

impl Server {
    pub(crate) fn new(kind: &MemberKind, sharing: bool, speaks: bool) -> Self {
        Self {
            workers: kind.workers,
            sharing,
            speed: kind.speed,
            factor: 1.0,
            collecting: false,
            hangs: false,
            fails: false,
            dead: false,
            there: kind.joins == 0.0,
            meter: speaks.then(|| Meter::new(Time(0))),
            waiting: VecDeque::new(),
            running: 0,
            attained: 0.0,
            at: 0.0,
            ends: BinaryHeap::new(),
            version: 0,
        }
    }

    /// Returns the work a second that it can do now, if it is usable.
    pub(crate) fn capacity(&self) -> f64 {
        let usable = self.there && !self.fails && !self.dead;
        if usable { self.workers as f64 * self.pace() } else { 0.0 }
    }

    /// Returns the work a second that a worker does now.
    fn pace(&self) -> f64 {
        if self.collecting || self.hangs { 0.0 } else { self.speed * self.factor }
    }

    /// Returns the work a second that is done on each request.
    fn rate(&self) -> f64 {
        let share = if self.sharing { (self.workers as f64 / self.running as f64).min(1.0) } else { 1.0 };
        self.pace() * share
    }

    /// Returns the remaining work of the requests in progress.
    pub(crate) fn under_way(&self) -> f64 {
        self.ends.iter().map(|Reverse((end, _))| (*end as f64 / 1e9 - self.attained).max(0.0)).sum()
    }

    pub(crate) fn advance(&mut self, now: f64) {
        if self.running > 0 {
            self.attained += self.rate() * (now - self.at);
        } else {
            // Small numbers are exact.
            self.attained = 0.0;
            self.ends.clear();
        }
        self.at = now;
    }

    /// Returns `true` if it has a free worker.
    pub(crate) fn free(&self) -> bool {
        self.sharing || self.running < self.workers
    }

    /// Starts the work on a request.
    pub(crate) fn start(&mut self, request: usize, work: f64) {
        self.running += 1;
        self.ends.push(Reverse((((self.attained + work) * 1e9) as u64, request)));
    }

    /// Returns the end of the first of its requests, if nothing changes.
    pub(crate) fn next(&mut self, now: f64, runs: impl Fn(usize) -> bool) -> Option<f64> {
        self.version += 1;
        while let Some(Reverse((_, request))) = self.ends.peek() {
            if runs(*request) {
                break;
            }
            self.ends.pop();
        }
        let Reverse((end, _)) = self.ends.peek()?;
        let rate = self.rate();
        let left = (*end as f64 / 1e9 - self.attained).max(0.0);
        (rate > 0.0).then(|| now + left / rate + 1e-9)
    }
}
