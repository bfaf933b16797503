//! Members that are drained and a process that stops: work that has begun ends, new work goes elsewhere.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::stage::{Balancer, Folder, Load, Member, Run, Script, Wire, free_port, get, listens, until, web};

/// A machine that stands still must not cause overload: nothing is rejected for it.
const UNREFUSED: &str = "admission = false\n";

#[test]
fn a_member_is_drained_replaced_and_taken_back_under_load() {
    let mut members = Member::several(3, &["--service", "exp:10ms", "--workers", "32"]);
    let addresses: Vec<_> = members.iter().map(|member| member.address).collect();
    let balancer = Balancer::start(&web(&addresses, UNREFUSED));
    let name = addresses[1].to_string();
    // POST: no request is retried.
    let mut load = Load::start(balancer.address(), "POST", 100.0);
    for _ in 0..3 {
        load.more(30);
        let run = balancer.run(&["drain", &name, "--wait"]);
        assert!(run.code == Some(0) && run.err.ends_with("drained\n"), "{}", run.err);
        let drained = balancer.member(addresses[1]);
        assert_eq!((&drained["state"], &drained["in_flight"]), (&"draining".into(), &0.into()));
        load.more(30);
        assert_eq!(balancer.member(addresses[1])["requests"], drained["requests"], "it gets nothing new");
        // The usual reason of a drain: the member restarts.
        members[1].process.kill();
        members[1].restart();
        assert_eq!(balancer.run(&["undrain", &name]).code, Some(0));
        let before = drained["requests"].as_u64();
        until("it serves again", || balancer.member(addresses[1])["requests"].as_u64() > before);
    }
    load.stop_unharmed();
    assert_eq!(balancer.events(addresses[1], "draining").len(), 3);
    assert_eq!(balancer.events(addresses[1], "undrained").len(), 3);
}

#[test]
fn a_stop_lets_requests_in_flight_end() {
    // The member answers a HEAD at once, and other requests when it is allowed to.
    let may = Arc::<AtomicBool>::default();
    let look = Arc::clone(&may);
    let member = Script::start(move |wire| -> std::io::Result<()> {
        while let Some(head) = wire.head()? {
            if !head.starts_with("HEAD") {
                until("it may answer", || look.load(SeqCst));
            }
            wire.try_send("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")?;
        }
        Ok(())
    });
    // If the stop waited for the deadline, this test would not end.
    let text = "drain_deadline = \"1h\"\n".to_owned() + &web(&[member.address], UNREFUSED);
    let mut balancer = Balancer::start(&text);
    let mut idle = Wire::connect(balancer.address());
    idle.send("HEAD / HTTP/1.1\r\nHost: x\r\n\r\n");
    idle.answer_to("HEAD").unwrap();
    let mut clients: Vec<Wire> = (0..40).map(|_| Wire::connect(balancer.address())).collect();
    clients
        .iter_mut()
        .for_each(|client| client.send("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n"));
    until("all in flight", || balancer.member(member.address)["in_flight"] == 40);
    balancer.process.signal(Signal::TERM);
    until("nobody listens", || !listens(balancer.address()));
    idle.closed();
    assert_eq!(balancer.status()["stopping"], true);
    may.store(true, SeqCst);
    for client in &mut clients {
        let answer = client.answer().unwrap();
        assert_eq!((answer.status, answer.field("connection")), (200, Some("close")));
        client.closed();
    }
    assert_eq!(balancer.process.end(), Some(0));
    assert!(!balancer.folder().join("control.sock").exists(), "its socket is gone");
}

#[test]
fn a_stop_under_load_answers_every_request_it_took() {
    let member = Member::start(&["--service", "exp:20ms", "--workers", "100"]);
    let text = "drain_deadline = \"1h\"\n".to_owned() + &web(&[member.address], UNREFUSED);
    let mut balancer = Balancer::start(&text);
    let mut load = Load::start(balancer.address(), "GET", 100.0);
    load.more(50);
    let run = balancer.run(&["stop", "--wait"]);
    assert!(run.code == Some(0) && run.err.ends_with("stopped\n"), "{}", run.err);
    assert_eq!(balancer.process.end(), Some(0));
    let record = load.stop();
    // Later clients are refused; no accepted request was cut off.
    let others: Vec<_> = record.failed.keys().filter(|fault| fault.name() != "connect").collect();
    assert!(others.is_empty(), "{:?}", record.failed);
}

