//! The balancer's own observations of a member as figures for expressions: requests in flight, requests per
//! second, latency.
//!
//! The counters only grow. The rate covers the last second and nothing before, so it does not include
//! sessions that moved earlier. The latency is a moving average over [`LATENCY_PERIOD`], weighted by the
//! requests that each sample covers. Counters that decrease belong to a member that left and returned.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// The counters of one member in the data plane.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TrafficCounters {
    /// Requests, sessions or flows in flight.
    pub in_flight: u32,
    /// Those that have ended since the member joined.
    pub requests: u64,
    /// The sum of their durations, in seconds.
    pub seconds: f64,
}

/// The figures of one member.
#[derive(Debug, Default)]
pub(crate) struct LocalMetrics {
    last: Option<(TrafficCounters, Instant)>,
    /// The number of ended requests at each sample of the last [`RATE_PERIOD`], and at one before it.
    ended_samples: VecDeque<(u64, Instant)>,
    rate: Option<f64>,
    /// The mean duration in seconds, and the time when a request last ended.
    latency: Option<(f64, Instant)>,
}

impl LocalMetrics {
    /// Records a sample of the counters.
    pub(crate) fn sample(&mut self, counters: TrafficCounters, now: Instant) {
        if let Some((previous_counters, previous_at)) = self.last.replace((counters, now)) {
            let elapsed = now.saturating_duration_since(previous_at).as_secs_f64();
            if counters.requests < previous_counters.requests || counters.seconds < previous_counters.seconds
            {
                (self.rate, self.latency) = (None, None);
                self.ended_samples.clear();
            } else if elapsed > 0.0 {
                if self.ended_samples.is_empty() {
                    self.ended_samples.push_back((previous_counters.requests, previous_at));
                }
                let rate = self.record_count(counters.requests, now);
                self.rate = Some(rate);
                let ended = (counters.requests - previous_counters.requests) as f64;
                let elapsed_weight = 1.0 - (-elapsed / LATENCY_PERIOD.as_secs_f64()).exp();
                if ended > 0.0 {
                    let mean = (counters.seconds - previous_counters.seconds) / ended;
                    // A sample that covers few of many requests changes the mean by little.
                    let expected_requests = rate * LATENCY_PERIOD.as_secs_f64();
                    let weight = (ended / expected_requests.max(ended)).max(elapsed_weight.min(0.1));
                    let smoothed = self
                        .latency
                        .map_or(mean, |(previous_mean, _)| previous_mean + (mean - previous_mean) * weight);
                    self.latency = Some((smoothed, now));
                }
            } else {
                self.last = Some((previous_counters, previous_at));
            }
        }
    }

    /// Records a sample. Returns the requests that ended per second since the last sample that is
    /// [`RATE_PERIOD`] old.
    fn record_count(&mut self, requests: u64, now: Instant) -> f64 {
        self.ended_samples.push_back((requests, now));
        let is_old = |sample: &(u64, Instant)| now.saturating_duration_since(sample.1) >= RATE_PERIOD;
        while self.ended_samples.len() > MAX_SAMPLES || self.ended_samples.get(1).is_some_and(is_old) {
            self.ended_samples.pop_front();
        }
        let (first_count, first_at) = self.ended_samples[0];
        (requests - first_count) as f64 / now.saturating_duration_since(first_at).as_secs_f64()
    }

    /// Returns the requests in flight at the last sample.
    pub(crate) fn in_flight(&self) -> Option<f64> {
        self.last.map(|(counters, _)| f64::from(counters.in_flight))
    }

    /// Returns the requests that end per second.
    pub(crate) fn requests_per_second(&self) -> Option<f64> {
        self.rate
    }

    /// Returns the mean duration of a request in seconds; `None` if none has ended for a while.
    pub(crate) fn latency(&self, now: Instant) -> Option<f64> {
        let (mean, at) = self.latency?;
        (now.saturating_duration_since(at) <= LATENCY_LIFETIME).then_some(mean)
    }
}

