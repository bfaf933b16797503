//! Measurements before the first point: the capacity that shares of load refer to, and the cost of real work
//! and of a real session on this machine.
//!
//! The capacity is the throughput of a closed loop with four clients for each worker, through the balancer of
//! the first point with one. That load keeps every worker busy and is too low to time out.
//!
//! Work is timed in this process. A session is timed at a simple server with a thread for each connection.
//! Its cost is the processor time of those threads for a request on a new connection, less that for a request
//! on a persistent connection. (It excludes the kernel's work for the server in the client's time.) The time
//! of a call beyond its work is measured by one client of an application ([`wire`]).

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use rustix::time::ClockId;
use serde::{Deserialize, Serialize};

use super::child_process::ProcessLauncher;
use super::experiment::{BalancerKind, Experiment, LoadDuration, SessionCost};
use super::load_driver::LoadLoop;
use super::plan::{ExperimentPoint, OfferedLoad};
use super::statistics::Estimate;
use super::testbed::Testbed;
use super::{LabError, RunObserver};
use crate::member::shuffle;
use crate::rng::SplitMix64;

mod wire;

pub use wire::WireTimes;

/// The measurements before the first point.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Calibration {
    /// The seconds that the swaps take.
    pub swaps: Option<f64>,
    /// The seconds of processor time that a session costs a server.
    pub session: Option<f64>,
    /// The requests per second of each part of the calibration.
    pub capacity: Vec<f64>,
    /// The requests per second, where they follow from the members' settings.
    #[serde(default)]
    pub computed: Option<f64>,
    /// The times of the network and the relay by protocol, where a model needs them.
    #[serde(default)]
    pub wires: BTreeMap<String, WireTimes>,
}

/// The parts of the calibration, each a sample, and their length.
const INTERVALS: u32 = 5;
const INTERVAL: Duration = Duration::from_millis(600);
/// The clients for each worker.
const CLIENTS_PER_WORKER: usize = 4;
/// The timed rounds of the work, and the timed requests of each kind.
const ROUNDS: usize = 2000;
const REQUESTS: usize = 500;
/// The rounds of these requests, of which the median counts.
const SESSIONS: usize = 7;

impl Calibration {
    /// Measures what the experiment needs; leaves logs in `folder`.
    pub(super) fn measure(
        launcher: &ProcessLauncher,
        experiment: &Experiment,
        points: &[ExperimentPoint],
        folder: &Path,
        observer: &mut dyn RunObserver,
    ) -> Result<Self, LabError> {
        let mut calibration = Self::default();
        if let Some(session) = experiment.members.first().session {
            let timing_error = |error: io::Error| LabError::failed(format!("cannot time a session: {error}"));
            calibration.swaps = Some(swap_seconds(session));
            calibration.session = Some(session_cpu_seconds(session.integers * 4).map_err(timing_error)?);
        }
        if let Some(point) = points.iter().find(|point| matches!(point.load, OfferedLoad::Share(_))) {
            let balanced_point =
                points.iter().find(|point| point.balancer.kind != BalancerKind::None).unwrap_or(point);
            calibration.computed = experiment.members.capacity(balanced_point.members);
            if calibration.computed.is_none() {
                calibration.capacity =
                    calibration.measure_capacity(launcher, experiment, balanced_point, folder, observer)?;
            }
        }
        if experiment.model.as_ref().is_some_and(|model| model.get_ref().needs_wire_times()) {
            calibration.wires = wire::measure(launcher, experiment, points, folder, observer)?;
        }
        let summary = calibration.sentences(experiment).join("; ");
        if !summary.is_empty() {
            observer.on_calibration(&summary);
        }
        Ok(calibration)
    }

    /// Returns the requests per second that the members can serve.
    pub fn capacity(&self) -> Option<f64> {
        self.computed.or_else(|| Estimate::of(&self.capacity).map(|estimate| estimate.mean))
    }

