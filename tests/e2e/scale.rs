//! Groups with a scaler, with real servers that are started and stopped. They grow and shrink under load
//! without a lost request, members that end are replaced, and a wrong command starts no storm.

use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::stage::{Balancer, Folder, Load, Member, binary, curl, get, members_list, part, until};
use crate::upgrade::{not_upgraded, number, upgraded};

/// Returns a file with one listener on a group `web`; `group` is its table, `scaler` that of its scaler.
fn text(group: &str, scaler: &str) -> String {
    format!(
        "[[listener]]\naddress = \"127.0.0.1:0\"\ngroup = \"web\"\n[[group]]\nname = \"web\"\nslow_start = \
         \"0s\"\n\
         strategy = \"least_connections\"\ntimeouts = {{ connect = \"20s\" }}\nhealth = \
         {{ tcp = true, interval = \"100ms\" }}\n{group}\n[group.scaler]\n{scaler}"
    )
}

/// A mark in the command lines of all members that the scalers of a test start. Members outlive a balancer
/// that is killed, and one that was upgraded. All processes with the mark are killed when this is dropped,
/// and when the test's own process ends, in whatever way.
pub(crate) struct Mark {
    word: String,
    keeper: Child,
}

/// A program that waits for the end of its input. If no line came before the end, the balancers are still
/// ending, too.
const KEEPER: &str = r#"
import os, sys, time
mark = sys.stdin.readline().strip().encode()
# sleeps: whoever is killed by the kernel with the test starts nobody after that
time.sleep(0 if sys.stdin.readline() else 2)
left = True
while left:
    left = False
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                if mark in file.read().split(b"\0"):
                    os.kill(int(pid), 9)
                    left = True
        except OSError:
            pass
    # sleeps: polls
    time.sleep(0.01)
"#;

impl Mark {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let word = format!("scaled-{}-{}", std::process::id(), NEXT.fetch_add(1, Relaxed));
        let mut keeper = Command::new(part("python3"));
        keeper.args(["-c", KEEPER]).process_group(0).stdin(Stdio::piped());
        let mut keeper = keeper.spawn().unwrap();
        writeln!(keeper.stdin.as_mut().unwrap(), "{word}").unwrap();
        Self { word, keeper }
    }

    /// Returns the command of a member, as a list of the configuration, with more arguments.
    pub(crate) fn command(&self, arguments: &[&str]) -> String {
        let plimsoll = binary().display().to_string();
        let own = [&plimsoll, "member", "--listen", "{address}", "--name", &self.word];
        format!("{:?}", [&own, arguments].concat())
    }

    pub(crate) fn word(&self) -> &str {
        &self.word
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        let told = self.keeper.stdin.take().map(|mut stdin| writeln!(stdin, "over"));
        drop(told);
        let _ = self.keeper.wait();
    }
}

/// Returns the table of a scaler of Plimsoll's own servers; each serves 25 requests a second, and one alone
/// takes 40 ms.
fn servers(mark: &Mark, rest: &str) -> String {
    let command = mark.command(&["--cores", "1", "--service", "exp:40ms"]);
    format!("[group.scaler.process]\ncommand = {command}\n{rest}")
}

fn scaler(balancer: &Balancer) -> Value {
    let run = balancer.run(&["scale", "web", "-o", "json"]);
    assert_eq!(run.code, Some(0), "{}{}", run.out, run.err);
    run.json()["groups"][0]["scaler"].take()
}

/// Returns the names of the members that serve, with their process ids.
fn serving(balancer: &Balancer) -> Vec<(String, i32)> {
    let scaler = scaler(balancer);
    let started = scaler["started"].as_array().unwrap();
    let serving = started.iter().filter(|one| one["stage"] == "serving");
    let pid = |one: &Value| one["id"].as_str().unwrap().split('-').next().unwrap().parse().unwrap();
    serving.map(|one| (one["member"].as_str().unwrap().to_owned(), pid(one))).collect()
}

fn events(balancer: &Balancer, kind: &str) -> Vec<Value> {
    let run = balancer.run(&["events", "-o", "json"]);
    let all = run.out.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    all.filter(|event| event["kind"] == kind).collect()
}

