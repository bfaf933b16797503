//! A server that stalls for a while: the latencies are those that its users would experience, with and
//! without a pool.
//!
//! The server answers no request until a given number of them are due. The due time of each is known, and so
//! is a lower bound of its wait. The percentiles are compared with those bounds, whatever delays the machine
//! adds. After a stall of S, a share of the requests has waits uniformly distributed up to S, as in the
//! closed form.

use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use plimsoll_bench::pace::{ArrivalProcess, RequestPacer};
use plimsoll_bench::record::RunRecord;
use plimsoll_bench::run::{self, RunLimits};

use super::rig::{MS, OK, PATIENCE, get, patient, taken, watched};

/// The number of requests, one due in each millisecond, and the number that are due before the server
/// answers.
const ALL: u32 = 600;
const STALLED: u64 = 150;

/// A run with a stall at its beginning.
struct Stall {
    /// The record before the first answer, and the record of the whole run.
    before: RunRecord,
    record: RunRecord,
    /// The lower bounds of the waiting times of all requests, seconds, ascending.
    waits: Vec<f64>,
    /// The upper bound of the sum of the latencies in seconds, from the times at which the record showed
    /// their ends.
    most: f64,
    took: Duration,
    connections: usize,
}

fn stall(limits: RunLimits) -> Stall {
    let (address, seen) = watched(OK, |now| now);
    seen.hold();
    let pace = RequestPacer::new(ArrivalProcess::Constant, 1000.0, ALL * MS, 1);
    let dues: Vec<f64> = pace.clone().map(|due| due.as_secs_f64()).collect();
    assert_eq!(dues.len(), ALL as usize);
    // Due times count from a moment between these two.
    let begun = Instant::now();
    let run = run::start(get(address), pace, limits).unwrap();
    let started = Instant::now();
    let least = STALLED as u32 * MS;
    let before = taken(&run, |record| record.due >= STALLED && started.elapsed() >= least);
    let stall = started.elapsed().as_secs_f64();
    seen.release();
    let (mut record, mut ends) = (before.clone(), 0.0);
    while record.ok + record.failures() < ALL.into() {
        let part = run.take_record();
        let now = begun.elapsed();
        // bound: a safety net
        assert!(now < PATIENCE, "{} of {ALL} ended", record.ok);
        ends += part.ok as f64 * now.as_secs_f64();
        record.merge(&part);
        std::thread::sleep(MS); // sleeps: polls
    }
    let took = begun.elapsed();
    record.merge(&run.join().unwrap());
    let waits = dues.iter().rev().map(|due| (stall - due).max(0.0)).collect();
    let most = ends - dues.iter().sum::<f64>();
    Stall { before, record, waits, most, took, connections: seen.connections.load(Relaxed) }
}

impl Stall {
    /// Checks that the latencies have at least the percentiles of the waits, and their sum.
    #[track_caller]
    fn assert_felt(&self) {
        let Self { record, waits, .. } = self;
        assert_eq!((record.due, record.ok), (ALL.into(), ALL.into()), "{:?}", record.failed);
        assert_eq!(record.latency.count(), u64::from(ALL));
        for q in [0.8, 0.9, 0.95, 0.99, 1.0] {
            let wait = waits[(q * f64::from(ALL)).ceil() as usize - 1];
            let latency = record.latency.quantile(q).as_secs_f64();
            // The record counts microseconds.
            assert!(wait > 0.0 && latency >= wait - 2e-6, "{q}: {latency} s, waited {wait} s");
        }
        let sum = record.latency.mean().as_secs_f64() * f64::from(ALL);
        let least = waits.iter().sum::<f64>();
        // The record keeps three digits.
        assert!(
            (0.999 * least..=1.001 * self.most + 1e-3).contains(&sum),
            "{sum} not in {least}..={}",
            self.most
        );
    }
}

/// A generator that leaves out its own waits has a p95 near zero.
#[test]
fn a_stall_shows_in_the_percentiles_as_its_users_would_feel_it() {
    let stall = stall(patient());
    stall.assert_felt();
    assert_eq!((stall.before.ok, stall.before.failures()), (0, 0));
    assert_eq!(stall.record.members["m1"].ok, u64::from(ALL));
}

/// A pool does not hide the waits of its users from the generator, whatever the number of connections. The
/// service time, the only measure of a generator with a pool and no due times, does not include them.
#[test]
fn a_stall_with_few_connections_has_the_percentiles_of_the_closed_form() {
    let stall = stall(RunLimits { max_connections: Some(8), ..patient() });
    stall.assert_felt();
    assert!(stall.connections <= 8, "{}", stall.connections);
    // All but eight wait, and the generator has handled each of them: that is no lateness.
    let Stall { before, record, .. } = &stall;
    assert_eq!((before.ok, before.waited, before.lateness.count()), (0, before.due - 8, before.due));
    assert!(record.waited >= before.waited);
    // One after another on each connection.
    let service = record.service.mean().as_secs_f64() * f64::from(ALL) * 0.998;
    // bound: the whole run on eight connections, measured
    assert!(service <= 8.0 * stall.took.as_secs_f64(), "{service} in {:?}", stall.took);
}
