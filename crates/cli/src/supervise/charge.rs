//! One process of the Supervisor: the command, the running process, and the reason of its state.

use std::path::PathBuf;
use std::time::Duration;

use plimsoll_admin::{Act, LastExit, ProcessStatus};
use plimsoll_brain::Time;
use plimsoll_brain::ward::{Ending, Phase, Rules, Ward};
use tokio::net::unix::pipe::Receiver;

use super::child::{Child, Launch, Wait, heir};
use super::clock::unix_ms;
use super::holding::Holding;
use super::lines::Scribe;
use super::state::Kept;
use super::watch::Print;
use crate::command::Command;
use crate::config::{Process, TimeSpan};
use crate::succession::{SocketSet, Wish};

/// A process under supervision.
pub(super) struct Charge {
    pub(super) name: String,
    /// The launch in the present file.
    pub(super) launch: Launch,
    /// Its own configuration, if that is a file.
    pub(super) file: Option<PathBuf>,
    /// The reason of its state, for people.
    pub(super) why: String,
    pub(super) ward: Ward,
    pub(super) child: Option<Child>,
    /// The number of the child.
    pub(super) number: Option<u64>,
    pub(super) scribe: Scribe,
    /// Its listening sockets, for its next process.
    pub(super) holding: Holding,
    /// The launch with which the child was started.
    runs: Option<Launch>,
    adopted: bool,
    /// Whether it is started with the Supervisor.
    start: bool,
    patience: Duration,
    /// The print of its file when it was started last.
    print: Print,
    last_exit: Option<LastExit>,
    /// Whether it was removed from the file, and is only waited for.
    leaving: bool,
}

impl Charge {
    /// Returns one that has not begun.
    pub(super) fn new(process: &Process, rules: Rules, scribe: Scribe, now: Time) -> Self {
        let launch = Launch::of(process);
        Self {
            name: process.name.0.clone(),
            file: file_of(&launch),
            launch,
            why: if process.start { "not started yet" } else { "not started yet: start = false" }.into(),
            ward: Ward::new(rules, now),
            child: None,
            number: None,
            scribe,
            holding: Holding::default(),
            runs: None,
            adopted: false,
            start: process.start,
            patience: rules.patience,
            print: Print::default(),
            last_exit: None,
            leaving: false,
        }
    }

    /// Returns one that runs and is not in the file any more.
    pub(super) fn stray(kept: &Kept, scribe: Scribe, now: Time) -> Self {
        let launch = kept.running.as_ref().map(|(_, launch, _)| launch.clone());
        let launch = launch.unwrap_or_else(|| Launch { command: Vec::new(), environment: Vec::new() });
        let rules = Rules::default();
        Self {
            name: kept.name.clone(),
            file: None,
            launch,
            why: String::new(),
            ward: Ward::new(rules, now),
            child: None,
            number: None,
            scribe,
            holding: Holding::default(),
            runs: None,
            adopted: false,
            start: false,
            patience: rules.patience,
            print: Print::default(),
            last_exit: None,
            leaving: true,
        }
    }

    /// Starts it, if it begins with the Supervisor.
    pub(super) fn begin(&mut self, now: Time) {
        if self.leaving {
            self.stop(OUT, now);
        } else if self.start && self.ward.phase() == Phase::Stopped {
            self.why = "with the Supervisor".into();
            self.ward.start(now);
        }
    }

    /// Restores one of an earlier Supervisor that does not run.
    pub(super) fn recall(&mut self, kept: &Kept, chance: u64, now: Time) {
        self.last_exit.clone_from(&kept.last_exit);
        self.ward = self.ward.clone().recalling(kept.failures, kept.restarts);
        match kept.phase {
            // This is as good a time to try again as any.
            Phase::Failed => {}
            _ if kept.wanted => {
                self.ward.missed(chance, now);
                self.why = format!("it ended while there was no Supervisor: {}", self.again(now));
                tracing::warn!("{}: {}", self.name, self.why);
            }
            _ if self.start => {
                (self.start, self.why) =
                    (false, "it was stopped under the Supervisor before, and stays so".into());
                tracing::info!("{}: {}: plimsoll supervise start {0}", self.name, self.why);
            }
            _ => {}
        }
    }

