//! Rebinding: the members with more sessions than their share, and the part of those that is to move.
//!
//! Sessions bound once stay where they are while loads drift apart. The papers answer with *alerts*: a member
//! under alert sends its clients back to the group (Othman, O'Ryan, Schmidt 2001: on-demand binding). There a
//! threshold raises the alert, and no threshold fits two loads of a group. If it is too low, sessions move
//! for ever; if it is too high, nothing is balanced. An [`AlertRule`] selects either kind.
//!
//! Our rule, [`AlertRule::Surplus`], needs no number from the user. It compares loads in complete *rounds*,
//! by reports of a time in which no session moved:
//!
//! 1. The reports of each member give a load u and its noise, sigma ([`load_tracker`]). The load is *settled*
//!    once two successive reports agree. After a decision the members that give or get sessions are measured
//!    anew.
//! 2. A round ends when each member is settled and has reported since the last round, or when one has
//!    reported four times; then those that are not settled are left out.
//! 3. With c for capacity, the *fair* load is the mean of u, weighted by c. In the judgement of a member, no
//!    other's load counts for more than twice its own. So a member that reports wrongly, or is swamped, has a
//!    surplus and hides no other's.
//! 4. A member's *surplus* is (u - fair) c if u is above fair by more than 2.5 sigma; its *deficit* is
//!    (fair - u) c, where positive.
//! 5. Each session at a member with a surplus moves with probability surplus / (u c); a target is drawn in
//!    proportion to deficit. This is concurrent probabilistic migration (Berenbrink and others, Distributed
//!    selfish load balancing, 2006). With any number of balancers that hold the sessions, the expected move
//!    is the surplus.
//!
//! The rule cannot freeze. A decision depends on the loads of its round only, and a load forgets its past
//! once two reports show another one. A round ends after at most four reports of any member. The greatest
//! load is judged by the mean of all, and the greatest of numbers that differ is above their mean: if the
//! difference is beyond noise, its member is under alert. The longer reports agree, the smaller the noise
//! (down to 0.4 of a report's), so the loads of a group at rest are compared ever more closely.
//!
//! - If their sizes are known, sessions take turns instead of being drawn ([`MigrationProgress`]). A target
//!   that got its part is left out ([`Plan::sized_rebind_target`](crate::Plan::sized_rebind_target)). A
//!   session that is more of its member's load than that member has more than others stays, as it cannot be
//!   divided ([`should_sized_session_move`]); but it may be exchanged for a smaller one
//!   ([`SessionExchange`]).
//! - A session that moved may move again after twice the report period (a second at least), then four times,
//!   eight times ([`MoveHistory`]).
//!
//! With a drain hook, an alert is *held* first: it is in force, but moves no session until it is released.
//! Then it is decided anew, by the reports up to then.
//!
//! The papers' rules judge each report by itself. Under no rule are all members under alert at once. The
//! least loaded one and the last one without an alert are exempt, because moved sessions need a target, or
//! they move for ever.
//!
//! It is a value: reports go in, alerts come out. It knows no session; see [`should_session_move`].

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;
use core::time::Duration;

use crate::{MemberId, Time};
use load_tracker::{AGREEING_REPORTS, LoadTracker, WINDOW};

mod exchange;
mod load_tracker;
mod migration;
mod session;

pub use exchange::SessionExchange;
pub use migration::MigrationProgress;
pub use session::{
    MoveHistory, SessionSize, ShedDecision, may_session_escape, should_session_move,
    should_sized_session_move,
};

/// The rule by which a member is under alert.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum AlertRule {
    /// It has a surplus over the fair load that its reports' noise does not explain; the surplus is to move.
    Surplus,
    /// Its effective load is above this; all its sessions are to move.
    Critical(f64),
    /// Its effective load is above this many times the mean; all its sessions are to move.
    Mean(f64),
    /// Its effective load is above the mean and above this many times the least; all its sessions are to
    /// move.
    Least(f64),
}

