//! The access log: complete lines of JSON. A full or slow disk costs lines, never requests.

use std::fs::{File, OpenOptions};
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::process::Command;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use rustix::fs::{CWD, FileType, Mode, OFlags, mknodat};
use rustix::process::Signal;
use serde_json::Value;

use crate::stage::{Balancer, Folder, Load, Member, Wire, get, listening, nobody, part, until, web};

fn with_log(member: &Member, path: &Path, more: &str) -> String {
    let log = format!("\n[access_log]\npath = \"{}\"\n{more}\n", path.display());
    // A machine that stands still must not cause overload: nothing is rejected for it.
    web(&[member.address], "admission = false\n") + &log
}

/// Returns the lines of a log, each of which must be a JSON object.
#[track_caller]
fn lines(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    assert!(text.is_empty() || text.ends_with('\n'), "half a line");
    let parse = |line: &str| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
    let mut lines: Vec<Value> = text.lines().map(parse).collect();
    assert!(lines.iter().all(Value::is_object));
    // Each core writes its own lines: they are ordered only by their times.
    lines.sort_by(|a, b| a["time"].as_f64().unwrap().total_cmp(&b["time"].as_f64().unwrap()));
    lines
}

#[test]
fn each_request_is_a_line() {
    let unix = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
    let (begun, early) = (Instant::now(), unix());
    let member = Member::start(&[]);
    let folder = Folder::new();
    let log = folder.join("access.log");
    let mut balancer = Balancer::start_in(folder, &with_log(&member, &log, ""));
    let mut client = Wire::connect(balancer.address());
    client.send(
        "GET /a%20page?q=\"1\" HTTP/1.1\r\nHost: shop.example\r\nUser-Agent: a \"quoted\\\" \u{fc} \
        one\r\n\r\n",
    );
    assert_eq!(client.answer().unwrap().status, 200);
    client.send("POST /form HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\nbody");
    assert_eq!(client.answer().unwrap().status, 200);
    balancer.run(&["drain", &member.address.to_string()]);
    client.send("GET /nobody HTTP/1.1\r\nHost: x\r\n\r\n");
    assert_eq!(client.answer().unwrap().status, 503);
    drop(client);
    // Buffered lines are written before the process ends.
    balancer.process.signal(Signal::TERM);
    assert_eq!(balancer.process.end(), Some(0));
    let lines = lines(&log);
    assert_eq!(lines.len(), 3, "{lines:?}");
    let first = &lines[0];
    assert_eq!((&first["method"], &first["target"]), (&"GET".into(), &"/a%20page?q=\"1\"".into()));
    assert_eq!((&first["host"], &first["client"]), (&"shop.example".into(), &"127.0.0.1".into()));
    assert_eq!(first["user_agent"], "a \"quoted\\\" \u{fc} one");
    assert_eq!(
        (&first["group"], &first["status"], &first["reason"]),
        (&"web".into(), &200.into(), &Value::Null)
    );
    // A second more on each side: clocks may be adjusted.
    assert!((early - 1.0..=unix() + 1.0).contains(&first["time"].as_f64().unwrap()), "{first}");
    // bound: the time that all of this test has taken
    let whole = begun.elapsed().as_secs_f64();
    let took = |name: &str| first[name].as_f64().unwrap();
    assert!((0.0..whole).contains(&took("seconds")) && (0.0..whole).contains(&took("waited")), "{first}");
    assert_eq!((&lines[1]["method"], &lines[1]["target"]), (&"POST".into(), &"/form".into()));
    assert_eq!((&lines[2]["status"], &lines[2]["reason"]), (&503.into(), &"no_member".into()));
    let address = Value::from(member.address.to_string());
    assert_eq!((&first["member"], &first["choice"], &first["tries"]), (&address, &"only".into(), &1.into()));
    assert_eq!((&first["strategy"], &first["trace_id"]), (&"adaptive".into(), &Value::Null));
    assert!(first["figures"].is_object(), "{first}");
    assert_eq!(
        (&lines[2]["member"], &lines[2]["choice"], &lines[2]["tries"]),
        (&Value::Null, &Value::Null, &0.into())
    );
}

