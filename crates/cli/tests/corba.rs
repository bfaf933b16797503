//! CORBA's test tools as they are run: a member, load for it, and its reference in every form.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "../../../tests/ports.rs"]
mod ports;

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use plimsoll_wire::giop::{GiopMessage, Ior, NextMessage, next_message, write};
use ports::free_port;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// Files of one test, gone when it ends.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let name = format!("plimsoll-corba-{}-{}", std::process::id(), COUNT.fetch_add(1, Relaxed));
        let path = std::env::temp_dir().join(name);
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A member in a process of its own, killed at the end.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn plimsoll(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_plimsoll"));
    command.args(args).stdin(Stdio::null());
    command
}

fn run(args: &[&str]) -> Output {
    plimsoll(args).output().unwrap()
}

/// Returns the standard output of a run that succeeds.
fn said(args: &[&str]) -> String {
    let output = run(args);
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Returns the standard error of a run that ends with an exit code.
fn refused(args: &[&str], code: i32) -> String {
    let output = run(args);
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(code), "{args:?}: {error}");
    error
}

/// Looks again and again until `holds` does.
#[track_caller]
fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !holds() {
        // bound: a safety net
        assert!(begin.elapsed() < Duration::from_secs(60), "not {what}");
        std::thread::sleep(Duration::from_millis(5)); // sleeps: polls
    }
}

/// Members that have written their references, and those.
fn members(file: &Path, more: &[&str]) -> (Process, Vec<String>) {
    members_at("127.0.0.1:0", file, more)
}

fn members_at(listen: &str, file: &Path, more: &[&str]) -> (Process, Vec<String>) {
    let mut args = vec!["member", "--iiop", "--listen", listen, "--quiet", "--ior-file"];
    args.push(file.to_str().unwrap());
    args.extend(more);
    let process = Process(plimsoll(&args).spawn().unwrap());
    until("a file of references", || file.exists());
    (process, fs::read_to_string(file).unwrap().lines().map(str::to_owned).collect())
}

/// Returns the number of requests that have come to a member that obeys orders at this port.
fn requests(orders: u16) -> u64 {
    let mut stream = TcpStream::connect(("127.0.0.1", orders)).unwrap();
    stream.write_all(b"GET /_plimsoll/count HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let said: Value = serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap();
    said["requests"].as_u64().unwrap()
}

/// Load of twenty requests on two connections, however long the machine takes for them.
const TWENTY: [&str; 14] = [
    "--rate",
    "100",
    "--arrival",
    "constant",
    "-d",
    "195ms",
    "--connections",
    "2",
    "--timeout",
    "60s",
    "--connect-timeout",
    "60s",
    "--tolerance",
    "60s",
];

#[test]
fn a_member_its_reference_and_load_for_it() {
    let folder = Folder::new();
    let file = folder.file("two.ior");
    let (_members, references) = members(&file, &["--name", "m1", "--count", "2"]);
    assert_eq!(references.len(), 2);
    let path = file.to_str().unwrap();
    let shown: Value = serde_json::from_str(&said(&["ior", "show", path, "-o", "json"])).unwrap();
    assert_eq!(shown["type_id"], "IDL:Test/Latency:1.0");
    assert_eq!(
        (&shown["profiles"][0]["iiop"]["key"], &shown["ior"]),
        (&"Latency".into(), &references[0].as_str().into())
    );
    assert_eq!(said(&["ior", "show", path, "-o", "ior"]).trim(), references[0]);
    let location = said(&["ior", "show", &references[1], "-o", "corbaloc"]);
    let location = location.trim();
    for (target, member) in
        [(format!("file:{path}").as_str(), "m1"), (&references[1], "m2"), (location, "m2")]
    {
        let run = said(&[&["load", target, "-o", "json", "--fail-if", "failed>0%"][..], &TWENTY].concat());
        let run: Value = serde_json::from_str(&run).unwrap();
        assert_eq!(run["members"][member]["ok"], 20, "{run}");
        assert_eq!(run["ok"], 20, "{run}");
    }
}

#[test]
fn exceptions_are_named() {
    let folder = Folder::new();
    let (_member, references) = members(&folder.file("bad.ior"), &["--fail-rate", "1"]);
    let output = run(&[&["load", &references[0], "--fail-if", "failed>1%"][..], &TWENTY].concat());
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("exception  ") && text.contains("IDL:omg.org/CORBA/UNKNOWN:1.0"), "{text}");
    assert!(text.contains("target     corbaloc:iiop:1.2@127.0.0.1:"), "{text}");
    let saved = folder.file("saved.json");
    let saved = saved.to_str().unwrap();
    said(&[&["load", &references[0], "--save", saved][..], &TWENTY].concat());
    let sum = said(&["load", "--merge", saved, "--merge", saved, "-o", "json"]);
    let sum: Value = serde_json::from_str(&sum).unwrap();
    assert_eq!(sum["exceptions"]["IDL:omg.org/CORBA/UNKNOWN:1.0"], sum["failed"]["exception"], "{sum}");
}

