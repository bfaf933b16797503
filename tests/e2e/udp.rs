//! Datagrams end to end: whole, kept with their member, shared by load, moved when a member dies.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use crate::stage::{
    Balancer, Folder, Member, Nginx, binary, found, free_port, groups, listening, noise, until,
};

fn udp(members: &[SocketAddr], rest: &str) -> String {
    listening("protocol = \"udp\"", members, rest)
}

fn client(balancer: &Balancer) -> UdpSocket {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.connect(balancer.address()).unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    socket
}

/// Asks until an answer comes, as clients of datagrams must: on a busy machine some are lost.
#[track_caller]
fn ask(client: &UdpSocket, question: &[u8]) -> Vec<u8> {
    let mut buffer = vec![0; 65_536];
    for _ in 0..40 {
        match client.send(question).and_then(|_| client.recv(&mut buffer)) {
            Ok(length) => {
                buffer.truncate(length);
                return buffer;
            }
            Err(error) => assert!(
                matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::ConnectionRefused),
                "{error}"
            ),
        }
    }
    panic!("no answer to {} bytes", question.len());
}

/// Returns the member that answers.
#[track_caller]
fn who(client: &UdpSocket) -> String {
    let answer = String::from_utf8(ask(client, b"who?")).unwrap();
    answer.strip_suffix(" who?").unwrap_or_else(|| panic!("{answer}")).to_owned()
}

fn members(count: usize) -> (Vec<Member>, Vec<SocketAddr>) {
    let members = Member::several(count, &["--echo", "udp", "--greet"]);
    let addresses = members.iter().map(|member| member.address).collect();
    (members, addresses)
}

#[test]
fn datagrams_keep_their_bounds_and_their_bytes() {
    let member = Member::start(&["--echo", "udp"]);
    let balancer = Balancer::start(&udp(&[member.address], ""));
    let client = client(&balancer);
    let mut before: Vec<Vec<u8>> = Vec::new();
    for length in [0, 1, 512, 1472, 9000, 60_000] {
        let sent = noise(length);
        // A repeated question may be answered late, and more than once.
        let echo = found("an answer", || Some(ask(&client, &sent)).filter(|answer| !before.contains(answer)));
        assert!(echo == sent, "{length} bytes");
        before.push(sent);
    }
    assert_eq!(balancer.status()["listeners"][0]["connections"], 1, "one flow");
}

#[test]
fn flows_stay_with_their_member_and_are_shared() {
    let (_members, addresses) = members(3);
    let balancer = Balancer::start(&udp(&addresses, "strategy = \"least_connections\"\n"));
    let clients: Vec<UdpSocket> = (0..60).map(|_| client(&balancer)).collect();
    let first: Vec<String> = clients.iter().map(who).collect();
    for _ in 0..5 {
        assert_eq!(clients.iter().map(who).collect::<Vec<_>>(), first, "a flow moved");
    }
    let mut shares: BTreeMap<&str, usize> = BTreeMap::new();
    first.iter().for_each(|name| *shares.entry(name).or_default() += 1);
    // Each of the two threads sees the flows of the other: the counts may be off by some.
    assert!(shares.len() == 3 && shares.values().all(|share| (15..=25).contains(share)), "{shares:?}");
}

#[test]
fn a_dead_members_flows_move_and_the_others_stay() {
    // One of the members comes back at its address, whose port is reserved for it meanwhile.
    let member =
        |port: u16| Member::start_at(SocketAddr::from(([127, 0, 0, 1], port)), &["--echo", "udp", "--greet"]);
    let mut members = [0, free_port(), 0].map(member);
    let addresses: Vec<_> = members.iter().map(|member| member.address).collect();
    let balancer = Balancer::start(&udp(&addresses, "[group.outlier]\nejection = \"1s\""));
    let clients: Vec<UdpSocket> = (0..30).map(|_| client(&balancer)).collect();
    let first: Vec<String> = clients.iter().map(who).collect();
    members[1].process.kill();
    let dead = addresses[1].to_string();
    for (client, before) in clients.iter().zip(&first) {
        let mut now = who(client);
        // An answer to a question asked before the member died may still have been in flight.
        if now == dead {
            now = who(client);
        }
        assert!(now != dead && (before == &dead || *before == now), "{before} -> {now}");
    }
    until("an ejection", || {
        // A question to the closed port makes the kernel report that it is closed.
        who(&client(&balancer));
        !balancer.events(addresses[1], "ejected").is_empty()
    });
    members[1].restart();
    until("it serves again", || who(&client(&balancer)) == dead);
}

