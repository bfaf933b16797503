//! Many connections: idle ones are cheap, and the limit on them holds.

use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::stage::{Balancer, Member, Wire, get, listening, until, web};

const MANY: usize = 10_000;
/// The maximum resident memory of one idle connection in bytes. The gate bounds the release binary to 4 KiB;
/// a debug binary keeps larger futures.
const EACH: u64 = 4096;

/// Returns the number of connections that the limits allow, at most [`MANY`]: the balancer needs two files
/// for each.
fn many() -> usize {
    let wanted = 2 * MANY as u64 + 4096;
    let limit = getrlimit(Resource::Nofile);
    if limit.maximum.is_some_and(|most| most < wanted) {
        // Only a privileged process may raise the maximum.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum: Some(wanted) });
    }
    let maximum = getrlimit(Resource::Nofile).maximum;
    let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
    let files = maximum.unwrap_or(u64::MAX).min(wanted);
    let many = ((files as usize).saturating_sub(2048) / 2).min(MANY);
    if many < MANY {
        eprintln!("{many} connections instead of {MANY}: this process may open {files} files");
    }
    many
}

#[test]
fn ten_thousand_idle_connections_take_little_and_delay_nobody() {
    let many = many();
    let member = Member::start(&[]);
    // No connection is closed for the sake of new ones.
    let text = listening("timeouts.idle = \"1h\"\n", &[member.address], "");
    let (balancer, other) = (Balancer::start(&text), Balancer::start(&text));
    // The first connections allocate memory that is not theirs.
    let _first: Vec<Wire> = (0..100).map(|_| used(&balancer)).collect();
    let before = balancer.process.resident();
    let crowd: Vec<Wire> = (100..many).map(|_| used(&balancer)).collect();
    let open = || balancer.status()["listeners"][0]["connections"].as_u64().unwrap();
    assert_eq!(open(), many as u64);
    let each = balancer.process.resident().saturating_sub(before) / crowd.len() as u64;
    eprintln!("{each} bytes for each idle connection");
    assert!(each < EACH, "{each} bytes for each of {} idle connections", crowd.len());
    // Alternating with a balancer without a crowd, so that both meet the same load of the machine.
    let asked = |balancer: &Balancer| {
        let begun = Instant::now();
        assert_eq!(get(balancer.address(), "/").status, 200);
        // bound: measured here, judged below
        begun.elapsed()
    };
    let (mut alone, mut crowded): (Vec<Duration>, Vec<Duration>) =
        (0..21).map(|_| (asked(&other), asked(&balancer))).unzip();
    alone.sort();
    crowded.sort();
    // bound: ten times the reference measured above, of the middle one of each
    assert!(crowded[10] < 10 * alone[10], "{crowded:?} with a crowd, {alone:?} without");
    assert!(balancer.member(member.address)["connects"].as_u64() < Some(500), "the crowd shares connections");
    drop(crowd);
    until("they are gone", || open() <= 100);
}

/// Opens a connection that has served a request and is kept.
fn used(balancer: &Balancer) -> Wire {
    let mut client = Wire::connect(balancer.address());
    client.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
    assert_eq!(client.answer().unwrap().status, 200);
    client
}

#[test]
fn more_connections_than_allowed_do_not_get_in() {
    let member = Member::start(&[]);
    let text = "max_connections = 50\n".to_owned() + &web(&[member.address], "");
    let balancer = Balancer::start(&text);
    let mut inside: Vec<Wire> = (0..50).map(|_| used(&balancer)).collect();
    let mut outside: Vec<Wire> = (0..10).map(|_| Wire::connect(balancer.address())).collect();
    for client in &mut inside {
        client.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
        assert_eq!(client.answer().unwrap().status, 200, "those inside are served");
    }
    assert_eq!(balancer.status()["listeners"][0]["connections"], 50);
    // Excess connections are closed at once and do not wait.
    outside.iter_mut().for_each(Wire::closed);
    assert_eq!(balancer.status()["listeners"][0]["refused"], 10);
    drop(inside);
    until("room", || balancer.status()["listeners"][0]["connections"] == 0);
    assert_eq!(get(balancer.address(), "/").status, 200);
}