/// Its sessions are sent to one member, which is killed; they go on at the other.
#[test]
fn a_member_is_killed_under_its_sessions() {
    let folder = Folder::new();
    let orders = [free_port(), free_port()];
    let [to_one, to_other] = orders.map(|port| format!("127.0.0.1:{port}"));
    // A port that stays its own when it is dead.
    let listen = format!("127.0.0.1:{}", free_port());
    let (first, one) = members_at(&listen, &folder.file("one.ior"), &["--name", "one", "--orders", &to_one]);
    let (_second, other) = members(&folder.file("other.ior"), &["--name", "other", "--orders", &to_other]);
    let targets: Vec<Ior> = [&one[0], &other[0]].map(|text| text.parse().unwrap()).into();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let group = format!("iiop://{}/group", listener.local_addr().unwrap());
    // As a balancer does that goes by turns, and does not know yet who is dead.
    let turn: &'static AtomicUsize = Box::leak(Box::new(AtomicUsize::new(0)));
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let targets = targets.clone();
            std::thread::spawn(move || redirect(stream.unwrap(), &targets, turn));
        }
    });
    let limits = ["--timeout", "60s", "--connect-timeout", "60s"];
    let args = ["load", &group, "--concurrency", "6", "-d", "1h", "-o", "json", "--quiet"];
    let mut load = plimsoll(&[&args[..], &limits].concat());
    let mut load = Process(load.stdout(Stdio::piped()).spawn().unwrap());
    // More than it may have in service.
    until("calls of all sessions", || turn.load(Relaxed) >= 6 && requests(orders[0]) >= 20);
    drop(first);
    until("the sessions of one asking again", || turn.load(Relaxed) >= 9);
    let before = requests(orders[1]);
    until("calls at the other", || requests(orders[1]) >= before + 100);
    kill_process(Pid::from_child(&load.0), Signal::INT).unwrap();
    let mut said = String::new();
    load.0.stdout.take().unwrap().read_to_string(&mut said).unwrap();
    let run: Value = serde_json::from_str(&said).unwrap();
    let count = |name: &str| run["members"][name]["ok"].as_u64().unwrap();
    assert!(count("one") > 10 && count("other") > before + 90, "{}", run["members"]);
    // Only what was in service when the member died.
    let failed: u64 = run["failed"].as_object().unwrap().values().map(|count| count.as_u64().unwrap()).sum();
    assert!(failed <= 6, "{}", run["failed"]);
    assert!(run["returned"].as_u64().unwrap() >= 3, "{}", run["returned"]);
    assert!(run["forwarded"].as_u64().unwrap() >= 9, "{}", run["forwarded"]);
}

fn redirect(mut stream: TcpStream, targets: &[Ior], turn: &AtomicUsize) {
    let (mut input, mut buffer) = (Vec::new(), [0; 4096]);
    while let Ok(count @ 1..) = std::io::Read::read(&mut stream, &mut buffer) {
        input.extend_from_slice(&buffer[..count]);
        while let Ok(NextMessage::Whole { header, len }) = next_message(&input, 4096) {
            let id = GiopMessage::parse(&input).unwrap().id().unwrap();
            input.drain(..len);
            let mut out = Vec::new();
            write::forward(
                &mut out,
                header.format(),
                id,
                &targets[turn.fetch_add(1, Relaxed) % targets.len()],
            );
            if stream.write_all(&out).is_err() {
                return;
            }
        }
    }
}

#[test]
fn references_are_made() {
    let made =
        said(&["ior", "make", "-a", "127.0.0.1:2809", "-a", "[::1]:99", "-k", "a%00b", "-t", "IDL:T:1.0"]);
    let ior: Ior = made.trim().parse().unwrap();
    let profile = ior.first_iiop_profile().unwrap();
    assert_eq!((&ior.type_id[..], &profile.key[..]), (&b"IDL:T:1.0"[..], &b"a\0b"[..]));
    let places: Vec<String> = profile.addresses().map(|place| place.to_string()).collect();
    assert_eq!(places, ["127.0.0.1:2809", "[::1]:99"]);
    let old = said(&["ior", "make", "-a", "h:1", "-k", "k", "--giop", "1.0", "-o", "corbaloc"]);
    assert_eq!(old, "corbaloc:iiop:1.0@h:1/k\n");
}

#[test]
fn what_cannot_be_is_said_in_one_line() {
    let cases: [(&[&str], i32, &str); 10] = [
        (&["ior", "show", "IOR:0"], 2, "odd number of digits"),
        (&["ior", "show", "corbaloc:rir:/x"], 2, "rir:"),
        (&["ior", "show", "/no/such/file"], 2, "cannot read /no/such/file"),
        (&["ior", "make", "-a", "h:x", "-k", "k"], 2, "port"),
        (&["status", "-o", "ior"], 2, "table and json only"),
        (&["load", "corbaloc::127.0.0.1:1/k", "--rate", "10", "-o", "ior"], 2, "hgrm and html only"),
        (&["ior", "show", "IOR:0", "-o", "html"], 2, "ior and corbaloc only"),
        (&["load", "IOR:zz", "--rate", "10"], 2, "hexadecimal"),
        (&["load", "--rate", "10", "http://a/", "corbaloc::a/k"], 2, "the only target"),
        (
            &["member", "--iiop", "--listen", "127.0.0.1:0", "--ior-file", "/no/such/folder/x"],
            1,
            "cannot write",
        ),
    ];
    for (args, code, why) in cases {
        let error = refused(args, code);
        assert!(
            error.contains(why) && error.trim_end().lines().last().unwrap().starts_with("error: "),
            "{args:?}: {error}"
        );
    }
    let error = refused(&["ior", "show"], 2);
    assert!(error.contains("<REFERENCE|--group <NAME>>"), "{error}");
    refused(&["member", "--iiop", "--echo", "tcp"], 2);
    refused(&["member", "--ior-file", "x"], 2);
}
