//! The supervision of a process: its start, termination, kill, and restart.
//!
//! It is a value driven from outside, like the rest of the brain. [`ProcessSupervision::start`],
//! [`ProcessSupervision::stop`], [`ProcessSupervision::record_exit`] and the like record what happened, with
//! the time. [`ProcessSupervision::poll_action`] returns the next action, and
//! [`ProcessSupervision::poll_timeout`] the time to call [`ProcessSupervision::handle_timeout`]. Calls may
//! come in any order and too late.
//!
//! The ending of a process decides ([`ExitCause::class`]):
//!
//! - A failed process is started again: at once after the first failure, then after a pause. The pause
//!   doubles with each failure in a row, from [`RestartPolicy::first`] to [`RestartPolicy::max_backoff`]. A
//!   random part of up to a half of each pause is subtracted, so that processes that failed together do not
//!   return together. After [`RestartPolicy::reset_after`] of running, the next failure is the first again.
//!   It is never given up.
//! - A process with a wrong configuration would fail again: it waits for a start command, or a change of its
//!   configuration.
//! - A process that was told to stop stays stopped, whichever the source of the command.

use alloc::collections::VecDeque;
use core::time::Duration;

use serde::{Deserialize, Serialize};

use crate::Time;

/// The time limits of supervision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RestartPolicy {
    /// The pause after the second failure in a row, before the random part is subtracted; after the first
    /// there is none.
    pub first: Duration,
    /// The longest pause.
    pub max_backoff: Duration,
    /// The time of running after which a failure is the first in a row.
    pub reset_after: Duration,
    /// The time from the termination signal to the kill.
    pub kill_timeout: Duration,
}

impl Default for RestartPolicy {
    fn default() -> Self {
        let (first, minute) = (Duration::from_secs(1), Duration::from_secs(60));
        Self { first, max_backoff: minute, reset_after: minute, kill_timeout: Duration::from_secs(30) }
    }
}

/// The state of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProcessPhase {
    /// It runs.
    Running,
    /// It was told to end and has not yet.
    Stopping,
    /// It failed and is started again when its pause is over.
    BackingOff,
    /// Its configuration is wrong: it waits for a change of that, or a start command.
    Failed,
    /// It is not to run.
    Stopped,
}

/// The ending of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExitCause {
    /// By itself, with this exit code.
    Code(i32),
    /// By the signal of this number.
    Signal(i32),
    /// It could not be started.
    Unstarted,
    /// Unknown, because its parent process is gone.
    Unknown,
}

/// The meaning of an ending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExitClass {
    /// It was told to end.
    Requested,
    /// Its command line or configuration is wrong: a retry would have the same result.
    Misconfigured,
    /// It failed.
    Failure,
}

impl ExitCause {
    /// Returns the meaning by the exit codes of our own commands: 0 after an orderly stop, 130 after an
    /// immediate one, 2 for a wrong configuration. SIGTERM and SIGINT end processes that do not handle them
    /// yet.
    pub fn class(self) -> ExitClass {
        match self {
            Self::Code(0 | 130) | Self::Signal(SIGINT | SIGTERM) => ExitClass::Requested,
            Self::Code(2) => ExitClass::Misconfigured,
            Self::Code(_) | Self::Signal(_) | Self::Unstarted | Self::Unknown => ExitClass::Failure,
        }
    }
}

const SIGINT: i32 = 2;
const SIGTERM: i32 = 15;

/// The time within which an orderly end after a start command is followed by a start. A process that another
/// command told to end is seen to run until it has ended.
const CONFIRMATION_WINDOW: Duration = Duration::from_secs(5);

/// The next action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessAction {
    /// Start it. A failure goes to [`ProcessSupervision::record_exit`] with [`ExitCause::Unstarted`].
    Start,
    /// Tell it to end.
    Terminate,
    /// Kill it.
    Kill,
}

/// A process under supervision.
#[derive(Clone, Debug)]
pub struct ProcessSupervision {
    policy: RestartPolicy,
    phase: ProcessPhase,
    /// Whether it is to run, by the commands so far.
    wanted: bool,
    /// The start of the phase.
    since: Time,
    /// The time of the last start.
    started_at: Time,
    /// The time of the last start command for the process that runs.
    confirmed_at: Option<Time>,
    failures: u32,
    restarts: u64,
    /// The end of the pause, or of the patience.
    due: Option<Time>,
    actions: VecDeque<ProcessAction>,
}

impl ProcessSupervision {
    /// Returns the supervision of a process that does not run and is not to.
    pub fn new(policy: RestartPolicy, now: Time) -> Self {
        Self {
            policy,
            phase: ProcessPhase::Stopped,
            wanted: false,
            since: now,
            started_at: now,
            confirmed_at: None,
            failures: 0,
            restarts: 0,
            due: None,
            actions: VecDeque::new(),
        }
    }

    /// Restores the counts of an earlier supervision: failures in a row, and restarts.
    pub fn with_history(self, failures: u32, restarts: u64) -> Self {
        Self { failures, restarts, ..self }
    }

    /// Applies other time limits; a running pause or patience stays as it is.
    pub fn set_policy(&mut self, policy: RestartPolicy) {
        self.policy = policy;
    }

    /// Starts it, now or once it has ended. A start command clears its failures.
    pub fn start(&mut self, now: Time) {
        self.wanted = true;
        match self.phase {
            ProcessPhase::Stopped | ProcessPhase::Failed | ProcessPhase::BackingOff => {
                self.failures = 0;
                self.begin(now);
            }
            ProcessPhase::Running => self.confirmed_at = Some(now),
            ProcessPhase::Stopping => {}
        }
    }

