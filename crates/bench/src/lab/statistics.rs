//! Means and their precision: 95 % confidence intervals by Student's t distribution.
//!
//! The samples are repetitions, or the batches of one long run. The means of batches are close to independent
//! if a batch is long compared with what it measures (the method of batch means). The quantile of t is found
//! by bisection of its distribution function, the regularised incomplete beta function, which is evaluated by
//! its continued fraction with Lentz's method.

/// A mean and the half width of its 95 % confidence interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// The arithmetic mean of the samples.
    pub mean: f64,
    /// Half the width of the interval; infinite for a single sample, whose error is unknown.
    pub half_width: f64,
    /// The number of samples.
    pub samples: usize,
}

impl Estimate {
    /// Returns the estimate from the finite samples; `None` if there are none.
    pub fn of(samples: &[f64]) -> Option<Self> {
        let finite: Vec<f64> = samples.iter().copied().filter(|value| value.is_finite()).collect();
        let count = finite.len() as f64;
        let mean = finite.iter().sum::<f64>() / count;
        let half_width = match finite.len() {
            0 => return None,
            1 => f64::INFINITY,
            _ => {
                let variance = finite.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (count - 1.0);
                student_t_quantile(0.975, count - 1.0) * (variance / count).sqrt()
            }
        };
        Some(Self { mean, half_width, samples: finite.len() })
    }

    /// Returns the lower end of the interval.
    pub fn low(&self) -> f64 {
        self.mean - self.half_width
    }

    /// Returns the upper end of the interval.
    pub fn high(&self) -> f64 {
        self.mean + self.half_width
    }

    /// Returns the ratio to another, independent estimate. The squares of small relative errors add (the
    /// delta method).
    pub fn ratio_to(&self, other: &Self) -> Self {
        let mean = self.mean / other.mean;
        let relative = |estimate: &Self| {
            if estimate.half_width == 0.0 { 0.0 } else { estimate.half_width / estimate.mean.abs() }
        };
        let half_width = mean.abs() * relative(self).hypot(relative(other));
        Self { mean, half_width, samples: self.samples.min(other.samples) }
    }

    /// Returns the product with an exact number.
    pub fn scaled(&self, factor: f64) -> Self {
        Self { mean: self.mean * factor, half_width: self.half_width * factor.abs(), samples: self.samples }
    }

    /// Returns the quotient of an exact number and this estimate.
    pub fn reciprocal_of(&self, number: f64) -> Self {
        Self { mean: number, half_width: 0.0, samples: self.samples }.ratio_to(self)
    }

    /// Returns `true` if this interval lies entirely below that of `other`.
    pub fn is_below(&self, other: &Self) -> bool {
        self.high() < other.low()
    }
}

/// Returns the quantile of a t variable with `freedom` degrees of freedom at probability `share`, from 0.5 to
/// below 1.
pub fn student_t_quantile(probability: f64, degrees_of_freedom: f64) -> f64 {
    let cdf = |t: f64| {
        1.0 - 0.5
            * regularized_beta(
                degrees_of_freedom / (degrees_of_freedom + t * t),
                degrees_of_freedom / 2.0,
                0.5,
            )
    };
    let mut high = 1.0;
    while cdf(high) < probability && high < 1e9 {
        high *= 2.0;
    }
    let mut low = 0.0;
    for _ in 0..200 {
        let middle = 0.5 * (low + high);
        if cdf(middle) < probability { low = middle } else { high = middle }
    }
    0.5 * (low + high)
}

/// Returns the regularised incomplete beta function I_x(a, b).
fn regularized_beta(x: f64, a: f64, b: f64) -> f64 {
    if x <= 0.0 {
        return 0.0;
    }
    if x >= 1.0 {
        return 1.0;
    }
    // The fraction converges fast on one side only; the other follows by symmetry.
    if x > (a + 1.0) / (a + b + 2.0) {
        return 1.0 - regularized_beta(1.0 - x, b, a);
    }
    let prefactor = (ln_gamma(a + b) - ln_gamma(a) - ln_gamma(b) + a * x.ln() + b * (1.0 - x).ln()).exp() / a;
    prefactor * beta_continued_fraction(x, a, b)
}

