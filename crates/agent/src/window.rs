//! Kernel counters over a sliding window.
//!
//! A window keeps samples for a time span and returns the growth of each counter from the oldest sample to
//! the newest. A counter that decreased counts as unchanged: its source was replaced, or the kernel corrected
//! it, as with iowait. The caller passes the time; if no time has passed, there is no result.

use std::collections::VecDeque;
use std::time::Duration;

/// `N` counters that are read together.
#[derive(Debug)]
pub(crate) struct CounterWindow<const N: usize> {
    span: Duration,
    /// The values of the last sample.
    last: Option<[f64; N]>,
    /// The time of each sample and the growth since the first one. The samples span at most the window and
    /// one more.
    samples: VecDeque<(Duration, [f64; N])>,
}

/// The growth from the oldest sample of a window to the newest.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct CounterGrowth<const N: usize> {
    /// The time between them in seconds, above 0.
    pub(crate) seconds: f64,
    /// The growth of each counter, not negative.
    pub(crate) increases: [f64; N],
}

impl<const N: usize> CounterWindow<N> {
    /// Creates a window of length `span`, or back to the first sample.
    pub(crate) fn new(span: Duration) -> Self {
        Self { span, last: None, samples: VecDeque::new() }
    }

    /// Adds a sample. Returns `None` for the first one.
    pub(crate) fn push(&mut self, now: Duration, counters: [f64; N]) -> Option<CounterGrowth<N>> {
        let (last_sampled, mut sums) = self.samples.back().copied().unwrap_or((now, [0.0; N]));
        if self.last.is_some() && now <= last_sampled {
            return None;
        }
        if let Some(last_counters) = self.last {
            for ((sum, current), previous) in sums.iter_mut().zip(counters).zip(last_counters) {
                // A comparison with NaN is false.
                *sum += if current > previous { current - previous } else { 0.0 };
            }
        }
        self.last = Some(counters);
        self.samples.push_back((now, sums));
        // The oldest sample is the newest that is at least `span` old.
        while self.samples.get(1).is_some_and(|(second, _)| now.saturating_sub(*second) >= self.span) {
            self.samples.pop_front();
        }
        let (first_sampled, first_sums) = *self.samples.front()?;
        let seconds = now.saturating_sub(first_sampled).as_secs_f64();
        let increases = std::array::from_fn(|n| sums[n] - first_sums[n]);
        (seconds > 0.0).then_some(CounterGrowth { seconds, increases })
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
        let mut window = CounterWindow::new(at(1000));
        assert_eq!(window.push(at(0), [100.0]), None);
        assert_eq!(window.push(at(500), [110.0]), Some(CounterGrowth { seconds: 0.5, increases: [10.0] }));
        assert_eq!(window.push(at(1000), [130.0]), Some(CounterGrowth { seconds: 1.0, increases: [30.0] }));
        assert_eq!(window.push(at(1500), [131.0]), Some(CounterGrowth { seconds: 1.0, increases: [21.0] }));
        assert_eq!(window.push(at(9000), [131.0]), Some(CounterGrowth { seconds: 7.5, increases: [0.0] }));
        for ms in 9001..20_000 {
            window.push(at(ms), [0.0]);
        }
        assert!(window.samples.len() <= 1001, "{}", window.samples.len());
    }

    #[test]
    fn resets_and_clocks_that_jump_harm_nothing() {
        let mut window = CounterWindow::new(at(1000));
        window.push(at(0), [100.0, 5.0]);
        assert_eq!(
            window.push(at(100), [3.0, 6.0]).map(|growth| growth.increases),
            Some([0.0, 1.0]),
            "reset"
        );
        assert_eq!(window.push(at(200), [5.0, f64::NAN]).map(|growth| growth.increases), Some([2.0, 1.0]));
        assert_eq!(window.push(at(150), [6.0, 7.0]), None, "back in time");
        assert_eq!(window.push(at(200), [6.0, 7.0]), None, "no time has passed");
        assert_eq!(window.push(at(300), [6.0, 7.0]).map(|growth| growth.increases), Some([3.0, 1.0]));
    }
}
