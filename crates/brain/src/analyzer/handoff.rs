//! The handoff of a group to the next process: the facts of each member, by its name.
//!
//! Both processes count time from the same moment, so ages, ejections and ramps continue unchanged.
//! Handed-off state is treated like input from the network: implausible values are left out, and a member
//! without state is a new one. The next reports raise alerts again.

use alloc::sync::Arc;

use serde::{Deserialize, Serialize};

use super::admin_state::DrainInitiator;
use super::health::{HealthStatus, HealthVerdict};
use super::load_reports::UsageReports;
use super::outlier::EjectionState;
use super::smoothed_load::LoadReports;
use super::{AnalyzedMember, Analyzer};
use crate::member::concurrency_limit::ConcurrencyLimit;
use crate::member::handoff::VitalsHandoff as Vital;
use crate::{MemberState, ReportedLoad, Time};

/// The handed-off state of a member beyond its configuration.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct MemberHandoff {
    draining: bool,
    drainer: DrainInitiator,
    disabled: bool,
    health: Option<HealthStatus>,
    ejection: EjectionState,
    ramp: Option<Time>,
    load: Option<ReportedLoad>,
    reports: Option<LoadReports>,
    work: Option<UsageReports>,
    outside: Option<f64>,
    state: Option<MemberState>,
    since: Time,
    limit: ConcurrencyLimit,
    vitals: Vital,
}

impl Analyzer {
    /// Returns the state of each member, by name.
    pub fn handoff(&self) -> impl Iterator<Item = (&Arc<str>, MemberHandoff)> {
        self.entries.iter().zip(&self.spec.members).map(|(entry, spec)| (&spec.name, entry.handoff()))
    }

    /// Restores the state from the previous process; `past` returns it by the name of the member. It is to be
    /// called before the first choice.
    pub fn restore(&mut self, mut past: impl FnMut(&str) -> Option<MemberHandoff>, now: Time) {
        self.advance(now);
        let (now, checks, outside) = (self.now, self.spec.health.is_some(), self.outside());
        for (entry, spec) in self.entries.iter_mut().zip(&self.spec.members) {
            if let Some(past) = past(&spec.name) {
                entry.restore(past, checks, outside, now);
            }
        }
        // Load reports to that process are as good: the first request of each core already uses them.
        if self.entries.iter().any(|entry| entry.vitals.last_report.view().is_some()) {
            self.peers.record_relayed_report();
        }
        self.rebuild_index();
        self.bound_ejections();
        for place in 0..self.entries.len() {
            if let Some(until) = self.entries[place].ejection.until {
                self.schedule_timeout(until);
            }
            if let Some(since) = self.entries[place].ramp {
                self.advance_slow_start(place, since);
            }
            self.age_reports(place);
        }
        self.stale = true;
        self.derive_group_state();
    }
}

impl AnalyzedMember {
    fn handoff(&self) -> MemberHandoff {
        MemberHandoff {
            draining: self.draining,
            drainer: self.drained_by,
            disabled: self.disabled,
            health: Some(self.health.clone()),
            ejection: self.ejection.clone(),
            ramp: self.ramp,
            load: self.load,
            reports: self.reports.clone(),
            work: self.usage_reports,
            outside: self.external_weight,
            state: Some(self.state),
            since: self.since,
            limit: self.limit.handoff(),
            vitals: self.vitals.handoff(),
        }
    }

