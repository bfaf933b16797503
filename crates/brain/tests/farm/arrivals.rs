//! The arrivals of requests, their balancers, and their work.

use super::dice::Dice;
use super::run::WORK;
use super::{Discipline, Setting, Work};

pub(super) struct Arrivals {
    times: Dice,
    works: Dice,
    whos: Dice,
    /// The cumulated probabilities of the balancers, if they are not all equal.
    shares: Vec<f64>,
}

impl Arrivals {
    pub(super) fn new(setting: &Setting) -> Self {
        let mut sum = 0.0;
        let mut part = |place: usize| {
            sum += 1.0 / place as f64;
            sum
        };
        let shares: Vec<f64> =
            if setting.skewed { (1..=setting.balancers).map(&mut part).collect() } else { Vec::new() };
        let dice = |stream| Dice::new(setting.seed, stream);
        Self { times: dice(1), works: dice(2), whos: dice(3), shares }
    }

    /// Returns the seconds until the next one.
    pub(super) fn gap(&mut self, setting: &Setting, capacity: f64, now: f64) -> f64 {
        // Members learn at 75 % before the measured load begins.
        let load = if now < setting.warmup { 0.75 } else { setting.load };
        let burst = setting.bursts && now >= setting.warmup && (now - setting.warmup) % 12.0 < 3.0;
        self.times.exp(1.0 / (load * capacity * if burst { 2.0 } else { 1.0 }))
    }

    /// Returns the work in seconds of a processor of speed 1.
    pub(super) fn work(&mut self, setting: &Setting, now: f64) -> f64 {
        let work = match setting.work {
            Work::Lognormal => self.works.lognormal(WORK, 1.2).min(0.3),
            Work::Pareto => self.works.pareto(0.3),
        };
        let work = if setting.discipline == Discipline::Batch { WORK } else { work };
        let middle = setting.warmup + setting.measured / 2.0;
        let longer = if setting.heavier && now > middle { 5.0 } else { 1.0 };
        work * longer * setting.scale
    }

    /// Returns the balancer.
    pub(super) fn who(&mut self, setting: &Setting) -> usize {
        match self.shares.last() {
            None => self.whos.below(setting.balancers),
            Some(sum) => {
                let drawn = self.whos.unit() * sum;
                self.shares.partition_point(|share| *share < drawn).min(setting.balancers - 1)
            }
        }
    }
}
