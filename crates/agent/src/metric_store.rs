//! The metric store: each value with its time and its source.
//!
//! Sensors, the scraped page and programs write to it; the pushers and the listener read from it. A program's
//! value takes precedence over a scraped one, and that over a sensor's, as long as it is not older than
//! [`PRECEDENCE_TIME`]. The reason: a program knows best what `cpu` means for it. A value that is not written
//! again is removed after [`VALUE_TTL`].

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::time::Duration;

use crate::change_detector::ChangeDetector;
use crate::name;

/// The largest number of names that are not written by sensors. Together with those of the sensors there are
/// at most 64, which is a balancer's limit per member.
pub(crate) const MAX_NAMES: usize = 40;
/// The time for which a value protects its name from sources of lower precedence.
const PRECEDENCE_TIME: Duration = Duration::from_secs(30);
/// The time after which a value is removed.
const VALUE_TTL: Duration = Duration::from_secs(300);

/// The source of a value, in ascending order of precedence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ValueSource {
    /// A sensor of this agent.
    Sensor,
    /// The scraped page.
    Scraped,
    /// A program, or the meter in this process.
    Reported,
}

impl ValueSource {
    /// Returns the source as one word.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sensor => "sensed",
            Self::Scraped => "scraped",
            Self::Reported => "told",
        }
    }
}

/// A value with its name, age and source.
#[derive(Clone, Debug, PartialEq)]
pub struct MetricValue {
    /// The name, 1 to 64 characters.
    pub name: String,
    /// The value, a finite number.
    pub value: f64,
    /// The time since it was read or reported.
    pub age: Duration,
    /// The source of the value.
    pub source: ValueSource,
}

/// The values by name. `at` and `now` are times of one monotonic clock.
#[derive(Debug, Default)]
pub(crate) struct MetricStore {
    values: BTreeMap<String, StoredValue>,
    write_count: u64,
}

#[derive(Debug)]
struct StoredValue {
    value: f64,
    written_at: Duration,
    source: ValueSource,
    /// The store's write counter when this value was written.
    write_number: u64,
    /// The value at the time of the last report.
    last_reported: f64,
    detector: ChangeDetector,
}

impl MetricStore {
    /// Writes a value. Returns `true` if it has changed significantly since the last report. The range of a
    /// `share` is at least 1.
    ///
    /// # Errors
    /// Returns one sentence if the name or the value is invalid, or if the store is full.
    pub(crate) fn write(
        &mut self,
        name: &str,
        value: f64,
        source: ValueSource,
        at: Duration,
        is_share: bool,
    ) -> Result<bool, String> {
        name::check(name)?;
        if !value.is_finite() || value.abs() > 1e100 {
            return Err(format!("{name}: {value} is no value: give a number"));
        }
        self.expire(at);
        let unsensed_count =
            self.values.values().filter(|stored| stored.source != ValueSource::Sensor).count();
        let is_full = source != ValueSource::Sensor && unsensed_count >= MAX_NAMES;
        self.write_count += 1;
        let write_number = self.write_count;
        match self.values.entry(name.to_owned()) {
            Entry::Vacant(_) if is_full => Err(format!(
                "{name}: {MAX_NAMES} metrics are reported already, the maximum: report fewer names"
            )),
            Entry::Vacant(vacancy) => {
                let detector = ChangeDetector::new(value, if is_share { 1.0 } else { 0.0 });
                // A new value of a program or page is significant.
                vacancy.insert(StoredValue {
                    value,
                    written_at: at,
                    source,
                    write_number,
                    last_reported: value,
                    detector,
                });
                Ok(source != ValueSource::Sensor)
            }
            Entry::Occupied(mut occupied) => {
                let stored = occupied.get_mut();
                // The value is older than the stored one.
                if stored.source == source && at < stored.written_at {
                    return Ok(false);
                }
                if stored.source > source && at.saturating_sub(stored.written_at) < PRECEDENCE_TIME {
                    return Ok(false);
                }
                let is_significant = stored.detector.is_significant(stored.last_reported, value);
                stored.detector.update(value);
                (stored.value, stored.written_at, stored.source, stored.write_number) =
                    (value, at, source, write_number);
                Ok(is_significant)
            }
        }
    }

    /// Records that a report is sent now: later changes are measured from the present values.
    pub(crate) fn mark_reported(&mut self) {
        self.values.values_mut().for_each(|stored| stored.last_reported = stored.value);
    }

