//! What was told of one member: a number for each name, when it was measured, how it came here.
//!
//! Ages are ours: a fact is as old as its arrival, plus the age that the sender says it had then (60 s at most).
//! No clock but this machine's is read, so one that jumps elsewhere does no harm. Of two, the one measured later
//! counts, in whichever order they come.
//!
//! Each name has a rate, too, for counters: its growth per second between the last two that lie a tenth of a
//! second apart. A counter that falls has begun again at zero.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::Source;

/// Names per member.
pub const LIMIT_NAMES: usize = 64;

/// Ages above this one count as this one.
pub const LIMIT_AGE: Duration = Duration::from_secs(60);

/// The facts of one member.
#[derive(Debug, Default)]
pub(crate) struct Facts(BTreeMap<Box<str>, Fact>);

/// One of them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Fact {
    /// Finite.
    pub(crate) value: f64,
    /// When it was measured.
    pub(crate) at: Instant,
    pub(crate) source: Source,
    /// Growth per second, once two are known.
    pub(crate) rate: Option<f64>,
    /// What the next growth is measured from.
    base: (f64, Instant),
}

impl Facts {
    /// Takes what was measured at `at`. False if there are too many names: one that nobody told for `life` makes
    /// room.
    pub(crate) fn insert(
        &mut self,
        name: &str,
        value: f64,
        at: Instant,
        source: Source,
        life: Duration,
    ) -> bool {
        if let Some(fact) = self.0.get_mut(name) {
            fact.renew(value, at, source);
            return true;
        }
        if self.0.len() >= LIMIT_NAMES {
            let oldest = self.0.iter().min_by_key(|(_, fact)| fact.at);
            match oldest.filter(|(_, fact)| at.saturating_duration_since(fact.at) > life) {
                Some((name, _)) => {
                    let name = name.clone();
                    self.0.remove(&name);
                }
                None => return false,
            }
        }
        self.0.insert(name.into(), Fact { value, at, source, rate: None, base: (value, at) });
        true
    }

    pub(crate) fn find(&self, name: &str) -> Option<&Fact> {
        self.0.get(name)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &Fact)> {
        self.0.iter().map(|(name, fact)| (&**name, fact))
    }
}

impl Fact {
    fn renew(&mut self, value: f64, at: Instant, source: Source) {
        if at < self.at {
            return;
        }
        let (base, since) = self.base;
        let apart = at.saturating_duration_since(since);
        if apart >= APART {
            let growth = if value >= base { value - base } else { value.max(0.0) };
            self.rate = Some(growth / apart.as_secs_f64()).filter(|rate| rate.is_finite());
            self.base = (value, at);
        }
        (self.value, self.at, self.source) = (value, at, source);
    }
}

/// Rates over less are noise.
const APART: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use super::*;

    const LIFE: Duration = Duration::from_secs(10);

    fn at(start: Instant, seconds: f64) -> Instant {
        start + Duration::from_secs_f64(seconds)
    }

    #[test]
    fn the_later_measurement_counts() {
        let start = Instant::now();
        let mut facts = Facts::default();
        assert!(facts.insert("cpu", 0.5, at(start, 5.0), Source::Push, LIFE));
        assert!(facts.insert("cpu", 0.9, at(start, 4.0), Source::Pull, LIFE));
        let fact = facts.find("cpu").unwrap();
        assert_eq!((fact.value, fact.at, fact.source), (0.5, at(start, 5.0), Source::Push));
    }

    #[test]
    fn rates_of_counters_survive_a_reset() {
        let start = Instant::now();
        let mut facts = Facts::default();
        let mut rate = |seconds: f64, value: f64| {
            facts.insert("n", value, at(start, seconds), Source::Push, LIFE);
            facts.find("n").unwrap().rate
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
    fn names_are_bounded_and_the_forgotten_make_room() {
        let start = Instant::now();
        let mut facts = Facts::default();
        for number in 0..LIMIT_NAMES {
            assert!(facts.insert(&format!("n{number}"), 1.0, start, Source::Push, LIFE));
        }
        assert!(!facts.insert("more", 1.0, at(start, 9.0), Source::Push, LIFE));
        assert!(facts.insert("n7", 2.0, at(start, 9.0), Source::Push, LIFE), "what is there is renewed");
        assert!(facts.insert("more", 1.0, at(start, 11.0), Source::Push, LIFE));
        assert_eq!(facts.iter().count(), LIMIT_NAMES);
        assert!(facts.find("n7").is_some() && facts.find("more").is_some());
    }
}
