//! Reloads under load: nothing is dropped, whatever changes; a bad file changes nothing.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use plimsoll_brain::strategy;
use rustix::process::Signal;

use crate::stage::{
    Balancer, Load, Member, Script, Wire, free_port, get, groups, listens, members_list, until, web,
};

/// The timeouts of a group whose members do not fail because the balancer stood still.
const PATIENT: &str = "timeouts = { connect = \"20s\" }\n";

fn addresses(members: &[Member]) -> Vec<SocketAddr> {
    members.iter().map(|member| member.address).collect()
}

#[test]
fn fifty_reloads_under_load_fail_no_request() {
    let members = Member::several(5, &["--service", "exp:4ms", "--workers", "32"]);
    let all = addresses(&members);
    let stays = all[0];
    let file = |step: usize| {
        let strategy = strategy::ALL[step % strategy::ALL.len()].name;
        // There are two to five members, never the same set twice in a row; the first one always, at a
        // capacity of its own.
        let mut here: Vec<SocketAddr> = all[1..].to_vec();
        here.rotate_left(step % 4);
        here.truncate(1 + step % 4);
        let capacity = 1 + step % 3;
        let list =
            format!("[{{ address = \"{stays}\", capacity = {capacity} }}, {}", &members_list(&here)[1..]);
        // No group rejects anything, however late the machine is.
        let rest = format!(
            "strategy = \"{strategy}\"\nadmission = false\n{PATIENT}max_idle_connections = {}\n",
            100 + step
        );
        let text = web(&[stays], &rest);
        text.replace(&members_list(&[stays]), &list)
    };
    let balancer = Balancer::start(&file(0));
    // POST: no request is retried.
    let mut load = Load::start(balancer.address(), "POST", 300.0);
    let mut served = 0;
    for step in 1..=50 {
        load.more(15);
        if step % 2 == 0 {
            balancer.hang_up(&file(step));
        } else {
            let said = balancer.reload(&file(step));
            assert!(said.contains("strategy") && said.contains("capacity"), "{said}");
        }
        let now = balancer.member(stays)["requests"].as_u64().unwrap();
        assert!(now >= served, "counters are kept");
        served = now;
    }
    load.more(100);
    let record = load.stop_unharmed();
    let status = balancer.status();
    assert_eq!((&status["reloads"], &status["last_reload_successful"]), (&50.into(), &true.into()));
    let group = balancer.group("web");
    assert_eq!((&group["retries"], &group["retries_denied"]), (&0.into(), &0.into()), "{group}");
    assert!(record.ok > 800 && served > 50, "{} requests, {served} of them by {stays}", record.ok);
    assert!(group["rejected"].as_object().unwrap().values().all(|count| *count == 0), "{group}");
}

#[test]
fn connections_of_clients_and_to_members_outlive_reloads() {
    let members = Member::several(2, &[]);
    let text = |members: &[SocketAddr], queue: usize| {
        "threads = 1\n".to_owned()
            + &web(members, &format!("strategy = \"first_available\"\n{PATIENT}queue = {queue}"))
    };
    let all = addresses(&members);
    let balancer = Balancer::start(&text(&all[..1], 1));
    let mut client = Wire::connect(balancer.address());
    for round in 1..=10 {
        client.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
        assert_eq!(client.answer().unwrap().status, 200);
        until("it is counted", || balancer.member(all[0])["requests"] == round);
        assert_eq!(balancer.member(all[0])["connects"], 1);
        balancer.reload(&text(&all[..1 + round % 2], 1 + round));
    }
    assert_eq!(balancer.status()["listeners"][0]["accepted"], 1);
}

/// Starts a member that answers, with its address in `x-member`, once `may` is set.
fn gated(may: &Arc<AtomicBool>) -> Script {
    let may = Arc::clone(may);
    Script::start(move |wire| {
        while wire.head()?.is_some() {
            until("it may answer", || may.load(SeqCst));
            let name = wire.local();
            wire.try_send(format!("HTTP/1.1 200 OK\r\nX-Member: {name}\r\nContent-Length: 0\r\n\r\n"))?;
        }
        std::io::Result::Ok(())
    })
}

#[test]
fn a_member_that_leaves_ends_its_work_first() {
    let may = Arc::<AtomicBool>::default();
    let (leaves, stays) = (gated(&may), Member::start(&[]));
    let all = [leaves.address, stays.address];
    let text = |members: &[SocketAddr]| web(members, "strategy = \"first_available\"");
    let balancer = Balancer::start(&text(&all));
    let mut client = Wire::connect(balancer.address());
    client.send("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n");
    until("a request in flight", || balancer.member(all[0])["in_flight"] == 1);
    let said = balancer.reload(&text(&all[1..]));
    assert!(said.contains(&format!("- group web: member {}", all[0])), "{said}");
    may.store(true, SeqCst);
    let answer = client.answer().unwrap();
    assert_eq!(answer.field("x-member"), Some(&*all[0].to_string()), "it was served where it was");
    client.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
    assert_eq!(client.answer().unwrap().field("x-member"), Some(&*all[1].to_string()));
}

