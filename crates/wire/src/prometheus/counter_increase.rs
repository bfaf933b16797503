//! The increase of a counter that a page exposes in many series, computed series by series as Prometheus'
//! `rate()` does.
//!
//! A series whose value decreased has restarted at 0, so that its new value is its increase. A series that
//! was missing from the previous page counts from this page on. Sums would hide both cases. If one of two
//! workers restarts, the sum decreases as if both had, and the other worker's whole count would look like an
//! increase.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use plimsoll_brain::hash;

use super::MetricSample;

/// The recommended limit on the series of one page.
pub const MAX_SERIES: usize = 10_000;

/// The series of a counter as of its previous page: 16 bytes each, whatever the size of their labels.
#[derive(Debug, Default)]
pub struct CounterIncrease {
    /// The values, by a hash of the unparsed labels.
    series: HashMap<u64, f64>,
    /// Whether there was a previous page.
    has_previous: bool,
}

impl CounterIncrease {
    /// Returns the increase of all series together since the previous page: finite and never negative; `None`
    /// for the first page. Infinite values and NaN are skipped, and so are series beyond `most`.
    pub fn record<'a>(
        &mut self,
        samples: impl IntoIterator<Item = MetricSample<'a>>,
        max_series: usize,
    ) -> Option<f64> {
        let mut next = HashMap::with_capacity(self.series.len());
        let mut increase = 0.0;
        let finite_samples = samples.into_iter().filter(|sample| sample.value.is_finite());
        for MetricSample { labels, value, .. } in finite_samples.take(max_series) {
            let key = hash(labels.as_bytes());
            // A repeated series counts once.
            let Entry::Vacant(vacant) = next.entry(key) else { continue };
            vacant.insert(value);
            if let Some(previous) = self.series.get(&key) {
                increase += if value < *previous { value } else { value - previous };
            }
        }
        self.series = next;
        let had_previous = std::mem::replace(&mut self.has_previous, true);
        had_previous.then_some(increase.max(0.0)).filter(|increase| increase.is_finite())
    }
}

#[cfg(test)]
mod tests {
    use super::super::samples;
    use super::*;

    #[test]
    fn each_series_grows_for_itself() {
        let mut counter = CounterIncrease::default();
        let mut page = |page: &str| counter.record(samples(page), 10);
        assert_eq!(page("a{w=\"1\"} 1e9\na{w=\"2\"} 5e8\n"), None);
        assert_eq!(page("a{w=\"1\"} 1000000100\na{w=\"2\"} 500000050\n"), Some(150.0));
        assert_eq!(page("a{w=\"1\"} 1000000200\na{w=\"2\"} 7\n"), Some(107.0), "one began again");
        assert_eq!(page("a{w=\"1\"} 1000000200\na{w=\"3\"} 1e8\n"), Some(0.0), "one is gone, one is new");
        assert_eq!(page("a{w=\"3\"} 100000004\na{w=\"2\"} 9\n"), Some(4.0), "one is back, and as new");
        assert_eq!(page("a{w=\"3\"} NaN\na{w=\"2\"} 10\na{w=\"2\"} 99\n"), Some(1.0));
        assert_eq!(page("a{w=\"2\"} -5\n"), Some(0.0), "no counter");
        assert_eq!(page(""), Some(0.0));
        page("a -1.7e308\n");
        assert_eq!(page("a 1.7e308\n"), None, "nothing rather than what is infinite");
    }

    #[test]
    fn series_are_bounded() {
        let page = |add: u32| (0..20).map(|n| format!("a{{n=\"{n}\"}} {}\n", n + add)).collect::<String>();
        let mut counter = CounterIncrease::default();
        assert_eq!(counter.record(samples(&page(0)), 5), None);
        assert_eq!(counter.record(samples(&page(1)), 5), Some(5.0));
        assert_eq!(counter.series.len(), 5);
    }
}
