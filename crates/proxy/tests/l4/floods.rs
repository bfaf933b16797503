//! Attacks on HTTP/2, by name: each ends with ENHANCE_YOUR_CALM or a rejection, and with bounded memory.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Instant;

use plimsoll_proxy::{ClientTimeouts, Engine, ListenerSettings, Protocol};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::frames::*;
use crate::rig::{MILLI, SECOND, group, home, listener, start, status, until, within};

/// The requests that a member received, and the bytes of bodies that it sent.
#[derive(Default)]
struct Seen {
    asked: AtomicUsize,
    sent: AtomicUsize,
}

/// Starts a member that answers at once, or with `slow` never.
async fn member(slow: bool, body: usize) -> (SocketAddr, Arc<Seen>) {
    let listener = TcpListener::bind(home()).await.unwrap();
    let address = listener.local_addr().unwrap();
    let seen = Arc::<Seen>::default();
    let count = Arc::clone(&seen);
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let count = Arc::clone(&count);
            tokio::spawn(async move {
                let mut buffer = [0; 4096];
                while let Ok(1..) = stream.read(&mut buffer).await {
                    count.asked.fetch_add(1, Relaxed);
                    if slow {
                        continue;
                    }
                    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {body}\r\n\r\n");
                    stream.write_all(head.as_bytes()).await.unwrap();
                    for _ in 0..body >> 16 {
                        if stream.write_all(&[b'x'; 1 << 16]).await.is_err() {
                            return;
                        }
                        count.sent.fetch_add(1 << 16, Relaxed);
                    }
                }
            });
        }
    });
    (address, seen)
}

async fn attack(slow: bool) -> (Engine, TcpStream) {
    let (member, _) = member(slow, 0).await;
    let (engine, address) = start(listener(Protocol::Http), group(&[member]));
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.set_nodelay(true).unwrap();
    stream.write_all(PREFACE).await.unwrap();
    (engine, stream)
}

/// Sends pieces until the other side ends the connection, and returns its error code.
async fn flood(stream: TcpStream, mut piece: impl FnMut(u32) -> Vec<u8> + Send + 'static) -> u32 {
    let (mut input, mut output) = stream.into_split();
    let sending = tokio::spawn(async move {
        for number in 0..1_000_000 {
            if output.write_all(&piece(number)).await.is_err() {
                return;
            }
        }
        panic!("a million were taken");
    });
    let mut code = None;
    while let Some((kind, _, _, payload)) = next(&mut input).await {
        if kind == GOAWAY {
            code = Some(u32::from_be_bytes(payload[4..8].try_into().unwrap()));
        }
    }
    sending.await.unwrap();
    code.expect("it says why")
}

/// Checks that other clients are served as usual.
async fn goes_on(engine: &Engine) {
    let mut stream = TcpStream::connect(engine.addresses()[0]).await.unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n").await.unwrap();
    let mut answer = [0; 12];
    stream.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"HTTP/1.1 200");
}

#[tokio::test]
async fn rapid_reset() {
    within(async {
        // CVE-2023-44487: requests that are reset at once, both in one piece, and each after it was received.
        let (engine, stream) = attack(false).await;
        let code = flood(stream, |number| {
            let id = 2 * number + 1;
            let mut both = frame(HEADERS, END_HEADERS | END_STREAM, id, HEAD);
            both.extend(frame(RST_STREAM, 0, id, &8_u32.to_be_bytes()));
            both
        })
        .await;
        assert_eq!(code, CALM);
        goes_on(&engine).await;
    })
    .await;
}

