//! One process of the Supervisor: the command, the running process, and the reason of its state.

use std::path::PathBuf;
use std::time::Duration;

use plimsoll_admin::{LastExit, ProcessCommand, ProcessStatus};
use plimsoll_balancer::{HolderRequest, SocketSet};
use plimsoll_brain::Time;
use plimsoll_brain::supervision::{ExitCause, ProcessPhase, ProcessSupervision, RestartPolicy};
use plimsoll_config::{ProcessConfig, TimeSpan};
use tokio::net::unix::pipe::Receiver;

use super::clock::unix_ms;
use super::config_watch::FileFingerprint;
use super::held_sockets::HeldSockets;
use super::log_capture::ProcessLog;
use super::os_process::{ExitWaiter, LaunchSpec, SupervisedChild, find_successor};
use super::state_file::SavedProcess;
use crate::CommandLines;

/// A process under supervision.
pub(super) struct SupervisedProcess {
    pub(super) name: String,
    /// The launch in the present file.
    pub(super) launch: LaunchSpec,
    /// Its own configuration, if that is a file.
    pub(super) file: Option<PathBuf>,
    command_lines: CommandLines,
    /// The reason of its state, for people.
    pub(super) reason: String,
    pub(super) lifecycle: ProcessSupervision,
    pub(super) child: Option<SupervisedChild>,
    /// The number of the child.
    pub(super) child_number: Option<u64>,
    pub(super) log: ProcessLog,
    /// Its listening sockets, for its next process.
    pub(super) held_sockets: HeldSockets,
    /// The launch with which the child was started.
    running_launch: Option<LaunchSpec>,
    is_adopted: bool,
    /// Whether it is started with the Supervisor.
    autostart: bool,
    stop_timeout: Duration,
    /// The print of its file when it was started last.
    config_fingerprint: FileFingerprint,
    last_exit: Option<LastExit>,
    /// Whether it was removed from the file, and is only waited for.
    is_removed: bool,
}

impl SupervisedProcess {
    /// Returns one that has not begun.
    pub(super) fn new(
        process: &ProcessConfig,
        rules: RestartPolicy,
        log: ProcessLog,
        now: Time,
        command_lines: CommandLines,
    ) -> Self {
        let launch = LaunchSpec::of(process);
        Self {
            name: process.name.0.clone(),
            file: (command_lines.config_file)(&launch.command),
            command_lines,
            launch,
            reason: if process.start { "not started yet" } else { "not started yet: start = false" }.into(),
            lifecycle: ProcessSupervision::new(rules, now),
            child: None,
            child_number: None,
            log,
            held_sockets: HeldSockets::default(),
            running_launch: None,
            is_adopted: false,
            autostart: process.start,
            stop_timeout: rules.kill_timeout,
            config_fingerprint: FileFingerprint::default(),
            last_exit: None,
            is_removed: false,
        }
    }

    /// Returns one that runs and is not in the file any more.
    pub(super) fn from_orphan(
        kept: &SavedProcess,
        log: ProcessLog,
        now: Time,
        command_lines: CommandLines,
    ) -> Self {
        let launch = kept.running.as_ref().map(|(_, launch, _)| launch.clone());
        let launch = launch.unwrap_or_else(|| LaunchSpec { command: Vec::new(), environment: Vec::new() });
        let rules = RestartPolicy::default();
        Self {
            name: kept.name.clone(),
            file: None,
            command_lines,
            launch,
            reason: String::new(),
            lifecycle: ProcessSupervision::new(rules, now),
            child: None,
            child_number: None,
            log,
            held_sockets: HeldSockets::default(),
            running_launch: None,
            is_adopted: false,
            autostart: false,
            stop_timeout: rules.kill_timeout,
            config_fingerprint: FileFingerprint::default(),
            last_exit: None,
            is_removed: true,
        }
    }

