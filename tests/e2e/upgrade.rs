//! A new process takes over from the one that runs: no request is lost, all state goes on, and a failed
//! upgrade changes nothing.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tokio_tungstenite::tungstenite::{Message, client};

use crate::stage::{
    Balancer, Folder, Load, Member, PATIENCE, Run, Script, Wire, binary, free_port, get, groups, part, until,
    web,
};

/// A balancer that is upgraded, and every process that it became.
pub(crate) struct Line {
    pub(crate) balancer: Balancer,
    pub(crate) pids: Vec<u32>,
}

impl Line {
    #[track_caller]
    pub(crate) fn start(text: &str) -> Self {
        let balancer = Balancer::start(text);
        let pids = vec![balancer.process.pid()];
        Self { balancer, pids }
    }

    /// Makes a new process take over; returns its id.
    #[track_caller]
    pub(crate) fn upgrade(&mut self) -> u32 {
        let run = self.balancer.run(&["upgrade", "-o", "json"]);
        assert_eq!(run.code, Some(0), "{}{}", run.out, run.err);
        let pid = u32::try_from(run.json()["pid"].as_u64().unwrap()).unwrap();
        self.took_over(pid);
        pid
    }

    /// Waits until another process is in charge.
    #[track_caller]
    fn took_over(&mut self, pid: u32) {
        assert!(!self.pids.contains(&pid), "{pid} of {:?}", self.pids);
        self.pids.push(pid);
        // For a moment either of the two may answer.
        until("it answers", || self.balancer.status()["pid"] == pid);
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        // The ids of processes that ended may be in use again: the test kills only those that still run the
        // tested binary.
        for pid in self.pids.iter().filter(|pid| runs(**pid)) {
            let _ = kill_process(number(*pid), Signal::KILL);
        }
    }
}

pub(crate) fn number(pid: u32) -> Pid {
    Pid::from_raw(i32::try_from(pid).unwrap()).unwrap()
}

pub(crate) fn runs(pid: u32) -> bool {
    std::fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe == binary().canonicalize().unwrap())
}

/// Makes a new process take over from a balancer; it ends with the test.
#[track_caller]
pub(crate) fn upgraded(balancer: &Balancer) -> Ends {
    let run = balancer.run(&["upgrade", "-o", "json"]);
    assert_eq!(run.code, Some(0), "{}{}", run.out, run.err);
    let pid = u32::try_from(run.json()["pid"].as_u64().unwrap()).unwrap();
    until("it answers", || balancer.status()["pid"] == pid);
    Ends(pid)
}

/// Starts an upgrade with a program that fails: nothing changes.
#[track_caller]
pub(crate) fn not_upgraded(balancer: &Balancer) {
    let run = balancer.run(&["upgrade", "--binary", "/bin/false"]);
    assert!(run.code == Some(2) && run.err.contains("goes on as before"), "{:?} {}", run.code, run.err);
}

/// A process that is killed with the test.
pub(crate) struct Ends(pub(crate) u32);

impl Drop for Ends {
    fn drop(&mut self) {
        if runs(self.0) {
            let _ = kill_process(number(self.0), Signal::KILL);
        }
    }
}

/// A client that acts again and again, beside the test, until it is stopped; it keeps the count and the
/// errors.
struct Again {
    over: Arc<AtomicBool>,
    done: Arc<AtomicU64>,
    thread: JoinHandle<Vec<String>>,
}

impl Again {
    fn start(mut act: impl FnMut() -> Result<(), String> + Send + 'static) -> Self {
        let (over, done) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let (stop, count) = (Arc::clone(&over), Arc::clone(&done));
        let thread = thread::spawn(move || {
            let mut wrong = Vec::new();
            while !stop.load(SeqCst) {
                match act() {
                    Ok(()) => drop(count.fetch_add(1, SeqCst)),
                    Err(why) => wrong.push(why),
                }
                // sleeps: paces the client
                thread::sleep(Duration::from_millis(5));
            }
            wrong
        });
        Self { over, done, thread }
    }

    /// Waits until it has acted so many times more, or has failed for good.
    #[track_caller]
    fn more(&self, times: u64) {
        let before = self.done.load(SeqCst);
        until("it is done again", || self.thread.is_finished() || self.done.load(SeqCst) >= before + times);
    }

