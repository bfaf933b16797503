//! Scrapes values from a page in Prometheus text format that the server provides.
//!
//! A counter becomes a rate like that of Prometheus' `rate()`, series by series: see [`CounterIncrease`].

use std::sync::Arc;
use std::time::Duration;

use hyper::Method;
use plimsoll_wire::prometheus::{CounterIncrease, MAX_SERIES, MetricSample, samples};
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::http_client::{HttpClient, ServerUrl};
use crate::metric::ScrapeMetric;
use crate::metric_store::ValueSource;
use crate::sensor::UnreadSource;
use crate::state::AgentState;

/// The largest page in bytes.
const MAX_PAGE: usize = 8 << 20;

/// A page and the metrics to read from it.
#[derive(Clone, Debug)]
pub struct ScrapeConfig {
    /// The URL of the page.
    pub url: ServerUrl,
    /// The metrics, at least one.
    pub metrics: Vec<ScrapeMetric>,
}

/// The state of a periodic scrape.
pub(crate) struct Scraper {
    client: HttpClient,
    url: ServerUrl,
    counters: Vec<(ScrapeMetric, RateCounter)>,
}

impl Scraper {
    pub(crate) fn new(config: ScrapeConfig) -> Self {
        let ScrapeConfig { url, metrics } = config;
        let counters = metrics.into_iter().map(|metric| (metric, RateCounter::default())).collect();
        Self { client: HttpClient::new(url.clone()), url, counters }
    }

    /// Reads the page every `period`, until it is cancelled.
    pub(crate) async fn run(mut self, shared: Arc<AgentState>, period: Duration) {
        let mut ticks = interval(period);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.read(&shared).await;
        }
    }

    /// Reads the page once.
    pub(crate) async fn read(&mut self, shared: &AgentState) {
        let unread_source = |what: String, why: String| UnreadSource { sensor: "scrape", what, why };
        let reason = match self.client.send_request(Method::GET, None, MAX_PAGE).await {
            Ok((status, page)) if status.is_success() => {
                let page = String::from_utf8_lossy(&page);
                let missing = self
                    .write_values(shared, &page)
                    .into_iter()
                    .map(|(source, reason)| unread_source(source, reason));
                return shared.set_unread_metrics(missing.collect());
            }
            Ok((status, _)) => format!("it answered {}", status.as_u16()),
            Err(failure) => failure.to_string(),
        };
        shared.set_unread_metrics(vec![unread_source(self.url.to_string(), reason)]);
    }

    /// Writes the values found on a page. Returns the metrics that could not be read, with the reason.
    fn write_values(&mut self, shared: &AgentState, page: &str) -> Vec<(String, String)> {
        let now = Instant::now();
        let mut matching_samples: Vec<Vec<MetricSample<'_>>> =
            self.counters.iter().map(|_| Vec::new()).collect();
        for sample in samples(page).filter(|sample| sample.value.is_finite()) {
            for ((metric, _), matches) in self.counters.iter().zip(&mut matching_samples) {
                if matches.len() < MAX_SERIES && metric.matches(&sample) {
                    matches.push(sample);
                }
            }
        }
        let mut missing = Vec::new();
        for ((metric, counter), matching) in self.counters.iter_mut().zip(matching_samples) {
            if matching.is_empty() {
                missing.push((format!("{metric} on {}", self.url), "there is no such series".to_owned()));
                continue;
            }
            let value = if metric.rate {
                counter.rate(now, &matching)
            } else {
                Some(matching.iter().map(|sample| sample.value).sum())
            };
            if let Some(value) = value
                && let Err(error) =
                    shared.write(&metric.name, value, ValueSource::Scraped, Duration::ZERO, false)
            {
                missing.push((format!("{metric} on {}", self.url), error));
            }
        }
        missing
    }
}

/// A counter with the time of its last reading.
#[derive(Default)]
struct RateCounter {
    last_read: Option<Instant>,
    increase: CounterIncrease,
}

impl RateCounter {
    /// Returns the growth per second since the last reading; `None` for the first one.
    fn rate(&mut self, now: Instant, samples: &[MetricSample<'_>]) -> Option<f64> {
        let increase = self.increase.record(samples.iter().copied(), MAX_SERIES);
        let seconds = now.duration_since(self.last_read.replace(now)?).as_secs_f64();
        increase.filter(|_| seconds > 0.0).map(|increase| increase / seconds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn instant_after(seconds: u64) -> Instant {
        tokio::time::advance(Duration::from_secs(seconds)).await;
        Instant::now()
    }

    #[tokio::test(start_paused = true)]
    async fn counters_become_rates() {
        let mut counter = RateCounter::default();
        let rate_of_page = |page: &str, counter: &mut RateCounter, now| {
            counter.rate(now, &samples(page).collect::<Vec<_>>())
        };
        assert_eq!(
            rate_of_page("a{x=\"1\"} 100\na{x=\"2\"} 50\n", &mut counter, instant_after(1).await),
            None
        );
        assert_eq!(
            rate_of_page("a{x=\"1\"} 120\na{x=\"2\"} 60\n", &mut counter, instant_after(2).await),
            Some(15.0)
        );
        // One series was reset, one is new, one is gone.
        assert_eq!(
            rate_of_page("a{x=\"1\"} 10\na{x=\"3\"} 1000\n", &mut counter, instant_after(2).await),
            Some(5.0)
        );
        assert_eq!(
            rate_of_page("a{x=\"1\"} 10\na{x=\"3\"} 1004\n", &mut counter, instant_after(1).await),
            Some(4.0)
        );
        assert_eq!(rate_of_page("a 1\n", &mut counter, Instant::now()), None, "no time has passed");
    }

    #[tokio::test(start_paused = true)]
    async fn a_page_gives_numbers_and_says_what_it_lacks() {
        let shared = AgentState::new(None, None, Vec::new(), &[]);
        let metrics = ["queue=jobs", "requests_per_second=rate(http_requests_total)", "nothing"];
        let metrics = metrics.map(|metric| metric.parse().unwrap()).to_vec();
        let mut scraper =
            Scraper::new(ScrapeConfig { url: "http://127.0.0.1:1/metrics".parse().unwrap(), metrics });
        scraper.write_values(&shared, "jobs 3\nhttp_requests_total 100\n");
        instant_after(2).await;
        let missing =
            scraper.write_values(&shared, "jobs 4\njobs{x=\"y\"} 1\nhttp_requests_total 300\nnothing NaN\n");
        assert_eq!(missing.len(), 1);
        assert!(missing[0].0.starts_with("nothing on http://"), "{missing:?}");
        let (values, _) = shared.machine.metrics().written_since(0, shared.now());
        let values: Vec<_> = values.iter().map(|value| (value.name.as_str(), value.value)).collect();
        assert_eq!(values, [("queue", 5.0), ("requests_per_second", 100.0)]);
    }
}
