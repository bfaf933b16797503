//! The commands that need nothing: `member` and `demo`, as a person runs them.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// Bound of every wait: longer than anything takes on a machine with other work.
const PATIENCE: Duration = Duration::from_secs(60);

fn plimsoll(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_plimsoll"));
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn signal(child: &Child, signal: Signal) {
    kill_process(Pid::from_raw(child.id() as i32).unwrap(), signal).unwrap();
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn a_member_says_where_it_listens_and_ends_when_told() {
    for how in [Signal::TERM, Signal::INT] {
        let mut child =
            plimsoll(&["member", "--listen", "127.0.0.1:0", "--name", "m1", "--service", "exp:1ms"])
                .spawn()
                .unwrap();
        let mut line = String::new();
        BufReader::new(child.stderr.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("listening http ").unwrap().to_owned();
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.contains("x-member: m1\r\n"), "{answer}");
        signal(&child, how);
        assert!(child.wait().unwrap().success());
    }
}

#[test]
fn what_a_member_cannot_do_is_said_in_a_line() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let output = plimsoll(&["member", "--listen", &address]).output().unwrap();
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1));
    assert!(said.contains(&address) && said.contains("choose another port"), "{said}");
    assert_eq!(said.lines().count(), 1);
    for wrong in
        ["--service=exp", "--workers=0", "--fail-rate=2", "--slow-after=x", "--body=1XB", "--echo=ftp"]
    {
        let output = plimsoll(&["member", "--listen", "127.0.0.1:0", wrong]).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{wrong}");
    }
}

/// A folder for temporary files that no other demo uses; it is also how its processes are known.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("plimsoll-test-{name}-{}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }

    fn demo(&self, arguments: &[&str]) -> Command {
        let mut command = plimsoll(&["demo"]);
        command.args(arguments).env("TMPDIR", &self.0);
        command
    }

    /// Processes that run with this folder.
    fn processes(&self) -> usize {
        let marked = |path: &Path| {
            let environ = std::fs::read(path.join("environ")).unwrap_or_default();
            text(&environ).contains(&format!("TMPDIR={}\0", self.0.display()))
        };
        std::fs::read_dir("/proc").unwrap().filter(|entry| marked(&entry.as_ref().unwrap().path())).count()
    }

    fn wait_for(&self, processes: usize) {
        let deadline = Instant::now() + PATIENCE;
        while self.processes() != processes {
            assert!(Instant::now() < deadline, "{} processes", self.processes());
            std::thread::sleep(Duration::from_millis(20)); // sleeps: polls
        }
    }

    fn is_empty(&self) -> bool {
        std::fs::read_dir(&self.0).unwrap().next().is_none()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {}", text(&output.stderr)))
}

#[test]
fn the_demo_loses_no_request_and_leaves_nothing_behind() {
    let folder = Folder::new("whole");
    let output = folder.demo(&["--duration", "6s", "-o", "json"]).output().unwrap();
    let report = json(&output);
    assert_eq!(report["failed"], 0, "{report:#}");
    assert_eq!(report["cut"], 0);
    // On a machine that is too busy the verdict is `invalid`.
    match report["verdict"].as_str() {
        Some("ok") => assert_eq!(output.status.code(), Some(0)),
        verdict => assert_eq!((verdict, output.status.code()), (Some("invalid"), Some(1))),
    }
    let share =
        |phase: usize, member: usize| report["phases"][phase]["members"][member]["share"].as_f64().unwrap();
    assert!((0..4).all(|member| share(0, member) > 0.0), "{report:#}");
    // Its workers bound what the slow one can do in two thirds of the time: half of what another does that
    // stands still for a second.
    let slowed = |member: usize| -> u64 {
        (1..3).map(|phase| report["phases"][phase]["members"][member]["answered"].as_u64().unwrap()).sum()
    };
    assert!(slowed(1) < slowed(0) && slowed(1) < slowed(3), "{report:#}");
    // Of the dead one comes what was on its way: on a machine that stood still that may be more.
    assert!(share(2, 2) < if report["verdict"] == "ok" { 0.02 } else { share(1, 2) }, "{report:#}");
    let said = text(&output.stderr);
    assert!(said.contains("m2 is now 10 times slower") && said.contains("m3 is killed"), "{said}");
    assert!(said.contains("/s offered"), "{said}");
    assert!(!said.contains('\x1b'), "{said:?}");
    assert_eq!(folder.processes(), 0);
    assert!(folder.is_empty());
}

#[test]
fn an_interrupted_demo_reports_what_it_has() {
    let folder = Folder::new("interrupted");
    let mut child = folder.demo(&["--duration", "10m", "--members", "3"]).spawn().unwrap();
    let mut said = BufReader::new(child.stderr.take().unwrap()).lines();
    assert!(said.any(|line| line.unwrap().contains("/s offered")));
    signal(&child, Signal::INT);
    // The pipe must not fill up.
    let rest = std::thread::spawn(move || said.count());
    let output = child.wait_with_output().unwrap();
    rest.join().unwrap();
    assert_eq!(output.status.code(), Some(130));
    assert!(text(&output.stdout).contains("INTERRUPTED"), "{}", text(&output.stdout));
    assert_eq!(folder.processes(), 0);
    assert!(folder.is_empty());
}

#[test]
fn the_children_of_a_demo_that_is_killed_end_with_it() {
    let folder = Folder::new("killed");
    let mut child = folder.demo(&["--duration", "10m", "--members", "3"]).spawn().unwrap();
    // Itself, three members and the balancer.
    folder.wait_for(5);
    child.kill().unwrap();
    child.wait().unwrap();
    folder.wait_for(0);
}
