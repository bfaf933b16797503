//! The analyzer's output: events as they happen, and the state on request.

use alloc::borrow::ToOwned;
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::time::Duration;

use super::admin_state::LEAVING_REASON;
use super::{AnalyzedMember, Analyzer, MemberSpec};
use crate::status::{LatencySummary, LoadExplanation, MemberStatus};
use crate::{Event, EventKind, MemberId, MemberState, Time, meter};

impl Analyzer {
    /// Returns all members in the order of the configuration. Figures that only the data plane counts
    /// (requests, answers, bytes, connections, latency) are 0; the caller fills them in.
    pub fn status(&self, now: Time) -> Vec<(MemberId, MemberStatus)> {
        let now = now.max(self.now);
        let entries = self.entries.iter().zip(&self.spec.members);
        let mean = self.mean_load();
        let report_view = |entry: &AnalyzedMember| {
            entry.vitals.last_report.view().filter(|view| now.since(view.at) <= REPORT_EXPIRY)
        };
        let reported_knee =
            |entry: &AnalyzedMember| report_view(entry).map(|view| f64::from(view.reading.knee));
        let limit_of = |entry: &AnalyzedMember, spec: &MemberSpec| {
            let reported_knee = reported_knee(entry).filter(|_| self.spec.has_admission());
            Some(
                reported_knee
                    .map_or(spec.limit, |knee_value| meter::limit_at_knee(knee_value).min(spec.limit)),
            )
            .filter(|limit| *limit < u32::MAX)
        };
        let status = entries.map(|(entry, spec)| MemberStatus {
            name: spec.name.to_string(),
            address: spec.address.to_string(),
            state: entry.state,
            why: self.state_reason(entry),
            since_seconds: now.since(entry.since).as_secs_f64(),
            capacity: spec.capacity,
            weight: self.weight(entry, spec),
            in_flight: entry.vitals.in_flight(),
            in_flight_elsewhere: entry.vitals.peer_in_flight(),
            part: entry.vitals.part(),
            max_rate: entry.bucket.rate(),
            limit: limit_of(entry, spec),
            knee: reported_knee(entry),
            said_age_seconds: report_view(entry).map(|view| now.since(view.at).as_secs_f64()),
            load: entry.load.map(|load| LoadExplanation {
                value: load.value,
                age_seconds: now.since(load.at).as_secs_f64(),
            }),
            load_effective: entry
                .reports
                .as_ref()
                .and_then(|reports| Some(reports.effective(mean, now)?.value)),
            refused: BTreeMap::new(),
            slow_seconds: None,
            alert_share: self.alerts.as_ref().map_or(0.0, |alerts| f64::from(alerts.shed(entry.id).share)),
            idle_connections: 0,
            requests: 0,
            failures: 0,
            clients_left: 0,
            answers: BTreeMap::new(),
            connects: 0,
            bytes_out: 0,
            bytes_in: 0,
            moved: 0,
            leases: 0,
            host: None,
            latency: LatencySummary::default(),
            load_line: None,
        });
        self.entries.iter().map(|entry| entry.id).zip(status).collect()
    }

    /// Returns the mean of the effective loads of usable members; `None` without a report that counts.
    pub fn load(&self, now: Time) -> Option<f64> {
        let now = now.max(self.now);
        let has_current_report = |entry: &AnalyzedMember| {
            entry.state.is_eligible()
                && entry.reports.as_ref().is_some_and(|reports| reports.report_weight(now).is_some())
        };
        self.entries.iter().any(has_current_report).then(|| self.mean_load())
    }

    /// Returns the load above which part of a member's sessions is to leave, in the unit of the group's
    /// metric; `None` if no rule gives one, or too little is known.
    pub fn alert_threshold(&self, member: MemberId) -> Option<f64> {
        self.alerts.as_ref()?.alert_threshold(member)
    }

    /// Returns the effective load of a member; `None` without a report that counts.
    pub fn effective_load(&self, member: MemberId, now: Time) -> Option<f64> {
        let entry = self.entries.iter().find(|entry| entry.id == member)?;
        Some(entry.reports.as_ref()?.effective(self.mean_load(), now.max(self.now))?.value)
    }