/// Returns the only line of the log.
#[track_caller]
fn only_line(balancer: &mut Balancer, log: &Path) -> Value {
    balancer.process.signal(Signal::TERM);
    assert_eq!(balancer.process.end(), Some(0));
    let lines = lines(log);
    assert_eq!(lines.len(), 1, "{lines:?}");
    lines[0].clone()
}

#[test]
fn a_line_says_why_it_was_this_member() {
    let (one, other) = (Member::start(&[]), Member::start(&[]));
    let (_kept, gone) = nobody();
    let log_of = |folder: &Folder| format!("[access_log]\npath = \"{}\"\n", folder.join("log").display());
    let start = |listener: &str, members: &[SocketAddr], rest: &str| {
        let folder = Folder::new();
        let text = listening(listener, members, rest) + "\n" + &log_of(&folder);
        let log = folder.join("log");
        (Balancer::start_in(folder, &text), log)
    };
    // The strategy's choice and its reasons; the trace is that of the caller.
    let (mut balancer, log) = start("", &[one.address, other.address], "strategy = \"least_connections\"\n");
    let mut client = Wire::connect(balancer.address());
    let parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    client.send(format!("GET / HTTP/1.1\r\nHost: x\r\ntraceparent: {parent}\r\n\r\n"));
    assert_eq!(client.answer().unwrap().status, 200);
    drop(client);
    let line = only_line(&mut balancer, &log);
    assert_eq!(
        (&line["choice"], &line["figures"]["in_flight_per_weight"]),
        (&"strategy".into(), &1.0.into())
    );
    assert_eq!((&line["trace_id"], &line["span_id"]), (&parent[3..35].into(), &Value::Null));
    // Another member had failed.
    let rest = "strategy = \"first_available\"\n";
    let (mut balancer, log) = start("", &[gone, one.address], rest);
    assert_eq!(get(balancer.address(), "/").status, 200);
    let line = only_line(&mut balancer, &log);
    let why = (&line["choice"], &line["tries"], &line["member"]);
    assert_eq!(why, (&"retry".into(), &2.into(), &one.address.to_string().into()));
    // The connection is bound to the member.
    let (mut balancer, log) = start("binding = \"per_session\"", &[one.address, other.address], "");
    let mut client = Wire::connect(balancer.address());
    for _ in 0..2 {
        client.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
        assert_eq!(client.answer().unwrap().status, 200);
    }
    drop(client);
    balancer.process.signal(Signal::TERM);
    assert_eq!(balancer.process.end(), Some(0));
    let why: Vec<Value> = lines(&log).iter().map(|line| line["choice"].clone()).collect();
    assert_eq!(why, ["strategy", "session"]);
    // The cookie names the member.
    let (mut balancer, log) = start("affinity = { cookie = \"sid\" }", &[one.address, other.address], "");
    let cookie =
        get(balancer.address(), "/").field("set-cookie").unwrap().split(';').next().unwrap().to_owned();
    let mut client = Wire::connect(balancer.address());
    client.send(format!("GET / HTTP/1.1\r\nHost: x\r\nCookie: {cookie}\r\n\r\n"));
    assert_eq!(client.answer().unwrap().status, 200);
    drop(client);
    balancer.process.signal(Signal::TERM);
    assert_eq!(balancer.process.end(), Some(0));
    let why: Vec<Value> = lines(&log).iter().map(|line| line["choice"].clone()).collect();
    assert_eq!(why, ["strategy", "cookie"]);
}

#[test]
fn no_line_is_lost_when_the_file_is_rotated_under_load() {
    let member = Member::start(&[]);
    let folder = Folder::new();
    let log = folder.join("access.log");
    let text = with_log(&member, &log, "");
    let mut balancer = Balancer::start_in(folder, &text);
    let mut load = Load::start(balancer.address(), "GET", 100.0);
    let mut rotated = Vec::new();
    for number in 0..5 {
        load.more(30);
        until("lines in the file", || std::fs::metadata(&log).is_ok_and(|file| file.len() > 0));
        rotated.push(balancer.folder().join(&format!("access.log.{number}")));
        std::fs::rename(&log, &rotated[number]).unwrap();
        balancer.hang_up(&text);
        until("a new file", || log.exists());
    }
    until("lines in the last file", || std::fs::metadata(&log).is_ok_and(|file| file.len() > 0));
    let record = load.stop_unharmed();
    balancer.process.signal(Signal::TERM);
    assert_eq!(balancer.process.end(), Some(0));
    let counts: Vec<usize> = rotated.iter().chain([&log]).map(|path| lines(path).len()).collect();
    assert_eq!(counts.iter().sum::<usize>() as u64, record.ok, "{counts:?}");
    assert!(counts.iter().all(|count| *count > 0), "{counts:?}");
}

