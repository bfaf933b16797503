//! The subjects of reports: the machine with its server, and in addition each of several servers on it. Each
//! subject has its own values and is reported under its own name on its own connections. So a balancer that
//! does not know one of them still gets the others. Each subject gets its alerts from the answers to its own
//! reports.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::alert::{Alerts, Decision, News};
use crate::board::Board;
use crate::link::Url;
use crate::push::Failure;

/// A subject of reports.
pub(crate) struct Subject {
    /// The member address in the balancers' configuration; without it nothing is reported.
    pub(crate) member: Option<String>,
    /// Whether it is one of several, so that log lines name it.
    several: bool,
    board: Mutex<Board>,
    targets: Mutex<Vec<Tally>>,
    alerts: Mutex<Alerts>,
}

/// The counts of reports to one balancer.
#[derive(Clone, Debug)]
pub(crate) struct Tally {
    pub(crate) target: String,
    pub(crate) reports: u64,
    pub(crate) failures: u64,
    /// The kind of the failure that was logged last, if it persists.
    trouble: Option<u16>,
}

impl Tally {
    /// Returns `true` if the last report arrived.
    pub(crate) fn well(&self) -> bool {
        self.trouble.is_none()
    }
}

impl Subject {
    /// Creates a subject that is reported to these targets.
    pub(crate) fn new(member: Option<String>, several: bool, targets: &[Url]) -> Self {
        let tally = |url: &Url| Tally { target: url.to_string(), reports: 0, failures: 0, trouble: None };
        Self {
            member,
            several,
            board: Mutex::default(),
            targets: Mutex::new(targets.iter().map(tally).collect()),
            alerts: Mutex::new(Alerts::new(targets.len())),
        }
    }

    /// Locks its values; the holder must not wait.
    pub(crate) fn board(&self) -> MutexGuard<'_, Board> {
        // No writer leaves it inconsistent, not even by a panic.
        lock(&self.board)
    }

    /// Locks the balancers' decisions; the holder must not wait.
    pub(crate) fn alerts(&self) -> MutexGuard<'_, Alerts> {
        lock(&self.alerts)
    }

    /// Records that this number of reports arrived at the target with this number.
    pub(crate) fn delivered(&self, number: usize, reports: u64) {
        if let Some(tally) = lock(&self.targets).get_mut(number) {
            tally.reports += reports;
            if tally.trouble.take().is_some() {
                tracing::info!("reports{} to {} arrive again", self.of(), tally.target);
            }
        }
    }

    /// Records a report that did not arrive.
    pub(crate) fn failed(&self, number: usize, Failure { kind, why }: Failure) {
        if let Some(tally) = lock(&self.targets).get_mut(number) {
            tally.failures += 1;
            if tally.trouble.replace(kind) != Some(kind) {
                let (of, target) = (self.of(), &tally.target);
                tracing::warn!("reports{of} to {target} do not arrive: {why}; trying again until they do");
            }
        }
    }

    /// Records the decision in the answer of a target to a report at `now`.
    pub(crate) fn asked(&self, number: usize, decision: Option<Decision>, now: Duration) {
        let news = self.alerts().heard(number, decision, now);
        self.say(news, Some(number));
    }

    /// Ends the alert of a balancer that has not answered until `now`.
    pub(crate) fn silent(&self, now: Duration) {
        let news = self.alerts().forget(now);
        self.say(news, None);
    }

    /// Logs an event of an alert from this target.
    fn say(&self, news: Option<News>, number: Option<usize>) {
        let of = self.of();
        match news {
            Some(News::Shed(share)) => {
                let targets = lock(&self.targets);
                let target = number.and_then(|number| targets.get(number));
                let (target, percent) = (target.map_or("a balancer", |tally| &tally.target), share * 100.0);
                tracing::info!("{target} wants {percent:.0} % of the connections{of} to go elsewhere");
            }
            Some(News::Over) => tracing::info!("no connections{of} are to go elsewhere any more"),
            None => {}
        }
    }

    /// Returns the counts of reports.
    pub(crate) fn tally(&self) -> Vec<Tally> {
        lock(&self.targets).clone()
    }

    /// Returns ` of 10.0.0.1:80` if there are several subjects, else an empty string.
    fn of(&self) -> String {
        self.member
            .as_ref()
            .filter(|_| self.several)
            .map_or_else(String::new, |member| format!(" of {member}"))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
