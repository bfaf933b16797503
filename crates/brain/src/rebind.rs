//! Rebinding: which members have more sessions than their share, and which part of those is to go elsewhere.
//!
//! Sessions bound once stay where they are while loads drift apart. The papers answer with *alerts*: a member under
//! alert sends its clients back to the group (Othman, O'Ryan, Schmidt 2001: on-demand binding). When to alert is a
//! threshold there, and no threshold fits two loads of a group: too low and sessions go round for ever, too high
//! and nothing is balanced. Both ways are here, as a [`Rule`].
//!
//! Ours, [`Rule::Surplus`], needs no number from the user. With u the load a member reports and c its capacity:
//!
//! - *fair* is the load all would have: sum of u c over sum of c.
//! - A report is noise too. u is an average in which each report corrects the one before by 0.4 of what was
//!   unexpected, and sigma, its standard deviation, follows from an average (weight 0.1) of the squares of that,
//!   each clipped at 5 deviations so that a step of the load is not taken for noise.
//! - A member's *surplus* is (u - fair - 2.5 sigma) c, its *deficit* (fair - u) c, where positive.
//! - Each session at a member with a surplus goes with probability surplus / (u c), less if the deficits of all are
//!   less than the surpluses; a target is drawn in proportion to deficit. That is what concurrent probabilistic
//!   migration does (Berenbrink and others, Distributed selfish load balancing, 2006): whoever holds the sessions,
//!   and however many balancers do, in expectation the surplus moves once.
//! - A report covers time before the move, so it still shows part of what has gone. A *ledger* of what moved
//!   since the last report corrects it, by the part of the report's window that lies before the move. It holds
//!   what was asked for; where that was much, the next report is believed as it is, for it says how much went.
//! - A session that moved may move again after twice the report period, then four times, eight times ([`Moves`]).
//!
//! By none of them all members are under alert at once: the least loaded is never asked to give away, and nobody is who
//! would be the last. What is sent away needs somewhere to go, or goes round.
//!
//! A value: reports go in, alerts come out. It knows no session; see [`session_moves`].

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;
use core::time::Duration;

use crate::{MemberId, Time};
use track::Track;

mod moves;
mod track;

pub use moves::{Moves, Shed, session_moves};

/// When a member is under alert.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rule {
    /// It has a surplus over the fair load that its reports' noise does not explain; the surplus is to go.
    Surplus,
    /// Its effective load is above this; all its sessions are to go.
    Critical(f64),
    /// Its effective load is above this many times the mean; all its sessions are to go.
    Mean(f64),
    /// Its effective load is above the mean and above this many times the least; all its sessions are to go.
    Least(f64),
}

/// A member has too much.
#[derive(Clone, Debug, PartialEq)]
pub struct Alert {
    /// Who.
    pub member: MemberId,
    /// Which part of its sessions is to go, decided with its last report.
    pub shed: Shed,
    /// When the alert was raised.
    pub since: Time,
    /// The numbers it was decided on, by name.
    pub inputs: Vec<(&'static str, f64)>,
}

/// What a report did to a member's alert.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Change {
    /// Raised, or cleared?
    pub(crate) raised: bool,
    /// One sentence for a person.
    pub(crate) why: String,
    /// The numbers it was decided on, by name.
    pub(crate) inputs: Vec<(&'static str, f64)>,
}

/// One report of a member's load.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Report {
    /// Relative to the other members; finite, above 0.
    pub(crate) capacity: f64,
    /// As reported: how busy the member is for its size; finite, not negative.
    pub(crate) load: f64,
    /// The same, averaged over reports.
    pub(crate) effective: f64,
    /// When it was measured.
    pub(crate) at: Time,
    /// How far apart its reports are.
    pub(crate) period: Duration,
}

/// The alerts of one group.
#[derive(Clone, Debug)]
pub(crate) struct Rebind {
    rule: Rule,
    tracks: BTreeMap<MemberId, Track>,
    /// Number of the last decision that asks sessions to go; 0 for none yet.
    epoch: u32,
    sums: Sums,
}

/// Over all members. Kept up to date by differences and added up anew once per round of reports.
#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    /// Load times capacity.
    load: f64,
    capacity: f64,
    effective: f64,
    /// Reports since all was added up.
    reports: usize,
}

