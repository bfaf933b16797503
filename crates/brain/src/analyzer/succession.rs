//! The handoff of a group to the next process: the facts of each member, by its name.
//!
//! Both processes count time from the same moment, so ages, ejections and ramps continue unchanged.
//! Handed-off state is treated like input from the network: implausible values are left out, and a member
//! without state is a new one. The next reports raise alerts again.

use alloc::sync::Arc;

use serde::{Deserialize, Serialize};

use super::effective::Reports;
use super::health::{Health, Verdict};
use super::loads::Work;
use super::operators::Drainer;
use super::outlier::Ejection;
use super::{Analyzer, Entry};
use crate::member::concurrency::ConcurrencyLimit;
use crate::member::past::Past as Vital;
use crate::{Load, State, Time};

/// The handed-off state of a member beyond its configuration.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Past {
    draining: bool,
    drainer: Drainer,
    disabled: bool,
    health: Option<Health>,
    ejection: Ejection,
    ramp: Option<Time>,
    load: Option<Load>,
    reports: Option<Reports>,
    work: Option<Work>,
    outside: Option<f64>,
    state: Option<State>,
    since: Time,
    limit: ConcurrencyLimit,
    vitals: Vital,
}

impl Analyzer {
    /// Returns the state of each member, by name.
    pub fn past(&self) -> impl Iterator<Item = (&Arc<str>, Past)> {
        self.entries.iter().zip(&self.spec.members).map(|(entry, spec)| (&spec.name, entry.past()))
    }

    /// Restores the state from the previous process; `past` returns it by the name of the member. It is to be
    /// called before the first choice.
    pub fn recall(&mut self, mut past: impl FnMut(&str) -> Option<Past>, now: Time) {
        self.advance(now);
        let (now, checks, outside) = (self.now, self.spec.health.is_some(), self.outside());
        for (entry, spec) in self.entries.iter_mut().zip(&self.spec.members) {
            if let Some(past) = past(&spec.name) {
                entry.recall(past, checks, outside, now);
            }
        }
        // Load reports to that process are as good: the first request of each core already uses them.
        if self.entries.iter().any(|entry| entry.vitals.heard.view().is_some()) {
            self.company.spoke();
        }
        self.index();
        self.bound_ejections();
        for place in 0..self.entries.len() {
            if let Some(until) = self.entries[place].ejection.until {
                self.wake_at(until);
            }
            if let Some(since) = self.entries[place].ramp {
                self.grow(place, since);
            }
            self.age(place);
        }
        self.stale = true;
        self.survey();
    }
}

impl Entry {
    fn past(&self) -> Past {
        Past {
            draining: self.draining,
            drainer: self.drainer,
            disabled: self.disabled,
            health: Some(self.health.clone()),
            ejection: self.ejection.clone(),
            ramp: self.ramp,
            load: self.load,
            reports: self.reports.clone(),
            work: self.work,
            outside: self.outside,
            state: Some(self.state),
            since: self.since,
            limit: self.limit.past(),
            vitals: self.vitals.past(),
        }
    }

    /// Restores the state of a member. `checks`: whether its health is checked now. `outside`: whether
    /// weights come from outside.
    fn recall(&mut self, past: Past, checks: bool, outside: bool, now: Time) {
        self.vitals.recall(&past.vitals, now);
        self.limit.recall(past.limit);
        self.totals = None;
        (self.draining, self.drainer, self.disabled) = (past.draining, past.drainer, past.disabled);
        // No check of this process has ended yet that would count for more.
        if let Some(health) = past.health.filter(|health| checks && health.verdict != Verdict::Unchecked) {
            self.health = health;
        }
        self.ejection = past.ejection;
        let sound = |value: f64| value.is_finite() && value >= 0.0;
        self.load = past.load.filter(|load| sound(load.value) && load.at <= now);
        self.reports = past.reports.and_then(|reports| reports.recalled(now));
        self.work = past.work.and_then(|work| work.recalled(now));
        self.outside = past.outside.filter(|weight| outside && sound(*weight));
        let usable = match self.health.verdict {
            _ if self.disabled => Err(State::Disabled),
            _ if self.drained() => Err(State::Draining),
            Verdict::Unchecked => Err(State::Unchecked),
            Verdict::Down => Err(State::Down),
            Verdict::Up if self.ejection.until.is_some() => Err(State::Ejected),
            Verdict::Up => Ok(()),
        };
        self.ramp = past.ramp.filter(|since| usable.is_ok() && *since <= now);
        self.original &= usable == Err(State::Unchecked);
        let growing = if self.ramp.is_some() { State::SlowStart } else { State::Up };
        self.state = usable.err().unwrap_or(growing);
        self.since = if past.state == Some(self.state) { past.since.min(now) } else { now };
    }
}

