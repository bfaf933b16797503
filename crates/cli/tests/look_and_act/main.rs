//! The commands that look and act: the real binary against a real admin plane in front of a scripted
//! balancer.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use plimsoll_admin::{AdminServer, Config, start};
use plimsoll_brain::status::{GroupStatus, LatencySummary, MemberStatus, StatusReport};
use plimsoll_brain::{EventKind, MemberState};
use serde_json::{Value, json};
use tokio::sync::broadcast;

use script::Script;

mod script;

/// A directory in which a scripted balancer has its control socket.
struct Stage {
    script: Arc<Script>,
    admin: Option<AdminServer>,
    dir: PathBuf,
}

impl Stage {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("plimsoll-act-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let dir = std::env::temp_dir().join(name);
        std::fs::create_dir(&dir).unwrap();
        let member = |name: &str| MemberStatus {
            name: name.into(),
            address: "127.0.0.1:80".into(),
            state: MemberState::Up,
            why: "no checks".into(),
            since_seconds: 1.0,
            capacity: 1.0,
            weight: 1.0,
            in_flight: 3,
            in_flight_elsewhere: 0.0,
            part: None,
            max_rate: None,
            limit: None,
            knee: None,
            said_age_seconds: None,
            load: None,
            load_effective: None,
            refused: BTreeMap::new(),
            slow_seconds: None,
            alert_share: 0.0,
            idle_connections: 0,
            requests: 10,
            failures: 0,
            clients_left: 0,
            answers: BTreeMap::new(),
            connects: 1,
            bytes_out: 0,
            bytes_in: 0,
            moved: 0,
            leases: 0,
            host: None,
            latency: LatencySummary::default(),
            load_line: None,
        };
        let status = StatusReport {
            schema: 1,
            version: "0.1.0".into(),
            pid: 7,
            threads: 1,
            last_reload_successful: true,
            groups: vec![GroupStatus {
                name: "web".into(),
                verdict: "2/2 members up".into(),
                healthy: true,
                members: vec![member("a:80"), member("b:80")],
                ..GroupStatus::default()
            }],
            ..StatusReport::default()
        };
        let script = Arc::new(Script {
            status: Mutex::new(status),
            log: Mutex::default(),
            news: broadcast::channel(1).0,
            stops: broadcast::channel(1).0,
        });
        let config = Config {
            listen: Some(([127, 0, 0, 1], 0).into()),
            control: Some(dir.join("control.sock")),
            ..Config::default()
        };
        let admin = start(config, script.clone()).unwrap();
        Self { script, admin: Some(admin), dir }
    }

    fn socket(&self) -> String {
        format!("unix:{}", self.dir.join("control.sock").display())
    }

    /// In the stage's directory, with no word on where the balancer is.
    fn bare(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_plimsoll"));
        command.args(args).current_dir(&self.dir).stdin(Stdio::null());
        command.env_remove("PLIMSOLL_CONTROL").env_remove("NO_COLOR");
        command
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = self.bare(args);
        command.env("PLIMSOLL_CONTROL", self.socket());
        command
    }