/// An alert: a member has too much load.
#[derive(Clone, Debug, PartialEq)]
pub struct LoadAlert {
    /// The member.
    pub member: MemberId,
    /// The part of its sessions that is to move, decided with its last report.
    pub shed: ShedDecision,
    /// The alert's number while it is held: no session moves until
    /// [`Analyzer::release_alert`](crate::Analyzer::release_alert).
    pub held: Option<u32>,
    /// The time at which the alert was raised.
    pub since: Time,
    /// The numbers behind the decision, by name.
    pub inputs: Vec<(&'static str, f64)>,
}

/// An alert raised or cleared.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct AlertChange {
    pub(crate) member: MemberId,
    /// Whether it was raised, or else cleared.
    pub(crate) raised: bool,
    /// A sentence for display.
    pub(crate) why: String,
    /// The numbers behind the decision, by name.
    pub(crate) inputs: Vec<(&'static str, f64)>,
}

/// The result of a report.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ReportOutcome {
    /// Whether loads were compared, so that deficits are new.
    pub(crate) compared: bool,
    /// Whether another decision, or none, moves sessions from now on.
    pub(crate) decided: bool,
    pub(crate) changes: Vec<AlertChange>,
}

/// One report of a member's load.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MemberReport {
    /// The capacity relative to the other members; finite, above 0.
    pub(crate) capacity: f64,
    /// The reported load: how busy the member is for its size; finite, not negative.
    pub(crate) load: f64,
    /// The load averaged over reports.
    pub(crate) effective: f64,
    /// The time of the measurement.
    pub(crate) at: Time,
    /// The spacing of its reports.
    pub(crate) period: Duration,
}

/// The alerts of one group.
#[derive(Clone, Debug)]
pub(crate) struct GroupAlerts {
    rule: AlertRule,
    tracks: BTreeMap<MemberId, LoadTracker>,
    /// The number of the last decision that moves sessions; 0 for none yet.
    epoch: u32,
    /// Whether an alert is held when it is raised.
    holds: bool,
}

impl GroupAlerts {
    /// Returns the state without members.
    pub(crate) fn new(rule: AlertRule) -> Self {
        Self { rule, tracks: BTreeMap::new(), epoch: 0, holds: false }
    }

    /// Changes the rule, which judges each member with its next report.
    pub(crate) fn set_rule(&mut self, rule: AlertRule) {
        self.rule = rule;
    }

    /// Sets whether alerts are held when they are raised, until they are released. If not, held alerts are
    /// released with their members' next reports.
    pub(crate) fn set_holds(&mut self, holds: bool) {
        self.holds = holds;
    }

    /// Returns the alerts in force.
    pub(crate) fn alerts(&self) -> impl Iterator<Item = &LoadAlert> {
        self.tracks.values().filter_map(|track| track.alert.as_ref())
    }

    /// Returns the member's alert in force, or else its last one, by which sessions still move for a while.
    pub(crate) fn last_alert(&self, member: MemberId) -> Option<&LoadAlert> {
        let track = self.tracks.get(&member)?;
        track.alert.as_ref().or(track.previous_alert.as_ref())
    }

    /// Returns the member's alert in force.
    pub(crate) fn alert(&self, member: MemberId) -> Option<&LoadAlert> {
        self.tracks.get(&member)?.alert.as_ref()
    }

    /// Returns the load above which a member comes under alert at present; `None` while its reports do not
    /// show it. The least loaded member and the last one without an alert are exempt, whatever their load.
    pub(crate) fn alert_threshold(&self, member: MemberId) -> Option<f64> {
        let track = self.tracks.get(&member)?;
        let threshold = match self.rule {
            AlertRule::Surplus => track.fair + track.surplus_threshold()?,
            AlertRule::Critical(critical) => critical,
            AlertRule::Mean(factor) => self.mean() * factor,
            AlertRule::Least(factor) => {
                let lowest = self.tracks.values().map(|track| track.effective).fold(f64::INFINITY, f64::min);
                self.mean().max(lowest * factor)
            }
        };
        threshold.is_finite().then_some(threshold)
    }

    /// Returns the part of a member's sessions that is to move now.
    pub(crate) fn shed(&self, member: MemberId) -> ShedDecision {
        let alert = self.alert(member).filter(|alert| alert.held.is_none());
        alert.map(|alert| alert.shed).unwrap_or_default()
    }