#[test]
fn listeners_and_groups_come_and_go() {
    let may = Arc::new(AtomicBool::new(true));
    let (member, other) = (Member::start(&[]), gated(&may));
    let all = [member.address, other.address];
    let port = free_port();
    let one = web(&all[..1], "");
    let two = format!(
        "{one}[[listener]]\naddress = \"127.0.0.1:{port}\"\ngroup = \"other\"\n{}",
        groups(&[("other", &all[1..])], "")
    );
    let balancer = Balancer::start(&one);
    let second = SocketAddr::from(([127, 0, 0, 1], port));
    assert!(!listens(second));
    let said = balancer.reload(&two);
    assert!(said.contains(&format!("+ listener http {second} -> other")), "{said}");
    assert_eq!(get(second, "/").field("x-member"), Some(&*all[1].to_string()));

    // The last request of the listener is answered after it is gone.
    may.store(false, SeqCst);
    let mut client = Wire::connect(second);
    client.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
    until("a request in flight", || balancer.group("other")["members"][0]["in_flight"] == 1);
    let said = balancer.reload(&one);
    assert!(said.contains(&format!("- listener http {second}")) && said.contains("- group other"), "{said}");
    may.store(true, SeqCst);
    assert_eq!(client.answer().unwrap().status, 200);
    until("the listener closed", || !listens(second));
    assert_eq!(get(balancer.address(), "/").status, 200);
}

#[test]
fn a_bad_file_changes_nothing_and_says_so() {
    let member = Member::start(&[]);
    // The group rejects nothing, however late the machine is.
    let text = web(&[member.address], &format!("admission = false\n{PATIENT}"));
    let balancer = Balancer::start(&text);
    let mut load = Load::start(balancer.address(), "POST", 200.0);
    let successful = || balancer.metric("plimsoll_config_last_reload_successful");
    assert_eq!(successful(), 1.0);
    let (_held, taken) = {
        let listener = std::net::TcpListener::bind(("127.0.0.1", free_port())).unwrap();
        let address = listener.local_addr().unwrap();
        (listener, address)
    };
    let bad = [
        (text.replace("members", "membres"), "membres"),
        (text.replace("group = \"web\"", "group = \"wbe\""), "wbe"),
        (text.replace("slow_start = \"0s\"", "slow_start = "), "values must be quoted"),
        (text.replace("[[group]]", "[[group]]\nstrategy = \"magic\""), "magic"),
        (text.clone() + &format!("[[listener]]\naddress = \"{taken}\"\ngroup = \"web\"\n"), "in use"),
        (text.clone() + "[access_log]\npath = \"/nowhere/access.log\"\n", "/nowhere/access.log"),
        ("threads = 7\n".to_owned() + &text, "threads"),
    ];
    for (file, why) in bad {
        balancer.write(&file);
        let run = balancer.run(&["reload"]);
        assert!(run.code == Some(2) && run.err.contains(why), "{why}: {:?} {}{}", run.code, run.out, run.err);
        assert_eq!(successful(), 0.0, "{why}");
        let status = balancer.run(&["status"]);
        assert!(
            status.code == Some(1) && status.out.contains("‼ the last reload was refused"),
            "{}",
            status.out
        );
        assert!(status.out.contains(why), "{why}: {}", status.out);
        load.more(20);
    }
    let refusals = || {
        let lines = balancer.process.lines();
        lines
            .iter()
            .filter(|line| line.contains("WARN reload refused, the configuration before stays"))
            .count()
    };
    until("every refusal in the log", || refusals() == 7);
    // A reload by signal does the same.
    balancer.write("nonsense");
    balancer.process.signal(Signal::HUP);
    until("it is said", || refusals() == 8);
    assert_eq!(balancer.reload(&text), "", "nothing is different from what is in force");
    assert_eq!(successful(), 1.0);
    assert_eq!(balancer.run(&["status"]).code, Some(0));
    load.stop_unharmed();
}

#[test]
fn a_listener_takes_new_settings_and_another_group() {
    let members = Member::several(2, &["--echo", "http"]);
    let all = addresses(&members);
    let text = |group: &str, forwarded: &str| {
        format!(
            "[[listener]]\naddress = \"127.0.0.1:0\"\ngroup = \"{group}\"\nforwarded = \"{forwarded}\"\n{}",
            groups(&[("one", &all[..1]), ("two", &all[1..])], "")
        )
    };
    let balancer = Balancer::start(&text("one", "x-forwarded"));
    let mut client = Wire::connect(balancer.address());
    let mut ask = || {
        client.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
        let answer = client.answer().unwrap();
        (answer.field("x-member").unwrap().to_owned(), answer.text().contains("X-Forwarded-For"))
    };
    assert_eq!(ask(), (all[0].to_string(), true));
    let said = balancer.reload(&text("two", "x-forwarded"));
    assert!(said.contains(": one -> two"), "{said}");
    until("the other group", || ask().0 == all[1].to_string());
    balancer.reload(&text("two", "off"));
    until("the other form", || !ask().1);
    assert_eq!(balancer.status()["listeners"][0]["accepted"], 1, "on the same connection");
}

#[test]
fn connections_to_a_member_that_left_are_closed() {
    let closed = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&closed);
    let leaves = Script::start(move |wire| {
        while wire.head()?.is_some() {
            wire.try_send("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")?;
        }
        told.store(true, SeqCst);
        std::io::Result::Ok(())
    });
    let stays = Member::start(&[]);
    // With this configuration only the removal of the member closes its connections so soon.
    let rest = "pool_idle_timeout = \"1h\"\nstrategy = \"first_available\"\n";
    let balancer = Balancer::start(&web(&[leaves.address, stays.address], rest));
    assert_eq!(get(balancer.address(), "/").status, 200);
    assert!(!closed.load(SeqCst));
    balancer.reload(&web(&[stays.address], rest));
    assert_eq!(get(balancer.address(), "/").status, 200);
    until("the connection closed", || closed.load(SeqCst));
}
