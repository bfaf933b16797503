//! Random numbers from a seed, for all simulations.

use plimsoll_brain::mix;

/// A stream of random numbers.
#[derive(Clone)]
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64, stream: u64) -> Self {
        Self(mix(seed ^ mix(stream)))
    }

    pub(crate) fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// Returns a number strictly between 0 and 1.
    pub(crate) fn unit(&mut self) -> f64 {
        ((self.bits() >> 12) as f64 + 0.5) / (1_u64 << 52) as f64
    }

    pub(crate) fn exp(&mut self, mean: f64) -> f64 {
        -mean * self.unit().ln()
    }

    pub(crate) fn between(&mut self, least: f64, most: f64) -> f64 {
        least + (most - least) * self.unit()
    }

    pub(crate) fn below(&mut self, count: usize) -> usize {
        (self.unit() * count as f64) as usize
    }

    fn normal(&mut self) -> f64 {
        (-2.0 * self.unit().ln()).sqrt() * (std::f64::consts::TAU * self.unit()).cos()
    }

    /// Returns a bounded Pareto number with an exponent of 1.5 from 0.003755 to `most`, which has a mean of
    /// 0.01 for 0.3.
    pub(crate) fn pareto(&mut self, most: f64) -> f64 {
        let least = 0.003_755_f64;
        let cut = 1.0 - (least / most).powf(1.5);
        least / (1.0 - self.unit() * cut).powf(1.0 / 1.5)
    }

    /// Returns a lognormal number by its mean.
    pub(crate) fn lognormal(&mut self, mean: f64, sigma: f64) -> f64 {
        (mean.ln() - sigma * sigma / 2.0 + sigma * self.normal()).exp()
    }
}
