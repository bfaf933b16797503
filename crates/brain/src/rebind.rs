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
//!   each clipped at 5 deviations so that a step of the load is not taken for noise. What was to move and did not is
//!   neither: it is believed as it is.
//! - A member's *surplus* is (u - fair - 2.5 sigma) c, its *deficit* (fair - u) c, where positive.
//! - Each session at a member with a surplus goes with probability surplus / (u c), less if the deficits of all are
//!   less than the surpluses; a target is drawn in proportion to deficit. That is what concurrent probabilistic
//!   migration does (Berenbrink and others, Distributed selfish load balancing, 2006): whoever holds the sessions,
//!   and however many balancers do, in expectation the surplus moves once.
//! - A report covers time before the move, so it still shows part of what has gone. A *ledger* of what moved
//!   since the last report corrects it, by the part of the report's window that lies before the move. It holds
//!   what was asked for; where that was much, the next report is believed as it is, for it says how much went.
//! - Where their sizes are known sessions take turns instead of being drawn ([`Flow`]), a target that got its part is left out
//!   ([`Plan::target_of`](crate::Plan::target_of)), and one that is more of its member's load than that has more than others
//!   stays, as it cannot be divided ([`sized_session_moves`]); but it may change places with a smaller one ([`Swap`]).
//! - A session that moved may move again after twice the report period, then four times, eight times ([`Moves`]).
//!
//! Where somebody is to be told before sessions go, an alert is *held* first: it is in force, but asks nobody and is not in
//! the ledger, until it is released. Then it is decided anew, on what is known by then.
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

mod flow;
mod moves;
mod swap;
mod track;

