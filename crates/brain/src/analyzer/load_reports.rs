//! Monitors' reports: loads, usage, and the alerts that follow from them.

use core::time::Duration;

use serde::{Deserialize, Serialize};

use super::smoothed_load::{self, LoadReports};
use super::{Analyzer, GroupSpec};
use crate::rebind::{AlertChange, GroupAlerts, MemberReport, ReportOutcome};
use crate::{EventKind, LoadAlert, MemberId, ReportedLoad, Time, UsageReport};

impl Analyzer {
    /// Records a load report of a member, in the unit of the group's metric: how busy the member is for its
    /// size.
    ///
    /// Returns `false` and ignores the report if the load is not a number, infinite or negative, or the
    /// member is not known. The effective load is in the next plan ([`Member::effective`](crate::Member)). A
    /// report makes a new plan if the strategy reads loads, and if it changes the moves of sessions; at most
    /// one in 100 ms.
    pub fn handle_load(&mut self, member: MemberId, load: ReportedLoad) -> bool {
        let is_valid = load.value.is_finite() && load.value >= 0.0;
        let Some(&index) = self.index_by_id.get(&member).filter(|_| is_valid) else { return false };
        self.advance(load.at);
        let dampening = self.params().get(self.spec.strategy, "dampening").unwrap_or(0.0);
        let entry = &mut self.entries[index];
        if entry.load.is_some_and(|last| last.at > load.at) {
            return true;
        }
        entry.load = Some(load);
        if entry.reports.as_ref().is_none_or(|reports| reports.report_weight(load.at).is_none()) {
            entry.load_attribution.forget();
        }
        // Of a whole host's load, strategies use the part that the group causes, and follow the rest slowly.
        let value =
            if load.of_host { entry.load_attribution.attributed_load(load.value) } else { load.value };
        let load = ReportedLoad { value, ..load };
        let begun = entry.vitals.begun();
        match &mut entry.reports {
            Some(reports) if reports.report_weight(load.at).is_some() => reports.add(load, dampening, begun),
            empty => *empty = Some(LoadReports::new(load, begun)),
        }
        self.age_reports(index);
        if self.spec.strategy.reads_load {
            self.plan_soon(MIN_PLAN_INTERVAL);
        }
        self.evaluate_alert(index);
        true
    }

    /// Discards all reported loads because the metric has changed: none counts any more, and alerts end.
    pub fn forget_loads(&mut self, now: Time) {
        self.advance(now);
        for index in 0..self.entries.len() {
            let entry = &mut self.entries[index];
            (entry.load, entry.reports) = (None, None);
            self.forget_load(index);
        }
        if self.spec.strategy.reads_load {
            self.plan_soon(MIN_PLAN_INTERVAL);
        }
    }

    /// Sets the group's part of the load of a member's host, and the number of groups there: as
    /// [`SharedHosts::share`](crate::shared_hosts::SharedHosts::share) returns them.
    pub fn set_host_share(&mut self, member: MemberId, share: (f64, u32)) {
        if let Some(&index) = self.index_by_id.get(&member) {
            self.entries[index].load_attribution.set_share(share);
        }
    }

    /// Records a member's report of its work and utilization.
    ///
    /// Returns `false` and ignores the report if a number is not one, infinite or negative, or the member is
    /// not known. A report of no work or no utilization changes nothing: the previous one stays until it is
    /// too old.
    pub fn handle_usage(&mut self, member: MemberId, usage: UsageReport, now: Time) -> bool {
        let is_valid = |value: f64| value.is_finite() && value >= 0.0;
        let all_valid = is_valid(usage.rps) && is_valid(usage.utilization) && is_valid(usage.eps);
        let Some(&index) = self.index_by_id.get(&member).filter(|_| all_valid) else { return false };
        self.advance(now);
        if usage.rps > 0.0 && usage.utilization > 0.0 {
            let usage = UsageReport { at: usage.at.min(self.now), ..usage };
            let (_, expiry) = usage_times(&self.spec);
            let entry = &mut self.entries[index];
            let since = match &entry.usage_reports {
                Some(reports) if self.now.since(reports.last.at) < expiry => reports.since,
                _ => self.now,
            };
            entry.usage_reports = Some(UsageReports { last: usage, since });
            self.age_reports(index);
            if self.spec.strategy.reads_load {
                self.plan_soon(MIN_WEIGHT_INTERVAL);
            }
        }
        true
    }