#[tokio::test]
async fn rapid_reset_of_requests_that_a_member_has() {
    within(async {
        let (engine, stream) = attack(true).await;
        let (mut input, mut output) = stream.into_split();
        let mut most = 0;
        let (mut resets, mut aged) = (0, 0);
        let begun = Instant::now();
        let mut opened = begun;
        'all: for number in 0..2000 {
            let id = 2 * number + 1;
            let before = std::mem::replace(&mut opened, Instant::now());
            if output.write_all(&frame(HEADERS, END_HEADERS | END_STREAM, id, HEAD)).await.is_err() {
                break;
            }
            // The answer shows that it was received.
            let ping = frame(PING, 0, 0, &u64::from(number).to_be_bytes());
            if output.write_all(&ping).await.is_err() {
                break;
            }
            loop {
                match next(&mut input).await {
                    Some((PING, 1, ..)) => break,
                    Some((GOAWAY, _, _, payload)) => {
                        assert_eq!(payload[7], 11);
                        break 'all;
                    }
                    Some(_) => {}
                    None => break 'all,
                }
            }
            most = most.max(status(&engine).members[0].in_flight);
            // The reset of the previous stream was received, too: one that was open for a tenth of a second
            // is free.
            aged += u32::from(before.elapsed() >= 90 * MILLI);
            if output.write_all(&frame(RST_STREAM, 0, id, &8_u32.to_be_bytes())).await.is_err() {
                break;
            }
            resets += 1;
        }
        // bound: those that are free, 200, and 20 for each elapsed second
        let free = f64::from(aged) + 200.0 + 20.0 * begun.elapsed().as_secs_f64();
        assert!(
            (100.0..=free + 1.0).contains(&f64::from(resets)),
            "{resets} resets were taken, {free} are free"
        );
        assert!(most <= 200, "{most} at the member at once");
        until("the member is told", || status(&engine).members[0].in_flight == 0).await;
    })
    .await;
}

#[tokio::test]
async fn made_you_reset() {
    within(async {
        // CVE-2025-8671: requests that the balancer has to reset, because they break a rule once they are in
        // flight.
        let (engine, stream) = attack(true).await;
        let code = flood(stream, |number| {
            let id = 2 * number + 1;
            let mut both = frame(HEADERS, END_HEADERS | END_STREAM, id, HEAD);
            both.extend(frame(WINDOW_UPDATE, 0, id, &0x7fff_ffff_u32.to_be_bytes()));
            both
        })
        .await;
        assert_eq!(code, CALM);
        until("the member is told", || status(&engine).members[0].in_flight == 0).await;
    })
    .await;
}

#[tokio::test]
async fn continuation_flood() {
    within(async {
        // CVE-2024-27316 and similar ones: a head without an end.
        let (engine, stream) = attack(false).await;
        let code = flood(stream, |number| match number {
            0 => frame(HEADERS, 0, 1, HEAD),
            // A literal without an index: name and value of one letter.
            _ => frame(CONTINUATION, 0, 1, &[0, 1, b'x', 1, b'y'].repeat(100)),
        })
        .await;
        assert_eq!(code, CALM);
        goes_on(&engine).await;
    })
    .await;
}

#[tokio::test]
async fn ping_flood() {
    within(async {
        // CVE-2019-9512
        let (engine, stream) = attack(false).await;
        assert_eq!(flood(stream, |_| frame(PING, 0, 0, b"whatever")).await, CALM);
        goes_on(&engine).await;
    })
    .await;
}

#[tokio::test]
async fn settings_flood() {
    within(async {
        // CVE-2019-9515
        let (engine, stream) = attack(false).await;
        assert_eq!(flood(stream, |_| frame(SETTINGS, 0, 0, &[])).await, CALM);
        goes_on(&engine).await;
    })
    .await;
}

#[tokio::test]
async fn empty_frames_flood() {
    within(async {
        // CVE-2019-9518
        let (engine, stream) = attack(false).await;
        let code = flood(stream, |number| match number {
            0 => frame(HEADERS, END_HEADERS, 1, &[&[0x83], &HEAD[1..]].concat()),
            _ => frame(DATA, 0, 1, &[]),
        })
        .await;
        assert_eq!(code, CALM);
        goes_on(&engine).await;
    })
    .await;
}

#[tokio::test]
async fn window_update_flood() {
    within(async {
        let (engine, stream) = attack(false).await;
        assert_eq!(flood(stream, |_| frame(WINDOW_UPDATE, 0, 0, &1_u32.to_be_bytes())).await, CALM);
        goes_on(&engine).await;
    })
    .await;
}