    /// Returns the part of the others' surplus that a member can take, in units of capacity times load. It is
    /// 0 by the papers' rules, where the strategy alone chooses the target of a session.
    pub(crate) fn deficit(&self, member: MemberId) -> f64 {
        let track = self.tracks.get(&member).filter(|_| self.rule == AlertRule::Surplus);
        track.map_or(0.0, |track| track.deficit)
    }

    /// Records a member's report. By the papers' rules it decides whether that member is under alert; by ours
    /// it may complete a round.
    pub(crate) fn record_report(&mut self, member: MemberId, report: &MemberReport) -> ReportOutcome {
        let track = self.tracks.entry(member).or_insert_with(|| LoadTracker::new(report));
        let counts = track.record_report(report);
        if self.rule != AlertRule::Surplus {
            let (share, inputs) = self.judge(member);
            let mut outcome = ReportOutcome { compared: true, ..ReportOutcome::default() };
            self.update_alert(member, share, inputs, &mut outcome);
            return outcome;
        }
        let waited_enough = track.reports >= 2 * AGREEING_REPORTS;
        let has_reported = |track: &LoadTracker| track.reports > 0 && track.is_settled();
        if counts && (waited_enough || self.tracks.values().all(has_reported)) {
            self.compare(report.at)
        } else {
            ReportOutcome::default()
        }
    }

    /// Ends a round: compares the settled loads, and decides on alerts.
    fn compare(&mut self, now: Time) -> ReportOutcome {
        let mut outcome = ReportOutcome { compared: true, ..ReportOutcome::default() };
        let settled = self.tracks.iter().filter(|(_, track)| track.is_settled());
        let members: Vec<MemberId> = settled.map(|(id, _)| *id).collect();
        self.set_fair();
        for member in members {
            let (share, inputs) = self.surplus(member);
            self.update_alert(member, share, inputs, &mut outcome);
        }
        self.tracks.values_mut().for_each(|track| track.reports = 0);
        self.expect_session_moves(now);
        outcome
    }

    /// Changes the loads of members that give or get sessions from now on to the expected ones.
    fn expect_session_moves(&mut self, now: Time) {
        let session_load_given = |track: &LoadTracker| {
            let alert = track.alert.as_ref().filter(|alert| alert.held.is_none() && track.is_settled());
            alert.map_or(0.0, |alert| f64::from(alert.shed.share) * track.load * track.capacity)
        };
        let (total_given, total_deficit) =
            self.tracks.values().fold((0.0, 0.0), |(total_given, total_deficit), track| {
                (total_given + session_load_given(track), total_deficit + track.deficit)
            });
        if self.rule == AlertRule::Surplus && total_given > 0.0 {
            for track in self.tracks.values_mut() {
                let load_change =
                    if total_deficit > 0.0 { total_given * track.deficit / total_deficit } else { 0.0 }
                        - session_load_given(track);
                track.expect_load_change(load_change / track.capacity, now);
            }
        }
    }

    /// Releases a held alert: it moves sessions from `now` on, by a new decision, which may be none. Returns
    /// `false` if another alert is in force, or none.
    pub(crate) fn release(&mut self, member: MemberId, held_epoch: u32, now: Time) -> bool {
        if self.alert(member).is_none_or(|alert| alert.held != Some(held_epoch)) {
            return false;
        }
        if self.rule == AlertRule::Surplus {
            self.set_fair();
        }
        let (share, inputs) = self.judge(member);
        let (epoch, gap) = (self.next_epoch(), self.gap(member));
        if let Some(track) = self.tracks.get_mut(&member) {
            let load = track.load as f32;
            if let Some(alert) = &mut track.alert {
                alert.shed = ShedDecision { share: share as f32, gap, load, epoch, ..alert.shed };
                (alert.held, alert.inputs) = (None, inputs);
            }
        }
        self.expect_session_moves(now);
        true
    }

    /// Removes a member that left, is out of use, or reports no more. Returns the end of its alert.
    pub(crate) fn forget(&mut self, member: MemberId) -> Option<AlertChange> {
        let removed = self.tracks.remove(&member)?;
        let reason = "it is out of use or reports no more".into();
        removed.alert.map(|alert| AlertChange { member, raised: false, why: reason, inputs: alert.inputs })
    }

