//! Byte streams end to end: whole, half-closed, held back, kept through reloads and ended in good order.

use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::thread;
use std::time::Duration;

use rustix::process::Signal;
use socket2::SockRef;

use crate::stage::{
    Balancer, Load, Member, Nginx, Script, Wire, curl, found, free_port, listening, listens, noise, refusing,
    until,
};

fn tcp(members: &[SocketAddr], rest: &str) -> String {
    listening("protocol = \"tcp\"", members, rest)
}

#[test]
fn streams_arrive_whole_both_ways_and_end_one_way_at_a_time() {
    const LENGTH: usize = 20 << 20;
    let member = Member::start(&["--echo", "tcp"]);
    let balancer = Balancer::start(&tcp(&[member.address], ""));
    let mut client = Wire::connect(balancer.address());
    let mut sender = Wire::over(client.stream().try_clone().unwrap());
    let sending = thread::spawn(move || {
        sender.send(noise(LENGTH));
        sender.finish();
    });
    assert!(client.rest().unwrap() == noise(LENGTH), "what came back is not what was sent");
    sending.join().unwrap();
    until("the session ended", || {
        let member = balancer.member(member.address);
        member["requests"] == 1 && member["in_flight"] == 0
    });
    let member = balancer.member(member.address);
    assert_eq!((&member["bytes_out"], &member["bytes_in"]), (&LENGTH.into(), &LENGTH.into()));
    assert_eq!((&member["failures"], &member["in_flight"]), (&0.into(), &0.into()));
}

#[test]
fn nginx_stands_behind_as_a_server_and_as_a_stream_proxy() {
    let web = Nginx::http("");
    let page = noise(3 << 20);
    web.file("page", &page);
    let stream =
        Nginx::stream(|address| format!("server {{ listen {address}; proxy_pass {}; }}", web.address));
    let balancer = Balancer::start(&tcp(&[web.address, stream.address], "strategy = \"round_robin\""));
    for _ in 0..6 {
        let came = curl(&[&balancer.url("/page")], b"");
        assert!(came.code == Some(0) && came.body == page, "{}", came.talk);
    }
    for address in [web.address, stream.address] {
        assert!(balancer.member(address)["connects"].as_u64() >= Some(2), "both got sessions");
    }
}

#[test]
fn a_slow_reader_holds_up_the_sender_not_the_memory() {
    const LONG: u64 = 400 << 20;
    let sent = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&sent);
    let member = Script::start(move |wire| {
        let block = noise(64 * 1024);
        for _ in 0..LONG / block.len() as u64 {
            wire.try_send(&block)?;
            count.fetch_add(block.len() as u64, SeqCst);
        }
        std::io::Result::Ok(())
    });
    let balancer = Balancer::start(&tcp(&[member.address], ""));
    let before = balancer.process.resident();
    let mut client = Wire::connect(balancer.address());
    let mut last = (0, 0);
    until("all buffers full", || {
        // sleeps: between two looks at what goes on; what is found too soon is less
        thread::sleep(Duration::from_millis(40));
        let now = sent.load(SeqCst);
        last = (now, if now == last.0 && now > 0 { last.1 + 1 } else { 0 });
        last.1 == 5
    });
    assert!(last.0 < LONG / 4, "{} bytes were taken that nobody read", last.0);
    let block = noise(64 * 1024);
    for _ in 0..LONG / block.len() as u64 {
        assert!(client.exactly(block.len()).unwrap() == block);
    }
    client.closed();
    let grown = balancer.process.resident().saturating_sub(before);
    assert!(grown < 16 << 20, "{grown} bytes of memory for one stream");
}

#[test]
fn a_member_that_refuses_is_passed_over() {
    let (_held, dead) = refusing();
    let member = Member::start(&["--echo", "tcp"]);
    let balancer = Balancer::start(&tcp(&[dead, member.address], "outlier = false"));
    for number in 0..20 {
        let mut client = Wire::connect(balancer.address());
        client.send("hello\r\n");
        assert_eq!(client.line().unwrap(), "hello", "session {number}");
    }
    assert!(balancer.member(dead)["failures"].as_u64() >= Some(5));
}

