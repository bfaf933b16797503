//! Bodies stream: memory stays bounded with slow peers, and a broken connection is noticed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::thread;
use std::time::Duration;

use crate::stage::{Balancer, Member, Script, Wire, curl, get, noise, until, web};

const MIB: u64 = 1 << 20;
/// A length far above all buffers of the sockets on the way.
const LONG: u64 = 400 * MIB;
/// The memory that the balancer may take for one slow connection, with room for pages of its binary.
const ROOM: u64 = 16 * MIB;

/// Waits until a count has not grown for a while; returns its value then. A machine that stands still
/// meanwhile only makes it less.
fn settled(count: &AtomicU64) -> u64 {
    let mut last = (0, 0);
    until("all buffers full", || {
        // sleeps: between two looks at what goes on; what is found too soon is less
        thread::sleep(Duration::from_millis(40));
        let now = count.load(SeqCst);
        last = (now, if now == last.0 && now > 0 { last.1 + 1 } else { 0 });
        last.1 == 5
    });
    last.0
}

#[test]
fn a_slow_reader_holds_up_its_member_not_the_memory() {
    let sent = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&sent);
    let member = Script::start(move |wire| {
        wire.head()?;
        wire.try_send(format!("HTTP/1.1 200 OK\r\nContent-Length: {LONG}\r\n\r\n"))?;
        let block = noise(64 * 1024);
        for _ in 0..LONG / block.len() as u64 {
            wire.try_send(&block)?;
            count.fetch_add(block.len() as u64, SeqCst);
        }
        std::io::Result::Ok(())
    });
    let balancer = Balancer::start(&web(&[member.address], ""));
    let before = balancer.process.resident();
    let mut client = Wire::connect(balancer.address());
    client.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
    let ahead = settled(&sent);
    let grown = balancer.process.resident().saturating_sub(before);
    assert!(ahead < LONG / 4, "the member could send {} MiB that nobody read", ahead / MIB);
    assert!(grown < ROOM, "{} MiB of memory for one slow reader", grown / MIB);
    // After that the client gets everything.
    let head = client.head().unwrap().unwrap();
    assert!(head.contains(&format!("Content-Length: {LONG}")), "{head}");
    let block = noise(64 * 1024);
    for _ in 0..LONG / block.len() as u64 {
        assert!(client.exactly(block.len()).unwrap() == block);
    }
    let grown = balancer.process.resident().saturating_sub(before);
    assert!(grown < ROOM, "{} MiB of memory for one long answer", grown / MIB);
}

#[test]
fn a_slow_member_holds_up_its_client_not_the_memory() {
    let go = Arc::new(AtomicU64::new(0));
    let may = Arc::clone(&go);
    let member = Script::start(move |wire| {
        wire.head()?;
        while may.load(SeqCst) == 0 {
            // sleeps: polls
            thread::sleep(Duration::from_millis(10));
        }
        let mut left = LONG as usize;
        while left > 0 {
            let most = left.min(64 * 1024);
            left -= wire.exactly(most)?.len();
        }
        wire.try_send("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
    });
    let balancer = Balancer::start(&web(&[member.address], ""));
    let before = balancer.process.resident();
    let sent = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&sent);
    let address = balancer.address();
    let client = thread::spawn(move || {
        let mut client = Wire::connect(address);
        client.send(format!("PUT / HTTP/1.1\r\nHost: x\r\nContent-Length: {LONG}\r\n\r\n"));
        let block = noise(64 * 1024);
        for _ in 0..LONG / block.len() as u64 {
            client.send(&block);
            count.fetch_add(block.len() as u64, SeqCst);
        }
        client.answer().unwrap().status
    });
    let ahead = settled(&sent);
    let grown = balancer.process.resident().saturating_sub(before);
    assert!(ahead < LONG / 4, "the client could send {} MiB that nobody read", ahead / MIB);
    assert!(grown < ROOM, "{} MiB of memory for one slow member", grown / MIB);
    go.store(1, SeqCst);
    assert_eq!(client.join().unwrap(), 200);
}