    /// Restores the state of a member. `checks`: whether its health is checked now. `outside`: whether
    /// weights come from outside.
    fn restore(&mut self, past: MemberHandoff, checks: bool, outside: bool, now: Time) {
        self.vitals.restore(&past.vitals, now);
        self.limit.restore(past.limit);
        self.totals = None;
        (self.draining, self.drained_by, self.disabled) = (past.draining, past.drainer, past.disabled);
        // No check of this process has ended yet that would count for more.
        if let Some(health) =
            past.health.filter(|health| checks && health.verdict != HealthVerdict::Unchecked)
        {
            self.health = health;
        }
        self.ejection = past.ejection;
        let sound = |value: f64| value.is_finite() && value >= 0.0;
        self.load = past.load.filter(|load| sound(load.value) && load.at <= now);
        self.reports = past.reports.and_then(|reports| reports.recalled(now));
        self.usage_reports = past.work.and_then(|work| work.recalled(now));
        self.external_weight = past.outside.filter(|weight| outside && sound(*weight));
        let usable = match self.health.verdict {
            _ if self.disabled => Err(MemberState::Disabled),
            _ if self.is_draining() => Err(MemberState::Draining),
            HealthVerdict::Unchecked => Err(MemberState::Unchecked),
            HealthVerdict::Down => Err(MemberState::Down),
            HealthVerdict::Up if self.ejection.until.is_some() => Err(MemberState::Ejected),
            HealthVerdict::Up => Ok(()),
        };
        self.ramp = past.ramp.filter(|since| usable.is_ok() && *since <= now);
        self.original &= usable == Err(MemberState::Unchecked);
        let growing = if self.ramp.is_some() { MemberState::SlowStart } else { MemberState::Up };
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
    use crate::{Choice, MemberId, PickRequest, PickerState, StrategyParams, strategy};

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
            params: StrategyParams::defaults(least),
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

    fn states(analyzer: &Analyzer) -> Vec<MemberState> {
        analyzer.entries.iter().map(|entry| entry.state).collect()
    }

    fn ids(analyzer: &Analyzer) -> Vec<MemberId> {
        analyzer.members().map(|(id, ..)| id).collect()
    }

    /// Returns the handed-off state of a group, through JSON.
    fn left(analyzer: &Analyzer) -> BTreeMap<String, String> {
        analyzer
            .handoff()
            .map(|(name, past)| ((&**name).into(), serde_json::to_string(&past).unwrap()))
            .collect()
    }

    fn taken(left: &BTreeMap<String, String>, spec: GroupSpec, now: Time) -> Analyzer {
        let mut analyzer = Analyzer::new(spec, now);
        analyzer.restore(|name| serde_json::from_str(left.get(name)?).ok(), now);
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
        before.drain_by("a:1", DrainInitiator::Scaler, at(2)).unwrap();
        before.handle_streak(of[1], at(2));
        for _ in 0..3 {
            before.handle_probe(of[2], Err("refused"), at(2));
        }
        assert_eq!(
            states(&before),
            [MemberState::Draining, MemberState::Ejected, MemberState::Down, MemberState::Up]
        );
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
        assert_eq!(states(&after)[1], MemberState::SlowStart);
        let id = ids(&after)[2];
        after.handle_probe(id, Ok(()), at(5));
        assert_eq!(states(&after)[2], MemberState::Down);
        after.handle_probe(id, Ok(()), at(5));
        assert!(states(&after)[2].is_eligible());
        after.undrain("a:1", at(5)).unwrap();
        assert!(states(&after)[0].is_eligible());
    }

    #[test]
    fn loads_keep_their_ages_and_members_that_are_new_begin() {
        let mut before = Analyzer::new(group(), at(0));
        let of = ids(&before);
        for second in 1..=3 {
            before.handle_load(of[0], ReportedLoad { value: 0.5, at: at(second), of_host: false });
        }
        let mut left = left(&before);
        left.remove("d:1");
        let mut spec = group();
        spec.health = None;
        let after = taken(&left, spec, at(4));
        let reports = after.entries[0].reports.as_ref().unwrap();
        assert_eq!((reports.last.at, reports.period()), (at(3), Duration::from_secs(1)));
        assert!(reports.report_weight(at(14)).is_none(), "it is as old as it was");
        assert_eq!(states(&after), [MemberState::Up; 4], "checks that are gone bar nobody");
    }

    #[test]
    fn the_first_choice_goes_by_what_members_said_before() {
        let adaptive = strategy::find("adaptive").unwrap();
        let group = || GroupSpec {
            strategy: adaptive,
            params: StrategyParams::defaults(adaptive),
            health: None,
            ..group()
        };
        let before = Analyzer::new(group(), at(0));
        let reading = |work: f32| Reading { knee: 1.0, work, sojourn: work, ..Reading::default() };
        for (place, entry) in before.entries.iter().enumerate() {
            // The last member is by far the fastest.
            let work = if place == 3 { 0.001 } else { 0.1 };
            entry.vitals.last_report.record(&reading(work), 0, at(1));
        }
        let first = |left: &BTreeMap<String, String>, seed: u64| {
            let plan = taken(left, group(), at(2)).plan(at(2)).unwrap();
            // A core without any load report.
            let ask = PickRequest { now: at(2), random_bits: crate::mix(seed), ..PickRequest::default() };
            plan.choose(&mut PickerState::new(crate::mix(!seed)), &ask, &[])
        };
        let told = left(&before);
        assert!((0..100).all(|seed| first(&told, seed) == Choice::Member(3)));
        // Without a handoff the first choice is random.
        let nothing = BTreeMap::new();
        assert!((0..100).any(|seed| first(&nothing, seed) != Choice::Member(3)));
    }

    #[test]
    fn nonsense_is_left_out() {
        let past = "{\"load\": {\"value\": -1.0, \"at\": 99}, \"ramp\": 99999999999, \
                    \"limit\": {\"usual\": -3.0}, \
                    \"ejection\": {\"until\": 0, \"why\": \"\", \"row\": 4294967295, \"ended\": 0}, \
                    \"since\": 18446744073709551615}";
        let left = NAMES.iter().map(|name| ((*name).into(), past.into())).collect();
        let mut spec = group();
        spec.health = None;
        let mut after = taken(&left, spec, at(1));
        after.handle_timeout(at(2));
        assert_eq!(states(&after).iter().filter(|state| state.is_eligible()).count(), 4);
        assert!(after.entries.iter().all(|entry| entry.load.is_none() && entry.since <= at(2)));
    }
}
