//! Clients that are slow on purpose are ended by timeouts, and others are served meanwhile.

use crate::stage::{Answer, Balancer, Member, Wire, found, get, listening, until, web};

const SLOW: usize = 200;

fn start(member: &Member, timeouts: &str) -> Balancer {
    Balancer::start(&listening(&format!("[listener.timeouts]\n{timeouts}"), &[member.address], ""))
}

fn open(balancer: &Balancer) -> u64 {
    balancer.status()["listeners"][0]["connections"].as_u64().unwrap()
}

/// Opens slow clients that have sent `begin`.
fn slow(balancer: &Balancer, begin: &str) -> Vec<Wire> {
    let client = |_| {
        let mut client = Wire::connect(balancer.address());
        client.send(begin);
        client
    };
    (0..SLOW).map(client).collect()
}

/// Asserts that others are served while slow clients send piece after piece, at a balancer with the longest
/// timeouts.
#[track_caller]
fn others_are_served(patient: &Balancer, begin: &str, pieces: &[u8]) {
    let mut clients = slow(patient, begin);
    for piece in pieces {
        clients.iter_mut().for_each(|client| client.send([*piece]));
        assert_eq!(get(patient.address(), "/").status, 200);
    }
    assert!(open(patient) >= SLOW as u64, "all of them are still there");
}

/// Sends a piece to every client again and again until the balancer has closed all of them; returns their
/// answers.
fn drip(balancer: &Balancer, clients: Vec<Wire>, pieces: &[u8]) -> Vec<Answer> {
    let mut clients = clients;
    let mut pieces = pieces.iter().cycle();
    until("all slow clients ended", || {
        let piece = [*pieces.next().unwrap()];
        for client in &mut clients {
            // The connection may be closed.
            let _ = client.try_send(piece);
        }
        open(balancer) == 0
    });
    clients.iter_mut().filter_map(|client| client.answer().ok()).collect()
}

#[test]
fn heads_that_come_byte_by_byte_are_ended() {
    let member = Member::start(&[]);
    let begin = "GET / HTTP/1.1\r\nHost: x\r\nX-A: ";
    others_are_served(&start(&member, "head = \"1h\""), begin, b"slowly");
    let balancer = start(&member, "head = \"1s\"");
    let answers = drip(&balancer, slow(&balancer, begin), b"slowly");
    assert!(answers.len() > SLOW / 2, "{} answers", answers.len());
    assert!(answers.iter().all(|answer| (answer.status, answer.reason()) == (408, Some("client_timeout"))));
    until("all are counted", || balancer.rejected("client_timeout") >= SLOW as u64);
}

#[test]
fn bodies_that_stall_are_ended() {
    let member = Member::start(&[]);
    let begin = "PUT / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nsome";
    others_are_served(&start(&member, "body = \"1h\""), begin, b"-");
    let balancer = start(&member, "body = \"500ms\"");
    let mut clients = slow(&balancer, begin);
    until("all slow clients ended", || open(&balancer) == 0);
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
    let begin = "PUT / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n";
    let within = |total: &str| {
        let rest = format!("[group.timeouts]\nconnect = \"1s\"\ntotal = \"{total}\"\n");
        Balancer::start(&web(&[member.address], &rest))
    };
    others_are_served(&within("1h"), begin, b"trickle");
    let balancer = within("1s");
    let answers = drip(&balancer, slow(&balancer, begin), b"trickle");
    assert!(answers.len() > SLOW / 2, "{} answers", answers.len());
    assert!(answers.iter().all(|answer| answer.reason() == Some("total_timeout")), "{:?}", answers[0]);
}

#[test]
fn readers_that_stall_are_ended() {
    let member = Member::start(&["--body", "32MiB"]);
    let balancer = start(&member, "body = \"500ms\"");
    let mut clients: Vec<Wire> = (0..20).map(|_| Wire::connect(balancer.address())).collect();
    clients.iter_mut().for_each(|client| client.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n"));
    until("all have ended", || {
        let listener = balancer.status()["listeners"][0].clone();
        (&listener["accepted"], &listener["connections"]) == (&20.into(), &0.into())
    });
    let member = balancer.member(member.address);
    assert_eq!((&member["in_flight"], &member["failures"]), (&0.into(), &0.into()), "no fault of its own");
    assert!(clients.iter_mut().all(|client| client.answer().is_err()), "cut");
}

#[test]
fn clients_that_say_nothing_are_let_go() {
    let member = Member::start(&[]);
    let balancer = start(&member, "idle = \"300ms\"");
    let mut silent = Wire::connect(balancer.address());
    // A client that asked too late, as the machine stood still, is closed, too.
    let mut done = found("one that has its answer", || {
        let mut client = Wire::connect(balancer.address());
        client.try_send("GET / HTTP/1.1\r\nHost: x\r\n\r\n").ok()?;
        (client.answer().ok()?.status == 200).then_some(client)
    });
    silent.closed();
    done.closed();
    assert_eq!(balancer.rejected("client_timeout"), 0, "nobody was refused anything");
}