fn alive(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    !stat.is_empty() && !stat.contains(") Z ")
}

/// Returns the number of members that serve and have passed their health checks: before that requests are
/// refused.
fn checked(balancer: &Balancer) -> usize {
    let group = balancer.group("web");
    let members = group["members"].as_array().unwrap();
    let up = |name: &str| members.iter().any(|member| member["name"] == name && member["state"] == "up");
    serving(balancer).iter().filter(|(name, _)| up(name)).count()
}

#[test]
fn a_group_grows_and_shrinks_with_its_load_and_loses_no_request() {
    let mark = Mark::new();
    let scaler_table = "min = 1\nmax = 4\ntarget = { response_time = \"800ms\" }\ninterval = \
                        \"500ms\"\nstart_time = \"1s\"\n\
                        stabilize = \"3s\"\ncool_down = { scale_out = \"1s\", scale_in = \"1s\" }\n";
    let balancer = Balancer::start(&text("", &(scaler_table.to_owned() + &servers(&mark, ""))));
    until("one that serves", || checked(&balancer) == 1);
    let mut base = Load::start(balancer.address(), "GET", 4.0);
    base.more(40);
    let mut peak = Load::start(balancer.address(), "GET", 22.0);
    until("more that serve", || {
        peak.more(20);
        serving(&balancer).len() >= 2
    });
    peak.more(100);
    peak.stop_unharmed();
    until("fewer that serve", || {
        base.more(3);
        serving(&balancer).len() == 1 && scaler(&balancer)["started"].as_array().unwrap().len() == 1
    });
    base.more(20);
    base.stop_unharmed();
    let told = events(&balancer, "scaled");
    let up = told.iter().find(|event| event["why"].as_str().unwrap().contains("more: ")).unwrap();
    assert!(
        up["inputs"]["demand"].as_f64().unwrap() > 0.0 && up["inputs"]["horizon_seconds"].is_f64(),
        "{up}"
    );
    assert!(told.iter().any(|event| event["why"].as_str().unwrap().contains("fewer: ")), "{told:?}");
    let drained = events(&balancer, "draining");
    assert!(drained.len() < told.len() + 3 && !drained.is_empty());
    assert!(drained.iter().all(|event| event["why"] == "drained by the scaler"), "{drained:?}");
    // The members come from a source like others.
    assert_eq!(balancer.group("web")["discovery"][0]["kind"], "scaler");
    assert!(scaler(&balancer)["start_seconds"].as_f64() > Some(0.0));
}

#[test]
fn one_that_is_killed_is_replaced() {
    let mark = Mark::new();
    let table = "min = 2\nmax = 2\ntarget = { response_time = \"1s\" }\ninterval = \"200ms\"\n";
    let balancer = Balancer::start(&text("", &(table.to_owned() + &servers(&mark, ""))));
    until("two that serve", || checked(&balancer) == 2);
    let before = serving(&balancer);
    kill_process(Pid::from_raw(before[0].1).unwrap(), Signal::KILL).unwrap();
    until("another one", || {
        let now = serving(&balancer);
        now.len() == 2 && now.iter().all(|one| one.1 != before[0].1)
    });
    let ended = events(&balancer, "member_ended");
    assert_eq!(ended.len(), 1, "{ended:?}");
    assert_eq!(ended[0]["member"], before[0].0);
    assert!(ended[0]["why"].as_str().unwrap().contains("signal 9"), "{ended:?}");
    assert_eq!(get(balancer.address(), "/").status, 200);
}

#[test]
fn members_end_with_the_balancer_and_a_killed_one_finds_them_again() {
    let (mark, folder) = (Mark::new(), Folder::new());
    let state = folder.join("web.processes").display().to_string();
    let table = "min = 2\nmax = 2\ntarget = { headroom = 0.3 }\ninterval = \"200ms\"\n";
    let config = text("", &(table.to_owned() + &servers(&mark, &format!("state = \"{state}\"\n"))));
    let mut balancer = Balancer::start_in(folder, &config);
    until("two that serve", || checked(&balancer) == 2);
    let before = serving(&balancer);
    balancer.process.kill();
    assert!(before.iter().all(|one| alive(one.1)));
    // Another balancer uses the same file of processes.
    let mut again = Balancer::start(&config);
    until("the same two serve", || serving(&again) == before);
    until("they are checked", || get(again.address(), "/").status == 200);
    assert!(events(&again, "scaled").is_empty(), "nobody was missing");
    let load = Load::start(again.address(), "GET", 20.0);
    until("some requests", || again.group("web")["latency"]["count"].as_u64() > Some(20));
    again.process.signal(Signal::TERM);
    assert_eq!(again.process.end(), Some(0));
    until("they ended", || before.iter().all(|one| !alive(one.1)));
    drop(load);
}

