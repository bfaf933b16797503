//! The capacity of members that were never busy, estimated from that of their peers.
//!
//! Such a member can do at least what it did. The logarithms of capacities are assumed to be draws from one
//! normal distribution, of which the known members are a sample. Unknown members belong to that sample as
//! censored values: a member is unknown *because* it never had enough load, so it tends to be a strong one
//! (Tobin 1958; estimated by expectation and maximization). A prior keeps a few members that are alike by
//! chance from proving that all are.
//!
//! Two quantities are tried, each per unit of the configured capacity: requests a second, and requests at
//! once (requests a second times the seconds that one takes alone). The one in which peers are more alike is
//! used. If configured capacities are numbers of workers, that is the second.

use alloc::vec::Vec;

use super::host_regression::student_quantile;

/// A member and the evidence of its capacity.
#[derive(Clone, Copy, Debug)]
pub(super) struct PeerCapacity {
    /// Its configured capacity; above 0.
    pub(super) unit: f64,
    /// The requests a second that it can serve, if that is known.
    pub(super) known: Option<f64>,
    /// The bounds that its own requests show.
    pub(super) min_capacity: f64,
    pub(super) max_capacity: f64,
    /// The seconds that a request takes there at low concurrency.
    pub(super) base_seconds: Option<f64>,
}

impl PeerCapacity {
    /// Returns one unit of the compared quantity in requests a second; `None` if that is not known.
    fn scale(&self, by_concurrency: bool) -> Option<f64> {
        let scale = if by_concurrency { self.unit / self.base_seconds? } else { self.unit };
        (scale.is_finite() && scale > 0.0).then_some(scale)
    }
}

/// The capacity of an unknown member in requests a second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct CapacityGuess {
    pub(super) best: f64,
    pub(super) high: f64,
}

/// Returns guesses for the unknown members, in their order, and the part of the variance that all guesses
/// share (that of the mean of the known members). `None` without a known member.
pub(super) fn guess_capacities(peers: &[PeerCapacity]) -> Option<(Vec<CapacityGuess>, f64)> {
    let by_rate = PeerDistribution::of(peers, false)?;
    let by_concurrency = PeerDistribution::of(peers, true);
    let guess = |peer: &PeerCapacity| {
        let narrower = by_concurrency.filter(|distribution| distribution.width() < by_rate.width());
        let found_guess = narrower.and_then(|distribution| distribution.guess(peer, true));
        let unbounded = CapacityGuess { best: peer.min_capacity, high: f64::INFINITY };
        found_guess.or_else(|| by_rate.guess(peer, false)).unwrap_or(unbounded)
    };
    let unknown = peers.iter().filter(|peer| peer.known.is_none());
    Some((unknown.map(guess).collect(), 1.0 / (1.0 + by_rate.known_count)))
}

/// The distribution of the logarithm of a quantity among peers.
#[derive(Clone, Copy, Debug)]
struct PeerDistribution {
    mean: f64,
    deviation: f64,
    /// The number of known peers.
    known_count: f64,
}

impl PeerDistribution {
    /// Fits the distribution; `None` without a known member.
    fn of(peers: &[PeerCapacity], by_concurrency: bool) -> Option<Self> {
        let log = |peer: &PeerCapacity, rate: f64| {
            Some(libm::log(rate / peer.scale(by_concurrency)?)).filter(|log| log.is_finite())
        };
        let known_logs: Vec<f64> = peers.iter().filter_map(|peer| log(peer, peer.known?)).collect();
        let unknown = peers.iter().filter(|peer| peer.known.is_none());
        let floors: Vec<f64> = unknown.filter_map(|peer| log(peer, peer.min_capacity)).collect();
        if known_logs.is_empty() {
            return None;
        }
        let count = known_logs.len() as f64;
        let mut mean = known_logs.iter().sum::<f64>() / count;
        let mut deviation = PRIOR;
        for _ in 0..MAX_ITERATIONS {
            // A bound far below the mean carries no information.
            let censored: Vec<(f64, f64)> = floors
                .iter()
                .filter(|floor| **floor > mean - CENSORING_DEVIATIONS * deviation)
                .map(|floor| truncated_normal(*floor, mean, deviation))
                .collect();
            let total_count = count + censored.len() as f64;
            mean = (known_logs.iter().sum::<f64>() + censored.iter().map(|sample| sample.0).sum::<f64>())
                / total_count;
            let squared_deviation = |value: f64| (value - mean) * (value - mean);
            let squares = known_logs.iter().map(|value| squared_deviation(*value)).sum::<f64>()
                + censored.iter().map(|(value, variance)| squared_deviation(*value) + variance).sum::<f64>();
            let prior = PRIOR_WORTH * PRIOR * PRIOR;
            deviation = libm::sqrt((prior + squares) / (PRIOR_WORTH + total_count - 1.0));
        }
        Some(Self { mean, deviation, known_count: count })
    }

