//! `[group.drain_hook]`: the hook runs before a member that is drained, or under alert, loses its sessions.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use serde_json::{Value, json};

use crate::binding::report;
use crate::stage::{Balancer, Folder, Member, Process, Script, Wire, listening, part, refusing, until};

/// Returns the member that answers on the session of a wire.
fn who(wire: &mut Wire) -> String {
    wire.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    wire.answer().unwrap().field("x-member").unwrap().to_owned()
}

/// Starts a balancer that binds sessions to two members, with a hook at `url`.
fn balancer(members: &[Member], url: &str, timeout: &str) -> Balancer {
    let rest = format!(
        "strategy = \"first_available\"\n[group.drain_hook]\nurl = \"{url}\"\ntimeout = \"{timeout}\"\n"
    );
    let all: Vec<_> = members.iter().map(|member| member.address).collect();
    Balancer::start(&listening("binding = \"per_session\"", &all, &rest))
}

/// The requests to a hook: request lines and bodies.
type Asked = Arc<Mutex<Vec<(String, Value)>>>;

/// Starts a hook that answers once it is done.
fn hook() -> (Script, Asked, Arc<AtomicBool>) {
    let (asked, done) = (Asked::default(), Arc::new(AtomicBool::new(false)));
    let (keep, look) = (Arc::clone(&asked), Arc::clone(&done));
    let hook = Script::start(move |wire| -> std::io::Result<()> {
        while let Some(head) = wire.head()? {
            let body = serde_json::from_slice(&wire.body(&head, false)?).unwrap();
            keep.lock().unwrap().push((head.lines().next().unwrap().to_owned(), body));
            until("the state is there", || look.load(Ordering::SeqCst));
            wire.try_send("HTTP/1.1 204 No Content\r\n\r\n")?;
        }
        Ok(())
    });
    (hook, asked, done)
}

/// Repeats an attempt up to five times. A hook has five seconds, and the checks meanwhile may take longer on
/// a busy machine. The hook was then given up, which is an event, and the attempt returns `false`.
#[track_caller]
fn in_time(attempt: impl FnMut() -> bool) {
    assert!(std::iter::repeat_with(attempt).take(5).any(|done| done), "the hook was given up five times");
}

/// Returns `true` if a hook was given up because it took too long.
fn given_up(balancer: &Balancer) -> bool {
    told(balancer, &["handed_over"]).iter().any(|(_, why)| why.contains("no answer in"))
}

/// Returns events of these kinds, in order, with their reasons.
fn told(balancer: &Balancer, wanted: &[&str]) -> Vec<(String, String)> {
    let events = balancer.run(&["events", "-o", "json"]).out;
    let events = events.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let all = events.map(|event| (text(&event["kind"]), text(&event["why"])));
    all.filter(|(kind, _)| wanted.contains(&kind.as_str())).collect()
}

/// Returns the events of a drain.
fn kinds(balancer: &Balancer) -> Vec<(String, String)> {
    told(balancer, &["handed_over", "draining"])
}

/// Starts a balancer that binds thirty sessions on demand, all to the first of two members, with a hook at
/// `url`.
fn on_demand(members: &[Member], url: &str, timeout: &str) -> (Balancer, Vec<Wire>) {
    let rest = format!(
        "strategy = \"first_available\"\n[group.monitor]\nmetric = \"load\"\ninterval = \"1m\"\n\
         [group.drain_hook]\nurl = \"{url}\"\ntimeout = \"{timeout}\"\n"
    );
    let all: Vec<_> = members.iter().map(|member| member.address).collect();
    let balancer = Balancer::start(&listening("binding = \"on_demand\"", &all, &rest));
    let mut clients: Vec<Wire> = (0..30).map(|_| Wire::connect(balancer.address())).collect();
    assert_eq!(gone(&mut clients, members), 0);
    (balancer, clients)
}

