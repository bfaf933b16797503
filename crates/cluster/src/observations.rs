//! The observations of one member: a value for each name, with its time of measurement and its origin.
//!
//! The age of an observation is the time since its arrival, plus the age that its sender reported (60 s at
//! most). Only this machine's clock is read, so that a jump of another one does no harm. The later
//! measurement counts, in either order of arrival.
//!
//! Each name has a rate for counters, too: its increase per second between the last two values at least a
//! tenth of a second apart. A counter whose value decreases has restarted at zero. For the sum of several
//! counters, the source provides the increase.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::MetricSource;

/// The maximum number of names per member.
pub const MAX_NAMES: usize = 64;

/// The maximum age; larger ones are clamped.
pub const MAX_AGE: Duration = Duration::from_secs(60);

/// The observations of one member.
#[derive(Debug, Default)]
pub(crate) struct ObservationSet(BTreeMap<Box<str>, Observation>);

/// One observation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Observation {
    /// The value, finite.
    pub(crate) value: f64,
    /// The time of measurement.
    pub(crate) measured_at: Instant,
    pub(crate) origin: ObservationOrigin,
    /// The increase per second, once two values are known.
    pub(crate) rate: Option<f64>,
    /// The value and time that the next increase counts from.
    rate_base: (f64, Instant),
    /// The reported increase since then.
    growth_since_base: f64,
}

/// The origin of an observation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct ObservationOrigin {
    pub(crate) source: MetricSource,
    /// Whether it was reported for a host, and so for every member there.
    pub(crate) of_host: bool,
}

impl From<MetricSource> for ObservationOrigin {
    /// Creates the origin of an observation for the member alone.
    fn from(source: MetricSource) -> Self {
        Self { source, of_host: false }
    }
}

/// The increase of a counter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum CounterGrowth {
    /// The increase follows from the values.
    FromValues,
    /// The increase since the previous report, independent of the values; `None` if it is unknown.
    Reported(Option<f64>),
}

/// One number from a monitor.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct MetricSample {
    pub(crate) name: String,
    /// The value, finite.
    pub(crate) value: f64,
    pub(crate) age: Duration,
    pub(crate) growth: CounterGrowth,
}

impl MetricSample {
    /// Creates a figure without a known increase.
    pub(crate) fn new(name: String, value: f64, age: Duration) -> Self {
        Self { name, value, age, growth: CounterGrowth::FromValues }
    }
}

impl ObservationSet {
    /// Records a value measured at `at`. Returns `false` if there are too many names. The oldest one is
    /// dropped to make room if it is older than `life`.
    pub(crate) fn insert(
        &mut self,
        name: &str,
        (value, counter_growth): (f64, CounterGrowth),
        measured_at: Instant,
        origin: ObservationOrigin,
        lifetime: Duration,
    ) -> bool {
        if let Some(observation) = self.0.get_mut(name) {
            observation.update((value, counter_growth), measured_at, origin);
            return true;
        }
        if self.0.len() >= MAX_NAMES {
            let oldest = self.0.iter().min_by_key(|(_, observation)| observation.measured_at);
            match oldest.filter(|(_, observation)| {
                measured_at.saturating_duration_since(observation.measured_at) > lifetime
            }) {
                Some((name, _)) => {
                    let name = name.clone();
                    self.0.remove(&name);
                }
                None => return false,
            }
        }
        self.0.insert(
            name.into(),
            Observation {
                value,
                measured_at,
                origin,
                rate: None,
                rate_base: (value, measured_at),
                growth_since_base: 0.0,
            },
        );
        true
    }

    pub(crate) fn find(&self, name: &str) -> Option<&Observation> {
        self.0.get(name)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &Observation)> {
        self.0.iter().map(|(name, observation)| (&**name, observation))
    }
}

impl Observation {
    fn update(
        &mut self,
        (value, counter_growth): (f64, CounterGrowth),
        measured_at: Instant,
        origin: ObservationOrigin,
    ) {
        if measured_at < self.measured_at {
            return;
        }
        (self.value, self.measured_at, self.origin) = (value, measured_at, origin);
        let (base, base_at) = self.rate_base;
        let elapsed = measured_at.saturating_duration_since(base_at);
        let growth = match counter_growth {
            CounterGrowth::FromValues if value >= base => value - base,
            CounterGrowth::FromValues => value.max(0.0),
            CounterGrowth::Reported(Some(increase)) => {
                self.growth_since_base += increase;
                self.growth_since_base
            }
            CounterGrowth::Reported(None) => {
                (self.rate_base, self.growth_since_base) = ((value, measured_at), 0.0);
                return;
            }
        };
        if elapsed >= MIN_RATE_INTERVAL {
            self.rate = Some(growth / elapsed.as_secs_f64()).filter(|rate| rate.is_finite());
            (self.rate_base, self.growth_since_base) = ((value, measured_at), 0.0);
        }
    }
}