#[test]
fn flows_follow_reloads_stay_with_a_drained_member_and_end_when_quiet() {
    let (_members, addresses) = members(2);
    let text = |members: &[SocketAddr], idle: &str| {
        let listener = format!("protocol = \"udp\"\n[listener.timeouts]\nidle = \"{idle}\"");
        listening(&listener, members, "strategy = \"first_available\"")
    };
    let balancer = Balancer::start(&text(&addresses, "1m"));
    let [one, two] = [addresses[0].to_string(), addresses[1].to_string()];
    let early = client(&balancer);
    assert_eq!(who(&early), one);
    assert_eq!(balancer.run(&["drain", &one]).code, Some(0));
    assert_eq!(who(&early), one, "what has begun goes on");
    let late = client(&balancer);
    assert_eq!(who(&late), two);
    balancer.reload(&text(&addresses[1..], "1m"));
    assert_eq!(who(&early), two, "its member has left");
    assert_eq!(balancer.status()["listeners"][0]["connections"], 2);
    balancer.reload(&text(&addresses[1..], "200ms"));
    who(&early);
    who(&late);
    until("quiet flows ended", || balancer.status()["listeners"][0]["connections"] == 0);
    assert_eq!(who(&early), two, "and may begin again");
}

#[test]
fn a_full_table_serves_those_who_are_in_it() {
    let (_members, addresses) = members(1);
    let balancer = Balancer::start(&listening("protocol = \"udp\"\nmax_flows = 10", &addresses, ""));
    let inside: Vec<UdpSocket> = (0..10).map(|_| client(&balancer)).collect();
    inside.iter().for_each(|client| drop(who(client)));
    let outside = client(&balancer);
    outside.send(b"let me in").unwrap();
    until("a refusal", || balancer.status()["listeners"][0]["refused"].as_u64() > Some(0));
    inside.iter().for_each(|client| drop(who(client)));
    assert_eq!(balancer.status()["listeners"][0]["connections"], 10);
}

/// The default of `max_flows` follows from the limit on open files.
#[test]
fn two_listeners_with_the_default_of_flows_start_under_a_limit_of_20_000_files() {
    let (_members, addresses) = members(1);
    let folder = Folder::new();
    let limited = folder
        .script("limited", &format!("#!/bin/sh\nulimit -n 20000\nexec {} \"$@\"\n", binary().display()));
    let listener = "[[listener]]\naddress = \"127.0.0.1:0\"\nprotocol = \"udp\"\ngroup = \"web\"\n";
    let text = format!("{listener}{listener}{}", groups(&[("web", &addresses)], ""));
    let balancer = Balancer::of(&limited, folder, &text);
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", balancer.process.pid())).unwrap();
    let files = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    assert_eq!(files.split_whitespace().nth(3), Some("20000"), "{files}");
    for address in balancer.addresses() {
        let client = UdpSocket::bind("127.0.0.1:0").unwrap();
        client.connect(address).unwrap();
        client.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
        assert_eq!(who(&client), addresses[0].to_string());
    }
    assert_eq!(balancer.addresses().len(), 2);
}

#[test]
fn nginx_answers_datagrams() {
    // The server listens by TCP, too, so that the test can see when it listens.
    let nginx = Nginx::stream(|address| {
        format!("server {{ listen {address} udp; listen {address}; return nginx; }}")
    });
    let balancer = Balancer::start(&udp(&[nginx.address], ""));
    assert_eq!(ask(&client(&balancer), b"hello"), b"nginx");
}
