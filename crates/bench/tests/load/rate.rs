//! The offered rate is the rate that was asked for, whatever the server does.

use std::io::Write as _;
use std::net::{SocketAddr, TcpListener};
use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use plimsoll_bench::pace::{Arrival, Pace};
use plimsoll_bench::record::{Fault, Record};
use plimsoll_bench::run::{self, Limits};

use super::rig::{MS, OK, Seen, Stamped, get, serve, server};

const RATE: f64 = 800.0;
const LENGTH: Duration = Duration::from_secs(3);

/// Runs at a constant rate, and counts the requests that the generator turned to per quarter of a second.
fn bins(address: SocketAddr, limits: Limits) -> (Record, Vec<f64>) {
    let stamps = Arc::new(Mutex::new(Vec::new()));
    let target = Stamped { http: get(address), stamps: stamps.clone() };
    let begin = Instant::now();
    let run = run::start(target, Pace::new(Arrival::Constant, RATE, LENGTH, 1), limits).unwrap();
    let record = run.join().unwrap();
    let mut bins = vec![0.0; 12];
    for stamp in stamps.lock().unwrap().iter() {
        bins[((*stamp - begin).as_millis() / 250).min(11) as usize] += 1.0;
    }
    (record, bins)
}

/// All bins have about as many as they should, also on a busy machine; `make bench-load` looks closely. A
/// generator that waits for the server would leave some of them empty.
#[track_caller]
fn assert_even(bins: &[f64]) {
    let expected = RATE / 4.0;
    assert!(bins.iter().all(|bin| (bin / expected - 1.0).abs() < 0.5), "{bins:?}");
}

/// A process that is stopped: its kernel takes connections until the backlog is full and then drops SYNs.
/// It goes on in the middle of the run. Neither may be seen in what is offered.
#[test]
fn a_server_that_is_stopped_with_a_full_backlog_and_goes_on() {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.bind(&"127.0.0.1:0".parse::<SocketAddr>().unwrap().into()).unwrap();
    socket.listen(16).unwrap();
    let listener = TcpListener::from(socket);
    let address = listener.local_addr().unwrap();
    let (go_on, told) = mpsc::channel::<()>();
    let seen = Arc::new(Seen::default());
    let sees = seen.clone();
    std::thread::spawn(move || {
        // Until half of the run is over.
        let _ = told.recv_timeout(LENGTH / 2);
        serve(listener, OK, |now| now, &sees);
    });
    let limits = Limits { connect_timeout: 300 * MS, timeout: 1000 * MS, reuse: false, ..Limits::default() };
    let begin = Instant::now();
    let (record, bins) = bins(address, limits);
    assert!(begin.elapsed() < LENGTH + 1500 * MS);
    assert_even(&bins);
    assert_eq!(record.due, 2400);
    assert!(record.on_time >= 2000, "{}", record.on_time);
    // What the backlog took before and what came after was answered or timed out, all the rest given up.
    let dropped = record.failed.get(&Fault::ConnectTimeout).copied().unwrap_or(0);
    assert!((800..1250).contains(&dropped), "{:?}", record.failed);
    assert!(record.ok > 1100, "{} {:?}", record.ok, record.failed);
    assert_eq!(record.due, record.ok + record.failures());
    assert_eq!(record.latency.count(), record.due);
    drop(go_on);
}

/// Ten times slower, and never: each answer is waited for on its own.
#[test]
fn a_server_that_becomes_slow_or_silent() {
    let address = server(OK, |now| match now.as_millis() {
        0..1000 => now + 5 * MS,
        1000..2000 => now + 50 * MS,
        _ => now + Duration::from_secs(3600),
    });
    let (record, bins) = bins(address, Limits { timeout: 500 * MS, ..Limits::default() });
    assert_even(&bins);
    assert!((700..900).contains(&record.failed[&Fault::Timeout]), "{:?}", record.failed);
    assert_eq!(record.ok + record.failures(), 2400);
    assert_eq!(record.failures(), record.failed[&Fault::Timeout], "{:?}", record.failed);
}

/// The gaps between requests are those of the pacer: no timer that ticks, no batches.
#[test]
fn requests_are_turned_to_one_by_one() {
    let address = server(OK, |now| now);
    let stamps = Arc::new(Mutex::new(Vec::new()));
    let target = Stamped { http: get(address), stamps: stamps.clone() };
    let pace = Pace::new(Arrival::Constant, 500.0, Duration::from_secs(2), 1);
    let record = run::start(target, pace, Limits::default()).unwrap().join().unwrap();
    assert_eq!(record.ok, 1000);
    let stamps = stamps.lock().unwrap();
    let mut gaps: Vec<Duration> = stamps.windows(2).map(|pair| pair[1] - pair[0]).collect();
    gaps.sort();
    // Half of them may be what a busy machine makes of them.
    let middle = &gaps[250..750];
    assert!(middle.iter().all(|gap| gap.abs_diff(2 * MS) < MS), "{:?} {:?}", middle[0], middle[499]);
}

/// Answers without end, as fast as they can be read, do not keep other requests waiting.
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
    let limits = Limits { timeout: 300 * MS, tolerance: 100 * MS, ..Limits::default() };
    let run = run::start(get(address), Pace::new(Arrival::Constant, 20.0, Duration::from_secs(1), 1), limits);
    let begin = Instant::now();
    let record = run.unwrap().join().unwrap();
    assert_eq!(record.failed, [(Fault::Timeout, 20)].into());
    assert!(record.punctuality() > 0.9, "{}", record.punctuality());
    assert!(begin.elapsed() < Duration::from_secs(10));
}

/// A run that is ended early does not forget those that still waited.
#[test]
fn requests_that_are_cut_off_count_with_what_they_waited() {
    let address = server(OK, |now| now + Duration::from_secs(3600));
    let pace = Pace::new(Arrival::Constant, 100.0, 300 * MS, 1);
    let limits = Limits { timeout: Duration::from_secs(60), connections: Some(10), ..Limits::default() };
    let run = run::start(get(address), pace, limits).unwrap();
    let mut record = Record::new();
    while record.due < 30 {
        record.add(&run.take());
        std::thread::sleep(MS);
    }
    run.stop();
    record.add(&run.join().unwrap());
    assert_eq!((record.due, record.cut, record.latency.count()), (30, 30, 30));
    // They were given a second to end.
    assert!(record.latency.quantile(0.5) >= 1000 * MS);
}
