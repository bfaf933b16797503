//! A process under supervision: when it is started, told to end, killed, and started again.
//!
//! A value driven from outside, like the rest of the brain: [`Ward::start`], [`Ward::stop`], [`Ward::ended`] and their kin
//! say what happened, with the time; [`Ward::poll_order`] says what is to be done, [`Ward::poll_timeout`] when to call
//! [`Ward::handle_timeout`]. Calls may come in any order and too late.
//!
//! What a process ended with decides ([`Ending::meaning`]). One that failed is started again: at once after the first failure, then
//! after a pause that doubles with each failure in a row, from [`Rules::first`] to [`Rules::longest`]. A random part of up to a half
//! of each pause is taken off, so that processes that failed together do not come back together. For one that ran for
//! [`Rules::settled`] the next failure is the first again. It is never given up. One whose configuration is wrong would fail again: it waits until it is told
//! to start, or its configuration has changed. One that was told to stop stays stopped, whoever told it.

use alloc::collections::VecDeque;
use core::time::Duration;

use serde::{Deserialize, Serialize};

use crate::Time;

/// How long what takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// Pause after the second failure in a row, before the random part is taken off; after the first there is none.
    pub first: Duration,
    /// Longest pause.
    pub longest: Duration,
    /// Who ran for so long has not failed in a row.
    pub settled: Duration,
    /// From being told to end until being killed.
    pub patience: Duration,
}

impl Default for Rules {
    fn default() -> Self {
        let (first, minute) = (Duration::from_secs(1), Duration::from_secs(60));
        Self { first, longest: minute, settled: minute, patience: Duration::from_secs(30) }
    }
}

/// What a process is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// It is there.
    Running,
    /// It was told to end and has not yet.
    Stopping,
    /// It failed and is started again when its pause is over.
    BackingOff,
    /// Its configuration is wrong: it waits until that changes, or somebody starts it.
    Failed,
    /// It is not to run.
    Stopped,
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ending {
    /// By itself, with this exit code.
    Code(i32),
    /// By the signal of this number.
    Signal(i32),
    /// It could not be started.
    Unstarted,
    /// Nobody knows: it was the child of a process that is no more.
    Unknown,
}

/// What an ending says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meaning {
    /// Somebody told it to end.
    Told,
    /// Its command line or configuration is wrong: the same would come of trying again.
    Wrong,
    /// It failed.
    Failure,
}

impl Ending {
    /// By the exit codes of our own commands: 0 after an orderly stop, 130 after one at once, 2 for what is wrong. SIGTERM and
    /// SIGINT end those that had no time yet to listen for them.
    pub fn meaning(self) -> Meaning {
        match self {
            Self::Code(0 | 130) | Self::Signal(SIGINT | SIGTERM) => Meaning::Told,
            Self::Code(2) => Meaning::Wrong,
            Self::Code(_) | Self::Signal(_) | Self::Unstarted | Self::Unknown => Meaning::Failure,
        }
    }
}

const SIGINT: i32 = 2;
const SIGTERM: i32 = 15;

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Start it. If that fails, say so with [`Ward::ended`] and [`Ending::Unstarted`].
    Start,
    /// Tell it to end.
    Terminate,
    /// End it, now.
    Kill,
}

/// One process under supervision.
#[derive(Clone, Debug)]
pub struct Ward {
    rules: Rules,
    phase: Phase,
    /// Is it to run, as far as is up to us?
    wanted: bool,
    /// When the phase began.
    since: Time,
    /// When it was started last.
    begun: Time,
    failures: u32,
    restarts: u64,
    /// End of the pause, or of the patience.
    due: Option<Time>,
    orders: VecDeque<Order>,
}

impl Ward {
    /// One that does not run and is not to.
    pub fn new(rules: Rules, now: Time) -> Self {
        Self {
            rules,
            phase: Phase::Stopped,
            wanted: false,
            since: now,
            begun: now,
            failures: 0,
            restarts: 0,
            due: None,
            orders: VecDeque::new(),
        }
    }

    /// With what an earlier one counted: failures in a row, and restarts.
    pub fn recalling(self, failures: u32, restarts: u64) -> Self {
        Self { failures, restarts, ..self }
    }

    /// Other rules from now on; a pause or a patience that has begun stays as it is.
    pub fn rule(&mut self, rules: Rules) {
        self.rules = rules;
    }

    /// It is to run: now, or once it has ended. Who says so has seen to what made it fail.
    pub fn start(&mut self, now: Time) {
        self.wanted = true;
        match self.phase {
            Phase::Stopped | Phase::Failed | Phase::BackingOff => {
                self.failures = 0;
                self.begin(now);
            }
            Phase::Running | Phase::Stopping => {}
        }
    }

