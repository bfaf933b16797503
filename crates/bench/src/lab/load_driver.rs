//! The load of a point: the open or the closed loop of [`run`], on a thread for each balancer.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::Duration;

use super::LabError;
use super::app_clients::AppClients;
use super::experiment::{ClientGroup, LoadDuration, LoadSettings};
use crate::pace::RequestPacer;
use crate::pick::{self, MemberPicker};
use crate::record::RunRecord;
use crate::replay::{AccessLog, ReplayWorkload, SyntheticSite};
use crate::run::{self, LoadRun, RunLimits};
use crate::target::{HttpRequest, HttpTarget, IiopTarget, RequestTarget};

/// The load, with shares of a capacity converted to rates.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum LoadLoop {
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
pub(super) enum LoadClients {
    /// Generators of independent requests.
    Generators(Vec<LoadRun>),
    /// Cycles of an application.
    AppClients(AppClients),
}

impl LoadClients {
    /// Returns the time since the load began.
    pub(super) fn elapsed(&self) -> Duration {
        match self {
            Self::Generators(runs) => runs.first().map_or(Duration::ZERO, LoadRun::elapsed),
            Self::AppClients(cycles) => cycles.elapsed(),
        }
    }

    /// Takes the results since the last call.
    pub(super) fn take_record(&self) -> RunRecord {
        match self {
            Self::Generators(runs) => {
                let mut all = RunRecord::new();
                for run in runs {
                    all.merge(&run.take_record());
                }
                all
            }
            Self::AppClients(cycles) => cycles.take_record(),
        }
    }

    /// Returns `true` if all due requests have ended.
    pub(super) fn is_finished(&self) -> bool {
        match self {
            Self::Generators(runs) => runs.iter().all(LoadRun::is_finished),
            Self::AppClients(cycles) => cycles.is_finished(),
        }
    }

    /// Returns the busy times of an emulated agent beside the clients, in seconds: its threads, and its
    /// processor.
    pub(super) fn agent_busy_times(&self) -> Option<(f64, f64)> {
        match self {
            Self::Generators(_) => None,
            Self::AppClients(cycles) => Some(cycles.agent_busy_times()),
        }
    }

    /// Stops and joins the clients.
    pub(super) fn stop(self) -> Result<(), LabError> {
        let runs = match self {
            Self::Generators(runs) => runs,
            Self::AppClients(cycles) => return cycles.stop_clients(),
        };
        runs.iter().for_each(LoadRun::stop);
        for run in runs {
            run.join().map_err(|error| LabError::failed(format!("the load generator failed: {error}")))?;
        }
        Ok(())
    }
}

/// The destination of the load.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum LoadDestination {
    /// The address of an HTTP server.
    Http(SocketAddr),
    /// The reference of an object.
    Iiop(String),
    /// A lottery that picks the destination of each request.
    Lottery(pick::PickerSettings),
}

/// The lines of the replayed log: more than most points send, so that the points send different ones.
const LINES: usize = 20_000;

/// Returns the access log for the replay, the same in all points of all runs.
pub(super) fn replay_log() -> String {
    SyntheticSite::ags_report(LINES).generate_log(1)
}

/// Starts the load at the `doors`, split evenly, for the given time. A part of Poisson arrivals is Poisson
/// itself, and so is their sum. Clients of groups use the doors in turn; their shares refer to `concurrency`.
pub(super) fn start_load(
    load: &LoadSettings,
    drive: LoadLoop,
    concurrency: usize,
    doors: &[LoadDestination],
    lasting: LoadDuration,
    seed: u64,
    picker: pick::OpenPicker,
) -> Result<LoadClients, LabError> {
    let mut parts = Vec::new();
    let each = load.client_groups(concurrency);
    if each.is_empty() {
        let count = doors.len().max(1);
        for index in 0..doors.len() {
            let part = match drive {
                LoadLoop::Open(rate) => LoadLoop::Open(rate / count as f64),
                LoadLoop::Closed(clients) => LoadLoop::Closed(share(clients, index, count)),
            };
            parts.push((part, None));
        }
    } else {
        let part = |client: &ClientGroup| client.rate.map_or(LoadLoop::Closed(1), LoadLoop::Open);
        parts.extend(each.into_iter().map(|client| (part(&client), Some(client))));
    }
    let mut runs = Vec::new();
    for (index, ((part, client), door)) in parts.into_iter().zip(doors.iter().cycle()).enumerate() {
        // Each part needs its own seed; the first keeps that of the whole.
        let seed = seed.wrapping_add((index as u64) << 32);
        let think = client.and_then(|client| client.think).map_or(Duration::ZERO, |span| span.0);
        let limits = RunLimits {
            timeout: load.timeout.0,
            reuse_connections: load.keep_alive,
            max_connections: client.map(|_| 1),
            think_time: think,
            ..RunLimits::default()
        };
        let of = GeneratorShare { drive: part, lasting, seed, limits };
        runs.push(start_generator(load, door, of, picker)?);
        if let (Some(run), true) = (runs.last(), client.is_some()) {
            connected(run);
        }
    }
    Ok(LoadClients::Generators(runs))
}

