//! What the parts of an agent share: the subjects with their boards, and what cannot be read.

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

/// Most things that cannot be read and are remembered as said.
const SAID: usize = 1000;

/// What the parts share.
pub(crate) struct Shared {
    pub(crate) group: Option<String>,
    /// What the sensors read belongs to.
    pub(crate) whole: Subject,
    /// Servers that have numbers of their own besides.
    pub(crate) servers: Vec<Subject>,
    begin: Instant,
    /// Something was written that matters.
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
    /// Of a machine with one server, or with `servers` that have numbers of their own.
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

    /// All subjects, the whole first.
    pub(crate) fn subjects(&self) -> impl Iterator<Item = &Subject> {
        std::iter::once(&self.whole).chain(&self.servers)
    }

    /// One of them, by its place in that order.
    pub(crate) fn subject(&self, place: usize) -> Option<&Subject> {
        self.subjects().nth(place)
    }

    /// The subject that balancers know by this name.
    pub(crate) fn named(&self, member: &str) -> Option<&Subject> {
        self.subjects().find(|subject| subject.member.as_deref() == Some(member))
    }

    /// On the agent's own clock, which begins so late that no age goes back before it.
    pub(crate) fn now(&self) -> Duration {
        OLDEST + self.begin.elapsed()
    }

    /// Writes a number of the whole; see [`Self::write_of`].
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

    /// Writes a number of a subject that was read `age` ago, and says so if it matters; see
    /// [`Board::write`](crate::board::Board::write).
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

    /// What the sensors cannot read now; what is new is told.
    pub(crate) fn unread_by_sensors(&self, unread: Vec<Unread>) {
        let mut notes = self.notes();
        notes.say(&unread);
        notes.sensors = unread;
    }

    /// The same for the page that is scraped.
    pub(crate) fn unread_on_page(&self, unread: Vec<Unread>) {
        let mut notes = self.notes();
        notes.say(&unread);
        notes.scrape = unread;
    }

    /// All that cannot be read now.
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
