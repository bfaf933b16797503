//! The load of a point: the open or the closed loop of [`run`](crate::run), on a thread for each balancer.

use std::net::SocketAddr;
use std::time::Duration;

use super::Trouble;
use super::experiment::Load;
use crate::pace::Pace;
use crate::record::Record;
use crate::run::{self, Limits, Run};
use crate::target::Http;

/// What the clients do, with every share of a capacity worked out.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Drive {
    /// Requests per second.
    Open(f64),
    /// Clients that each wait for their answer.
    Closed(usize),
}

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

/// Starts the load on `addresses`, split evenly, for so long. A part of Poisson arrivals is one itself, and so is
/// their sum. Clients with rates of their own go to the addresses in turn.
pub(super) fn start(
    load: &Load,
    drive: Drive,
    addresses: &[SocketAddr],
    duration: Duration,
    seed: u64,
) -> Result<Clients, Trouble> {
    let mut parts = Vec::new();
    if load.clients.is_empty() {
        let count = addresses.len().max(1);
        for index in 0..addresses.len() {
            parts.push(match drive {
                Drive::Open(rate) => Drive::Open(rate / count as f64),
                Drive::Closed(clients) => Drive::Closed(share(clients, index, count)),
            });
        }
    } else {
        // In turn from group to group, too, as they would come.
        let most = load.clients.iter().map(|group| group.count).max().unwrap_or(0);
        for number in 0..most {
            let groups = load.clients.iter().filter(|group| number < group.count);
            parts.extend(groups.map(|group| Drive::Open(group.rate)));
        }
    }
    let mut runs = Vec::new();
    for (index, (part, address)) in parts.into_iter().zip(addresses.iter().cycle()).enumerate() {
        // Parts need chances of their own; the first keeps that of the whole.
        let seed = seed.wrapping_add((index as u64) << 32);
        runs.push(one(load, part, *address, duration, seed)?);
    }
    Ok(Clients(runs))
}

/// The part of so many clients that goes to one of `count` balancers.
fn share(clients: usize, index: usize, count: usize) -> usize {
    clients / count + usize::from(index < clients % count)
}

fn one(
    load: &Load,
    drive: Drive,
    address: SocketAddr,
    duration: Duration,
    seed: u64,
) -> Result<Run, Trouble> {
    let failed = |error: &dyn std::fmt::Display| Trouble::failed(format!("cannot send load: {error}"));
    let body: Vec<u8> = (0..load.body.map_or(0, |body| body.0)).map(|n| n as u8).collect();
    let method = if load.body.is_some() { "POST" } else { "GET" };
    let close: &[(&str, &str)] = if load.keep_alive { &[] } else { &[("connection", "close")] };
    let target =
        Http::new(method, &format!("http://{address}/"), close, &body).map_err(|error| failed(&error))?;
    let connections = (!load.clients.is_empty()).then_some(1);
    let limits = Limits { timeout: load.timeout.0, reuse: load.keep_alive, connections, ..Limits::default() };
    let run = match drive {
        Drive::Open(rate) => run::start(target, Pace::new(load.arrival, rate, duration, seed), limits),
        Drive::Closed(clients) => run::closed(target, clients, duration, limits),
    };
    run.map_err(|error| failed(&error))
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