#[test]
fn a_client_that_asks_and_asks_and_reads_nothing_takes_little() {
    let member = Member::start(&["--body", "1KiB"]);
    let balancer = Balancer::start(&web(&[member.address], ""));
    assert_eq!(get(balancer.address(), "/").status, 200);
    let before = balancer.process.resident();
    let mut client = Wire::connect(balancer.address());
    // A peer that stands still for so long counts as full, at a lower fill than is possible.
    client.stream().set_write_timeout(Some(Duration::from_millis(500))).unwrap();
    let requests = "GET / HTTP/1.1\r\nHost: x\r\n\r\n".repeat(1000);
    let mut sent = 0;
    while client.try_send(&requests).is_ok() {
        sent += requests.len() as u64;
        assert!(sent < LONG, "{} MiB of requests were taken", sent / MIB);
    }
    let grown = balancer.process.resident().saturating_sub(before);
    assert!(grown < ROOM, "{} MiB of memory", grown / MIB);
    assert_eq!(get(balancer.address(), "/").status, 200, "others are served");
}

#[test]
fn an_answer_that_comes_early_reaches_a_client_that_is_still_sending() {
    let member = Script::start(|wire| {
        wire.head()?;
        wire.try_send(
            "HTTP/1.1 413 Content Too Large\r\nConnection: close\r\nContent-Length: 9\r\n\r\ntoo large",
        )?;
        // The member reads on for a while, as servers do, so that the answer is not lost in a reset.
        wire.finish();
        let _ = wire.exactly(16 << 20);
        std::io::Result::Ok(())
    });
    let balancer = Balancer::start(&web(&[member.address], ""));
    let came = curl(
        &["-H", "Expect:", "-w", " %{http_code}", "--data-binary", "@-", &balancer.url("/")],
        &noise(8 << 20),
    );
    assert_eq!(String::from_utf8_lossy(&came.body), "too large 413", "{}", came.talk);
    assert_eq!(get(balancer.address(), "/").status, 413, "and it goes on");
    until("both are counted", || balancer.member(member.address)["answers"]["4xx"] == 2);
}

#[test]
fn a_member_that_breaks_off_is_not_taken_for_one_that_ended() {
    for head in ["Content-Length: 1000", "Transfer-Encoding: chunked"] {
        let member = Script::start(move |wire| {
            wire.head()?;
            wire.try_send(format!("HTTP/1.1 200 OK\r\n{head}\r\n\r\n5\r\nhello\r\n"))
        });
        let balancer = Balancer::start(&web(&[member.address], ""));
        let came = curl(&[&balancer.url("/")], b"");
        // 18 is a partial file; 56, data could not be received.
        assert!(matches!(came.code, Some(18 | 56)), "{head}: {:?} {}", came.code, came.talk);
        until("it is counted", || balancer.member(member.address)["failures"] == 1);
    }
}

#[test]
fn a_client_that_breaks_off_leaves_nothing_behind() {
    let member = Member::start(&["--body", "64MiB"]);
    let balancer = Balancer::start(&web(&[member.address], ""));
    assert_eq!(get(balancer.address(), "/").body.len(), 64 << 20);
    let files = balancer.process.files();
    for _ in 0..20 {
        let mut client = Wire::connect(balancer.address());
        client.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
        client.exactly(100_000).unwrap();
    }
    // The same with uploads that stop in the middle.
    for _ in 0..20 {
        let mut client = Wire::connect(balancer.address());
        client.send("PUT / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\nsome");
    }
    until("no request in flight", || balancer.member(member.address)["in_flight"] == 0);
    until("all connections closed", || balancer.process.files() <= files + 2);
    assert_eq!(balancer.member(member.address)["failures"], 0, "no fault of the member's");
}