#[test]
fn a_command_that_is_wrong_starts_no_storm_and_the_others_serve_on() {
    let fixed = Member::start(&[]);
    let folder = Folder::new();
    let tries = folder.join("tries");
    let group = format!("members = {}", members_list(&[fixed.address]));
    let table = format!(
        "min = 3\nmax = 3\ntarget = {{ headroom = 0.3 }}\ninterval = \"100ms\"\n[group.scaler.process]\n\
         command = [\"sh\", \"-c\", \"echo {{port}} $(cat /proc/uptime) >> {}; exit 3\"]\n",
        tries.display()
    );
    let balancer = Balancer::start_in(folder, &text(&group, &table));
    until("four failures", || scaler(&balancer)["failures"].as_u64() >= Some(4));
    // Two start at once, then one after at least a half and one after another second. Each records when it
    // began, before it fails.
    let tries = std::fs::read_to_string(&tries).unwrap();
    let uptime = |line: &str| line.split(' ').nth(1).unwrap().parse::<f64>().unwrap();
    let mut begun: Vec<f64> = tries.lines().map(uptime).collect();
    begun.sort_by(f64::total_cmp);
    // The clock has hundredths.
    assert!(begun[2] - begun[0] >= 0.48 && begun[3] - begun[2] >= 0.98, "{begun:?}");
    let said = scaler(&balancer);
    assert!(said["failure"].as_str().unwrap().contains("exit code 3"), "{said}");
    // A member that was started counts until its end is seen.
    until("one member", || {
        let said = scaler(&balancer);
        (said["desired"].as_u64(), said["members"].as_u64()) == (Some(3), Some(1))
    });
    assert_eq!(get(balancer.address(), "/").status, 200);
    let failed = events(&balancer, "scaler_failed");
    assert_eq!(failed.len(), 1, "the same is told once: {failed:?}");
    until("it is said between two tries", || {
        let shown = balancer.run(&["scale"]).out;
        shown.contains("process failed") && shown.contains("the next try in")
    });
}

#[test]
fn what_would_be_done_is_said_and_not_done() {
    let fixed = Member::start(&[]);
    let group = format!("members = {}", members_list(&[fixed.address]));
    let table = "min = 2\nmax = 5\ntarget = { headroom = 0.3 }\ninterval = \"100ms\"\ndry_run = true\n";
    let mark = Mark::new();
    let balancer = Balancer::start(&text(&group, &(table.to_owned() + &servers(&mark, ""))));
    until("it would start one", || scaler(&balancer)["actions"][0] == "start 1 member");
    let shown = balancer.run(&["scale", "--dry-run"]).out;
    assert!(shown.starts_with("web: start 1 member\n"), "{shown}");
    let said = scaler(&balancer);
    assert!(said["started"].as_array().unwrap().is_empty() && said["dry_run"] == true, "{said}");
    let told = events(&balancer, "scaled");
    assert!(told[0]["why"].as_str().unwrap().starts_with("would have 2 members, not 1: "), "{told:?}");
    // An operator may set the number.
    let run = balancer.run(&["set", "group", "web.scaler.min=4"]);
    assert_eq!(run.code, Some(0), "{}{}", run.out, run.err);
    assert!((run.out.clone() + &run.err).contains("scaler.min 2 -> 4"), "{}{}", run.out, run.err);
    until("it would start three", || scaler(&balancer)["actions"][0] == "start 3 members");
    let refused = balancer.run(&["set", "group", "web.scaler.min=6"]);
    assert!(
        refused.code == Some(2) && refused.err.contains("above scaler.max (5)"),
        "{}{}",
        refused.out,
        refused.err
    );
    assert_eq!(balancer.metric("plimsoll_scaler_desired_members{group=\"web\"}"), 4.0);
    assert_eq!(balancer.metric("plimsoll_scaler_members{group=\"web\"}"), 1.0);
    let socket = balancer.folder().join("control.sock");
    let said = curl(&["--unix-socket", socket.to_str().unwrap(), "http://plimsoll/v1/groups/web/scale"], b"");
    let said: Value = serde_json::from_slice(&said.body).unwrap();
    assert_eq!((said["desired"].as_u64(), said["provider"].as_str()), (Some(4), Some("process")));
    // The values of the file apply again.
    assert_eq!(balancer.run(&["reload"]).code, Some(0));
    until("the least is that of the file", || scaler(&balancer)["min"] == 2);
}

