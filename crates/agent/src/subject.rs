//! Whom numbers are of: the machine with its server, and, where several servers of a machine are reported, each of
//! those besides. Each subject has a board and is reported under its own name, on connections of its own, so that a
//! balancer that does not know one of them hears of the others; and each is alerted by what answers to its own reports
//! say.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::alert::{Alerts, Decision, News};
use crate::board::Board;
use crate::link::Url;
use crate::push::Failure;

/// One of them.
pub(crate) struct Subject {
    /// Its address as balancers know it; without it there is nothing to report.
    pub(crate) member: Option<String>,
    /// Is it one of several? Then the log says which.
    several: bool,
    board: Mutex<Board>,
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

impl Subject {
    /// One that is reported to these.
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

    /// Its numbers; whoever has them must not wait for anything.
    pub(crate) fn board(&self) -> MutexGuard<'_, Board> {
        // Nobody leaves it half written, not even by a panic.
        lock(&self.board)
    }

    /// What balancers decided; whoever has it must not wait for anything.
    pub(crate) fn alerts(&self) -> MutexGuard<'_, Alerts> {
        lock(&self.alerts)
    }

    /// So many reports have arrived at the target with this number.
    pub(crate) fn delivered(&self, number: usize, reports: u64) {
        if let Some(tally) = lock(&self.targets).get_mut(number) {
            tally.reports += reports;
            if tally.trouble.take().is_some() {
                tracing::info!("reports{} to {} arrive again", self.of(), tally.target);
            }
        }
    }

    /// One has not.
    pub(crate) fn failed(&self, number: usize, Failure { kind, why }: Failure) {
        if let Some(tally) = lock(&self.targets).get_mut(number) {
            tally.failures += 1;
            if tally.trouble.replace(kind) != Some(kind) {
                let (of, target) = (self.of(), &tally.target);
                tracing::warn!("reports{of} to {target} do not arrive: {why}; trying again until they do");
            }
        }
    }

    /// What the target with this number wants shed, as its answer to a report at `now` said.
    pub(crate) fn asked(&self, number: usize, decision: Option<Decision>, now: Duration) {
        let news = self.alerts().heard(number, decision, now);
        self.say(news, Some(number));
    }

    /// Ends the alert of a balancer that has been silent until `now`.
    pub(crate) fn silent(&self, now: Duration) {
        let news = self.alerts().forget(now);
        self.say(news, None);
    }

    /// Tells what is news of an alert by this target.
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

    /// How the reports fare.
    pub(crate) fn tally(&self) -> Vec<Tally> {
        lock(&self.targets).clone()
    }

    /// ` of 10.0.0.1:80` where there are several.
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