/// The minimum time between the two values of a rate; rates over less are noise.
const MIN_RATE_INTERVAL: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use super::*;

    const LIFE: Duration = Duration::from_secs(10);

    fn sample(value: f64) -> (f64, CounterGrowth) {
        (value, CounterGrowth::FromValues)
    }

    fn at(start: Instant, seconds: f64) -> Instant {
        start + Duration::from_secs_f64(seconds)
    }

    #[test]
    fn the_later_measurement_counts() {
        let start = Instant::now();
        let mut observations = ObservationSet::default();
        assert!(observations.insert("cpu", sample(0.5), at(start, 5.0), MetricSource::Push.into(), LIFE));
        assert!(observations.insert("cpu", sample(0.9), at(start, 4.0), MetricSource::Pull.into(), LIFE));
        let observation = observations.find("cpu").unwrap();
        assert_eq!(
            (observation.value, observation.measured_at, observation.origin.source),
            (0.5, at(start, 5.0), MetricSource::Push)
        );
    }

    #[test]
    fn rates_of_counters_survive_a_reset() {
        let start = Instant::now();
        let mut observations = ObservationSet::default();
        let mut rate = |seconds: f64, value: f64| {
            observations.insert("n", sample(value), at(start, seconds), MetricSource::Push.into(), LIFE);
            observations.find("n").unwrap().rate
        };
        assert_eq!(rate(0.0, 1000.0), None);
        assert_eq!(rate(0.05, 1005.0), None, "too short to tell");
        assert_eq!(rate(2.0, 1100.0), Some(50.0));
        assert_eq!(rate(4.0, 40.0), Some(20.0), "it began again");
        assert_eq!(rate(6.0, 40.0), Some(0.0));
        assert_eq!(rate(8.0, -3.0), Some(0.0));
        rate(10.0, -f64::MAX);
        assert_eq!(rate(12.0, f64::MAX), None, "no rate rather than an infinite one");
    }

    #[test]
    fn who_has_seen_the_parts_of_a_sum_says_how_much_they_have_grown() {
        let start = Instant::now();
        let mut observations = ObservationSet::default();
        let mut rate = |seconds: f64, value: f64, growth: Option<f64>| {
            let reported = (value, CounterGrowth::Reported(growth));
            observations.insert("n", reported, at(start, seconds), MetricSource::Prometheus.into(), LIFE);
            observations.find("n").unwrap().rate
        };
        assert_eq!(rate(0.0, 1.5e9, None), None);
        assert_eq!(rate(2.0, 1.5e9 + 100.0, Some(100.0)), Some(50.0));
        // One of two counters restarts, which removes half of the sum; then a new one appears with a large
        // value.
        assert_eq!(rate(4.0, 1e9 + 100.0, Some(20.0)), Some(10.0));
        assert_eq!(rate(6.0, 9e9, Some(0.0)), Some(0.0));
        assert_eq!(rate(6.05, 9e9, Some(4.0)), Some(0.0), "too short to tell");
        assert_eq!(rate(8.0, 9e9, Some(6.0)), Some(5.0), "and not lost");
        // A new observer has no previous page.
        assert_eq!(rate(10.0, 1.0, None), Some(5.0));
        assert_eq!(rate(11.0, 5.0, Some(4.0)), Some(4.0));
    }

    #[test]
    fn names_are_bounded_and_the_forgotten_make_room() {
        let start = Instant::now();
        let mut observations = ObservationSet::default();
        for number in 0..MAX_NAMES {
            assert!(observations.insert(
                &format!("n{number}"),
                sample(1.0),
                start,
                MetricSource::Push.into(),
                LIFE
            ));
        }
        assert!(!observations.insert("more", sample(1.0), at(start, 9.0), MetricSource::Push.into(), LIFE));
        assert!(
            observations.insert("n7", sample(2.0), at(start, 9.0), MetricSource::Push.into(), LIFE),
            "what is there is renewed"
        );
        assert!(observations.insert("more", sample(1.0), at(start, 11.0), MetricSource::Push.into(), LIFE));
        assert_eq!(observations.iter().count(), MAX_NAMES);
        assert!(observations.find("n7").is_some() && observations.find("more").is_some());
    }
}
