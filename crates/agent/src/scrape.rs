//! Scrapes values from a page in Prometheus text format that the server provides.
//!
//! A counter becomes a rate like that of Prometheus' `rate()`, series by series: see [`Growth`].

use std::sync::Arc;
use std::time::Duration;

use hyper::Method;
use plimsoll_wire::prometheus::{Growth, SERIES, Sample, samples};
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::board::Source;
use crate::link::{Link, Url};
use crate::metric::Metric;
use crate::sensor::Unread;
use crate::shared::Shared;

/// The largest page in bytes.
const PAGE: usize = 8 << 20;

/// A page and the metrics to read from it.
#[derive(Clone, Debug)]
pub struct Scrape {
    /// The URL of the page.
    pub url: Url,
    /// The metrics, at least one.
    pub metrics: Vec<Metric>,
}

/// The state of a periodic scrape.
pub(crate) struct Scraper {
    link: Link,
    url: Url,
    counters: Vec<(Metric, Counter)>,
}

impl Scraper {
    pub(crate) fn new(scrape: Scrape) -> Self {
        let Scrape { url, metrics } = scrape;
        let counters = metrics.into_iter().map(|metric| (metric, Counter::default())).collect();
        Self { link: Link::new(url.clone()), url, counters }
    }

    /// Reads the page every `period`, until it is cancelled.
    pub(crate) async fn run(mut self, shared: Arc<Shared>, period: Duration) {
        let mut ticks = interval(period);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.read(&shared).await;
        }
    }

    /// Reads the page once.
    pub(crate) async fn read(&mut self, shared: &Shared) {
        let unread = |what: String, why: String| Unread { sensor: "scrape", what, why };
        let why = match self.link.ask(Method::GET, None, PAGE).await {
            Ok((status, page)) if status.is_success() => {
                let page = String::from_utf8_lossy(&page);
                let missing = self.take(shared, &page).into_iter().map(|(what, why)| unread(what, why));
                return shared.unread_on_page(missing.collect());
            }
            Ok((status, _)) => format!("it answered {}", status.as_u16()),
            Err(trouble) => trouble.to_string(),
        };
        shared.unread_on_page(vec![unread(self.url.to_string(), why)]);
    }

    /// Writes the values found on a page. Returns the metrics that could not be read, with the reason.
    fn take(&mut self, shared: &Shared, page: &str) -> Vec<(String, String)> {
        let now = Instant::now();
        let mut found: Vec<Vec<Sample<'_>>> = self.counters.iter().map(|_| Vec::new()).collect();
        for sample in samples(page).filter(|sample| sample.value.is_finite()) {
            for ((metric, _), found) in self.counters.iter().zip(&mut found) {
                if found.len() < SERIES && metric.fits(&sample) {
                    found.push(sample);
                }
            }
        }
        let mut missing = Vec::new();
        for ((metric, counter), fitting) in self.counters.iter_mut().zip(found) {
            if fitting.is_empty() {
                missing.push((format!("{metric} on {}", self.url), "there is no such series".to_owned()));
                continue;
            }
            let value = if metric.rate {
                counter.rate(now, &fitting)
            } else {
                Some(fitting.iter().map(|sample| sample.value).sum())
            };
            if let Some(value) = value
                && let Err(why) = shared.write(&metric.name, value, Source::Scraped, Duration::ZERO, false)
            {
                missing.push((format!("{metric} on {}", self.url), why));
            }
        }
        missing
    }
}

/// A counter with the time of its last reading.
#[derive(Default)]
struct Counter {
    seen: Option<Instant>,
    growth: Growth,
}

impl Counter {
    /// Returns the growth per second since the last reading; `None` for the first one.
    fn rate(&mut self, now: Instant, samples: &[Sample<'_>]) -> Option<f64> {
        let grown = self.growth.take(samples.iter().copied(), SERIES);
        let seconds = now.duration_since(self.seen.replace(now)?).as_secs_f64();
        grown.filter(|_| seconds > 0.0).map(|grown| grown / seconds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn after(seconds: u64) -> Instant {
        tokio::time::advance(Duration::from_secs(seconds)).await;
        Instant::now()
    }

    #[tokio::test(start_paused = true)]
    async fn counters_become_rates() {
        let mut counter = Counter::default();
        let page =
            |page: &str, counter: &mut Counter, now| counter.rate(now, &samples(page).collect::<Vec<_>>());
        assert_eq!(page("a{x=\"1\"} 100\na{x=\"2\"} 50\n", &mut counter, after(1).await), None);
        assert_eq!(page("a{x=\"1\"} 120\na{x=\"2\"} 60\n", &mut counter, after(2).await), Some(15.0));
        // One series was reset, one is new, one is gone.
        assert_eq!(page("a{x=\"1\"} 10\na{x=\"3\"} 1000\n", &mut counter, after(2).await), Some(5.0));
        assert_eq!(page("a{x=\"1\"} 10\na{x=\"3\"} 1004\n", &mut counter, after(1).await), Some(4.0));
        assert_eq!(page("a 1\n", &mut counter, Instant::now()), None, "no time has passed");
    }

    #[tokio::test(start_paused = true)]
    async fn a_page_gives_numbers_and_says_what_it_lacks() {
        let shared = Shared::new(None, None, Vec::new(), &[]);
        let metrics = ["queue=jobs", "requests_per_second=rate(http_requests_total)", "nothing"];
        let metrics = metrics.map(|metric| metric.parse().unwrap()).to_vec();
        let mut scraper =
            Scraper::new(Scrape { url: "http://127.0.0.1:1/metrics".parse().unwrap(), metrics });
        scraper.take(&shared, "jobs 3\nhttp_requests_total 100\n");
        after(2).await;
        let missing =
            scraper.take(&shared, "jobs 4\njobs{x=\"y\"} 1\nhttp_requests_total 300\nnothing NaN\n");
        assert_eq!(missing.len(), 1);
        assert!(missing[0].0.starts_with("nothing on http://"), "{missing:?}");
        let (values, _) = shared.whole.board().since(0, shared.now());
        let values: Vec<_> = values.iter().map(|value| (value.name.as_str(), value.value)).collect();
        assert_eq!(values, [("queue", 5.0), ("requests_per_second", 100.0)]);
    }
}
