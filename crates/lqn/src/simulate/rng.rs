//! Random numbers from a seed: xoshiro256++ (Blackman and Vigna, Scrambled linear pseudorandom number
//! generators, 2021). Exponential times use the ziggurat (Marsaglia and Tsang, The ziggurat method for
//! generating random variables, 2000).

use std::sync::LazyLock;

/// A stream of random bits.
#[derive(Clone, Debug)]
pub(super) struct RandomStream([u64; 4]);

impl RandomStream {
    /// Creates the stream of a seed; SplitMix64 fills the state, as the authors of xoshiro advise.
    pub(super) fn new(seed: u64) -> Self {
        let mut state = seed;
        Self(core::array::from_fn(|_| {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            mixed ^ (mixed >> 31)
        }))
    }

    /// Returns a number that identifies the stream with high probability.
    pub(super) fn fingerprint(&self) -> u64 {
        self.clone().bits()
    }

    fn bits(&mut self) -> u64 {
        let [a, b, c, d] = &mut self.0;
        let result = a.wrapping_add(*d).rotate_left(23).wrapping_add(*a);
        let shifted = *b << 17;
        *c ^= *a;
        *d ^= *b;
        *b ^= *c;
        *a ^= *d;
        *c ^= shifted;
        *d = d.rotate_left(45);
        result
    }

    /// Returns a uniform number in [0, 1).
    pub(super) fn uniform(&mut self) -> f64 {
        (self.bits() >> 11) as f64 * UNIT
    }

    /// Returns a uniform integer below `many`; 0 if `many` is 0.
    pub(super) fn uniform_below(&mut self, bound: usize) -> usize {
        ((u128::from(self.bits()) * bound as u128) >> 64) as usize
    }

    /// Returns an exponential number with mean 1.
    pub(super) fn exponential(&mut self) -> f64 {
        let layers: &ZigguratLayers = &LAYERS;
        let mut tail_offset = 0.0;
        loop {
            let bits = self.bits();
            let layer = (bits & 0xff) as usize;
            let sample = (bits >> 11) as f64 * UNIT * layers.widths[layer];
            // The point is certainly below the curve, as in 99 % of the cases.
            if sample < layers.widths[layer + 1] {
                return tail_offset + sample;
            }
            if layer == 0 {
                // Beyond the widest layer, the rest is exponential again.
                tail_offset += TAIL_START;
                continue;
            }
            let (low, high) = (layers.high[layer], layers.high[layer + 1]);
            if low + (high - low) * self.uniform() < (-sample).exp() {
                return tail_offset + sample;
            }
        }
    }

    fn normal(&mut self) -> f64 {
        let radius = (2.0 * self.exponential()).sqrt();
        radius * (core::f64::consts::TAU * self.uniform()).cos()
    }

    /// Returns a gamma number with mean 1 and this squared coefficient of variation, above 0 (Marsaglia and
    /// Tsang 2000).
    pub(super) fn gamma(&mut self, variation: f64) -> f64 {
        let shape = 1.0 / variation;
        // A shape below 1 is derived from one that is greater by 1.
        let (boosted, boost) =
            if shape < 1.0 { (shape + 1.0, self.uniform().powf(1.0 / shape)) } else { (shape, 1.0) };
        let d = boosted - 1.0 / 3.0;
        let c = 1.0 / (9.0 * d).sqrt();
        loop {
            let x = self.normal();
            let v = (1.0 + c * x).powi(3);
            if v > 0.0 && self.uniform().ln() < 0.5 * x * x + d - d * v + d * v.ln() {
                return d * v * boost / shape;
            }
        }
    }
}

/// The spacing of uniform numbers, 2^-53.
const UNIT: f64 = 1.0 / (1_u64 << 53) as f64;

/// The curve e^-x cut into 256 layers of equal area: their widths, from the widest to 0, and the heights of
/// the curve there.
struct ZigguratLayers {
    widths: [f64; 257],
    high: [f64; 257],
}

/// The right end of the lowest layer, where the tail begins, and the area of each layer, from the paper.
const TAIL_START: f64 = 7.697_117_470_131_05;
const AREA: f64 = 0.003_949_659_822_581_572;

