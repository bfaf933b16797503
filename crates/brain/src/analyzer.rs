//! The load analyzer of one group: the slow path.
//!
//! It is a value driven from outside. `handle_*` take the input of probes, traffic and operators, with the
//! time. [`Analyzer::poll_timeout`] returns the time of the next call. [`Analyzer::plan`] and
//! [`Analyzer::poll_event`] return the results. Calls may come in any order and too late. Time that runs
//! backwards counts as standing still. Input about a member that has left is ignored.
//!
//! The facts of a member are independent: drained, about to leave, disabled, the verdict of its health
//! checks, ejected, and the start of its slow start. Its [`State`] is the first of these that applies:
//! disabled, draining, down or unchecked, ejected, slow start, up. Every change of a fact is an event with
//! its reason.
//!
//! The reported loads enter the plan as they age (`effective`). In groups that bind clients on demand they
//! decide which members are under alert (`rebind`).

use alloc::collections::{BTreeMap, VecDeque};
use alloc::format;
use alloc::string::{String, ToString};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::mem;

use crate::fleet::Company;
use crate::member::concurrency::{ConcurrencyLimit, Traffic};
use crate::member::rate::Bucket;
use crate::neighbours::Apart;
use crate::rebind::Rebind;
use crate::{Event, EventKind, Load, Member, MemberId, Plan, State, Time, Vitals, hash};
use aperture::Aperture;
use effective::Reports;
use loads::Work;
use outlier::Ejection;
use watch::Crowd;

mod aperture;
mod effective;
mod eject;
mod health;
mod loads;
mod operators;
mod outlier;
mod report;
mod settle;
mod slow_start;
mod spec;
mod succession;
mod told;
mod watch;
mod weights;

pub use health::{Health, Verdict};
pub use operators::Drainer;
pub use spec::{GroupSpec, HealthSpec, MemberSpec, OutlierSpec, Totals, WhenAllDown};
pub use succession::Past;
pub(crate) use watch::PATIENCE;

/// The slow path of one group.
#[derive(Debug)]
pub struct Analyzer {
    spec: GroupSpec,
    /// The entry of each of `spec.members`, in the same order.
    entries: Vec<Entry>,
    /// The index of each member in `entries`.
    places: BTreeMap<MemberId, usize>,
    next_id: u32,
    /// The latest time seen.
    now: Time,
    /// The number of entries in a state that may be chosen.
    usable: usize,
    /// The number of entries with an ejection in force, whatever their state.
    out: usize,
    /// Whether a member was ever usable. Until then a group whose members are not checked yet is starting,
    /// not down.
    started: bool,
    /// Whether the event that no member can be used was sent.
    all_down: bool,
    /// Whether the last plan is outdated.
    stale: bool,
    /// The time of the next call, no later than the next end of an ejection or step of a ramp.
    wake: Option<Time>,
    /// The time of the last comparison of success rates.
    compared: Time,
    /// The state learnt from the group's traffic.
    crowd: Crowd,
    /// The part of a large group that this balancer uses.
    aperture: Aperture,
    /// The state of other balancers, for plans.
    company: Arc<Company>,
    /// The alerts, in groups that bind clients on demand.
    rebind: Option<Rebind>,
    /// The time of the last plan.
    planned: Time,
    /// The time of the next plan that reports require.
    replan: Option<Time>,
    events: VecDeque<Event>,
    /// The number of plans made.
    plans: u64,
}

/// The state of a member beyond its configuration.
#[derive(Debug)]
struct Entry {
    id: MemberId,
    seed: u64,
    vitals: Arc<Vitals>,
    traffic: Traffic,
    limit: ConcurrencyLimit,
    bucket: Bucket,
    load: Option<Load>,
    /// The state of its load reports; `None` without one that still counts.
    reports: Option<Reports>,
    /// The group's part of the load of its host.
    apart: Apart,
    work: Option<Work>,
    /// The weight from outside that replaces its capacity.
    outside: Option<f64>,
    draining: bool,
    /// Whether it is about to leave, by the configuration.
    leaving: bool,
    /// The actor that drained it.
    drainer: Drainer,
    disabled: bool,
    health: Health,
    ejection: Ejection,
    /// The start of its slow start.
    ramp: Option<Time>,
    /// Whether it has been there from the start and only awaits its first check: it takes its whole share at
    /// once.
    original: bool,
    /// The reason of its last failure; empty if unknown.
    blame: String,
    /// The traffic up to the last comparison of success rates; `None` if earlier traffic must not count.
    totals: Option<Totals>,
    /// Its failures in a row at the last comparison.
    streak: u32,
    state: State,
    since: Time,
}

