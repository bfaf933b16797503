//! A program that runs beside the test and ends with it.

use std::fmt;
use std::fs;
use std::io::{BufRead as _, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::{found, until};

/// The number of lines of its log that a failing test shows.
const SHOWN: usize = 40;

/// The maximum time to wait for a process to stand still.
const PATIENCE: Duration = Duration::from_secs(30);

/// A running program, with its standard error line by line. When it is dropped, it is killed by its id, with
/// all that it started. The kernel kills it when the test's own process ends.
pub(crate) struct Process {
    name: String,
    child: Child,
    lines: Arc<Mutex<Vec<String>>>,
}

impl Process {
    /// Starts `program`, which must be installed or a path.
    pub(crate) fn start(program: &Path, args: &[&str], folder: &Path) -> Self {
        let name = program.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        // The same process becomes the program: its id is the program's.
        let mut command = Command::new(super::part("setpriv"));
        command.args(["--pdeathsig", "KILL", "--"]).arg(program).args(args).current_dir(folder);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        for name in ["RUST_LOG", "NOTIFY_SOCKET", "JOURNAL_STREAM", "PLIMSOLL_CONTROL"] {
            command.env_remove(name);
        }
        let mut child = command.spawn().unwrap();
        let lines = Arc::default();
        collect(child.stderr.take().unwrap(), Arc::clone(&lines));
        Self { name, child, lines }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Kills the program by SIGKILL.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Returns the processes that it started and has not waited for.
    fn children(&self) -> Vec<Pid> {
        let threads = fs::read_dir(format!("/proc/{}/task", self.pid())).into_iter().flatten().flatten();
        let of =
            |thread: fs::DirEntry| fs::read_to_string(thread.path().join("children")).unwrap_or_default();
        let numbers = |text: String| {
            text.split_whitespace().filter_map(|number| number.parse().ok()).collect::<Vec<i32>>()
        };
        threads.map(of).flat_map(numbers).filter_map(Pid::from_raw).collect()
    }

    /// Returns `true` if each of its threads stands still or has ended. A thread that is about to start a
    /// program stops when that runs.
    fn stands(&self) -> bool {
        let threads = fs::read_dir(format!("/proc/{}/task", self.pid())).into_iter().flatten().flatten();
        let mut states =
            threads.map(|thread| fs::read_to_string(thread.path().join("stat")).unwrap_or_default());
        states
            .all(|stat| stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with(['T', 't', 'Z', 'X'])))
    }

    /// Returns `true` if it has ended.
    pub(crate) fn ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    /// Waits until it ends; returns its exit code.
    #[track_caller]
    pub(crate) fn end(&mut self) -> Option<i32> {
        until(&format!("{} ended", self.name), || self.ended());
        self.child.wait().unwrap().code()
    }

    /// Returns its output so far.
    pub(crate) fn lines(&self) -> Vec<String> {
        self.lines.lock().unwrap().clone()
    }

    /// Waits for a line that contains `text`.
    #[track_caller]
    pub(crate) fn line(&self, text: &str) -> String {
        found(&format!("{text:?} said by {self}"), || {
            self.lines.lock().unwrap().iter().find(|line| line.contains(text)).cloned()
        })
    }

    /// Returns the bytes of memory in use.
    pub(crate) fn resident(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap();
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
    }

    /// Returns the number of open files and sockets.
    pub(crate) fn files(&self) -> usize {
        fs::read_dir(format!("/proc/{}/fd", self.pid())).unwrap().count()
    }
}

impl fmt::Display for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines = self.lines();
        write!(f, "{} (pid {}):", self.name, self.pid())?;
        lines[lines.len().saturating_sub(SHOWN)..].iter().try_for_each(|line| write!(f, "\n  | {line}"))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if !self.ended() {
            // A stopped process starts nothing more, and its children's ids stay theirs. It stops soon after
            // the signal.
            self.signal(Signal::STOP);
            let begun = Instant::now();
            // bound: a safety net
            while !self.stands() && begun.elapsed() < PATIENCE {
                thread::sleep(Duration::from_millis(1)); // sleeps: polls
            }
            let children = self.children();
            let _ = self.child.kill();
            let _ = self.child.wait();
            for child in children {
                let _ = kill_process(child, Signal::KILL);
            }
        }
        if thread::panicking() {
            eprintln!("{self}");
        }
    }
}

fn collect(stream: impl Read + Send + 'static, lines: Arc<Mutex<Vec<String>>>) {
    thread::spawn(move || {
        for line in BufReader::new(stream).lines().map_while(Result::ok) {
            lines.lock().unwrap().push(line);
        }
    });
}
