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

/// Lines of its log that are shown when its test fails.
const SHOWN: usize = 40;

/// How long one is waited for that is to stand still.
const PATIENCE: Duration = Duration::from_secs(30);

/// A running program, its standard error line by line. Killed, by its number and with what it started, when it is dropped; by
/// the kernel when the test's own process is.
pub(crate) struct Process {
    name: String,
    child: Child,
    lines: Arc<Mutex<Vec<String>>>,
}

impl Process {
    /// Starts `program`, which must be installed or a path.
    pub(crate) fn start(program: &Path, args: &[&str], folder: &Path) -> Self {
        let name = program.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        // The same process goes on as the program: its number is the program's.
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

    /// kill -9, and no trace is left.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// What it started and has not waited for.
    fn children(&self) -> Vec<Pid> {
        let threads = fs::read_dir(format!("/proc/{}/task", self.pid())).into_iter().flatten().flatten();
        let of =
            |thread: fs::DirEntry| fs::read_to_string(thread.path().join("children")).unwrap_or_default();
        let numbers = |text: String| {
            text.split_whitespace().filter_map(|number| number.parse().ok()).collect::<Vec<i32>>()
        };
        threads.map(of).flat_map(numbers).filter_map(Pid::from_raw).collect()
    }

    /// Does each of its threads stand still, or end? One that is about to start a program stops when that runs.
    fn stands(&self) -> bool {
        let threads = fs::read_dir(format!("/proc/{}/task", self.pid())).into_iter().flatten().flatten();
        let mut states =
            threads.map(|thread| fs::read_to_string(thread.path().join("stat")).unwrap_or_default());
        states
            .all(|stat| stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with(['T', 't', 'Z', 'X'])))
    }

    /// Has it ended?
    pub(crate) fn ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    /// Waits until it ends; its exit code.
    #[track_caller]
    pub(crate) fn end(&mut self) -> Option<i32> {
        until(&format!("{} ended", self.name), || self.ended());
        self.child.wait().unwrap().code()
    }

    /// What it has said so far.
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

    /// Bytes of memory in use.
    pub(crate) fn resident(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap();
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
    }

    /// Open files and sockets.
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
            // One that stands still starts nothing more, and the numbers of its children stay theirs. It does so soon after it is told to.
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