impl Analyzer {
    /// Returns the analyzer of a group that starts at `now`.
    pub fn new(spec: GroupSpec, now: Time) -> Self {
        let mut analyzer = Self {
            entries: Vec::with_capacity(spec.members.len()),
            places: BTreeMap::new(),
            next_id: 0,
            now,
            usable: 0,
            out: 0,
            started: false,
            all_down: false,
            stale: true,
            wake: None,
            compared: now,
            crowd: Crowd::default(),
            aperture: Aperture::default(),
            company: Arc::default(),
            rebind: None,
            planned: now,
            replan: None,
            events: VecDeque::new(),
            plans: 0,
            spec,
        };
        for place in 0..analyzer.spec.members.len() {
            let entry = analyzer.entry(place, true);
            analyzer.entries.push(entry);
            analyzer.follow_leaving(place);
        }
        analyzer.index();
        analyzer.settle_all();
        analyzer
    }

    /// Applies a new configuration. Members keep, by name, their id, vitals, health, ejection, drain and
    /// counts.
    pub fn update(&mut self, spec: GroupSpec, now: Time) {
        self.advance(now);
        let before = mem::replace(&mut self.spec, spec);
        let addresses: BTreeMap<Arc<str>, _> =
            before.members.iter().map(|member| (member.name.clone(), member.address)).collect();
        let names = before.members.iter().map(|member| member.name.clone());
        let mut kept: BTreeMap<Arc<str>, Entry> = names.zip(mem::take(&mut self.entries)).collect();
        for place in 0..self.spec.members.len() {
            let name = self.spec.members[place].name.clone();
            let entry = match kept.remove(&name) {
                Some(entry) if addresses.get(&name) == Some(&self.spec.members[place].address) => entry,
                other => self.newcomer(place, other),
            };
            self.entries.push(entry);
            self.follow_leaving(place);
        }
        for (name, entry) in kept {
            let why = format!("{name} left the group");
            self.tell(
                EventKind::Left,
                Some(name),
                why,
                &[("in_flight", f64::from(entry.vitals.in_flight()))],
            );
            if let Some(rebind) = &mut self.rebind {
                rebind.forget(entry.id);
            }
        }
        self.index();
        self.follow_strategy();
        self.forget_weights();
        if self.spec.health.is_none() {
            self.assume_health();
        }
        self.bound_ejections();
        self.stale = true;
        self.settle_all();
    }

    /// Returns the configuration in force.
    pub fn spec(&self) -> &GroupSpec {
        &self.spec
    }

    /// Returns the state of other balancers that its plans read.
    pub fn company(&self) -> &Arc<Company> {
        &self.company
    }

    /// Returns all members of the group, in the order of the configuration.
    pub fn members(&self) -> impl Iterator<Item = (MemberId, &MemberSpec, &Arc<Vitals>)> {
        self.entries.iter().zip(&self.spec.members).map(|(entry, spec)| (entry.id, spec, &entry.vitals))
    }

    /// Returns the state of each member.
    pub fn states(&self) -> impl Iterator<Item = (MemberId, State)> {
        self.entries.iter().map(|entry| (entry.id, entry.state))
    }

    /// Records the end of a health check. `Err` carries the reason, for display.
    pub fn handle_probe(&mut self, member: MemberId, outcome: Result<(), &str>, now: Time) {
        self.advance(now);
        let (Some(&place), Some(spec)) = (self.places.get(&member), &self.spec.health) else { return };
        if !self.spec.members[place].placed() {
            return;
        }
        let health = &mut self.entries[place].health;
        let Some(row) = health.record(outcome, spec) else { return };
        let (kind, why) = match health.verdict {
            Verdict::Up => (EventKind::Up, health.why.clone()),
            Verdict::Unchecked | Verdict::Down => (EventKind::Down, health.why.clone()),
        };
        self.tell_of(place, kind, why, &[("checks_in_a_row", f64::from(row))]);
        self.settle(place);
        self.survey();
    }

    /// Records the reason of the last failure of this member, which the event of an ejection by failures
    /// contains.
    pub fn handle_blame(&mut self, member: MemberId, why: &str) {
        if let Some(&place) = self.places.get(&member)
            && self.entries[place].blame != why
        {
            self.entries[place].blame = why.to_string();
        }
    }