/// Sends a request on every session; returns the number of those that are not with the first member.
fn gone(clients: &mut [Wire], members: &[Member]) -> usize {
    let first = members[0].address.to_string();
    clients.iter_mut().filter_map(|client| (who(client) != first).then_some(())).count()
}

/// Reports an overload of the first member; returns the share of its sessions that it is to send away itself.
fn overload(balancer: &Balancer, members: &[Member]) -> Option<f64> {
    report(balancer, members[1].address, 0.3);
    report(balancer, members[0].address, 0.9)
}

#[test]
fn sessions_stay_until_their_state_has_been_handed_over() {
    in_time(sessions_stay);
}

fn sessions_stay() -> bool {
    let members = Member::several(2, &[]);
    let (hook, asked, done) = hook();
    let balancer = balancer(&members, &format!("http://{}/hand-over", hook.address), "5s");
    let [old, new] = [0, 1].map(|which: usize| members[which].address.to_string());
    let mut wire = Wire::connect(balancer.address());
    assert_eq!(who(&mut wire), old);
    let (meanwhile, state) = thread::scope(|scope| {
        let drained = scope.spawn(|| balancer.run(&["drain", &old, "--wait"]));
        until("the hook is asked", || !asked.lock().unwrap().is_empty());
        // No request waits for the hook meanwhile.
        let mut meanwhile: Vec<String> = (0..5).map(|_| who(&mut wire)).collect();
        meanwhile.push(who(&mut Wire::connect(balancer.address())));
        let state = balancer.member(members[0].address)["state"].clone();
        done.store(true, Ordering::SeqCst);
        let drained = drained.join().unwrap();
        assert_eq!(drained.code, Some(0), "{}", drained.err);
        (meanwhile, state)
    });
    if given_up(&balancer) {
        return false;
    }
    assert!(meanwhile.iter().all(|who| *who == old), "{meanwhile:?}");
    assert_eq!(state, "up");
    assert_eq!(who(&mut wire), new);
    let expected = json!({"group": "web", "member": old, "share": 1, "epoch": 1, "reason": "drain"});
    assert_eq!(*asked.lock().unwrap(), [("POST /hand-over HTTP/1.1".to_owned(), expected)]);
    let kinds = kinds(&balancer);
    let order: Vec<&str> = kinds.iter().map(|(kind, _)| kind.as_str()).collect();
    assert_eq!(order, ["handed_over", "draining"], "{kinds:?}");
    // A member that is already draining is not reported again.
    assert_eq!(balancer.run(&["drain", &old]).code, Some(0));
    assert_eq!(asked.lock().unwrap().len(), 1);
    assert_eq!(balancer.group("web")["hand_overs"], 1);
    true
}

#[test]
fn a_hook_that_is_down_or_hangs_keeps_no_member_in_service() {
    let (_socket, nobody) = refusing();
    let deaf = Script::start(|wire| {
        // Until the balancer gives up.
        while let Ok(Some(_)) = wire.head() {}
    });
    let no = Script::answering("HTTP/1.1 409 Conflict\r\nContent-Length: 0\r\n\r\n");
    for (address, timeout, why) in [
        (nobody, "5s", "connection refused"),
        (deaf.address, "100ms", "no answer in 100ms"),
        (no.address, "5s", "answered 409"),
    ] {
        let members = Member::several(2, &[]);
        let balancer = balancer(&members, &format!("http://{address}"), timeout);
        let mut wire = Wire::connect(balancer.address());
        assert_eq!(who(&mut wire), members[0].address.to_string());
        let drained = balancer.run(&["drain", &members[0].address.to_string(), "--wait"]);
        assert_eq!(drained.code, Some(0), "{}", drained.err);
        let said = format!("its sessions were not handed over ({why}); it is drained all the same\n");
        assert!(drained.err.contains(&said), "{}", drained.err);
        assert_eq!(who(&mut wire), members[1].address.to_string());
        let kinds = kinds(&balancer);
        assert!(kinds[0].0 == "handed_over" && kinds[0].1.contains(why), "{kinds:?}");
        let group = balancer.group("web");
        assert_eq!((&group["hand_overs"], &group["hand_overs_failed"]), (&json!(0), &json!(1)), "{group}");
    }
}

