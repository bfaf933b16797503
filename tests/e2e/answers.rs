//! The balancer's own answers when no member answers: 502, 503 and 504 with the reason in a header and in the
//! metrics.

use std::net::SocketAddr;

use crate::stage::{Balancer, Member, Script, Wire, deaf, get, refusing, until, web};

/// Sends a request and expects `status` with `reason` in the answer and in the metrics.
#[track_caller]
fn expect(balancer: &Balancer, method: &str, status: u16, reason: &str) {
    let before = balancer.rejected(reason);
    let mut client = Wire::connect(balancer.address());
    client.send(format!("{method} / HTTP/1.1\r\nHost: x\r\n\r\n"));
    let answer = client.answer_to(method).unwrap();
    assert_eq!((answer.status, answer.reason()), (status, Some(reason)), "{}", answer.text());
    assert_eq!(answer.field("retry-after"), (status == 503).then_some("1"));
    assert!(method == "HEAD" || answer.text().starts_with("plimsoll: "), "{}", answer.text());
    assert_eq!(balancer.rejected(reason), before + 1);
    // It is an answer of the balancer and does not end the connection.
    client.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
    assert!(client.answer().is_ok());
}

fn start(member: SocketAddr, rest: &str) -> Balancer {
    Balancer::start(&web(&[member], rest))
}

#[test]
fn a_port_that_refuses_is_502() {
    let (_held, address) = refusing();
    let balancer = start(address, "outlier = false");
    for method in ["GET", "POST", "HEAD"] {
        expect(&balancer, method, 502, "connect_failed");
    }
    let member = balancer.member(address);
    assert!(
        member["failures"].as_u64() >= Some(3) && member["failures"] == member["answers"]["none"],
        "{member}"
    );
}

#[test]
fn a_member_that_closes_is_502() {
    let member = Script::start(|wire| wire.head().map(drop));
    expect(&start(member.address, ""), "GET", 502, "reset");
    expect(&start(member.address, ""), "POST", 502, "reset");
}

#[test]
fn a_member_that_makes_no_sense_is_502() {
    for nonsense in [
        "SSH-2.0-OpenSSH_9.2\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nok",
        "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\nContent-Length: 0\n\n",
        "HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
    ] {
        let member = Script::answering(nonsense);
        expect(&start(member.address, ""), "GET", 502, "bad_answer");
    }
    let member = Script::answering(format!("HTTP/1.1 200 OK\r\nX-A: {}\r\n\r\n", "a".repeat(40_000)));
    expect(&start(member.address, ""), "GET", 502, "bad_answer");
}

#[test]
fn a_member_that_hangs_is_504() {
    let member = Script::start(|wire| {
        while wire.head()?.is_some() {}
        std::io::Result::Ok(())
    });
    // All other time-outs are so long that only the short one can fire.
    for (timeouts, method, reason) in [
        ("per_try = \"150ms\"\nidle = \"1h\"", "GET", "answer_timeout"),
        ("idle = \"150ms\"", "POST", "answer_timeout"),
        ("connect = \"1s\"\ntotal = \"1s\"\nidle = \"1h\"", "GET", "total_timeout"),
    ] {
        expect(&start(member.address, &format!("[group.timeouts]\n{timeouts}")), method, 504, reason);
    }
}

#[test]
fn a_member_that_does_not_take_a_connection_is_504() {
    let (_socket, _waiting, address) = deaf();
    let balancer = start(address, "outlier = false\n[group.timeouts]\nconnect = \"150ms\"");
    expect(&balancer, "GET", 504, "connect_timeout");
    expect(&balancer, "POST", 504, "connect_timeout");
}

#[test]
fn no_member_is_503() {
    let member = Member::start(&[]);
    let balancer = start(member.address, "");
    assert_eq!(get(balancer.address(), "/").status, 200);
    assert_eq!(balancer.run(&["drain", &member.address.to_string()]).code, Some(0));
    expect(&balancer, "GET", 503, "no_member");
    assert_eq!(balancer.run(&["status"]).code, Some(1), "and the status says that all is not well");
}

