//! Counters of the kernel's over a sliding window.
//!
//! A counter says how much since some beginning; load is how much of late. A window remembers samples that reach
//! back for a span of time and says by how much each counter grew from the oldest to the newest. A counter that went
//! back (the thing was replaced, or the kernel took something back, as it does with iowait) counts as one that stood
//! still. Time is the caller's, and time that does not pass yields nothing.

use std::collections::VecDeque;
use std::time::Duration;

/// `N` counters that are read together.
#[derive(Debug)]
pub(crate) struct Window<const N: usize> {
    span: Duration,
    /// As read last.
    last: Option<[f64; N]>,
    /// When, and by how much they have grown since the first sample. Never longer than the samples of a span.
    grown: VecDeque<(Duration, [f64; N])>,
}

/// From the oldest sample of a window to the newest.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Growth<const N: usize> {
    /// Above 0.
    pub(crate) seconds: f64,
    /// Of each counter, not negative.
    pub(crate) by: [f64; N],
}

impl<const N: usize> Window<N> {
    /// Reaches back for `span`, or to the first sample.
    pub(crate) fn new(span: Duration) -> Self {
        Self { span, last: None, grown: VecDeque::new() }
    }

    /// One more sample; `None` for the first.
    pub(crate) fn push(&mut self, at: Duration, counters: [f64; N]) -> Option<Growth<N>> {
        let (before, mut sum) = self.grown.back().copied().unwrap_or((at, [0.0; N]));
        if self.last.is_some() && at <= before {
            return None;
        }
        if let Some(last) = self.last {
            for ((sum, now), last) in sum.iter_mut().zip(counters).zip(last) {
                // Not a number is not more than anything.
                *sum += if now > last { now - last } else { 0.0 };
            }
        }
        self.last = Some(counters);
        self.grown.push_back((at, sum));
        // The oldest has to be a whole span old; those before it are not needed.
        while self.grown.get(1).is_some_and(|(second, _)| at.saturating_sub(*second) >= self.span) {
            self.grown.pop_front();
        }
        let (first, base) = *self.grown.front()?;
        let seconds = at.saturating_sub(first).as_secs_f64();
        let by = std::array::from_fn(|n| sum[n] - base[n]);
        (seconds > 0.0).then_some(Growth { seconds, by })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn reaches_back_for_its_span() {
        let mut window = Window::new(at(1000));
        assert_eq!(window.push(at(0), [100.0]), None);
        assert_eq!(window.push(at(500), [110.0]), Some(Growth { seconds: 0.5, by: [10.0] }));
        assert_eq!(window.push(at(1000), [130.0]), Some(Growth { seconds: 1.0, by: [30.0] }));
        assert_eq!(window.push(at(1500), [131.0]), Some(Growth { seconds: 1.0, by: [21.0] }));
        assert_eq!(window.push(at(9000), [131.0]), Some(Growth { seconds: 7.5, by: [0.0] }));
        for ms in 9001..20_000 {
            window.push(at(ms), [0.0]);
        }
        assert!(window.grown.len() <= 1001, "{}", window.grown.len());
    }

    #[test]
    fn resets_and_clocks_that_jump_harm_nothing() {
        let mut window = Window::new(at(1000));
        window.push(at(0), [100.0, 5.0]);
        assert_eq!(window.push(at(100), [3.0, 6.0]).map(|growth| growth.by), Some([0.0, 1.0]), "reset");
        assert_eq!(window.push(at(200), [5.0, f64::NAN]).map(|growth| growth.by), Some([2.0, 1.0]));
        assert_eq!(window.push(at(150), [6.0, 7.0]), None, "back in time");
        assert_eq!(window.push(at(200), [6.0, 7.0]), None, "no time has passed");
        assert_eq!(window.push(at(300), [6.0, 7.0]).map(|growth| growth.by), Some([3.0, 1.0]));
    }
}
