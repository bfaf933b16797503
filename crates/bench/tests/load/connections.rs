//! Limits on connections: waiting for one, in order and counted; a new one for each request.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use plimsoll_bench::pace::{Arrival, Pace};
use plimsoll_bench::record::Fault;
use plimsoll_bench::run::{self, Limits};
use plimsoll_bench::target::Http;

use super::rig::{MS, OK, get, load, server, watched};

/// A pool does not make the generator forget the waits of its users: with a stall of S every period P the
/// latency exceeds x with probability S/P (1 - x/S), whatever the number of connections. The service time,
/// which is all that a generator with a pool and no due times sees, knows nothing of it.
#[test]
fn a_stall_with_few_connections_has_the_percentiles_of_the_closed_form() {
    let (period, stall) = (2000, 300);
    let (address, seen) = watched(OK, move |now| {
        let phase = now.as_millis() as u64 % period;
        if (1000..1000 + stall).contains(&phase) { now + (1000 + stall - phase) as u32 * MS } else { now }
    });
    let limits = Limits { connections: Some(8), tolerance: 50 * MS, ..Limits::default() };
    let record = load(address, Arrival::Constant, 400.0, Duration::from_secs(4), limits);
    assert_eq!((record.due, record.ok), (1600, 1600), "{:?}", record.failed);
    assert!(seen.connections.load(Relaxed) <= 8 && seen.most.load(Relaxed) <= 8);
    // 0.15 (1 - x / 300 ms) = 0.05 and 0.01.
    let [p95, p99] = [0.95, 0.99].map(|q| record.latency.quantile(q).as_secs_f64());
    assert!((0.170..0.250).contains(&p95), "p95 {p95}");
    assert!((0.240..0.340).contains(&p99), "p99 {p99}");
    assert!(record.service.quantile(0.95) < 150 * MS, "{:?}", record.service.quantile(0.95));
    // Some 240 were due in the stalls, of which 16 had a connection.
    assert!((150..400).contains(&record.waited), "{}", record.waited);
    assert!(record.punctuality() > 0.98, "{}", record.punctuality());
}

/// Who waits counts as in flight; beyond the bound nothing is kept.
#[test]
fn the_queue_for_connections_is_bounded_and_its_requests_time_out() {
    let address = server(OK, |now| now + Duration::from_secs(3600));
    let limits = Limits { connections: Some(2), in_flight: 10, timeout: 400 * MS, ..Limits::default() };
    let record = load(address, Arrival::Constant, 1000.0, 200 * MS, limits);
    assert_eq!((record.due, record.waited), (200, 8));
    assert_eq!(record.failed, [(Fault::Timeout, 10), (Fault::Unsent, 190)].into());
    assert_eq!(record.latency.count(), 200);
}

/// When a request fails its connection is gone, and the next in the queue gets a new one.
#[test]
fn a_failed_connection_makes_room_for_the_next() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            // Reads, and hangs up without a word.
            let _ = stream.unwrap().read(&mut [0; 4096]);
        }
    });
    let limits = Limits { connections: Some(1), ..Limits::default() };
    let record = load(address, Arrival::Constant, 2000.0, 50 * MS, limits);
    assert_eq!(record.failed, [(Fault::Closed, 100)].into());
}

/// One connection, two addresses: the idle one gives way.
#[test]
fn a_connection_to_one_address_gives_way_to_another() {
    let (one, other) = (server(OK, |now| now), server(OK, |now| now));
    let request = |address| {
        plimsoll_bench::target::Request::new("GET", &format!("http://{address}/"), &[], b"").unwrap()
    };
    let target = Http::sequence(vec![request(one), request(other)]).unwrap();
    let pace = Pace::new(Arrival::Constant, 200.0, 200 * MS, 1);
    let limits = Limits { connections: Some(1), ..Limits::default() };
    let record = run::start(target, pace, limits).unwrap().join().unwrap();
    assert_eq!((record.ok, record.failures()), (40, 0), "{:?}", record.failed);
}

/// The server leaves the connection open, so we close it: that must not use up our ports.
#[test]
fn a_new_connection_for_each_request_leaves_no_port_behind() {
    let (address, seen) = watched(OK, |now| now);
    let limits = Limits { reuse: false, ..Limits::default() };
    let record = load(address, Arrival::Constant, 1000.0, 500 * MS, limits);
    assert_eq!((record.ok, record.failures()), (500, 0), "{:?}", record.failed);
    assert_eq!(seen.connections.load(Relaxed), 500);
    let port = format!(":{:04X} ", address.port());
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let waits = table.lines().filter(|line| line.contains(&port) && line.contains(" 06 ")).count();
    assert_eq!(waits, 0, "connections in TIME_WAIT");
}

/// The server closes after each answer, as it was asked to.
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
            // No length: the answer ends with the connection.
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\nall");
        }
    });
    let target = Http::new("GET", &format!("http://{address}/"), &[("connection", "close")], b"").unwrap();
    let limits = Limits { reuse: false, connections: Some(4), ..Limits::default() };
    let record =
        run::start(target, Pace::new(Arrival::Poisson, 500.0, 400 * MS, 1), limits).unwrap().join().unwrap();
    assert!(record.ok > 100 && record.failures() == 0, "{} {:?}", record.ok, record.failed);
}

/// A stop while requests wait for a connection: they are cut, and the run ends.
#[test]
fn a_stop_cuts_what_waits() {
    let (address, _) = watched(OK, |now| now + Duration::from_secs(3600));
    let pace = Pace::new(Arrival::Constant, 1000.0, Duration::from_secs(600), 1);
    let limits = Limits { connections: Some(1), timeout: Duration::from_secs(60), ..Limits::default() };
    let run = run::start(get(address), pace, limits).unwrap();
    while run.in_flight() < 50 {
        std::thread::yield_now();
        assert!(run.elapsed() < Duration::from_secs(20));
    }
    run.stop();
    let record = run.join().unwrap();
    assert!(record.cut >= 50 && record.cut == record.due, "{} of {}", record.cut, record.due);
}
