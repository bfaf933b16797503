//! Processes of a point: their talk goes to files, and they end with the runner whatever happens to it.
//!
//! A child is started by way of a command that asks the kernel for its death with its parent's and then
//! becomes the program (the request outlives exec). Each is a process group of its own, so that Ctrl-C in the
//! terminal reaches the runner alone, which then ends them one by one.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use super::Trouble;
use crate::pick;

/// How children are tied to this process: a program and what comes before the child's own command line. And what else the lab
/// has from this program.
#[derive(Clone, Debug)]
pub struct Tie {
    /// This very program.
    pub program: PathBuf,
    /// Makes it tie itself and become what follows.
    pub arguments: Vec<OsString>,
    /// Opens a client of the lottery.
    pub picker: pick::Open,
}

/// Between two looks.
pub(super) const LOOK: Duration = Duration::from_millis(5);
/// Time that a child has to say where it listens, and to answer.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);
/// Longest end of a child's talk that a message repeats.
const SAID: usize = 300;

/// A running child. Dropping it kills it.
#[derive(Debug)]
pub(super) struct Child {
    name: String,
    command: String,
    process: std::process::Child,
    log: PathBuf,
}

impl Child {
    /// Starts `program` in `folder`; what it says goes to `folder/name.log`.
    pub(super) fn start(
        tie: &Tie,
        name: &str,
        program: &Path,
        arguments: &[String],
        folder: &Path,
    ) -> Result<Self, Trouble> {
        let log = folder.join(format!("{name}.log"));
        let fail = |error: std::io::Error| Trouble::failed(format!("cannot start {name}: {error}"));
        let out =
            |log: &Path| -> std::io::Result<File> { OpenOptions::new().append(true).create(true).open(log) };
        let process = Command::new(&tie.program)
            .args(&tie.arguments)
            .arg(program)
            .args(arguments)
            .current_dir(folder)
            .stdin(Stdio::null())
            .stdout(out(&log).map_err(fail)?)
            .stderr(out(&log).map_err(fail)?)
            .process_group(0)
            .spawn()
            .map_err(fail)?;
        let command = format!("{} {}", program.display(), arguments.join(" "));
        Ok(Self { name: name.to_owned(), command, process, log })
    }

    /// As it was started.
    pub(super) fn command(&self) -> &str {
        &self.command
    }

    /// Process id.
    pub(super) fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Waits until it says `listening WHAT ADDRESS`.
    pub(super) fn address(&mut self, what: &str) -> Result<SocketAddr, Trouble> {
        let found = self.addresses(what, 1)?.into_iter().next();
        found.ok_or_else(|| Trouble::failed(format!("{} does not listen", self.name)))
    }

    /// Waits until it says so of so many addresses, in their order.
    pub(super) fn addresses(&mut self, what: &str, count: usize) -> Result<Vec<SocketAddr>, Trouble> {
        let words = format!("listening {what} ");
        let end = Instant::now() + PATIENCE;
        loop {
            let said = self.said();
            let places = said.lines().filter_map(|line| line.split_once(&words)).map(|(_, rest)| rest);
            let word = |rest: &str| rest.split(' ').next().map(|word| word.trim_end_matches(':').to_owned());
            let found: Vec<SocketAddr> =
                places.filter_map(|rest| word(rest)?.parse().ok()).take(count).collect();
            if found.len() == count {
                return Ok(found);
            }
            self.alive()?;
            if Instant::now() > end {
                return Err(Trouble::failed(format!("{} does not listen: {}", self.name, last(&said))));
            }
            std::thread::sleep(LOOK);
        }
    }

    /// An error with the last it said, if it has ended.
    pub(super) fn alive(&mut self) -> Result<(), Trouble> {
        match self.process.try_wait() {
            Ok(None) => Ok(()),
            Ok(Some(status)) => {
                Err(Trouble::failed(format!("{} ended ({status}): {}", self.name, last(&self.said()))))
            }
            Err(error) => Err(Trouble::failed(format!("{} is lost: {error}", self.name))),
        }
    }

    /// Sends it a signal.
    pub(super) fn signal(&mut self, signal: Signal) -> Result<(), Trouble> {
        self.alive()?;
        let pid = i32::try_from(self.pid()).ok().and_then(Pid::from_raw);
        // Not waited for yet, hence the pid is its own.
        let sent = pid.map_or(Ok(()), |pid| kill_process(pid, signal));
        sent.map_err(|error| Trouble::failed(format!("cannot signal {}: {error}", self.name)))
    }

    /// Ends it as a crash would, with whatever processes it has made.
    pub(super) fn kill(&mut self) {
        let pid = i32::try_from(self.pid()).ok().and_then(Pid::from_raw);
        if let (Ok(None), Some(group)) = (self.process.try_wait(), pid) {
            // Not waited for yet, hence the number is its own. An error says that it has ended.
            let _ = kill_process_group(group, Signal::KILL);
        }
        let _ = self.process.wait();
    }

    /// All it has said.
    pub(super) fn said(&self) -> String {
        std::fs::read(&self.log).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.kill();
    }
}

fn last(said: &str) -> String {
    let line = said.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("it said nothing");
    line.chars().take(SAID).collect()
}