#[test]
fn a_sample_is_a_sample() {
    let member = Member::start(&[]);
    let folder = Folder::new();
    let log = folder.join("access.log");
    let mut balancer = Balancer::start_in(folder, &with_log(&member, &log, "sample = 0.1"));
    let mut client = Wire::connect(balancer.address());
    for _ in 0..2000 {
        client.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
        client.answer().unwrap();
    }
    balancer.process.signal(Signal::TERM);
    assert_eq!(balancer.process.end(), Some(0));
    // 200 are expected, with a standard deviation of 13.4: six of them on each side.
    assert!((120..280).contains(&lines(&log).len()), "{} lines", lines(&log).len());
}

#[test]
fn a_full_disk_costs_lines_and_no_requests() {
    let member = Member::start(&[]);
    let full = Path::new("/dev/full");
    let balancer = Balancer::start(&with_log(&member, full, ""));
    let mut load = Load::start(balancer.address(), "GET", 100.0);
    let dropped = || balancer.metric("plimsoll_access_log_dropped_total");
    until("dropped lines", || dropped() > 0.0);
    let before = dropped();
    until("more dropped lines", || dropped() > before);
    let warnings = || {
        let lines = balancer.process.lines();
        // A reload may warn of the last lines for the old file, too.
        lines.iter().filter(|line| line.contains("WARN") && line.contains("lines are dropped until")).count()
    };
    until("it is told", || warnings() > 0);
    assert_eq!(warnings(), 1, "{}", balancer.process);

    // On a disk with free space the log continues.
    let log = balancer.folder().join("access.log");
    balancer.reload(&with_log(&member, &log, ""));
    until("lines", || std::fs::metadata(&log).is_ok_and(|file| file.len() > 0));
    load.more(50);
    load.stop_unharmed();
    assert_eq!(warnings(), 1, "{}", balancer.process);
}

#[test]
fn a_log_that_nobody_takes_stops_neither_requests_nor_the_end() {
    let member = Member::start(&[]);
    let folder = Folder::new();
    let pipe = folder.join("pipe");
    mknodat(CWD, &pipe, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    // The reader never reads: each write blocks forever once the pipe is full.
    let reader: File =
        OpenOptions::new().read(true).custom_flags(OFlags::NONBLOCK.bits() as i32).open(&pipe).unwrap();
    let text = "drain_deadline = \"1s\"\n".to_owned() + &with_log(&member, &pipe, "");
    let mut balancer = Balancer::start_in(folder, &text);
    // Long lines fill the pipe and its queue soon.
    let agent = format!("User-Agent: {}", "a".repeat(8000));
    let url = balancer.url("/");
    let args = ["-t1", "-c16", "-d2s", "--timeout", "60s", "-H", &agent, &url];
    let wrk = Command::new(part("wrk")).args(args).output().unwrap();
    let said = String::from_utf8_lossy(&wrk.stdout);
    assert!(said.contains("Requests/sec") && !said.contains("Non-2xx") && !said.contains("errors"), "{said}");
    // A slow machine may not have filled them yet.
    let mut client = Wire::connect(balancer.address());
    until("dropped lines", || {
        for _ in 0..20 {
            client.send(format!("GET / HTTP/1.1\r\nHost: x\r\n{agent}\r\n\r\n"));
            assert_eq!(client.answer().unwrap().status, 200);
        }
        balancer.metric("plimsoll_access_log_dropped_total") > 0.0
    });
    drop(client);
    assert_eq!(get(balancer.address(), "/").status, 200);
    balancer.process.signal(Signal::TERM);
    assert_eq!(balancer.process.end(), Some(0));
    drop(reader);
}
