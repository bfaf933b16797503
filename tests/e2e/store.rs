//! Operators' changes outlive the balancer: a file keeps them, through kill -9 in the middle of a change.

use std::io::{Read as _, Write as _};
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::thread;

use serde_json::Value;

use crate::stage::{Balancer, Folder, Member, Run, get, until, web};

/// Returns a file with one http listener, and a store in the folder.
fn text(folder: &Folder, members: &[SocketAddr], rest: &str) -> String {
    let store = format!("[store]\nfile = \"{}\"\n", folder.join("state.json").display());
    store + &web(members, rest)
}

#[track_caller]
fn told(balancer: &Balancer, args: &[&str]) -> Run {
    let run = balancer.run(args);
    assert_eq!(run.code, Some(0), "{args:?}: {}{}", run.out, run.err);
    run
}

fn state(balancer: &Balancer, member: SocketAddr) -> String {
    balancer.member(member)["state"].as_str().unwrap().to_owned()
}

#[test]
fn what_operators_did_outlives_a_kill() {
    let members = Member::several(3, &[]);
    let [a, b, c] = [0, 1, 2].map(|at: usize| members[at].address);
    let folder = Folder::new();
    let config = text(&folder, &[a, b, c], "");
    let balancer = Balancer::start_in(folder, &config);
    let (one, two) = (a.to_string(), b.to_string());
    told(&balancer, &["drain", &one]);
    told(&balancer, &["disable", "member", &two]);
    told(&balancer, &["set", "group", "web.strategy=random"]);
    let balancer = Balancer::start_in(balancer.killed(), &config);
    assert_eq!((state(&balancer, a), state(&balancer, b)), ("draining".into(), "disabled".into()));
    assert_eq!(balancer.group("web")["strategy"], "random");
    // All requests were served meanwhile.
    for _ in 0..20 {
        assert_eq!(get(balancer.address(), "/").status, 200);
    }
    assert_eq!(balancer.member(a)["requests"], 0);
    assert_eq!(balancer.member(b)["requests"], 0);
    let store = balancer.status()["store"].clone();
    assert_eq!(
        (&store["kind"], &store["entries"], &store["error"]),
        (&"file".into(), &3.into(), &Value::Null)
    );
    assert!(store["place"].as_str().unwrap().ends_with("state.json"), "{store}");
    let label = format!("{{store=\"file {}\"}}", balancer.folder().join("state.json").display());
    assert_eq!(balancer.metric(&format!("plimsoll_store_up{label}")), 1.0);
    assert_eq!(balancer.metric(&format!("plimsoll_store_entries{label}")), 3.0);
    // A change that was taken back stays taken back.
    told(&balancer, &["undrain", &one]);
    told(&balancer, &["enable", "member", &two]);
    told(&balancer, &["disable", "balancing", "web"]);
    let balancer = Balancer::start_in(balancer.killed(), &config);
    assert_eq!((state(&balancer, a), state(&balancer, b)), ("up".into(), "up".into()));
    let group = balancer.group("web");
    assert_eq!((&group["strategy"], &group["balancing_disabled"]), (&"round_robin".into(), &true.into()));
    told(&balancer, &["enable", "balancing", "web"]);
    assert_eq!(balancer.group("web")["strategy"], "random");
    // A reload sets the file's strategy, and it stays from then on.
    let changes = told(&balancer, &["reload"]).out;
    assert!(changes.contains("strategy random"), "{changes}");
    let balancer = Balancer::start_in(balancer.killed(), &config);
    assert_eq!(balancer.group("web")["strategy"], "adaptive");
    assert_eq!(balancer.status()["store"]["entries"], 0);
}

/// The table of a scaler that only advises and starts no members.
const COUNTED: &str =
    "[group.scaler]\nmin = 1\nmax = 5\ntarget = { headroom = 0.3 }\ninterval = \"100ms\"\nadvice = true\n";

#[test]
fn what_operators_said_of_a_scaler_outlives_a_kill() {
    let members = Member::several(2, &[]);
    let [a, b] = [0, 1].map(|at: usize| members[at].address);
    let folder = Folder::new();
    let config = text(&folder, &[a, b], COUNTED);
    let balancer = Balancer::start_in(folder, &config);
    let scaler = |balancer: &Balancer| {
        let scaler = balancer.group("web")["scaler"].clone();
        (scaler["min"].as_u64(), scaler["max"].as_u64(), scaler["paused"].as_bool())
    };
    let said = (Some(3), Some(4), Some(true));
    for what in ["min=3", "max=4", "pause=true"] {
        told(&balancer, &["set", "group", &format!("web.scaler.{what}")]);
    }
    until("it is in force", || scaler(&balancer) == said);
    let balancer = Balancer::start_in(balancer.killed(), &config);
    until("it is in force again", || scaler(&balancer) == said);
    assert_eq!(balancer.status()["store"]["entries"], 3);
    assert_eq!(balancer.metric("plimsoll_scaler_reason{group=\"web\",reason=\"paused\"}"), 1.0);
    assert_eq!(balancer.metric("plimsoll_scaler_reason{group=\"web\",reason=\"enough\"}"), 0.0);
    // The file's values apply when it is read again.
    told(&balancer, &["reload"]);
    until("the file's own", || scaler(&balancer) == (Some(1), Some(5), Some(false)));
    let balancer = Balancer::start_in(balancer.killed(), &config);
    until("it stays so", || scaler(&balancer) == (Some(1), Some(5), Some(false)));
    assert_eq!(balancer.status()["store"]["entries"], 0);
}