#[test]
fn a_request_that_crosses_the_stop_is_answered() {
    let member = Member::start(&[]);
    let mut balancer = Balancer::start(&web(&[member.address], ""));
    let ask = "GET / HTTP/1.1\r\nHost: x\r\n\r\n";
    let mut clients: Vec<Wire> = (0..40).map(|_| Wire::connect(balancer.address())).collect();
    for client in &mut clients {
        client.send(ask);
        assert_eq!(client.answer().unwrap().status, 200);
    }
    // While the process stands still, the stop and further work are queued for it.
    balancer.process.signal(Signal::STOP);
    clients[20..].iter_mut().for_each(|client| client.send(ask));
    let mut fresh: Vec<Wire> = (0..40).map(|_| Wire::connect(balancer.address())).collect();
    fresh[20..].iter_mut().for_each(|client| client.send(ask));
    balancer.process.signal(Signal::TERM);
    let begun = Instant::now();
    balancer.process.signal(Signal::CONT);
    // These requests are in transit when the listener closes. After a second the balancer waits for them no
    // longer.
    let crossing = clients[..10].iter_mut().chain(&mut fresh[..20]);
    let in_time: Vec<bool> = crossing
        .map(|client| {
            let _ = client.try_send(ask);
            // bound: what comes later need not be answered
            begun.elapsed() < Duration::from_secs(1)
        })
        .collect();
    for (client, in_time) in clients[..10].iter_mut().chain(&mut fresh[..20]).zip(in_time) {
        match client.answer() {
            Ok(answer) => assert_eq!(answer.status, 200),
            Err(error) => assert!(!in_time, "{error}"),
        }
        if in_time {
            client.closed();
        }
    }
    for client in clients[20..].iter_mut().chain(&mut fresh[20..]) {
        assert_eq!(client.answer().unwrap().status, 200);
        client.closed();
    }
    // And these send nothing.
    clients[10..20].iter_mut().for_each(Wire::closed);
    assert_eq!(balancer.process.end(), Some(0));
}

#[test]
fn the_deadline_cuts_what_does_not_end() {
    let member = Member::start(&["--service", "const:1h"]);
    let text = "drain_deadline = \"500ms\"\n".to_owned() + &web(&[member.address], "");
    let mut balancer = Balancer::start(&text);
    let mut client = Wire::connect(balancer.address());
    client.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
    until("a request in flight", || balancer.member(member.address)["in_flight"] == 1);
    balancer.process.signal(Signal::TERM);
    assert_eq!(balancer.process.end(), Some(0));
    balancer.process.line("1 connection cut at the drain deadline");
    client.closed();
}

#[test]
fn it_can_be_started_again_where_it_was() {
    let member = Member::start(&[]);
    let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let text = web(&[member.address], "").replace("127.0.0.1:0", &address.to_string());
    let mut first = Balancer::start(&text);
    // The kernel still remembers connections that the first process closed.
    for _ in 0..10 {
        assert_eq!(get(address, "/").status, 200);
    }
    first.process.kill();
    let again = Balancer::start(&text);
    assert_eq!((again.address(), get(address, "/").status), (address, 200));
}

#[test]
fn a_socket_left_by_a_killed_process_is_taken_over_and_a_live_one_is_not() {
    let member = Member::start(&[]);
    let text = web(&[member.address], "");
    let folder = Folder::new();
    let control =
        format!("[admin]\nlisten = \"off\"\ncontrol = \"unix:{}\"\n", folder.join("c.sock").display());
    let file = folder.write("plimsoll.toml", text.clone() + &control);
    let leftover = std::os::unix::net::UnixListener::bind(folder.join("c.sock")).unwrap();
    let second = Run::plimsoll(&["up", "-c", file.to_str().unwrap()], folder.path());
    assert!(second.code == Some(1) && second.err.contains("c.sock"), "{:?} {}", second.code, second.err);
    assert_eq!(second.err.lines().filter(|line| line.starts_with("error")).count(), 1, "{}", second.err);
    drop(leftover);
    // Now the socket has no listener.
    let file = text + "\n";
    let balancer = {
        let leftover = std::os::unix::net::UnixListener::bind(folder.join("control.sock")).unwrap();
        drop(leftover);
        Balancer::start_in(folder, &file)
    };
    assert_eq!(balancer.status()["stopping"], false);
}
