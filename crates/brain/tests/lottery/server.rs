//! The server beside a daemon: processors that work on requests in order.

use std::collections::VecDeque;

#[derive(Clone, Debug, Default)]
pub(crate) struct Server {
    pub(crate) cores: usize,
    pub(crate) running: usize,
    queue: VecDeque<f64>,
    pub(crate) slow: bool,
    /// The processor seconds used up to `at`.
    busy: f64,
    at: f64,
    /// The usage at the last sample.
    seen: (f64, f64),
    /// The life: requests of an earlier one do not end.
    pub(crate) life: u64,
}

impl Server {
    pub(crate) fn new(cores: usize, life: u64, now: f64) -> Self {
        Self { cores, life, at: now, seen: (0.0, now), ..Self::default() }
    }

    /// Begins a request with this work; returns the seconds to its end, if it starts now.
    pub(crate) fn begin(&mut self, now: f64, work: f64) -> Option<f64> {
        self.advance(now);
        if self.running < self.cores {
            self.running += 1;
            return Some(self.takes(work));
        }
        self.queue.push_back(work);
        None
    }

    /// Ends a request; returns the seconds to the end of the next one, if one waits.
    pub(crate) fn end(&mut self, now: f64) -> Option<f64> {
        self.advance(now);
        let next = self.queue.pop_front();
        self.running -= usize::from(next.is_none());
        next.map(|work| self.takes(work))
    }

    /// Returns its monitor's sample: the processors in use since the last time, and an eighth of the waiting
    /// requests, in thousandths of its processors; and the requests there.
    pub(crate) fn sample(&mut self, now: f64) -> (u16, u16) {
        self.advance(now);
        let (busy, at) = std::mem::replace(&mut self.seen, (self.busy, now));
        let used = if now > at { (self.busy - busy) / (now - at) } else { 0.0 };
        let load = (used + self.queue.len() as f64 / 8.0) / self.cores as f64;
        ((load * 1000.0) as u16, (self.running + self.queue.len()) as u16)
    }

    fn takes(&self, work: f64) -> f64 {
        if self.slow { 2.0 * work } else { work }
    }

    fn advance(&mut self, now: f64) {
        self.busy += self.running as f64 * (now - self.at);
        self.at = now;
    }
}