    /// Sets whether clients of this group are bound on demand. If so, alerts are raised and cleared from now
    /// on.
    pub fn set_on_demand(&mut self, enabled: bool, now: Time) {
        self.advance(now);
        if enabled == self.alerts.is_some() {
            return;
        }
        if enabled {
            self.alerts = Some(GroupAlerts::new((self.spec.strategy.alert_rule)(&self.params())));
            self.entries.iter().for_each(|entry| entry.vitals.migration.reset_decisions());
            return;
        }
        for index in 0..self.entries.len() {
            self.forget_load(index);
        }
        self.alerts = None;
    }

    /// Sets whether a drain hook runs before sessions leave a member under alert.
    ///
    /// If so, each alert is held when it is raised, until [`Analyzer::release_alert`]. If not, held alerts
    /// are released with their members' next reports. It is to be set again after
    /// [`Analyzer::set_on_demand`].
    pub fn set_drain_hook(&mut self, enabled: bool) {
        if let Some(alerts) = &mut self.alerts {
            alerts.set_holds(enabled);
        }
    }

    /// Lets a member's alert move sessions from now on, if it is the one of this number
    /// ([`LoadAlert::held`]). Returns `false` if that alert is over.
    pub fn release_alert(&mut self, member: MemberId, held_epoch: u32, now: Time) -> bool {
        self.advance(now);
        let now = self.now;
        let released = self.alerts.as_mut().is_some_and(|alerts| alerts.release(member, held_epoch, now));
        if released {
            self.plan_soon(MIN_PLAN_INTERVAL);
        }
        released
    }

    /// Returns the member's alert in force, in groups that bind clients on demand.
    pub fn alert(&self, member: MemberId) -> Option<&LoadAlert> {
        self.alerts.as_ref()?.alert(member)
    }

    /// Returns the alerts in force, in groups that bind clients on demand.
    pub fn alerts(&self) -> impl Iterator<Item = &LoadAlert> {
        self.alerts.iter().flat_map(GroupAlerts::alerts)
    }

    /// Returns the member's alert in force, or else its last one, by which sessions that just left were
    /// moved.
    pub fn last_alert(&self, member: MemberId) -> Option<&LoadAlert> {
        self.alerts.as_ref()?.last_alert(member)
    }

    /// Returns the present effective loads of members whose reports still count. They raise alerts, and
    /// strategies that read loads choose by them.
    pub fn current_loads(&self, now: Time) -> impl Iterator<Item = (MemberId, f64)> {
        let mean = self.mean_load();
        let effective_load = move |entry: &super::AnalyzedMember| {
            Some((entry.id, entry.reports.as_ref()?.effective(mean, now)?.value))
        };
        self.entries.iter().filter_map(effective_load)
    }

    /// Returns the group's mean load, over members that may be chosen.
    pub(super) fn mean_load(&self) -> f64 {
        let usable = self.entries.iter().filter(|entry| entry.state.is_eligible());
        smoothed_load::mean(usable.filter_map(|entry| entry.reports.as_ref()), self.now)
    }

    /// Applies the alert rule of a new configuration.
    pub(super) fn apply_alert_rule(&mut self) {
        let rule = (self.spec.strategy.alert_rule)(&self.params());
        if let Some(alerts) = &mut self.alerts {
            alerts.set_rule(rule);
        }
    }

    /// Ages a member's reports, and sets the time of the next look.
    pub(super) fn age_reports(&mut self, index: usize) {
        let (now, last_planned, reads_load) = (self.now, self.last_planned, self.spec.strategy.reads_load);
        let (blackout, expiry) = usage_times(&self.spec);
        let entry = &mut self.entries[index];
        let mut next: Option<Time> = None;
        let mut schedule = |time: Time| next = Some(next.map_or(time, |next| next.min(time)));
        let mut changed = false;
        if let Some(reports) = &entry.reports {
            match reports.report_weight(now) {
                Some(weight) => {
                    changed = weight < 1.0;
                    schedule(reports.next_weight_change(now));
                }
                None => {
                    entry.reports = None;
                    changed = true;
                }
            }
        }
        if let Some(reports) = &entry.usage_reports {
            let (usable_from, expires_at) = (reports.since + blackout, reports.last.at + expiry);
            if now >= expires_at {
                entry.usage_reports = None;
                changed = true;
            } else if now < usable_from {
                schedule(usable_from.min(expires_at));
            } else {
                // Its weight counts from now on, or has for a while.
                changed |= last_planned < usable_from;
                schedule(expires_at);
            }
        }
        let is_silent = entry.reports.is_none();
        if let Some(next) = next {
            self.schedule_timeout(next);
        }
        if changed && reads_load {
            self.plan_soon(MIN_PLAN_INTERVAL);
        }
        if is_silent {
            self.forget_load(index);
        }
    }

