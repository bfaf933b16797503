//! The due times of requests, fixed before the run starts and independent of its course.
//!
//! An open-loop load generator sends at the times of its pacer whether or not earlier requests have been
//! answered, as the clients of a service do. A pacer is an iterator of due times, in order, measured from the
//! start of the run; [`run`](crate::run) takes any.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::rng::SplitMix64;

mod rate_shape;

use rate_shape::RateIntegral;
pub use rate_shape::RateShape;

/// The arrival process of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArrivalProcess {
    /// Even arrivals: request n is due at n / rate, or where the integral of a changing rate reaches n.
    Constant,
    /// The arrivals from many independent clients: gaps are exponential with a coefficient of variation of 1.
    Poisson,
}

impl fmt::Display for ArrivalProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Constant => "constant",
            Self::Poisson => "poisson",
        })
    }
}

impl FromStr for ArrivalProcess {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "constant" => Ok(Self::Constant),
            "poisson" => Ok(Self::Poisson),
            _ => Err(format!("`{text}` is not an arrival process: expected `constant` or `poisson`")),
        }
    }
}

/// Due times at a rate, steady or of some shape, for a limited time.
#[derive(Clone, Debug)]
pub struct RequestPacer {
    arrival: ArrivalProcess,
    integral: RateIntegral,
    /// The seconds after which nothing is due.
    length_seconds: f64,
    sent: u64,
    /// The integral of the rate at the last request of Poisson arrivals.
    level: f64,
    rng: SplitMix64,
}

impl RequestPacer {
    /// Creates `rate` requests per second on average, for `duration`. A rate of 0 or below gives none.
    pub fn new(arrival: ArrivalProcess, rate: f64, duration: Duration, seed: u64) -> Self {
        Self::with_shape(arrival, RateShape::Steady(rate), duration, seed)
    }

    /// Creates requests at the rate of `shape`, for `duration`.
    pub fn with_shape(arrival: ArrivalProcess, shape: RateShape, duration: Duration, seed: u64) -> Self {
        let integral = RateIntegral::new(&shape, duration);
        let length_seconds = duration.as_secs_f64();
        Self { arrival, integral, length_seconds, sent: 0, level: 0.0, rng: SplitMix64::new(seed) }
    }
}

impl Iterator for RequestPacer {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        let level = match self.arrival {
            ArrivalProcess::Constant => self.sent as f64,
            ArrivalProcess::Poisson => {
                self.level += self.rng.exponential();
                self.level
            }
        };
        let due = self.integral.time_at(level).filter(|due| *due < self.length_seconds)?;
        self.sent += 1;
        Some(Duration::from_secs_f64(due))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn gaps(pacer: RequestPacer) -> (f64, f64, usize) {
        let due_times: Vec<f64> = pacer.map(|due| due.as_secs_f64()).collect();
        let gaps: Vec<f64> = due_times.windows(2).map(|pair| pair[1] - pair[0]).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
        assert!(gaps.iter().all(|gap| *gap >= 0.0), "due times go back");
        (mean, variance.sqrt() / mean, due_times.len())
    }

    #[test]
    fn constant_is_even_and_exact() {
        let (mean, variation, count) =
            gaps(RequestPacer::new(ArrivalProcess::Constant, 3000.0, Duration::from_secs(100), 1));
        assert_eq!(count, 300_000);
        assert!((mean * 3000.0 - 1.0).abs() < 1e-6, "{mean}");
        assert!(variation < 1e-4, "{variation}");
    }

    #[test]
    fn poisson_has_the_mean_the_variation_and_the_counts_of_poisson() {
        let pacer = RequestPacer::new(ArrivalProcess::Poisson, 2000.0, Duration::from_secs(100), 1);
        let (mean, variation, count) = gaps(pacer.clone());
        assert!((mean * 2000.0 - 1.0).abs() < 0.01, "{mean}");
        assert!((0.99..1.01).contains(&variation), "{variation}");
        assert!((198_000..202_000).contains(&count), "{count}");
        // Index of dispersion of counts per 10 ms: 1 for a Poisson process.
        let mut bins = vec![0u32; 10_000];
        for due in pacer {
            bins[(due.as_secs_f64() * 100.0) as usize] += 1;
        }
        let mean = bins.iter().map(|n| f64::from(*n)).sum::<f64>() / 1e4;
        let variance = bins.iter().map(|n| (f64::from(*n) - mean).powi(2)).sum::<f64>() / 1e4;
        assert!((0.95..1.05).contains(&(variance / mean)), "{}", variance / mean);
    }

