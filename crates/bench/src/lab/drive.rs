//! The load of a point: the open or the closed loop of [`run`](crate::run), on a thread for each balancer.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::Duration;

use super::Trouble;
use super::cycle::Cycles;
use super::experiment::{Lasting, Load, Sessions};
use crate::pace::Pace;
use crate::pick::{self, Picker};
use crate::record::Record;
use crate::replay::{Log, Site, Workload};
use crate::run::{self, Limits, Run};
use crate::target::{Http, Iiop, Request, Target};

/// The load, with shares of a capacity converted to rates.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Drive {
    /// An open loop, in requests per second.
    Open(f64),
    /// A closed loop with this many clients.
    Closed(usize),
}

/// The maximum time that a client waits for the one before it.
const TURN: Duration = Duration::from_millis(20);

/// The clients of a point: one generator for each balancer, or for each client of groups, with its part of
/// the load.
#[derive(Debug)]
pub(super) enum Clients {
    /// Generators of independent requests.
    Runs(Vec<Run>),
    /// Cycles of an application.
    Cycles(Cycles),
}

impl Clients {
    /// Returns the time since the load began.
    pub(super) fn elapsed(&self) -> Duration {
        match self {
            Self::Runs(runs) => runs.first().map_or(Duration::ZERO, Run::elapsed),
            Self::Cycles(cycles) => cycles.elapsed(),
        }
    }

    /// Takes the results since the last call.
    pub(super) fn take(&self) -> Record {
        match self {
            Self::Runs(runs) => {
                let mut all = Record::new();
                for run in runs {
                    all.add(&run.take());
                }
                all
            }
            Self::Cycles(cycles) => cycles.take(),
        }
    }

    /// Returns `true` if all due requests have ended.
    pub(super) fn finished(&self) -> bool {
        match self {
            Self::Runs(runs) => runs.iter().all(Run::finished),
            Self::Cycles(cycles) => cycles.finished(),
        }
    }

    /// Returns the busy times of an emulated agent beside the clients, in seconds: its threads, and its
    /// processor.
    pub(super) fn agent(&self) -> Option<(f64, f64)> {
        match self {
            Self::Runs(_) => None,
            Self::Cycles(cycles) => Some(cycles.used()),
        }
    }

    /// Stops and joins the clients.
    pub(super) fn end(self) -> Result<(), Trouble> {
        let runs = match self {
            Self::Runs(runs) => runs,
            Self::Cycles(cycles) => return cycles.end(),
        };
        runs.iter().for_each(Run::stop);
        for run in runs {
            run.join().map_err(|error| Trouble::failed(format!("the load generator failed: {error}")))?;
        }
        Ok(())
    }
}

/// The destination of the load.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Door {
    /// The address of an HTTP server.
    Http(SocketAddr),
    /// The reference of an object.
    Iiop(String),
    /// A lottery that picks the destination of each request.
    Pick(pick::Settings),
}

/// The lines of the replayed log: more than most points send, so that the points send different ones.
const LINES: usize = 20_000;

/// Returns the access log for the replay, the same in all points of all runs.
pub(super) fn log() -> String {
    Site::of_the_report(LINES).log(1)
}

/// Starts the load at the `doors`, split evenly, for the given time. A part of Poisson arrivals is Poisson
/// itself, and so is their sum. Clients of groups use the doors in turn; their shares refer to `concurrency`.
pub(super) fn start(
    load: &Load,
    drive: Drive,
    concurrency: usize,
    doors: &[Door],
    lasting: Lasting,
    seed: u64,
    picker: pick::Open,
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
        // Each part needs its own seed; the first keeps that of the whole.
        let seed = seed.wrapping_add((index as u64) << 32);
        let think = client.and_then(|client| client.think).map_or(Duration::ZERO, |span| span.0);
        let limits = Limits {
            timeout: load.timeout.0,
            reuse: load.keep_alive,
            connections: client.map(|_| 1),
            think,
            ..Limits::default()
        };
        let of = Part { drive: part, lasting, seed, limits };
        runs.push(one(load, door, of, picker)?);
        if let (Some(run), true) = (runs.last(), client.is_some()) {
            connected(run);
        }
    }
    Ok(Clients::Runs(runs))
}

/// Waits for the first request of a client, so that the next one follows it and does not coincide: the
/// assignment of members in turn is part of the measurement.
fn connected(run: &Run) {
    while run.in_flight() == 0 && run.elapsed() < TURN {
        std::thread::sleep(TURN / 200);
    }
}

