//! Processes of the demo: they run this very binary, their output is read, and they are ended in any case.
//!
//! A child asks the kernel to be killed when its parent dies, and only then becomes its command (the request
//! outlives exec). So nothing is left behind even when the demo is killed or panics. Each child is a process
//! group of its own, so that Ctrl-C in the terminal reaches the demo alone.

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::fmt::Display;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::process::{ChildStderr, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, getppid, kill_process, set_parent_process_death_signal};

use crate::command::CliError;

/// The number of lines of a child's output that are kept.
const MAX_OUTPUT_LINES: usize = 20;

/// Becomes `command` of this program, to be killed when the process `parent` dies. Returns only on failure.
pub(super) fn exec_plimsoll(parent: &str, command: &[String]) -> CliError {
    match std::env::current_exe() {
        Ok(program) => exec_program(parent, program.as_os_str(), command),
        Err(error) => CliError::failed(error),
    }
}

/// Becomes `program`, to be killed when the process `parent` dies. Returns only on failure.
pub(in crate::command) fn exec_program(parent: &str, program: &OsStr, arguments: &[String]) -> CliError {
    if let Err(error) = set_parent_process_death_signal(Some(Signal::KILL)) {
        return CliError::failed(format_args!("cannot be tied to the parent: {error}"));
    }
    // The parent may have died before that.
    if getppid().is_none_or(|pid| pid.as_raw_nonzero().to_string() != parent) {
        return CliError::failed("the parent has gone");
    }
    let error = Command::new(program).args(arguments).exec();
    CliError::failed(format_args!("cannot start {}: {error}", program.display()))
}

/// A running child, which ends when it is dropped.
#[derive(Debug)]
pub(super) struct DemoProcess {
    name: String,
    process: std::process::Child,
    /// The end of its output on standard error.
    output: OutputTail,
}

type OutputTail = Arc<Mutex<VecDeque<String>>>;

impl DemoProcess {
    /// Starts `plimsoll ARGUMENTS`.
    ///
    /// # Errors
    /// Fails with one sentence if the process cannot be made.
    pub(super) fn start(name: &str, arguments: &[&str]) -> Result<Self, String> {
        let fail = |error: &dyn Display| format!("cannot start {name}: {error}");
        let program = std::env::current_exe().map_err(|error| fail(&error))?;
        let mut process = Command::new(program)
            .args(["demo", "--tie", &std::process::id().to_string()])
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()
            .map_err(|error| fail(&error))?;
        let output = OutputTail::default();
        if let Some(stderr) = process.stderr.take() {
            let output = output.clone();
            std::thread::spawn(move || capture_output(stderr, &output));
        }
        Ok(Self { name: name.to_owned(), process, output })
    }

    /// Returns the process id.
    pub(super) fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Waits until the child prints `listening PROTOCOL ADDRESS`.
    ///
    /// # Errors
    /// Fails with one sentence if it ends or does not print it in time.
    pub(super) async fn address(&mut self, deadline: Instant) -> Result<SocketAddr, String> {
        loop {
            if let Some(address) = self.lock_output().iter().find_map(|line| parse_listening(line)) {
                return Ok(address);
            }
            if let Some(reason) = self.exit_reason() {
                return Err(reason);
            }
            if Instant::now() > deadline {
                return Err(format!("{} does not listen: {}", self.name, self.last_line()));
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Returns the address that it printed after `words`, followed by a colon.
    pub(super) fn address_after(&self, words: &str) -> Option<SocketAddr> {
        self.lock_output().iter().find_map(|line| line.split_once(words)?.1.split_once(": ")?.0.parse().ok())
    }

    /// Returns how the child ended, in one sentence; `None` if it runs.
    pub(super) fn exit_reason(&mut self) -> Option<String> {
        match self.process.try_wait() {
            Ok(None) => None,
            Ok(Some(status)) => Some(format!("{} ended ({status}): {}", self.name, self.last_line())),
            Err(error) => Some(format!("{} is lost: {error}", self.name)),
        }
    }

    /// Ends it like a crash: at once, with nothing finished.
    pub(super) fn kill(&mut self) {
        // An error means that it has ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }

    /// Asks it to end, and waits for at most `patience`.
    pub(super) fn stop(&mut self, timeout: Duration) {
        let pid = i32::try_from(self.pid()).ok().and_then(Pid::from_raw);
        if let (Ok(None), Some(pid)) = (self.process.try_wait(), pid) {
            // The child was not waited for yet, hence the pid is its own.
            let _ = kill_process(pid, Signal::TERM);
        }
        let deadline = Instant::now() + timeout;
        while self.exit_reason().is_none() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
        self.kill();
    }

    /// Returns the last line of its output.
    fn last_line(&self) -> String {
        self.lock_output().back().cloned().unwrap_or_else(|| "it said nothing".to_owned())
    }

    fn lock_output(&self) -> MutexGuard<'_, VecDeque<String>> {
        self.output.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for DemoProcess {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Keeps the last lines of a child's output, until it ends.
fn capture_output(stderr: ChildStderr, output: &OutputTail) {
    let mut stderr = BufReader::new(stderr);
    let mut line = Vec::new();
    while stderr.read_until(b'\n', &mut line).is_ok_and(|count| count > 0) {
        let mut lines = output.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.len() == MAX_OUTPUT_LINES {
            lines.pop_front();
        }
        lines.push_back(String::from_utf8_lossy(&line).trim_end().to_owned());
        line.clear();
    }
}

/// Returns the address in `listening PROTOCOL ADDRESS`.
fn parse_listening(line: &str) -> Option<SocketAddr> {
    line.strip_prefix("listening ")?.split_once(' ')?.1.parse().ok()
}