    fn run(&self, args: &[&str]) -> Said {
        Said::by(self.command(args))
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.admin.take();
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

struct Said {
    code: i32,
    out: String,
    err: String,
}

impl Said {
    fn by(mut command: Command) -> Self {
        let Output { status, stdout, stderr } = command.output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        Self { code: status.code().unwrap(), out: text(stdout), err: text(stderr) }
    }

    fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {}\n{}", self.out, self.err))
    }
}

#[test]
fn status_judges() {
    let stage = Stage::new();
    let said = stage.run(&["status"]);
    assert_eq!((said.code, &*said.err), (0, ""));
    assert!(said.out.contains("✔  web  2/2 members up"), "{}", said.out);
    assert!(!said.out.contains('\x1b'), "no colour where there is no terminal");
    assert!(stage.run(&["status", "--color", "always"]).out.contains("\x1b["));

    stage.script.status.lock().unwrap().groups[0].healthy = false;
    let said = stage.run(&["status", "-o", "json"]);
    assert_eq!((said.code, &said.json()["groups"][0]["healthy"]), (1, &json!(false)));
    stage.script.status.lock().unwrap().groups[0].healthy = true;
    stage.script.status.lock().unwrap().last_reload_successful = false;
    stage.script.status.lock().unwrap().last_reload_error = Some("no lisener".into());
    let said = stage.run(&["status"]);
    assert!(said.code == 1 && said.out.contains("‼ the last reload was refused"), "{}", said.out);
}

#[test]
fn members_of_one_group() {
    let stage = Stage::new();
    let said = stage.run(&["members", "web"]);
    assert!(said.code == 0 && said.out.lines().count() == 3, "{}", said.out);
    assert!(said.out.contains("● up") && said.out.contains("50.0%"), "{}", said.out);
    let said = stage.run(&["members", "-o", "json"]).json();
    assert_eq!((&said["schema"], &said["groups"][0]["members"][1]["name"]), (&json!(1), &json!("b:80")));
    let said = stage.run(&["members", "wbe"]);
    assert!(said.code == 2 && said.out.is_empty() && said.err.contains("did you mean web?"), "{}", said.err);
}

#[test]
fn events_since() {
    let stage = Stage::new();
    [EventKind::Joined, EventKind::Up].into_iter().for_each(|kind| stage.script.tell(kind));
    let said = stage.run(&["events"]);
    assert_eq!(said.code, 0);
    assert_eq!(said.out.lines().count(), 2);
    assert!(said.out.starts_with("2001-09-09 01:46:40.000Z  web  a:80  joined"), "{}", said.out);
    let said = stage.run(&["events", "--since", "1", "-o", "json"]);
    assert_eq!((&said.json()["seq"], &said.json()["kind"]), (&json!(2), &json!("up")));
    let said = stage.run(&["events", "--since", "10m"]);
    // The second is of the year 2033.
    assert_eq!(said.out.lines().count(), 1, "{}", said.out);
    assert_eq!(stage.run(&["events", "--since", "yesterday"]).code, 2);
}

#[test]
fn events_as_they_happen() {
    let mut stage = Stage::new();
    stage.script.tell(EventKind::Joined);
    let mut child = stage.command(&["events", "--follow"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.next().unwrap().unwrap().contains("joined"));
    stage.script.tell(EventKind::Ejected);
    assert!(lines.next().unwrap().unwrap().contains("ejected"));
    stage.script.tell(EventKind::Stopping);
    stage.admin.take();
    assert!(lines.next().unwrap().unwrap().contains("stopping"));
    assert!(lines.next().is_none());
    assert_eq!(child.wait().unwrap().code(), Some(0), "the balancer stopped: no error");
}

#[test]
fn a_lost_stream_is_told() {
    let mut stage = Stage::new();
    stage.script.tell(EventKind::Joined);
    let mut follow = stage.command(&["events", "--follow"]);
    let mut child = follow.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.next().is_some());
    stage.admin.take();
    let said = child.wait_with_output().unwrap();
    assert_eq!(said.status.code(), Some(3));
    assert!(String::from_utf8(said.stderr).unwrap().contains("the stream ended"));
}

#[test]
fn a_reader_that_has_had_enough_is_no_error() {
    let stage = Stage::new();
    stage.script.tell(EventKind::Joined);
    let mut follow = stage.command(&["events", "--follow"]);
    let mut child = follow.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.next().is_some());
    drop(lines);
    stage.script.tell(EventKind::Up);
    let said = child.wait_with_output().unwrap();
    assert_eq!((said.status.code(), &*said.stderr), (Some(0), &b""[..]));
}