    /// Returns a sentence for each result.
    pub fn sentences(&self, experiment: &Experiment) -> Vec<String> {
        let mut sentences = Vec::new();
        if let (Some(swaps), Some(session), Some(cost)) =
            (self.swaps, self.session, experiment.members.first().session)
        {
            sentences.push(format!(
                "{} swaps of {} integers take {:.1} µs here, a session costs a server with a thread for each \
                 connection {:.1} µs of processor time, {:.0} % of that",
                cost.swaps,
                cost.integers,
                swaps * 1e6,
                session * 1e6,
                session / swaps * 100.0
            ));
            if let Some(service) = experiment.members.first().service {
                let session_seconds = self.session_time(experiment).as_secs_f64();
                sentences.push(format!(
                    "emulated members take {:.0} times as long: {:.1} ms for a request, {:.1} ms more for \
                     the first of \
                     a connection",
                    service.mean().as_secs_f64() / swaps,
                    service.mean().as_secs_f64() * 1e3,
                    session_seconds * 1e3
                ));
            }
        }
        if let Some(capacity) = self.computed {
            sentences.push(format!(
                "the capacity is {capacity:.0} requests/s, by the members' cores, their speed and the mean \
                 work"
            ));
        }
        for (protocol, wire_times) in &self.wires {
            sentences.push(format!(
                "over {protocol} choosing a server and telling or bringing it takes {:.2} ms, a call {:.2} \
                 ms beside its \
                 work",
                wire_times.relay * 1e3,
                wire_times.reach * 1e3
            ));
        }
        if let Some(capacity) = Estimate::of(&self.capacity) {
            sentences.push(format!(
                "the capacity is {:.0} ± {:.0} requests/s",
                capacity.mean, capacity.half_width
            ));
        }
        sentences
    }

    /// Returns the additional time for which an emulated member holds the first request of a connection.
    pub(super) fn session_time(&self, experiment: &Experiment) -> Duration {
        match (self.swaps, self.session, experiment.members.first().service) {
            (Some(swaps), Some(session), Some(service)) => {
                service.mean().mul_f64((session / swaps).min(100.0))
            }
            _ => Duration::ZERO,
        }
    }

    /// Returns the load of a point.
    pub(super) fn load_loop(&self, offered_load: OfferedLoad) -> Result<LoadLoop, LabError> {
        match (offered_load, self.capacity()) {
            (OfferedLoad::Concurrency(clients), _) => Ok(LoadLoop::Closed(clients)),
            (OfferedLoad::Rate(rate), _) => Ok(LoadLoop::Open(rate)),
            (OfferedLoad::Share(share), Some(capacity)) => Ok(LoadLoop::Open(share * capacity)),
            (OfferedLoad::Share(_), None) => Err(LabError::failed("the capacity was not measured")),
        }
    }

    fn measure_capacity(
        &self,
        launcher: &ProcessLauncher,
        experiment: &Experiment,
        point: &ExperimentPoint,
        folder: &Path,
        observer: &mut dyn RunObserver,
    ) -> Result<Vec<f64>, LabError> {
        observer.on_calibration("measuring the capacity");
        // Without the bounds against overload: a closed loop would repeat rejected requests at once.
        let mut unlimited = experiment.clone();
        unlimited.balancer.max_connections = None;
        let testbed = Testbed::build(launcher, &unlimited, point, self.session_time(experiment), folder)?;
        let clients = CLIENTS_PER_WORKER * experiment.members.first().workers * point.members;
        let mut load = experiment.load.clone();
        load.keep_alive = true;
        let load_duration = LoadDuration { warmup: Duration::ZERO, total: INTERVAL * (INTERVALS + 2) };
        let load_clients =
            testbed.start_load(&load, LoadLoop::Closed(clients), point.load, load_duration, point.seed)?;
        let mut capacity = Vec::new();
        let (mut last_interval_end, mut number) = (Duration::ZERO, 0);
        while number <= INTERVALS {
            std::thread::sleep(Duration::from_millis(5));
            if observer.is_interrupted() {
                return Err(LabError::Interrupted);
            }
            let now = load_clients.elapsed();
            if now >= INTERVAL * (number + 1) {
                let rate = load_clients.take_record().ok as f64 / (now - last_interval_end).as_secs_f64();
                // The first part is a warm-up.
                if number > 0 {
                    capacity.push(rate);
                }
                (last_interval_end, number) = (now, number + 1);
            }
        }
        if capacity.iter().sum::<f64>() <= 0.0 {
            return Err(LabError::failed("nothing was answered while the capacity was measured"));
        }
        Ok(capacity)
    }
}

