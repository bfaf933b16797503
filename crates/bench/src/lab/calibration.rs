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
const PARTS: u32 = 5;
const PART: Duration = Duration::from_millis(600);
/// The clients for each worker.
const CLIENTS: usize = 4;
/// The timed rounds of the work, and the timed requests of each kind.
const ROUNDS: usize = 2000;
const REQUESTS: usize = 500;
/// The rounds of these requests, of which the median counts.
const SESSIONS: usize = 7;

impl Calibration {
    /// Measures what the experiment needs; leaves logs in `folder`.
    pub(super) fn measure(
        tie: &ProcessLauncher,
        experiment: &Experiment,
        points: &[ExperimentPoint],
        folder: &Path,
        watch: &mut dyn RunObserver,
    ) -> Result<Self, LabError> {
        let mut before = Self::default();
        if let Some(session) = experiment.members.first().session {
            let failed = |error: io::Error| LabError::failed(format!("cannot time a session: {error}"));
            before.swaps = Some(work(session));
            before.session = Some(self::session(session.integers * 4).map_err(failed)?);
        }
        if let Some(point) = points.iter().find(|point| matches!(point.load, OfferedLoad::Share(_))) {
            let first =
                points.iter().find(|point| point.balancer.kind != BalancerKind::None).unwrap_or(point);
            before.computed = experiment.members.capacity(first.members);
            if before.computed.is_none() {
                before.capacity = before.calibrate(tie, experiment, first, folder, watch)?;
            }
        }
        if experiment.model.as_ref().is_some_and(|model| model.get_ref().needs_wire_times()) {
            before.wires = wire::measure(tie, experiment, points, folder, watch)?;
        }
        let said = before.sentences(experiment).join("; ");
        if !said.is_empty() {
            watch.on_calibration(&said);
        }
        Ok(before)
    }

    /// Returns the requests per second that the members can serve.
    pub fn capacity(&self) -> Option<f64> {
        self.computed.or_else(|| Estimate::of(&self.capacity).map(|estimate| estimate.mean))
    }