/// Returns the part of the clients that uses one of `count` balancers.
fn share(clients: usize, index: usize, count: usize) -> usize {
    clients / count + usize::from(index < clients % count)
}

/// The work of one generator.
struct Part {
    drive: Drive,
    lasting: Lasting,
    seed: u64,
    limits: Limits,
}

fn one(load: &Load, door: &Door, part: Part, picker: pick::Open) -> Result<Run, Trouble> {
    let failed = |error: &dyn std::fmt::Display| Trouble::failed(format!("cannot send load: {error}"));
    let run = match door {
        Door::Iiop(reference) => {
            let target = Iiop::new(reference, true).map_err(|error| failed(&error))?;
            begin(load, target, None, part)
        }
        Door::Http(address) => {
            let make = |method: &str, headers: &[(&str, &str)], body: &[u8]| {
                Request::new(method, &format!("http://{address}/"), headers, body)
            };
            begin(load, requests(load, make)?, None, part)
        }
        Door::Pick(lottery) => {
            let make = |method: &str, headers: &[(&str, &str)], body: &[u8]| {
                Request::named(method, &format!("http://{}/", lottery.service), headers, body)
            };
            let picker = picker(lottery).map_err(|why| failed(&why))?;
            begin(load, requests(load, make)?, Some(picker), part)
        }
    };
    run.map_err(|error| failed(&error))
}

/// Returns the requests: the same page repeatedly, or those of the log in order.
fn requests<E: std::fmt::Display>(
    load: &Load,
    make: impl Fn(&str, &[(&str, &str)], &[u8]) -> Result<Request, E>,
) -> Result<Http, Trouble> {
    let failed = |error: &dyn std::fmt::Display| Trouble::failed(format!("cannot send load: {error}"));
    let body: Vec<u8> = (0..load.body.map_or(0, |body| body.0)).map(|n| n as u8).collect();
    let method = if load.body.is_some() { "POST" } else { "GET" };
    let close: &[(&str, &str)] = if load.keep_alive { &[] } else { &[("connection", "close")] };
    let first = make(method, close, &body).map_err(|error| failed(&error))?;
    let requests = match load.workload {
        None => vec![first],
        Some(workload) => replayed(&first, workload).map_err(|error| failed(&error))?,
    };
    Http::sequence(requests).map_err(|error| failed(&error))
}

/// Returns the requests of the log, with the destination of `first`.
fn replayed(first: &Request, workload: Workload) -> Result<Vec<Request>, String> {
    let log = Log::read(log().as_bytes(), workload, 1).map_err(|error| error.to_string())?;
    let mut known: HashMap<&str, Request> = HashMap::new();
    let mut requests = Vec::with_capacity(log.entries.len());
    for entry in &log.entries {
        let request = match known.get(entry.path.as_str()) {
            Some(known) => known.clone(),
            None => first.with(&entry.method, &entry.path).map_err(|error| error.to_string())?,
        };
        requests.push(known.entry(&entry.path).or_insert(request).clone());
    }
    Ok(requests)
}

fn begin<T: Target + Send + 'static>(
    load: &Load,
    target: T,
    picker: Option<Box<dyn Picker>>,
    part: Part,
) -> std::io::Result<Run> {
    let Part { drive, lasting, seed, limits } = part;
    match drive {
        Drive::Open(rate) => {
            let pace = Pace::shaped(load.arrival, load.shape(rate, lasting), lasting.whole, seed);
            run::start_by(target, picker, pace, limits)
        }
        Drive::Closed(clients) => run::closed_by(target, picker, clients, lasting.whole, limits),
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

    #[test]
    fn a_replay_asks_for_the_pages_of_the_log_in_their_order() {
        let first = Request::named("GET", "http://lab/", &[("connection", "close")], b"").unwrap();
        let all = replayed(&first, Workload::All).unwrap();
        let plain = replayed(&first, Workload::Static).unwrap();
        assert_eq!(all.len(), LINES);
        // Workload B is workload A without dynamic pages.
        assert!((0.88..0.92).contains(&(plain.len() as f64 / LINES as f64)), "{}", plain.len());
        let text = log();
        let path = |line: usize| text.lines().nth(line).unwrap().split(' ').nth(6).unwrap().to_owned();
        for (request, line) in [(&all[0], 0), (&all[LINES - 1], LINES - 1)] {
            let bytes = request.clone().into_bytes();
            let head = std::str::from_utf8(&bytes).unwrap();
            assert!(
                head.starts_with(&format!("GET {} HTTP/1.1\r\nhost: lab\r\nconnection: close", path(line))),
                "{head}"
            );
        }
    }
}