    /// Returns `true` if the member is drained, or about to leave.
    pub fn is_draining(&self, member: MemberId) -> bool {
        self.entries.iter().any(|entry| entry.id == member && entry.is_draining())
    }

    /// Returns the members that are drained, about to leave or disabled: they get nothing new and keep their
    /// work.
    pub fn draining_members(&self) -> impl Iterator<Item = MemberId> {
        self.entries.iter().filter(|entry| entry.is_draining() || entry.disabled).map(|entry| entry.id)
    }

    /// Returns a line for display: `4/5 members up, 1 ejected`.
    pub fn verdict(&self) -> String {
        let members = self.entries.len();
        if members == 0 {
            return "no members".to_owned();
        }
        let noun = if members == 1 { "member" } else { "members" };
        let mut verdict = format!("{}/{members} {noun} up", self.usable);
        let count = |state: MemberState| self.entries.iter().filter(|entry| entry.state == state).count();
        for (state, description) in [
            (MemberState::Down, "down"),
            (MemberState::Unchecked, "not checked yet"),
            (MemberState::Ejected, "ejected"),
            (MemberState::Draining, "draining"),
            (MemberState::Disabled, "disabled"),
            (MemberState::SlowStart, "in slow start"),
        ] {
            if let count_in_state @ 1.. = count(state) {
                verdict.push_str(&format!(", {count_in_state} {description}"));
            }
        }
        verdict
    }

    /// Records an event of the member at `place`.
    pub(super) fn emit_member_event(
        &mut self,
        index: usize,
        kind: EventKind,
        reason: String,
        inputs: &[(&str, f64)],
    ) {
        let name = self.spec.members[index].name.clone();
        self.emit_event(kind, Some(name), reason, inputs);
    }

    /// Records an event of a member, or of the group.
    pub(super) fn emit_event(
        &mut self,
        kind: EventKind,
        member: Option<Arc<str>>,
        reason: String,
        inputs: &[(&str, f64)],
    ) {
        // Room for the events of one reload: all members leave and others join.
        if self.events.len() >= MAX_EVENTS.max(8 * self.entries.len()) {
            self.events.pop_front();
        }
        let inputs = inputs.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
        self.events.push_back(Event { kind, group: self.spec.name.clone(), member, why: reason, inputs });
    }

    /// Returns the error for a member name that does not exist.
    pub(super) fn unknown_member_error(&self, member: &str) -> String {
        let names: Vec<&str> = self.spec.members.iter().map(|spec| &*spec.name).take(MAX_NAMES).collect();
        let omitted = match self.spec.members.len() - names.len() {
            0 => String::new(),
            count => format!(" and {count} more"),
        };
        format!("group `{}` has no member `{member}`; it has {}{omitted}", self.spec.name, names.join(", "))
    }

    fn state_reason(&self, entry: &AnalyzedMember) -> String {
        match entry.state {
            _ if self.is_entry_outside(entry) => {
                let used_count = self.usable - self.aperture.outside.len().min(self.usable);
                format!(
                    "outside the aperture: this balancer uses {used_count} of {} members; {}",
                    self.usable, entry.health.why
                )
            }
            MemberState::Draining if entry.draining => entry.drained_by.reason().to_owned(),
            MemberState::Draining => LEAVING_REASON.to_owned(),
            MemberState::Disabled => "disabled by an operator".to_owned(),
            MemberState::Ejected => entry.ejection.why.clone(),
            MemberState::SlowStart => {
                format!("takes a growing part of its share for {} s", self.spec.slow_start.as_secs_f64())
            }
            MemberState::Up | MemberState::Unchecked | MemberState::Down => entry.health.why.clone(),
        }
    }
}

/// The minimum number of events kept for the caller.
const MAX_EVENTS: usize = 4096;

/// The time after which a load report is ignored.
const REPORT_EXPIRY: Duration = Duration::from_secs(10);

/// The maximum number of names in an error message.
const MAX_NAMES: usize = 20;