static LAYERS: LazyLock<ZigguratLayers> = LazyLock::new(|| {
    let mut layers = ZigguratLayers { widths: [0.0; 257], high: [1.0; 257] };
    // The width of a rectangle with the area of the lowest layer and its tail.
    (layers.widths[0], layers.widths[1]) = (AREA * TAIL_START.exp(), TAIL_START);
    for index in 2..256 {
        let inner_width = layers.widths[index - 1];
        layers.widths[index] = -(AREA / inner_width + (-inner_width).exp()).ln();
    }
    for index in 0..256 {
        layers.high[index] = (-layers.widths[index]).exp();
    }
    layers
});

/// The distribution of the length of a slice of work.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum WorkDistribution {
    None,
    Fixed(f64),
    Exponential(f64),
    /// The mean and the squared coefficient of variation, below 1.
    Gamma(f64, f64),
    /// A hyperexponential distribution with balanced means: the probability of the first branch, and the
    /// means of both.
    Hyper(f64, f64, f64),
}

impl WorkDistribution {
    /// Selects a distribution by its mean and squared coefficient of variation.
    pub(super) fn new(mean: f64, variation: f64) -> Self {
        if mean <= 0.0 {
            Self::None
        } else if variation == 0.0 {
            Self::Fixed(mean)
        } else if (variation - 1.0).abs() < 1e-9 {
            Self::Exponential(mean)
        } else if variation < 1.0 {
            Self::Gamma(mean, variation)
        } else {
            let first = 0.5 * (1.0 + ((variation - 1.0) / (variation + 1.0)).sqrt());
            Self::Hyper(first, 0.5 * mean / first, 0.5 * mean / (1.0 - first))
        }
    }

    pub(super) fn sample(self, random: &mut RandomStream) -> f64 {
        match self {
            Self::None => 0.0,
            Self::Fixed(mean) => mean,
            Self::Exponential(mean) => mean * random.exponential(),
            Self::Gamma(mean, variation) => mean * random.gamma(variation),
            Self::Hyper(first, short, long) => {
                let mean = if random.uniform() < first { short } else { long };
                mean * random.exponential()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_have_their_mean_and_variation() {
        let mut random = RandomStream::new(7);
        for variation in [0.0, 0.1, 0.5, 1.0, 2.5, 10.0] {
            let length = WorkDistribution::new(3.0, variation);
            let count = 400_000;
            let samples: Vec<f64> = (0..count).map(|_| length.sample(&mut random)).collect();
            let mean = samples.iter().sum::<f64>() / f64::from(count);
            let square = samples.iter().map(|sample| (sample - mean).powi(2)).sum::<f64>() / f64::from(count);
            assert!((mean / 3.0 - 1.0).abs() < 0.02, "{variation}: mean {mean}");
            let measured_variation = square / (mean * mean);
            assert!(
                (measured_variation - variation).abs() < 0.04 * variation + 1e-9,
                "{variation}: {measured_variation}"
            );
        }
    }

    #[test]
    fn an_exponential_time_is_one_everywhere() {
        let mut random = RandomStream::new(11);
        let count = 2_000_000;
        let mut samples: Vec<f64> = (0..count).map(|_| random.exponential()).collect();
        samples.sort_unstable_by(f64::total_cmp);
        // The Kolmogorov-Smirnov statistic, which exceeds 1.63 by chance in 1 % of all cases.
        let deviations = samples.iter().enumerate().map(|(index, time)| {
            let probability = 1.0 - (-time).exp();
            (probability - index as f64 / f64::from(count)).abs()
        });
        let statistic = deviations.fold(0.0, f64::max) * f64::from(count).sqrt();
        assert!(statistic < 1.63, "{statistic}");
        // The tail is drawn separately: check its frequency and its mean.
        let tail = samples.iter().filter(|time| **time > TAIL_START).map(|time| time - TAIL_START);
        let tail: Vec<f64> = tail.collect();
        let expected = f64::from(count) * (-TAIL_START).exp();
        assert!((tail.len() as f64 - expected).abs() < 4.0 * expected.sqrt(), "{}", tail.len());
        let mean = tail.iter().sum::<f64>() / tail.len() as f64;
        assert!((mean - 1.0).abs() < 4.0 / expected.sqrt(), "{mean}");
    }

    #[test]
    fn a_seed_gives_one_stream() {
        let stream = |seed| {
            core::array::from_fn::<u64, 4, _>({
                let mut random = RandomStream::new(seed);
                move |_| random.bits()
            })
        };
        assert_eq!(stream(1), stream(1));
        assert_ne!(stream(1), stream(2));
    }
}
