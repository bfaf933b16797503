//! The offered rate is the configured rate, whatever the server does: requests are due while it provably does
//! nothing.

use std::io::Write as _;
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use plimsoll_bench::pace::{ArrivalProcess, RequestPacer};
use plimsoll_bench::record::FailureKind;
use plimsoll_bench::run::{self, RunLimits};

use super::rig::{
    HOUR, MS, OK, Seen, Stamped, get, load, patient, serve, server, stopped, taken, until, watched,
};

const RATE: f64 = 400.0;

fn for_long() -> RequestPacer {
    RequestPacer::new(ArrivalProcess::Constant, RATE, HOUR, 1)
}

/// A stopped process: its kernel accepts connections until the backlog is full and then drops SYNs. It
/// continues in the middle of the run. Neither may affect the offered rate.
#[test]
fn a_server_that_is_stopped_with_a_full_backlog_and_goes_on() {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.bind(&"127.0.0.1:0".parse::<SocketAddr>().unwrap().into()).unwrap();
    socket.listen(16).unwrap();
    let listener = TcpListener::from(socket);
    let address = listener.local_addr().unwrap();
    let (go_on, told) = mpsc::channel::<()>();
    std::thread::spawn(move || {
        told.recv().unwrap();
        serve(listener, OK, |now| now, &Arc::new(Seen::default()));
    });
    let limits = RunLimits { connect_timeout: 300 * MS, reuse_connections: false, ..patient() };
    let run = run::start(get(address), for_long(), limits).unwrap();
    let mut record = taken(&run, |record| record.due >= 200 && record.failures() >= 50);
    assert_eq!(record.ok, 0);
    go_on.send(()).unwrap();
    // More than were in the backlog.
    record.merge(&stopped(run, |record| record.ok >= 100));
    assert_eq!(
        record.failed.keys().collect::<Vec<_>>(),
        [&FailureKind::ConnectTimeout],
        "{:?}",
        record.failed
    );
    assert_eq!(record.due, record.ok + record.failures() + record.cut);
    assert_eq!(record.latency.count(), record.due);
}

/// Ten times slower, and silent: requests do not wait for each other's answers.
#[test]
fn a_server_that_becomes_slow_or_silent() {
    let takes = Arc::new(AtomicU32::new(5));
    let slow = takes.clone();
    let (address, seen) = watched(OK, move |now| now + slow.load(Relaxed) * MS);
    let run = run::start(get(address), for_long(), patient()).unwrap();
    let mut record = taken(&run, |record| record.ok >= 100);
    takes.store(50, Relaxed);
    until("as many wait as come in the time of an answer", || run.in_flight() >= 10);
    seen.hold();
    // More than all that came before: none of these waits for an answer.
    until("they go on coming", || seen.busy.load(Relaxed) >= 200);
    seen.release();
    record.merge(&taken(&run, |record| record.ok >= 200));
    record.merge(&stopped(run, |_| true));
    assert_eq!(record.failures(), 0, "{:?}", record.failed);
    assert_eq!(record.due, record.ok + record.cut);
}

/// The gaps between requests are those of the pacer: no timer ticks, no batches. With either of them no gap
/// would be exact; a busy machine only needs longer to reach the count.
#[test]
fn requests_are_turned_to_one_by_one() {
    let address = server(OK, |now| now);
    let stamps = Arc::new(Mutex::new(Vec::new()));
    let target = Stamped { http: get(address), stamps: stamps.clone() };
    // Due times count from a moment after this one.
    let begun = Instant::now();
    let run = run::start(target, for_long(), patient()).unwrap();
    let gap = Duration::from_micros(2500);
    until("two hundred gaps are those of the pacer", || {
        let stamps = stamps.lock().unwrap();
        let even = |pair: &&[Instant]| (pair[1] - pair[0]).abs_diff(gap) < MS / 2;
        stamps.windows(2).filter(even).count() >= 200
    });
    let record = stopped(run, |_| true);
    assert_eq!(record.failures(), 0, "{:?}", record.failed);
    let stamps = stamps.lock().unwrap();
    let early = stamps.iter().zip(for_long()).filter(|(stamp, due)| **stamp < begun + *due);
    assert_eq!(early.count(), 0, "requests before they were due");
}

/// Endless answers, as fast as they can be read, do not delay other requests.
#[test]
fn a_server_that_never_stops_talking() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            std::thread::spawn(move || {
                let mut stream = stream;
                let mut sent = stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n");
                while sent.is_ok() {
                    sent = stream.write_all(&[b'x'; 1 << 16]);
                }
            });
        }
    });
    let pace = RequestPacer::new(ArrivalProcess::Constant, 50.0, 200 * MS, 1);
    let run = run::start(get(address), pace, RunLimits { timeout: HOUR, ..patient() }).unwrap();
    let record = taken(&run, |record| record.due == 10);
    assert_eq!((record.ok, record.failures()), (0, 0), "{:?}", record.failed);
    until("all are in flight", || run.in_flight() == 10);
    drop(run);
    let record =
        load(address, ArrivalProcess::Constant, 50.0, 200 * MS, RunLimits { timeout: 200 * MS, ..patient() });
    assert_eq!(record.failed, [(FailureKind::Timeout, 10)].into());
}

/// A run that is ended early counts the requests that still waited.
#[test]
fn requests_that_are_cut_off_count_with_what_they_waited() {
    let address = server(OK, |now| now + HOUR);
    let pace = RequestPacer::new(ArrivalProcess::Constant, 100.0, 300 * MS, 1);
    let limits = RunLimits { timeout: HOUR, max_connections: Some(10), ..patient() };
    let run = run::start(get(address), pace, limits).unwrap();
    let record = stopped(run, |record| record.due == 30);
    assert_eq!((record.due, record.cut, record.latency.count()), (30, 30, 30));
    // They had a grace period of a second to end.
    assert!(record.latency.quantile(0.0) >= 999 * MS);
}
