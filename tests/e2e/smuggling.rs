//! Requests that could be read in two ways are refused before a byte of them reaches a member.
//!
//! The member is a bare socket that records every byte it gets. Behind each bad request stands a good one on
//! the same connection, which must not get through either.

use std::sync::{Arc, Mutex};

use crate::stage::{Balancer, Script, Wire, listening, until, web};

/// Starts a member that answers; returns it and all bytes that it ever got.
fn witness() -> (Script, Arc<Mutex<String>>) {
    let seen = Arc::new(Mutex::new(String::new()));
    let book = Arc::clone(&seen);
    let member = Script::start(move |wire| {
        while let Some(head) = wire.head()? {
            book.lock().unwrap().push_str(&head);
            let body = wire.body(&head, false)?;
            book.lock().unwrap().push_str(&String::from_utf8_lossy(&body));
            wire.try_send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")?;
        }
        std::io::Result::Ok(())
    });
    (member, seen)
}

const GOOD: &str = "GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n";

/// Heads and first bytes of bodies that two readers may read differently.
const BAD: &[&str] = &[
    // Two lengths.
    "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 6\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nG",
    "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nContent-Length: 6\r\n\r\n0\r\n\r\nG",
    "POST / HTTP/1.1\r\nHost: x\r\ntransfer-encoding: CHUNKED\r\ncontent-length: 0\r\n\r\n0\r\n\r\n",
    "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\nhello",
    "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
    "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5, 5\r\n\r\nhello",
    // An invalid length.
    "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: +5\r\n\r\nhello",
    "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\nhello",
    "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 0x5\r\n\r\nhello",
    "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5 \u{a0}\r\n\r\nhello",
    "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: five\r\n\r\nhello",
    "POST / HTTP/1.1\r\nHost: x\r\nContent-Length:\r\n\r\nhello",
    "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 18446744073709551621\r\n\r\nhello",
    // Codings that do not mark where the body ends.
    "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n",
    "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: \"chunked\"\r\n\r\n0\r\n\r\n",
    "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked;x\r\n\r\n0\r\n\r\n",
    "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding:\u{b}chunked\r\n\r\n0\r\n\r\n",
    "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: \
     identity\r\n\r\n0\r\n\r\n",
    "POST / HTTP/1.0\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    // Lines that other readers end elsewhere.
    "GET / HTTP/1.1\nHost: x\n\n",
    "GET / HTTP/1.1\r\nHost: x\nX-A: b\r\n\r\n",
    "GET / HTTP/1.1\r\nHost: x\r\nX-A: b\n\r\n\r\n",
    "GET / HTTP/1.1\r\nHost: x\r\nX-A: b\rX-B: c\r\n\r\n",
    "GET / HTTP/1.1\r\nHost: x\r\n\n",
    "POST / HTTP/1.1\r\nHost: x\r\nX-A: b\nContent-Length: 5\r\n\r\nhello",
    // Names and values that others read differently.
    "POST / HTTP/1.1\r\nHost: x\r\nContent-Length : 5\r\n\r\nhello",
    "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
    "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding\t: chunked\r\n\r\n0\r\n\r\n",
    "POST / HTTP/1.1\r\nHost: x\r\n Content-Length: 5\r\n\r\nhello",
    "GET / HTTP/1.1\r\nHost: x\r\nX-A: b\r\n folded: c\r\n\r\n",
    "GET / HTTP/1.1\r\nHost: x\r\nX-A: b\r\n\tfolded\r\n\r\n",
    "GET / HTTP/1.1\r\nHost: x\r\nX-A: b\0c\r\n\r\n",
    "GET / HTTP/1.1\r\nHost: x\r\n: nameless\r\n\r\n",
    "GET / HTTP/1.1\r\nHost: x\r\nno colon\r\n\r\n",
    // The host is missing or ambiguous.
    "GET / HTTP/1.1\r\n\r\n",
    "GET / HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n",
    "GET / HTTP/1.1\r\nHost: x, y\r\n\r\n",
    "GET / HTTP/1.1\r\nHost: x/y\r\n\r\n",
    "GET / HTTP/1.1\r\nHost: x:y\r\n\r\n",
    "GET / HTTP/1.1\r\nHost: [::1\r\n\r\n",
    "GET http:///path HTTP/1.1\r\nHost: x\r\n\r\n",
    "GET http://:80/path HTTP/1.1\r\nHost: x\r\n\r\n",
    "GET http://x:y/path HTTP/1.1\r\nHost: x\r\n\r\n",
    "GET /path#fragment HTTP/1.1\r\nHost: x\r\n\r\n",
    // Request lines.
    "GET  / HTTP/1.1\r\nHost: x\r\n\r\n",
    "GET / HTTP/1.1 \r\nHost: x\r\n\r\n",
    "GET /a b HTTP/1.1\r\nHost: x\r\n\r\n",
    "GET /\r\nHost: x\r\n\r\n",
    "GET / \r\n\r\n",
    " GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "G\u{e9}T / HTTP/1.1\r\nHost: x\r\n\r\n",
    "GET nonsense HTTP/1.1\r\nHost: x\r\n\r\n",
    "GET / http/1.1\r\nHost: x\r\n\r\n",
    "\u{16}\u{3}\u{1}\u{2}\0\u{1}\0\u{1}\u{fc}\u{3}\u{3} a hello of TLS",
    // Chunks.
    "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\ng\r\nhello\r\n0\r\n\r\n",
    "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0x5\r\nhello\r\n0\r\n\r\n",
    "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\nhello\r\n0\r\n\r\n",
    "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n\r\nhello\r\n0\r\n\r\n",
    "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n 5\r\nhello\r\n0\r\n\r\n",
    "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5 \r\nhello\r\n0\r\n\r\n",
    "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\nhello\r\n0\r\n\r\n",
    "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhelloo\r\n0\r\n\r\n",
    "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\n0\r\n\r\n",
    "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n10000000000000005\r\nhello\r\n0\r\n\r\n",
    "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5;a\nb\r\nhello\r\n0\r\n\r\n",
    "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nX : y\r\n\r\n",
    "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nX: y\n\r\n",
];

