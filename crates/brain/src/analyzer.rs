//! The load analyzer of one group: the slow path.
//!
//! It is a value driven from outside. `handle_*` take the input of probes, traffic and operators, with the
//! time. [`Analyzer::poll_timeout`] returns the time of the next call. [`Analyzer::plan`] and
//! [`Analyzer::poll_event`] return the results. Calls may come in any order and too late. Time that runs
//! backwards counts as standing still. Input about a member that has left is ignored.
//!
//! The facts of a member are independent: drained, about to leave, disabled, the verdict of its health
//! checks, ejected, and the start of its slow start. Its [`MemberState`] is the first of these that applies:
//! disabled, draining, down or unchecked, ejected, slow start, up. Every change of a fact is an event with
//! its reason.
//!
//! The reported loads enter the plan as they age (`smoothed_load`). In groups that bind clients on demand
//! they decide which members are under alert (`rebind`).

use alloc::collections::{BTreeMap, VecDeque};
use alloc::format;
use alloc::string::{String, ToString};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::mem;

use crate::fleet::PeerPresence;
use crate::member::concurrency_limit::{ConcurrencyLimit, TrafficSampler};
use crate::member::token_bucket::TokenBucket;
use crate::rebind::GroupAlerts;
use crate::shared_hosts::LoadAttribution;
use crate::{Event, EventKind, Member, MemberId, MemberState, Plan, ReportedLoad, Time, Vitals, hash};
use aperture::Aperture;
use load_reports::UsageReports;
use outlier::EjectionState;
use overload::OverloadDetector;
use smoothed_load::LoadReports;

mod admin_state;
mod aperture;
mod ejection;
mod fleet_findings;
mod handoff;
mod health;
mod load_reports;
mod outlier;
mod overload;
mod report;
mod slow_start;
mod smoothed_load;
mod spec;
mod state;
mod weights;

pub use admin_state::DrainInitiator;
pub use handoff::MemberHandoff;
pub use health::{HealthStatus, HealthVerdict};
pub(crate) use overload::DEFAULT_MAX_WAIT;
pub use spec::{GroupSpec, HealthSpec, MemberSpec, MemberTraffic, OutlierSpec, WhenAllDown};

/// The slow path of one group.
#[derive(Debug)]
pub struct Analyzer {
    spec: GroupSpec,
    /// The entry of each of `spec.members`, in the same order.
    entries: Vec<AnalyzedMember>,
    /// The index of each member in `entries`.
    index_by_id: BTreeMap<MemberId, usize>,
    next_id: u32,
    /// The latest time seen.
    now: Time,
    /// The number of entries in a state that may be chosen.
    usable: usize,
    /// The number of entries with an ejection in force, whatever their state.
    ejected_count: usize,
    /// Whether a member was ever usable. Until then a group whose members are not checked yet is starting,
    /// not down.
    started: bool,
    /// Whether the event that no member can be used was sent.
    all_down: bool,
    /// Whether the last plan is outdated.
    stale: bool,
    /// The time of the next call, no later than the next end of an ejection or step of a ramp.
    next_timeout: Option<Time>,
    /// The time of the last comparison of success rates.
    last_comparison: Time,
    /// The state learnt from the group's traffic.
    overload: OverloadDetector,
    /// The part of a large group that this balancer uses.
    aperture: Aperture,
    /// The state of other balancers, for plans.
    peers: Arc<PeerPresence>,
    /// The alerts, in groups that bind clients on demand.
    alerts: Option<GroupAlerts>,
    /// The time of the last plan.
    last_planned: Time,
    /// The time of the next plan that reports require.
    replan_at: Option<Time>,
    events: VecDeque<Event>,
    /// The number of plans made.
    plans: u64,
}

