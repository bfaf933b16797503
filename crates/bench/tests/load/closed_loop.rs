//! The closed loop: a fixed number of clients, each with one request at a time.

use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use plimsoll_bench::record::FailureKind;
use plimsoll_bench::run::{self, RunLimits};

use super::rig::{HOUR, MS, OK, get, nobody, patient, stopped, taken, until, watched};

#[test]
fn each_client_waits_for_its_answer() {
    let (address, seen) = watched(OK, |now| now + 20 * MS);
    seen.hold();
    let run = run::start_closed_loop(get(address), 4, HOUR, patient()).unwrap();
    until("all four are there", || seen.busy.load(Relaxed) == 4);
    seen.release();
    let record = taken(&run, |record| record.ok >= 40);
    // A request is due when it is sent: its latency is its service time.
    assert!(record.latency.quantile(0.01) >= 19 * MS);
    assert_eq!(record.latency.max(), record.service.max());
    run.stop();
    let rest = run.join().unwrap();
    let (due, ok) = (record.due + rest.due, record.ok + rest.ok);
    assert_eq!((due, rest.failures(), record.failures()), (ok + rest.cut, 0, 0), "{:?}", record.failed);
    assert_eq!(record.on_time + rest.on_time, due);
    assert_eq!((seen.most.load(Relaxed), seen.connections.load(Relaxed)), (4, 4));
}

#[test]
fn clients_take_turns_on_fewer_connections() {
    let (address, seen) = watched(OK, |now| now + 5 * MS);
    seen.hold();
    let run =
        run::start_closed_loop(get(address), 6, HOUR, RunLimits { max_connections: Some(2), ..patient() })
            .unwrap();
    until("both connections are busy", || seen.busy.load(Relaxed) == 2);
    seen.release();
    let record = taken(&run, |record| record.ok >= 30);
    assert_eq!((seen.most.load(Relaxed), record.failures()), (2, 0));
    // All but the first two found both connections busy.
    assert_eq!(record.waited, record.due - 2);
}

#[test]
fn a_new_connection_for_each_request() {
    let (address, seen) = watched(OK, |now| now);
    let run =
        run::start_closed_loop(get(address), 3, HOUR, RunLimits { reuse_connections: false, ..patient() })
            .unwrap();
    let record = stopped(run, |record| record.ok >= 30);
    assert_eq!((record.failures(), record.due), (0, record.ok + record.cut), "{:?}", record.failed);
    // Requests that were cut off may not have reached the server.
    assert!((record.ok..=record.due).contains(&(seen.connections.load(Relaxed) as u64)));
}

/// Without a server, clients keep trying, at a bounded rate, and end in time.
#[test]
fn clients_without_a_server_try_again_in_peace() {
    let (_held, free) = nobody();
    let run = run::start_closed_loop(get(free), 8, HOUR, patient()).unwrap();
    let record = taken(&run, |record| record.failures() >= 80);
    let most = 8 * (1 + run.elapsed().as_millis() as u64 / 10);
    assert_eq!(record.failed.len(), 1);
    // bound: one in ten milliseconds for each client, by the time that it took
    assert!(record.failed[&FailureKind::Connect] <= most, "{:?} of {most}", record.failed);
    drop(run);
    let ends = run::start_closed_loop(get(free), 8, 50 * MS, patient()).unwrap().join().unwrap();
    assert_eq!(ends.due, ends.failures(), "nothing is left when its time is over");
}

#[test]
fn clients_think_before_they_go_on() {
    let (address, seen) = watched(OK, |now| now);
    let think = 50 * MS;
    let run = run::start_closed_loop(
        get(address),
        1,
        HOUR,
        RunLimits { think_time: think, max_connections: Some(1), ..patient() },
    )
    .unwrap();
    let record = taken(&run, |record| record.ok >= 6);
    let took = run.elapsed();
    assert_eq!((record.failures(), seen.connections.load(Relaxed)), (0, 1), "{:?}", record.failed);
    // Thinking is no part of any request: requests and think times alternate.
    let requests = record.latency.mean().mul_f64(record.ok as f64 * 0.998);
    // bound: the whole run, measured above
    assert!(requests + (record.ok as u32 - 1) * think <= took, "{} in {took:?}: {requests:?}", record.ok);
}

#[test]
fn a_stop_ends_it() {
    let (address, _) = watched(OK, |now| now + MS);
    let run = run::start_closed_loop(get(address), 4, HOUR, patient()).unwrap();
    let mut record = taken(&run, |record| record.ok >= 20);
    run.stop();
    let begin = Instant::now();
    record.merge(&run.join().unwrap());
    assert_eq!((record.due, record.failures()), (record.ok + record.cut, 0));
    // A request is cut off only after a second.
    assert!(record.cut == 0 || begin.elapsed() >= Duration::from_secs(1), "{} cut", record.cut);
}