#[test]
fn what_can_be_read_in_two_ways_is_refused_before_a_byte_goes_on() {
    let (member, seen) = witness();
    let balancer = Balancer::start(&web(&[member.address], ""));
    for bad in BAD {
        let mut client = Wire::connect(balancer.address());
        client.send(format!("{bad}{GOOD}"));
        let answer = client.answer().unwrap_or_else(|error| panic!("{bad:?}: {error}"));
        assert_eq!((answer.status, answer.reason()), (400, Some("bad_request")), "{bad:?}");
        assert_eq!(answer.field("connection"), Some("close"), "{bad:?}");
        client.closed();
        assert_eq!(member.accepted(), 0, "{bad:?} reached the member: {:?}", seen.lock().unwrap());
    }
    assert_eq!(balancer.rejected("bad_request"), BAD.len() as u64);
    let answer = crate::stage::get(balancer.address(), "/");
    assert_eq!(answer.status, 200, "and it goes on");
}

#[test]
fn how_it_is_cut_into_packets_changes_nothing() {
    let (member, seen) = witness();
    let balancer = Balancer::start(&web(&[member.address], ""));
    // A bad head is cut at every byte.
    let bad = "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n";
    for cut in 1..bad.len() {
        let mut client = Wire::connect(balancer.address());
        client.send(&bad[..cut]);
        std::thread::yield_now();
        client.send(&bad[cut..]);
        assert_eq!(client.answer().unwrap().status, 400, "cut at {cut}");
    }
    assert_eq!(member.accepted(), 0, "{:?}", seen.lock().unwrap());
}

#[test]
fn other_refusals_have_other_statuses_and_reach_nobody_either() {
    let (member, seen) = witness();
    let balancer = Balancer::start(&listening("max_header_bytes = 8192", &[member.address], ""));
    let long = format!("GET /{} HTTP/1.1\r\nHost: x\r\n\r\n", "a".repeat(9000));
    let wide = format!("GET / HTTP/1.1\r\nHost: x\r\nCookie: {}\r\n\r\n", "a".repeat(9000));
    let many = format!("GET / HTTP/1.1\r\nHost: x\r\n{}\r\n", "a: b\r\n".repeat(500));
    let endless = format!("GET / HTTP/1.1\r\nHost: x\r\nX-A: {}", "a".repeat(20_000));
    let gzip = "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n".to_owned();
    let tunnel = "CONNECT x:443 HTTP/1.1\r\nHost: x:443\r\n\r\n".to_owned();
    let hopes = "GET / HTTP/1.1\r\nHost: x\r\nExpect: a miracle\r\n\r\n".to_owned();
    let two = "GET / HTTP/2.0\r\nHost: x\r\n\r\n".to_owned();
    // HTTP/2 is spoken at the begin of a connection, and nowhere else.
    let late =
        "GET / HTTP/1.1\r\nHost: x\r\nContent-Length: x\r\n\r\nPRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_owned();
    for (bad, status, reason) in [
        (long, 414, "target_too_long"),
        (hopes, 417, "expectation"),
        (wide, 431, "head_too_large"),
        (many, 431, "head_too_large"),
        (endless, 431, "head_too_large"),
        (gzip, 501, "not_implemented"),
        (tunnel, 501, "not_implemented"),
        (two, 505, "version"),
        (late, 400, "bad_request"),
    ] {
        let mut client = Wire::connect(balancer.address());
        let _ = client.try_send(format!("{bad}{GOOD}"));
        let answer = client.answer().unwrap();
        assert_eq!((answer.status, answer.reason()), (status, Some(reason)), "{:.60}", bad);
        client.closed();
        assert_eq!(member.accepted(), 0, "{bad:.60} reached the member: {:?}", seen.lock().unwrap());
    }
}

