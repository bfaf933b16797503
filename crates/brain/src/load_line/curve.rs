//! The response curve of one station: the time of requests at a load that has not been observed.
//!
//! A station is `servers` that can serve `capacity` requests a second. A request takes `base` seconds alone,
//! which may be more than `servers / capacity`: waiting for a disk or another service is no work of the
//! station. The mean wait is that of M/M/c, in the closed form of Sakasegawa (1977), which also holds between
//! whole numbers of servers: `p / (capacity (1 - u))`. Here `u` is the utilization and `p = u^(sqrt(2
//! (c + 1)) - 1)` the probability of a wait. First come, first served, it is multiplied by (1 + v) / 2, with
//! the squared coefficient of variation v of the service (Allen and Cunneen). With shared processors it holds
//! for any distribution.
//!
//! For percentiles, a wait is exponentially distributed. First come, first served, it is added to the service
//! whatever its length; with sharing it is in proportion to the service. For one server that is exact in the
//! first case with exponential service. In the second the standard deviation is exact to 25 % at half load
//! and to 3 % near saturation (Coffman, Muntz and Trotter, JACM 17(1), 1970).

use alloc::vec::Vec;

/// A station.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Station {
    /// The maximum requests a second; above 0.
    pub(super) capacity: f64,
    /// The simultaneous requests that do not slow one another down; at least 1, need not be whole.
    pub(super) servers: f64,
    /// The seconds of a request alone; above 0.
    pub(super) base: f64,
    /// Whether all requests share the servers, or else wait for one, first come, first served.
    pub(super) shared: bool,
    /// Its part of the group's requests; the parts of all stations add up to 1.
    pub(super) part: f64,
}

/// The distribution of services: values with their probabilities; mean 1.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ServiceDistribution {
    points: Vec<(f64, f64)>,
    /// The squared coefficient of variation.
    pub(super) variation: f64,
}

impl ServiceDistribution {
    /// Returns the distribution of observed seconds with their counts; `None` without any.
    pub(super) fn of(histogram: &[(f64, f64)]) -> Option<Self> {
        let total_count: f64 = histogram.iter().map(|(_, count)| count).sum();
        let mean = histogram.iter().map(|(value, count)| value * count).sum::<f64>() / total_count;
        if !(total_count > 0.0 && mean > 0.0 && mean.is_finite()) {
            return None;
        }
        let mut points = Vec::with_capacity(CUTS.len());
        let (mut cut, mut cumulative_count, mut count, mut sum) = (0, 0.0, 0.0, 0.0);
        for (value, bucket_count) in histogram.iter().filter(|(_, bucket_count)| *bucket_count > 0.0) {
            cumulative_count += bucket_count;
            count += bucket_count;
            sum += value * bucket_count;
            if cumulative_count >= CUTS[cut] * total_count {
                points.push((sum / count / mean, count / total_count));
                (count, sum) = (0.0, 0.0);
                while cut + 1 < CUTS.len() && cumulative_count >= CUTS[cut] * total_count {
                    cut += 1;
                }
            }
        }
        if count > 0.0 {
            points.push((sum / count / mean, count / total_count));
        }
        let second_moment =
            histogram.iter().map(|(value, count)| value * value * count).sum::<f64>() / total_count;
        Some(Self { points, variation: (second_moment / mean / mean - 1.0).max(0.0) })
    }

    /// Returns the exponential distribution, which is assumed before the first observation.
    pub(super) fn exponential() -> Self {
        let mut points = Vec::with_capacity(CUTS.len());
        let mut lower = 0.0;
        let partial_expectation = |p: f64| if p < 1.0 { (1.0 - p) * (1.0 - libm::log(1.0 - p)) } else { 0.0 };
        for upper in CUTS {
            points.push((
                (partial_expectation(lower) - partial_expectation(upper)) / (upper - lower),
                upper - lower,
            ));
            lower = upper;
        }
        Self { points, variation: 1.0 }
    }
}

/// The shares of the services up to which one point represents all: finer near the percentiles.
const CUTS: [f64; 20] = [
    0.1, 0.2, 0.3, 0.4, 0.45, 0.5, 0.55, 0.6, 0.7, 0.8, 0.9, 0.95, 0.975, 0.985, 0.989, 0.991, 0.994, 0.997,
    0.999, 1.0,
];

impl Station {
    fn utilization(&self, load: f64) -> f64 {
        load * self.part / self.capacity
    }

    /// Returns the probability of a wait at a load of the group.
    fn wait_probability(&self, load: f64) -> f64 {
        let exponent = libm::sqrt(2.0 * (self.servers + 1.0)) - 1.0;
        libm::pow(self.utilization(load).clamp(0.0, 1.0), exponent)
    }

    /// Returns the mean seconds beyond [`Station::base`] at a load of the group; infinite at saturation and
    /// above.
    pub(super) fn wait(&self, load: f64, shape: &ServiceDistribution) -> f64 {
        let free_share = 1.0 - self.utilization(load);
        if free_share <= 0.0 {
            return f64::INFINITY;
        }
        self.wait_probability(load) / (self.capacity * free_share) * self.variability_factor(shape)
    }

    fn variability_factor(&self, shape: &ServiceDistribution) -> f64 {
        if self.shared { 1.0 } else { (1.0 + shape.variation) / 2.0 }
    }