#[test]
fn an_alert_is_told_of_once_before_the_first_session_goes() {
    in_time(an_alert_is_told_of);
}

fn an_alert_is_told_of() -> bool {
    let members = Member::several(2, &[]);
    let (hook, asked, done) = hook();
    let url = format!("http://{}/hand-over?of={{member}}", hook.address);
    let (balancer, mut clients) = on_demand(&members, &url, "5s");
    let asks = || asked.lock().unwrap().len();
    until("the hook is asked", || {
        overload(&balancer, &members);
        asks() > 0
    });
    // Reports meanwhile move no session, and no request waits.
    let said = (overload(&balancer, &members), overload(&balancer, &members));
    let meanwhile = (gone(&mut clients, &members), asks());
    let explained = balancer.run(&["explain", "group", "web", "-o", "json"]).json();
    if given_up(&balancer) {
        done.store(true, Ordering::SeqCst);
        return false;
    }
    assert_eq!((said, meanwhile), ((None, None), (0, 1)));
    assert_eq!(explained["members"][0]["alert"]["held"], true, "{explained}");
    done.store(true, Ordering::SeqCst);
    until("sessions go", || {
        overload(&balancer, &members);
        gone(&mut clients, &members) > 0
    });
    until("they are told of", || !told(&balancer, &["moved"]).is_empty());
    let events = told(&balancer, &["alert_raised", "handed_over", "moved"]);
    let order: Vec<&str> = events.iter().take(3).map(|(kind, _)| kind.as_str()).collect();
    assert_eq!(order, ["alert_raised", "handed_over", "moved"], "{events:?}");
    assert_eq!(events[1].1, "its sessions were handed over before some of them go");
    // Once for each alert, however many reports and sessions there are.
    until("each alert is told of", || asks() == told(&balancer, &["alert_raised"]).len());
    let old = members[0].address.to_string();
    let (line, body) = asked.lock().unwrap()[0].clone();
    assert_eq!(line, format!("POST /hand-over?of={old} HTTP/1.1"));
    let share = body["share"].as_f64().unwrap();
    assert!(share > 0.1 && share < 0.5, "{share}");
    let expected =
        json!({"group": "web", "member": old, "share": body["share"], "epoch": 1, "reason": "alert"});
    assert_eq!(body, expected);
    true
}

#[test]
fn a_hook_that_is_down_or_hangs_keeps_no_member_overloaded() {
    let (_socket, nobody) = refusing();
    let deaf = Script::start(|wire| while let Ok(Some(_)) = wire.head() {});
    for (address, timeout, why) in
        [(nobody, "5s", "connection refused"), (deaf.address, "100ms", "no answer in 100ms")]
    {
        let members = Member::several(2, &[]);
        let (balancer, mut clients) = on_demand(&members, &format!("http://{address}"), timeout);
        until("sessions go", || {
            overload(&balancer, &members);
            gone(&mut clients, &members) > 0
        });
        until("they are told of", || !told(&balancer, &["moved"]).is_empty());
        let events = told(&balancer, &["handed_over", "moved"]);
        assert_eq!(events[0].0, "handed_over", "{events:?}");
        assert!(events[0].1.contains(why) && events[0].1.ends_with("they go all the same"), "{events:?}");
        assert!(balancer.group("web")["hand_overs_failed"].as_u64() > Some(0));
    }
}