#[cfg(test)]
mod tests {
    use alloc::collections::BTreeMap;
    use alloc::string::String;
    use alloc::vec::Vec;
    use core::time::Duration;

    use super::*;
    use crate::analyzer::{GroupSpec, HealthSpec, MemberSpec, OutlierSpec, WhenAllDown};
    use crate::meter::Reading;
    use crate::{Ask, Choice, Hand, Knobs, MemberId, strategy};

    const NAMES: [&str; 4] = ["a:1", "b:1", "c:1", "d:1"];

    fn group() -> GroupSpec {
        let member = |name: &str| MemberSpec {
            name: name.into(),
            address: ([127, 0, 0, 1], 80).into(),
            capacity: 1.0,
            limit: u32::MAX,
            leaving: false,
            checked: false,
        };
        let least = strategy::find("least_connections").unwrap();
        GroupSpec {
            name: "web".into(),
            members: NAMES.iter().map(|name| member(name)).collect(),
            strategy: least,
            knobs: Knobs::defaults(least),
            slow_start: Duration::from_secs(10),
            when_all_down: WhenAllDown::Reject,
            admission: None,
            objective: None,
            aperture: None,
            health: Some(HealthSpec { rise: 2, fall: 3 }),
            outlier: Some(OutlierSpec {
                false_alarm: 1e-6,
                consecutive: 5,
                interval: Duration::from_secs(10),
                deviations: 1.9,
                min_requests: 100,
                ejection: Duration::from_secs(10),
                max_ejection: Duration::from_secs(300),
                max_ejected: 0.5,
            }),
        }
    }

    fn states(analyzer: &Analyzer) -> Vec<State> {
        analyzer.entries.iter().map(|entry| entry.state).collect()
    }

    fn ids(analyzer: &Analyzer) -> Vec<MemberId> {
        analyzer.members().map(|(id, ..)| id).collect()
    }

    /// Returns the handed-off state of a group, through JSON.
    fn left(analyzer: &Analyzer) -> BTreeMap<String, String> {
        analyzer
            .past()
            .map(|(name, past)| ((&**name).into(), serde_json::to_string(&past).unwrap()))
            .collect()
    }

    fn taken(left: &BTreeMap<String, String>, spec: GroupSpec, now: Time) -> Analyzer {
        let mut analyzer = Analyzer::new(spec, now);
        analyzer.recall(|name| serde_json::from_str(left.get(name)?).ok(), now);
        analyzer
    }

    fn at(seconds: u64) -> Time {
        Time(seconds * 1_000_000_000)
    }

