//! Several requests: by weight, in sequence, and from an access log.

use std::time::{Duration, Instant};

use plimsoll_bench::pace::{ArrivalProcess, RequestPacer};
use plimsoll_bench::replay::{AccessLog, ReplayWorkload};
use plimsoll_bench::run::{self, RunLimits};
use plimsoll_bench::target::{HttpRequest, HttpTarget};

use super::rig::{MS, OK, patient, watched};

#[test]
fn weights_come_out_at_the_servers() {
    let (one, seen_by_one) = watched(OK, |now| now);
    let (other, seen_by_other) = watched(OK, |now| now);
    let request = |address| HttpRequest::new("GET", &format!("http://{address}/"), &[], b"").unwrap();
    let target = HttpTarget::mixed(vec![(4.0, request(one)), (1.0, request(other))], 1).unwrap();
    let pace = RequestPacer::new(ArrivalProcess::Poisson, 1000.0, Duration::from_secs(1), 1);
    let record = run::start(target, pace, patient()).unwrap().join().unwrap();
    assert_eq!(record.failures(), 0, "{:?}", record.failed);
    let [one, other] = [seen_by_one, seen_by_other].map(|seen| seen.lines.lock().unwrap().len());
    assert_eq!((one + other) as u64, record.ok);
    let share = one as f64 / record.ok as f64;
    assert!((0.75..0.85).contains(&share), "{share}");
}

#[test]
fn a_log_is_replayed_in_order_and_in_its_time() {
    let log: String = (0..40)
        .map(|n| format!("::1 - - [10/Oct/2000:13:55:{:02} -0700] \"GET /{n} HTTP/1.0\" 200 1\n", n / 10))
        .collect();
    let log = AccessLog::read(log.as_bytes(), ReplayWorkload::All, 1).unwrap();
    let (address, seen) = watched(OK, |now| now);
    let base = HttpRequest::new("GET", &format!("http://{address}/"), &[], b"").unwrap();
    let requests =
        log.entries.iter().map(|entry| base.with_path(&entry.method, &entry.path).unwrap()).collect();
    let target = HttpTarget::sequence(requests).unwrap();
    let limits = RunLimits { max_connections: Some(1), ..patient() };
    let dues = log.due_times(8.0);
    // The last of its four seconds, eight times as fast.
    let last = dues[39];
    assert!(dues.is_sorted() && (450 * MS..500 * MS).contains(&last), "{dues:?}");
    let begun = Instant::now();
    let record = run::start(target, dues.into_iter(), limits).unwrap().join().unwrap();
    assert!(begun.elapsed() >= last, "{last:?}");
    assert_eq!((record.ok, record.failures()), (40, 0), "{:?}", record.failed);
    let expected: Vec<String> = (0..40).map(|n| format!("GET /{n} HTTP/1.1")).collect();
    assert_eq!(*seen.lines.lock().unwrap(), expected);
}

/// A speed that puts the second request beyond the range of the clock.
#[test]
fn what_is_never_due_ends_the_run() {
    let (address, _) = watched(OK, |now| now);
    let target = HttpTarget::new("GET", &format!("http://{address}/"), &[], b"").unwrap();
    let dues = [Duration::ZERO, Duration::MAX].into_iter();
    let record = run::start(target, dues, patient()).unwrap().join().unwrap();
    assert_eq!((record.due, record.ok), (1, 1), "{:?}", record.failed);
}