    #[test]
    fn a_seed_is_a_run() {
        let due_times = |seed| {
            RequestPacer::new(ArrivalProcess::Poisson, 100.0, Duration::from_secs(1), seed)
                .collect::<Vec<_>>()
        };
        assert_eq!(due_times(1), due_times(1));
        assert_ne!(due_times(1), due_times(2));
    }

    #[test]
    fn nothing_is_due_at_no_rate_or_in_no_time() {
        for arrival in [ArrivalProcess::Constant, ArrivalProcess::Poisson] {
            assert_eq!(RequestPacer::new(arrival, 0.0, Duration::from_secs(9), 1).count(), 0);
            assert_eq!(RequestPacer::new(arrival, -1.0, Duration::from_secs(9), 1).count(), 0);
            assert_eq!(RequestPacer::new(arrival, 9.0, Duration::ZERO, 1).count(), 0);
        }
    }

    /// Returns the due times of a shape with constant arrivals, in seconds.
    fn dues(shape: RateShape, seconds: f64) -> Vec<f64> {
        let duration = Duration::from_secs_f64(seconds);
        RequestPacer::with_shape(ArrivalProcess::Constant, shape, duration, 1)
            .map(|due| due.as_secs_f64())
            .collect()
    }

    #[test]
    fn a_ramp_is_due_where_its_integral_says() {
        // 10 to 30 per second in 10 s: the integral is 10 t + t².
        let due_times = dues(RateShape::Ramp { from: 10.0, to: 30.0 }, 10.0);
        assert_eq!(due_times.len(), 200);
        for (n, due) in due_times.iter().enumerate() {
            assert!((10.0 * due + due * due - n as f64).abs() < 1e-5, "{n}: {due}");
        }
        // Ramps down to zero and up from it.
        assert_eq!(dues(RateShape::Ramp { from: 10.0, to: 0.0 }, 10.0).len(), 50);
        let rising = dues(RateShape::Ramp { from: 0.0, to: 10.0 }, 10.0);
        assert!(
            rising.len() == 50 && rising[0] == 0.0 && (rising[49] - 98f64.sqrt()).abs() < 1e-6,
            "{rising:?}"
        );
    }

    #[test]
    fn steps_follow_one_another_and_end() {
        let second = Duration::from_secs(1);
        let shape = RateShape::Steps(vec![(0.0, second), (2.0, second), (0.0, second), (4.0, second)]);
        assert_eq!(shape.length(), Some(4 * second));
        assert_eq!(dues(shape.clone(), 100.0), [1.0, 1.5, 3.0, 3.25, 3.5, 3.75]);
        assert_eq!(dues(shape, 3.3), [1.0, 1.5, 3.0, 3.25]);
        assert!(dues(RateShape::Steps(Vec::new()), 9.0).is_empty());
    }

    #[test]
    fn bursts_begin_with_a_request_and_pauses_have_none() {
        let (on, off) = (Duration::from_millis(300), Duration::from_millis(700));
        let due_times = dues(RateShape::Bursts { rate: 100.0, on, off }, 10_000.0);
        assert_eq!(due_times.len(), 300_000);
        for (n, due) in due_times.iter().enumerate() {
            let expected = (n / 30) as f64 + (n % 30) as f64 / 100.0;
            assert!((due - expected).abs() < 1e-6, "{n}: {due}");
        }
        assert!(dues(RateShape::Bursts { rate: 0.0, on, off }, 10.0).is_empty());
        assert!(dues(RateShape::Bursts { rate: 9.0, on: Duration::ZERO, off }, 10.0).is_empty());
        let steady = RateShape::Bursts { rate: 9.0, on, off: Duration::ZERO };
        assert_eq!(dues(steady, 10.0).len(), 90);
    }

    fn shapes() -> impl Strategy<Value = RateShape> {
        let rate = || prop_oneof![Just(0.0), 0.01..2000.0f64];
        let duration = |low: u64, high: u64| (low..high).prop_map(Duration::from_micros);
        let bursts = (rate(), duration(1, 3_000_000), duration(0, 3_000_000));
        prop_oneof![
            rate().prop_map(RateShape::Steady),
            (rate(), rate()).prop_map(|(from, to)| RateShape::Ramp { from, to }),
            prop::collection::vec((rate(), duration(0, 3_000_000)), 0..6).prop_map(RateShape::Steps),
            prop::collection::vec((duration(0, 12_000_000), rate()), 0..6).prop_map(|mut points| {
                points.sort_by_key(|(at, _)| *at);
                points.dedup_by_key(|(at, _)| *at);
                RateShape::PiecewiseLinear(points)
            }),
            bursts.prop_map(|(rate, on, off)| RateShape::Bursts { rate, on, off }),
        ]
    }

