//! The closed loop: as many clients as asked for, each with one request at a time.

use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use plimsoll_bench::record::Fault;
use plimsoll_bench::run::{self, Limits};

use super::rig::{MS, OK, get, nobody, watched};

#[test]
fn each_client_waits_for_its_answer() {
    let (address, seen) = watched(OK, |now| now + 20 * MS);
    let record = run::closed(get(address), 4, 1000 * MS, Limits::default()).unwrap().join().unwrap();
    assert_eq!(record.failures(), 0, "{:?}", record.failed);
    assert_eq!(seen.most.load(Relaxed), 4);
    assert_eq!(seen.connections.load(Relaxed), 4);
    // 4 clients, 50 answers each in a second at the most.
    assert!((60..=204).contains(&record.due), "{}", record.due);
    assert_eq!((record.due, record.on_time), (record.ok, record.ok));
    // Due when it is sent: its latency is its service time.
    assert!(record.latency.quantile(0.01) >= 19 * MS);
    assert!(record.latency.max() - record.service.max() < MS);
}

#[test]
fn clients_take_turns_on_fewer_connections() {
    let (address, seen) = watched(OK, |now| now + 5 * MS);
    let limits = Limits { connections: Some(2), ..Limits::default() };
    let record = run::closed(get(address), 6, 500 * MS, limits).unwrap().join().unwrap();
    assert_eq!((seen.most.load(Relaxed), record.failures()), (2, 0));
    assert!(record.waited > 10 && record.ok > 20, "{} {}", record.waited, record.ok);
}

#[test]
fn a_new_connection_for_each_request() {
    let (address, seen) = watched(OK, |now| now);
    let limits = Limits { reuse: false, ..Limits::default() };
    let record = run::closed(get(address), 3, 300 * MS, limits).unwrap().join().unwrap();
    assert!(record.ok > 30 && record.failures() == 0, "{} {:?}", record.ok, record.failed);
    assert_eq!(seen.connections.load(Relaxed) as u64, record.ok);
}

/// Nobody listens: it goes on trying, but not as fast as it can, and ends in time.
#[test]
fn clients_without_a_server_try_again_in_peace() {
    let (_held, free) = nobody();
    let begin = Instant::now();
    let record = run::closed(get(free), 8, 300 * MS, Limits::default()).unwrap().join().unwrap();
    assert!(begin.elapsed() < Duration::from_secs(2));
    assert_eq!(record.failed.len(), 1);
    assert!((3..1000).contains(&record.failed[&Fault::Connect]), "{:?}", record.failed);
}

#[test]
fn clients_think_before_they_go_on() {
    let (address, seen) = watched(OK, |now| now);
    let limits = Limits { think: 50 * MS, connections: Some(1), ..Limits::default() };
    let record = run::closed(get(address), 1, 1000 * MS, limits).unwrap().join().unwrap();
    // One at 0, 50, 100 and so on, or later.
    assert!((5..=20).contains(&record.ok) && record.failures() == 0, "{} {:?}", record.ok, record.failed);
    assert_eq!(seen.connections.load(Relaxed), 1);
    // Thinking is no part of any request.
    assert!(record.latency.quantile(0.5) < 40 * MS, "{:?}", record.latency.quantile(0.5));
}

#[test]
fn a_stop_ends_it() {
    let (address, _) = watched(OK, |now| now + MS);
    let run = run::closed(get(address), 4, Duration::from_secs(600), Limits::default()).unwrap();
    let mut ok = 0;
    while ok < 20 {
        std::thread::sleep(5 * MS);
        ok += run.take().ok;
        assert!(run.elapsed() < Duration::from_secs(20));
    }
    run.stop();
    let begin = Instant::now();
    let record = run.join().unwrap();
    assert!(begin.elapsed() < Duration::from_secs(2));
    assert_eq!((record.cut, record.failures()), (0, 0));
}