    /// Starts it, if it begins with the Supervisor.
    pub(super) fn start_if_enabled(&mut self, now: Time) {
        if self.is_removed {
            self.stop(REMOVED_REASON, now);
        } else if self.autostart && self.lifecycle.phase() == ProcessPhase::Stopped {
            self.reason = "with the Supervisor".into();
            self.lifecycle.start(now);
        }
    }

    /// Restores one of an earlier Supervisor that does not run.
    pub(super) fn restore_stopped(&mut self, saved: &SavedProcess, random_bits: u64, now: Time) {
        self.last_exit.clone_from(&saved.last_exit);
        self.lifecycle = self.lifecycle.clone().with_history(saved.failures, saved.restarts);
        match saved.phase {
            // This is as good a time to try again as any.
            ProcessPhase::Failed => {}
            _ if saved.wanted => {
                self.lifecycle.record_missed_exit(random_bits, now);
                self.reason = format!("it ended while there was no Supervisor: {}", self.next_attempt(now));
                tracing::warn!("{}: {}", self.name, self.reason);
            }
            _ if self.autostart => {
                (self.autostart, self.reason) =
                    (false, "it was stopped under the Supervisor before, and stays so".into());
                tracing::info!("{}: {}: plimsoll supervise start {0}", self.name, self.reason);
            }
            _ => {}
        }
    }

    /// Restores one of an earlier Supervisor that still runs.
    pub(super) fn adopt(
        &mut self,
        saved: &SavedProcess,
        child: SupervisedChild,
        child_number: u64,
        now: Time,
    ) {
        self.last_exit.clone_from(&saved.last_exit);
        let run_time =
            saved.running.as_ref().map_or(0, |(.., started_ms)| unix_ms().saturating_sub(*started_ms));
        self.lifecycle = self.lifecycle.clone().with_history(saved.failures, saved.restarts);
        self.lifecycle.adopt(Duration::from_millis(run_time), now);
        self.running_launch = saved.running.as_ref().map(|(_, launch, _)| launch.clone());
        (self.child, self.child_number, self.is_adopted) = (Some(child), Some(child_number), true);
        self.reason = "found running".into();
        if !saved.wanted {
            self.stop("it was being stopped", now);
        }
    }

    /// Prepares for a start.
    pub(super) fn prepare(&mut self) {
        self.log.clear_last_lines();
        // The print is taken before the process reads the file, so that no later change goes unnoticed.
        self.config_fingerprint = self.file.as_deref().map(FileFingerprint::of).unwrap_or_default();
    }

    pub(super) fn record_start(&mut self, child: SupervisedChild, child_number: u64) {
        (self.child, self.child_number, self.is_adopted) = (Some(child), Some(child_number), false);
        self.running_launch = Some(self.launch.clone());
    }

    /// Follows another process that has taken over from the one that runs; it is ended if that was to end.
    pub(super) fn switch_child(&mut self, child: SupervisedChild, child_number: u64) {
        (self.child, self.child_number) = (Some(child), Some(child_number));
        self.reason = "taken over from the one before it".into();
        if self.lifecycle.phase() == ProcessPhase::Stopping {
            self.terminate();
        }
    }

    /// Returns the process that took over from the running one, if one did.
    pub(super) fn find_successor(&self) -> Option<(SupervisedChild, ExitWaiter, Option<Receiver>)> {
        let (child, launch) = self.child.as_ref().zip(self.running_launch.as_ref())?;
        SupervisedChild::adopt(find_successor(&child.identity, &launch.command)?)
    }

    /// Returns `true` if this is the id of its process.
    pub(super) fn has_pid(&self, pid: i32) -> bool {
        self.child.as_ref().is_some_and(|child| child.identity.pid == pid)
    }

    /// Returns `true` if the process of this id has taken over from its process.
    pub(super) fn is_succeeded_by(&self, pid: i32) -> bool {
        let Some((child, launch)) = self.child.as_ref().zip(self.running_launch.as_ref()) else {
            return false;
        };
        find_successor(&child.identity, &launch.command).is_some_and(|successor| successor.pid == pid)
    }