/// The state of a member beyond its configuration.
#[derive(Debug)]
struct AnalyzedMember {
    id: MemberId,
    seed: u64,
    vitals: Arc<Vitals>,
    traffic: TrafficSampler,
    limit: ConcurrencyLimit,
    bucket: TokenBucket,
    load: Option<ReportedLoad>,
    /// The state of its load reports; `None` without one that still counts.
    reports: Option<LoadReports>,
    /// The group's part of the load of its host.
    load_attribution: LoadAttribution,
    usage_reports: Option<UsageReports>,
    /// The weight from outside that replaces its capacity.
    external_weight: Option<f64>,
    draining: bool,
    /// Whether it is about to leave, by the configuration.
    leaving: bool,
    /// The actor that drained it.
    drained_by: DrainInitiator,
    disabled: bool,
    health: HealthStatus,
    ejection: EjectionState,
    /// The start of its slow start.
    ramp: Option<Time>,
    /// Whether it has been there from the start and only awaits its first check: it takes its whole share at
    /// once.
    original: bool,
    /// The reason of its last failure; empty if unknown.
    last_failure: String,
    /// The traffic up to the last comparison of success rates; `None` if earlier traffic must not count.
    totals: Option<MemberTraffic>,
    /// Its failures in a row at the last comparison.
    streak: u32,
    state: MemberState,
    since: Time,
}

impl Analyzer {
    /// Returns the analyzer of a group that starts at `now`.
    pub fn new(spec: GroupSpec, now: Time) -> Self {
        let mut analyzer = Self {
            entries: Vec::with_capacity(spec.members.len()),
            index_by_id: BTreeMap::new(),
            next_id: 0,
            now,
            usable: 0,
            ejected_count: 0,
            started: false,
            all_down: false,
            stale: true,
            next_timeout: None,
            last_comparison: now,
            overload: OverloadDetector::default(),
            aperture: Aperture::default(),
            peers: Arc::default(),
            alerts: None,
            last_planned: now,
            replan_at: None,
            events: VecDeque::new(),
            plans: 0,
            spec,
        };
        for index in 0..analyzer.spec.members.len() {
            let entry = analyzer.entry(index, true);
            analyzer.entries.push(entry);
            analyzer.update_leaving(index);
        }
        analyzer.rebuild_index();
        analyzer.derive_all_states();
        analyzer
    }

    /// Applies a new configuration. Members keep, by name, their id, vitals, health, ejection, drain and
    /// counts.
    pub fn update(&mut self, spec: GroupSpec, now: Time) {
        self.advance(now);
        let previous_spec = mem::replace(&mut self.spec, spec);
        let addresses: BTreeMap<Arc<str>, _> =
            previous_spec.members.iter().map(|member| (member.name.clone(), member.address)).collect();
        let names = previous_spec.members.iter().map(|member| member.name.clone());
        let mut previous_entries: BTreeMap<Arc<str>, AnalyzedMember> =
            names.zip(mem::take(&mut self.entries)).collect();
        for index in 0..self.spec.members.len() {
            let name = self.spec.members[index].name.clone();
            let entry = match previous_entries.remove(&name) {
                Some(entry) if addresses.get(&name) == Some(&self.spec.members[index].address) => entry,
                unmatched => self.entry_for_newcomer(index, unmatched),
            };
            self.entries.push(entry);
            self.update_leaving(index);
        }
        for (name, entry) in previous_entries {
            let reason = format!("{name} left the group");
            self.emit_event(
                EventKind::Left,
                Some(name),
                reason,
                &[("in_flight", f64::from(entry.vitals.in_flight()))],
            );
            if let Some(alerts) = &mut self.alerts {
                alerts.forget(entry.id);
            }
        }
        self.rebuild_index();
        self.apply_alert_rule();
        self.forget_weights();
        if self.spec.health.is_none() {
            self.assume_health();
        }
        self.bound_ejections();
        self.stale = true;
        self.derive_all_states();
    }

    /// Returns the configuration in force.
    pub fn spec(&self) -> &GroupSpec {
        &self.spec
    }

    /// Returns the state of other balancers that its plans read.
    pub fn peers(&self) -> &Arc<PeerPresence> {
        &self.peers
    }

    /// Returns all members of the group, in the order of the configuration.
    pub fn members(&self) -> impl Iterator<Item = (MemberId, &MemberSpec, &Arc<Vitals>)> {
        self.entries.iter().zip(&self.spec.members).map(|(entry, spec)| (entry.id, spec, &entry.vitals))
    }

