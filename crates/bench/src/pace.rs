//! When: the due times of requests, fixed before the run starts and deaf to how it goes.
//!
//! An open-loop generator sends at the times its pacer says whether or not the answers to earlier requests
//! have come, as the clients of a service do. A pacer is nothing but an iterator of due times, in order,
//! measured from the start of the run; [`run`](crate::run) takes any.

use std::str::FromStr;
use std::time::Duration;

use crate::chance::Chance;

mod shape;

use shape::Integral;
pub use shape::Shape;

/// How requests follow one another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// Evenly: request n is due at n / rate, or where the integral of a changing rate reaches n.
    Constant,
    /// As many independent clients would send: gaps are exponential and their coefficient of variation is 1.
    Poisson,
}

impl FromStr for Arrival {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "constant" => Ok(Self::Constant),
            "poisson" => Ok(Self::Poisson),
            _ => Err(format!("`{text}` is not an arrival process: expected `constant` or `poisson`")),
        }
    }
}

/// Due times at a rate, steady or of some shape, for a while.
#[derive(Clone, Debug)]
pub struct Pace {
    arrival: Arrival,
    integral: Integral,
    /// Seconds after which nothing is due.
    end: f64,
    sent: u64,
    /// What the integral of the rate had to reach for the last request of Poisson arrivals.
    level: f64,
    chance: Chance,
}

impl Pace {
    /// `rate` requests per second, on average, for `duration`. A rate of 0 or below gives none.
    pub fn new(arrival: Arrival, rate: f64, duration: Duration, seed: u64) -> Self {
        Self::shaped(arrival, Shape::Steady(rate), duration, seed)
    }

    /// As many requests per second as `shape` says, for `duration`.
    pub fn shaped(arrival: Arrival, shape: Shape, duration: Duration, seed: u64) -> Self {
        let integral = Integral::new(&shape, duration);
        let end = duration.as_secs_f64();
        Self { arrival, integral, end, sent: 0, level: 0.0, chance: Chance::new(seed) }
    }
}

impl Iterator for Pace {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        let level = match self.arrival {
            Arrival::Constant => self.sent as f64,
            Arrival::Poisson => {
                self.level += self.chance.exp();
                self.level
            }
        };
        let due = self.integral.when(level).filter(|due| *due < self.end)?;
        self.sent += 1;
        Some(Duration::from_secs_f64(due))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gaps(pace: Pace) -> (f64, f64, usize) {
        let dues: Vec<f64> = pace.map(|due| due.as_secs_f64()).collect();
        let gaps: Vec<f64> = dues.windows(2).map(|pair| pair[1] - pair[0]).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
        assert!(gaps.iter().all(|gap| *gap >= 0.0), "due times go back");
        (mean, variance.sqrt() / mean, dues.len())
    }

    #[test]
    fn constant_is_even_and_exact() {
        let (mean, variation, count) =
            gaps(Pace::new(Arrival::Constant, 3000.0, Duration::from_secs(100), 1));
        assert_eq!(count, 300_000);
        assert!((mean * 3000.0 - 1.0).abs() < 1e-6, "{mean}");
        assert!(variation < 1e-4, "{variation}");
    }

    #[test]
    fn poisson_has_the_mean_the_variation_and_the_counts_of_poisson() {
        let pace = Pace::new(Arrival::Poisson, 2000.0, Duration::from_secs(100), 1);
        let (mean, variation, count) = gaps(pace.clone());
        assert!((mean * 2000.0 - 1.0).abs() < 0.01, "{mean}");
        assert!((0.99..1.01).contains(&variation), "{variation}");
        assert!((198_000..202_000).contains(&count), "{count}");
        // Index of dispersion of counts per 10 ms: 1 for a Poisson process.
        let mut bins = vec![0u32; 10_000];
        for due in pace {
            bins[(due.as_secs_f64() * 100.0) as usize] += 1;
        }
        let mean = bins.iter().map(|n| f64::from(*n)).sum::<f64>() / 1e4;
        let variance = bins.iter().map(|n| (f64::from(*n) - mean).powi(2)).sum::<f64>() / 1e4;
        assert!((0.95..1.05).contains(&(variance / mean)), "{}", variance / mean);
    }

    #[test]
    fn a_seed_is_a_run() {
        let pace =
            |seed| Pace::new(Arrival::Poisson, 100.0, Duration::from_secs(1), seed).collect::<Vec<_>>();
        assert_eq!(pace(1), pace(1));
        assert_ne!(pace(1), pace(2));
    }

    #[test]
    fn nothing_is_due_at_no_rate_or_in_no_time() {
        for arrival in [Arrival::Constant, Arrival::Poisson] {
            assert_eq!(Pace::new(arrival, 0.0, Duration::from_secs(9), 1).count(), 0);
            assert_eq!(Pace::new(arrival, -1.0, Duration::from_secs(9), 1).count(), 0);
            assert_eq!(Pace::new(arrival, 9.0, Duration::ZERO, 1).count(), 0);
        }
    }
}
