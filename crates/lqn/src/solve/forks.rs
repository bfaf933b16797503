//! The time until the k-th of several parallel branches ends.

use super::service_times::RandomTime;

/// The number of points at which the distribution is evaluated.
const POINTS: usize = 240;

/// Returns the probability that a branch is not done by `at`. The distribution has the mean and the variance
/// of the span: a fixed time plus an exponential one if the variation is below 1, else a hyperexponential
/// with balanced means.
fn left(span: &RandomTime, at: f64) -> f64 {
    let variation = span.variation();
    if span.mean <= 0.0 {
        return 0.0;
    }
    if variation <= 1.0 {
        let random = span.mean * variation.sqrt();
        let fixed = span.mean - random;
        if at < fixed {
            1.0
        } else if random <= 0.0 {
            0.0
        } else {
            (-(at - fixed) / random).exp()
        }
    } else {
        let first = 0.5 * (1.0 + ((variation - 1.0) / (variation + 1.0)).sqrt());
        let ends = |part: f64| part * (-2.0 * part * at / span.mean).exp();
        ends(first) + ends(1.0 - first)
    }
}

/// Returns the time until `wanted` of the branches are done, which are taken to be independent.
pub(super) fn kth_completion(branches: &[RandomTime], wanted: usize) -> RandomTime {
    let wanted = wanted.clamp(1, branches.len().max(1));
    if branches.len() <= 1 {
        return branches.first().copied().unwrap_or_default();
    }
    let longest = branches
        .iter()
        .map(|span| span.mean + 8.0 * span.variance.sqrt() + 2.0 * span.mean)
        .fold(0.0, f64::max);
    let step = longest / POINTS as f64;
    let (mut mean, mut square) = (0.0, 0.0);
    let mut done = vec![0.0; wanted + 1];
    for point in 0..POINTS {
        let at = (point as f64 + 0.5) * step;
        // The probability of each number of branches that are done by then, up to the wanted one.
        done.iter_mut().for_each(|part| *part = 0.0);
        done[0] = 1.0;
        for span in branches {
            let left = left(span, at);
            for count in (0..wanted).rev() {
                done[count + 1] += done[count] * (1.0 - left);
                done[count] *= left;
            }
        }
        let open: f64 = done[..wanted].iter().sum();
        mean += open * step;
        square += 2.0 * at * open * step;
    }
    let all: f64 = branches.iter().map(|span| span.mean).sum();
    let waits: f64 = branches.iter().map(|span| span.waiting).sum();
    RandomTime {
        mean,
        variance: (square - mean * mean).max(0.0),
        waiting: if all > 0.0 { mean * (waits / all).min(1.0) } else { 0.0 },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_of_exponential_branches() {
        let one = |mean: f64| RandomTime { mean, variance: mean * mean, waiting: 0.0 };
        for (means, wanted, expected) in [
            (vec![1.0, 1.0], 2, 1.5),
            (vec![1.0, 1.0], 1, 0.5),
            (vec![1.0, 1.0, 1.0], 3, 11.0 / 6.0),
            (vec![1.0, 2.0], 2, 3.0 - 1.0 / 1.5),
        ] {
            let spans: Vec<RandomTime> = means.into_iter().map(one).collect();
            let found = kth_completion(&spans, wanted).mean;
            assert!((found / expected - 1.0_f64).abs() < 0.01, "{found}, not {expected}");
        }
    }
}