    /// Restores one of an earlier Supervisor that still runs.
    pub(super) fn adopt(&mut self, kept: &Kept, child: Child, number: u64, now: Time) {
        self.last_exit.clone_from(&kept.last_exit);
        let ran = kept.running.as_ref().map_or(0, |(.., since)| unix_ms().saturating_sub(*since));
        self.ward = self.ward.clone().recalling(kept.failures, kept.restarts);
        self.ward.adopted(Duration::from_millis(ran), now);
        self.runs = kept.running.as_ref().map(|(_, launch, _)| launch.clone());
        (self.child, self.number, self.adopted) = (Some(child), Some(number), true);
        self.why = "found running".into();
        if !kept.wanted {
            self.stop("it was being stopped", now);
        }
    }

    /// Prepares for a start.
    pub(super) fn prepare(&mut self) {
        self.scribe.begin();
        // The print is taken before the process reads the file, so that no later change goes unnoticed.
        self.print = self.file.as_deref().map(Print::of).unwrap_or_default();
    }

    pub(super) fn started(&mut self, child: Child, number: u64) {
        (self.child, self.number, self.adopted) = (Some(child), Some(number), false);
        self.runs = Some(self.launch.clone());
    }

    /// Follows another process that has taken over from the one that runs; it is ended if that was to end.
    pub(super) fn follow(&mut self, child: Child, number: u64) {
        (self.child, self.number) = (Some(child), Some(number));
        self.why = "taken over from the one before it".into();
        if self.ward.phase() == Phase::Stopping {
            self.terminate();
        }
    }

    /// Returns the process that took over from the running one, if one did.
    pub(super) fn heir(&self) -> Option<(Child, Wait, Option<Receiver>)> {
        let (child, runs) = self.child.as_ref().zip(self.runs.as_ref())?;
        Child::adopt(heir(&child.identity, &runs.command)?)
    }

    /// Returns `true` if this is the id of its process.
    pub(super) fn is(&self, pid: i32) -> bool {
        self.child.as_ref().is_some_and(|child| child.identity.pid == pid)
    }

    /// Returns `true` if the process of this id has taken over from its process.
    pub(super) fn is_followed_by(&self, pid: i32) -> bool {
        let Some((child, runs)) = self.child.as_ref().zip(self.runs.as_ref()) else { return false };
        heir(&child.identity, &runs.command).is_some_and(|heir| heir.pid == pid)
    }

    /// Grants a request of its process for its sockets. Those of one that is to end are not held.
    pub(super) fn grant(&mut self, wish: Wish) -> SocketSet {
        match wish {
            Wish::Take => return self.holding.give(),
            Wish::Hold(set) if self.ward.phase() == Phase::Running => match self.holding.replace(set) {
                0 => {}
                1 => tracing::info!("{}: its listening socket is held for the next process", self.name),
                sockets => {
                    tracing::info!(
                        "{}: its {sockets} listening sockets are held for the next process",
                        self.name
                    )
                }
            },
            Wish::Hold(_) => self.holding.close(),
        }
        SocketSet::default()
    }

    /// Holds its sockets for `hold`, as no process serves them any more.
    pub(super) fn hold_for(&mut self, hold: Duration, now: Time) {
        match hold {
            Duration::ZERO => self.holding.close(),
            hold => self.holding.expire(now + hold),
        }
    }

    /// Closes the held sockets if it is not to serve any more, or has not served for too long.
    pub(super) fn look_at_sockets(&mut self, now: Time) {
        if !matches!(self.ward.phase(), Phase::Running | Phase::BackingOff) {
            self.holding.close();
        } else if self.holding.look(now) {
            tracing::warn!(
                "{}: its listening sockets are closed, and clients are refused: no process has served them in time \
                 ([supervise] hold_sockets)",
                self.name
            );
        }
    }

    /// Returns when it is to be looked at.
    pub(super) fn poll_timeout(&self) -> Option<Time> {
        self.ward.poll_timeout().into_iter().chain(self.holding.due()).min()
    }

