//! The state shared by the parts of an agent: the subjects with their values, and the sources that cannot be
//! read.

use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::http_client::ServerUrl;
use crate::metric_store::ValueSource;
use crate::report::MAX_AGE;
use crate::report_subject::ReportSubject;
use crate::sensor::UnreadSource;

/// The largest number of unreadable sources that are remembered as logged.
const MAX_LOGGED: usize = 1000;

/// The shared state.
pub(crate) struct AgentState {
    pub(crate) group: Option<String>,
    /// The subject of the sensors' values.
    pub(crate) machine: ReportSubject,
    /// The servers with values of their own.
    pub(crate) servers: Vec<ReportSubject>,
    started: Instant,
    /// Notified when a significant change is written.
    pub(crate) changed: Notify,
    unread: Mutex<UnreadLog>,
}

#[derive(Default)]
struct UnreadLog {
    sensors: Vec<UnreadSource>,
    scrape: Vec<UnreadSource>,
    logged: HashSet<(&'static str, String)>,
}

impl AgentState {
    /// Creates the state of a machine with one server, or with `servers` that have values of their own.
    pub(crate) fn new(
        group: Option<String>,
        member: Option<String>,
        servers: Vec<String>,
        targets: &[ServerUrl],
    ) -> Self {
        let has_servers = !servers.is_empty();
        Self {
            group,
            machine: ReportSubject::new(member, has_servers, targets),
            servers: servers
                .into_iter()
                .map(|member| ReportSubject::new(Some(member), true, targets))
                .collect(),
            started: Instant::now(),
            changed: Notify::new(),
            unread: Mutex::default(),
        }
    }

    /// Returns all subjects, the machine first.
    pub(crate) fn subjects(&self) -> impl Iterator<Item = &ReportSubject> {
        std::iter::once(&self.machine).chain(&self.servers)
    }

    /// Returns the subject with this index.
    pub(crate) fn subject(&self, subject_index: usize) -> Option<&ReportSubject> {
        self.subjects().nth(subject_index)
    }

    /// Returns the subject with this member address.
    pub(crate) fn subject_of_member(&self, member: &str) -> Option<&ReportSubject> {
        self.subjects().find(|subject| subject.member.as_deref() == Some(member))
    }

    /// Returns the time of the agent's clock, which starts at `MAX_AGE` so that no age reaches back before
    /// zero.
    pub(crate) fn now(&self) -> Duration {
        MAX_AGE + self.started.elapsed()
    }

    /// Writes a value of the machine; see [`Self::write_subject`].
    pub(crate) fn write(
        &self,
        name: &str,
        value: f64,
        source: ValueSource,
        age: Duration,
        is_share: bool,
    ) -> Result<(), String> {
        self.write_subject(&self.machine, name, value, source, age, is_share)
    }

    /// Writes a value of a subject that was read `age` ago, and notifies `changed` if the change is
    /// significant; see [`MetricStore::write`](crate::metric_store::MetricStore::write).
    pub(crate) fn write_subject(
        &self,
        subject: &ReportSubject,
        name: &str,
        value: f64,
        source: ValueSource,
        age: Duration,
        is_share: bool,
    ) -> Result<(), String> {
        let written_at = self.now().saturating_sub(age);
        if subject.metrics().write(name, value, source, written_at, is_share)? {
            self.changed.notify_one();
        }
        Ok(())
    }

    /// Replaces the list of sources that the sensors cannot read; logs the new ones.
    pub(crate) fn set_unread_sensors(&self, unread: Vec<UnreadSource>) {
        let mut unread_log = self.lock_unread();
        unread_log.log_new(&unread);
        unread_log.sensors = unread;
    }

    /// Replaces the list of what cannot be read on the scraped page; logs new entries.
    pub(crate) fn set_unread_metrics(&self, unread: Vec<UnreadSource>) {
        let mut unread_log = self.lock_unread();
        unread_log.log_new(&unread);
        unread_log.scrape = unread;
    }

    /// Returns all sources that cannot be read now.
    pub(crate) fn unread(&self) -> Vec<UnreadSource> {
        let unread_log = self.lock_unread();
        unread_log.sensors.iter().chain(&unread_log.scrape).cloned().collect()
    }

    fn lock_unread(&self) -> MutexGuard<'_, UnreadLog> {
        self.unread.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl UnreadLog {
    fn log_new(&mut self, unread: &[UnreadSource]) {
        for UnreadSource { sensor, what: source, why: reason } in unread {
            if self.logged.len() < MAX_LOGGED && self.logged.insert((sensor, source.clone())) {
                tracing::warn!("{sensor}: cannot read {source}: {reason}; going on without");
            }
        }
    }
}
