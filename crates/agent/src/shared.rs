//! The state shared by the parts of an agent: the subjects with their values, and the sources that cannot be
//! read.

use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::board::Source;
use crate::link::Url;
use crate::report::OLDEST;
use crate::sensor::Unread;
use crate::subject::Subject;

/// The largest number of unreadable sources that are remembered as logged.
const SAID: usize = 1000;

/// The shared state.
pub(crate) struct Shared {
    pub(crate) group: Option<String>,
    /// The subject of the sensors' values.
    pub(crate) whole: Subject,
    /// The servers with values of their own.
    pub(crate) servers: Vec<Subject>,
    begin: Instant,
    /// Notified when a significant change is written.
    pub(crate) stirred: Notify,
    unread: Mutex<Notes>,
}

#[derive(Default)]
struct Notes {
    sensors: Vec<Unread>,
    scrape: Vec<Unread>,
    said: HashSet<(&'static str, String)>,
}

impl Shared {
    /// Creates the state of a machine with one server, or with `servers` that have values of their own.
    pub(crate) fn new(
        group: Option<String>,
        member: Option<String>,
        servers: Vec<String>,
        targets: &[Url],
    ) -> Self {
        let several = !servers.is_empty();
        Self {
            group,
            whole: Subject::new(member, several, targets),
            servers: servers.into_iter().map(|one| Subject::new(Some(one), true, targets)).collect(),
            begin: Instant::now(),
            stirred: Notify::new(),
            unread: Mutex::default(),
        }
    }

    /// Returns all subjects, the machine first.
    pub(crate) fn subjects(&self) -> impl Iterator<Item = &Subject> {
        std::iter::once(&self.whole).chain(&self.servers)
    }

    /// Returns the subject with this index.
    pub(crate) fn subject(&self, place: usize) -> Option<&Subject> {
        self.subjects().nth(place)
    }

    /// Returns the subject with this member address.
    pub(crate) fn named(&self, member: &str) -> Option<&Subject> {
        self.subjects().find(|subject| subject.member.as_deref() == Some(member))
    }

    /// Returns the time of the agent's clock, which starts at `OLDEST` so that no age reaches back before
    /// zero.
    pub(crate) fn now(&self) -> Duration {
        OLDEST + self.begin.elapsed()
    }

    /// Writes a value of the machine; see [`Self::write_of`].
    pub(crate) fn write(
        &self,
        name: &str,
        value: f64,
        source: Source,
        age: Duration,
        share: bool,
    ) -> Result<(), String> {
        self.write_of(&self.whole, name, value, source, age, share)
    }

    /// Writes a value of a subject that was read `age` ago, and notifies `stirred` if the change is
    /// significant; see [`Board::write`](crate::board::Board::write).
    pub(crate) fn write_of(
        &self,
        subject: &Subject,
        name: &str,
        value: f64,
        source: Source,
        age: Duration,
        share: bool,
    ) -> Result<(), String> {
        let at = self.now().saturating_sub(age);
        if subject.board().write(name, value, source, at, share)? {
            self.stirred.notify_one();
        }
        Ok(())
    }

    /// Replaces the list of sources that the sensors cannot read; logs the new ones.
    pub(crate) fn unread_by_sensors(&self, unread: Vec<Unread>) {
        let mut notes = self.notes();
        notes.say(&unread);
        notes.sensors = unread;
    }

    /// Replaces the list of what cannot be read on the scraped page; logs new entries.
    pub(crate) fn unread_on_page(&self, unread: Vec<Unread>) {
        let mut notes = self.notes();
        notes.say(&unread);
        notes.scrape = unread;
    }

    /// Returns all sources that cannot be read now.
    pub(crate) fn unread(&self) -> Vec<Unread> {
        let notes = self.notes();
        notes.sensors.iter().chain(&notes.scrape).cloned().collect()
    }

    fn notes(&self) -> MutexGuard<'_, Notes> {
        self.unread.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Notes {
    fn say(&mut self, unread: &[Unread]) {
        for Unread { sensor, what, why } in unread {
            if self.said.len() < SAID && self.said.insert((sensor, what.clone())) {
                tracing::warn!("{sensor}: cannot read {what}: {why}; going on without");
            }
        }
    }
}