/// The period of the rate, less the time between two samples.
const RATE_PERIOD: Duration = Duration::from_millis(900);

/// The maximum number of stored samples.
const MAX_SAMPLES: usize = 64;

/// The period of the latency average.
const LATENCY_PERIOD: Duration = Duration::from_secs(2);

/// The time without a response after which the last latency is discarded.
const LATENCY_LIFETIME: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    fn feed_samples(metrics: &mut LocalMetrics, start: Instant, samples: &[(f64, u64, f64)]) -> Instant {
        let mut now = start;
        for (seconds_since_start, requests, seconds) in samples {
            now = start + Duration::from_secs_f64(*seconds_since_start);
            metrics.sample(TrafficCounters { in_flight: 3, requests: *requests, seconds: *seconds }, now);
        }
        now
    }

    #[test]
    fn a_steady_flow_has_its_rate_and_latency() {
        let mut metrics = LocalMetrics::default();
        let steps: Vec<_> =
            (0..80).map(|step| (f64::from(step) * 0.25, 25 * step as u64, 0.25 * f64::from(step))).collect();
        let now = feed_samples(&mut metrics, Instant::now(), &steps);
        assert!((metrics.requests_per_second().unwrap() - 100.0).abs() < 1e-6);
        assert!((metrics.latency(now).unwrap() - 0.01).abs() < 1e-9);
        assert_eq!(metrics.in_flight(), Some(3.0));
        assert_eq!(metrics.latency(now + Duration::from_secs(11)), None);
    }

    #[test]
    fn the_rate_is_that_of_the_last_second() {
        let mut metrics = LocalMetrics::default();
        // 100 a second for five seconds, none for 50, then 20.
        let ended = |step: u64| if step < 20 { 25 * step } else { 500 + 5 * step.saturating_sub(220) };
        let start = Instant::now();
        let rates: Vec<f64> = (0..240)
            .map(|step| {
                feed_samples(&mut metrics, start, &[(0.25 * step as f64, ended(step), 0.0)]);
                metrics.requests_per_second().unwrap_or(0.0)
            })
            .collect();
        for (step, rate) in [(19, 100.0), (24, 0.0), (220, 0.0), (222, 10.0), (224, 20.0), (239, 20.0)] {
            assert!((rates[step] - rate).abs() < 1e-6, "{step}: {}", rates[step]);
        }
        assert!(metrics.ended_samples.len() <= 6, "{}", metrics.ended_samples.len());
    }

    #[test]
    fn a_reset_begins_anew() {
        let mut metrics = LocalMetrics::default();
        let start = Instant::now();
        feed_samples(&mut metrics, start, &[(0.0, 1000, 10.0), (1.0, 1100, 11.0)]);
        assert!(metrics.requests_per_second().is_some());
        feed_samples(&mut metrics, start, &[(2.0, 5, 0.1)]);
        assert_eq!((metrics.requests_per_second(), metrics.latency(start)), (None, None));
        let now = feed_samples(&mut metrics, start, &[(3.0, 15, 0.6)]);
        assert!((metrics.requests_per_second().unwrap() - 10.0).abs() < 1e-9);
        assert!((metrics.latency(now).unwrap() - 0.05).abs() < 1e-9);
    }

    #[test]
    fn looks_that_come_at_once_or_late_do_no_harm() {
        let mut metrics = LocalMetrics::default();
        let start = Instant::now();
        feed_samples(&mut metrics, start, &[(1.0, 10, 1.0), (1.0, 20, 2.0), (2.0, 30, 3.0)]);
        assert!((metrics.requests_per_second().unwrap() - 20.0).abs() < 1e-9);
        metrics.sample(TrafficCounters { in_flight: 0, requests: 40, seconds: 4.0 }, start);
        assert!(metrics.requests_per_second().unwrap().is_finite());
    }
}
