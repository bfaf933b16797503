//! How long the beginning makes a difference: MSER-5 (White, Cobb and Spratt, A comparison of five steady-state truncation
//! heuristics for simulation, 2000).
//!
//! Of a series of means of five observations each, the first so many are left out that the mean of all others is known best:
//! those whose squares around their mean, over the square of their number, are least. If that is more than half of the series, it
//! is too short to tell, and what began it may be in all of it. So it is by chance, too, where a series remembers for long: it
//! counts only if what is left out is another thing than what is kept, by far more than that varies ([`APART`]).

/// Observations whose mean is one of the series.
const FIVE: usize = 5;
/// Means at the end of a series that are too few to say anything of how they vary.
const END: usize = 5;
/// Standard deviations of what is kept between its mean and that of what is left out.
const APART: f64 = 3.0;

/// What is left of the beginning in some series of observations: the most that any of them says, as a number of observations;
/// none if one of them is too short to tell.
pub(super) fn settled<'s>(series: impl Iterator<Item = &'s [f64]>) -> Option<usize> {
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

/// Is what comes first another thing than what follows?
fn is_apart((first, then): (&[f64], &[f64])) -> bool {
    let mean = |all: &[f64]| all.iter().sum::<f64>() / all.len().max(1) as f64;
    let kept = mean(then);
    let square = then.iter().map(|own| (own - kept).powi(2)).sum::<f64>() / then.len().max(1) as f64;
    (mean(first) - kept).abs() > APART * square.sqrt()
}

/// How many of these are best left out.
fn least(means: &[f64]) -> usize {
    let mut best = (f64::INFINITY, 0);
    // Sums of what is kept, from the end; of differences from the last mean, so that no digits are lost.
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
        // Of equals the one that leaves out less.
        if doubt <= best.0 {
            best = (doubt, place);
        }
    }
    best.1
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Noise between -1 and 1.
    fn noise(place: usize) -> f64 {
        let mixed = super::super::streams::mixed(place as u64);
        mixed as f64 / u64::MAX as f64 * 2.0 - 1.0
    }

    #[test]
    fn what_falls_at_first_is_left_out() {
        // Even from the first, also without any noise: nothing.
        let flat: Vec<f64> = (0..200).map(noise).collect();
        assert!(settled([&flat[..], &[3.0; 100]].into_iter()).is_some_and(|left| left <= 50));
        assert_eq!(settled([&[3.0; 100][..]].into_iter()), Some(0));
        // What falls by a factor of e in ten: a few times that.
        let falls = |over: f64| -> Vec<f64> {
            (0..200).map(|place| noise(place) + 50.0 * (-(place as f64) / over).exp()).collect()
        };
        let left = settled([&falls(10.0)[..]].into_iter());
        assert!(left.is_some_and(|left| (20..=80).contains(&left)), "{left:?}");
        // Too slow for its length, and what never ends.
        assert_eq!(settled([&falls(100.0)[..]].into_iter()), None);
        let grows: Vec<f64> = (0..200).map(|place| noise(place) + place as f64).collect();
        assert_eq!(settled([&flat[..], &grows[..]].into_iter()), None);
    }
}
