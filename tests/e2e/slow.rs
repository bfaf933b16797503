//! Clients that are slow on purpose are ended by timeouts, and others are served meanwhile.

use std::time::{Duration, Instant};

use crate::stage::{Answer, Balancer, Member, Wire, get, listening, until, web};

const SLOW: usize = 200;

fn start(member: &Member, timeouts: &str) -> Balancer {
    Balancer::start(&listening(&format!("[listener.timeouts]\n{timeouts}"), &[member.address], ""))
}

/// Sends a piece to every client again and again until the balancer has had enough of all of them; their
/// answers. Every round others are served.
fn drip(balancer: &Balancer, clients: Vec<Wire>, pieces: &[u8]) -> Vec<Answer> {
    let open = || balancer.status()["listeners"][0]["connections"].as_u64().unwrap();
    let mut clients = clients;
    let mut pieces = pieces.iter().cycle();
    until("all slow clients ended", || {
        let piece = [*pieces.next().unwrap()];
        for client in &mut clients {
            // It may have been closed.
            let _ = client.try_send(piece);
        }
        let begun = Instant::now();
        assert_eq!(get(balancer.address(), "/").status, 200);
        assert!(begun.elapsed() < Duration::from_secs(5), "others wait: {:?}", begun.elapsed());
        open() == 0
    });
    clients.iter_mut().filter_map(|client| client.answer().ok()).collect()
}

#[test]
fn heads_that_come_byte_by_byte_are_ended() {
    let member = Member::start(&[]);
    let balancer = start(&member, "head = \"1s\"");
    let mut clients: Vec<Wire> = (0..SLOW).map(|_| Wire::connect(balancer.address())).collect();
    clients.iter_mut().for_each(|client| client.send("GET / HTTP/1.1\r\nHost: x\r\nX-A: "));
    let answers = drip(&balancer, clients, b"slowly");
    assert!(answers.len() > SLOW / 2, "{} answers", answers.len());
    assert!(answers.iter().all(|answer| (answer.status, answer.reason()) == (408, Some("client_timeout"))));
    assert!(balancer.rejected("client_timeout") >= SLOW as u64);
}

#[test]
fn bodies_that_stall_are_ended() {
    let member = Member::start(&[]);
    let balancer = start(&member, "body = \"500ms\"");
    let mut clients: Vec<Wire> = (0..SLOW).map(|_| Wire::connect(balancer.address())).collect();
    clients
        .iter_mut()
        .for_each(|client| client.send("PUT / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nsome"));
    let answers = drip(&balancer, Vec::new(), b"-");
    assert!(answers.is_empty());
    for client in &mut clients {
        let answer = client.answer().unwrap();
        assert_eq!((answer.status, answer.reason()), (408, Some("client_timeout")));
    }
    let member = balancer.member(member.address);
    assert_eq!((&member["in_flight"], &member["failures"]), (&0.into(), &0.into()), "no fault of its own");
}

#[test]
fn bodies_that_trickle_are_ended_by_the_total() {
    let member = Member::start(&[]);
    let rest = "[group.timeouts]\nconnect = \"500ms\"\ntotal = \"1s\"\n";
    let balancer = Balancer::start(&web(&[member.address], rest));
    let mut clients: Vec<Wire> = (0..SLOW).map(|_| Wire::connect(balancer.address())).collect();
    let head = "PUT / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n";
    clients.iter_mut().for_each(|client| client.send(head));
    let answers = drip(&balancer, clients, b"trickle");
    assert!(answers.len() > SLOW / 2, "{} answers", answers.len());
    assert!(answers.iter().all(|answer| answer.reason() == Some("total_timeout")), "{:?}", answers[0]);
}

#[test]
fn readers_that_stall_are_ended() {
    let member = Member::start(&["--body", "32MiB"]);
    // Long enough for all of them to be seen together.
    let balancer = start(&member, "body = \"3s\"");
    let mut clients: Vec<Wire> = (0..20).map(|_| Wire::connect(balancer.address())).collect();
    clients.iter_mut().for_each(|client| client.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n"));
    until("all in flight", || balancer.member(member.address)["in_flight"] == 20);
    until("none in flight", || balancer.member(member.address)["in_flight"] == 0);
    assert_eq!(balancer.member(member.address)["failures"], 0, "no fault of its own");
    assert!(clients.iter_mut().all(|client| client.answer().is_err()), "cut");
}

#[test]
fn clients_that_say_nothing_are_let_go() {
    let member = Member::start(&[]);
    let balancer = start(&member, "idle = \"300ms\"");
    let mut silent = Wire::connect(balancer.address());
    let mut done = Wire::connect(balancer.address());
    done.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
    assert_eq!(done.answer().unwrap().status, 200);
    silent.closed();
    done.closed();
    assert_eq!(balancer.rejected("client_timeout"), 0, "nobody was refused anything");
}
