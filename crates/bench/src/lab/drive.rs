//! The load of a point: the open or the closed loop of [`run`](crate::run), on a thread for each balancer.

use std::net::SocketAddr;
use std::time::Duration;

use super::Trouble;
use super::experiment::{Load, Sessions};
use crate::pace::Pace;
use crate::record::Record;
use crate::run::{self, Limits, Run};
use crate::target::{Http, Iiop, Target};

/// What the clients do, with every share of a capacity worked out.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Drive {
    /// Requests per second.
    Open(f64),
    /// Clients that each wait for their answer.
    Closed(usize),
}

/// Longest that a client waits for the one before it.
const TURN: Duration = Duration::from_millis(20);

/// The clients of a point: as many generators as there are balancers, each with its part of the load.
#[derive(Debug)]
pub(super) struct Clients(Vec<Run>);

impl Clients {
    /// Since the load began.
    pub(super) fn elapsed(&self) -> Duration {
        self.0.first().map_or(Duration::ZERO, Run::elapsed)
    }

    /// What ended since the last look.
    pub(super) fn take(&self) -> Record {
        let mut all = Record::new();
        for run in &self.0 {
            all.add(&run.take());
        }
        all
    }

    /// Has everything that was due ended?
    pub(super) fn finished(&self) -> bool {
        self.0.iter().all(Run::finished)
    }

    /// Ends it now.
    pub(super) fn end(self) -> Result<(), Trouble> {
        self.0.iter().for_each(Run::stop);
        for run in self.0 {
            run.join().map_err(|error| Trouble::failed(format!("the load generator failed: {error}")))?;
        }
        Ok(())
    }
}

/// Where the load goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Door {
    /// An HTTP server's address.
    Http(SocketAddr),
    /// Reference of an object.
    Iiop(String),
}

/// Starts the load at the `doors`, split evenly, for so long. A part of Poisson arrivals is one itself, and so is
/// their sum. Clients of groups go to the doors in turn; `concurrency` is what their shares are of.
pub(super) fn start(
    load: &Load,
    drive: Drive,
    concurrency: usize,
    doors: &[Door],
    duration: Duration,
    seed: u64,
) -> Result<Clients, Trouble> {
    let mut parts = Vec::new();
    let each = load.each(concurrency);
    if each.is_empty() {
        let count = doors.len().max(1);
        for index in 0..doors.len() {
            let part = match drive {
                Drive::Open(rate) => Drive::Open(rate / count as f64),
                Drive::Closed(clients) => Drive::Closed(share(clients, index, count)),
            };
            parts.push((part, None));
        }
    } else {
        let part = |client: &Sessions| client.rate.map_or(Drive::Closed(1), Drive::Open);
        parts.extend(each.into_iter().map(|client| (part(&client), Some(client))));
    }
    let mut runs = Vec::new();
    for (index, ((part, client), door)) in parts.into_iter().zip(doors.iter().cycle()).enumerate() {
        // Parts need chances of their own; the first keeps that of the whole.
        let seed = seed.wrapping_add((index as u64) << 32);
        let think = client.and_then(|client| client.think).map_or(Duration::ZERO, |span| span.0);
        let limits = Limits {
            timeout: load.timeout.0,
            reuse: load.keep_alive,
            connections: client.map(|_| 1),
            think,
            ..Limits::default()
        };
        runs.push(one(load, part, door, duration, seed, limits)?);
        if let (Some(run), true) = (runs.last(), client.is_some()) {
            connected(run);
        }
    }
    Ok(Clients(runs))
}

/// Waits for the first request of a client, so that the next one comes after it and not at the same time: who gets
/// which member in turn is a part of what is measured.
fn connected(run: &Run) {
    while run.in_flight() == 0 && run.elapsed() < TURN {
        std::thread::sleep(TURN / 200);
    }
}

/// The part of so many clients that goes to one of `count` balancers.
fn share(clients: usize, index: usize, count: usize) -> usize {
    clients / count + usize::from(index < clients % count)
}

fn one(
    load: &Load,
    drive: Drive,
    door: &Door,
    duration: Duration,
    seed: u64,
    limits: Limits,
) -> Result<Run, Trouble> {
    let failed = |error: &dyn std::fmt::Display| Trouble::failed(format!("cannot send load: {error}"));
    let run = match door {
        Door::Iiop(reference) => {
            let target = Iiop::new(reference, true).map_err(|error| failed(&error))?;
            begin(load, target, drive, duration, seed, limits)
        }
        Door::Http(address) => {
            let body: Vec<u8> = (0..load.body.map_or(0, |body| body.0)).map(|n| n as u8).collect();
            let method = if load.body.is_some() { "POST" } else { "GET" };
            let close: &[(&str, &str)] = if load.keep_alive { &[] } else { &[("connection", "close")] };
            let target = Http::new(method, &format!("http://{address}/"), close, &body)
                .map_err(|error| failed(&error))?;
            begin(load, target, drive, duration, seed, limits)
        }
    };
    run.map_err(|error| failed(&error))
}

fn begin<T: Target + Send + 'static>(
    load: &Load,
    target: T,
    drive: Drive,
    duration: Duration,
    seed: u64,
    limits: Limits,
) -> std::io::Result<Run> {
    match drive {
        Drive::Open(rate) => run::start(target, Pace::new(load.arrival, rate, duration, seed), limits),
        Drive::Closed(clients) => run::closed(target, clients, duration, limits),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_client_is_lost_in_the_split() {
        let parts: Vec<usize> = (0..3).map(|index| share(8, index, 3)).collect();
        assert_eq!(parts, [3, 3, 2]);
        assert_eq!((share(8, 0, 1), share(1, 1, 2)), (8, 0));
    }
}
