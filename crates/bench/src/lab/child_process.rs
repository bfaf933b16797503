//! Child processes of a point: their output goes to files, and they end with the runner whatever happens to
//! it.
//!
//! The runner starts a child by a command that asks the kernel to kill it when its parent dies, and then
//! becomes the program (the request survives exec). Each child is a process group of its own, so that Ctrl-C
//! in the terminal reaches only the runner, which then ends the children one by one.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use super::LabError;
use crate::pick;

/// The command that ties children to this process, and the other parts of this program that the lab needs.
#[derive(Clone, Debug)]
pub struct ProcessLauncher {
    /// The path of this program.
    pub program: PathBuf,
    /// The arguments that make it tie itself to its parent and execute the rest of the command line.
    pub arguments: Vec<OsString>,
    /// The function that opens a client of the lottery.
    pub open_picker: pick::OpenPicker,
}

/// The time between two polls.
pub(super) const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// The time within which a child must report its address, and answer requests.
pub(super) const STARTUP_TIMEOUT: Duration = Duration::from_secs(30);
/// The maximum number of characters of a child's last line in a message.
const MAX_OUTPUT_CHARS: usize = 300;

/// A running child. Dropping it kills it.
#[derive(Debug)]
pub(super) struct ChildProcess {
    name: String,
    command: String,
    process: std::process::Child,
    log: PathBuf,
}

impl ChildProcess {
    /// Starts `program` in `folder`; its output goes to `folder/name.log`.
    pub(super) fn start(
        launcher: &ProcessLauncher,
        name: &str,
        program: &Path,
        arguments: &[String],
        folder: &Path,
    ) -> Result<Self, LabError> {
        let log = folder.join(format!("{name}.log"));
        let start_error = |error: std::io::Error| LabError::failed(format!("cannot start {name}: {error}"));
        let open_log =
            |log: &Path| -> std::io::Result<File> { OpenOptions::new().append(true).create(true).open(log) };
        let process = Command::new(&launcher.program)
            .args(&launcher.arguments)
            .arg(program)
            .args(arguments)
            .current_dir(folder)
            .stdin(Stdio::null())
            .stdout(open_log(&log).map_err(start_error)?)
            .stderr(open_log(&log).map_err(start_error)?)
            .process_group(0)
            .spawn()
            .map_err(start_error)?;
        let command = format!("{} {}", program.display(), arguments.join(" "));
        Ok(Self { name: name.to_owned(), command, process, log })
    }

    /// Returns the command line.
    pub(super) fn command(&self) -> &str {
        &self.command
    }

    /// Returns the process id.
    pub(super) fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Waits until the child prints `listening WHAT ADDRESS`.
    pub(super) fn address(&mut self, listener_kind: &str) -> Result<SocketAddr, LabError> {
        let address = self.addresses(listener_kind, 1)?.into_iter().next();
        address.ok_or_else(|| LabError::failed(format!("{} does not listen", self.name)))
    }

    /// Waits until it has printed `count` such addresses; returns them in order.
    pub(super) fn addresses(
        &mut self,
        listener_kind: &str,
        count: usize,
    ) -> Result<Vec<SocketAddr>, LabError> {
        let marker = format!("listening {listener_kind} ");
        let deadline = Instant::now() + STARTUP_TIMEOUT;
        loop {
            let output = self.output();
            let listening_lines =
                output.lines().filter_map(|line| line.split_once(&marker)).map(|(_, line_end)| line_end);
            let address_text =
                |line_end: &str| line_end.split(' ').next().map(|word| word.trim_end_matches(':').to_owned());
            let addresses: Vec<SocketAddr> = listening_lines
                .filter_map(|line_end| address_text(line_end)?.parse().ok())
                .take(count)
                .collect();
            if addresses.len() == count {
                return Ok(addresses);
            }
            self.check_alive()?;
            if Instant::now() > deadline {
                return Err(LabError::failed(format!(
                    "{} does not listen: {}",
                    self.name,
                    last_line(&output)
                )));
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    /// Fails with the last line of its output if it has ended.
    pub(super) fn check_alive(&mut self) -> Result<(), LabError> {
        match self.process.try_wait() {
            Ok(None) => Ok(()),
            Ok(Some(status)) => Err(LabError::failed(format!(
                "{} ended ({status}): {}",
                self.name,
                last_line(&self.output())
            ))),
            Err(error) => Err(LabError::failed(format!("{} is lost: {error}", self.name))),
        }
    }

    /// Sends a signal to the child.
    pub(super) fn signal(&mut self, signal: Signal) -> Result<(), LabError> {
        self.check_alive()?;
        let pid = i32::try_from(self.pid()).ok().and_then(Pid::from_raw);
        // The process has not been waited for, so the pid is still its own.
        let result = pid.map_or(Ok(()), |pid| kill_process(pid, signal));
        result.map_err(|error| LabError::failed(format!("cannot signal {}: {error}", self.name)))
    }

    /// Kills the child, with all processes of its group.
    pub(super) fn kill(&mut self) {
        let pid = i32::try_from(self.pid()).ok().and_then(Pid::from_raw);
        if let (Ok(None), Some(process_group)) = (self.process.try_wait(), pid) {
            // The process has not been waited for, so the number is still its own. An error means that it has
            // ended.
            let _ = kill_process_group(process_group, Signal::KILL);
        }
        let _ = self.process.wait();
    }

    /// Returns its whole output.
    pub(super) fn output(&self) -> String {
        std::fs::read(&self.log).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
    }
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        self.kill();
    }
}

fn last_line(output: &str) -> String {
    let line = output.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("it said nothing");
    line.chars().take(MAX_OUTPUT_CHARS).collect()
}