#[test]
fn a_killed_member_costs_no_new_session() {
    // One of the members comes back at its address, whose port is reserved for it meanwhile.
    let member = |port: u16| {
        Member::start_at(
            SocketAddr::from(([127, 0, 0, 1], port)),
            &["--service", "exp:2ms", "--workers", "16"],
        )
    };
    let mut members = [0, free_port(), 0].map(member);
    let addresses: Vec<_> = members.iter().map(|member| member.address).collect();
    let balancer = Balancer::start(&tcp(&addresses, "[group.outlier]\nejection = \"1s\""));
    // Each HTTP request has a session of its own.
    let ask = || {
        let mut client = Wire::connect(balancer.address());
        client.send("GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        client.answer().map(|answer| answer.status)
    };
    (0..50).for_each(|_| assert_eq!(ask().unwrap(), 200));
    members[1].process.kill();
    (0..200).for_each(|number| assert_eq!(ask().unwrap(), 200, "session {number}"));
    until("an ejection", || {
        ask().unwrap();
        !balancer.events(addresses[1], "ejected").is_empty()
    });
    members[1].restart();
    let before = balancer.member(addresses[1])["connects"].as_u64().map(|count| count + 20);
    until("it serves again", || {
        assert_eq!(ask().unwrap(), 200);
        balancer.member(addresses[1])["connects"].as_u64() > before
    });
}

#[test]
fn sessions_outlive_reloads_and_drains_of_their_member() {
    let members = Member::several(2, &["--echo", "tcp"]);
    let all: Vec<_> = members.iter().map(|member| member.address).collect();
    let text = |members: &[SocketAddr]| tcp(members, "strategy = \"first_available\"");
    let balancer = Balancer::start(&text(&all));
    let mut client = Wire::connect(balancer.address());
    let mut say = |word: &str| {
        client.send(format!("{word}\r\n"));
        assert_eq!(client.line().unwrap(), word);
    };
    say("first");
    assert_eq!(balancer.run(&["drain", &all[0].to_string()]).code, Some(0));
    say("its member is drained");
    assert_eq!(balancer.member(all[0])["in_flight"], 1);
    balancer.reload(&text(&all[1..]));
    say("its member has left");
    let mut other = Wire::connect(balancer.address());
    other.send("hello\r\n");
    assert_eq!(other.line().unwrap(), "hello");
    assert_eq!(balancer.member(all[1])["in_flight"], 1);
}

#[test]
fn load_over_sessions_survives_reloads() {
    let members = Member::several(3, &["--service", "exp:2ms", "--workers", "16"]);
    let all: Vec<_> = members.iter().map(|member| member.address).collect();
    // No member fails because the balancer stood still.
    let balancer = Balancer::start(&tcp(&all, "timeouts = { connect = \"20s\" }"));
    let mut load = Load::start(balancer.address(), "POST", 200.0);
    for step in 0..20 {
        load.more(10);
        let rest = format!("timeouts = {{ connect = \"20s\" }}\nqueue = {}", 100 + step);
        balancer.hang_up(&tcp(&all[..1 + step % 3], &rest));
    }
    load.stop_unharmed();
}

#[test]
fn silence_ends_a_session_and_so_does_a_reset() {
    let member = Member::start(&["--echo", "tcp"]);
    let silent = "protocol = \"tcp\"\n[listener.timeouts]\nidle = \"300ms\"";
    let balancer = Balancer::start(&listening(silent, &[member.address], ""));
    // A session that was silent for too long before it began, as the machine stood still, is ended as well.
    let mut client = found("a session", || {
        let mut client = Wire::connect(balancer.address());
        client.try_send("hello\r\n").ok()?;
        (client.line().ok()? == "hello").then_some(client)
    });
    client.closed();
    until("no session", || balancer.member(member.address)["in_flight"] == 0);
    assert_eq!(balancer.member(member.address)["failures"], 0);
    let balancer = Balancer::start(&tcp(&[member.address], ""));
    let client = TcpStream::connect(balancer.address()).unwrap();
    until("a session", || balancer.member(member.address)["in_flight"] == 1);
    SockRef::from(&client).set_linger(Some(Duration::ZERO)).unwrap();
    drop(client);
    until("no session", || balancer.member(member.address)["in_flight"] == 0);
    assert_eq!(balancer.member(member.address)["failures"], 0);
}

#[test]
fn nobody_to_serve_is_a_reset_not_an_end() {
    let (_held, dead) = refusing();
    let balancer = Balancer::start(&tcp(&[dead], "outlier = false"));
    let mut client = Wire::connect(balancer.address());
    let error = client.rest().unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "an end would look like an answer");
    until("it is counted", || balancer.rejected("connect_failed") == 1);
}

#[test]
fn a_stop_lets_sessions_end_until_the_deadline() {
    let member = Member::start(&["--echo", "tcp"]);
    let start = |deadline: &str| {
        let text = format!("drain_deadline = \"{deadline}\"\n{}", tcp(&[member.address], ""));
        let balancer = Balancer::start(&text);
        let mut client = Wire::connect(balancer.address());
        client.send("hello\r\n");
        assert_eq!(client.line().unwrap(), "hello");
        (balancer, client)
    };
    // The process ends with the last session, long before the deadline.
    let (mut balancer, mut ends) = start("1h");
    balancer.process.signal(Signal::TERM);
    until("nobody listens", || !listens(balancer.address()));
    ends.send("goodbye\r\n");
    assert_eq!(ends.line().unwrap(), "goodbye");
    drop(ends);
    assert_eq!(balancer.process.end(), Some(0));
    let (mut balancer, mut stays) = start("500ms");
    balancer.process.signal(Signal::TERM);
    assert_eq!(balancer.process.end(), Some(0));
    balancer.process.line("1 connection cut at the drain deadline");
    stays.closed();
}
