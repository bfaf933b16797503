//! A member in virtual time: its workers, the requests that it has, and what is wrong with it.

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
    /// Times as fast as usual.
    pub(crate) factor: f64,
    /// Does it stand still, answer nothing, fail at once, refuse connections?
    pub(crate) collecting: bool,
    pub(crate) hangs: bool,
    pub(crate) fails: bool,
    pub(crate) dead: bool,
    /// Is it one of the group?
    pub(crate) there: bool,
    /// Its meter, if it sends load reports.
    pub(crate) meter: Option<Meter>,
    /// Requests that wait for a worker, and how many are worked on.
    pub(crate) waiting: VecDeque<usize>,
    pub(crate) running: usize,
    /// Work that was done on a request that has been worked on from the start, seconds.
    attained: f64,
    at: f64,
    /// Attained work at which each request is done, nanoseconds.
    pub(crate) ends: BinaryHeap<Reverse<(u64, usize)>>,
    /// Tells apart what was expected to happen when.
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

    /// Work a second that it can do now, if it is of use.
    pub(crate) fn capacity(&self) -> f64 {
        let usable = self.there && !self.fails && !self.dead;
        if usable { self.workers as f64 * self.pace() } else { 0.0 }
    }

    /// Work a second that a worker does now.
    fn pace(&self) -> f64 {
        if self.collecting || self.hangs { 0.0 } else { self.speed * self.factor }
    }

    /// Work a second that is done on each request.
    fn rate(&self) -> f64 {
        let share = if self.sharing { (self.workers as f64 / self.running as f64).min(1.0) } else { 1.0 };
        self.pace() * share
    }

    /// Work that is left of what it works on.
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

    /// Has it a free worker?
    pub(crate) fn free(&self) -> bool {
        self.sharing || self.running < self.workers
    }

    /// Works on a request.
    pub(crate) fn start(&mut self, request: usize, work: f64) {
        self.running += 1;
        self.ends.push(Reverse((((self.attained + work) * 1e9) as u64, request)));
    }

    /// Returns when the first of its requests will be done, if nothing changes.
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
