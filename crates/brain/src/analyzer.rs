//! The load analyzer of one group: the slow path.
//!
//! A value driven from outside: `handle_*` take what probes, traffic and operators say, with the time;
//! [`Analyzer::poll_timeout`] says when it wants to be called again; [`Analyzer::plan`] and
//! [`Analyzer::poll_event`] hand out what came of it. Calls may come in any order and too late; time that runs
//! backwards counts as standing still; what concerns a member that has left is ignored.
//!
//! Each member has independent facts: drained or not, about to leave or not, disabled or not, what its health checks say, ejected or not, since when
//! its share grows. Its [`State`] is the strongest of them: disabled, then draining, then down or unchecked, then ejected, then
//! slow start, then up. Every change of a fact is an event with its reason.
//!
//! What members report of their load goes into the plan as it ages (`effective`), and where clients are bound on
//! demand it decides who is under alert (`rebind`).

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
    /// One for each of `spec.members`, in the same order.
    entries: Vec<Entry>,
    /// Where in `entries` a member is.
    places: BTreeMap<MemberId, usize>,
    next_id: u32,
    /// The latest time seen.
    now: Time,
    /// Entries in a state that may be chosen.
    usable: usize,
    /// Entries with an ejection in force, whatever else they are.
    out: usize,
    /// Was a member ever usable? Until then a group whose members are not checked yet is starting, not down.
    started: bool,
    /// Was it told that no member can be used?
    all_down: bool,
    /// Does the last plan differ from what is known now?
    stale: bool,
    /// No later than the next end of an ejection or step of a ramp.
    wake: Option<Time>,
    /// When success rates were last compared.
    compared: Time,
    /// What its traffic comes to.
    crowd: Crowd,
    /// Which part of a large group this balancer uses.
    aperture: Aperture,
    /// What is known of other balancers, for plans.
    company: Arc<Company>,
    /// Where clients are bound on demand: who has too many.
    rebind: Option<Rebind>,
    /// When the last plan was made.
    planned: Time,
    /// When the next one is to be made for the sake of reports.
    replan: Option<Time>,
    events: VecDeque<Event>,
    /// Plans made so far.
    plans: u64,
}

/// What is known of a member beyond its configuration.
#[derive(Debug)]
struct Entry {
    id: MemberId,
    seed: u64,
    vitals: Arc<Vitals>,
    traffic: Traffic,
    limit: ConcurrencyLimit,
    bucket: Bucket,
    load: Option<Load>,
    /// What its loads come to; `None` without one that still counts.
    reports: Option<Reports>,
    /// Who else is on its host.
    apart: Apart,
    work: Option<Work>,
    /// What stands in for its capacity, from outside.
    outside: Option<f64>,
    draining: bool,
    /// As the configuration has it.
    leaving: bool,
    /// Who said so.
    drainer: Drainer,
    disabled: bool,
    health: Health,
    ejection: Ejection,
    /// Since when its share grows.
    ramp: Option<Time>,
    /// There from the start and only waiting for its first check: takes its whole share at once.
    original: bool,
    /// Why its last failure was one; empty if that was not told.
    blame: String,
    /// Traffic up to the last comparison of success rates; `None` if what came before must not count.
    totals: Option<Totals>,
    /// Its failures in a row at the last such comparison.
    streak: u32,
    state: State,
    since: Time,
}

impl Analyzer {
    /// A group that starts at `now`.
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

    /// Takes a new configuration. Members keep, by name, their id, vitals, health, ejection, drain and counts.
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

    /// The configuration in force.
    pub fn spec(&self) -> &GroupSpec {
        &self.spec
    }

    /// Where its plans read what is known of other balancers.
    pub fn company(&self) -> &Arc<Company> {
        &self.company
    }

    /// All members of the group, in the order of the configuration.
    pub fn members(&self) -> impl Iterator<Item = (MemberId, &MemberSpec, &Arc<Vitals>)> {
        self.entries.iter().zip(&self.spec.members).map(|(entry, spec)| (entry.id, spec, &entry.vitals))
    }

    /// Returns the state of each member.
    pub fn states(&self) -> impl Iterator<Item = (MemberId, State)> {
        self.entries.iter().map(|entry| (entry.id, entry.state))
    }

    /// A health check ended. `Err` carries the reason, for people.
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

    /// Why the last request that this member failed did: told with an ejection that follows from failures.
    pub fn handle_blame(&mut self, member: MemberId, why: &str) {
        if let Some(&place) = self.places.get(&member)
            && self.entries[place].blame != why
        {
            self.entries[place].blame = why.to_string();
        }
    }

    /// The streak of failures counted in [`Vitals`] reached [`OutlierSpec::consecutive`]: ejects the member, if
    /// no more are out than may be. If not, it is looked at again with the next [`Analyzer::handle_totals`].
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

    /// [`Plan::observe`] found that the outcomes of this member's requests speak against it: ejects it, if no
    /// more are out than may be.
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

    /// Cumulative traffic of each member. To be called at least once per [`OutlierSpec::interval`].
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
            // A streak of before says how it was then: who gets no requests since has no way to end it.
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

    /// Is there a member whose first check has not ended? Those that operators keep out are not waited for.
    pub fn awaits_checks(&self) -> bool {
        self.entries.iter().any(|entry| entry.state == State::Unchecked)
    }

    /// When [`Analyzer::handle_timeout`] wants to be called: an ejection may end or a share may grow.
    pub fn poll_timeout(&self) -> Option<Time> {
        self.wake
    }

    /// The time that [`Analyzer::poll_timeout`] said has come. Harmless at any other.
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

    /// A new plan if anything changed since the last call. The first call always gives one.
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

    /// Those that are in no plan and could serve: outside the aperture, or (if `drained`) drained or about to leave, and up. Whoever was
    /// bound to one may come to it, and nobody else.
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

    /// The next thing that happened, the oldest first. If nobody asks, the oldest are dropped.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    fn advance(&mut self, now: Time) {
        self.now = self.now.max(now);
    }

    /// A member not known before.
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
            // Settled before anyone sees it.
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

    /// After a new configuration without checks: nobody is down.
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