    /// Returns the values written after `turn`, and the write counter up to which they are complete.
    pub(crate) fn written_since(&mut self, last_write: u64, now: Duration) -> (Vec<MetricValue>, u64) {
        self.expire(now);
        let newer_values = self.values.iter().filter(|(_, stored)| stored.write_number > last_write);
        let to_metric_value = |(name, stored): (&String, &StoredValue)| MetricValue {
            name: name.clone(),
            value: stored.value,
            age: now.saturating_sub(stored.written_at),
            source: stored.source,
        };
        (newer_values.map(to_metric_value).collect(), self.write_count)
    }

    fn expire(&mut self, now: Duration) {
        self.values.retain(|_, stored| now.saturating_sub(stored.written_at) < VALUE_TTL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn current_values(store: &mut MetricStore, now: Duration) -> Vec<(String, f64, u64)> {
        let (values, _) = store.written_since(0, now);
        values.into_iter().map(|value| (value.name, value.value, value.age.as_secs())).collect()
    }

    #[test]
    fn who_knows_better_is_not_overruled_for_a_while() {
        let mut store = MetricStore::default();
        assert_eq!(store.write("cpu", 0.2, ValueSource::Sensor, at(0), true), Ok(false));
        assert_eq!(store.write("cpu", 0.8, ValueSource::Reported, at(1), false), Ok(true));
        assert_eq!(store.write("cpu", 0.3, ValueSource::Sensor, at(2), true), Ok(false));
        assert_eq!(current_values(&mut store, at(3)), [("cpu".to_owned(), 0.8, 2)]);
        store.write("cpu", 0.3, ValueSource::Sensor, at(31), true).unwrap();
        assert_eq!(current_values(&mut store, at(31)), [("cpu".to_owned(), 0.3, 0)]);
    }

    #[test]
    fn what_is_older_comes_too_late() {
        let mut store = MetricStore::default();
        assert_eq!(store.write("q", 100.0, ValueSource::Reported, at(50), false), Ok(true));
        assert_eq!(store.write("q", 1.0, ValueSource::Reported, at(20), false), Ok(false));
        assert_eq!(current_values(&mut store, at(50)), [("q".into(), 100.0, 0)]);
    }

    #[test]
    fn what_nobody_says_again_is_forgotten() {
        let mut store = MetricStore::default();
        store.write("a", 1.0, ValueSource::Reported, at(0), false).unwrap();
        store.write("b", 1.0, ValueSource::Reported, at(100), false).unwrap();
        assert_eq!(current_values(&mut store, at(299)).len(), 2);
        assert_eq!(current_values(&mut store, at(300)), [("b".to_owned(), 1.0, 200)]);
    }

    #[test]
    fn only_what_is_new_is_told_again() {
        let mut store = MetricStore::default();
        store.write("a", 1.0, ValueSource::Reported, at(0), false).unwrap();
        let (first, write_number) = store.written_since(0, at(1));
        assert_eq!(first.len(), 1);
        assert_eq!(store.written_since(write_number, at(1)).0, []);
        store.write("b", 2.0, ValueSource::Reported, at(2), false).unwrap();
        let (second, _) = store.written_since(write_number, at(2));
        assert_eq!(second.iter().map(|value| value.name.as_str()).collect::<Vec<_>>(), ["b"]);
    }

    #[test]
    fn moves_matter_against_what_was_told() {
        let mut store = MetricStore::default();
        let mut write = |value| store.write("cpu", value, ValueSource::Sensor, at(0), true).unwrap();
        write(0.1);
        assert!(!write(0.12));
        assert!(write(0.5));
        store.mark_reported();
        assert!(!store.write("cpu", 0.5, ValueSource::Sensor, at(0), true).unwrap());
    }

    #[test]
    fn it_has_bounds() {
        let mut store = MetricStore::default();
        for n in 0..MAX_NAMES {
            store.write(&format!("n{n}"), 1.0, ValueSource::Reported, at(0), false).unwrap();
        }
        assert!(
            store.write("more", 1.0, ValueSource::Reported, at(0), false).unwrap_err().contains("40 metrics")
        );
        assert!(
            store.write("cpu", 1.0, ValueSource::Sensor, at(0), true).is_ok(),
            "sensors have room of their own"
        );
        assert!(store.write("n1", 2.0, ValueSource::Reported, at(0), false).is_ok());
        for wrong in [f64::NAN, f64::INFINITY, 1e300] {
            assert!(store.write("n1", wrong, ValueSource::Reported, at(0), false).is_err());
        }
        assert!(store.write("no name", 1.0, ValueSource::Reported, at(0), false).is_err());
    }
}