/// Returns the continued fraction of the incomplete beta function.
fn beta_continued_fraction(x: f64, a: f64, b: f64) -> f64 {
    let nonzero = |value: f64| if value.abs() < 1e-300 { 1e-300 } else { value };
    let mut c = 1.0;
    let mut d = 1.0 / nonzero(1.0 - (a + b) * x / (a + 1.0));
    let mut value = d;
    for step in 1..500 {
        let m = f64::from(step);
        let even = m * (b - m) * x / ((a + 2.0 * m - 1.0) * (a + 2.0 * m));
        let odd = -(a + m) * (a + b + m) * x / ((a + 2.0 * m) * (a + 2.0 * m + 1.0));
        let mut change = 1.0;
        for term in [even, odd] {
            d = 1.0 / nonzero(1.0 + term * d);
            c = nonzero(1.0 + term / c);
            change = c * d;
            value *= change;
        }
        if (change - 1.0).abs() < 1e-15 {
            break;
        }
    }
    value
}

/// Returns the logarithm of the gamma function for a positive number: Stirling's series, after moving up to
/// where it is exact.
fn ln_gamma(mut x: f64) -> f64 {
    let mut shift = 0.0;
    while x < 12.0 {
        shift -= x.ln();
        x += 1.0;
    }
    let inverse = 1.0 / (x * x);
    let series = (1.0 / 12.0 - inverse * (1.0 / 360.0 - inverse * (1.0 / 1260.0 - inverse / 1680.0))) / x;
    shift + (x - 0.5) * x.ln() - x + 0.5 * std::f64::consts::TAU.ln() + series
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_those_of_the_tables() {
        let table =
            [(1.0, 12.7062), (2.0, 4.3027), (4.0, 2.7764), (9.0, 2.2622), (29.0, 2.0452), (1e6, 1.95997)];
        for (degrees_of_freedom, t) in table {
            assert!(
                (student_t_quantile(0.975, degrees_of_freedom) - t).abs() < 1e-4,
                "{degrees_of_freedom}: {}",
                student_t_quantile(0.975, degrees_of_freedom)
            );
        }
        assert!((student_t_quantile(0.95, 10.0) - 1.8125).abs() < 1e-4);
        assert!(student_t_quantile(0.5, 3.0) < 1e-6);
    }

    #[test]
    fn an_interval_worked_by_hand() {
        // Mean 3, standard deviation sqrt(2.5), t 2.7764 for 4 degrees of freedom.
        let estimate = Estimate::of(&[1.0, 2.0, 3.0, 4.0, 5.0]).unwrap();
        assert_eq!((estimate.mean, estimate.samples), (3.0, 5));
        assert!(
            (estimate.half_width - 2.7764 * (2.5f64 / 5.0).sqrt()).abs() < 1e-3,
            "{}",
            estimate.half_width
        );
    }

    #[test]
    fn nothing_is_known_of_one_and_less_of_none() {
        assert_eq!(Estimate::of(&[]), None);
        assert_eq!(Estimate::of(&[f64::NAN]), None);
        assert_eq!(Estimate::of(&[7.0]).unwrap().half_width, f64::INFINITY);
        assert_eq!(Estimate::of(&[7.0, 7.0, 7.0]).unwrap().half_width, 0.0);
    }

    #[test]
    fn the_interval_holds_the_mean_nineteen_times_in_twenty() {
        let mut rng = crate::rng::SplitMix64::new(5);
        let trials = 4000;
        let mut covering_count = 0;
        for _ in 0..trials {
            // Sums of twelve uniforms are close to normal.
            let near_normal = |rng: &mut crate::rng::SplitMix64| (0..12).map(|_| rng.uniform()).sum::<f64>();
            let samples: Vec<f64> = (0..5).map(|_| near_normal(&mut rng)).collect();
            let estimate = Estimate::of(&samples).unwrap();
            covering_count += u32::from(estimate.low() <= 6.0 && 6.0 <= estimate.high());
        }
        let share = f64::from(covering_count) / f64::from(trials);
        assert!((0.94..0.96).contains(&share), "{share}");
    }

    #[test]
    fn ratios_carry_both_errors() {
        let (a, b) = (
            Estimate { mean: 6.0, half_width: 0.3, samples: 5 },
            Estimate { mean: 2.0, half_width: 0.2, samples: 9 },
        );
        let ratio = a.ratio_to(&b);
        assert_eq!((ratio.mean, ratio.samples), (3.0, 5));
        assert!((ratio.half_width - 3.0 * (0.05f64.powi(2) + 0.1f64.powi(2)).sqrt()).abs() < 1e-12);
        assert_eq!(b.reciprocal_of(4.0).mean, 2.0);
        assert!(b.is_below(&a) && !a.is_below(&b));
        assert_eq!(a.scaled(0.5).half_width, 0.15);
    }
}
