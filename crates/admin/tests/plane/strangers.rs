//! Connections over TLS: those that outlive what they were let in for, and those that never say who they are.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use crate::stage::{Stage, certificate};

#[test]
fn a_connection_does_not_outlive_its_certificate() {
    let stage = Stage::open();
    let identity = stage.ours.issue_for(&["spiffe://example.org/ops/a"], time::Duration::seconds(4));
    let client = stage.ours.client(Some(&identity));
    let begun = Instant::now();
    let (mut stream, mut follower) = (stage.connect(&client), stage.connect(&client));
    write!(follower, "GET /events HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").unwrap();
    let mut ask = || {
        write!(stream, "GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte).unwrap();
            head.push(byte[0]);
        }
        stream.read_exact(&mut [0; 3]).unwrap();
        String::from_utf8_lossy(&head[9..12]).into_owned()
    };
    assert_eq!(ask(), "200");
    while ask() == "200" {
        assert!(begun.elapsed() < Duration::from_secs(20), "it goes on for ever");
        std::thread::sleep(Duration::from_millis(100));
    }
    assert!(begun.elapsed() > Duration::from_secs(3), "it ended before its time");
    // A stream that nothing happens on ends when something does.
    stage.script.tell(1);
    let mut text = Vec::new();
    let _ = follower.read_to_end(&mut text);
    let text = String::from_utf8_lossy(&text);
    assert!(text.contains("retry: ") && !text.contains("id: 1\n"), "{text}");
    let why = stage.audited().iter().any(|line| line["why"].as_str().unwrap_or("").contains("has expired"));
    assert!(why, "{:?}", stage.audited());
}

#[test]
fn the_silent_keep_nobody_out() {
    let stage = Stage::open();
    let ops = || certificate(stage.ours.issue(&["spiffe://example.org/ops/a"], 1));
    // More than there are places, and each would be waited for for seconds.
    let mut crowd: Vec<TcpStream> = (0..300).map(|_| stage.silent()).collect();
    let begun = Instant::now();
    for _ in 0..5 {
        assert_eq!(stage.ask(&ops(), "GET", "/healthz", "").unwrap().status, 200);
    }
    assert!(begun.elapsed() < Duration::from_secs(4), "{:?}", begun.elapsed());
    // Those who shake hands without a certificate and then say nothing are no better.
    let client = stage.ours.client(None);
    let mut strangers: Vec<_> = (0..100).map(|_| stage.connect(&client)).collect();
    for stranger in &mut strangers {
        let _ = stranger.conn.complete_io(&mut stranger.sock);
    }
    assert_eq!(stage.ask(&ops(), "GET", "/healthz", "").unwrap().status, 200);
    // One that has proved who it is stays, whoever comes.
    let identity = ops().identity;
    let mut known = stage.connect(&stage.ours.client(identity.as_ref()));
    let mut ask = || {
        write!(known, "GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
        let mut text = Vec::new();
        while !text.ends_with(b"ok\n") {
            let mut byte = [0];
            known.read_exact(&mut byte).unwrap();
            text.push(byte[0]);
        }
    };
    ask();
    crowd.extend((0..300).map(|_| stage.silent()));
    assert_eq!(stage.ask(&ops(), "GET", "/healthz", "").unwrap().status, 200);
    ask();
}