#[test]
fn who_only_asks_for_advice_gets_it_and_a_scaler_can_be_taken_away() {
    let mark = Mark::new();
    let fixed = Member::start(&[]);
    let group = format!("members = {}", members_list(&[fixed.address]));
    let table = "min = 3\nmax = 5\ntarget = { utilization = 0.7 }\ninterval = \"100ms\"\n";
    let balancer = Balancer::start(&text(&group, &(table.to_owned() + "advice = true\n")));
    until("advice", || scaler(&balancer)["desired"] == 3);
    assert_eq!(scaler(&balancer)["provider"], "advice");
    // The scaler starts members from now on.
    let state: PathBuf = balancer.folder().join("state");
    let with = servers(&mark, &format!("state = \"{}\"\n", state.display()));
    balancer.reload(&text(&group, &(table.to_owned() + "drain = \"1s\"\n" + &with)));
    until("two that serve", || checked(&balancer) == 2);
    let pids: Vec<i32> = serving(&balancer).iter().map(|one| one.1).collect();
    let mut load = Load::start(balancer.address(), "GET", 20.0);
    load.more(50);
    // The scaler is taken away again.
    balancer.reload(&text(&group, "").replace("[group.scaler]\n", ""));
    until("they ended", || pids.iter().all(|pid| !alive(*pid)));
    load.more(50);
    load.stop_unharmed();
    assert_eq!(balancer.run(&["scale"]).code, Some(1));
}

#[test]
fn members_that_were_started_live_across_an_upgrade() {
    let mark = Mark::new();
    // The goal is met however slow the machine is: no more members are wanted.
    let table = "min = 2\nmax = 4\ntarget = { response_time = \"1h\" }\ninterval = \"200ms\"\n";
    let mut balancer = Balancer::start(&text("", &(table.to_owned() + &servers(&mark, ""))));
    until("two that serve", || checked(&balancer) == 2);
    let run = balancer.run(&["set", "group", "web.scaler.max=3"]);
    assert_eq!(run.code, Some(0), "{}", run.err);
    let before = serving(&balancer);
    let told = |kind: &str| events(&balancer, kind).len();
    let kinds = ["scaled", "member_ended", "scaler_failed", "down", "draining"];
    let counts = kinds.map(told);
    let mut load = Load::start(balancer.address(), "POST", 10.0);
    load.more(5);
    not_upgraded(&balancer);
    load.more(5);
    let heir = upgraded(&balancer);
    load.more(10);
    // No file lists the members, and the process that started them has ended.
    load.stop_unharmed();
    assert_eq!(kinds.map(told), counts, "{kinds:?}");
    assert_eq!(balancer.process.end(), Some(0));
    assert!(before.iter().all(|one| alive(one.1)), "{before:?}");
    assert_eq!(serving(&balancer), before);
    assert_eq!(scaler(&balancer)["max"], 3);
    // The new process watches the members.
    kill_process(Pid::from_raw(before[0].1).unwrap(), Signal::KILL).unwrap();
    until("another one", || {
        let now = serving(&balancer);
        now.len() == 2 && now.iter().all(|one| one.1 != before[0].1)
    });
    let now = serving(&balancer);
    assert!(now.contains(&before[1]), "{now:?}");
    kill_process(number(heir.0), Signal::TERM).unwrap();
    until("they end with the last one", || now.iter().all(|one| !alive(one.1)));
}