    /// Returns the distance from the mean within which 95 % of members lie.
    fn width(&self) -> f64 {
        self.deviation
            * student_quantile(PRIOR_WORTH + self.known_count - 1.0)
            * libm::sqrt(1.0 + 1.0 / self.known_count)
    }

    /// Guesses the capacity of an unknown member.
    fn guess(&self, peer: &PeerCapacity, by_concurrency: bool) -> Option<CapacityGuess> {
        let scale = peer.scale(by_concurrency)?;
        let floor = libm::log(peer.min_capacity / scale).max(self.mean - MAX_DEVIATIONS * self.width());
        let scale_deviation = self.width() / NORMAL_QUANTILE;
        let tail_share = normal_tail((floor - self.mean) / scale_deviation);
        let high =
            scale * libm::exp(self.mean + scale_deviation * tail_quantile(TAIL_PROBABILITY * tail_share));
        let variance = self.deviation * self.deviation;
        let mean_ratio = normal_tail((floor - self.mean - variance) / self.deviation)
            / normal_tail((floor - self.mean) / self.deviation).max(f64::MIN_POSITIVE);
        let mean = scale * libm::exp(self.mean + variance / 2.0) * mean_ratio;
        let high = high.min(peer.max_capacity).max(peer.min_capacity);
        let best = if mean.is_finite() { mean } else { peer.min_capacity };
        Some(CapacityGuess { best: best.clamp(peer.min_capacity, high), high })
    }
}

/// Returns the mean and the variance of a normal value that is known to lie above `floor`.
fn truncated_normal(floor: f64, mean: f64, deviation: f64) -> (f64, f64) {
    let standardized = (floor - mean) / deviation;
    let ratio = if standardized < 6.0 {
        libm::exp(-standardized * standardized / 2.0)
            / libm::sqrt(core::f64::consts::TAU)
            / normal_tail(standardized)
    } else {
        standardized + 1.0 / standardized
    };
    let variance = (1.0 + standardized * ratio - ratio * ratio).clamp(0.0, 1.0);
    (mean + deviation * ratio, deviation * deviation * variance)
}

/// Returns the probability that a standard normal value is greater.
fn normal_tail(value: f64) -> f64 {
    0.5 * libm::erfc(value / core::f64::consts::SQRT_2)
}

/// Returns the value that a standard normal one exceeds with this probability.
fn tail_quantile(share: f64) -> f64 {
    let (mut low, mut high) = (-MAX_DEVIATIONS, MAX_DEVIATIONS);
    for _ in 0..50 {
        let midpoint = (low + high) / 2.0;
        if normal_tail(midpoint) > share { low = midpoint } else { high = midpoint }
    }
    high
}

/// The prior standard deviation of the logarithm, and the number of members that it is worth.
const PRIOR: f64 = 0.4;
const PRIOR_WORTH: f64 = 3.0;

/// The number of steps of the fit.
const MAX_ITERATIONS: usize = 25;

/// The deviations below the mean at which a lower bound carries no information, and beyond which there are no
/// members.
const CENSORING_DEVIATIONS: f64 = 2.0;
const MAX_DEVIATIONS: f64 = 8.0;