    /// Returns the state of each member.
    pub fn states(&self) -> impl Iterator<Item = (MemberId, MemberState)> {
        self.entries.iter().map(|entry| (entry.id, entry.state))
    }

    /// Records the end of a health check. `Err` carries the reason, for display.
    pub fn handle_probe(&mut self, member: MemberId, outcome: Result<(), &str>, now: Time) {
        self.advance(now);
        let (Some(&index), Some(spec)) = (self.index_by_id.get(&member), &self.spec.health) else { return };
        if !self.spec.members[index].has_address() {
            return;
        }
        let health = &mut self.entries[index].health;
        let Some(consecutive_checks) = health.record(outcome, spec) else { return };
        let (kind, reason) = match health.verdict {
            HealthVerdict::Up => (EventKind::Up, health.why.clone()),
            HealthVerdict::Unchecked | HealthVerdict::Down => (EventKind::Down, health.why.clone()),
        };
        self.emit_member_event(index, kind, reason, &[("checks_in_a_row", f64::from(consecutive_checks))]);
        self.derive_state(index);
        self.derive_group_state();
    }

    /// Records the reason of the last failure of this member, which the event of an ejection by failures
    /// contains.
    pub fn handle_failure_cause(&mut self, member: MemberId, reason: &str) {
        if let Some(&index) = self.index_by_id.get(&member)
            && self.entries[index].last_failure != reason
        {
            self.entries[index].last_failure = reason.to_string();
        }
    }

    /// Ejects a member whose streak of failures in [`Vitals`] reached [`OutlierSpec::consecutive`], if the
    /// ejection budget allows. Otherwise the next [`Analyzer::handle_totals`] considers it again.
    pub fn handle_streak(&mut self, member: MemberId, now: Time) {
        self.advance(now);
        let Some(&index) = self.index_by_id.get(&member) else { return };
        let Some(outlier) = self.spec.outlier.as_ref().filter(|outlier| outlier.consecutive > 0) else {
            return;
        };
        // The caller saw the threshold reached; a success since then does not undo that.
        let streak = self.entries[index].vitals.streak().max(outlier.consecutive);
        self.eject(index, format!("{streak} failures in a row"), &[("failures_in_a_row", f64::from(streak))]);
        self.derive_group_state();
    }

    /// Ejects a member against which [`Plan::observe`] found evidence in the outcomes of its requests, if the
    /// ejection budget allows.
    pub fn handle_suspicion(&mut self, member: MemberId, now: Time) {
        self.advance(now);
        let Some(&index) = self.index_by_id.get(&member) else { return };
        if self.spec.outlier.as_ref().is_none_or(|outlier| outlier.false_alarm <= 0.0) {
            return;
        }
        let suspicion = &self.entries[index].vitals.failure_detector;
        let inputs = [
            ("log_likelihood_ratio", suspicion.sum()),
            ("failing_at_least", suspicion.failure_share()),
            ("failures_in_a_row", f64::from(self.entries[index].vitals.streak())),
        ];
        let streak = self.entries[index].vitals.streak();
        let reason = match streak {
            0..2 => "it fails far more often than the others".to_string(),
            streak => format!("it fails far more often than the others, {streak} times in a row now"),
        };
        let reason = self.with_failure_cause(index, reason);
        self.eject_by(index, reason, &inputs, EjectionState::begin_on_suspicion);
        self.derive_group_state();
    }