    /// Grants a request of its process for its sockets. Those of one that is to end are not held.
    pub(super) fn grant_sockets(&mut self, request: HolderRequest) -> SocketSet {
        match request {
            HolderRequest::Take => return self.held_sockets.copies(),
            HolderRequest::Hold(socket_set) if self.lifecycle.phase() == ProcessPhase::Running => {
                match self.held_sockets.replace(socket_set) {
                    0 => {}
                    1 => tracing::info!("{}: its listening socket is held for the next process", self.name),
                    sockets => {
                        tracing::info!(
                            "{}: its {sockets} listening sockets are held for the next process",
                            self.name
                        )
                    }
                }
            }
            HolderRequest::Hold(_) => self.held_sockets.close(),
        }
        SocketSet::default()
    }

    /// Holds its sockets for `hold`, as no process serves them any more.
    pub(super) fn hold_for(&mut self, hold_time: Duration, now: Time) {
        match hold_time {
            Duration::ZERO => self.held_sockets.close(),
            hold_time => self.held_sockets.expire_at(now + hold_time),
        }
    }

    /// Closes the held sockets if it is not to serve any more, or has not served for too long.
    pub(super) fn expire_sockets(&mut self, now: Time) {
        if !matches!(self.lifecycle.phase(), ProcessPhase::Running | ProcessPhase::BackingOff) {
            self.held_sockets.close();
        } else if self.held_sockets.close_expired(now) {
            tracing::warn!(
                "{}: its listening sockets are closed, and clients are refused: no process has served them \
                 in time \
                 ([supervise] hold_sockets)",
                self.name
            );
        }
    }

    /// Returns when it is to be looked at.
    pub(super) fn poll_timeout(&self) -> Option<Time> {
        self.lifecycle.poll_timeout().into_iter().chain(self.held_sockets.expires_at()).min()
    }

    /// Asks it to end.
    pub(super) fn terminate(&self) {
        if let Some((child, launch)) = self.child.as_ref().zip(self.running_launch.as_ref()) {
            child.terminate(&launch.command);
        }
    }

    /// Notes that it has ended, or could not be started.
    pub(super) fn record_exit(&mut self, exit_cause: ExitCause, reason: String, random_bits: u64, now: Time) {
        let was_stopping = self.lifecycle.phase() == ProcessPhase::Stopping;
        (self.child, self.child_number, self.is_adopted) = (None, None, false);
        self.lifecycle.record_exit(exit_cause, random_bits, now);
        let name = &self.name;
        match self.lifecycle.phase() {
            ProcessPhase::Stopped if was_stopping => tracing::info!("{name}: stopped: {reason}"),
            ProcessPhase::Stopped => {
                self.reason = format!("{reason}: somebody told it to end, not the Supervisor");
                tracing::info!("{name}: {}", self.reason);
            }
            ProcessPhase::Failed => {
                let file = self
                    .file
                    .as_ref()
                    .map_or_else(String::new, |file| format!("when {} changes, or ", file.display()));
                self.reason = format!(
                    "{reason}: its command line or configuration is wrong; it is started again {file}by \
                     plimsoll \
                     supervise start {name}"
                );
                tracing::error!("{name}: {}", self.reason);
            }
            ProcessPhase::BackingOff => {
                let failure_note = match self.lifecycle.failures() {
                    0 | 1 => String::new(),
                    failures => format!(", {failures} times in a row"),
                };
                self.reason = format!("{reason}{failure_note}: {}", self.next_attempt(now));
                tracing::warn!("{name}: {}", self.reason);
            }
            ProcessPhase::Running if !was_stopping => {
                self.reason = format!("{reason}: {}", self.next_attempt(now));
                tracing::warn!("{name}: {}", self.reason);
            }
            ProcessPhase::Running | ProcessPhase::Stopping => tracing::info!("{name}: {reason}"),
        }
        self.last_exit =
            Some(LastExit { ending: exit_cause, reason, unix_ms: unix_ms(), lines: self.log.last_lines() });
    }