impl Rebind {
    /// Nobody is known yet.
    pub(crate) fn new(rule: Rule) -> Self {
        Self { rule, tracks: BTreeMap::new(), epoch: 0, sums: Sums::default() }
    }

    /// Changes the rule; each member is judged by it with its next report.
    pub(crate) fn set_rule(&mut self, rule: Rule) {
        self.rule = rule;
    }

    /// Alerts in force.
    pub(crate) fn alerts(&self) -> impl Iterator<Item = &Alert> {
        self.tracks.values().filter_map(|track| track.alert.as_ref())
    }

    /// The member's alert in force, or else its last one: sessions that saw it go for a while yet.
    pub(crate) fn last_alert(&self, member: MemberId) -> Option<&Alert> {
        let track = self.tracks.get(&member)?;
        track.alert.as_ref().or(track.past.as_ref())
    }

    /// Which part of a member's sessions is to go.
    pub(crate) fn shed(&self, member: MemberId) -> Shed {
        let alert = self.tracks.get(&member).and_then(|track| track.alert.as_ref());
        alert.map(|alert| alert.shed).unwrap_or_default()
    }

    /// How much of the others' surplus a member can take, in units of capacity times load, or a trace of it where all
    /// is on its way; 0 for none, and by the
    /// papers' rules, where the strategy alone chooses where a session goes.
    pub(crate) fn deficit(&self, member: MemberId) -> f64 {
        let fair = self.fair();
        match self.tracks.get(&member) {
            Some(track) if self.rule == Rule::Surplus && fair.is_finite() => track.pull(fair),
            _ => 0.0,
        }
    }

    /// A member reported: is it, from now on, under alert?
    pub(crate) fn report(&mut self, member: MemberId, report: &Report) -> Option<Change> {
        let bound = self.bound(member);
        let prior = if self.tracks.get(&member).is_some_and(Track::is_new) { self.noise() } else { None };
        let track = self.tracks.entry(member).or_insert_with(|| Track::new(report));
        self.sums.load -= track.counted * track.capacity;
        self.sums.capacity -= track.capacity;
        self.sums.effective -= track.effective;
        track.report(report, prior, bound);
        self.sums.load += track.counted * track.capacity;
        self.sums.capacity += track.capacity;
        self.sums.effective += track.effective;
        self.sums.reports += 1;
        if self.sums.reports >= self.tracks.len() {
            self.add_up();
        }
        let (share, inputs) = self.judge(member);
        self.ask(member, share, report, inputs)
    }

    /// A member left, is out of use, or reports no more. Returns the end of its alert.
    pub(crate) fn forget(&mut self, member: MemberId) -> Option<Change> {
        let gone = self.tracks.remove(&member)?;
        self.add_up();
        let why = "it is out of use or reports no more";
        gone.alert.map(|alert| Change { raised: false, why: why.into(), inputs: alert.inputs })
    }

    /// Is it the only one that is not under alert?
    fn is_last(&self, member: MemberId) -> bool {
        self.tracks.iter().all(|(id, track)| *id == member || track.alert.is_some())
    }

    /// Is nobody less loaded? Of equals it is the one that was configured first.
    fn is_least(&self, member: MemberId, effective: f64) -> bool {
        self.tracks.iter().all(|(id, track)| *id == member || (effective, member) < (track.effective, *id))
    }