    #[track_caller]
    fn stop_unharmed(self) {
        self.over.store(true, SeqCst);
        let wrong = self.thread.join().unwrap();
        assert!(wrong.is_empty(), "of {}: {wrong:?}", self.done.load(SeqCst));
    }
}

fn echoed(stream: &mut TcpStream, text: &[u8]) -> Result<(), String> {
    stream.write_all(text).map_err(|error| format!("written: {error}"))?;
    let mut back = vec![0; text.len()];
    stream.read_exact(&mut back).map_err(|error| format!("read: {error}"))?;
    if back == text { Ok(()) } else { Err("another text came back".into()) }
}

fn connected(address: SocketAddr) -> Result<TcpStream, String> {
    let stream = TcpStream::connect(address).map_err(|error| format!("connected: {error}"))?;
    stream.set_read_timeout(Some(PATIENCE)).map_err(|error| error.to_string())?;
    Ok(stream)
}

/// Calls of gRPC by grpcio, on one channel, until they are stopped.
struct Calls(Child);

impl Calls {
    /// Starts a server; returns its address, too.
    fn start() -> (Self, SocketAddr) {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/e2e/grpc/upgrade.py");
        let mut command = Command::new(part("setpriv"));
        command.args(["--pdeathsig", "KILL", "--", "/usr/bin/python3", script]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        (Self(child), SocketAddr::from(([127, 0, 0, 1], line.trim().parse().unwrap())))
    }

    /// Starts the calls through a balancer at this address.
    fn call(&mut self, address: SocketAddr) {
        writeln!(self.0.stdin.as_mut().unwrap(), "{address}").unwrap();
    }

    /// Ends the calls: not one may have failed. The script prints those that did.
    #[track_caller]
    fn stop_unharmed(mut self) {
        drop(self.0.stdin.take());
        assert!(self.0.wait().unwrap().success(), "calls failed");
    }
}

#[test]
fn twenty_upgrades_under_load_fail_no_request() {
    let members = Member::several(2, &["--service", "exp:3ms", "--workers", "64"]);
    let echo = Member::start(&["--echo", "tcp"]);
    let (mut calls, grpc) = Calls::start();
    let web = [members[0].address, members[1].address];
    let file = |threads: usize| {
        let listener = |group: &str, rest: &str| {
            format!("[[listener]]\naddress = \"127.0.0.1:0\"\ngroup = \"{group}\"\n{rest}\n")
        };
        let group = |name: &str, members: &[SocketAddr], rest: &str| groups(&[(name, members)], rest);
        [
            // Byte streams stay with the process that has them: none may be cut before the test is over.
            format!("threads = {threads}\nupgrade_deadline = \"10m\"\n"),
            listener("web", ""),
            listener("tcp", "protocol = \"tcp\""),
            listener("grpc", ""),
            // The group rejects nothing, however many requests come at once.
            group(
                "web",
                &web,
                "admission = false\ntimeouts = { connect = \"20s\" }\nhealth = \
                { tcp = true, interval = \"100ms\" }\n",
            ),
            group("tcp", &[echo.address], "timeouts = { connect = \"20s\" }\n"),
            group(
                "grpc",
                &[grpc],
                "admission = false\ntimeouts = { connect = \"20s\" }\nprotocol = \
                \"h2\"\n",
            ),
        ]
        .concat()
    };
    let mut line = Line::start(&file(2));
    let [http, tcp, grpc] = line.balancer.addresses() else { panic!("three listeners") };
    let (http, tcp, grpc) = (*http, *tcp, *grpc);
    // The other balancer asks over HTTP/2: its connections are long, and each upgrade makes them go away.
    let second = Balancer::start(&web_of(
        http,
        "admission = false\ntimeouts = { connect = \"20s\" }\nprotocol = \"h2\"\n",
    ));
    calls.call(grpc);
    // POST: no request is retried.
    let mut kept = Load::start(http, "POST", 60.0);
    let mut fresh = Load::with(http, "POST", &[("Connection", "close")], 30.0);
    let mut over_h2 = Load::start(second.address(), "POST", 30.0);
    let short = Again::start(move || echoed(&mut connected(tcp)?, b"a line\r\n"));
    let mut stays = connected(tcp).unwrap();
    let long = Again::start(move || echoed(&mut stays, b"a longer line of text\r\n"));
    kept.more(50);
    for turn in 0..20 {
        // The sockets are fewer than the threads, and then more.
        line.balancer.write(&file([1, 3, 2][turn % 3]));
        line.upgrade();
        kept.more(20);
        fresh.more(10);
        over_h2.more(3);
        short.more(3);
        long.more(3);
    }
    assert_eq!(line.balancer.addresses()[0], http, "where it always was");
    calls.stop_unharmed();
    [short, long].into_iter().for_each(Again::stop_unharmed);
    let (kept, fresh, over_h2) = (kept.stop_unharmed(), fresh.stop_unharmed(), over_h2.stop_unharmed());
    let group = line.balancer.group("web");
    assert_eq!((&group["retries"], &group["retries_denied"]), (&0.into(), &0.into()), "{group}");
    // All requests were counted, whichever process did the work.
    let sent = kept.ok + fresh.ok + over_h2.ok;
    until("every request is counted", || {
        let members = &line.balancer.group("web")["members"];
        let counted: u64 =
            members.as_array().unwrap().iter().map(|one| one["requests"].as_u64().unwrap()).sum();
        assert!(counted <= sent, "{counted} of {sent}");
        counted == sent
    });
}

/// Returns the file of a balancer in front of another.
fn web_of(member: SocketAddr, rest: &str) -> String {
    web(&[member], rest)
}

#[test]
fn what_is_known_and_counted_goes_on() {
    let members = Member::several(3, &[]);
    let all: Vec<SocketAddr> = members.iter().map(|member| member.address).collect();
    // With turns each member gets requests: one that seemed slow at first, as a machine stood still, would
    // have next to nothing with other strategies.
    let rest = "strategy = \"round_robin\"\nhealth = { tcp = true, interval = \"1h\" }\n";
    // The listener is closed meanwhile, and no other process may take the port then.
    let spare = format!("[[listener]]\naddress = \"127.0.0.1:{}\"\ngroup = \"web\"\n", free_port());
    let text = web(&all, rest).replacen("[[group]]", &format!("{spare}[[group]]"), 1);
    let mut line = Line::start(&text);
    let address = line.balancer.address();
    let closed = line.balancer.addresses()[1];
    until("all are up", || {
        let group = line.balancer.group("web");
        group["members"].as_array().unwrap().iter().all(|member| member["state"] == "up")
    });
    for _ in 0..30 {
        assert_eq!(get(address, "/").status, 200);
    }
    // A client may have its answer before it is counted.
    until("all are counted", || line.balancer.group("web")["latency"]["count"] == 30);
    let well = |args: &[&str]| {
        let run = line.balancer.run(args);
        assert_eq!(run.code, Some(0), "{args:?}: {}{}", run.out, run.err);
    };
    let (drained, disabled) = (all[0].to_string(), all[1].to_string());
    well(&["drain", &drained]);
    well(&["disable", "member", &disabled]);
    well(&["disable", "listener", &closed.to_string()]);
    well(&["set", "group", "web.strategy=random"]);
    let lease = lease(&line.balancer, "");
    let before = line.balancer.group("web");
    let metric = "plimsoll_requests_total{group=\"web\",member=\"MEMBER\",code_class=\"2xx\"}";
    let metric = metric.replace("MEMBER", &drained);
    let counted = line.balancer.metric(&metric);
    assert!(counted >= 5.0, "{counted}");
    let latency = line.balancer.metric("plimsoll_request_duration_seconds_count{group=\"web\"}");

    line.upgrade();
    let after = line.balancer.group("web");
    let states = |group: &Value| -> Vec<Value> {
        group["members"].as_array().unwrap().iter().map(|member| member["state"].clone()).collect()
    };
    // Checks are an hour apart: the new process did not learn this by itself.
    assert_eq!(states(&after), ["draining", "disabled", "up"]);
    assert_eq!((states(&before), &after["strategy"]), (states(&after), &"random".into()));
    assert_eq!(line.balancer.metric(&metric), counted);
    assert_eq!(line.balancer.metric("plimsoll_request_duration_seconds_count{group=\"web\"}"), latency);
    assert_eq!(
        line.balancer.metric(
            "plimsoll_connections_accepted_total{listener=\"ADDRESS\",protocol=\"http\",group=\"web\"}"
                .replace("ADDRESS", &address.to_string())
                .as_str()
        ),
        30.0
    );
    // A lease is renewed by the number that it had.
    let again = lease_of(&line.balancer, &lease, "{}");
    assert_eq!((&again["member"], &again["moved"]), (&lease["member"], &false.into()), "{again}");
    // The closed listener is still closed, and can be opened at its address.
    assert!(TcpStream::connect(closed).is_err());
    let run = line.balancer.run(&["enable", "listener", &closed.to_string()]);
    assert_eq!(run.code, Some(0), "{}", run.err);
    assert_eq!(get(closed, "/").status, 200);
    // The numbers of events go on, and an event names both processes of the upgrade.
    let events = events(&line.balancer);
    let kinds: Vec<&str> = events.iter().map(|event| event["kind"].as_str().unwrap()).collect();
    for kind in ["draining", "upgraded"] {
        assert!(kinds.contains(&kind), "{kinds:?}");
    }
    let numbers: Vec<u64> = events.iter().map(|event| event["seq"].as_u64().unwrap()).collect();
    assert!(numbers.windows(2).all(|two| two[0] + 1 == two[1]), "{numbers:?}");
    // Undrained, the member gets requests again.
    assert_eq!(line.balancer.run(&["undrain", &drained]).code, Some(0));
    until("it is up", || states(&line.balancer.group("web"))[0] == "up");
}

fn events(balancer: &Balancer) -> Vec<Value> {
    let run = balancer.run(&["events", "-o", "json"]);
    run.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[track_caller]
fn lease(balancer: &Balancer, path: &str) -> Value {
    lease_at(balancer, &format!("bind{path}"), "{\"key\": \"me\", \"lease_seconds\": 600}")
}

#[track_caller]
fn lease_of(balancer: &Balancer, lease: &Value, body: &str) -> Value {
    lease_at(balancer, &format!("bind/{}", lease["lease"].as_str().unwrap()), body)
}

#[track_caller]
fn lease_at(balancer: &Balancer, path: &str, body: &str) -> Value {
    let mut wire = Wire::connect(balancer.reports());
    wire.send(format!(
        "POST /v1/groups/web/{path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: \
         application/json\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    ));
    let answer = wire.answer().unwrap();
    assert_eq!(answer.status, 200, "{}", answer.text());
    serde_json::from_slice(&answer.body).unwrap()
}

#[test]
fn an_ejected_member_stays_out_for_as_long_as_it_would_have() {
    let good = Member::start(&[]);
    let bad = Script::answering("HTTP/1.1 500 Oh\r\nContent-Length: 0\r\n\r\n");
    let rest =
        "strategy = \"round_robin\"\noutlier = { consecutive = 3, ejection = \"5m\", false_alarm = 0.0 }\n";
    let mut line = Line::start(&web(&[good.address, bad.address], rest));
    until("it is ejected", || {
        get(line.balancer.address(), "/");
        line.balancer.member(bad.address)["state"] == "ejected"
    });
    let asked = bad.accepted();
    line.upgrade();
    assert_eq!(line.balancer.member(bad.address)["state"], "ejected");
    for _ in 0..20 {
        assert_eq!(get(line.balancer.address(), "/").status, 200);
    }
    assert_eq!(bad.accepted(), asked, "nobody asked it again");
}

/// Opens a WebSocket and gets the answer of its handshake.
fn socket(address: SocketAddr) -> tokio_tungstenite::tungstenite::WebSocket<TcpStream> {
    let stream = connected(address).unwrap();
    let (socket, answer) = client(format!("ws://{address}/chat"), stream).unwrap();
    assert_eq!(answer.status(), 101);
    socket
}

#[test]
fn a_websocket_lives_across_an_upgrade_until_the_deadline() {
    let member = crate::websocket::echo();
    let start = |deadline: &str| {
        let line = Line::start(&format!("upgrade_deadline = \"{deadline}\"\n{}", web(&[member], "")));
        let socket = socket(line.balancer.address());
        (line, socket)
    };
    let (mut line, mut socket) = start("1h");
    line.upgrade();
    for _ in 0..10 {
        socket.send(Message::text("still there?")).unwrap();
        assert_eq!(socket.read().unwrap(), Message::text("still there?"));
    }
    drop(socket);
    assert_eq!(line.balancer.process.end(), Some(0), "the process before has ended with its last connection");

    let (mut line, mut socket) = start("1s");
    let begun = Instant::now();
    line.upgrade();
    assert!(socket.read().is_err(), "it is cut");
    assert!(begun.elapsed() >= Duration::from_millis(950), "after {:?}", begun.elapsed());
    assert_eq!(line.balancer.process.end(), Some(0), "the process before has ended");
    line.balancer.process.line("1 connection cut at the drain deadline");
    let mut again = self::socket(line.balancer.address());
    again.send(Message::text("and now?")).unwrap();
    assert_eq!(again.read().unwrap(), Message::text("and now?"));
}

/// Writes a program that is no balancer.
pub(crate) fn program(folder: &Folder, name: &str, script: &str) -> PathBuf {
    folder.script(name, &format!("#!/bin/sh\n{script}\n"))
}

#[test]
fn what_cannot_take_over_leaves_all_as_it_was() {
    let member = Member::start(&[]);
    let text = web(&[member.address], "admission = false\ntimeouts = { connect = \"20s\" }\n");
    let line = Line::start(&text);
    let mut load = Load::start(line.balancer.address(), "POST", 100.0);
    load.more(20);
    let folder = Folder::new();
    let ends = program(&folder, "ends", "exit 7");
    // sleeps: for longer than it is waited for
    let hangs = program(&folder, "hangs", "exec sleep 600");
    // sleeps: for longer than it is waited for
    let talks = program(&folder, "talks", "printf 'HTTP/1.1 200 OK\\r\\n' >&0; exec sleep 600");
    let refused = |args: &[&str], why: &str| {
        let run = line.balancer.run(&[&["upgrade"], args].concat());
        assert_eq!(run.code, Some(2), "{}{}", run.out, run.err);
        assert!(run.err.contains(why) && run.err.contains("goes on as before"), "{why}: {}", run.err);
    };
    let path = |path: &Path| path.to_str().unwrap().to_owned();
    refused(&["--binary", "/nowhere/plimsoll"], "/nowhere/plimsoll cannot be started: No such file");
    refused(&["--binary", &path(&ends)], "it ended before it was ready: exit code 7");
    refused(&["--binary", &path(&hangs), "--timeout", "1s"], "it was not ready within 1 s");
    refused(&["--binary", &path(&talks), "--timeout", "50s"], "it cannot be talked to");
    // One file is wrong, and another asks for an address that cannot be had.
    line.balancer.write(&text.replace("[[group]]", "[[grou]]"));
    refused(&[], "grou");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let other = format!("[[listener]]\naddress = \"{}\"\ngroup = \"web\"\n", taken.local_addr().unwrap());
    line.balancer.write(&(other + &text));
    refused(&[], "the port is in use");
    load.more(50);
    load.stop_unharmed();
    assert_eq!(line.balancer.status()["pid"], line.balancer.process.pid());
    let failed = events(&line.balancer).iter().filter(|event| event["kind"] == "upgrade_failed").count();
    assert_eq!(failed, 6);
    // No failed process is left.
    until("all have ended", || {
        let children =
            std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", line.balancer.process.pid()));
        children.unwrap().trim().is_empty()
    });
}

#[test]
fn an_upgrade_during_an_upgrade_is_refused() {
    let member = Member::start(&[]);
    let mut line = Line::start(&web(&[member.address], ""));
    let folder = Folder::new();
    // The program ends when the test lets it.
    let hangs = program(&folder, "hangs", ": > started; until [ -e over ]; do sleep 0.05; done; exit 7");
    let place = line.balancer.folder().path().to_owned();
    let (started, over) = (place.join("started"), place.join("over"));
    let first = thread::spawn(move || {
        Run::plimsoll(&["upgrade", "--binary", hangs.to_str().unwrap(), "--timeout", "10m"], &place)
    });
    until("the first has begun", || started.exists());
    let second = line.balancer.run(&["upgrade"]);
    assert_eq!(second.code, Some(2), "{}", second.err);
    assert!(second.err.contains("an upgrade or another command is under way"), "{}", second.err);
    line.balancer.process.signal(Signal::USR2);
    line.balancer.process.line("an upgrade is under way: wait for its end");
    // No operator waits for it.
    let drain = line.balancer.run(&["drain", &member.address.to_string()]);
    assert!(drain.code == Some(3) && drain.err.contains("an upgrade is under way"), "{}", drain.err);
    std::fs::write(over, "").unwrap();
    let first = first.join().unwrap();
    let why = "it ended before it was ready: exit code 7";
    assert!(first.code == Some(2) && first.err.contains(why), "{}", first.err);
    line.upgrade();
}