    /// Ejects a member whose streak of failures in [`Vitals`] reached [`OutlierSpec::consecutive`], if the
    /// ejection budget allows. Otherwise the next [`Analyzer::handle_totals`] considers it again.
    pub fn handle_streak(&mut self, member: MemberId, now: Time) {
        self.advance(now);
        let Some(&place) = self.places.get(&member) else { return };
        let Some(outlier) = self.spec.outlier.as_ref().filter(|outlier| outlier.consecutive > 0) else {
            return;
        };
        // The caller saw the threshold reached; a success since then does not undo that.
        let streak = self.entries[place].vitals.streak().max(outlier.consecutive);
        self.eject(place, format!("{streak} failures in a row"), &[("failures_in_a_row", f64::from(streak))]);
        self.survey();
    }

    /// Ejects a member against which [`Plan::observe`] found evidence in the outcomes of its requests, if the
    /// ejection budget allows.
    pub fn handle_suspicion(&mut self, member: MemberId, now: Time) {
        self.advance(now);
        let Some(&place) = self.places.get(&member) else { return };
        if self.spec.outlier.as_ref().is_none_or(|outlier| outlier.false_alarm <= 0.0) {
            return;
        }
        let suspicion = &self.entries[place].vitals.suspicion;
        let inputs = [
            ("log_likelihood_ratio", suspicion.sum()),
            ("failing_at_least", suspicion.failing()),
            ("failures_in_a_row", f64::from(self.entries[place].vitals.streak())),
        ];
        let row = self.entries[place].vitals.streak();
        let why = match row {
            0..2 => "it fails far more often than the others".to_string(),
            row => format!("it fails far more often than the others, {row} times in a row now"),
        };
        let why = self.blamed(place, why);
        self.eject_by(place, why, &inputs, Ejection::suspect);
        self.survey();
    }

    /// Records the cumulative traffic of each member. It is to be called at least once per
    /// [`OutlierSpec::interval`].
    pub fn handle_totals(&mut self, totals: &[(MemberId, Totals)], now: Time) {
        self.advance(now);
        let Some(outlier) = self.spec.outlier.clone() else { return };
        let due = self.now.since(self.compared) >= outlier.interval;
        let mut samples = Vec::new();
        for (member, total) in totals {
            let Some(&place) = self.places.get(member) else { continue };
            let entry = &mut self.entries[place];
            match entry.totals {
                Some(before) if due => {
                    let traffic = Totals {
                        requests: total.requests.saturating_sub(before.requests),
                        failures: total.failures.saturating_sub(before.failures),
                    };
                    samples.extend(entry.state.eligible().then_some((place, traffic)));
                    entry.totals = Some(*total);
                }
                Some(_) => {}
                None => entry.totals = Some(*total),
            }
        }
        if !due {
            return;
        }
        self.compared = self.now;
        for place in 0..self.entries.len() {
            let streak = self.entries[place].vitals.streak();
            // An old streak is no evidence: a member without requests since cannot end it.
            let grown = mem::replace(&mut self.entries[place].streak, streak) != streak;
            if outlier.consecutive > 0 && streak >= outlier.consecutive && grown {
                let inputs = [("failures_in_a_row", f64::from(streak))];
                self.eject(place, format!("{streak} failures in a row"), &inputs);
            }
        }
        let room = outlier::allowed(&outlier, self.entries.len()).saturating_sub(self.out);
        for finding in outlier::outliers(&outlier, &samples, room) {
            let inputs = [
                ("requests", finding.traffic.requests as f64),
                ("failures", finding.traffic.failures as f64),
                ("success_rate", finding.rate),
                ("mean_of_others", finding.mean),
                ("deviation_of_others", finding.deviation),
            ];
            self.eject(finding.index, finding.why(), &inputs);
        }
        self.survey();
    }

    /// Returns `true` if the first check of a member has not ended. Members that operators exclude do not
    /// count.
    pub fn awaits_checks(&self) -> bool {
        self.entries.iter().any(|entry| entry.state == State::Unchecked)
    }

    /// Returns the time of the next call of [`Analyzer::handle_timeout`]: an ejection may end or a share may
    /// grow.
    pub fn poll_timeout(&self) -> Option<Time> {
        self.wake
    }

    /// Handles the time that [`Analyzer::poll_timeout`] returned. It is harmless at any other.
    pub fn handle_timeout(&mut self, now: Time) {
        self.advance(now);
        if self.wake.is_none_or(|wake| wake > self.now) {
            return;
        }
        self.wake = None;
        for place in 0..self.entries.len() {
            let entry = &self.entries[place];
            if let Some(until) = entry.ejection.until {
                if until <= self.now {
                    self.readmit(place, "its ejection is over");
                } else {
                    self.wake_at(until);
                }
            }
            if let Some(until) = self.entries[place].vitals.suspicion.expire(self.now) {
                self.wake_at(until);
            }
            if let Some(since) = self.entries[place].ramp {
                self.grow(place, since);
            }
            self.age(place);
        }
        self.renew();
        self.survey();
    }