    /// Records the cumulative traffic of each member. It is to be called at least once per
    /// [`OutlierSpec::interval`].
    pub fn handle_totals(&mut self, totals: &[(MemberId, MemberTraffic)], now: Time) {
        self.advance(now);
        let Some(outlier) = self.spec.outlier.clone() else { return };
        let due = self.now.since(self.last_comparison) >= outlier.interval;
        let mut samples = Vec::new();
        for (member, total) in totals {
            let Some(&index) = self.index_by_id.get(member) else { continue };
            let entry = &mut self.entries[index];
            match entry.totals {
                Some(previous_totals) if due => {
                    let traffic = MemberTraffic {
                        requests: total.requests.saturating_sub(previous_totals.requests),
                        failures: total.failures.saturating_sub(previous_totals.failures),
                    };
                    samples.extend(entry.state.is_eligible().then_some((index, traffic)));
                    entry.totals = Some(*total);
                }
                Some(_) => {}
                None => entry.totals = Some(*total),
            }
        }
        if !due {
            return;
        }
        self.last_comparison = self.now;
        for index in 0..self.entries.len() {
            let streak = self.entries[index].vitals.streak();
            // An old streak is no evidence: a member without requests since cannot end it.
            let streak_changed = mem::replace(&mut self.entries[index].streak, streak) != streak;
            if outlier.consecutive > 0 && streak >= outlier.consecutive && streak_changed {
                let inputs = [("failures_in_a_row", f64::from(streak))];
                self.eject(index, format!("{streak} failures in a row"), &inputs);
            }
        }
        let max_ejections =
            outlier::max_ejections(&outlier, self.entries.len()).saturating_sub(self.ejected_count);
        for finding in outlier::outliers(&outlier, &samples, max_ejections) {
            let inputs = [
                ("requests", finding.traffic.requests as f64),
                ("failures", finding.traffic.failures as f64),
                ("success_rate", finding.rate),
                ("mean_of_others", finding.mean),
                ("deviation_of_others", finding.deviation),
            ];
            self.eject(finding.index, finding.reason(), &inputs);
        }
        self.derive_group_state();
    }

    /// Returns `true` if the first check of a member has not ended. Members that operators exclude do not
    /// count.
    pub fn awaits_checks(&self) -> bool {
        self.entries.iter().any(|entry| entry.state == MemberState::Unchecked)
    }

    /// Returns the time of the next call of [`Analyzer::handle_timeout`]: an ejection may end or a share may
    /// grow.
    pub fn poll_timeout(&self) -> Option<Time> {
        self.next_timeout
    }

    /// Handles the time that [`Analyzer::poll_timeout`] returned. It is harmless at any other.
    pub fn handle_timeout(&mut self, now: Time) {
        self.advance(now);
        if self.next_timeout.is_none_or(|timeout| timeout > self.now) {
            return;
        }
        self.next_timeout = None;
        for index in 0..self.entries.len() {
            let entry = &self.entries[index];
            if let Some(until) = entry.ejection.until {
                if until <= self.now {
                    self.readmit(index, "its ejection is over");
                } else {
                    self.schedule_timeout(until);
                }
            }
            if let Some(until) = self.entries[index].vitals.failure_detector.expire(self.now) {
                self.schedule_timeout(until);
            }
            if let Some(since) = self.entries[index].ramp {
                self.advance_slow_start(index, since);
            }
            self.age_reports(index);
        }
        self.renew();
        self.derive_group_state();
    }

    /// Returns a new plan if anything changed since the last call. The first call always returns one.
    pub fn plan(&mut self, now: Time) -> Option<Plan> {
        self.advance(now);
        self.renew();
        if !mem::take(&mut self.stale) {
            return None;
        }
        (self.last_planned, self.replan_at) = (self.now, None);
        let mean = self.mean_load();
        let has_no_alerts = self.alerts().next().is_none();
        let fails_open = self.usable == 0 && self.spec.when_all_down == WhenAllDown::FailOpen;
        let entries = self.entries.iter().zip(&self.spec.members);
        let members = entries
            .filter(|(entry, _)| {
                entry.state.is_eligible() || (fails_open && !entry.is_draining() && !entry.disabled)
            })
            .inspect(|(entry, _)| entry.vitals.migration.begin_plan(has_no_alerts))
            .map(|(entry, spec)| self.member(entry, spec, mean))
            .collect();
        let members = self.retain_in_aperture(members);
        self.plans += 1;
        let plan = Plan::new(self.spec.strategy, self.spec.params.clone(), members)
            .with_admission(self.spec.has_admission())
            .with_objective(self.spec.objective)
            .with_serial(self.plans)
            .with_group_limit(self.overload.group_limit.clone())
            .with_peers(self.peers.clone());
        Some(match &self.spec.outlier {
            Some(outlier) if outlier.false_alarm > 0.0 => plan.with_outcome_ejection(outlier.false_alarm),
            _ => plan,
        })
    }