/// Returns the seconds that the swaps take: the median of many rounds.
fn swap_seconds(session: SessionCost) -> f64 {
    let mut bytes: Vec<u8> = (0..session.integers * 4).map(|n| n as u8).collect();
    let mut rng = SplitMix64::new(1);
    let mut rounds: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let start = Instant::now();
            shuffle(std::hint::black_box(&mut bytes), session.swaps, &mut rng);
            start.elapsed().as_secs_f64()
        })
        .collect();
    rounds.sort_by(f64::total_cmp);
    rounds[ROUNDS / 2]
}

/// Returns the processor time in seconds that a new connection costs a server beyond a request of `bytes`
/// bytes.
fn session_cpu_seconds(bytes: usize) -> io::Result<f64> {
    let mut rounds = Vec::new();
    for _ in 0..SESSIONS {
        rounds.push((cpu_per_request(bytes, 1)? - cpu_per_request(bytes, REQUESTS)?).max(0.0));
    }
    rounds.sort_by(f64::total_cmp);
    Ok(rounds[SESSIONS / 2])
}

/// Returns the server's processor time in seconds for a request, with `on_each` requests on each connection.
fn cpu_per_request(bytes: usize, requests_per_connection: usize) -> io::Result<f64> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let cpu_nanos = Arc::new(AtomicU64::new(0));
    let connections = REQUESTS / requests_per_connection;
    let server = {
        let cpu_nanos = cpu_nanos.clone();
        std::thread::spawn(move || -> io::Result<()> {
            let mut threads = Vec::new();
            for _ in 0..connections {
                let (stream, _) = listener.accept()?;
                let cpu_nanos = cpu_nanos.clone();
                threads.push(std::thread::spawn(move || {
                    let result = answer(stream, bytes);
                    cpu_nanos.fetch_add(thread_nanos(), Relaxed);
                    result
                }));
            }
            cpu_nanos.fetch_add(thread_nanos(), Relaxed);
            threads.into_iter().try_for_each(|thread| thread.join().unwrap_or(Ok(())))
        })
    };
    let message = vec![1u8; bytes];
    for _ in 0..connections {
        client(address, &message, requests_per_connection)?;
    }
    server.join().map_err(|_| io::Error::other("the server panicked"))??;
    Ok(cpu_nanos.load(Relaxed) as f64 / 1e9 / REQUESTS as f64)
}

/// Echoes every message until the connection ends.
fn answer(mut stream: TcpStream, message_bytes: usize) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut message = vec![0; message_bytes];
    while stream.read_exact(&mut message).is_ok() {
        stream.write_all(&message)?;
    }
    Ok(())
}

fn client(address: SocketAddr, message: &[u8], count: usize) -> io::Result<()> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    let mut answer = vec![0; message.len()];
    for _ in 0..count {
        stream.write_all(message)?;
        stream.read_exact(&mut answer)?;
    }
    Ok(())
}

/// Returns the processor time of this thread.
fn thread_nanos() -> u64 {
    let time = rustix::time::clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_grows_with_the_swaps_and_sessions_cost_something() {
        let few_swaps = swap_seconds(SessionCost { integers: 300, swaps: 100 });
        let many_swaps = swap_seconds(SessionCost { integers: 300, swaps: 10_000 });
        assert!(many_swaps > 10.0 * few_swaps, "{few_swaps} {many_swaps}");
        assert!(session_cpu_seconds(1200).unwrap() > 0.0);
    }
}