    /// Ends a member's alert and its deficit: it is out of use, or reports no more.
    pub(super) fn forget_load(&mut self, index: usize) {
        let id = self.entries[index].id;
        if let Some(change) = self.alerts.as_mut().and_then(|alerts| alerts.forget(id)) {
            self.stale = true;
            self.emit_alert_change(change);
        }
    }

    /// Marks the plan as outdated once the time of a new plan by reports has come.
    pub(super) fn renew(&mut self) {
        match self.replan_at {
            Some(due) if due <= self.now => {
                self.replan_at = None;
                self.stale = true;
            }
            Some(due) => self.schedule_timeout(due),
            None => {}
        }
    }

    /// Requests a new plan, but not sooner than `apart` after the last one.
    fn plan_soon(&mut self, min_interval: Duration) {
        let due = self.now.max(self.last_planned + min_interval);
        self.replan_at = Some(self.replan_at.map_or(due, |planned_at| planned_at.min(due)));
        self.renew();
    }

    /// Applies the alert rule to a member that reported.
    fn evaluate_alert(&mut self, index: usize) {
        let entry = &self.entries[index];
        let (Some(alerts), Some(reports)) = (&mut self.alerts, &entry.reports) else { return };
        if !entry.state.is_eligible() {
            return;
        }
        let report = MemberReport {
            capacity: self.spec.members[index].capacity,
            load: reports.last.value,
            effective: reports.value,
            at: reports.last.at,
            period: reports.period(),
        };
        let ReportOutcome { compared, decided, changes } = alerts.record_report(entry.id, &report);
        if compared {
            self.entries.iter().for_each(|entry| entry.vitals.migration.record_report());
        }
        if decided {
            self.plan_soon(MIN_PLAN_INTERVAL);
        }
        changes.into_iter().for_each(|change| self.emit_alert_change(change));
    }

    fn emit_alert_change(&mut self, change: AlertChange) {
        let Some(&index) = self.index_by_id.get(&change.member) else { return };
        let kind = if change.raised { EventKind::AlertRaised } else { EventKind::AlertCleared };
        self.emit_member_event(index, kind, change.why, &change.inputs);
    }

    fn params(&self) -> crate::StrategyParams {
        self.spec.params.fit(self.spec.strategy)
    }
}

/// A member's reports of its work.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct UsageReports {
    last: UsageReport,
    /// The time of its first report without a long silence since.
    since: Time,
}

impl UsageReports {
    /// Returns the state of the previous process, if it is plausible.
    pub(super) fn restored(self, now: Time) -> Option<Self> {
        let UsageReport { rps, utilization, eps, at } = self.last;
        let is_valid = [rps, utilization, eps].iter().all(|value| value.is_finite() && *value >= 0.0);
        (is_valid && at <= now && self.since <= now).then_some(self)
    }

    /// Returns the last report, if it gives a weight now.
    pub(super) fn usage(&self, spec: &GroupSpec, now: Time) -> Option<UsageReport> {
        let (blackout, expiry) = usage_times(spec);
        (now.since(self.since) >= blackout && now.since(self.last.at) < expiry).then_some(self.last)
    }
}

/// Returns the time for which first reports give no weight, and the age from which a report gives none any
/// more.
fn usage_times(spec: &GroupSpec) -> (Duration, Duration) {
    let seconds = |name, default| {
        let seconds = spec.params.get(spec.strategy, name).unwrap_or(default);
        Duration::try_from_secs_f64(seconds).unwrap_or_default()
    };
    (seconds("blackout", BLACKOUT), seconds("expiry", EXPIRY))
}

/// The default of `blackout`, seconds; gRPC A58's.
const BLACKOUT: f64 = 10.0;

/// The default of `expiry`, seconds; gRPC A58's.
const EXPIRY: f64 = 180.0;

/// The minimum time between plans by loads and alerts.
const MIN_PLAN_INTERVAL: Duration = Duration::from_millis(100);

/// The minimum time between plans by usage, as in gRPC A58.
const MIN_WEIGHT_INTERVAL: Duration = Duration::from_secs(1);
