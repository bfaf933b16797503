//! An open-loop load generator that counts failures.

use std::net::SocketAddr;
use std::time::Duration;

use plimsoll_bench::pace::{Arrival, Pace};
use plimsoll_bench::record::Record;
use plimsoll_bench::run::{self, Limits, Run};
use plimsoll_bench::target::Http;

use super::{PATIENCE, until};

/// Load that goes on until it is stopped.
pub(crate) struct Load {
    run: Run,
    so_far: Record,
}

impl Load {
    /// Starts `rate` requests per second, of independent clients.
    pub(crate) fn start(address: SocketAddr, method: &str, rate: f64) -> Self {
        Self::with(address, method, &[], rate)
    }

    /// Starts the same with header fields.
    pub(crate) fn with(address: SocketAddr, method: &str, fields: &[(&str, &str)], rate: f64) -> Self {
        let body: &[u8] = if method == "POST" { b"something to do" } else { b"" };
        let target = Http::new(method, &format!("http://{address}/"), fields, body).unwrap();
        let pace = Pace::new(Arrival::Poisson, rate, Duration::from_secs(600), 1);
        Self { run: run::start(target, pace, patient()).unwrap(), so_far: Record::new() }
    }

    /// Starts `clients` clients, each of which sends its next request when it has the answer to the last one.
    /// The number in flight stays the same, however slow the machine is.
    pub(crate) fn closed(address: SocketAddr, clients: usize) -> Self {
        let target = Http::new("GET", &format!("http://{address}/"), &[], b"").unwrap();
        let run = run::closed(target, clients, Duration::from_secs(600), patient()).unwrap();
        Self { run, so_far: Record::new() }
    }

    /// Waits until `requests` more have been answered or have failed.
    #[track_caller]
    pub(crate) fn more(&mut self, requests: u64) {
        let ended = |record: &Record| record.ok + record.failures();
        let goal = ended(&self.so_far) + requests;
        until(&format!("{requests} more requests"), || {
            self.so_far.add(&self.run.take());
            ended(&self.so_far) >= goal
        });
    }

    /// Ends the load and returns the record of all requests.
    pub(crate) fn stop(self) -> Record {
        self.run.stop();
        let mut all = self.so_far;
        all.add(&self.run.join().unwrap());
        all
    }

    /// Ends the load; not one request may have failed.
    #[track_caller]
    pub(crate) fn stop_unharmed(self) -> Record {
        let record = self.stop();
        assert_eq!(record.failures(), 0, "of {} requests failed {:?}", record.due, record.failed);
        assert_eq!(record.cut, 0, "requests without an answer");
        record
    }
}

/// Returns limits that no slow machine reaches.
fn patient() -> Limits {
    Limits { timeout: PATIENCE, connect_timeout: PATIENCE, grace: PATIENCE, ..Limits::default() }
}
