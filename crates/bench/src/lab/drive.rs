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
pub(super) enum Clients {
    /// Requests that are all alike.
    Runs(Vec<Run>),
    /// Cycles of an application.
    Cycles(Cycles),
}

impl Clients {
    /// Since the load began.
    pub(super) fn elapsed(&self) -> Duration {
        match self {
            Self::Runs(runs) => runs.first().map_or(Duration::ZERO, Run::elapsed),
            Self::Cycles(cycles) => cycles.elapsed(),
        }
    }

    /// What ended since the last look.
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

    /// Has everything that was due ended?
    pub(super) fn finished(&self) -> bool {
        match self {
            Self::Runs(runs) => runs.iter().all(Run::finished),
            Self::Cycles(cycles) => cycles.finished(),
        }
    }

    /// Seconds for which an agent that is emulated beside the clients was busy: its threads, and its processor.
    pub(super) fn agent(&self) -> Option<(f64, f64)> {
        match self {
            Self::Runs(_) => None,
            Self::Cycles(cycles) => Some(cycles.used()),
        }
    }

    /// Ends it now.
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

/// Where the load goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Door {
    /// An HTTP server's address.
    Http(SocketAddr),
    /// Reference of an object.
    Iiop(String),
    /// A lottery that says where each request goes.
    Pick(pick::Settings),
}

/// Lines of the log that is replayed: more than are sent in most points, which then have different ones.
const LINES: usize = 20_000;

/// The access log whose requests are replayed, the same in all points of all runs.
pub(super) fn log() -> String {
    Site::of_the_report(LINES).log(1)
}

/// Starts the load at the `doors`, split evenly, for so long. A part of Poisson arrivals is one itself, and so is
/// their sum. Clients of groups go to the doors in turn; `concurrency` is what their shares are of.
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
        let of = Part { drive: part, lasting, seed, limits };
        runs.push(one(load, door, of, picker)?);
        if let (Some(run), true) = (runs.last(), client.is_some()) {
            connected(run);
        }
    }
    Ok(Clients::Runs(runs))
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

/// What one generator does.
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

/// What is asked for: always the same page, or those of the log one after another.
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

/// The requests of the log, to where the first one goes.
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
        // Workload B is workload A without what scripts make.
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