    /// Looks at its file, if it waits for that to change.
    pub(super) fn check_config_file(&mut self, now: Time) {
        if self.lifecycle.phase() == ProcessPhase::Failed
            && let Some(file) = &self.file
            && FileFingerprint::of(file) != self.config_fingerprint
        {
            self.reason = format!("{} has changed", file.display());
            self.lifecycle.record_config_change(now);
        }
    }

    /// Handles the end of a pause or a timeout.
    pub(super) fn handle_timeout(&mut self, now: Time) {
        self.lifecycle.handle_timeout(now);
        if self.lifecycle.phase() == ProcessPhase::Running && self.child.is_none() {
            self.reason = match self.lifecycle.failures() {
                1 => "again, after a failure".into(),
                failures => format!("again, after {failures} failures in a row"),
            };
        }
    }

    /// Performs an act for a client.
    pub(super) fn command(&mut self, act: ProcessCommand, now: Time) -> Result<(), String> {
        if self.is_removed {
            return Err(format!("{} is being stopped: it is not in the file any more", self.name));
        }
        match act {
            ProcessCommand::Start => {
                if self.lifecycle.phase() != ProcessPhase::Running {
                    self.reason = "by an operator".into();
                }
                self.lifecycle.start(now);
            }
            ProcessCommand::Stop => self.stop("by an operator", now),
            ProcessCommand::Restart => {
                self.reason = "restarted by an operator".into();
                self.lifecycle.restart(now);
            }
            ProcessCommand::Reload => {
                let name = &self.name;
                let Some(child) =
                    self.child.as_ref().filter(|_| self.lifecycle.phase() == ProcessPhase::Running)
                else {
                    return Err(format!("{name} does not run: plimsoll supervise start {name}"));
                };
                if !child.hang_up() {
                    return Err(format!(
                        "{name} does not read its configuration again while it runs: plimsoll supervise \
                         restart {name}"
                    ));
                }
                tracing::info!("{name}: told to read its configuration again");
            }
        }
        Ok(())
    }

    pub(super) fn stop(&mut self, reason: &str, now: Time) {
        if self.lifecycle.phase() != ProcessPhase::Stopped {
            self.reason = format!("stopped: {reason}");
        }
        self.lifecycle.stop(now);
    }

    /// Applies the process's table in the file; returns the change.
    pub(super) fn update(
        &mut self,
        process: &ProcessConfig,
        rules: RestartPolicy,
        now: Time,
    ) -> Option<String> {
        let (launch, name) = (LaunchSpec::of(process), &self.name);
        self.lifecycle.set_policy(rules);
        (self.stop_timeout, self.autostart) = (rules.kill_timeout, process.start);
        if self.is_removed {
            let change = format!("+ process {name}");
            (self.file, self.launch, self.is_removed) =
                ((self.command_lines.config_file)(&launch.command), launch, false);
            self.reason = "it is in the file again".into();
            self.lifecycle.start(now);
            return Some(change);
        }
        if launch == self.launch {
            return None;
        }
        (self.file, self.launch) = ((self.command_lines.config_file)(&launch.command), launch);
        Some(match self.child {
            Some(_) => format!("~ process {name}: takes effect with plimsoll supervise restart {name}"),
            None => format!("~ process {name}"),
        })
    }

    /// Notes that the file does not have it any more; returns `false` if that was known.
    pub(super) fn mark_removed(&mut self, now: Time) -> bool {
        let is_new = !self.is_removed;
        if is_new {
            self.is_removed = true;
            self.stop(REMOVED_REASON, now);
        }
        is_new
    }

    /// Returns `true` if it was removed from the file, and has ended.
    pub(super) fn is_gone(&self) -> bool {
        self.is_removed && self.child.is_none() && self.lifecycle.phase() == ProcessPhase::Stopped
    }