/// Waits for the first request of a client, so that the next one follows it and does not coincide: the
/// assignment of members in turn is part of the measurement.
fn connected(run: &LoadRun) {
    while run.in_flight() == 0 && run.elapsed() < TURN {
        std::thread::sleep(TURN / 200);
    }
}

/// Returns the part of the clients that uses one of `count` balancers.
fn share(clients: usize, index: usize, count: usize) -> usize {
    clients / count + usize::from(index < clients % count)
}

/// The work of one generator.
struct GeneratorShare {
    drive: LoadLoop,
    lasting: LoadDuration,
    seed: u64,
    limits: RunLimits,
}

fn start_generator(
    load: &LoadSettings,
    door: &LoadDestination,
    part: GeneratorShare,
    picker: pick::OpenPicker,
) -> Result<LoadRun, LabError> {
    let failed = |error: &dyn std::fmt::Display| LabError::failed(format!("cannot send load: {error}"));
    let run = match door {
        LoadDestination::Iiop(reference) => {
            let target = IiopTarget::new(reference, true).map_err(|error| failed(&error))?;
            begin(load, target, None, part)
        }
        LoadDestination::Http(address) => {
            let make = |method: &str, headers: &[(&str, &str)], body: &[u8]| {
                HttpRequest::new(method, &format!("http://{address}/"), headers, body)
            };
            begin(load, requests(load, make)?, None, part)
        }
        LoadDestination::Lottery(lottery) => {
            let make = |method: &str, headers: &[(&str, &str)], body: &[u8]| {
                HttpRequest::without_destination(
                    method,
                    &format!("http://{}/", lottery.service),
                    headers,
                    body,
                )
            };
            let picker = picker(lottery).map_err(|why| failed(&why))?;
            begin(load, requests(load, make)?, Some(picker), part)
        }
    };
    run.map_err(|error| failed(&error))
}

/// Returns the requests: the same page repeatedly, or those of the log in order.
fn requests<E: std::fmt::Display>(
    load: &LoadSettings,
    make: impl Fn(&str, &[(&str, &str)], &[u8]) -> Result<HttpRequest, E>,
) -> Result<HttpTarget, LabError> {
    let failed = |error: &dyn std::fmt::Display| LabError::failed(format!("cannot send load: {error}"));
    let body: Vec<u8> = (0..load.body.map_or(0, |body| body.0)).map(|n| n as u8).collect();
    let method = if load.body.is_some() { "POST" } else { "GET" };
    let close: &[(&str, &str)] = if load.keep_alive { &[] } else { &[("connection", "close")] };
    let first = make(method, close, &body).map_err(|error| failed(&error))?;
    let requests = match load.workload {
        None => vec![first],
        Some(workload) => replayed(&first, workload).map_err(|error| failed(&error))?,
    };
    HttpTarget::sequence(requests).map_err(|error| failed(&error))
}

/// Returns the requests of the log, with the destination of `first`.
fn replayed(first: &HttpRequest, workload: ReplayWorkload) -> Result<Vec<HttpRequest>, String> {
    let log = AccessLog::read(replay_log().as_bytes(), workload, 1).map_err(|error| error.to_string())?;
    let mut known: HashMap<&str, HttpRequest> = HashMap::new();
    let mut requests = Vec::with_capacity(log.entries.len());
    for entry in &log.entries {
        let request = match known.get(entry.path.as_str()) {
            Some(known) => known.clone(),
            None => first.with_path(&entry.method, &entry.path).map_err(|error| error.to_string())?,
        };
        requests.push(known.entry(&entry.path).or_insert(request).clone());
    }
    Ok(requests)
}

fn begin<T: RequestTarget + Send + 'static>(
    load: &LoadSettings,
    target: T,
    picker: Option<Box<dyn MemberPicker>>,
    part: GeneratorShare,
) -> std::io::Result<LoadRun> {
    let GeneratorShare { drive, lasting, seed, limits } = part;
    match drive {
        LoadLoop::Open(rate) => {
            let pace =
                RequestPacer::with_shape(load.arrival, load.rate_shape(rate, lasting), lasting.total, seed);
            run::start_with_picker(target, picker, pace, limits)
        }
        LoadLoop::Closed(clients) => {
            run::start_closed_loop_with_picker(target, picker, clients, lasting.total, limits)
        }
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
        let first =
            HttpRequest::without_destination("GET", "http://lab/", &[("connection", "close")], b"").unwrap();
        let all = replayed(&first, ReplayWorkload::All).unwrap();
        let plain = replayed(&first, ReplayWorkload::Static).unwrap();
        assert_eq!(all.len(), LINES);
        // Workload B is workload A without dynamic pages.
        assert!((0.88..0.92).contains(&(plain.len() as f64 / LINES as f64)), "{}", plain.len());
        let text = replay_log();
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