    /// Asks it to end.
    pub(super) fn terminate(&self) {
        if let Some((child, runs)) = self.child.as_ref().zip(self.runs.as_ref()) {
            child.terminate(&runs.command);
        }
    }

    /// Notes that it has ended, or could not be started.
    pub(super) fn ended(&mut self, ending: Ending, reason: String, chance: u64, now: Time) {
        let asked = self.ward.phase() == Phase::Stopping;
        (self.child, self.number, self.adopted) = (None, None, false);
        self.ward.ended(ending, chance, now);
        let name = &self.name;
        match self.ward.phase() {
            Phase::Stopped if asked => tracing::info!("{name}: stopped: {reason}"),
            Phase::Stopped => {
                self.why = format!("{reason}: somebody told it to end, not the Supervisor");
                tracing::info!("{name}: {}", self.why);
            }
            Phase::Failed => {
                let file = self
                    .file
                    .as_ref()
                    .map_or_else(String::new, |file| format!("when {} changes, or ", file.display()));
                self.why = format!(
                    "{reason}: its command line or configuration is wrong; it is started again {file}by plimsoll \
                     supervise start {name}"
                );
                tracing::error!("{name}: {}", self.why);
            }
            Phase::BackingOff => {
                let times = match self.ward.failures() {
                    0 | 1 => String::new(),
                    failures => format!(", {failures} times in a row"),
                };
                self.why = format!("{reason}{times}: {}", self.again(now));
                tracing::warn!("{name}: {}", self.why);
            }
            Phase::Running if !asked => {
                self.why = format!("{reason}: {}", self.again(now));
                tracing::warn!("{name}: {}", self.why);
            }
            Phase::Running | Phase::Stopping => tracing::info!("{name}: {reason}"),
        }
        self.last_exit = Some(LastExit { ending, reason, unix_ms: unix_ms(), lines: self.scribe.last() });
    }

    /// Looks at its file, if it waits for that to change.
    pub(super) fn look(&mut self, now: Time) {
        if self.ward.phase() == Phase::Failed
            && let Some(file) = &self.file
            && Print::of(file) != self.print
        {
            self.why = format!("{} has changed", file.display());
            self.ward.changed(now);
        }
    }

    /// Handles the end of a pause or a timeout.
    pub(super) fn due(&mut self, now: Time) {
        self.ward.handle_timeout(now);
        if self.ward.phase() == Phase::Running && self.child.is_none() {
            self.why = match self.ward.failures() {
                1 => "again, after a failure".into(),
                failures => format!("again, after {failures} failures in a row"),
            };
        }
    }

    /// Performs an act for a client.
    pub(super) fn tell(&mut self, act: Act, now: Time) -> Result<(), String> {
        if self.leaving {
            return Err(format!("{} is being stopped: it is not in the file any more", self.name));
        }
        match act {
            Act::Start => {
                if self.ward.phase() != Phase::Running {
                    self.why = "by an operator".into();
                }
                self.ward.start(now);
            }
            Act::Stop => self.stop("by an operator", now),
            Act::Restart => {
                self.why = "restarted by an operator".into();
                self.ward.restart(now);
            }
            Act::Reload => {
                let name = &self.name;
                let Some(child) = self.child.as_ref().filter(|_| self.ward.phase() == Phase::Running) else {
                    return Err(format!("{name} does not run: plimsoll supervise start {name}"));
                };
                if !child.hang_up() {
                    return Err(format!(
                        "{name} does not read its configuration again while it runs: plimsoll supervise restart {name}"
                    ));
                }
                tracing::info!("{name}: told to read its configuration again");
            }
        }
        Ok(())
    }

    pub(super) fn stop(&mut self, why: &str, now: Time) {
        if self.ward.phase() != Phase::Stopped {
            self.why = format!("stopped: {why}");
        }
        self.ward.stop(now);
    }