    pub(super) fn stop_timeout(&self) -> Duration {
        self.stop_timeout
    }

    /// Returns its status.
    pub(super) fn status(&self, now: Time) -> ProcessStatus {
        let launch = self.running_launch.as_ref().filter(|_| self.child.is_some());
        let pause =
            self.lifecycle.poll_timeout().filter(|_| self.lifecycle.phase() == ProcessPhase::BackingOff);
        ProcessStatus {
            name: self.name.clone(),
            command: launch.unwrap_or(&self.launch).command.clone(),
            state: self.lifecycle.phase(),
            why: self.reason.clone(),
            since_unix_ms: self.started_ms(now),
            pid: self.child.as_ref().and_then(|child| u32::try_from(child.identity.pid).ok()),
            adopted: self.is_adopted,
            outdated: launch.is_some_and(|launch| *launch != self.launch) && !self.is_removed,
            restarts: self.lifecycle.restarts(),
            failures: self.lifecycle.failures(),
            next_start_unix_ms: pause.map(|due_at| unix_ms() + millis(due_at.since(now))),
            last_exit: self.last_exit.clone(),
            says: None,
        }
    }

    /// Returns its state for the next Supervisor.
    pub(super) fn saved_state(&self, now: Time) -> SavedProcess {
        let running_child = self.child.as_ref().zip(self.running_launch.clone());
        SavedProcess {
            name: self.name.clone(),
            phase: self.lifecycle.phase(),
            wanted: self.lifecycle.is_wanted(),
            failures: self.lifecycle.failures(),
            restarts: self.lifecycle.restarts(),
            running: running_child.map(|(child, launch)| (child.identity, launch, self.started_ms(now))),
            last_exit: self.last_exit.clone(),
        }
    }

    /// Returns that state without the values that only change with time.
    pub(super) fn state_key(&self) -> String {
        let identity = self.child.as_ref().map(|child| child.identity);
        let exit = self.last_exit.as_ref().map(|exit| exit.unix_ms);
        let (phase, is_wanted) = (self.lifecycle.phase(), self.lifecycle.is_wanted());
        format!("{} {phase:?} {is_wanted} {identity:?} {exit:?}\n", self.name)
    }

    fn started_ms(&self, now: Time) -> u64 {
        unix_ms().saturating_sub(millis(now.since(self.lifecycle.since())))
    }

    fn next_attempt(&self, now: Time) -> String {
        match self.lifecycle.poll_timeout() {
            Some(due_at) => format!("started again in {}", TimeSpan::millis(millis(due_at.since(now)))),
            None => "started again at once".into(),
        }
    }
}

const REMOVED_REASON: &str = "it is not in the file any more";

/// Returns how a process ended, in words.
pub(super) fn describe_exit(exit_cause: ExitCause) -> String {
    match exit_cause {
        ExitCause::Code(exit_code) => format!("exit code {exit_code}"),
        ExitCause::Signal(signal) => {
            match SIGNAL_NAMES.iter().find(|(signal_number, _)| *signal_number == signal) {
                Some((_, name)) => format!("killed by {name}"),
                None => format!("killed by signal {signal}"),
            }
        }
        ExitCause::Unstarted => "it cannot be started".into(),
        ExitCause::Unknown => "it ended, and only the Supervisor that started it would know how".into(),
    }
}

/// The signals that end processes, the same on all supported machines.
const SIGNAL_NAMES: [(i32, &str); 12] = [
    (1, "SIGHUP"),
    (2, "SIGINT"),
    (3, "SIGQUIT"),
    (4, "SIGILL"),
    (6, "SIGABRT"),
    (7, "SIGBUS"),
    (8, "SIGFPE"),
    (9, "SIGKILL"),
    (11, "SIGSEGV"),
    (13, "SIGPIPE"),
    (15, "SIGTERM"),
    (31, "SIGSYS"),
];

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}