#[test]
fn http_2_begins_with_a_connection_or_not_at_all() {
    use std::io::{Read as _, Write as _};
    const PREFACE: &str = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    let (member, seen) = witness();
    let balancer = Balancer::start(&web(&[member.address], ""));
    // The bytes that follow are neither a frame nor a request.
    let mut client = std::net::TcpStream::connect(balancer.address()).unwrap();
    client.write_all(format!("{PREFACE}{GOOD}").as_bytes()).unwrap();
    let mut heard = Vec::new();
    // The connection may be ended by a reset.
    let _ = client.read_to_end(&mut heard);
    assert_eq!(heard.get(3), Some(&4), "settings, and then goodbye: {heard:?}");
    assert_eq!(member.accepted(), 0, "{:?}", seen.lock().unwrap());
    // After a request the preface is an invalid request of HTTP/1.1.
    let mut client = Wire::connect(balancer.address());
    client.send(format!("GET /first HTTP/1.1\r\nHost: x\r\n\r\n{PREFACE}{GOOD}"));
    assert_eq!(client.answer().unwrap().status, 200);
    let answer = client.answer().unwrap();
    assert_eq!((answer.status, answer.reason()), (505, Some("version")));
    client.closed();
}

#[test]
fn another_protocol_is_hung_up_on_and_after_a_request_refused() {
    const OTHERS: [&str; 2] = ["OPTIONS * RTSP/1.0\r\nCSeq: 1\r\n\r\n", "INVALID CONNECTION PREFACE\r\n\r\n"];
    let (member, seen) = witness();
    let balancer = Balancer::start(&web(&[member.address], ""));
    for other in OTHERS {
        let mut client = Wire::connect(balancer.address());
        client.send(format!("{other}{GOOD}"));
        client.closed();
        assert_eq!(member.accepted(), 0, "{other}: {:?}", seen.lock().unwrap());
    }
    for other in OTHERS {
        let mut client = Wire::connect(balancer.address());
        client.send(format!("GET /first HTTP/1.1\r\nHost: x\r\n\r\n{other}{GOOD}"));
        assert_eq!(client.answer().unwrap().status, 200);
        let answer = client.answer().unwrap();
        assert_eq!((answer.status, answer.reason()), (400, Some("bad_request")));
        client.closed();
    }
}

#[test]
fn a_good_request_before_a_bad_one_is_answered_and_nothing_after_it() {
    let (member, seen) = witness();
    let balancer = Balancer::start(&web(&[member.address], ""));
    let mut client = Wire::connect(balancer.address());
    client.send(format!("GET /first HTTP/1.1\r\nHost: x\r\n\r\nGET / HTTP/1.1\nHost: x\n\n{GOOD}"));
    assert_eq!(client.answer().unwrap().status, 200);
    assert_eq!(client.answer().unwrap().status, 400);
    client.closed();
    let seen = seen.lock().unwrap();
    assert!(seen.starts_with("GET /first ") && seen.matches("GET ").count() == 1, "{seen}");
}

#[test]
fn chunks_that_go_wrong_later_end_the_request_at_the_member_too() {
    let (started, cut) = (Arc::new(Mutex::new(0)), Arc::new(Mutex::new(0)));
    let (starts, cuts) = (Arc::clone(&started), Arc::clone(&cut));
    let member = Script::start(move |wire| {
        let head = wire.head()?.unwrap_or_default();
        *starts.lock().unwrap() += 1;
        let body = wire.body(&head, false);
        *cuts.lock().unwrap() += i32::from(body.is_err());
        body.map(drop)
    });
    let balancer = Balancer::start(&web(&[member.address], ""));
    let long = "a".repeat(20_000);
    let (extension, trailer) = (format!("5;{long}\r\nhello\r\n"), format!("0\r\nX-A: {long}\r\n\r\n"));
    for bad in [
        "zz\r\n",
        "5\r\nhelloo\r\n",
        "5\nhello\r\n",
        "ffffffffffffffffff\r\n",
        "0\r\n bad\r\n\r\n",
        &extension,
        &trailer,
    ] {
        let before = *started.lock().unwrap();
        let mut client = Wire::connect(balancer.address());
        client.send("POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n");
        until("the beginning at the member", || *started.lock().unwrap() > before);
        client.send(format!("{bad}{GOOD}"));
        let answer = client.answer().unwrap();
        assert_eq!((answer.status, answer.reason()), (400, Some("bad_request")), "{bad:?}");
        client.closed();
        until("the end at the member", || *cut.lock().unwrap() == before + 1);
    }
    assert_eq!(balancer.member(member.address)["failures"], 0, "no fault of the member's");
}
