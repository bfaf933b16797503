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
const CONNECT_WAIT: Duration = Duration::from_millis(20);

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
            Self::AppClients(app_clients) => app_clients.elapsed(),
        }
    }

    /// Takes the results since the last call.
    pub(super) fn take_record(&self) -> RunRecord {
        match self {
            Self::Generators(runs) => {
                let mut total = RunRecord::new();
                for run in runs {
                    total.merge(&run.take_record());
                }
                total
            }
            Self::AppClients(app_clients) => app_clients.take_record(),
        }
    }

    /// Returns `true` if all due requests have ended.
    pub(super) fn is_finished(&self) -> bool {
        match self {
            Self::Generators(runs) => runs.iter().all(LoadRun::is_finished),
            Self::AppClients(app_clients) => app_clients.is_finished(),
        }
    }

    /// Returns the busy times of an emulated agent beside the clients, in seconds: its threads, and its
    /// processor.
    pub(super) fn agent_busy_times(&self) -> Option<(f64, f64)> {
        match self {
            Self::Generators(_) => None,
            Self::AppClients(app_clients) => Some(app_clients.agent_busy_times()),
        }
    }

    /// Stops and joins the clients.
    pub(super) fn stop(self) -> Result<(), LabError> {
        let runs = match self {
            Self::Generators(runs) => runs,
            Self::AppClients(app_clients) => return app_clients.stop_clients(),
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
const LOG_LINES: usize = 20_000;

/// Returns the access log for the replay, the same in all points of all runs.
pub(super) fn replay_log() -> String {
    SyntheticSite::ags_report(LOG_LINES).generate_log(1)
}

/// Starts the load at the `doors`, split evenly, for the given time. A part of Poisson arrivals is Poisson
/// itself, and so is their sum. Clients of groups use the doors in turn; their shares refer to `concurrency`.
pub(super) fn start_load(
    load: &LoadSettings,
    load_loop: LoadLoop,
    concurrency: usize,
    destinations: &[LoadDestination],
    load_duration: LoadDuration,
    seed: u64,
    open_picker: pick::OpenPicker,
) -> Result<LoadClients, LabError> {
    let mut load_loops = Vec::new();
    let client_groups = load.client_groups(concurrency);
    if client_groups.is_empty() {
        let count = destinations.len().max(1);
        for index in 0..destinations.len() {
            let load_loop = match load_loop {
                LoadLoop::Open(rate) => LoadLoop::Open(rate / count as f64),
                LoadLoop::Closed(clients) => LoadLoop::Closed(client_share(clients, index, count)),
            };
            load_loops.push((load_loop, None));
        }
    } else {
        let client_loop = |client: &ClientGroup| client.rate.map_or(LoadLoop::Closed(1), LoadLoop::Open);
        load_loops.extend(client_groups.into_iter().map(|client| (client_loop(&client), Some(client))));
    }
    let mut runs = Vec::new();
    for (index, ((load_loop, client), destination)) in
        load_loops.into_iter().zip(destinations.iter().cycle()).enumerate()
    {
        // Each part needs its own seed; the first keeps that of the whole.
        let seed = seed.wrapping_add((index as u64) << 32);
        let think_time = client.and_then(|client| client.think).map_or(Duration::ZERO, |duration| duration.0);
        let limits = RunLimits {
            timeout: load.timeout.0,
            reuse_connections: load.keep_alive,
            max_connections: client.map(|_| 1),
            think_time,
            ..RunLimits::default()
        };
        let generator_share = GeneratorShare { load_loop, load_duration, seed, limits };
        runs.push(start_generator(load, destination, generator_share, open_picker)?);
        if let (Some(run), true) = (runs.last(), client.is_some()) {
            wait_until_connected(run);
        }
    }
    Ok(LoadClients::Generators(runs))
}

/// Waits for the first request of a client, so that the next one follows it and does not coincide: the
/// assignment of members in turn is part of the measurement.
fn wait_until_connected(run: &LoadRun) {
    while run.in_flight() == 0 && run.elapsed() < CONNECT_WAIT {
        std::thread::sleep(CONNECT_WAIT / 200);
    }
}

/// Returns the part of the clients that uses one of `count` balancers.
fn client_share(clients: usize, index: usize, count: usize) -> usize {
    clients / count + usize::from(index < clients % count)
}

/// The work of one generator.
struct GeneratorShare {
    load_loop: LoadLoop,
    load_duration: LoadDuration,
    seed: u64,
    limits: RunLimits,
}

fn start_generator(
    load: &LoadSettings,
    destination: &LoadDestination,
    share: GeneratorShare,
    open_picker: pick::OpenPicker,
) -> Result<LoadRun, LabError> {
    let send_error = |error: &dyn std::fmt::Display| LabError::failed(format!("cannot send load: {error}"));
    let run = match destination {
        LoadDestination::Iiop(reference) => {
            let target = IiopTarget::new(reference, true).map_err(|error| send_error(&error))?;
            start_run(load, target, None, share)
        }
        LoadDestination::Http(address) => {
            let build_request = |method: &str, headers: &[(&str, &str)], body: &[u8]| {
                HttpRequest::new(method, &format!("http://{address}/"), headers, body)
            };
            start_run(load, requests(load, build_request)?, None, share)
        }
        LoadDestination::Lottery(lottery) => {
            let build_request = |method: &str, headers: &[(&str, &str)], body: &[u8]| {
                HttpRequest::without_destination(
                    method,
                    &format!("http://{}/", lottery.service),
                    headers,
                    body,
                )
            };
            let picker = open_picker(lottery).map_err(|message| send_error(&message))?;
            start_run(load, requests(load, build_request)?, Some(picker), share)
        }
    };
    run.map_err(|error| send_error(&error))
}

/// Returns the requests: the same page repeatedly, or those of the log in order.
fn requests<E: std::fmt::Display>(
    load: &LoadSettings,
    build_request: impl Fn(&str, &[(&str, &str)], &[u8]) -> Result<HttpRequest, E>,
) -> Result<HttpTarget, LabError> {
    let send_error = |error: &dyn std::fmt::Display| LabError::failed(format!("cannot send load: {error}"));
    let body: Vec<u8> = (0..load.body.map_or(0, |body| body.0)).map(|n| n as u8).collect();
    let method = if load.body.is_some() { "POST" } else { "GET" };
    let extra_headers: &[(&str, &str)] = if load.keep_alive { &[] } else { &[("connection", "close")] };
    let first = build_request(method, extra_headers, &body).map_err(|error| send_error(&error))?;
    let requests = match load.workload {
        None => vec![first],
        Some(workload) => replay_requests(&first, workload).map_err(|error| send_error(&error))?,
    };
    HttpTarget::sequence(requests).map_err(|error| send_error(&error))
}

/// Returns the requests of the log, with the destination of `first`.
fn replay_requests(first: &HttpRequest, workload: ReplayWorkload) -> Result<Vec<HttpRequest>, String> {
    let log = AccessLog::read(replay_log().as_bytes(), workload, 1).map_err(|error| error.to_string())?;
    let mut requests_by_path: HashMap<&str, HttpRequest> = HashMap::new();
    let mut requests = Vec::with_capacity(log.entries.len());
    for entry in &log.entries {
        let request = match requests_by_path.get(entry.path.as_str()) {
            Some(request) => request.clone(),
            None => first.with_path(&entry.method, &entry.path).map_err(|error| error.to_string())?,
        };
        requests.push(requests_by_path.entry(&entry.path).or_insert(request).clone());
    }
    Ok(requests)
}

fn start_run<T: RequestTarget + Send + 'static>(
    load: &LoadSettings,
    target: T,
    picker: Option<Box<dyn MemberPicker>>,
    share: GeneratorShare,
) -> std::io::Result<LoadRun> {
    let GeneratorShare { load_loop, load_duration, seed, limits } = share;
    match load_loop {
        LoadLoop::Open(rate) => {
            let pacer = RequestPacer::with_shape(
                load.arrival,
                load.rate_shape(rate, load_duration),
                load_duration.total,
                seed,
            );
            run::start_with_picker(target, picker, pacer, limits)
        }
        LoadLoop::Closed(clients) => {
            run::start_closed_loop_with_picker(target, picker, clients, load_duration.total, limits)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_client_is_lost_in_the_split() {
        let shares: Vec<usize> = (0..3).map(|index| client_share(8, index, 3)).collect();
        assert_eq!(shares, [3, 3, 2]);
        assert_eq!((client_share(8, 0, 1), client_share(1, 1, 2)), (8, 0));
    }

    #[test]
    fn a_replay_asks_for_the_pages_of_the_log_in_their_order() {
        let first =
            HttpRequest::without_destination("GET", "http://lab/", &[("connection", "close")], b"").unwrap();
        let all_requests = replay_requests(&first, ReplayWorkload::All).unwrap();
        let static_requests = replay_requests(&first, ReplayWorkload::Static).unwrap();
        assert_eq!(all_requests.len(), LOG_LINES);
        // Workload B is workload A without dynamic pages.
        assert!(
            (0.88..0.92).contains(&(static_requests.len() as f64 / LOG_LINES as f64)),
            "{}",
            static_requests.len()
        );
        let text = replay_log();
        let path = |line: usize| text.lines().nth(line).unwrap().split(' ').nth(6).unwrap().to_owned();
        for (request, line) in [(&all_requests[0], 0), (&all_requests[LOG_LINES - 1], LOG_LINES - 1)] {
            let bytes = request.clone().into_bytes();
            let head = std::str::from_utf8(&bytes).unwrap();
            assert!(
                head.starts_with(&format!("GET {} HTTP/1.1\r\nhost: lab\r\nconnection: close", path(line))),
                "{head}"
            );
        }
    }
}
