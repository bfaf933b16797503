//! The open loop against servers that misbehave: the offered rate holds and the latencies are correct.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use plimsoll_bench::pace::{ArrivalProcess, RequestPacer};
use plimsoll_bench::record::FailureKind;
use plimsoll_bench::run::{self, RunLimits};
use plimsoll_bench::target::HttpTarget;

use super::rig::{HOUR, MS, OK, PATIENCE, get, load, nobody, patient, server, taken, until, watched};

/// A server that never answers must not slow down the sender: every request leaves on time, and its time-out
/// counts in the percentiles.
#[test]
fn a_dead_server_is_offered_all_of_the_load() {
    let (address, seen) = watched(OK, |now| now + HOUR);
    let pace = |time| RequestPacer::new(ArrivalProcess::Poisson, 500.0, time, 1);
    let all = pace(1000 * MS).count();
    assert!((400..600).contains(&all), "{all}");
    let limits = RunLimits { timeout: HOUR, ..patient() };
    let run = run::start(get(address), pace(1000 * MS), limits).unwrap();
    until("all have come and wait", || (run.in_flight(), seen.busy.load(Relaxed)) == (all, all));
    let record = run.take_record();
    assert_eq!((record.due, record.ok, record.failures()), (all as u64, 0, 0), "{:?}", record.failed);
    drop(run);
    let limits = RunLimits { timeout: 200 * MS, ..patient() };
    let record = run::start(get(address), pace(200 * MS), limits).unwrap().join().unwrap();
    assert_eq!(record.due, pace(200 * MS).count() as u64);
    assert_eq!(record.failed, [(FailureKind::Timeout, record.due)].into());
    assert!(record.latency.quantile(0.0) >= 199 * MS);
    assert_eq!(record.latency.count(), record.due);
}

/// Requests beyond the bound are not deferred but counted, and fail the run.
#[test]
fn what_exceeds_the_bound_is_counted_as_not_sent() {
    let address = server(OK, |now| now + HOUR);
    let limits = RunLimits { timeout: HOUR, max_in_flight: 10, tolerance: PATIENCE, ..patient() };
    let run =
        run::start(get(address), RequestPacer::new(ArrivalProcess::Constant, 1000.0, 200 * MS, 1), limits)
            .unwrap();
    let record = taken(&run, |record| record.due == 200);
    assert_eq!(record.failed, [(FailureKind::Unsent, 190)].into());
    assert_eq!((record.on_time, record.punctuality()), (10, 0.05));
    until("ten are in flight", || run.in_flight() == 10);
}

/// A full backlog drops SYNs: the generator gives up connections before the kernel repeats them.
#[test]
fn a_connection_that_does_not_come_up_is_given_up() {
    let listener = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    listener.bind(&"127.0.0.1:0".parse::<SocketAddr>().unwrap().into()).unwrap();
    listener.listen(0).unwrap();
    let address = listener.local_addr().unwrap().as_socket().unwrap();
    let _fills_the_backlog = TcpStream::connect(address).unwrap();
    let limits = RunLimits { connect_timeout: 300 * MS, timeout: HOUR, ..RunLimits::default() };
    let record = load(address, ArrivalProcess::Constant, 100.0, 200 * MS, limits);
    assert_eq!(record.failed, [(FailureKind::ConnectTimeout, 20)].into());
}

#[test]
fn refused_and_broken_answers_fail_and_never_look_fast() {
    let (_held, free) = nobody();
    let record = load(free, ArrivalProcess::Constant, 100.0, 100 * MS, patient());
    assert_eq!(record.failed.get(&FailureKind::Connect), Some(&10), "{:?}", record.failed);
    assert!(record.latency.quantile(0.01) >= PATIENCE);

    let nonsense = server(b"nonsense\r\n\r\n", |now| now);
    let record = load(nonsense, ArrivalProcess::Constant, 100.0, 100 * MS, patient());
    assert_eq!(record.failed.get(&FailureKind::Malformed), Some(&10), "{:?}", record.failed);

    let failing = server(b"HTTP/1.1 503 No\r\nx-member: m1\r\ncontent-length: 0\r\n\r\n", |now| now);
    let record = load(failing, ArrivalProcess::Constant, 100.0, 100 * MS, patient());
    assert_eq!(record.failed.get(&FailureKind::Status), Some(&10), "{:?}", record.failed);
    assert_eq!(record.members["m1"].failed, 10);
}

/// A request larger than the socket accepts at once, and an answer larger than one read.
#[test]
fn large_requests_and_answers_are_carried_whole() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    const SIZE: usize = 8 << 20;
    let server = std::thread::spawn(move || {
        let mut stream = listener.accept().unwrap().0;
        let mut buffer = vec![0; 65536];
        for _ in 0..3 {
            let mut seen = Vec::new();
            while !seen.windows(4).any(|four| four == b"\r\n\r\n") {
                let count = stream.read(&mut buffer).unwrap();
                seen.extend_from_slice(&buffer[..count]);
            }
            let head = seen.windows(4).position(|four| four == b"\r\n\r\n").unwrap() + 4;
            let mut body = seen.len() - head;
            while body < SIZE {
                body += stream.read(&mut buffer).unwrap();
            }
            assert_eq!(body, SIZE);
            stream
                .write_all(format!("HTTP/1.1 200 OK\r\ncontent-length: {SIZE}\r\n\r\n").as_bytes())
                .unwrap();
            stream.write_all(&vec![1; SIZE]).unwrap();
        }
    });
    let target = HttpTarget::new("POST", &format!("http://{address}/"), &[], &vec![0; SIZE]).unwrap();
    let limits = RunLimits { max_connections: Some(1), ..patient() };
    let record = run::start(target, [Duration::ZERO; 3].into_iter(), limits).unwrap().join().unwrap();
    assert_eq!((record.ok, record.failures()), (3, 0), "{:?}", record.failed);
    server.join().unwrap();
}

/// Parts taken during the run add up; a stop ends it soon and counts the requests it cut.
#[test]
fn a_run_can_be_watched_and_stopped() {
    let (address, seen) = watched(OK, |now| now);
    let pace = RequestPacer::new(ArrivalProcess::Constant, 200.0, HOUR, 1);
    let run = run::start(get(address), pace, RunLimits { timeout: HOUR, ..patient() }).unwrap();
    let mut whole = taken(&run, |record| record.ok >= 50);
    seen.hold();
    // One more than are certainly held.
    until("some wait", || seen.busy.load(Relaxed) >= 6);
    whole.merge(&run.take_record());
    assert!(!run.is_finished());
    run.stop();
    whole.merge(&run.join().unwrap());
    assert!(whole.cut >= 5, "{} cut", whole.cut);
    assert_eq!(whole.due, whole.ok + whole.cut + whole.failures());
}