    /// Returns a new plan if anything changed since the last call. The first call always returns one.
    pub fn plan(&mut self, now: Time) -> Option<Plan> {
        self.advance(now);
        self.renew();
        if !mem::take(&mut self.stale) {
            return None;
        }
        (self.planned, self.replan) = (self.now, None);
        let mean = self.mean_load();
        let calm = self.alerts().next().is_none();
        let open = self.usable == 0 && self.spec.when_all_down == WhenAllDown::FailOpen;
        let entries = self.entries.iter().zip(&self.spec.members);
        let members = entries
            .filter(|(entry, _)| entry.state.eligible() || (open && !entry.drained() && !entry.disabled))
            .inspect(|(entry, _)| entry.vitals.flow.renew(calm))
            .map(|(entry, spec)| self.member(entry, spec, mean))
            .collect();
        let members = self.within(members);
        self.plans += 1;
        let plan = Plan::new(self.spec.strategy, self.spec.knobs.clone(), members)
            .admitting(self.spec.admits())
            .aiming(self.spec.objective)
            .numbered(self.plans)
            .limited(self.crowd.most.clone())
            .among(self.company.clone());
        Some(match &self.spec.outlier {
            Some(outlier) if outlier.false_alarm > 0.0 => plan.suspecting(outlier.false_alarm),
            _ => plan,
        })
    }

    /// Returns the members that are in no plan and could serve: those outside the aperture, and with
    /// `drained` those that are up and drained or about to leave. They serve only clients that are bound to
    /// them.
    pub fn kept(&self, drained: bool) -> Vec<Member> {
        let entries = self.entries.iter().zip(&self.spec.members);
        let serves = |entry: &Entry| {
            let well = entry.health.verdict == Verdict::Up && entry.ejection.until.is_none();
            (well && drained && entry.state == State::Draining) || self.shut_out(entry)
        };
        entries
            .filter(|(entry, _)| serves(entry))
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
    fn entry(&mut self, place: usize, original: bool) -> Entry {
        let id = MemberId(self.next_id);
        self.next_id = self.next_id.wrapping_add(1);
        Entry {
            id,
            seed: hash(self.spec.members[place].name.as_bytes()),
            vitals: Arc::default(),
            traffic: Traffic::default(),
            limit: ConcurrencyLimit::default(),
            bucket: Bucket::default(),
            load: None,
            reports: None,
            apart: Apart::default(),
            work: None,
            outside: None,
            draining: false,
            leaving: false,
            drainer: Drainer::default(),
            disabled: false,
            health: match &self.spec.health {
                _ if !self.spec.members[place].placed() => Health::nowhere(),
                Some(_) => Health::unchecked(),
                None => Health::assumed(),
            },
            ejection: Ejection::default(),
            blame: String::new(),
            ramp: None,
            original,
            totals: None,
            streak: 0,
            // Derived before any caller sees it.
            state: State::Unchecked,
            since: self.now,
        }
    }

    fn member(&self, entry: &Entry, spec: &MemberSpec, mean: f64) -> Member {
        let rebind = self.rebind.as_ref();
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
            usage: entry.work.as_ref().and_then(|work| work.usage(&self.spec, self.now)),
            shed: rebind.map(|rebind| rebind.shed(entry.id)).unwrap_or_default(),
            deficit: rebind.map_or(0.0, |rebind| rebind.deficit(entry.id)),
            vitals: entry.vitals.clone(),
        }
    }

    fn weight(&self, entry: &Entry, spec: &MemberSpec) -> f64 {
        let part = entry.ramp.map_or(1.0, |since| slow_start::part(since, self.now, self.spec.slow_start));
        (entry.outside.unwrap_or(spec.capacity) * part).max(f64::MIN_POSITIVE)
    }

    /// Marks all members with an address as up after a configuration without checks.
    fn assume_health(&mut self) {
        for place in 0..self.entries.len() {
            if !self.spec.members[place].placed() {
                continue;
            }
            let checked = mem::replace(&mut self.entries[place].health, Health::assumed());
            if checked.verdict != Verdict::Up {
                self.tell_of(place, EventKind::Up, "its health checks were switched off".to_string(), &[]);
            }
        }
    }
}
