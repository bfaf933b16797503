//! What the parts of an agent share: the board, what cannot be read, and how the reports fare.

use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::alert::{Alerts, Decision};
use crate::board::{Board, Source};
use crate::link::Url;
use crate::push::Failure;
use crate::report::OLDEST;
use crate::sensor::Unread;

/// Most things that cannot be read and are remembered as said.
const SAID: usize = 1000;

/// What the parts share.
pub(crate) struct Shared {
    pub(crate) group: Option<String>,
    pub(crate) member: Option<String>,
    begin: Instant,
    board: Mutex<Board>,
    /// Something was written that matters.
    pub(crate) stirred: Notify,
    unread: Mutex<Notes>,
    targets: Mutex<Vec<Tally>>,
    alerts: Mutex<Alerts>,
}

/// How reports to one balancer fare.
#[derive(Clone, Debug)]
pub(crate) struct Tally {
    pub(crate) target: String,
    pub(crate) reports: u64,
    pub(crate) failures: u64,
    /// Kind of the failure that was told last, if it lasts.
    trouble: Option<u16>,
}

impl Tally {
    /// Has the last report arrived?
    pub(crate) fn well(&self) -> bool {
        self.trouble.is_none()
    }
}

#[derive(Default)]
struct Notes {
    sensors: Vec<Unread>,
    scrape: Vec<Unread>,
    said: HashSet<(&'static str, String)>,
}

impl Shared {
    pub(crate) fn new(group: Option<String>, member: Option<String>, targets: &[Url]) -> Self {
        let tally = |url: &Url| Tally { target: url.to_string(), reports: 0, failures: 0, trouble: None };
        Self {
            group,
            member,
            begin: Instant::now(),
            board: Mutex::default(),
            stirred: Notify::new(),
            unread: Mutex::default(),
            targets: Mutex::new(targets.iter().map(tally).collect()),
            alerts: Mutex::new(Alerts::new(targets.len())),
        }
    }

    /// On the agent's own clock, which begins so late that no age goes back before it.
    pub(crate) fn now(&self) -> Duration {
        OLDEST + self.begin.elapsed()
    }

    /// The board; whoever has it must not wait for anything.
    pub(crate) fn board(&self) -> MutexGuard<'_, Board> {
        // Nobody leaves it half written, not even by a panic.
        self.board.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes a number that was read `age` ago, and says so if it matters; see [`Board::write`].
    pub(crate) fn write(
        &self,
        name: &str,
        value: f64,
        source: Source,
        age: Duration,
        share: bool,
    ) -> Result<(), String> {
        let at = self.now().saturating_sub(age);
        if self.board().write(name, value, source, at, share)? {
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

    /// So many reports have arrived at the target with this number.
    pub(crate) fn delivered(&self, number: usize, reports: u64) {
        if let Some(tally) = self.tallies().get_mut(number) {
            tally.reports += reports;
            if tally.trouble.take().is_some() {
                tracing::info!("reports to {} arrive again", tally.target);
            }
        }
    }

    /// What the target with this number wants shed, as its answer to a report said.
    pub(crate) fn asked(&self, number: usize, decision: Option<Decision>) {
        let news = self.alerts().heard(number, decision, self.now());
        if let (Some(share), Some(tally)) = (news, self.tallies().get(number)) {
            tracing::info!(
                "{} wants {:.0} % of the connections to go elsewhere",
                tally.target,
                share * 100.0
            );
        }
    }

    /// What balancers decided; whoever has it must not wait for anything.
    pub(crate) fn alerts(&self) -> MutexGuard<'_, Alerts> {
        self.alerts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One has not.
    pub(crate) fn failed(&self, number: usize, Failure { kind, why }: Failure) {
        if let Some(tally) = self.tallies().get_mut(number) {
            tally.failures += 1;
            if tally.trouble.replace(kind) != Some(kind) {
                tracing::warn!(
                    "reports to {} do not arrive: {why}; trying again until they do",
                    tally.target
                );
            }
        }
    }

    /// How the reports fare.
    pub(crate) fn tally(&self) -> Vec<Tally> {
        self.tallies().clone()
    }

    fn tallies(&self) -> MutexGuard<'_, Vec<Tally>> {
        self.targets.lock().unwrap_or_else(PoisonError::into_inner)
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