    /// It is not to run.
    pub fn stop(&mut self, now: Time) {
        self.wanted = false;
        match self.phase {
            Phase::Running => self.terminate(now),
            Phase::BackingOff | Phase::Failed => {
                self.failures = 0;
                self.enter(Phase::Stopped, None, now);
            }
            Phase::Stopping | Phase::Stopped => {}
        }
    }

    /// It is to end and to start again.
    pub fn restart(&mut self, now: Time) {
        self.start(now);
        // One that was started by this has an order waiting and nothing to end.
        if self.phase == Phase::Running && self.orders.back() != Some(&Order::Start) {
            self.terminate(now);
        }
    }

    /// It was found running, and has been for so long.
    pub fn adopted(&mut self, ran: Duration, now: Time) {
        self.wanted = true;
        self.begun = now - ran;
        self.enter(Phase::Running, None, now);
        self.since = self.begun;
    }

    /// It was found to have ended, unseen, while it was to run: a failure like another.
    pub fn missed(&mut self, chance: u64, now: Time) {
        self.wanted = true;
        self.fail(chance, now);
    }

    /// It has ended. `chance` is random bits.
    pub fn ended(&mut self, ending: Ending, chance: u64, now: Time) {
        match self.phase {
            Phase::Running => match ending.meaning() {
                Meaning::Told => {
                    (self.wanted, self.failures) = (false, 0);
                    self.enter(Phase::Stopped, None, now);
                }
                Meaning::Wrong => self.enter(Phase::Failed, None, now),
                Meaning::Failure => self.fail(chance, now),
            },
            Phase::Stopping if self.wanted => {
                self.restarts += 1;
                self.begin(now);
            }
            Phase::Stopping => {
                self.failures = 0;
                self.enter(Phase::Stopped, None, now);
            }
            Phase::BackingOff | Phase::Failed | Phase::Stopped => {}
        }
        // Nobody is left to be told or killed.
        self.orders.retain(|order| *order == Order::Start);
    }

    /// What it is configured by has changed: worth a try, if it failed for that.
    pub fn changed(&mut self, now: Time) {
        if self.phase == Phase::Failed {
            self.restarts += 1;
            self.begin(now);
        }
    }

    /// When [`Ward::handle_timeout`] wants to be called.
    pub fn poll_timeout(&self) -> Option<Time> {
        self.due
    }

    /// The time that [`Ward::poll_timeout`] said has come. Harmless at any other.
    pub fn handle_timeout(&mut self, now: Time) {
        if self.due.is_none_or(|due| due > now) {
            return;
        }
        self.due = None;
        match self.phase {
            Phase::BackingOff => {
                self.restarts += 1;
                self.begin(now);
            }
            Phase::Stopping => self.orders.push_back(Order::Kill),
            Phase::Running | Phase::Failed | Phase::Stopped => {}
        }
    }

    /// What is to be done next.
    pub fn poll_order(&mut self) -> Option<Order> {
        self.orders.pop_front()
    }

    /// What it is doing.
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// Since when.
    pub fn since(&self) -> Time {
        self.since
    }

    /// Is it to run?
    pub fn wanted(&self) -> bool {
        self.wanted
    }

    /// Failures in a row.
    pub fn failures(&self) -> u32 {
        self.failures
    }

    /// How often it was started again.
    pub fn restarts(&self) -> u64 {
        self.restarts
    }

    fn begin(&mut self, now: Time) {
        self.begun = now;
        self.enter(Phase::Running, None, now);
        self.orders.push_back(Order::Start);
    }

    fn terminate(&mut self, now: Time) {
        self.enter(Phase::Stopping, Some(now + self.rules.patience), now);
        self.orders.push_back(Order::Terminate);
    }

    fn fail(&mut self, chance: u64, now: Time) {
        let settled = now.since(self.begun) >= self.rules.settled;
        self.failures = if settled { 1 } else { self.failures.saturating_add(1) };
        if self.failures == 1 {
            self.restarts += 1;
            return self.begin(now);
        }
        self.enter(Phase::BackingOff, Some(now + pause(&self.rules, self.failures, chance)), now);
    }

    fn enter(&mut self, phase: Phase, due: Option<Time>, now: Time) {
        (self.phase, self.due, self.since) = (phase, due, now);
    }
}

/// Between a half and the whole of what so many failures in a row come to; two or more.
fn pause(rules: &Rules, failures: u32, chance: u64) -> Duration {
    // Beyond so many the longest is reached from any first pause.
    let doubled = rules.first.saturating_mul(1 << failures.saturating_sub(2).min(30));
    let whole = doubled.min(rules.longest);
    let off = (whole.as_nanos() / 2 * u128::from(chance >> 32)) >> 32;
    whole.saturating_sub(Duration::from_nanos(u64::try_from(off).unwrap_or(u64::MAX)))
}
