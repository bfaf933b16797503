//! A reproducible random generator: SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number
//! generators", OOPSLA 2014). The same seed gives the same run.

/// A stream of random numbers.
#[derive(Clone, Debug)]
pub struct SplitMix64(u64);

impl SplitMix64 {
    /// Creates the stream of `seed`.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a uniform number above 0 and at most 1, so that its logarithm is finite.
    pub fn uniform(&mut self) -> f64 {
        ((self.bits() >> 11) + 1) as f64 / (1u64 << 53) as f64
    }

    /// Returns an exponential number with mean 1.
    pub fn exponential(&mut self) -> f64 {
        -self.uniform().ln()
    }

    /// Returns a normal number with mean 0 and variance 1, by the method of Box and Muller.
    pub fn normal(&mut self) -> f64 {
        (2.0 * self.exponential()).sqrt() * (std::f64::consts::TAU * self.uniform()).cos()
    }

    /// Returns `true` with probability `share`.
    pub fn bernoulli(&mut self, probability: f64) -> bool {
        self.uniform() <= probability
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_numbers_of_the_published_algorithm() {
        let mut rng = SplitMix64::new(1234567);
        let numbers: Vec<u64> = (0..3).map(|_| rng.bits()).collect();
        assert_eq!(numbers, [6457827717110365317, 3203168211198807973, 9817491932198370423]);
    }

    #[test]
    fn shares_and_means_come_out() {
        let mut rng = SplitMix64::new(7);
        let n = 200_000;
        let mean = (0..n).map(|_| rng.exponential()).sum::<f64>() / f64::from(n);
        assert!((mean - 1.0).abs() < 0.01, "{mean}");
        let (mut sum, mut squares) = (0.0, 0.0);
        for deviate in (0..n).map(|_| rng.normal()) {
            sum += deviate;
            squares += deviate * deviate;
        }
        assert!((sum / f64::from(n)).abs() < 0.01 && (squares / f64::from(n) - 1.0).abs() < 0.01);
        let hits = (0..n).filter(|_| rng.bernoulli(0.1)).count();
        assert!((hits as f64 / f64::from(n) - 0.1).abs() < 0.005, "{hits}");
        assert!(!(0..n).any(|_| rng.bernoulli(0.0)));
        assert!((0..n).all(|_| rng.bernoulli(1.0)));
    }
}