/// Starts one of the example's programs; returns its address.
fn example(program: &str, args: &[&str], folder: &Folder) -> (Process, SocketAddr) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/hand-over").join(program);
    let all: Vec<&str> = ["-B", script.to_str().unwrap(), "0"].iter().chain(args).copied().collect();
    let process = Process::start(&part("python3"), &all, folder.path());
    until("it listens", || process.lines().iter().any(|line| line.parse::<SocketAddr>().is_ok()));
    let address = process.lines().iter().find_map(|line| line.parse().ok()).unwrap();
    (process, address)
}

#[test]
fn the_example_loses_no_session_and_counts_none_twice() {
    let folder = Folder::new();
    let store = folder.join("store");
    std::fs::create_dir(&store).unwrap();
    let servers = [(); 2].map(|()| example("member.py", &[store.to_str().unwrap()], &folder));
    let (_hook, hook) = example("hook.py", &[], &folder);
    let members = servers.each_ref().map(|(_, address)| *address);
    let text = std::fs::read_to_string(
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/hand-over/plimsoll.toml"),
    );
    // The test balancer has its own admin section.
    let text = text.unwrap();
    let begin = text.find("[[listener]]").unwrap();
    let mut text = text[begin..].replace("127.0.0.1:8080", "127.0.0.1:0");
    for (named, address) in [("127.0.0.1:9001", members[0]), ("127.0.0.1:9002", members[1])] {
        text = text.replace(named, &address.to_string());
    }
    let balancer = Balancer::start(&text.replace("127.0.0.1:7000", &hook.to_string()));
    let mut jars = vec![String::new(); 8];
    let mut visit = |jar: &mut String| {
        let mut wire = Wire::connect(balancer.address());
        wire.send(format!("GET / HTTP/1.1\r\nHost: a\r\nCookie: {jar}\r\nConnection: close\r\n\r\n"));
        let answer = wire.answer().unwrap();
        let fields = answer.head.lines().filter_map(|line| line.split_once(": "));
        for (_, set) in fields.filter(|(name, _)| name.eq_ignore_ascii_case("set-cookie")) {
            let (name, value) = set.split(';').next().unwrap().split_once('=').unwrap();
            let kept = jar.split("; ").filter(|one| !one.is_empty() && !one.starts_with(&format!("{name}=")));
            *jar = kept.map(str::to_owned).chain([format!("{name}={value}")]).collect::<Vec<_>>().join("; ");
        }
        let text = answer.text();
        let (port, count) = text.trim().split_once(' ').unwrap();
        (port.parse::<u16>().unwrap(), count.parse::<u32>().unwrap())
    };
    let mut homes = [0; 8];
    for turn in 1..=3 {
        for (jar, home) in jars.iter_mut().zip(&mut homes) {
            let (at, count) = visit(jar);
            assert_eq!(count, turn);
            *home = at;
        }
    }
    // The server with most of the sessions, and two of its sessions.
    let at = |member: &SocketAddr| (0..8).filter(|one| homes[*one] == member.port()).collect::<Vec<usize>>();
    let [old, new] = if at(&members[0]).len() >= 4 { members } else { [members[1], members[0]] };
    let [early, late] = [at(&old)[0], at(&old)[1]];
    visit(&mut jars[early]);
    assert_eq!(balancer.run(&["drain", &old.to_string()]).code, Some(0));
    // A request that was in transit meanwhile: the old server keeps no state to itself.
    let mut wire = Wire::connect(old);
    wire.send(format!("GET / HTTP/1.1\r\nHost: a\r\nCookie: {}\r\n\r\n", jars[late]));
    assert_eq!(wire.answer().unwrap().text().trim(), format!("{} 4", old.port()));
    let after: Vec<(u16, u32)> = jars.iter_mut().map(&mut visit).collect();
    assert!(after.iter().all(|(port, _)| *port == new.port()), "{after:?}");
    let counts: Vec<u32> = after.iter().map(|(_, count)| *count).collect();
    let visits = (0..8).map(|one| if one == early || one == late { 5 } else { 4 });
    assert_eq!(counts, visits.collect::<Vec<u32>>(), "each goes on where it was");
}
