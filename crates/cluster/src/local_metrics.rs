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
        if let Some((before, then)) = self.last.replace((counters, now)) {
            let apart = now.saturating_duration_since(then).as_secs_f64();
            if counters.requests < before.requests || counters.seconds < before.seconds {
                (self.rate, self.latency) = (None, None);
                self.ended_samples.clear();
            } else if apart > 0.0 {
                if self.ended_samples.is_empty() {
                    self.ended_samples.push_back((before.requests, then));
                }
                let rate = self.record_count(counters.requests, now);
                self.rate = Some(rate);
                let ended = (counters.requests - before.requests) as f64;
                let fresh = 1.0 - (-apart / LATENCY_PERIOD.as_secs_f64()).exp();
                if ended > 0.0 {
                    let mean = (counters.seconds - before.seconds) / ended;
                    // A sample that covers few of many requests changes the mean by little.
                    let usual = rate * LATENCY_PERIOD.as_secs_f64();
                    let part = (ended / usual.max(ended)).max(fresh.min(0.1));
                    let kept = self.latency.map_or(mean, |(kept, _)| kept + (mean - kept) * part);
                    self.latency = Some((kept, now));
                }
            } else {
                self.last = Some((before, then));
            }
        }
    }

    /// Records a sample. Returns the requests that ended per second since the last sample that is
    /// [`RATE_PERIOD`] old.
    fn record_count(&mut self, requests: u64, now: Instant) -> f64 {
        self.ended_samples.push_back((requests, now));
        let old = |look: &(u64, Instant)| now.saturating_duration_since(look.1) >= RATE_PERIOD;
        while self.ended_samples.len() > MAX_SAMPLES || self.ended_samples.get(1).is_some_and(old) {
            self.ended_samples.pop_front();
        }
        let (first, since) = self.ended_samples[0];
        (requests - first) as f64 / now.saturating_duration_since(since).as_secs_f64()
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

    fn looks(own: &mut LocalMetrics, start: Instant, looks: &[(f64, u64, f64)]) -> Instant {
        let mut now = start;
        for (at, requests, seconds) in looks {
            now = start + Duration::from_secs_f64(*at);
            own.sample(TrafficCounters { in_flight: 3, requests: *requests, seconds: *seconds }, now);
        }
        now
    }

    #[test]
    fn a_steady_flow_has_its_rate_and_latency() {
        let mut own = LocalMetrics::default();
        let steps: Vec<_> =
            (0..80).map(|step| (f64::from(step) * 0.25, 25 * step as u64, 0.25 * f64::from(step))).collect();
        let now = looks(&mut own, Instant::now(), &steps);
        assert!((own.requests_per_second().unwrap() - 100.0).abs() < 1e-6);
        assert!((own.latency(now).unwrap() - 0.01).abs() < 1e-9);
        assert_eq!(own.in_flight(), Some(3.0));
        assert_eq!(own.latency(now + Duration::from_secs(11)), None);
    }

    #[test]
    fn the_rate_is_that_of_the_last_second() {
        let mut own = LocalMetrics::default();
        // 100 a second for five seconds, none for 50, then 20.
        let ended = |step: u64| if step < 20 { 25 * step } else { 500 + 5 * step.saturating_sub(220) };
        let start = Instant::now();
        let rates: Vec<f64> = (0..240)
            .map(|step| {
                looks(&mut own, start, &[(0.25 * step as f64, ended(step), 0.0)]);
                own.requests_per_second().unwrap_or(0.0)
            })
            .collect();
        for (step, rate) in [(19, 100.0), (24, 0.0), (220, 0.0), (222, 10.0), (224, 20.0), (239, 20.0)] {
            assert!((rates[step] - rate).abs() < 1e-6, "{step}: {}", rates[step]);
        }
        assert!(own.ended_samples.len() <= 6, "{}", own.ended_samples.len());
    }

    #[test]
    fn a_reset_begins_anew() {
        let mut own = LocalMetrics::default();
        let start = Instant::now();
        looks(&mut own, start, &[(0.0, 1000, 10.0), (1.0, 1100, 11.0)]);
        assert!(own.requests_per_second().is_some());
        looks(&mut own, start, &[(2.0, 5, 0.1)]);
        assert_eq!((own.requests_per_second(), own.latency(start)), (None, None));
        let now = looks(&mut own, start, &[(3.0, 15, 0.6)]);
        assert!((own.requests_per_second().unwrap() - 10.0).abs() < 1e-9);
        assert!((own.latency(now).unwrap() - 0.05).abs() < 1e-9);
    }

    #[test]
    fn looks_that_come_at_once_or_late_do_no_harm() {
        let mut own = LocalMetrics::default();
        let start = Instant::now();
        looks(&mut own, start, &[(1.0, 10, 1.0), (1.0, 20, 2.0), (2.0, 30, 3.0)]);
        assert!((own.requests_per_second().unwrap() - 20.0).abs() < 1e-9);
        own.sample(TrafficCounters { in_flight: 0, requests: 40, seconds: 4.0 }, start);
        assert!(own.requests_per_second().unwrap().is_finite());
    }
}
