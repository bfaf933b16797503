//! The capacity of a member from its response times by requests in flight alone, without any report.
//!
//! Below its knee a member's requests take a constant time, and above it a longer time the more there are.
//! The growth depends on how they are served, which is unknown. So several hypotheses are compared with the
//! means of the levels, each for any number `c` of servers, with the demand `D` that fits best:
//!
//! - first come, first served, exponential service: `D (1 + (n - c) / c)` above `c`;
//! - the same with service of the observed variation: the first to end has `(1 + v) / 2` of a service left;
//! - shared processors: the mean sojourn of a request that makes `n`, from the birth and death chain of the
//!   others. It is computed with as many arrivals as now, and with none (balancers send fewest where most
//!   are).
//!
//! Every pair whose chi-squared is within four of the best (twice the standard deviation; more if none fits
//! well) is accepted, and the interval is that of their `c / D`. If concurrency was so low that no knee fits
//! as well, there is no upper end: only the rate carried without waiting is known.

use alloc::vec;
use alloc::vec::Vec;

use super::concurrency::LevelStats;

/// The result of the levels.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct KneeFit {
    /// The requests a second: the least accepted, the best, and the most (infinite if nothing bounds it).
    pub(super) low: f64,
    pub(super) best: f64,
    pub(super) high: f64,
    /// The best fit's simultaneous requests without waiting, and how they are served.
    pub(super) servers: f64,
    pub(super) shared: bool,
}

/// The discipline of the service.
#[derive(Clone, Copy, Debug, PartialEq)]
enum ServiceDiscipline {
    /// First come, first served; `residual` of the next service to end remains.
    Fifo { residual: f64 },
    /// Shared, with `arrival_rate` arrivals a second.
    Shared { arrival_rate: f64 },
}

/// Fits the levels; `None` without enough of them. `variation` is the squared coefficient of variation of the
/// requests' times, `rate` the present requests a second.
pub(super) fn fit(rows: &[LevelStats], variation: f64, rate: f64) -> Option<KneeFit> {
    let total_count: f64 = rows.iter().map(|row| row.count).sum();
    let max_in_flight = rows.last()?.in_flight;
    if total_count < MIN_REQUESTS || max_in_flight < 2.0 {
        return None;
    }
    let variation = variation.clamp(0.25, 16.0);
    let fifo = [1.0, (1.0 + variation.min(3.0)) / 2.0].map(|residual| ServiceDiscipline::Fifo { residual });
    let shared = [0.0, rate].map(|arrival_rate| ServiceDiscipline::Shared { arrival_rate });
    let mut candidates = Vec::new();
    let mut servers = 1.0;
    while servers < max_in_flight {
        for discipline in fifo.into_iter().chain(shared) {
            let unloaded_latency = rows[0].mean;
            let mut fit_result = chi_squared(rows, variation, servers, discipline, unloaded_latency);
            if matches!(discipline, ServiceDiscipline::Shared { arrival_rate } if arrival_rate > 0.0) {
                // The arrivals during a service depend on its length.
                fit_result = chi_squared(rows, variation, servers, discipline, fit_result.1);
            }
            candidates.push((fit_result.0, servers, fit_result.1, discipline));
        }
        servers = if servers < 16.0 { servers + 1.0 } else { libm::ceil(servers * 1.1) };
    }
    // No knee within the observed range.
    let (unbounded_misfit, demand) =
        chi_squared(rows, variation, f64::INFINITY, ServiceDiscipline::Fifo { residual: 1.0 }, 0.0);
    let best = candidates.iter().copied().min_by(|left, right| left.0.total_cmp(&right.0))?;
    let min_misfit = best.0.min(unbounded_misfit);
    let misfit_limit =
        min_misfit + MISFIT_TOLERANCE * (min_misfit / (rows.len() as f64 - 2.0).max(1.0)).max(1.0);
    let plausible = || candidates.iter().filter(|(misfit, ..)| *misfit <= misfit_limit);
    let capacity = |(_, servers, demand, _): &(f64, f64, f64, ServiceDiscipline)| servers / demand;
    let low = plausible().map(capacity).fold(f64::INFINITY, f64::min);
    let high = plausible().map(capacity).fold(0.0, f64::max);
    let is_bounded = unbounded_misfit > misfit_limit;
    Some(KneeFit {
        low: if low.is_finite() { low / MODEL_MARGIN } else { max_in_flight / demand },
        best: capacity(&best),
        high: if is_bounded { high * MODEL_MARGIN } else { f64::INFINITY },
        servers: best.1,
        shared: matches!(best.3, ServiceDiscipline::Shared { .. }),
    })
}

/// Returns the chi-squared and the demand that minimizes it.
fn chi_squared(
    rows: &[LevelStats],
    variation: f64,
    servers: f64,
    discipline: ServiceDiscipline,
    unloaded_latency: f64,
) -> (f64, f64) {
    let sojourns = match discipline {
        ServiceDiscipline::Fifo { residual } => {
            rows.iter().map(|row| fifo_sojourn(row.in_flight, servers, residual)).collect()
        }
        ServiceDiscipline::Shared { arrival_rate } => {
            shared_sojourns(rows, servers, (arrival_rate * unloaded_latency).min(0.95 * servers))
        }
    };
    let weight = |row: &LevelStats| row.count / (CORRELATION_FACTOR * variation * row.mean * row.mean);
    let pairs = || rows.iter().zip(&sojourns);
    let demand = pairs().map(|(row, sojourn)| weight(row) * row.mean * sojourn).sum::<f64>()
        / pairs().map(|(row, sojourn)| weight(row) * sojourn * sojourn).sum::<f64>();
    let weighted_square = |(row, sojourn): (&LevelStats, &f64)| {
        let deviation = row.mean - demand * sojourn;
        weight(row) * deviation * deviation
    };
    (pairs().map(weighted_square).sum(), demand)
}