    /// Returns `true` if it is the only one that is not under alert.
    fn is_last(&self, member: MemberId) -> bool {
        self.tracks.iter().all(|(id, track)| *id == member || track.alert.is_some())
    }

    /// Returns `true` if it is the least loaded; of equals the one that was configured first.
    fn is_least(&self, member: MemberId, effective: f64) -> bool {
        self.tracks.iter().all(|(id, track)| *id == member || (effective, member) < (track.effective, *id))
    }

    fn mean(&self) -> f64 {
        self.tracks.values().map(|track| track.effective).sum::<f64>() / self.tracks.len() as f64
    }

    /// Returns the part of its sessions that a member is to give away, and the numbers behind it.
    fn judge(&self, member: MemberId) -> (f64, Vec<(&'static str, f64)>) {
        let Some(track) = self.tracks.get(&member) else { return (0.0, Vec::new()) };
        let (effective, mean) = (track.effective, self.mean());
        let share_if = |exceeds: bool| {
            let sheds = exceeds && !self.is_last(member) && !self.is_least(member, effective);
            if sheds { 1.0 } else { 0.0 }
        };
        match self.rule {
            AlertRule::Surplus => self.surplus(member),
            AlertRule::Critical(critical) => {
                (share_if(effective > critical), vec![("load", effective), ("critical", critical)])
            }
            AlertRule::Mean(factor) => {
                let inputs = vec![("load", effective), ("mean", mean), ("tolerance", factor)];
                (share_if(effective > mean * factor), inputs)
            }
            AlertRule::Least(factor) => {
                let others = self.tracks.values().map(|track| track.effective);
                let lowest = if effective > mean { others.fold(effective, f64::min) } else { effective };
                let inputs =
                    vec![("load", effective), ("mean", mean), ("least", lowest), ("tolerance", factor)];
                (share_if(effective > mean && effective > lowest * factor), inputs)
            }
        }
    }

    /// Sets the fair load of each member, and its deficit below the least fair load of members with a
    /// surplus.
    fn set_fair(&mut self) {
        let settled = self.tracks.values().filter(|track| track.is_settled());
        let mut loads: Vec<(f64, f64)> = settled.map(|track| (track.load, track.capacity)).collect();
        loads.sort_unstable_by(|(left, _), (right, _)| left.total_cmp(right));
        // For each position in that order: the load and the capacity of the members before it.
        let mut sums = vec![(0.0, 0.0)];
        let (mut load, mut capacity) = (0.0, 0.0);
        for (member_load, member_capacity) in &loads {
            (load, capacity) = (load + member_load * member_capacity, capacity + member_capacity);
            sums.push((load, capacity));
        }
        let mut lowest_fair = load / capacity;
        for track in self.tracks.values_mut() {
            let max_load = MAX_LOAD_FACTOR * track.load;
            let (load_below, capacity_below) = sums[loads.partition_point(|(load, _)| *load <= max_load)];
            track.fair = (load_below + max_load * (capacity - capacity_below)) / capacity;
            if track.surplus() > 0.0 {
                lowest_fair = lowest_fair.min(track.fair);
            }
        }
        for track in self.tracks.values_mut() {
            let missing_load = if track.is_settled() { (lowest_fair - track.load).max(0.0) } else { 0.0 };
            track.deficit = missing_load * track.capacity;
        }
    }

    /// Returns the part of its sessions that a member is to give away by our rule, and the numbers behind it.
    fn surplus(&self, member: MemberId) -> (f64, Vec<(&'static str, f64)>) {
        let Some(track) = self.tracks.get(&member) else { return (0.0, Vec::new()) };
        let (load, fair, noise) = (track.load, track.fair, track.noise());
        let inputs = |share| vec![("load", load), ("fair", fair), ("noise", noise), ("share", share)];
        let share = track.surplus() / (load * track.capacity);
        // A result that is not a number moves no session.
        if !(share > MIN_SHARE && share <= 1.0) || self.is_last(member) {
            return (0.0, inputs(0.0));
        }
        let mut inputs = inputs(share);
        inputs.push(("largest", f64::from(self.gap(member))));
        (share, inputs)
    }

    /// Returns [`ShedDecision::gap`], reduced for noise ([`DOUBT`]). A session as large as the gap must stay
    /// in spite of noise; much smaller ones are not affected.
    fn gap(&self, member: MemberId) -> f32 {
        let Some(track) = self.tracks.get(&member).filter(|_| self.rule == AlertRule::Surplus) else {
            return f32::INFINITY;
        };
        let (mut deficit_sum, mut weighted_gap) = (0.0, 0.0);
        for other in self.tracks.values().filter(|other| other.deficit > 0.0) {
            // The move that makes both loads equal. Twice that makes them as uneven as before.
            let uncertainty =
                UNCERTAINTY_DEVIATIONS * libm::sqrt(track.load_variance() + other.load_variance());
            let equal_load_move = (track.load - other.load - uncertainty).max(0.0)
                / (1.0 / track.capacity + 1.0 / other.capacity);
            deficit_sum += other.deficit;
            weighted_gap += other.deficit * 2.0 * equal_load_move;
        }
        let gap = (weighted_gap / deficit_sum / (track.load * track.capacity)) as f32;
        // Without any deficit, no move helps.
        if gap.is_nan() { 0.0 } else { gap.clamp(0.0, 2.0) }
    }

    /// Raises, changes or clears the alert by the judgement.
    fn update_alert(
        &mut self,
        member: MemberId,
        share: f64,
        inputs: Vec<(&'static str, f64)>,
        outcome: &mut ReportOutcome,
    ) {
        if share <= 0.0 {
            let Some(track) = self.tracks.get_mut(&member).filter(|track| track.alert.is_some()) else {
                return;
            };
            track.previous_alert = track.alert.take();
            let reason = format!("its load of {} is no longer too much", format_brief(track.last.effective));
            outcome.decided = true;
            outcome.changes.push(AlertChange { member, raised: false, why: reason, inputs });
            return;
        }
        let (epoch, gap, holds) = (self.next_epoch(), self.gap(member), self.holds);
        // The papers have no back-off.
        let is_surplus = self.rule == AlertRule::Surplus;
        let Some(track) = self.tracks.get_mut(&member) else { return };
        let report = track.last;
        let (load, period) =
            if is_surplus { (track.load, report.period.max(WINDOW)) } else { (report.load, Duration::ZERO) };
        let shed = ShedDecision { share: share as f32, gap, load: load as f32, epoch, period };
        let (since, held, raised) = match &track.alert {
            Some(alert) => (alert.since, alert.held.filter(|_| holds), false),
            None => (report.at, holds.then_some(epoch), true),
        };
        outcome.decided |= held.is_none();
        track.alert = Some(LoadAlert { member, shed, held, since, inputs: inputs.clone() });
        if raised {
            let share_percent = format_brief(100.0 * share);
            // The deciding load may be a mean of several reports.
            let decided_load =
                inputs.iter().find(|(name, _)| *name == "load").map_or(report.load, |(_, load)| *load);
            let (load, last_load) = (format_brief(decided_load), format_brief(report.load));
            let last_load_note =
                if load == last_load { String::new() } else { format!(" ({last_load} at last)") };
            let reason = format!(
                "its load of {load}{last_load_note} is too much; {share_percent} % of its sessions are to go"
            );
            outcome.changes.push(AlertChange { member, raised, why: reason, inputs });
        }
    }

    /// Returns the number of the next decision.
    fn next_epoch(&mut self) -> u32 {
        self.epoch = self.epoch.wrapping_add(1).max(1);
        self.epoch
    }
}

/// Formats a number with the digits that a reader needs.
fn format_brief(value: f64) -> String {
    match value {
        ..10.0 => format!("{value:.2}"),
        ..1e9 => format!("{value:.0}"),
        _ => format!("{value:e}"),
    }
}

/// The standard deviations by which a gap is reduced: a session that is as large as the gap must stay. With
/// one and a half, noise moves equal sessions between members now and then.
const UNCERTAINTY_DEVIATIONS: f64 = 2.0;

/// The smallest part of a member's sessions that justifies an alert.
const MIN_SHARE: f64 = 1e-3;

/// The maximum load of another member in a judgement, as a multiple of the judged one's.
const MAX_LOAD_FACTOR: f64 = 2.0;

#[cfg(test)]
mod tests;