    /// Returns the integral of a shape's rate from 0 to `until`, computed without the inversion under test.
    fn area(shape: &RateShape, total_seconds: f64, end: f64) -> f64 {
        match shape {
            RateShape::Steady(rate) => rate * end,
            RateShape::Ramp { from, to } => from * end + (to - from) / total_seconds * end * end / 2.0,
            RateShape::Steps(steps) => {
                let mut remaining = end;
                let mut sum = 0.0;
                for (rate, length) in steps {
                    let step_seconds = length.as_secs_f64().min(remaining);
                    sum += rate * step_seconds;
                    remaining -= step_seconds;
                }
                sum
            }
            RateShape::PiecewiseLinear(points) => {
                // Between two neighbours of all times at which the shape may bend, the integral is exact.
                let rate = |time: f64| {
                    let next_index = points.partition_point(|(start, _)| start.as_secs_f64() <= time);
                    match (next_index.checked_sub(1).map(|index| points[index]), points.get(next_index)) {
                        (Some((start, start_rate)), Some((end, end_rate))) => {
                            let (start_seconds, end_seconds) = (start.as_secs_f64(), end.as_secs_f64());
                            start_rate
                                + (end_rate - start_rate) * (time - start_seconds)
                                    / (end_seconds - start_seconds)
                        }
                        (Some((_, only_rate)), None) => only_rate,
                        (None, Some((_, only_rate))) => *only_rate,
                        (None, None) => 0.0,
                    }
                };
                let boundaries = points.iter().map(|(time, _)| time.as_secs_f64()).filter(|time| *time < end);
                let boundaries: Vec<f64> = [0.0].into_iter().chain(boundaries).chain([end]).collect();
                let midpoint_area = |pair: &[f64]| rate((pair[0] + pair[1]) / 2.0) * (pair[1] - pair[0]);
                boundaries.windows(2).map(midpoint_area).sum()
            }
            RateShape::Bursts { rate, on, off } => {
                let period = (*on + *off).as_secs_f64();
                let periods = (end / period).floor();
                rate * (periods * on.as_secs_f64() + (end - periods * period).min(on.as_secs_f64()))
            }
        }
    }

    proptest! {
        #[test]
        fn any_window_has_as_many_as_its_integral(
            shape in shapes(), seconds in 0.001..10.0f64, from in 0.0..1.0f64, to in 0.0..1.0f64,
        ) {
            let seconds = Duration::from_secs_f64(seconds).as_secs_f64();
            let (from, to) = (from.min(to) * seconds, from.max(to) * seconds);
            let due_times = dues(shape.clone(), seconds);
            prop_assert!(due_times.is_sorted());
            let count = due_times.iter().filter(|due| (from..to).contains(*due)).count() as f64;
            let expected = area(&shape, seconds, to) - area(&shape, seconds, from);
            // A due time is a whole nanosecond.
            prop_assert!((count - expected).abs() <= 1.0 + 1e-4, "{count} instead of {expected}");
        }

        #[test]
        fn poisson_arrivals_have_the_mean_and_the_spread_of_the_integral(
            shape in shapes(), seed in any::<u64>(),
        ) {
            let expected = area(&shape, 10.0, 10.0);
            let time = Duration::from_secs(10);
            let pace = RequestPacer::with_shape(ArrivalProcess::Poisson, shape, time, seed);
            // Six standard deviations, and a margin for counts too small to be normal.
            let tolerance = 6.0 * expected.sqrt() + 12.0;
            prop_assert!((pace.count() as f64 - expected).abs() < tolerance, "{expected}");
        }

        #[test]
        fn no_rates_and_lengths_panic(
            rates in prop::collection::vec(any::<f64>(), 3), micros in prop::collection::vec(any::<u64>(), 3),
        ) {
            let length = |n: usize| Duration::from_micros(micros[n]);
            for shape in [
                RateShape::Steady(rates[0]),
                RateShape::Ramp { from: rates[0], to: rates[1] },
                RateShape::Steps(vec![(rates[0], length(0)), (rates[1], length(1)), (rates[2], length(2))]),
                RateShape::Bursts { rate: rates[0], on: length(0), off: length(1) },
            ] {
                for arrival in [ArrivalProcess::Constant, ArrivalProcess::Poisson] {
                    let pacer = RequestPacer::with_shape(arrival, shape.clone(), length(2), 1);
                    prop_assert!(pacer.take(100).is_sorted());
                }
            }
        }
    }
}