    /// Returns the members that are in no plan and could serve: those outside the aperture, and with
    /// `drained` those that are up and drained or about to leave. They serve only clients that are bound to
    /// them.
    pub fn reserve_members(&self, drained: bool) -> Vec<Member> {
        let entries = self.entries.iter().zip(&self.spec.members);
        let may_serve = |entry: &AnalyzedMember| {
            let is_healthy = entry.health.verdict == HealthVerdict::Up && entry.ejection.until.is_none();
            (is_healthy && drained && entry.state == MemberState::Draining) || self.is_entry_outside(entry)
        };
        entries
            .filter(|(entry, _)| may_serve(entry))
            .map(|(entry, spec)| self.member(entry, spec, 0.0))
            .collect()
    }

    /// Returns the next event, the oldest first. If no caller collects events, the oldest are dropped.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    fn advance(&mut self, now: Time) {
        self.now = self.now.max(now);
    }

    /// Returns the entry of a new member.
    fn entry(&mut self, index: usize, original: bool) -> AnalyzedMember {
        let id = MemberId(self.next_id);
        self.next_id = self.next_id.wrapping_add(1);
        AnalyzedMember {
            id,
            seed: hash(self.spec.members[index].name.as_bytes()),
            vitals: Arc::default(),
            traffic: TrafficSampler::default(),
            limit: ConcurrencyLimit::default(),
            bucket: TokenBucket::default(),
            load: None,
            reports: None,
            load_attribution: LoadAttribution::default(),
            usage_reports: None,
            external_weight: None,
            draining: false,
            leaving: false,
            drained_by: DrainInitiator::default(),
            disabled: false,
            health: match &self.spec.health {
                _ if !self.spec.members[index].has_address() => HealthStatus::unresolved(),
                Some(_) => HealthStatus::unchecked(),
                None => HealthStatus::assumed(),
            },
            ejection: EjectionState::default(),
            last_failure: String::new(),
            ramp: None,
            original,
            totals: None,
            streak: 0,
            // Derived before any caller sees it.
            state: MemberState::Unchecked,
            since: self.now,
        }
    }

    fn member(&self, entry: &AnalyzedMember, spec: &MemberSpec, mean: f64) -> Member {
        let alerts = self.alerts.as_ref();
        Member {
            id: entry.id,
            name: spec.name.clone(),
            address: spec.address,
            seed: entry.seed,
            capacity: spec.capacity,
            weight: self.weight(entry, spec),
            limit: spec.limit,
            state: entry.state,
            load: entry.load,
            effective: entry.reports.as_ref().and_then(|reports| reports.effective(mean, self.now)),
            usage: entry.usage_reports.as_ref().and_then(|reports| reports.usage(&self.spec, self.now)),
            shed: alerts.map(|alerts| alerts.shed(entry.id)).unwrap_or_default(),
            deficit: alerts.map_or(0.0, |alerts| alerts.deficit(entry.id)),
            vitals: entry.vitals.clone(),
        }
    }

    fn weight(&self, entry: &AnalyzedMember, spec: &MemberSpec) -> f64 {
        let share =
            entry.ramp.map_or(1.0, |since| slow_start::share_fraction(since, self.now, self.spec.slow_start));
        (entry.external_weight.unwrap_or(spec.capacity) * share).max(f64::MIN_POSITIVE)
    }

    /// Marks all members with an address as up after a configuration without checks.
    fn assume_health(&mut self) {
        for index in 0..self.entries.len() {
            if !self.spec.members[index].has_address() {
                continue;
            }
            let previous_health = mem::replace(&mut self.entries[index].health, HealthStatus::assumed());
            if previous_health.verdict != HealthVerdict::Up {
                self.emit_member_event(
                    index,
                    EventKind::Up,
                    "its health checks were switched off".to_string(),
                    &[],
                );
            }
        }
    }
}
