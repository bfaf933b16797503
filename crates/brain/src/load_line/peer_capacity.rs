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

use super::host_regression::student;

/// A member and the evidence of its capacity.
#[derive(Clone, Copy, Debug)]
pub(super) struct PeerCapacity {
    /// Its configured capacity; above 0.
    pub(super) unit: f64,
    /// The requests a second that it can serve, if that is known.
    pub(super) known: Option<f64>,
    /// The bounds that its own requests show.
    pub(super) least: f64,
    pub(super) most: f64,
    /// The seconds that a request takes there at low concurrency.
    pub(super) base_seconds: Option<f64>,
}

impl PeerCapacity {
    /// Returns one unit of the compared quantity in requests a second; `None` if that is not known.
    fn scale(&self, at_once: bool) -> Option<f64> {
        let scale = if at_once { self.unit / self.base_seconds? } else { self.unit };
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
    let at_once = PeerDistribution::of(peers, true);
    let guess = |peer: &PeerCapacity| {
        let narrower = at_once.filter(|spread| spread.width() < by_rate.width());
        let found = narrower.and_then(|spread| spread.guess(peer, true));
        let nothing = CapacityGuess { best: peer.least, high: f64::INFINITY };
        found.or_else(|| by_rate.guess(peer, false)).unwrap_or(nothing)
    };
    let unknown = peers.iter().filter(|peer| peer.known.is_none());
    Some((unknown.map(guess).collect(), 1.0 / (1.0 + by_rate.known)))
}

/// The distribution of the logarithm of a quantity among peers.
#[derive(Clone, Copy, Debug)]
struct PeerDistribution {
    mean: f64,
    deviation: f64,
    /// The number of known peers.
    known: f64,
}

impl PeerDistribution {
    /// Fits the distribution; `None` without a known member.
    fn of(peers: &[PeerCapacity], at_once: bool) -> Option<Self> {
        let log = |peer: &PeerCapacity, rate: f64| {
            Some(libm::log(rate / peer.scale(at_once)?)).filter(|log| log.is_finite())
        };
        let known: Vec<f64> = peers.iter().filter_map(|peer| log(peer, peer.known?)).collect();
        let unknown = peers.iter().filter(|peer| peer.known.is_none());
        let floors: Vec<f64> = unknown.filter_map(|peer| log(peer, peer.least)).collect();
        if known.is_empty() {
            return None;
        }
        let count = known.len() as f64;
        let mut mean = known.iter().sum::<f64>() / count;
        let mut deviation = PRIOR;
        for _ in 0..ROUNDS {
            // A bound far below the mean carries no information.
            let censored: Vec<(f64, f64)> = floors
                .iter()
                .filter(|floor| **floor > mean - FAR * deviation)
                .map(|floor| truncated_normal(*floor, mean, deviation))
                .collect();
            let all = count + censored.len() as f64;
            mean = (known.iter().sum::<f64>() + censored.iter().map(|one| one.0).sum::<f64>()) / all;
            let off = |value: f64| (value - mean) * (value - mean);
            let squares = known.iter().map(|value| off(*value)).sum::<f64>()
                + censored.iter().map(|(value, variance)| off(*value) + variance).sum::<f64>();
            let prior = PRIOR_WORTH * PRIOR * PRIOR;
            deviation = libm::sqrt((prior + squares) / (PRIOR_WORTH + all - 1.0));
        }
        Some(Self { mean, deviation, known: count })
    }

    /// Returns the distance from the mean within which 95 % of members lie.
    fn width(&self) -> f64 {
        self.deviation * student(PRIOR_WORTH + self.known - 1.0) * libm::sqrt(1.0 + 1.0 / self.known)
    }