/// The probability that a member can do more than its upper end, and the deviations within which 95 % of
/// normal values lie.
const TAIL_PROBABILITY: f64 = 0.05;
const NORMAL_QUANTILE: f64 = 1.96;

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(unit: f64, known_capacity: Option<f64>, min_capacity: f64) -> PeerCapacity {
        PeerCapacity {
            unit,
            known: known_capacity,
            min_capacity,
            max_capacity: f64::INFINITY,
            base_seconds: None,
        }
    }

    #[test]
    fn without_a_peer_nothing_is_guessed() {
        assert_eq!(guess_capacities(&[peer(1.0, None, 20.0); 3]), None);
        assert_eq!(guess_capacities(&[]), None);
        let (guesses, _) = guess_capacities(&[peer(1.0, Some(50.0), 40.0); 2]).unwrap();
        assert!(guesses.is_empty());
    }

    #[test]
    fn the_more_peers_are_alike_the_surer_is_the_guess() {
        let guess_beside = |known_peers: usize| {
            let mut peers = alloc::vec![peer(1.0, Some(100.0), 95.0); known_peers];
            peers.push(peer(1.0, None, 0.0));
            guess_capacities(&peers).unwrap().0[0]
        };
        let (with_few, with_some, with_many) = (guess_beside(2), guess_beside(10), guess_beside(60));
        assert!(
            with_few.high > with_some.high && with_some.high > with_many.high && with_many.high < 135.0,
            "{with_few:?} {with_some:?} {with_many:?}"
        );
        assert!((with_many.best / 100.0 - 1.0).abs() < 0.05, "{with_many:?}");
        // A member that was seen to serve more than its peers can serve at least that.
        let mut peers = alloc::vec![peer(1.0, Some(100.0), 95.0); 10];
        peers.push(peer(1.0, None, 300.0));
        let strong_guess = guess_capacities(&peers).unwrap().0[0];
        assert!(strong_guess.best > 300.0 && strong_guess.high > strong_guess.best, "{strong_guess:?}");
        peers[10].max_capacity = 310.0;
        let bounded_guess = guess_capacities(&peers).unwrap().0[0];
        assert!(bounded_guess.best <= 310.0 && bounded_guess.high <= 310.0, "{bounded_guess:?}");
    }

    #[test]
    fn who_was_never_busy_can_probably_do_more_than_those_who_were() {
        let known_peers = [10.0, 14.0, 12.0].map(|rate| peer(1.0, Some(rate), rate));
        let mut peers = known_peers.to_vec();
        peers.extend([peer(1.0, None, 40.0); 3]);
        peers.push(peer(1.0, None, 0.0));
        let (guesses, _) = guess_capacities(&peers).unwrap();
        // A member without load is not like the known ones, but like all.
        assert!(guesses[3].best > 20.0 && guesses[0].best > 40.0, "{guesses:?}");
    }

    #[test]
    fn a_capacity_counts_as_what_it_is_a_number_of() {
        // Numbers of workers, each of which takes as long as its member's requests do.
        let peer_with = |workers: f64, unloaded_seconds: f64, is_known: bool| PeerCapacity {
            unit: workers,
            known: is_known.then_some(workers / unloaded_seconds),
            min_capacity: if is_known { workers / unloaded_seconds } else { 1.0 / unloaded_seconds },
            max_capacity: f64::INFINITY,
            base_seconds: Some(unloaded_seconds),
        };
        let mut peers: Vec<PeerCapacity> = [0.01, 0.04, 0.02, 0.08, 0.01, 0.03, 0.05, 0.02, 0.04, 0.01]
            .into_iter()
            .zip([1.0, 2.0, 3.0, 8.0].into_iter().cycle())
            .map(|(unloaded_seconds, workers)| peer_with(workers, unloaded_seconds, true))
            .collect();
        peers.push(peer_with(4.0, 0.1, false));
        let guess = guess_capacities(&peers).unwrap().0[0];
        assert!((guess.best / 40.0 - 1.0).abs() < 0.1 && guess.high < 70.0, "{guess:?}");
        // Requests a second, however long requests take.
        peers.iter_mut().for_each(|peer| peer.unit = peer.known.unwrap_or(40.0) / 10.0);
        let guess = guess_capacities(&peers).unwrap().0[0];
        assert!((guess.best / 40.0 - 1.0).abs() < 0.1 && guess.high < 70.0, "{guess:?}");
    }
}