/// Returns a program that starts Plimsoll as systemd does, with a folder for the state.
fn given_a_folder(folder: &Folder, state: &Path) -> std::path::PathBuf {
    let plimsoll = crate::stage::binary();
    let script =
        format!("#!/bin/sh\nSTATE_DIRECTORY={} exec {} \"$@\"\n", state.display(), plimsoll.display());
    folder.script("given", &script)
}

#[test]
fn without_a_word_of_it_the_service_managers_folder_is_the_store() {
    let member = Member::start(&[]);
    let (folder, home) = (Folder::new(), Folder::new());
    let (config, name) = (web(&[member.address], ""), member.address.to_string());
    let state_folder = home.join("state");
    std::fs::create_dir(&state_folder).unwrap();
    // The first of several folders is used.
    let program = given_a_folder(&home, Path::new(&format!("{}:/nowhere", state_folder.display())));
    let balancer = Balancer::of(&program, folder, &config);
    told(&balancer, &["drain", &name]);
    let checked = balancer.run(&["check"]).out;
    assert!(
        checked.contains("what operators do is kept in file") && checked.contains("state.json"),
        "{checked}"
    );
    let balancer = Balancer::of(&program, balancer.killed(), &config);
    assert_eq!(state(&balancer, member.address), "draining");
    assert!(!balancer.process.lines().iter().any(|line| line.contains("forgotten with this process")));
    // A balancer without the folder forgets.
    let balancer = Balancer::start_in(balancer.killed(), &config);
    assert_eq!(state(&balancer, member.address), "up");
    balancer.process.line("forgotten with this process: there is no [store]");
    let checked = balancer.run(&["check"]).out;
    assert!(checked.contains("what operators do is forgotten with it"), "{checked}");
    // A balancer whose folder cannot be used serves all the same.
    std::fs::remove_dir_all(&state_folder).unwrap();
    let balancer = Balancer::of(&program, balancer.killed(), &config);
    assert_eq!(get(balancer.address(), "/").status, 200);
    balancer.process.line("STATE_DIRECTORY is of no use");
    // The store that the file names has precedence.
    std::fs::create_dir(&state_folder).unwrap();
    let named = format!("[store]\nfile = \"{}\"\n{config}", home.join("named.json").display());
    let balancer = Balancer::of(&program, balancer.killed(), &named);
    told(&balancer, &["drain", &name]);
    assert!(home.join("named.json").exists() && !state_folder.join("state.json").exists());
}

#[test]
fn groups_that_were_pushed_outlive_a_kill() {
    let members = Member::several(2, &[]);
    let folder = Folder::new();
    let own = format!("[store]\nfile = \"{}\"\nconfig = true\n", folder.join("state.json").display());
    let balancer = Balancer::start_in(folder, &own);
    let all: Vec<SocketAddr> = members.iter().map(|member| member.address).collect();
    let shared = web(&all, "").replace("127.0.0.1:0", &format!("127.0.0.1:{}", crate::stage::free_port()));
    balancer.folder().write("shared.toml", &shared);
    told(&balancer, &["config", "push", "shared.toml"]);
    let count = |balancer: &Balancer| {
        let status = balancer.status();
        (status["groups"].as_array().unwrap().len(), status["listeners"].as_array().unwrap().len())
    };
    until("they are in force", || count(&balancer) == (1, 1));
    told(&balancer, &["drain", &all[0].to_string()]);
    let balancer = Balancer::start_in(balancer.killed(), &own);
    assert_eq!((count(&balancer), state(&balancer, all[0])), ((1, 1), "draining".into()));
    assert_eq!(get(balancer.address(), "/").status, 200);
    assert_eq!(balancer.run(&["config", "pull"]).out, shared);
}

