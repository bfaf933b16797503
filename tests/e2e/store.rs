//! What operators do outlives the balancer: kept in a file, through kill -9 in the middle of it.

use std::io::{Read as _, Write as _};
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::thread;

use serde_json::Value;

use crate::stage::{Balancer, Folder, Member, Run, get, until, web};

/// A file with one http listener, and a store in the folder.
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
    // Nobody was served otherwise meanwhile.
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
    // Taken back is taken back.
    told(&balancer, &["undrain", &one]);
    told(&balancer, &["enable", "member", &two]);
    told(&balancer, &["disable", "balancing", "web"]);
    let balancer = Balancer::start_in(balancer.killed(), &config);
    assert_eq!((state(&balancer, a), state(&balancer, b)), ("up".into(), "up".into()));
    let group = balancer.group("web");
    assert_eq!((&group["strategy"], &group["balancing_disabled"]), (&"round_robin".into(), &true.into()));
    told(&balancer, &["enable", "balancing", "web"]);
    assert_eq!(balancer.group("web")["strategy"], "random");
    // The file says by what there is balancing when it is read again, and from then on.
    let changes = told(&balancer, &["reload"]).out;
    assert!(changes.contains("strategy random"), "{changes}");
    let balancer = Balancer::start_in(balancer.killed(), &config);
    assert_eq!(balancer.group("web")["strategy"], "adaptive");
    assert_eq!(balancer.status()["store"]["entries"], 0);
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

/// One act over the control socket: was it acknowledged?
fn act(control: &Path, path: &str, member: SocketAddr) -> bool {
    let Ok(mut stream) = UnixStream::connect(control) else { return false };
    let body = format!("{{\"group\":\"web\",\"member\":\"{member}\"}}");
    let length = body.len();
    let request = format!("POST {path} HTTP/1.0\r\nHost: a\r\nContent-Length: {length}\r\n\r\n{body}");
    let mut answer = Vec::new();
    // One that is killed answers nothing, or the half of something.
    stream.write_all(request.as_bytes()).is_ok()
        && stream.read_to_end(&mut answer).is_ok()
        && answer.starts_with(b"HTTP/1.0 200") | answer.starts_with(b"HTTP/1.1 200")
        && answer.ends_with(b"}\n") | answer.ends_with(b"}")
}

/// What somebody asked for last, and what was acknowledged last.
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
            // What was not answered may be so or so.
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
    // A store that cannot be is refused before anything listens.
    let nowhere = config.replace("state.json", "no/such/folder/state.json");
    let folder = balancer.killed();
    folder.write("plimsoll.toml", &nowhere);
    let run = Run::plimsoll(&["up"], folder.path());
    assert_eq!(run.code, Some(1));
    assert!(run.err.contains("make its folder") && run.err.contains("no/such/folder"), "{}", run.err);
}