pub use flow::Flow;
pub use moves::{Moves, Shed, Size, session_escapes, session_moves, sized_session_moves};
pub use swap::Swap;

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
    /// The alert's number while it is held: no session is asked until [`Analyzer::release`](crate::Analyzer::release).
    pub held: Option<u32>,
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
    /// Is an alert held when it is raised?
    holds: bool,
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
        Self { rule, tracks: BTreeMap::new(), epoch: 0, holds: false, sums: Sums::default() }
    }

    /// Changes the rule; each member is judged by it with its next report.
    pub(crate) fn set_rule(&mut self, rule: Rule) {
        self.rule = rule;
    }

    /// Are alerts held when they are raised, until they are released? If not, those that are go with their members' next
    /// reports.
    pub(crate) fn set_holds(&mut self, holds: bool) {
        self.holds = holds;
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

    /// The member's alert in force.
    pub(crate) fn alert(&self, member: MemberId) -> Option<&Alert> {
        self.tracks.get(&member)?.alert.as_ref()
    }

    /// Load above which a member comes under alert, as things are now; `None` while its reports say nothing of that. Whoever is the least
    /// loaded, or the last, does not, whatever its load.
    pub(crate) fn above(&self, member: MemberId) -> Option<f64> {
        let track = self.tracks.get(&member)?;
        let mean = self.sums.effective / self.tracks.len() as f64;
        let above = match self.rule {
            Rule::Surplus => self.fair() + track.gate(self.fair())?,
            Rule::Critical(critical) => critical,
            Rule::Mean(times) => mean * times,
            Rule::Least(times) => {
                let least = self.tracks.values().map(|track| track.effective).fold(f64::INFINITY, f64::min);
                mean.max(least * times)
            }
        };
        above.is_finite().then_some(above)
    }

    /// Which part of a member's sessions is to go now.
    pub(crate) fn shed(&self, member: MemberId) -> Shed {
        let alert = self.alert(member).filter(|alert| alert.held.is_none());
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
        let change = self.ask(member, share, report, inputs);
        self.promise(member, share, report.at);
        change
    }

    /// Lets an alert that is held, if it still is, ask sessions from `now` on: for what is to go by then, which may be
    /// nothing. False if another one is in force, or none.
    pub(crate) fn release(&mut self, member: MemberId, number: u32, now: Time) -> bool {
        if self.alert(member).is_none_or(|alert| alert.held != Some(number)) {
            return false;
        }
        let (share, inputs) = self.judge(member);
        let (epoch, gap) = (self.next_epoch(), self.gap(member));
        if let Some(track) = self.tracks.get_mut(&member) {
            let load = track.heard as f32;
            if let Some(alert) = &mut track.alert {
                alert.shed = Shed { share: share as f32, gap, load, epoch, ..alert.shed };
                (alert.held, alert.inputs) = (None, inputs);
            }
        }
        self.promise(member, share, now);
        true
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
    fn judge(&self, member: MemberId) -> (f64, Vec<(&'static str, f64)>) {
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

    /// By our rule.
    fn surplus(&self, member: MemberId) -> (f64, Vec<(&'static str, f64)>) {
        let fair = self.fair();
        let Some(track) = self.tracks.get(&member) else { return (0.0, Vec::new()) };
        let (load, capacity) = (track.counted, track.capacity);
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
        let mut inputs = inputs(share);
        inputs.push(("largest", f64::from(self.gap(member))));
        (share, inputs)
    }

    /// [`Shed::gap`], by what was reported: what was to move is booked when it is decided, and has not moved if nobody may go. Less a doubt
    /// ([`DOUBT`]): who is as large as the gap is to stay, in spite of noise, and those that are much smaller do not mind.
    fn gap(&self, member: MemberId) -> f32 {
        let Some(track) = self.tracks.get(&member).filter(|_| self.rule == Rule::Surplus) else {
            return f32::INFINITY;
        };
        let own = track.heard;
        let (mut load, mut capacity) = (0.0, 0.0);
        for track in self.tracks.values() {
            (load, capacity) = (load + track.heard * track.capacity, capacity + track.capacity);
        }
        let fair = load / capacity;
        let (mut pull, mut more) = (0.0, 0.0);
        for other in self.tracks.values() {
            let deficit = (fair - other.heard).max(0.0) * other.capacity;
            // What makes both loads the same. Twice that makes them as uneven as before.
            let doubt = DOUBT * libm::sqrt(track.doubt() + other.doubt());
            let even = (own - other.heard - doubt).max(0.0) / (1.0 / track.capacity + 1.0 / other.capacity);
            pull += deficit;
            more += deficit * 2.0 * even;
        }
        let gap = (more / pull / (own * track.capacity)) as f32;
        // Where it says at last that it has nothing, or less than they have, nothing helps.
        if gap.is_nan() { 0.0 } else { gap.clamp(0.0, 2.0) }
    }

    /// What is to move goes into the ledger at once, so that others do not fill the same gaps.
    fn promise(&mut self, member: MemberId, share: f64, at: Time) {
        let goes = share > 0.0 && self.shed(member).share > 0.0 && self.rule == Rule::Surplus;
        let fair = self.fair();
        let Some(track) = self.tracks.get(&member).filter(|_| goes) else { return };
        let moved = share * track.counted * track.capacity;
        let deficits: f64 = self.tracks.values().map(|track| track.deficit(fair)).sum();
        for (id, track) in &mut self.tracks {
            if *id == member {
                track.moved(-moved, at);
            } else {
                let part = track.deficit(fair) / deficits;
                track.moved(moved * part, at);
            }
        }
        self.add_up();
    }

    /// Makes the alert follow the judgement.
    fn ask(
        &mut self,
        member: MemberId,
        share: f64,
        report: &Report,
        inputs: Vec<(&'static str, f64)>,
    ) -> Option<Change> {
        if share <= 0.0 {
            let track = self.tracks.get_mut(&member)?;
            track.past = Some(track.alert.take()?);
            let why = format!("its load of {} is no longer too much", brief(report.effective));
            return Some(Change { raised: false, why, inputs });
        }
        let (epoch, gap, holds) = (self.next_epoch(), self.gap(member), self.holds);
        // The papers know no back-off.
        let period = if self.rule == Rule::Surplus { report.period } else { Duration::ZERO };
        let track = self.tracks.get_mut(&member)?;
        let shed = Shed { share: share as f32, gap, load: track.heard as f32, epoch, period };
        let (since, held, raised) = match &track.alert {
            Some(alert) => (alert.since, alert.held.filter(|_| holds), false),
            None => (report.at, holds.then_some(epoch), true),
        };
        track.alert = Some(Alert { member, shed, held, since, inputs: inputs.clone() });
        if !raised {
            return None;
        }
        let part = brief(100.0 * share);
        // What decides may be a mean of several reports.
        let decided = inputs.iter().find(|(name, _)| *name == "load").map_or(report.load, |(_, load)| *load);
        let (load, last) = (brief(decided), brief(report.load));
        let last = if load == last { String::new() } else { format!(" ({last} at last)") };
        let why = format!("its load of {load}{last} is too much; {part} % of its sessions are to go");
        Some(Change { raised: true, why, inputs })
    }

    /// The number of the next decision.
    fn next_epoch(&mut self) -> u32 {
        self.epoch = self.epoch.wrapping_add(1).max(1);
        self.epoch
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

/// Standard deviations by which a gap may be smaller than what was reported: who is as large as it is to stay. (With one, three equal sessions of 6
/// requests a second with two members move 0.020 times a minute each; with one and a half 0.009. Such a report scatters by about half of a session.)
const DOUBT: f64 = 1.5;

/// A smaller part of a member's sessions is not worth an alert.
const LEAST_SHARE: f64 = 1e-3;

/// A member's load counts for at most this many times the mean of the others.
const MOST_TIMES: f64 = 2.0;

#[cfg(test)]
mod tests;