    /// Returns the probability that a request takes longer than `seconds`.
    fn tail_probability(&self, seconds: f64, load: f64, shape: &ServiceDistribution) -> f64 {
        let free_share = 1.0 - self.utilization(load);
        if free_share <= 0.0 {
            return 1.0;
        }
        let (wait_probability, mean) =
            (self.wait_probability(load), self.variability_factor(shape) / (self.capacity * free_share));
        let weighted_tail = |(service, probability): &(f64, f64)| {
            let excess = seconds - service * self.base;
            let mean = if self.shared { mean * service } else { mean };
            probability
                * if excess < 0.0 { 1.0 } else { wait_probability * libm::exp(-excess / mean.max(1e-12)) }
        };
        shape.points.iter().map(weighted_tail).sum()
    }
}

/// Returns the mean seconds of a request of a group at a load; infinite if a station is saturated.
pub(super) fn mean(stations: &[Station], load: f64, shape: &ServiceDistribution) -> f64 {
    stations.iter().map(|station| station.part * (station.base + station.wait(load, shape))).sum()
}

/// Returns the seconds within which the share `quantile` of a group's requests ends at a load; `None` if a
/// station is saturated.
pub(super) fn quantile(
    stations: &[Station],
    load: f64,
    shape: &ServiceDistribution,
    quantile: f64,
) -> Option<f64> {
    if stations.iter().any(|station| station.utilization(load) >= 1.0) {
        return None;
    }
    let tail_share = |seconds: f64| {
        stations
            .iter()
            .map(|station| station.part * station.tail_probability(seconds, load, shape))
            .sum::<f64>()
    };
    let mut high = mean(stations, load, shape).max(1e-9);
    let mut doublings = 0;
    while tail_share(high) > 1.0 - quantile && doublings < 40 {
        high *= 2.0;
        doublings += 1;
    }
    let mut low = 0.0;
    for _ in 0..40 {
        let midpoint = (low + high) / 2.0;
        if tail_share(midpoint) > 1.0 - quantile { low = midpoint } else { high = midpoint }
    }
    Some(high)
}

/// Returns the load above which a station is saturated.
pub(super) fn saturation(stations: &[Station]) -> f64 {
    let own_saturation = |station: &Station| station.capacity / station.part.max(1e-12);
    stations.iter().map(own_saturation).fold(f64::INFINITY, f64::min)
}

/// Returns the requests a second with `at_once` of them in flight (Little's law along the curve).
pub(super) fn throughput(stations: &[Station], concurrency: f64, shape: &ServiceDistribution) -> f64 {
    let (mut low, mut high) = (0.0, saturation(stations));
    if !high.is_finite() {
        return 0.0;
    }
    for _ in 0..60 {
        let load = (low + high) / 2.0;
        if load * mean(stations, load, shape) < concurrency { low = load } else { high = load }
    }
    low
}

#[cfg(test)]
mod tests {
    use super::*;

    fn station(servers: f64, shared: bool) -> Station {
        Station { capacity: servers, servers, base: 1.0, shared, part: 1.0 }
    }

    #[track_caller]
    fn assert_close(actual: f64, expected: f64, tolerance: f64) {
        assert!((actual / expected - 1.0).abs() < tolerance, "{actual}, not {expected}");
    }

    #[test]
    fn one_server_is_exact() {
        let (stations, shape) = ([station(1.0, false)], ServiceDistribution::exponential());
        for load in [0.1, 0.5, 0.9] {
            assert_close(mean(&stations, load, &shape), 1.0 / (1.0 - load), 1e-9);
            // The response time is exponential.
            assert_close(quantile(&stations, load, &shape, 0.99).unwrap(), 4.605 / (1.0 - load), 0.04);
            assert_close(quantile(&stations, load, &shape, 0.5).unwrap(), 0.693 / (1.0 - load), 0.04);
        }
        assert_eq!(quantile(&stations, 1.0, &shape, 0.5), None);
        assert_close(throughput(&stations, 1.0, &shape), 0.5, 1e-6);
        assert_close(throughput(&stations, 1e6, &shape), 1.0, 1e-5);
    }

    #[test]
    fn several_servers_are_close_to_erlangs_formula() {
        // Mean waits of M/M/c in services: the formula's C(c, a) / (c - a).
        for (servers, load, wait) in [(2.0, 1.0, 1.0 / 3.0), (4.0, 3.2, 0.7455), (16.0, 14.4, 0.3696)] {
            let stations = [station(servers, false)];
            assert_close(1.0 + stations[0].wait(load, &ServiceDistribution::exponential()), 1.0 + wait, 0.03);
        }
    }

    #[test]
    fn a_shape_is_what_was_seen() {
        let shape = ServiceDistribution::of(&[(0.5, 1.0), (1.0, 2.0), (1.5, 1.0)]).unwrap();
        assert_close(shape.variation, 0.125, 1e-9);
        assert_close(shape.points.iter().map(|(value, probability)| value * probability).sum(), 1.0, 1e-9);
        assert_close(shape.points.iter().map(|(_, probability)| probability).sum(), 1.0, 1e-9);
        assert_eq!(ServiceDistribution::of(&[]), None);
        assert_eq!(ServiceDistribution::of(&[(0.0, 5.0)]), None);
        let shape = ServiceDistribution::exponential();
        assert_close(shape.points.iter().map(|(value, probability)| value * probability).sum(), 1.0, 1e-9);
        assert_close(shape.points.iter().map(|(_, probability)| probability).sum(), 1.0, 1e-9);
    }

    #[test]
    fn the_fullest_station_saturates_first() {
        let stations =
            [Station { part: 0.5, ..station(2.0, true) }, Station { part: 0.5, ..station(1.0, true) }];
        assert_eq!(saturation(&stations), 2.0);
        assert!(mean(&stations, 2.5, &ServiceDistribution::exponential()).is_infinite());
    }
}