#[test]
fn drain_and_back() {
    let stage = Stage::new();
    let state = || stage.script.status.lock().unwrap().groups[0].members[0].state;
    let said = stage.run(&["drain", "a:80", "--wait"]);
    assert_eq!((said.code, &*said.out, state()), (0, "", MemberState::Draining));
    assert!(
        said.err.contains("2 requests in flight") && said.err.ends_with("a:80: drained\n"),
        "{}",
        said.err
    );
    let said = stage.run(&["undrain", "a:80", "--group", "web", "-o", "json"]);
    assert_eq!((said.code, said.json(), state()), (0, json!({"undrained": "a:80"}), MemberState::Up));
    let said = stage.run(&["drain", "z:80"]);
    assert_eq!((said.code, &*said.err), (2, "error: no group has a member z:80\n"));
}

#[test]
fn disable_and_enable() {
    let stage = Stage::new();
    let state = || stage.script.status.lock().unwrap().groups[0].members[0].state;
    let said = stage.run(&["disable", "member", "a:80", "--group", "web"]);
    assert_eq!((said.code, &*said.err, state()), (0, "~ member a:80: false\n", MemberState::Disabled));
    let said = stage.run(&["enable", "member", "a:80", "-o", "json"]);
    assert_eq!(
        (said.code, said.json(), state()),
        (0, json!({"changes": ["~ member a:80: true"]}), MemberState::Up)
    );
    let said = stage.run(&["disable", "listener", "udp:[::]:53"]);
    assert_eq!((said.code, &*said.err), (0, "~ listener udp:[::]:53: false\n"));
    let said = stage.run(&["enable", "balancing", "web"]);
    assert_eq!((said.code, &*said.err), (0, "it was so already\n"));
    assert_eq!(stage.run(&["disable", "member", "z:80"]).code, 2);
    assert_eq!(stage.run(&["disable", "a:80"]).code, 2, "it must be said what is meant");
}

#[test]
fn reload_prints_the_difference() {
    let stage = Stage::new();
    let said = stage.run(&["reload"]);
    assert_eq!((said.code, &*said.out), (0, "+ group web: member c:80\n"));
    assert_eq!(stage.run(&["reload", "-o", "json"]).json()["changes"][0], "+ group web: member c:80");
    stage.script.status.lock().unwrap().last_reload_successful = false;
    let said = stage.run(&["reload"]);
    assert_eq!((said.code, &*said.out), (2, ""));
    assert!(said.err.contains("plimsoll.toml:3:1"), "{}", said.err);
}

#[test]
fn an_upgrade_says_who_took_over_or_why_nobody_did() {
    let stage = Stage::new();
    let said = stage.run(&["upgrade"]);
    let expected = "process 4711, version 1.2.3, has taken over; 7 connections end with the one before\n";
    assert_eq!((said.code, &*said.err, &*said.out), (0, expected, ""));
    let said = stage.run(&["upgrade", "-o", "json"]);
    assert!(said.code == 0 && said.out.contains("4711"), "{}", said.out);
    let said = stage.run(&["upgrade", "--binary", "new/plimsoll"]);
    assert!(
        said.code == 2 && said.err.contains("/new/plimsoll cannot be started"),
        "a path of its own: {}",
        said.err
    );
    let said = stage.run(&["upgrade", "--timeout", "1h"]);
    assert!(
        said.code == 2 && said.err.contains("timeout_seconds: 3600 is not between 1 and 600"),
        "{}",
        said.err
    );
}

#[test]
fn stop_waits_for_the_end() {
    let mut stage = Stage::new();
    let mut stops = stage.script.stops.subscribe();
    let admin = stage.admin.take();
    let ended = Arc::new(AtomicBool::new(false));
    let ends = ended.clone();
    let end = std::thread::spawn(move || {
        stops.blocking_recv().unwrap();
        std::thread::sleep(Duration::from_millis(200)); // sleeps: as long as its work in flight takes
        ends.store(true, Ordering::SeqCst);
        drop(admin);
    });
    let said = stage.run(&["stop", "--wait"]);
    assert!(ended.load(Ordering::SeqCst), "it did not wait: {}", said.err);
    assert!(said.code == 0 && said.err.ends_with("stopped\n"), "{}", said.err);
    end.join().unwrap();
    let said = stage.run(&["stop"]);
    assert_eq!(said.code, 3, "now nobody is there: {}", said.err);
}

