//! An open-loop load generator that counts failures.

use std::net::SocketAddr;
use std::time::Duration;

use plimsoll_bench::pace::{ArrivalProcess, RequestPacer};
use plimsoll_bench::record::RunRecord;
use plimsoll_bench::run::{self, LoadRun, RunLimits};
use plimsoll_bench::target::HttpTarget;

use super::{PATIENCE, until};

/// Load that goes on until it is stopped.
pub(crate) struct Load {
    run: LoadRun,
    so_far: RunRecord,
}

impl Load {
    /// Starts `rate` requests per second, of independent clients.
    pub(crate) fn start(address: SocketAddr, method: &str, rate: f64) -> Self {
        Self::with(address, method, &[], rate)
    }

    /// Starts the same with header fields.
    pub(crate) fn with(address: SocketAddr, method: &str, fields: &[(&str, &str)], rate: f64) -> Self {
        let body: &[u8] = if method == "POST" { b"something to do" } else { b"" };
        let target = HttpTarget::new(method, &format!("http://{address}/"), fields, body).unwrap();
        let pace = RequestPacer::new(ArrivalProcess::Poisson, rate, Duration::from_secs(600), 1);
        Self { run: run::start(target, pace, patient()).unwrap(), so_far: RunRecord::new() }
    }

    /// Starts `clients` clients, each of which sends its next request when it has the answer to the last one.
    /// The number in flight stays the same, however slow the machine is.
    pub(crate) fn closed(address: SocketAddr, clients: usize) -> Self {
        let target = HttpTarget::new("GET", &format!("http://{address}/"), &[], b"").unwrap();
        let run = run::start_closed_loop(target, clients, Duration::from_secs(600), patient()).unwrap();
        Self { run, so_far: RunRecord::new() }
    }

    /// Waits until `requests` more have been answered or have failed.
    #[track_caller]
    pub(crate) fn more(&mut self, requests: u64) {
        let ended = |record: &RunRecord| record.ok + record.failures();
        let goal = ended(&self.so_far) + requests;
        until(&format!("{requests} more requests"), || {
            self.so_far.merge(&self.run.take_record());
            ended(&self.so_far) >= goal
        });
    }

    /// Ends the load and returns the record of all requests.
    pub(crate) fn stop(self) -> RunRecord {
        self.run.stop();
        let mut all = self.so_far;
        all.merge(&self.run.join().unwrap());
        all
    }

    /// Ends the load; not one request may have failed.
    #[track_caller]
    pub(crate) fn stop_unharmed(self) -> RunRecord {
        let record = self.stop();
        assert_eq!(record.failures(), 0, "of {} requests failed {:?}", record.due, record.failed);
        assert_eq!(record.cut, 0, "requests without an answer");
        record
    }
}

/// Returns limits that no slow machine reaches.
fn patient() -> RunLimits {
    RunLimits { timeout: PATIENCE, connect_timeout: PATIENCE, grace: PATIENCE, ..RunLimits::default() }
}
