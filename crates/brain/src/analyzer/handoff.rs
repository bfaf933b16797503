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
    pub fn restore(&mut self, mut handoff: impl FnMut(&str) -> Option<MemberHandoff>, now: Time) {
        self.advance(now);
        let (now, has_checks, uses_external_weights) =
            (self.now, self.spec.health.is_some(), self.uses_external_weights());
        for (entry, spec) in self.entries.iter_mut().zip(&self.spec.members) {
            if let Some(handoff) = handoff(&spec.name) {
                entry.restore(handoff, has_checks, uses_external_weights, now);
            }
        }
        // Load reports to that process are as good: the first request of each core already uses them.
        if self.entries.iter().any(|entry| entry.vitals.last_report.view().is_some()) {
            self.peers.record_relayed_report();
        }
        self.rebuild_index();
        self.bound_ejections();
        for index in 0..self.entries.len() {
            if let Some(until) = self.entries[index].ejection.until {
                self.schedule_timeout(until);
            }
            if let Some(since) = self.entries[index].ramp {
                self.advance_slow_start(index, since);
            }
            self.age_reports(index);
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
    fn restore(&mut self, handoff: MemberHandoff, has_checks: bool, uses_external_weights: bool, now: Time) {
        self.vitals.restore(&handoff.vitals, now);
        self.limit.restore(handoff.limit);
        self.totals = None;
        (self.draining, self.drained_by, self.disabled) =
            (handoff.draining, handoff.drainer, handoff.disabled);
        // No check of this process has ended yet that would count for more.
        if let Some(health) =
            handoff.health.filter(|health| has_checks && health.verdict != HealthVerdict::Unchecked)
        {
            self.health = health;
        }
        self.ejection = handoff.ejection;
        let is_valid = |value: f64| value.is_finite() && value >= 0.0;
        self.load = handoff.load.filter(|load| is_valid(load.value) && load.at <= now);
        self.reports = handoff.reports.and_then(|reports| reports.restored(now));
        self.usage_reports = handoff.work.and_then(|usage_reports| usage_reports.restored(now));
        self.external_weight = handoff.outside.filter(|weight| uses_external_weights && is_valid(*weight));
        let usable = match self.health.verdict {
            _ if self.disabled => Err(MemberState::Disabled),
            _ if self.is_draining() => Err(MemberState::Draining),
            HealthVerdict::Unchecked => Err(MemberState::Unchecked),
            HealthVerdict::Down => Err(MemberState::Down),
            HealthVerdict::Up if self.ejection.until.is_some() => Err(MemberState::Ejected),
            HealthVerdict::Up => Ok(()),
        };
        self.ramp = handoff.ramp.filter(|since| usable.is_ok() && *since <= now);
        self.original &= usable == Err(MemberState::Unchecked);
        let active_state = if self.ramp.is_some() { MemberState::SlowStart } else { MemberState::Up };
        self.state = usable.err().unwrap_or(active_state);
        self.since = if handoff.state == Some(self.state) { handoff.since.min(now) } else { now };
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
        let least_connections = strategy::find("least_connections").unwrap();
        GroupSpec {
            name: "web".into(),
            members: NAMES.iter().map(|name| member(name)).collect(),
            strategy: least_connections,
            params: StrategyParams::defaults(least_connections),
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
    fn serialized_handoffs(analyzer: &Analyzer) -> BTreeMap<String, String> {
        analyzer
            .handoff()
            .map(|(name, handoff)| ((&**name).into(), serde_json::to_string(&handoff).unwrap()))
            .collect()
    }

    fn restored(handoffs: &BTreeMap<String, String>, spec: GroupSpec, now: Time) -> Analyzer {
        let mut analyzer = Analyzer::new(spec, now);
        analyzer.restore(|name| serde_json::from_str(handoffs.get(name)?).ok(), now);
        analyzer
    }

    fn at(seconds: u64) -> Time {
        Time(seconds * 1_000_000_000)
    }

    #[test]
    fn members_are_as_they_were() {
        let mut old_analyzer = Analyzer::new(group(), at(0));
        for id in ids(&old_analyzer) {
            old_analyzer.handle_probe(id, Ok(()), at(1));
        }
        let member_ids = ids(&old_analyzer);
        old_analyzer.drain_by("a:1", DrainInitiator::Scaler, at(2)).unwrap();
        old_analyzer.handle_streak(member_ids[1], at(2));
        for _ in 0..3 {
            old_analyzer.handle_probe(member_ids[2], Err("refused"), at(2));
        }
        assert_eq!(
            states(&old_analyzer),
            [MemberState::Draining, MemberState::Ejected, MemberState::Down, MemberState::Up]
        );
        let mut new_analyzer = restored(&serialized_handoffs(&old_analyzer), group(), at(3));
        assert_eq!(states(&new_analyzer), states(&old_analyzer));
        let reason = new_analyzer.status(at(3)).into_iter().next().map(|(_, status)| status.why);
        assert_eq!(reason.as_deref(), Some("drained by the scaler"));
        // No event happened, and the last usable member is used at once.
        assert!(core::iter::from_fn(|| new_analyzer.poll_event()).next().is_none());
        let plan = new_analyzer.plan(at(3)).unwrap();
        assert_eq!(plan.members().iter().map(|member| &*member.name).collect::<Vec<_>>(), ["d:1"]);
        // Running actions continue: the ejection ends when it would have, and two checks bring the member
        // back.
        let ejected_until = old_analyzer.entries[1].ejection.until;
        assert_eq!(new_analyzer.entries[1].ejection.until, ejected_until);
        new_analyzer.handle_timeout(ejected_until.unwrap());
        assert_eq!(states(&new_analyzer)[1], MemberState::SlowStart);
        let id = ids(&new_analyzer)[2];
        new_analyzer.handle_probe(id, Ok(()), at(5));
        assert_eq!(states(&new_analyzer)[2], MemberState::Down);
        new_analyzer.handle_probe(id, Ok(()), at(5));
        assert!(states(&new_analyzer)[2].is_eligible());
        new_analyzer.undrain("a:1", at(5)).unwrap();
        assert!(states(&new_analyzer)[0].is_eligible());
    }

    #[test]
    fn loads_keep_their_ages_and_members_that_are_new_begin() {
        let mut old_analyzer = Analyzer::new(group(), at(0));
        let member_ids = ids(&old_analyzer);
        for second in 1..=3 {
            old_analyzer
                .handle_load(member_ids[0], ReportedLoad { value: 0.5, at: at(second), of_host: false });
        }
        let mut handoffs = serialized_handoffs(&old_analyzer);
        handoffs.remove("d:1");
        let mut spec = group();
        spec.health = None;
        let analyzer = restored(&handoffs, spec, at(4));
        let reports = analyzer.entries[0].reports.as_ref().unwrap();
        assert_eq!((reports.last.at, reports.period()), (at(3), Duration::from_secs(1)));
        assert!(reports.report_weight(at(14)).is_none(), "it is as old as it was");
        assert_eq!(states(&analyzer), [MemberState::Up; 4], "checks that are gone bar nobody");
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
        let old_analyzer = Analyzer::new(group(), at(0));
        let reading = |work: f32| Reading { knee: 1.0, work, sojourn: work, ..Reading::default() };
        for (index, entry) in old_analyzer.entries.iter().enumerate() {
            // The last member is by far the fastest.
            let work = if index == 3 { 0.001 } else { 0.1 };
            entry.vitals.last_report.record(&reading(work), 0, at(1));
        }
        let first_choice = |handoffs: &BTreeMap<String, String>, seed: u64| {
            let plan = restored(handoffs, group(), at(2)).plan(at(2)).unwrap();
            // A core without any load report.
            let request = PickRequest { now: at(2), random_bits: crate::mix(seed), ..PickRequest::default() };
            plan.choose(&mut PickerState::new(crate::mix(!seed)), &request, &[])
        };
        let handoffs = serialized_handoffs(&old_analyzer);
        assert!((0..100).all(|seed| first_choice(&handoffs, seed) == Choice::Member(3)));
        // Without a handoff the first choice is random.
        let no_handoffs = BTreeMap::new();
        assert!((0..100).any(|seed| first_choice(&no_handoffs, seed) != Choice::Member(3)));
    }

    #[test]
    fn nonsense_is_left_out() {
        let past = "{\"load\": {\"value\": -1.0, \"at\": 99}, \"ramp\": 99999999999, \
                    \"limit\": {\"usual\": -3.0}, \
                    \"ejection\": {\"until\": 0, \"why\": \"\", \"row\": 4294967295, \"ended\": 0}, \
                    \"since\": 18446744073709551615}";
        let handoffs = NAMES.iter().map(|name| ((*name).into(), past.into())).collect();
        let mut spec = group();
        spec.health = None;
        let mut analyzer = restored(&handoffs, spec, at(1));
        analyzer.handle_timeout(at(2));
        assert_eq!(states(&analyzer).iter().filter(|state| state.is_eligible()).count(), 4);
        assert!(analyzer.entries.iter().all(|entry| entry.load.is_none() && entry.since <= at(2)));
    }
}
