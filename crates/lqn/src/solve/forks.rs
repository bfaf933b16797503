//! The time until the k-th of several parallel branches ends.

use super::service_times::RandomTime;

/// The number of points at which the distribution is evaluated.
const GRID_POINTS: usize = 240;

/// Returns the probability that a branch is not done by `at`. The distribution has the mean and the variance
/// of the span: a fixed time plus an exponential one if the variation is below 1, else a hyperexponential
/// with balanced means.
fn survival(time: &RandomTime, point: f64) -> f64 {
    let variation = time.variation();
    if time.mean <= 0.0 {
        return 0.0;
    }
    if variation <= 1.0 {
        let random = time.mean * variation.sqrt();
        let fixed = time.mean - random;
        if point < fixed {
            1.0
        } else if random <= 0.0 {
            0.0
        } else {
            (-(point - fixed) / random).exp()
        }
    } else {
        let first = 0.5 * (1.0 + ((variation - 1.0) / (variation + 1.0)).sqrt());
        let tail = |weight: f64| weight * (-2.0 * weight * point / time.mean).exp();
        tail(first) + tail(1.0 - first)
    }
}

/// Returns the time until `wanted` of the branches are done, which are taken to be independent.
pub(super) fn kth_completion(branches: &[RandomTime], quorum: usize) -> RandomTime {
    let quorum = quorum.clamp(1, branches.len().max(1));
    if branches.len() <= 1 {
        return branches.first().copied().unwrap_or_default();
    }
    let longest = branches
        .iter()
        .map(|branch| branch.mean + 8.0 * branch.variance.sqrt() + 2.0 * branch.mean)
        .fold(0.0, f64::max);
    let step = longest / GRID_POINTS as f64;
    let (mut mean, mut square) = (0.0, 0.0);
    let mut completed = vec![0.0; quorum + 1];
    for point in 0..GRID_POINTS {
        let time = (point as f64 + 0.5) * step;
        // The probability of each number of branches that are done by then, up to the wanted one.
        completed.iter_mut().for_each(|probability| *probability = 0.0);
        completed[0] = 1.0;
        for branch in branches {
            let running = survival(branch, time);
            for count in (0..quorum).rev() {
                completed[count + 1] += completed[count] * (1.0 - running);
                completed[count] *= running;
            }
        }
        let incomplete: f64 = completed[..quorum].iter().sum();
        mean += incomplete * step;
        square += 2.0 * time * incomplete * step;
    }
    let total_mean: f64 = branches.iter().map(|branch| branch.mean).sum();
    let total_waiting: f64 = branches.iter().map(|branch| branch.waiting).sum();
    RandomTime {
        mean,
        variance: (square - mean * mean).max(0.0),
        waiting: if total_mean > 0.0 { mean * (total_waiting / total_mean).min(1.0) } else { 0.0 },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_of_exponential_branches() {
        let exponential = |mean: f64| RandomTime { mean, variance: mean * mean, waiting: 0.0 };
        for (means, quorum, expected) in [
            (vec![1.0, 1.0], 2, 1.5),
            (vec![1.0, 1.0], 1, 0.5),
            (vec![1.0, 1.0, 1.0], 3, 11.0 / 6.0),
            (vec![1.0, 2.0], 2, 3.0 - 1.0 / 1.5),
        ] {
            let times: Vec<RandomTime> = means.into_iter().map(exponential).collect();
            let completion_mean = kth_completion(&times, quorum).mean;
            assert!((completion_mean / expected - 1.0_f64).abs() < 0.01, "{completion_mean}, not {expected}");
        }
    }
}
