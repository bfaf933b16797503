//! A member: its processors, and the jobs that share them.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use plimsoll_brain::Time;
use plimsoll_brain::meter::Meter;

use super::dice::Dice;
use super::{Discipline, Setting};

/// One member.
pub(crate) struct Server {
    pub(crate) cores: f64,
    pub(crate) speed: f64,
    /// The part of the speed that neighbours leave.
    pub(crate) g: f64,
    /// The number of its jobs.
    pub(crate) jobs: usize,
    pub(crate) meter: Meter,
    pub(super) running: usize,
    /// The service of a job that has been running from the start, seconds of work.
    pub(super) attained: f64,
    pub(super) at: f64,
    /// The attained service at which a job ends, in nanoseconds, and its request.
    pub(super) ends: BinaryHeap<Reverse<(u64, usize)>>,
    pub(super) waiting: VecDeque<usize>,
    pub(super) version: u64,
    pub(super) silent: bool,
    pub(super) failing: bool,
    pub(super) discipline: Discipline,
    stalls: bool,
    /// The integral of the jobs over the present second.
    pub(super) integral: f64,
    /// The requests received and the work done, for policies by reports.
    pub(crate) received: u64,
    pub(crate) busy: f64,
    pub(crate) failures: u64,
    /// The jobs found at arrival and the latency of the last ended requests.
    pub(super) samples: VecDeque<(usize, f64)>,
}

/// The members.
pub(crate) struct Fleet {
    pub(crate) servers: Vec<Server>,
    pub(crate) network: f64,
}

impl Server {
    pub(super) fn new(index: usize, setting: &Setting) -> Self {
        let (cores, speed) = match index % 10 {
            0..4 => (4.0, 1.0),
            4..6 => (8.0, 1.0),
            6..8 => (4.0, 1.5),
            8 => (2.0, 1.0),
            _ => (4.0, 0.5),
        };
        let (cores, speed) = if setting.alike { (4.0, 1.0) } else { (cores, speed) };
        let cores = if setting.halved { cores / 2.0 } else { cores };
        let speed = if setting.slow == Some(index) { speed / 10.0 } else { speed };
        Self {
            cores,
            speed,
            g: 1.0,
            jobs: 0,
            meter: Meter::new(Time(0)),
            running: 0,
            attained: 0.0,
            at: 0.0,
            ends: BinaryHeap::new(),
            waiting: VecDeque::new(),
            version: 0,
            silent: index % 10 < setting.silent,
            failing: setting.failing == Some(index),
            discipline: setting.discipline,
            stalls: setting.stalls,
            integral: 0.0,
            received: 0,
            busy: 0.0,
            failures: 0,
            samples: VecDeque::new(),
        }
    }

    /// Returns the work per second of each running job.
    pub(super) fn rate(&self) -> f64 {
        let n = self.running as f64;
        let share = match self.discipline {
            Discipline::Sharing => (self.cores / n).min(1.0),
            Discipline::Fifo | Discipline::Batch => 1.0,
            // The universal scalability law (Gunther 1993): a tenth is serial, and jobs disturb one another.
            Discipline::Contended => {
                ((self.cores / n).min(1.0)) / (1.0 + 0.1 * (n - 1.0) + 0.002 * n * (n - 1.0))
            }
        };
        self.speed * self.g * share
    }

    /// Returns the median latency of the latest requests that met about as many jobs as there are now (the
    /// answer of Prequal's members to a probe).
    pub(crate) fn usual_latency(&self) -> f64 {
        let mut near: Vec<(usize, usize, f64)> = self
            .samples
            .iter()
            .enumerate()
            .map(|(age, (met, latency))| (met.abs_diff(self.jobs), age, *latency))
            .collect();
        // Two selections instead of two sorts: this runs three times per request.
        let count = near.len().min(9);
        if count == 0 {
            return 0.0;
        }
        near.select_nth_unstable_by_key(count - 1, |(off, age, _)| (*off, *age));
        near[..count].select_nth_unstable_by(count / 2, |a, b| a.2.total_cmp(&b.2)).1.2
    }

    pub(super) fn advance(&mut self, now: f64) {
        let step = now - self.at;
        self.at = now;
        self.integral += self.jobs as f64 * step;
        if self.running > 0 {
            let rate = self.rate();
            self.attained += rate * step;
            self.busy += (self.running as f64).min(self.cores) * step;
        }
    }

    /// Lets a neighbour come or go; returns the seconds that it lasts.
    pub(super) fn disturb(&mut self, dice: &mut Dice, now: f64) -> f64 {
        self.advance(now);
        if self.stalls {
            let stands = self.g == 1.0;
            self.g = if stands { STANDING } else { 1.0 };
            return if stands { dice.between(0.030, 0.100) } else { dice.exp(STALLS) };
        }
        if self.g == 1.0 {
            self.g = 0.3 + 0.5 * dice.unit();
            dice.exp(3.0)
        } else {
            self.g = 1.0;
            dice.exp(10.0)
        }
    }

    /// Returns the mean work per second that it can do.
    pub(super) fn capacity(&self) -> f64 {
        let lost = if self.stalls { 0.065 / (0.065 + STALLS) } else { 3.0 / 13.0 * 0.45 };
        if self.failing { 0.0 } else { self.cores * self.speed * (1.0 - lost) }
    }
}

/// The part of the speed of a stopped member: with 0 no job would ever end.
const STANDING: f64 = 1e-3;

/// The seconds from one stall to the next.
const STALLS: f64 = 2.0;