    /// The part of its sessions that a member should give away, and why.
    fn judge(&mut self, member: MemberId) -> (f64, Vec<(&'static str, f64)>) {
        let Some(track) = self.tracks.get(&member) else { return (0.0, Vec::new()) };
        let effective = track.effective;
        let mean = self.sums.effective / self.tracks.len() as f64;
        let over = |above: bool| {
            let goes = above && !self.is_last(member) && !self.is_least(member, effective);
            if goes { 1.0 } else { 0.0 }
        };
        match self.rule {
            Rule::Surplus => self.surplus(member),
            Rule::Critical(critical) => {
                (over(effective > critical), vec![("load", effective), ("critical", critical)])
            }
            Rule::Mean(times) => {
                let inputs = vec![("load", effective), ("mean", mean), ("tolerance", times)];
                (over(effective > mean * times), inputs)
            }
            Rule::Least(times) => {
                let others = self.tracks.values().map(|track| track.effective);
                let least = if effective > mean { others.fold(effective, f64::min) } else { effective };
                let inputs =
                    vec![("load", effective), ("mean", mean), ("least", least), ("tolerance", times)];
                (over(effective > mean && effective > least * times), inputs)
            }
        }
    }

    /// By our rule; what is to move goes into the ledger at once, so that others do not fill the same gaps.
    fn surplus(&mut self, member: MemberId) -> (f64, Vec<(&'static str, f64)>) {
        let fair = self.fair();
        let Some(track) = self.tracks.get(&member) else { return (0.0, Vec::new()) };
        let (load, capacity, at) = (track.counted, track.capacity, track.at);
        let noise = track.noise().unwrap_or(0.0);
        let inputs = |share| vec![("load", load), ("fair", fair), ("noise", noise), ("share", share)];
        let surplus = track.surplus(fair);
        if !(surplus > 0.0 && fair.is_finite()) {
            return (0.0, inputs(0.0));
        }
        let deficits: f64 = self.tracks.values().map(|track| track.deficit(fair)).sum();
        let surpluses: f64 = self.tracks.values().map(|track| track.surplus(fair)).sum();
        let share = surplus * (deficits / surpluses).min(1.0) / (load * capacity);
        if !(share > LEAST_SHARE && share.is_finite()) || self.is_last(member) {
            return (0.0, inputs(0.0));
        }
        let share = share.min(1.0);
        let moved = share * load * capacity;
        for (id, track) in &mut self.tracks {
            if *id == member {
                track.moved(-moved, at);
            } else {
                let part = track.deficit(fair) / deficits;
                track.moved(moved * part, at);
            }
        }
        self.add_up();
        (share, inputs(share))
    }

    /// Makes the alert follow the judgement.
    fn ask(
        &mut self,
        member: MemberId,
        share: f64,
        report: &Report,
        inputs: Vec<(&'static str, f64)>,
    ) -> Option<Change> {
        let track = self.tracks.get_mut(&member)?;
        if share <= 0.0 {
            track.past = Some(track.alert.take()?);
            let why = format!("its load of {} is no longer too much", brief(report.effective));
            return Some(Change { raised: false, why, inputs });
        }
        self.epoch = self.epoch.wrapping_add(1).max(1);
        // The papers know no back-off.
        let period = if self.rule == Rule::Surplus { report.period } else { Duration::ZERO };
        let shed = Shed { share: share as f32, epoch: self.epoch, period };
        let since = track.alert.as_ref().map(|alert| alert.since);
        track.alert = Some(Alert { member, shed, since: since.unwrap_or(report.at), inputs: inputs.clone() });
        if since.is_some() {
            return None;
        }
        let part = brief(100.0 * share);
        let why =
            format!("its load of {} is too much; {part} % of its sessions are to go", brief(report.load));
        Some(Change { raised: true, why, inputs })
    }

    fn fair(&self) -> f64 {
        self.sums.load / self.sums.capacity
    }

    /// Most that a member's load counts for: a member that lies, or drowns, has a surplus and hides no other's.
    fn bound(&self, member: MemberId) -> f64 {
        let own = self.tracks.get(&member).map_or((0.0, 0.0), |track| (track.counted, track.capacity));
        let others = (self.sums.load - own.0 * own.1) / (self.sums.capacity - own.1);
        if others > 0.0 { MOST_TIMES * others } else { f64::INFINITY }
    }

    /// The mean variance of some members that have one: what a new one begins with.
    fn noise(&self) -> Option<f64> {
        let known = self.tracks.values().filter_map(|track| track.variance).take(SOME);
        let (sum, count) = known.fold((0.0, 0), |(sum, count), one| (sum + one, count + 1));
        (count > 0).then(|| sum / f64::from(count))
    }

    fn add_up(&mut self) {
        self.sums = Sums::default();
        for track in self.tracks.values_mut() {
            self.sums.load += track.counted * track.capacity;
            self.sums.capacity += track.capacity;
            self.sums.effective += track.effective;
        }
    }
}

/// With as many digits as help a person.
fn brief(value: f64) -> String {
    match value {
        ..10.0 => format!("{value:.2}"),
        ..1e9 => format!("{value:.0}"),
        _ => format!("{value:e}"),
    }
}

/// Members whose noise is enough to know what is usual.
const SOME: usize = 64;

/// A smaller part of a member's sessions is not worth an alert.
const LEAST_SHARE: f64 = 1e-3;

/// A member's load counts for at most this many times the mean of the others.
const MOST_TIMES: f64 = 2.0;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hash::unit;
    use crate::mix;

    const T: Duration = Duration::from_secs(3);

    /// Rounds of reports, each with every member's load, all at once.
    fn group(rule: Rule, capacities: &[f64], rounds: &[&[f64]]) -> Rebind {
        let mut rebind = Rebind::new(rule);
        for (round, loads) in (1..).zip(rounds) {
            for ((id, load), capacity) in (0..).zip(*loads).zip(capacities) {
                let at = Time(0) + T * round;
                let report = Report { capacity: *capacity, load: *load, effective: *load, at, period: T };
                rebind.report(MemberId(id), &report);
            }
        }
        rebind
    }

    #[track_caller]
    fn about(value: f64, expected: f64) {
        assert!((value - expected).abs() < 0.02 * expected, "{value}, not {expected}");
    }

    #[test]
    fn a_surplus_goes_in_proportion() {
        let even: &[f64] = &[0.5, 0.5, 0.5, 0.5];
        // Without noise the gate is a hundredth of the fair load. The second reports the step, which the average
        // takes for 0.5 + 0.4 * 0.5.
        let rebind = group(Rule::Surplus, &[1.0, 1.0, 2.0, 4.0], &[even, even, &[0.5, 0.5, 0.5, 1.0]]);
        let load = 0.5 + GAIN_SEEN * 0.5;
        let fair = (0.5 * 4.0 + load * 4.0) / 8.0;
        let alert = rebind.alerts().next().expect("an alert");
        let input = |name| alert.inputs.iter().find(|(known, _)| *known == name).expect("an input").1;
        about(input("load"), load);
        about(input("fair"), fair);
        let gate = (2.5 * input("noise")).max(0.01 * fair);
        about(f64::from(alert.shed.share), (load - fair - gate) / load);
        assert_eq!((alert.member, alert.since, alert.shed.period), (MemberId(3), Time(0) + 3 * T, T));
        // What goes is what the others then lack less: they are as far from fair as it is above it.
        let lacking: f64 = (0..4).map(|id| rebind.deficit(MemberId(id))).sum();
        about(lacking, gate * 4.0);
        assert_eq!(rebind.deficit(MemberId(3)), 0.0);
        about(rebind.deficit(MemberId(2)), 2.0 * rebind.deficit(MemberId(0)));
    }

    /// Part of an unexpected difference that is believed.
    const GAIN_SEEN: f64 = 0.4;

    #[test]
    fn the_one_that_has_nearly_all_is_under_alert_at_once() {
        // A hundred times what the other has, give or take a tenth: its noise is more than all that the other has.
        let rounds: Vec<[f64; 2]> = (0..6).map(|round| [500.0 + 50.0 * unit(mix(round)), 5.0]).collect();
        let rounds: Vec<&[f64]> = rounds.iter().map(|round| &round[..]).collect();
        let rebind = group(Rule::Surplus, &[1.0, 1.0], &rounds);
        let alerts: Vec<&Alert> = rebind.alerts().collect();
        assert_eq!(alerts.len(), 1);
        assert_eq!(alerts[0].member, MemberId(0));
    }

    #[test]
    fn sums_do_not_drift() {
        let mut rebind = Rebind::new(Rule::Surplus);
        let chance = |count: u64| unit(mix(count));
        for count in 0..20_000_u64 {
            let id = mix(count) % 50;
            let scale = if count % 97 == 0 { 1e12 } else { 1.0 };
            let report = Report {
                capacity: 1.0 + id as f64,
                load: chance(count) * scale,
                effective: chance(count),
                at: Time(count * 10_000_000),
                period: T,
            };
            rebind.report(MemberId(id as u32), &report);
            if count % 1_000 == 999 {
                rebind.forget(MemberId((count / 1_000) as u32));
            }
            assert!(rebind.fair().is_finite() && rebind.fair() >= 0.0);
        }
        let before = rebind.sums;
        rebind.add_up();
        about(before.load, rebind.sums.load);
        about(before.capacity, rebind.sums.capacity);
        about(before.effective, rebind.sums.effective);
    }

    #[test]
    fn one_member_alone_is_never_under_alert() {
        let rounds: Vec<[f64; 1]> = (0..50).map(|count| [unit(mix(count)) * 10.0]).collect();
        let rounds: Vec<&[f64]> = rounds.iter().map(|round| &round[..]).collect();
        assert_eq!(group(Rule::Surplus, &[1.0], &rounds).alerts().count(), 0);
        assert_eq!(group(Rule::Mean(1.25), &[1.0], &rounds).alerts().count(), 0);
        assert_eq!(group(Rule::Least(1.4), &[1.0], &rounds).alerts().count(), 0);
    }

    #[test]
    fn the_least_loaded_stays_open_however_low_the_threshold() {
        for rule in [Rule::Critical(0.1), Rule::Mean(0.1), Rule::Least(0.1)] {
            let mut rebind = Rebind::new(rule);
            for count in 0..4_000_u64 {
                let id = MemberId((mix(count) % 4) as u32);
                let load = 0.5 + unit(mix(count));
                let at = Time(0) + T * count as u32;
                rebind.report(id, &Report { capacity: 1.0, load, effective: load, at, period: T });
                let closed = rebind.alerts().count();
                assert!(closed < rebind.tracks.len(), "{rule:?}: all {closed} after {count} reports");
            }
        }
        // When all have reported twice it is the least loaded that is open, and among equals the first.
        let alerted = |loads: &[f64]| -> Vec<u32> {
            let rebind = group(Rule::Critical(0.1), &[1.0, 1.0, 1.0], &[loads, loads]);
            rebind.alerts().map(|alert| alert.member.0).collect()
        };
        assert_eq!(alerted(&[0.9, 0.8, 0.7]), [0, 1]);
        assert_eq!(alerted(&[0.7, 0.8, 0.9]), [1, 2]);
        assert_eq!(alerted(&[0.8, 0.8, 0.8]), [1, 2]);
        assert_eq!(alerted(&[0.05, 0.8, 0.8]), [1, 2]);
        assert_eq!(alerted(&[0.05, 0.08, 0.8]), [2]);
    }

    #[test]
    fn what_the_last_alert_was_decided_on_outlives_it() {
        let high: &[f64] = &[0.9, 0.5];
        let rebind = group(Rule::Critical(0.8), &[1.0, 1.0], &[high, high]);
        let decided = rebind.alerts().next().expect("an alert").clone();
        assert_eq!(rebind.last_alert(MemberId(0)), Some(&decided));
        let rebind = group(Rule::Critical(0.8), &[1.0, 1.0], &[high, high, &[0.5, 0.5]]);
        assert_eq!(rebind.alerts().count(), 0);
        assert_eq!(rebind.last_alert(MemberId(0)), Some(&decided));
        assert_eq!((rebind.last_alert(MemberId(1)), rebind.last_alert(MemberId(7))), (None, None));
    }

    #[test]
    fn who_is_forgotten_ends_its_alert() {
        let mut rebind = group(Rule::Critical(0.8), &[1.0, 1.0], &[&[0.9, 0.5], &[0.9, 0.5]]);
        assert_eq!(rebind.shed(MemberId(0)), Shed { share: 1.0, epoch: 1, period: Duration::ZERO });
        assert_eq!(rebind.shed(MemberId(1)), Shed::default());
        assert!(rebind.forget(MemberId(0)).is_some_and(|change| !change.raised));
        assert_eq!(rebind.forget(MemberId(0)), None);
        assert_eq!((rebind.alerts().count(), rebind.shed(MemberId(0))), (0, Shed::default()));
        assert!(rebind.forget(MemberId(1)).is_none() && rebind.fair().is_nan());
        assert_eq!(rebind.deficit(MemberId(1)), 0.0);
    }
}