#[test]
fn a_closed_listener_stays_closed() {
    let member = Member::start(&[]);
    let folder = Folder::new();
    let port = crate::stage::free_port();
    let config = text(&folder, &[member.address], "").replace("127.0.0.1:0", &format!("127.0.0.1:{port}"));
    let balancer = Balancer::start_in(folder, &config);
    let address = format!("127.0.0.1:{port}");
    told(&balancer, &["disable", "listener", &address]);
    let balancer = Balancer::start_in(balancer.killed(), &config);
    assert_eq!(balancer.status()["listeners"][0]["disabled"], true);
    told(&balancer, &["enable", "listener", &format!("http:{address}")]);
    assert_eq!(get(balancer.address(), "/").status, 200);
    let balancer = Balancer::start_in(balancer.killed(), &config);
    assert_eq!(get(balancer.address(), "/").status, 200);
}

/// Sends one act over the control socket; returns `true` if it was acknowledged.
fn act(control: &Path, path: &str, member: SocketAddr) -> bool {
    let Ok(mut stream) = UnixStream::connect(control) else { return false };
    let body = format!("{{\"group\":\"web\",\"member\":\"{member}\"}}");
    let length = body.len();
    let request = format!("POST {path} HTTP/1.0\r\nHost: a\r\nContent-Length: {length}\r\n\r\n{body}");
    let mut answer = Vec::new();
    // A balancer that is killed answers nothing, or half of an answer.
    stream.write_all(request.as_bytes()).is_ok()
        && stream.read_to_end(&mut answer).is_ok()
        && answer.starts_with(b"HTTP/1.0 200") | answer.starts_with(b"HTTP/1.1 200")
        && answer.ends_with(b"}\n") | answer.ends_with(b"}")
}

/// The last change that was asked for, and the last one acknowledged.
#[derive(Clone, Copy, Debug, Default)]
struct Asked {
    drained: bool,
    acknowledged: bool,
}

#[test]
fn what_was_acknowledged_in_a_storm_is_there_after_a_kill() {
    let addresses: Vec<SocketAddr> = (1..=8).map(|last| ([127, 0, 0, last], 9).into()).collect();
    let folder = Folder::new();
    let config = text(&folder, &addresses, "");
    let mut balancer = Balancer::start_in(folder, &config);
    let mut asked = vec![Asked::default(); addresses.len()];
    for round in 1..=5 {
        let control = balancer.folder().join("control.sock");
        let (over, done) = (AtomicBool::new(false), AtomicUsize::new(0));
        thread::scope(|scope| {
            for (member, asked) in addresses.iter().zip(&mut asked) {
                let (control, over, done) = (&control, &over, &done);
                scope.spawn(move || {
                    while !over.load(SeqCst) {
                        let drained = !asked.acknowledged;
                        asked.drained = drained;
                        if !act(control, if drained { "/v1/drain" } else { "/v1/undrain" }, *member) {
                            return;
                        }
                        asked.acknowledged = drained;
                        done.fetch_add(1, SeqCst);
                    }
                });
            }
            until("many acts", || done.load(SeqCst) >= 20 * round);
            balancer.process.kill();
            over.store(true, SeqCst);
        });
        balancer = Balancer::start_in(balancer.killed(), &config);
        assert!(!balancer.process.lines().iter().any(|line| line.contains("set aside")), "a torn file");
        for (member, asked) in addresses.iter().zip(&mut asked) {
            let drained = state(&balancer, *member) == "draining";
            // An unanswered change may be in force or not.
            assert!(
                drained == asked.acknowledged || drained == asked.drained,
                "round {round}: {member} is drained: {drained}; {asked:?}"
            );
            *asked = Asked { drained, acknowledged: drained };
        }
    }
}

#[test]
fn a_file_that_is_none_is_told_and_kept_aside() {
    let member = Member::start(&[]);
    let folder = Folder::new();
    let config = text(&folder, &[member.address], "");
    let name = member.address.to_string();
    let balancer = Balancer::start_in(folder, &config);
    told(&balancer, &["drain", &name]);
    let folder = balancer.killed();
    let whole = folder.read("state.json");
    folder.write("state.json", &whole[..whole.len() / 2]);
    let balancer = Balancer::start_in(folder, &config);
    let said = balancer.process.line("set aside as");
    assert!(said.contains("it is torn") && said.contains("state.json.bad-"), "{said}");
    assert_eq!(state(&balancer, member.address), "up");
    told(&balancer, &["drain", &name]);
    let balancer = Balancer::start_in(balancer.killed(), &config);
    assert_eq!(state(&balancer, member.address), "draining");
    // An impossible store is refused before anything listens.
    let nowhere = config.replace("state.json", "no/such/folder/state.json");
    let folder = balancer.killed();
    folder.write("plimsoll.toml", &nowhere);
    let run = Run::plimsoll(&["up"], folder.path());
    assert_eq!(run.code, Some(1));
    assert!(run.err.contains("make its folder") && run.err.contains("no/such/folder"), "{}", run.err);
}
