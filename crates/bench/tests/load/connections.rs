//! Limits on connections: waiting for one, in order and counted; a new one for each request.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::atomic::Ordering::Relaxed;

use plimsoll_bench::pace::{ArrivalProcess, RequestPacer};
use plimsoll_bench::record::FailureKind;
use plimsoll_bench::run::{self, RunLimits};
use plimsoll_bench::target::HttpTarget;

use super::rig::{HOUR, MS, OK, get, load, patient, server, taken, until, watched};

/// Waiting requests count as in flight; beyond the bound nothing is kept.
#[test]
fn the_queue_for_connections_is_bounded_and_its_requests_time_out() {
    let address = server(OK, |now| now + HOUR);
    let limits = RunLimits { max_connections: Some(2), max_in_flight: 10, timeout: HOUR, ..patient() };
    let pace = RequestPacer::new(ArrivalProcess::Constant, 1000.0, 200 * MS, 1);
    let run = run::start(get(address), pace, limits.clone()).unwrap();
    let record = taken(&run, |record| record.due == 200);
    assert_eq!((record.waited, record.failed), (8, [(FailureKind::Unsent, 190)].into()));
    until("ten are in flight", || run.in_flight() == 10);
    // On a slow machine some have ended before the last is due.
    let record =
        load(address, ArrivalProcess::Constant, 1000.0, 200 * MS, RunLimits { timeout: 300 * MS, ..limits });
    assert_eq!(record.failed.keys().collect::<Vec<_>>(), [&FailureKind::Timeout, &FailureKind::Unsent]);
    assert!(record.failed[&FailureKind::Timeout] >= 10, "{:?}", record.failed);
    assert_eq!((record.failures(), record.latency.count()), (200, 200));
    assert!(record.latency.quantile(0.0) >= 299 * MS);
}

/// A failed request closes its connection, and the next in the queue gets a new one.
#[test]
fn a_failed_connection_makes_room_for_the_next() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            // The server reads, and closes without an answer.
            let _ = stream.unwrap().read(&mut [0; 4096]);
        }
    });
    let limits = RunLimits { max_connections: Some(1), ..patient() };
    let record = load(address, ArrivalProcess::Constant, 2000.0, 50 * MS, limits);
    assert_eq!(record.failed, [(FailureKind::Closed, 100)].into());
}

/// One connection, two addresses: the idle connection is replaced.
#[test]
fn a_connection_to_one_address_gives_way_to_another() {
    let (one, other) = (server(OK, |now| now), server(OK, |now| now));
    let request = |address| {
        plimsoll_bench::target::HttpRequest::new("GET", &format!("http://{address}/"), &[], b"").unwrap()
    };
    let target = HttpTarget::sequence(vec![request(one), request(other)]).unwrap();
    let pace = RequestPacer::new(ArrivalProcess::Constant, 200.0, 200 * MS, 1);
    let limits = RunLimits { max_connections: Some(1), ..patient() };
    let record = run::start(target, pace, limits).unwrap().join().unwrap();
    assert_eq!((record.ok, record.failures()), (40, 0), "{:?}", record.failed);
}

/// The server leaves the connection open, so the generator closes it: that must not use up ports.
#[test]
fn a_new_connection_for_each_request_leaves_no_port_behind() {
    let (address, seen) = watched(OK, |now| now);
    let limits = RunLimits { reuse_connections: false, ..patient() };
    let record = load(address, ArrivalProcess::Constant, 1000.0, 500 * MS, limits);
    assert_eq!((record.ok, record.failures()), (500, 0), "{:?}", record.failed);
    assert_eq!(seen.connections.load(Relaxed), 500);
    let port = format!(":{:04X} ", address.port());
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let waits = table.lines().filter(|line| line.contains(&port) && line.contains(" 06 ")).count();
    assert_eq!(waits, 0, "connections in TIME_WAIT");
}

/// The server closes after each answer, as requested.
#[test]
fn a_new_connection_for_each_request_that_the_server_closes() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut buffer = [0; 4096];
            let count = stream.read(&mut buffer).unwrap();
            assert!(String::from_utf8_lossy(&buffer[..count]).contains("connection: close\r\n"));
            // Without a length the answer ends with the connection.
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\nall");
        }
    });
    let target =
        HttpTarget::new("GET", &format!("http://{address}/"), &[("connection", "close")], b"").unwrap();
    let limits = RunLimits { reuse_connections: false, max_connections: Some(4), ..patient() };
    let pace = RequestPacer::new(ArrivalProcess::Poisson, 500.0, 400 * MS, 1);
    let all = pace.clone().count() as u64;
    let record = run::start(target, pace, limits).unwrap().join().unwrap();
    assert_eq!((record.ok, record.failures()), (all, 0), "{:?}", record.failed);
}

/// A stop while requests wait for a connection: they are cut, and the run ends.
#[test]
fn a_stop_cuts_what_waits() {
    let address = server(OK, |now| now + HOUR);
    let pace = RequestPacer::new(ArrivalProcess::Constant, 1000.0, HOUR, 1);
    // More than can be due before a slow machine stops the run.
    let limits = RunLimits { max_connections: Some(1), max_in_flight: 1 << 20, timeout: HOUR, ..patient() };
    let run = run::start(get(address), pace, limits).unwrap();
    until("fifty wait", || run.in_flight() >= 50);
    run.stop();
    let record = run.join().unwrap();
    assert!(record.cut >= 50 && record.cut == record.due, "{} of {}", record.cut, record.due);
}