/// Returns the time of the n-th request of a line with `servers`, in services.
fn fifo_sojourn(in_flight: f64, servers: f64, residual: f64) -> f64 {
    let ahead = in_flight - servers;
    if ahead <= 0.0 {
        return 1.0;
    }
    // Between whole numbers the first step is a part of one.
    1.0 + (ahead - 1.0 + residual).max(ahead.min(1.0) * residual) / servers
}

/// Returns the times with shared servers and `arrival_rate` arrivals in a service.
///
/// `V(n)` is the sojourn of a request that makes `n`, and `m(n) = min(1, servers / n)` is the speed of each:
///
/// ```text
/// (coming + n m(n)) V(n) = 1 + coming V(n + 1) + (n - 1) m(n) V(n - 1)
/// ```
fn shared_sojourns(rows: &[LevelStats], servers: f64, arrival_rate: f64) -> Vec<f64> {
    let max_level = rows.last().map_or(1, |row| libm::ceil(row.in_flight) as usize).min(MAX_LEVEL);
    // The states go to twice the observed range; beyond that there are no arrivals.
    let states = 2 * max_level + 8;
    let (mut slopes, mut intercepts) = (vec![0.0; states + 1], vec![0.0; states + 1]);
    for n in 1..=states {
        let concurrency = n as f64;
        let speed = (servers / concurrency).min(1.0);
        let arrivals = if n == states { 0.0 } else { arrival_rate };
        let departure_rate = (concurrency - 1.0) * speed;
        let pivot = arrivals + concurrency * speed - departure_rate * slopes[n - 1];
        slopes[n] = arrivals / pivot;
        intercepts[n] = (1.0 + departure_rate * intercepts[n - 1]) / pivot;
    }
    let mut sojourn = vec![0.0; states + 2];
    for n in (1..=states).rev() {
        sojourn[n] = intercepts[n] + slopes[n] * sojourn[n + 1];
    }
    let sojourn_at = |row: &LevelStats| {
        let in_flight = row.in_flight.clamp(1.0, max_level as f64);
        let (level, fraction) = (in_flight as usize, in_flight - libm::floor(in_flight));
        let interpolated = sojourn[level] * (1.0 - fraction) + sojourn[level + 1] * fraction;
        // Far above the knee each further one costs the same.
        interpolated + (row.in_flight - in_flight) * (sojourn[max_level] - sojourn[max_level - 1])
    };
    rows.iter().map(sojourn_at).collect()
}

/// The requests below which levels do not count.
const MIN_REQUESTS: f64 = 200.0;

/// The maximum misfit of an accepted pair beyond the best one: two standard deviations.
const MISFIT_TOLERANCE: f64 = 4.0;

/// The minimum width of an interval to either side: real members match none of the hypotheses.
const MODEL_MARGIN: f64 = 1.05;

/// The factor of the variance of levels' means over that of independent requests: simultaneous requests wait
/// for the same.
const CORRELATION_FACTOR: f64 = 2.0;

/// The concurrency beyond which sojourns are extrapolated.
const MAX_LEVEL: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(max_in_flight: usize, mean: impl Fn(f64) -> f64, count: f64) -> Vec<LevelStats> {
        let row =
            |n: usize| LevelStats { in_flight: n as f64, count: count / n as f64, mean: mean(n as f64) };
        (1..=max_in_flight).map(row).collect()
    }

    #[test]
    fn a_line_with_a_knee_is_found() {
        let fit = fit(&rows(12, |n| 0.02 * fifo_sojourn(n, 4.0, 1.0), 20_000.0), 1.0, 80.0).unwrap();
        assert!((fit.best / 200.0 - 1.0).abs() < 0.01 && !fit.shared, "{fit:?}");
        assert!(fit.low <= 200.0 && fit.high >= 200.0 && fit.high < 260.0, "{fit:?}");
    }

    #[test]
    fn shared_processors_are_found() {
        let levels = rows(12, |n| n, 20_000.0);
        let expected = shared_sojourns(&levels, 2.0, 0.8);
        let levels = rows(12, |n| 0.02 * expected[n as usize - 1], 20_000.0);
        let fit = fit(&levels, 1.0, 40.0).unwrap();
        assert!(fit.low <= 100.0 && fit.high >= 100.0 && fit.high / fit.low < 1.7, "{fit:?}");
        assert!(fit.shared, "{fit:?}");
    }

    #[test]
    fn one_shared_processor_is_as_the_formula_has_it() {
        // V(n) = (n + 1) / (2 - load) for M/M/1.
        let levels = rows(6, |n| n, 1.0);
        for (sojourn, n) in shared_sojourns(&levels, 1.0, 0.5).iter().zip(1..) {
            assert!((sojourn / (f64::from(n + 1) / 1.5) - 1.0).abs() < 0.02, "{n}: {sojourn}");
        }
    }

    #[test]
    fn without_a_knee_there_is_no_upper_end() {
        let fit = fit(&rows(5, |_| 0.02, 20_000.0), 1.0, 80.0).unwrap();
        assert!(fit.high.is_infinite() && fit.low > 150.0, "{fit:?}");
        assert_eq!(super::fit(&rows(5, |_| 0.02, 50.0), 1.0, 80.0), None);
        assert_eq!(super::fit(&rows(1, |_| 0.02, 5000.0), 1.0, 80.0), None);
        assert_eq!(super::fit(&[], 1.0, 80.0), None);
    }
}
