//! The subjects of reports: the machine with its server, and in addition each of several servers on it. Each
//! subject has its own values and is reported under its own name on its own connections. So a balancer that
//! does not know one of them still gets the others. Each subject gets its alerts from the answers to its own
//! reports.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::alert::{AlertEvent, AlertState, ShedDecision};
use crate::http_client::ServerUrl;
use crate::metric_store::MetricStore;
use crate::push::ReportFailure;

/// A subject of reports.
pub(crate) struct ReportSubject {
    /// The member address in the balancers' configuration; without it nothing is reported.
    pub(crate) member: Option<String>,
    /// Whether it is one of several, so that log lines name it.
    logs_member: bool,
    metrics: Mutex<MetricStore>,
    targets: Mutex<Vec<TargetCounts>>,
    alerts: Mutex<AlertState>,
}

/// The counts of reports to one balancer.
#[derive(Clone, Debug)]
pub(crate) struct TargetCounts {
    pub(crate) target: String,
    pub(crate) reports: u64,
    pub(crate) failures: u64,
    /// The kind of the failure that was logged last, if it persists.
    logged_failure: Option<u16>,
}

impl TargetCounts {
    /// Returns `true` if the last report arrived.
    pub(crate) fn is_healthy(&self) -> bool {
        self.logged_failure.is_none()
    }
}

impl ReportSubject {
    /// Creates a subject that is reported to these targets.
    pub(crate) fn new(member: Option<String>, logs_member: bool, targets: &[ServerUrl]) -> Self {
        let new_counts = |url: &ServerUrl| TargetCounts {
            target: url.to_string(),
            reports: 0,
            failures: 0,
            logged_failure: None,
        };
        Self {
            member,
            logs_member,
            metrics: Mutex::default(),
            targets: Mutex::new(targets.iter().map(new_counts).collect()),
            alerts: Mutex::new(AlertState::new(targets.len())),
        }
    }

    /// Locks its values; the holder must not wait.
    pub(crate) fn metrics(&self) -> MutexGuard<'_, MetricStore> {
        // No writer leaves it inconsistent, not even by a panic.
        lock(&self.metrics)
    }

    /// Locks the balancers' decisions; the holder must not wait.
    pub(crate) fn alerts(&self) -> MutexGuard<'_, AlertState> {
        lock(&self.alerts)
    }

    /// Records that this number of reports arrived at the target with this number.
    pub(crate) fn record_delivered(&self, target_index: usize, reports: u64) {
        if let Some(counts) = lock(&self.targets).get_mut(target_index) {
            counts.reports += reports;
            if counts.logged_failure.take().is_some() {
                tracing::info!("reports{} to {} arrive again", self.log_suffix(), counts.target);
            }
        }
    }

    /// Records a report that did not arrive.
    pub(crate) fn record_failed(
        &self,
        target_index: usize,
        ReportFailure { kind, why: reason }: ReportFailure,
    ) {
        if let Some(counts) = lock(&self.targets).get_mut(target_index) {
            counts.failures += 1;
            if counts.logged_failure.replace(kind) != Some(kind) {
                let (subject_suffix, target) = (self.log_suffix(), &counts.target);
                tracing::warn!(
                    "reports{subject_suffix} to {target} do not arrive: {reason}; trying again until they do"
                );
            }
        }
    }

    /// Records the decision in the answer of a target to a report at `now`.
    pub(crate) fn record_answer(&self, target_index: usize, decision: Option<ShedDecision>, now: Duration) {
        let event = self.alerts().record_decision(target_index, decision, now);
        self.log_event(event, Some(target_index));
    }

    /// Ends the alert of a balancer that has not answered until `now`.
    pub(crate) fn expire_alert(&self, now: Duration) {
        let event = self.alerts().expire(now);
        self.log_event(event, None);
    }

    /// Logs an event of an alert from this target.
    fn log_event(&self, event: Option<AlertEvent>, target_index: Option<usize>) {
        let subject_suffix = self.log_suffix();
        match event {
            Some(AlertEvent::Shed(share)) => {
                let targets = lock(&self.targets);
                let target = target_index.and_then(|index| targets.get(index));
                let (target, percent) = (target.map_or("a balancer", |counts| &counts.target), share * 100.0);
                tracing::info!(
                    "{target} wants {percent:.0} % of the connections{subject_suffix} to go elsewhere"
                );
            }
            Some(AlertEvent::Ended) => {
                tracing::info!("no connections{subject_suffix} are to go elsewhere any more")
            }
            None => {}
        }
    }

    /// Returns the counts of reports.
    pub(crate) fn target_counts(&self) -> Vec<TargetCounts> {
        lock(&self.targets).clone()
    }

    /// Returns ` of 10.0.0.1:80` if there are several subjects, else an empty string.
    fn log_suffix(&self) -> String {
        self.member
            .as_ref()
            .filter(|_| self.logs_member)
            .map_or_else(String::new, |member| format!(" of {member}"))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