    /// Guesses the capacity of an unknown member.
    fn guess(&self, peer: &PeerCapacity, at_once: bool) -> Option<CapacityGuess> {
        let scale = peer.scale(at_once)?;
        let floor = libm::log(peer.least / scale).max(self.mean - FARTHEST * self.width());
        let wide = self.width() / NORMAL;
        let left = normal_tail((floor - self.mean) / wide);
        let high = scale * libm::exp(self.mean + wide * beyond_share(UNSURE * left));
        let variance = self.deviation * self.deviation;
        let part = normal_tail((floor - self.mean - variance) / self.deviation)
            / normal_tail((floor - self.mean) / self.deviation).max(f64::MIN_POSITIVE);
        let mean = scale * libm::exp(self.mean + variance / 2.0) * part;
        let high = high.min(peer.most).max(peer.least);
        let best = if mean.is_finite() { mean } else { peer.least };
        Some(CapacityGuess { best: best.clamp(peer.least, high), high })
    }
}

/// Returns the mean and the variance of a normal value that is known to lie above `floor`.
fn truncated_normal(floor: f64, mean: f64, deviation: f64) -> (f64, f64) {
    let at = (floor - mean) / deviation;
    let ratio = if at < 6.0 {
        libm::exp(-at * at / 2.0) / libm::sqrt(core::f64::consts::TAU) / normal_tail(at)
    } else {
        at + 1.0 / at
    };
    let variance = (1.0 + at * ratio - ratio * ratio).clamp(0.0, 1.0);
    (mean + deviation * ratio, deviation * deviation * variance)
}

/// Returns the probability that a standard normal value is greater.
fn normal_tail(value: f64) -> f64 {
    0.5 * libm::erfc(value / core::f64::consts::SQRT_2)
}

/// Returns the value that a standard normal one exceeds with this probability.
fn beyond_share(share: f64) -> f64 {
    let (mut low, mut high) = (-FARTHEST, FARTHEST);
    for _ in 0..50 {
        let middle = (low + high) / 2.0;
        if normal_tail(middle) > share { low = middle } else { high = middle }
    }
    high
}

/// The prior standard deviation of the logarithm, and the number of members that it is worth.
const PRIOR: f64 = 0.4;
const PRIOR_WORTH: f64 = 3.0;

/// The number of steps of the fit.
const ROUNDS: usize = 25;

/// The deviations below the mean at which a lower bound carries no information, and beyond which there are no
/// members.
const FAR: f64 = 2.0;
const FARTHEST: f64 = 8.0;

/// The probability that a member can do more than its upper end, and the deviations within which 95 % of
/// normal values lie.
const UNSURE: f64 = 0.05;
const NORMAL: f64 = 1.96;

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(unit: f64, known: Option<f64>, least: f64) -> PeerCapacity {
        PeerCapacity { unit, known, least, most: f64::INFINITY, base_seconds: None }
    }

    #[test]
    fn without_a_peer_nothing_is_guessed() {
        assert_eq!(guess_capacities(&[peer(1.0, None, 20.0); 3]), None);
        assert_eq!(guess_capacities(&[]), None);
        let (none, _) = guess_capacities(&[peer(1.0, Some(50.0), 40.0); 2]).unwrap();
        assert!(none.is_empty());
    }

    #[test]
    fn the_more_peers_are_alike_the_surer_is_the_guess() {
        let one_beside = |known: usize| {
            let mut peers = alloc::vec![peer(1.0, Some(100.0), 95.0); known];
            peers.push(peer(1.0, None, 0.0));
            guess_capacities(&peers).unwrap().0[0]
        };
        let (few, some, many) = (one_beside(2), one_beside(10), one_beside(60));
        assert!(
            few.high > some.high && some.high > many.high && many.high < 135.0,
            "{few:?} {some:?} {many:?}"
        );
        assert!((many.best / 100.0 - 1.0).abs() < 0.05, "{many:?}");
        // A member that was seen to serve more than its peers can serve at least that.
        let mut peers = alloc::vec![peer(1.0, Some(100.0), 95.0); 10];
        peers.push(peer(1.0, None, 300.0));
        let strong = guess_capacities(&peers).unwrap().0[0];
        assert!(strong.best > 300.0 && strong.high > strong.best, "{strong:?}");
        peers[10].most = 310.0;
        let bounded = guess_capacities(&peers).unwrap().0[0];
        assert!(bounded.best <= 310.0 && bounded.high <= 310.0, "{bounded:?}");
    }

    #[test]
    fn who_was_never_busy_can_probably_do_more_than_those_who_were() {
        let weak = [10.0, 14.0, 12.0].map(|rate| peer(1.0, Some(rate), rate));
        let mut peers = weak.to_vec();
        peers.extend([peer(1.0, None, 40.0); 3]);
        peers.push(peer(1.0, None, 0.0));
        let (found, _) = guess_capacities(&peers).unwrap();
        // A member without load is not like the known ones, but like all.
        assert!(found[3].best > 20.0 && found[0].best > 40.0, "{found:?}");
    }

    #[test]
    fn a_capacity_counts_as_what_it_is_a_number_of() {
        // Numbers of workers, each of which takes as long as its member's requests do.
        let of = |workers: f64, alone: f64, known: bool| PeerCapacity {
            unit: workers,
            known: known.then_some(workers / alone),
            least: if known { workers / alone } else { 1.0 / alone },
            most: f64::INFINITY,
            base_seconds: Some(alone),
        };
        let mut peers: Vec<PeerCapacity> = [0.01, 0.04, 0.02, 0.08, 0.01, 0.03, 0.05, 0.02, 0.04, 0.01]
            .into_iter()
            .zip([1.0, 2.0, 3.0, 8.0].into_iter().cycle())
            .map(|(alone, workers)| of(workers, alone, true))
            .collect();
        peers.push(of(4.0, 0.1, false));
        let found = guess_capacities(&peers).unwrap().0[0];
        assert!((found.best / 40.0 - 1.0).abs() < 0.1 && found.high < 70.0, "{found:?}");
        // Requests a second, however long requests take.
        peers.iter_mut().for_each(|peer| peer.unit = peer.known.unwrap_or(40.0) / 10.0);
        let found = guess_capacities(&peers).unwrap().0[0];
        assert!((found.best / 40.0 - 1.0).abs() < 0.1 && found.high < 70.0, "{found:?}");
    }
}