    #[test]
    fn members_are_as_they_were() {
        let mut before = Analyzer::new(group(), at(0));
        for id in ids(&before) {
            before.handle_probe(id, Ok(()), at(1));
        }
        let of = ids(&before);
        before.drain_by("a:1", Drainer::Scaler, at(2)).unwrap();
        before.handle_streak(of[1], at(2));
        for _ in 0..3 {
            before.handle_probe(of[2], Err("refused"), at(2));
        }
        assert_eq!(states(&before), [State::Draining, State::Ejected, State::Down, State::Up]);
        let mut after = taken(&left(&before), group(), at(3));
        assert_eq!(states(&after), states(&before));
        let why = after.status(at(3)).into_iter().next().map(|(_, status)| status.why);
        assert_eq!(why.as_deref(), Some("drained by the scaler"));
        // No event happened, and the last usable member is used at once.
        assert!(core::iter::from_fn(|| after.poll_event()).next().is_none());
        let plan = after.plan(at(3)).unwrap();
        assert_eq!(plan.members().iter().map(|member| &*member.name).collect::<Vec<_>>(), ["d:1"]);
        // Running actions continue: the ejection ends when it would have, and two checks bring the member
        // back.
        let end = before.entries[1].ejection.until;
        assert_eq!(after.entries[1].ejection.until, end);
        after.handle_timeout(end.unwrap());
        assert_eq!(states(&after)[1], State::SlowStart);
        let id = ids(&after)[2];
        after.handle_probe(id, Ok(()), at(5));
        assert_eq!(states(&after)[2], State::Down);
        after.handle_probe(id, Ok(()), at(5));
        assert!(states(&after)[2].eligible());
        after.undrain("a:1", at(5)).unwrap();
        assert!(states(&after)[0].eligible());
    }

    #[test]
    fn loads_keep_their_ages_and_members_that_are_new_begin() {
        let mut before = Analyzer::new(group(), at(0));
        let of = ids(&before);
        for second in 1..=3 {
            before.handle_load(of[0], Load { value: 0.5, at: at(second), of_host: false });
        }
        let mut left = left(&before);
        left.remove("d:1");
        let mut spec = group();
        spec.health = None;
        let after = taken(&left, spec, at(4));
        let reports = after.entries[0].reports.as_ref().unwrap();
        assert_eq!((reports.last.at, reports.period()), (at(3), Duration::from_secs(1)));
        assert!(reports.say(at(14)).is_none(), "it is as old as it was");
        assert_eq!(states(&after), [State::Up; 4], "checks that are gone bar nobody");
    }

    #[test]
    fn the_first_choice_goes_by_what_members_said_before() {
        let adaptive = strategy::find("adaptive").unwrap();
        let group =
            || GroupSpec { strategy: adaptive, knobs: Knobs::defaults(adaptive), health: None, ..group() };
        let before = Analyzer::new(group(), at(0));
        let reading = |work: f32| Reading { knee: 1.0, work, sojourn: work, ..Reading::default() };
        for (place, entry) in before.entries.iter().enumerate() {
            // The last member is by far the fastest.
            let work = if place == 3 { 0.001 } else { 0.1 };
            entry.vitals.heard.take(&reading(work), 0, at(1));
        }
        let first = |left: &BTreeMap<String, String>, seed: u64| {
            let plan = taken(left, group(), at(2)).plan(at(2)).unwrap();
            // A core without any load report.
            let ask = Ask { now: at(2), chance: crate::mix(seed), ..Ask::default() };
            plan.choose(&mut Hand::new(crate::mix(!seed)), &ask, &[])
        };
        let told = left(&before);
        assert!((0..100).all(|seed| first(&told, seed) == Choice::Member(3)));
        // Without a handoff the first choice is random.
        let nothing = BTreeMap::new();
        assert!((0..100).any(|seed| first(&nothing, seed) != Choice::Member(3)));
    }

    #[test]
    fn nonsense_is_left_out() {
        let past = "{\"load\": {\"value\": -1.0, \"at\": 99}, \"ramp\": 99999999999, \"limit\": {\"usual\": -3.0}, \
                    \"ejection\": {\"until\": 0, \"why\": \"\", \"row\": 4294967295, \"ended\": 0}, \"since\": 18446744073709551615}";
        let left = NAMES.iter().map(|name| ((*name).into(), past.into())).collect();
        let mut spec = group();
        spec.health = None;
        let mut after = taken(&left, spec, at(1));
        after.handle_timeout(at(2));
        assert_eq!(states(&after).iter().filter(|state| state.eligible()).count(), 4);
        assert!(after.entries.iter().all(|entry| entry.load.is_none() && entry.since <= at(2)));
    }
}