#[test]
fn the_queue_is_bounded_in_length_and_time() {
    let member = Member::start(&["--service", "const:1h", "--workers", "9"]);
    // One thread: the bound applies per thread.
    let start = |timeout: &str| {
        let rest = format!("max_connections = 1\nqueue = 2\nqueue_timeout = \"{timeout}\"");
        Balancer::start(&("threads = 1\n".to_owned() + &web(&[member.address], &rest)))
    };
    let ask = |balancer: &Balancer| {
        let mut client = Wire::connect(balancer.address());
        client.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
        client
    };
    let one_in_flight = |balancer: &Balancer| {
        let served = ask(balancer);
        until("one in flight", || balancer.member(member.address)["in_flight"] == 1);
        served
    };
    let long = start("1h");
    let _served = one_in_flight(&long);
    let _waiting = [ask(&long), ask(&long)];
    until("two in the queue", || long.group("web")["queued"] == 2);
    // The requests still wait there.
    let answer = ask(&long).answer().unwrap();
    assert_eq!((answer.status, answer.reason()), (503, Some("queue_full")));
    assert_eq!((long.rejected("queue_full"), long.rejected("queue_timeout")), (1, 0));
    assert_eq!(long.member(member.address)["in_flight"], 1, "the limit held");
    let short = start("100ms");
    let _served = one_in_flight(&short);
    for mut client in [ask(&short), ask(&short)] {
        let answer = client.answer().unwrap();
        assert_eq!((answer.status, answer.reason()), (503, Some("queue_timeout")));
    }
    assert_eq!((short.rejected("queue_full"), short.rejected("queue_timeout")), (0, 2));
    assert_eq!(short.member(member.address)["in_flight"], 1, "the limit held");
}

#[test]
fn those_who_wait_are_served_when_a_place_comes_free() {
    let member = Member::start(&["--service", "const:20ms", "--workers", "9"]);
    let rest = "max_connections = 2\nqueue = 100\nqueue_timeout = \"1h\"\npool_idle_timeout = \"1h\"";
    let balancer = start(member.address, rest);
    let mut clients: Vec<Wire> = (0..40).map(|_| Wire::connect(balancer.address())).collect();
    clients.iter_mut().for_each(|client| client.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n"));
    for client in &mut clients {
        assert_eq!(client.answer().unwrap().status, 200);
    }
    let member = balancer.member(member.address);
    assert!(member["connects"].as_u64() <= Some(4), "never more than two at once: {member}");
}

#[test]
fn without_a_queue_too_many_are_refused_at_once() {
    let member = Member::start(&["--service", "const:1h"]);
    let balancer = start(member.address, "max_connections = 1\nqueue = 0");
    let mut first = Wire::connect(balancer.address());
    first.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
    until("one in flight", || balancer.member(member.address)["in_flight"] == 1);
    let answer = get(balancer.address(), "/");
    assert_eq!((answer.status, answer.reason()), (503, Some("queue_full")));
}

#[test]
fn the_retry_budget_bounds_what_is_tried_again() {
    let dead: Vec<_> = (0..4).map(|_| refusing()).collect();
    let addresses: Vec<SocketAddr> = dead.iter().map(|(_, address)| *address).collect();
    let rest = "outlier = false\n[group.retry]\nattempts = 3\nbudget = 0.5\nmin_per_second = 0\n";
    let balancer = Balancer::start(&("threads = 1\n".to_owned() + &web(&addresses, rest)));
    for _ in 0..20 {
        assert_eq!(get(balancer.address(), "/").reason(), Some("connect_failed"));
    }
    let group = balancer.group("web");
    let requests: u64 =
        group["members"].as_array().unwrap().iter().map(|member| member["requests"].as_u64().unwrap()).sum();
    assert_eq!((&group["retries"], requests), (&10.into(), 30), "half as many as requests: {group}");
    assert!(group["retries_denied"].as_u64() >= Some(10), "{group}");
}

#[test]
fn another_member_is_tried_where_that_is_safe() {
    let (_held, dead) = refusing();
    let closing = Script::start(|wire| wire.head().map(drop));
    let alive = Member::start(&["--name", "alive"]);
    // Without ejection, which would hide the retries.
    let text = web(&[dead, closing.address, alive.address], "strategy = \"round_robin\"\noutlier = false");
    let balancer = Balancer::start(&text);
    let ask = |method: &str| {
        let mut client = Wire::connect(balancer.address());
        client.send(format!("{method} / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"));
        client.answer().unwrap()
    };
    for _ in 0..12 {
        let answer = ask("GET");
        assert_eq!((answer.status, answer.field("x-member")), (200, Some("alive")));
    }
    // A POST that may have been executed is not retried; one that cannot have been is.
    let answers: Vec<_> = (0..12).map(|_| ask("POST")).collect();
    assert!(answers.iter().any(|answer| answer.status == 200));
    assert!(answers.iter().any(|answer| answer.reason() == Some("reset")));
    assert!(answers.iter().all(|answer| answer.reason() != Some("connect_failed")));
}
