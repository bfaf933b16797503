//! Detects the end of the initial bias by MSER-5 (White, Cobb and Spratt, A comparison of five steady-state
//! truncation heuristics for simulation, 2000).
//!
//! The series consists of means of five observations each. The truncation point minimises the squares around
//! the mean of the rest, divided by the square of their number. If it is in the second half, the series is
//! too short, and all of it may be biased. This may also happen by chance if a series has a long memory. So
//! it counts only if the truncated part differs from the rest by far more than the rest varies ([`APART`]).

/// The number of observations per mean.
const BATCH_SIZE: usize = 5;
/// The number of final means that are too few to estimate a variance.
const MIN_KEPT_BATCHES: usize = 5;
/// The least difference of the two means, in standard deviations of the rest.
const MAX_DISTANCE: f64 = 3.0;

/// Returns the truncation point of several series, the greatest of all, as a number of observations; `None`
/// if one of them is too short.
pub(super) fn truncation_point<'s>(series: impl Iterator<Item = &'s [f64]>) -> Option<usize> {
    let mut truncation = 0;
    for values in series {
        let means: Vec<f64> = values
            .chunks_exact(BATCH_SIZE)
            .map(|batch| batch.iter().sum::<f64>() / BATCH_SIZE as f64)
            .collect();
        let cut = best_cut(&means);
        if 2 * cut > means.len() && is_apart(means.split_at(cut)) {
            return None;
        }
        truncation = truncation.max(cut * BATCH_SIZE);
    }
    Some(truncation)
}

/// Returns `true` if the first part differs significantly from the rest.
fn is_apart((discarded, kept): (&[f64], &[f64])) -> bool {
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len().max(1) as f64;
    let kept_mean = mean(kept);
    let square = kept.iter().map(|value| (value - kept_mean).powi(2)).sum::<f64>() / kept.len().max(1) as f64;
    (mean(discarded) - kept_mean).abs() > MAX_DISTANCE * square.sqrt()
}

/// Returns the best truncation point.
fn best_cut(means: &[f64]) -> usize {
    let mut best = (f64::INFINITY, 0);
    // Sums over the rest, from the end, of differences from the last mean, to preserve precision.
    let last = means.last().copied().unwrap_or_default();
    let (mut sum, mut squares) = (0.0, 0.0);
    for (index, mean) in means.iter().enumerate().rev() {
        let deviation = mean - last;
        sum += deviation;
        squares += deviation * deviation;
        let kept_count = (means.len() - index) as f64;
        if means.len() - index <= MIN_KEPT_BATCHES {
            continue;
        }
        let mean_variance = (squares - sum * sum / kept_count).max(0.0) / (kept_count * kept_count);
        // Of equal values the one that truncates less is taken.
        if mean_variance <= best.0 {
            best = (mean_variance, index);
        }
    }
    best.1
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns noise between -1 and 1.
    fn noise(index: usize) -> f64 {
        let mixed = super::super::streams::mix_bits(index as u64);
        mixed as f64 / u64::MAX as f64 * 2.0 - 1.0
    }

    #[test]
    fn what_falls_at_first_is_left_out() {
        // A stationary series, also one without noise, is not truncated much.
        let flat: Vec<f64> = (0..200).map(noise).collect();
        assert!(truncation_point([&flat[..], &[3.0; 100]].into_iter()).is_some_and(|cut| cut <= 50));
        assert_eq!(truncation_point([&[3.0; 100][..]].into_iter()), Some(0));
        // A series that decays by a factor of e in ten means is truncated after a few times that.
        let falling = |time_constant: f64| -> Vec<f64> {
            (0..200).map(|index| noise(index) + 50.0 * (-(index as f64) / time_constant).exp()).collect()
        };
        let cut = truncation_point([&falling(10.0)[..]].into_iter());
        assert!(cut.is_some_and(|point| (20..=80).contains(&point)), "{cut:?}");
        // A decay that is too slow for its length, and growth without end.
        assert_eq!(truncation_point([&falling(100.0)[..]].into_iter()), None);
        let growing: Vec<f64> = (0..200).map(|index| noise(index) + index as f64).collect();
        assert_eq!(truncation_point([&flat[..], &growing[..]].into_iter()), None);
    }
}
