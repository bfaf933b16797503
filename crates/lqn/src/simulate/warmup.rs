//! Detects the end of the initial bias by MSER-5 (White, Cobb and Spratt, A comparison of five steady-state
//! truncation heuristics for simulation, 2000).
//!
//! The series consists of means of five observations each. The truncation point minimises the squares around
//! the mean of the rest, divided by the square of their number. If it is in the second half, the series is
//! too short, and all of it may be biased. This may also happen by chance if a series has a long memory. So
//! it counts only if the truncated part differs from the rest by far more than the rest varies ([`APART`]).

/// The number of observations per mean.
const FIVE: usize = 5;
/// The number of final means that are too few to estimate a variance.
const END: usize = 5;
/// The least difference of the two means, in standard deviations of the rest.
const APART: f64 = 3.0;

/// Returns the truncation point of several series, the greatest of all, as a number of observations; `None`
/// if one of them is too short.
pub(super) fn truncation_point<'s>(series: impl Iterator<Item = &'s [f64]>) -> Option<usize> {
    let mut most = 0;
    for own in series {
        let means: Vec<f64> =
            own.chunks_exact(FIVE).map(|five| five.iter().sum::<f64>() / FIVE as f64).collect();
        let left_out = least(&means);
        if 2 * left_out > means.len() && is_apart(means.split_at(left_out)) {
            return None;
        }
        most = most.max(left_out * FIVE);
    }
    Some(most)
}

/// Returns `true` if the first part differs significantly from the rest.
fn is_apart((first, then): (&[f64], &[f64])) -> bool {
    let mean = |all: &[f64]| all.iter().sum::<f64>() / all.len().max(1) as f64;
    let kept = mean(then);
    let square = then.iter().map(|own| (own - kept).powi(2)).sum::<f64>() / then.len().max(1) as f64;
    (mean(first) - kept).abs() > APART * square.sqrt()
}

/// Returns the best truncation point.
fn least(means: &[f64]) -> usize {
    let mut best = (f64::INFINITY, 0);
    // Sums over the rest, from the end, of differences from the last mean, to preserve precision.
    let last = means.last().copied().unwrap_or_default();
    let (mut sum, mut squares) = (0.0, 0.0);
    for (place, mean) in means.iter().enumerate().rev() {
        let off = mean - last;
        sum += off;
        squares += off * off;
        let kept = (means.len() - place) as f64;
        if means.len() - place <= END {
            continue;
        }
        let doubt = (squares - sum * sum / kept).max(0.0) / (kept * kept);
        // Of equal values the one that truncates less is taken.
        if doubt <= best.0 {
            best = (doubt, place);
        }
    }
    best.1
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns noise between -1 and 1.
    fn noise(place: usize) -> f64 {
        let mixed = super::super::streams::mix_bits(place as u64);
        mixed as f64 / u64::MAX as f64 * 2.0 - 1.0
    }

    #[test]
    fn what_falls_at_first_is_left_out() {
        // A stationary series, also one without noise, is not truncated much.
        let flat: Vec<f64> = (0..200).map(noise).collect();
        assert!(truncation_point([&flat[..], &[3.0; 100]].into_iter()).is_some_and(|left| left <= 50));
        assert_eq!(truncation_point([&[3.0; 100][..]].into_iter()), Some(0));
        // A series that decays by a factor of e in ten means is truncated after a few times that.
        let falls = |over: f64| -> Vec<f64> {
            (0..200).map(|place| noise(place) + 50.0 * (-(place as f64) / over).exp()).collect()
        };
        let left = truncation_point([&falls(10.0)[..]].into_iter());
        assert!(left.is_some_and(|left| (20..=80).contains(&left)), "{left:?}");
        // A decay that is too slow for its length, and growth without end.
        assert_eq!(truncation_point([&falls(100.0)[..]].into_iter()), None);
        let grows: Vec<f64> = (0..200).map(|place| noise(place) + place as f64).collect();
        assert_eq!(truncation_point([&flat[..], &grows[..]].into_iter()), None);
    }
}
