//! Connections over TLS: those that outlive what they were let in for, and those that never say who they are.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use crate::script::PATIENCE;
use crate::stage::{Stage, certificate};

#[test]
fn a_connection_does_not_outlive_its_certificate() {
    // Where one is over before it has been of any use the next one is for longer.
    let used = [4, 16, 60].into_iter().any(used_to_its_end);
    assert!(used, "no certificate was of use");
}

/// False if it ended before anything was answered.
fn used_to_its_end(seconds: i64) -> bool {
    let stage = Stage::open();
    let begun = Instant::now();
    let identity = stage.ours.issue_for(&["spiffe://example.org/ops/a"], time::Duration::seconds(seconds));
    let client = stage.ours.client(Some(&identity));
    let (mut stream, mut follower) = (stage.connect(&client), stage.connect(&client));
    // It ends with a whole second.
    let lives = Duration::from_secs(seconds as u64 - 1);
    let followed = write!(follower, "GET /events HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").is_ok();
    let mut ask = || {
        write!(stream, "GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n").ok()?;
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte).ok()?;
            head.push(byte[0]);
        }
        let status = String::from_utf8_lossy(&head[9..12]).into_owned();
        // What is refused says why.
        stream.read_exact(&mut [0; 3]).ok()?;
        Some(status)
    };
    let first = ask();
    if !followed || first.as_deref() != Some("200") {
        assert!(begun.elapsed() >= lives, "{first:?} before its time");
        return false;
    }
    while ask().as_deref() == Some("200") {
        // bound: a safety net
        assert!(begun.elapsed() < 2 * PATIENCE, "it goes on for ever");
        // sleeps: polls
        std::thread::sleep(Duration::from_millis(100));
    }
    assert!(begun.elapsed() >= lives, "it ended before its time");
    // A stream that nothing happens on ends when something does.
    stage.script.tell(1);
    let mut text = Vec::new();
    let _ = follower.read_to_end(&mut text);
    let text = String::from_utf8_lossy(&text);
    assert!(text.contains("retry: ") && !text.contains("id: 1\n"), "{text}");
    let why = stage.audited().iter().any(|line| line["why"].as_str().unwrap_or("").contains("has expired"));
    assert!(why, "{:?}", stage.audited());
    true
}

/// Returns whether the peer has left the connection open.
fn is_open(stream: &TcpStream) -> bool {
    stream.set_nonblocking(true).unwrap();
    stream.peek(&mut [0]).is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
}

#[test]
fn the_silent_keep_nobody_out() {
    let stage = Stage::open();
    let ops = || certificate(stage.ours.issue(&["spiffe://example.org/ops/a"], 1));
    let mut crowd: Vec<TcpStream>;
    loop {
        // More than there are places, and each is waited for for seconds.
        crowd = (0..300).map(|_| stage.silent()).collect();
        for _ in 0..5 {
            assert_eq!(stage.ask(&ops(), "GET", "/healthz", "").unwrap().status, 200);
        }
        // While some of them are waited for; on a machine that stands still it is to be seen again.
        if crowd.iter().any(is_open) {
            break;
        }
    }
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