    /// Stops it.
    pub fn stop(&mut self, now: Time) {
        self.wanted = false;
        match self.phase {
            ProcessPhase::Running => self.terminate(now),
            ProcessPhase::BackingOff | ProcessPhase::Failed => {
                self.failures = 0;
                self.enter(ProcessPhase::Stopped, None, now);
            }
            ProcessPhase::Stopping | ProcessPhase::Stopped => {}
        }
    }

    /// Stops it and starts it again.
    pub fn restart(&mut self, now: Time) {
        self.start(now);
        // A process that this call starts has a pending start and nothing to end.
        if self.phase == ProcessPhase::Running && self.actions.back() != Some(&ProcessAction::Start) {
            self.terminate(now);
        }
    }

    /// Records that it was found running, for the time `ran`.
    pub fn adopt(&mut self, running_for: Duration, now: Time) {
        self.wanted = true;
        self.started_at = now - running_for;
        self.enter(ProcessPhase::Running, None, now);
        self.since = self.started_at;
    }

    /// Records that it was found to have ended, unseen, while it was to run: a failure like another.
    pub fn record_missed_exit(&mut self, random_bits: u64, now: Time) {
        self.wanted = true;
        self.fail(random_bits, now);
    }

    /// Records its ending. `chance` is random bits.
    pub fn record_exit(&mut self, cause: ExitCause, random_bits: u64, now: Time) {
        match self.phase {
            ProcessPhase::Running => match cause.class() {
                // The start command came while the process was ending.
                ExitClass::Requested
                    if self
                        .confirmed_at
                        .is_some_and(|confirmed_at| now.since(confirmed_at) <= CONFIRMATION_WINDOW) =>
                {
                    self.restarts += 1;
                    self.begin(now);
                }
                ExitClass::Requested => {
                    (self.wanted, self.failures) = (false, 0);
                    self.enter(ProcessPhase::Stopped, None, now);
                }
                ExitClass::Misconfigured => self.enter(ProcessPhase::Failed, None, now),
                ExitClass::Failure => self.fail(random_bits, now),
            },
            ProcessPhase::Stopping if self.wanted => {
                self.restarts += 1;
                self.begin(now);
            }
            ProcessPhase::Stopping => {
                self.failures = 0;
                self.enter(ProcessPhase::Stopped, None, now);
            }
            ProcessPhase::BackingOff | ProcessPhase::Failed | ProcessPhase::Stopped => {}
        }
        // No process is left to terminate or kill.
        self.actions.retain(|action| *action == ProcessAction::Start);
    }

    /// Records a change of its configuration: it is started, if it failed for that.
    pub fn record_config_change(&mut self, now: Time) {
        if self.phase == ProcessPhase::Failed {
            self.restarts += 1;
            self.begin(now);
        }
    }

    /// Returns the time of the next call of [`ProcessSupervision::handle_timeout`].
    pub fn poll_timeout(&self) -> Option<Time> {
        self.due
    }

    /// Handles the time that [`ProcessSupervision::poll_timeout`] returned. It is harmless at any other.
    pub fn handle_timeout(&mut self, now: Time) {
        if self.due.is_none_or(|due| due > now) {
            return;
        }
        self.due = None;
        match self.phase {
            ProcessPhase::BackingOff => {
                self.restarts += 1;
                self.begin(now);
            }
            ProcessPhase::Stopping => self.actions.push_back(ProcessAction::Kill),
            ProcessPhase::Running | ProcessPhase::Failed | ProcessPhase::Stopped => {}
        }
    }

    /// Returns the next action.
    pub fn poll_action(&mut self) -> Option<ProcessAction> {
        self.actions.pop_front()
    }

    /// Returns its phase.
    pub fn phase(&self) -> ProcessPhase {
        self.phase
    }

    /// Returns the start of the phase.
    pub fn since(&self) -> Time {
        self.since
    }

    /// Returns `true` if it is to run.
    pub fn is_wanted(&self) -> bool {
        self.wanted
    }

    /// Returns the failures in a row.
    pub fn failures(&self) -> u32 {
        self.failures
    }

    /// Returns the number of restarts.
    pub fn restarts(&self) -> u64 {
        self.restarts
    }

    fn begin(&mut self, now: Time) {
        (self.started_at, self.confirmed_at) = (now, None);
        self.enter(ProcessPhase::Running, None, now);
        self.actions.push_back(ProcessAction::Start);
    }

    fn terminate(&mut self, now: Time) {
        self.enter(ProcessPhase::Stopping, Some(now + self.policy.kill_timeout), now);
        self.actions.push_back(ProcessAction::Terminate);
    }

    fn fail(&mut self, random_bits: u64, now: Time) {
        let was_stable = now.since(self.started_at) >= self.policy.reset_after;
        self.failures = if was_stable { 1 } else { self.failures.saturating_add(1) };
        if self.failures == 1 {
            self.restarts += 1;
            return self.begin(now);
        }
        self.enter(
            ProcessPhase::BackingOff,
            Some(now + backoff(&self.policy, self.failures, random_bits)),
            now,
        );
    }

    fn enter(&mut self, phase: ProcessPhase, due: Option<Time>, now: Time) {
        (self.phase, self.due, self.since) = (phase, due, now);
    }
}

/// Returns a pause between a half and the whole of the doubled one, for two or more failures in a row.
fn backoff(policy: &RestartPolicy, failures: u32, random_bits: u64) -> Duration {
    // Beyond this number the longest is reached from any first pause.
    let doubled = policy.first.saturating_mul(1 << failures.saturating_sub(2).min(30));
    let max_pause = doubled.min(policy.max_backoff);
    let jitter = (max_pause.as_nanos() / 2 * u128::from(random_bits >> 32)) >> 32;
    max_pause.saturating_sub(Duration::from_nanos(u64::try_from(jitter).unwrap_or(u64::MAX)))
}