#[tokio::test]
async fn oversized_header_lists() {
    within(async {
        // 16384 is the maximum.
        let (engine, stream) = attack(false).await;
        let (mut input, mut output) = stream.into_split();
        let field = [&[0, 1, b'x', 0x7f, 0xa1, 0x1e][..], &[b'y'; 4000]].concat();
        let first = [HEAD, &field[..], &field, &field].concat();
        output.write_all(&frame(HEADERS, END_STREAM, 1, &first)).await.unwrap();
        let rest = [&field[..], &field].concat();
        output.write_all(&frame(CONTINUATION, END_HEADERS, 1, &rest)).await.unwrap();
        loop {
            match next(&mut input).await.expect("an answer") {
                // A literal status: 431 is not in the static table.
                (HEADERS, _, 1, payload) => {
                    assert_ne!(payload[0] & 0x80, 0x80, "{payload:?}");
                    break;
                }
                (kind, ..) => assert_ne!(kind, GOAWAY),
            }
        }
        // The connection continues.
        output.write_all(&frame(HEADERS, END_HEADERS | END_STREAM, 3, HEAD)).await.unwrap();
        loop {
            match next(&mut input).await.expect("an answer") {
                // 200, by the static table.
                (HEADERS, _, 3, payload) => break assert_eq!(payload[0], 0x88),
                (kind, ..) => assert_ne!(kind, GOAWAY),
            }
        }
        goes_on(&engine).await;
    })
    .await;
}

#[tokio::test]
async fn header_bomb() {
    within(async {
        // A field of 4000 bytes is added to the table once, and then named by one byte each: 8 MB in one
        // frame.
        let (engine, stream) = attack(false).await;
        let (mut input, mut output) = stream.into_split();
        let field = [&[0x40, 1, b'x', 0x7f, 0xa1, 0x1e][..], &[b'y'; 4000]].concat();
        let block = [HEAD, &field, &[0xbe; 2000]].concat();
        output.write_all(&frame(HEADERS, END_HEADERS | END_STREAM, 1, &block)).await.unwrap();
        let code = loop {
            match next(&mut input).await.expect("a goodbye") {
                (GOAWAY, _, _, payload) => break u32::from_be_bytes(payload[4..8].try_into().unwrap()),
                (kind, ..) => assert_ne!(kind, HEADERS),
            }
        };
        assert_eq!(code, CALM);
        goes_on(&engine).await;
    })
    .await;
}

/// In a process of its own: the memory of other tests is not counted.
#[test]
fn window_update_stall() {
    const ALONE: &str = "PLIMSOLL_L4_ALONE";
    if std::env::var_os(ALONE).is_some() {
        return tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(stall());
    }
    let mut command = std::process::Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--"]).arg(std::env::current_exe().unwrap());
    command.args(["floods::window_update_stall", "--exact", "--nocapture"]).env(ALONE, "");
    let ran = command.output().unwrap();
    let said = String::from_utf8_lossy(&ran.stdout);
    assert!(
        ran.status.success() && said.contains("1 passed"),
        "{said}{}",
        String::from_utf8_lossy(&ran.stderr)
    );
}

async fn stall() {
    const BODY: usize = 16 << 20;
    within(async {
        // Windows that never open, on the maximum number of streams: each has requested much, and reads
        // nothing.
        let (member, seen) = member(false, BODY).await;
        let mut listener: ListenerSettings = listener(Protocol::Http);
        listener.timeouts = ClientTimeouts { body: 2 * SECOND, ..listener.timeouts };
        let (engine, address) = start(listener, group(&[member]));
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
        // Initial windows of zero.
        stream.write_all(&frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 0])).await.unwrap();
        let (mut input, mut output) = stream.into_split();
        for number in 0..100 {
            let head = frame(HEADERS, END_HEADERS | END_STREAM, 2 * number + 1, HEAD);
            output.write_all(&head).await.unwrap();
        }
        until("the member has them all", || seen.asked.load(Relaxed) == 100).await;
        let resident = || {
            let text = std::fs::read_to_string("/proc/self/status").unwrap();
            let line = text.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
            line.split_ascii_whitespace().nth(1).unwrap().parse::<usize>().unwrap() >> 10
        };
        // Clients that read nothing for two seconds lose their streams.
        until("they are given up", || status(&engine).members[0].in_flight == 0).await;
        assert!(resident() < 400, "{} MiB", resident());
        let sent = seen.sent.load(Relaxed);
        assert!(sent < 100 * (BODY / 2), "it was held back: {sent}");
        let mut resets = 0;
        while resets < 100 {
            match next(&mut input).await.expect("resets") {
                (RST_STREAM, ..) => resets += 1,
                (DATA, _, _, payload) => assert!(payload.is_empty(), "there was no window"),
                _ => {}
            }
        }
        goes_on(&engine).await;
    })
    .await;
}
