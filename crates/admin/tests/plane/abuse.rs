//! Clients that mean no good, or are merely broken.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::time::{Duration, Instant};

use crate::script::{PATIENCE, open, tcp, until};

#[test]
fn a_connection_that_was_accepted_is_answered_although_the_process_ends() {
    // Where the machine stands still for longer than the process waits, it is tried again.
    for _ in 0..20 {
        let open = open();
        let control = open.control.clone();
        let mut waiting = tcp(open.addr());
        // Connections are accepted in order: the one before has been.
        assert_eq!(open.show("/healthz").status, 200);
        let ended_at = Instant::now();
        let ending = std::thread::spawn(move || drop(open));
        // The file goes when it accepts no more.
        while control.exists() {
            std::thread::sleep(Duration::from_millis(1)); // sleeps: polls
        }
        waiting.write_all(b"GET /healthz HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        // A reset is no answer.
        let _ = waiting.read_to_string(&mut answer);
        ending.join().unwrap();
        // bound: only attempts within the process's own wait count
        if ended_at.elapsed() < Duration::from_millis(900) {
            return assert!(answer.starts_with("HTTP/1.1 "), "{answer:?}");
        }
    }
    panic!("each end took longer than the process waits");
}

#[test]
fn garbage_is_survived() {
    let open = open();
    let mut noise = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = move || {
        noise ^= noise << 13;
        noise ^= noise >> 7;
        noise ^= noise << 17;
        noise as u8
    };
    let mut cases: Vec<Vec<u8>> = vec![
        b"\0\0\0\0".to_vec(),
        b"GET / HTTP/9.9\r\n\r\n".to_vec(),
        b"GET /%zz?%00 HTTP/1.1\r\nHost: \xff\r\n\r\n".to_vec(),
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(),
        b"POST /v1/stop HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n".to_vec(),
        [b"GET / HTTP/1.1\r\n".to_vec(), b"a: b\r\n".repeat(5000), b"\r\n".to_vec()].concat(),
        [b"GET /".to_vec(), vec![b'a'; 200_000], b" HTTP/1.1\r\n\r\n".to_vec()].concat(),
        b"GET http://[::1 HTTP/1.1\r\n\r\n".to_vec(),
        b"GET /events?since=99999999999999999999&&=&follow HTTP/1.1\r\nLast-Event-ID: \x80\r\n\r\n".to_vec(),
    ];
    cases.extend((0..50).map(|at| (0..at * 40).map(|_| random()).collect()));
    for case in cases {
        let mut stream = tcp(open.addr());
        // It may hang up in the middle.
        let _ = stream.write_all(&case);
        let _ = stream.shutdown(Shutdown::Write);
        let _ = stream.read_to_end(&mut Vec::new());
    }
    assert_eq!(open.show("/healthz").status, 200);
    assert!(open.script.calls.lock().unwrap().is_empty());
}

#[test]
fn a_head_that_does_not_come_ends_the_connection() {
    let open = open();
    let begin = Instant::now();
    let (mut silent, mut slow, mut idle) = (tcp(open.addr()), tcp(open.addr()), tcp(open.addr()));
    slow.write_all(b"GET / HTTP/1.1\r\nHost:").unwrap();
    idle.write_all(b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    for stream in [&mut silent, &mut slow, &mut idle] {
        stream.read_to_end(&mut Vec::new()).unwrap();
    }
    let took = begin.elapsed();
    assert!(took >= Duration::from_secs(9), "{took:?}");
}

#[test]
fn a_crowd_is_turned_away_and_the_operator_is_not() {
    let open = open();
    let mut streams: Vec<_> = (0..32).map(|_| open.follow("/events", "")).collect();
    for stream in &mut streams {
        assert_eq!(until(stream, "retry: "), "2000");
    }
    let refused = open.show("/events");
    assert_eq!(refused.status, 503);
    assert!(refused.error().contains("event streams"), "{}", refused.error());
    assert_eq!(open.show("/metrics").status, 200, "a scrape finds a slot");

    // More that say nothing, or half a head, or half a body, than there are places for.
    let beginnings = [
        "",
        "GET /metrics HTTP/1.1\r\nHost:",
        "POST /dashboard/sign-out HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n",
    ];
    let crowd: Vec<_> = (0..100)
        .map(|at| {
            let mut one = tcp(open.addr());
            one.write_all(beginnings[at % beginnings.len()].as_bytes()).unwrap();
            one
        })
        .collect();
    for _ in 0..5 {
        assert_eq!(open.show("/metrics").status, 200, "a scrape takes the place of one that is silent");
    }
    assert_eq!(open.act("GET", "/healthz", "").status, 200, "the control socket has slots of its own");
    open.script.tell(1);
    for stream in &mut streams {
        assert_eq!(until(stream, "id: "), "1", "who follows events stays");
    }

    drop(crowd);
    drop(streams);
    let begin = Instant::now();
    while open.show("/events?follow=0").status != 200 {
        // bound: a safety net
        assert!(begin.elapsed() < PATIENCE, "slots do not come back");
    }
}