#[test]
fn the_socket_is_found() {
    let stage = Stage::new();
    let config = format!("nonsense = 1\n[admin]\ncontrol = \"{}\"\n", stage.socket());
    std::fs::write(stage.dir.join("other.toml"), &config).unwrap();
    assert_eq!(Said::by(stage.bare(&["members", "-c", "other.toml"])).code, 0);
    std::fs::write(stage.dir.join("plimsoll.toml"), &config).unwrap();
    assert_eq!(Said::by(stage.bare(&["members"])).code, 0);
    let nowhere = format!("unix:{}", stage.dir.join("no.sock").display());
    let said = stage.run(&["members", "--control", &nowhere]);
    assert_eq!((said.code, &*said.out), (3, ""));
    assert!(said.err.contains(&nowhere) && said.err.contains("plimsoll up"), "{}", said.err);
    let said = Said::by(stage.bare(&["members", "-c", "missing.toml"]));
    assert!(said.code == 2 && said.err.contains("missing.toml"), "{}", said.err);
}

#[test]
fn the_listener_is_for_looking() {
    let stage = Stage::new();
    let listener = format!("http://{}", stage.admin.as_ref().unwrap().addr().unwrap());
    assert_eq!(stage.run(&["status", "--control", &listener]).code, 0);
    let said = stage.run(&["drain", "a:80", "--control", &listener]);
    assert!(said.code == 2 && said.err.contains("only shows"), "{}", said.err);
}

#[test]
fn a_stranger_at_the_socket_is_told_apart() {
    let stage = Stage::new();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let stranger = std::thread::spawn(move || {
        for greeting in ["SSH-2.0-x\r\n", "HTTP/1.1 404 Not Found\r\n\r\n<html>", "HTTP/1.1 200 OK\r\n\r\n{}"]
        {
            use std::io::{Read, Write};
            let (mut stream, _) = listener.accept().unwrap();
            stream.read_exact(&mut [0; 20]).unwrap();
            stream.write_all(greeting.as_bytes()).unwrap();
            stream.shutdown(std::net::Shutdown::Write).unwrap();
            let _ = stream.read_to_end(&mut Vec::new());
        }
    });
    for why in ["not HTTP", "is it a balancer's admin listener?", "missing field"] {
        let said = stage.run(&["status", "--control", &address]);
        assert!(said.err.contains(why) && said.out.is_empty(), "{}", said.err);
        assert_eq!(said.err.lines().count(), 1, "{}", said.err);
    }
    stranger.join().unwrap();
}

#[test]
fn a_group_is_explained() {
    let stage = Stage::new();
    let said = stage.run(&["explain", "group", "web"]);
    assert_eq!((said.code, &*said.err), (0, ""));
    assert!(said.out.starts_with("group     web: 2/2 members up\n"), "{}", said.out);
    assert_eq!(stage.run(&["explain", "group", "web", "-o", "json"]).json()["name"], "web");
    let said = stage.run(&["explain", "group", "wbe"]);
    assert_eq!((said.code, &*said.err), (2, "error: there is no group wbe; there are: web\n"));
    assert_eq!(stage.run(&["explain", "group", "../../status"]).code, 2);
}

#[test]
fn a_setting_is_changed_while_it_runs() {
    let stage = Stage::new();
    let said = stage.run(&["set", "group", "web.strategy={ least_request = { choices = 3 } }"]);
    let expected =
        "~ group web: strategy round_robin -> { least_request = { choices = 3 } }\nuntil the next reload\n";
    assert_eq!((said.code, &*said.err), (0, expected));
    let said = stage.run(&["set", "group", "web.strategy=random", "-o", "json"]);
    assert_eq!(said.json()["changes"][0], "~ group web: strategy round_robin -> random");
    let said = stage.run(&["set", "group", "web.name=x"]);
    assert_eq!((said.code, &*said.err), (2, "error: name cannot be changed while it runs\n"));
    assert_eq!(stage.run(&["set", "group", "web.strategy"]).code, 2);
}