    /// Returns a sentence for each result.
    pub fn sentences(&self, experiment: &Experiment) -> Vec<String> {
        let mut said = Vec::new();
        if let (Some(swaps), Some(session), Some(real)) =
            (self.swaps, self.session, experiment.members.first().session)
        {
            said.push(format!(
                "{} swaps of {} integers take {:.1} µs here, a session costs a server with a thread for each \
                 connection {:.1} µs of processor time, {:.0} % of that",
                real.swaps,
                real.integers,
                swaps * 1e6,
                session * 1e6,
                session / swaps * 100.0
            ));
            if let Some(service) = experiment.members.first().service {
                let held = self.session_time(experiment).as_secs_f64();
                said.push(format!(
                    "emulated members take {:.0} times as long: {:.1} ms for a request, {:.1} ms more for \
                     the first of \
                     a connection",
                    service.mean().as_secs_f64() / swaps,
                    service.mean().as_secs_f64() * 1e3,
                    held * 1e3
                ));
            }
        }
        if let Some(capacity) = self.computed {
            said.push(format!(
                "the capacity is {capacity:.0} requests/s, by the members' cores, their speed and the mean \
                 work"
            ));
        }
        for (protocol, wire) in &self.wires {
            said.push(format!(
                "over {protocol} choosing a server and telling or bringing it takes {:.2} ms, a call {:.2} \
                 ms beside its \
                 work",
                wire.relay * 1e3,
                wire.reach * 1e3
            ));
        }
        if let Some(capacity) = Estimate::of(&self.capacity) {
            said.push(format!(
                "the capacity is {:.0} ± {:.0} requests/s",
                capacity.mean, capacity.half_width
            ));
        }
        said
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
    pub(super) fn load_loop(&self, offer: OfferedLoad) -> Result<LoadLoop, LabError> {
        match (offer, self.capacity()) {
            (OfferedLoad::Concurrency(clients), _) => Ok(LoadLoop::Closed(clients)),
            (OfferedLoad::Rate(rate), _) => Ok(LoadLoop::Open(rate)),
            (OfferedLoad::Share(share), Some(capacity)) => Ok(LoadLoop::Open(share * capacity)),
            (OfferedLoad::Share(_), None) => Err(LabError::failed("the capacity was not measured")),
        }
    }

    fn calibrate(
        &self,
        tie: &ProcessLauncher,
        experiment: &Experiment,
        point: &ExperimentPoint,
        folder: &Path,
        watch: &mut dyn RunObserver,
    ) -> Result<Vec<f64>, LabError> {
        watch.on_calibration("measuring the capacity");
        // Without the bounds against overload: a closed loop would repeat rejected requests at once.
        let mut free = experiment.clone();
        free.balancer.max_connections = None;
        let stage = Testbed::build(tie, &free, point, self.session_time(experiment), folder)?;
        let clients = CLIENTS * experiment.members.first().workers * point.members;
        let mut load = experiment.load.clone();
        load.keep_alive = true;
        let lasting = LoadDuration { warmup: Duration::ZERO, total: PART * (PARTS + 2) };
        let run = stage.start_load(&load, LoadLoop::Closed(clients), point.load, lasting, point.seed)?;
        let mut capacity = Vec::new();
        let (mut last, mut number) = (Duration::ZERO, 0);
        while number <= PARTS {
            std::thread::sleep(Duration::from_millis(5));
            if watch.is_interrupted() {
                return Err(LabError::Interrupted);
            }
            let now = run.elapsed();
            if now >= PART * (number + 1) {
                let ok = run.take_record().ok as f64 / (now - last).as_secs_f64();
                // The first part is a warm-up.
                if number > 0 {
                    capacity.push(ok);
                }
                (last, number) = (now, number + 1);
            }
        }
        if capacity.iter().sum::<f64>() <= 0.0 {
            return Err(LabError::failed("nothing was answered while the capacity was measured"));
        }
        Ok(capacity)
    }
}

/// Returns the seconds that the swaps take: the median of many rounds.
fn work(session: SessionCost) -> f64 {
    let mut bytes: Vec<u8> = (0..session.integers * 4).map(|n| n as u8).collect();
    let mut chance = SplitMix64::new(1);
    let mut rounds: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let start = Instant::now();
            shuffle(std::hint::black_box(&mut bytes), session.swaps, &mut chance);
            start.elapsed().as_secs_f64()
        })
        .collect();
    rounds.sort_by(f64::total_cmp);
    rounds[ROUNDS / 2]
}

/// Returns the processor time in seconds that a new connection costs a server beyond a request of `bytes`
/// bytes.
fn session(bytes: usize) -> io::Result<f64> {
    let mut rounds = Vec::new();
    for _ in 0..SESSIONS {
        rounds.push((cpu_per_request(bytes, 1)? - cpu_per_request(bytes, REQUESTS)?).max(0.0));
    }
    rounds.sort_by(f64::total_cmp);
    Ok(rounds[SESSIONS / 2])
}

/// Returns the server's processor time in seconds for a request, with `on_each` requests on each connection.
fn cpu_per_request(bytes: usize, on_each: usize) -> io::Result<f64> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let used = Arc::new(AtomicU64::new(0));
    let connections = REQUESTS / on_each;
    let server = {
        let used = used.clone();
        std::thread::spawn(move || -> io::Result<()> {
            let mut threads = Vec::new();
            for _ in 0..connections {
                let (stream, _) = listener.accept()?;
                let used = used.clone();
                threads.push(std::thread::spawn(move || {
                    let result = answer(stream, bytes);
                    used.fetch_add(thread_nanos(), Relaxed);
                    result
                }));
            }
            used.fetch_add(thread_nanos(), Relaxed);
            threads.into_iter().try_for_each(|thread| thread.join().unwrap_or(Ok(())))
        })
    };
    let message = vec![1u8; bytes];
    for _ in 0..connections {
        client(address, &message, on_each)?;
    }
    server.join().map_err(|_| io::Error::other("the server panicked"))??;
    Ok(used.load(Relaxed) as f64 / 1e9 / REQUESTS as f64)
}

/// Echoes every message until the connection ends.
fn answer(mut stream: TcpStream, bytes: usize) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut message = vec![0; bytes];
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
        let few = work(SessionCost { integers: 300, swaps: 100 });
        let many = work(SessionCost { integers: 300, swaps: 10_000 });
        assert!(many > 10.0 * few, "{few} {many}");
        assert!(session(1200).unwrap() > 0.0);
    }
}