    /// Applies the process's table in the file; returns the change.
    pub(super) fn update(&mut self, process: &Process, rules: Rules, now: Time) -> Option<String> {
        let (launch, name) = (Launch::of(process), &self.name);
        self.ward.rule(rules);
        (self.patience, self.start) = (rules.patience, process.start);
        if self.leaving {
            let news = format!("+ process {name}");
            (self.file, self.launch, self.leaving) = (file_of(&launch), launch, false);
            self.why = "it is in the file again".into();
            self.ward.start(now);
            return Some(news);
        }
        if launch == self.launch {
            return None;
        }
        (self.file, self.launch) = (file_of(&launch), launch);
        Some(match self.child {
            Some(_) => format!("~ process {name}: takes effect with plimsoll supervise restart {name}"),
            None => format!("~ process {name}"),
        })
    }

    /// Notes that the file does not have it any more; returns `false` if that was known.
    pub(super) fn leave(&mut self, now: Time) -> bool {
        let news = !self.leaving;
        if news {
            self.leaving = true;
            self.stop(OUT, now);
        }
        news
    }

    /// Returns `true` if it was removed from the file, and has ended.
    pub(super) fn gone(&self) -> bool {
        self.leaving && self.child.is_none() && self.ward.phase() == Phase::Stopped
    }

    pub(super) fn patience(&self) -> Duration {
        self.patience
    }

    /// Returns its status.
    pub(super) fn status(&self, now: Time) -> ProcessStatus {
        let runs = self.runs.as_ref().filter(|_| self.child.is_some());
        let pause = self.ward.poll_timeout().filter(|_| self.ward.phase() == Phase::BackingOff);
        ProcessStatus {
            name: self.name.clone(),
            command: runs.unwrap_or(&self.launch).command.clone(),
            state: self.ward.phase(),
            why: self.why.clone(),
            since_unix_ms: self.since(now),
            pid: self.child.as_ref().and_then(|child| u32::try_from(child.identity.pid).ok()),
            adopted: self.adopted,
            outdated: runs.is_some_and(|runs| *runs != self.launch) && !self.leaving,
            restarts: self.ward.restarts(),
            failures: self.ward.failures(),
            next_start_unix_ms: pause.map(|due| unix_ms() + millis(due.since(now))),
            last_exit: self.last_exit.clone(),
            says: None,
        }
    }

    /// Returns its state for the next Supervisor.
    pub(super) fn kept(&self, now: Time) -> Kept {
        let running = self.child.as_ref().zip(self.runs.clone());
        Kept {
            name: self.name.clone(),
            phase: self.ward.phase(),
            wanted: self.ward.wanted(),
            failures: self.ward.failures(),
            restarts: self.ward.restarts(),
            running: running.map(|(child, runs)| (child.identity, runs, self.since(now))),
            last_exit: self.last_exit.clone(),
        }
    }

    /// Returns that state without the values that only change with time.
    pub(super) fn mark(&self) -> String {
        let identity = self.child.as_ref().map(|child| child.identity);
        let exit = self.last_exit.as_ref().map(|exit| exit.unix_ms);
        let (phase, wanted) = (self.ward.phase(), self.ward.wanted());
        format!("{} {phase:?} {wanted} {identity:?} {exit:?}\n", self.name)
    }

    fn since(&self, now: Time) -> u64 {
        unix_ms().saturating_sub(millis(now.since(self.ward.since())))
    }

    fn again(&self, now: Time) -> String {
        match self.ward.poll_timeout() {
            Some(due) => format!("started again in {}", TimeSpan::millis(millis(due.since(now)))),
            None => "started again at once".into(),
        }
    }
}

const OUT: &str = "it is not in the file any more";

/// Returns how a process ended, in words.
pub(super) fn reason(ending: Ending) -> String {
    match ending {
        Ending::Code(code) => format!("exit code {code}"),
        Ending::Signal(signal) => match NAMES.iter().find(|(number, _)| *number == signal) {
            Some((_, name)) => format!("killed by {name}"),
            None => format!("killed by signal {signal}"),
        },
        Ending::Unstarted => "it cannot be started".into(),
        Ending::Unknown => "it ended, and only the Supervisor that started it would know how".into(),
    }
}

/// The signals that end processes, the same on all supported machines.
const NAMES: [(i32, &str); 12] = [
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

fn file_of(launch: &Launch) -> Option<PathBuf> {
    Command::of(&launch.command)?.file()
}

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}
