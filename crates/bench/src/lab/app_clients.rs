//! Clients of the application: each does one cycle after another (bind A, call A, bind B, call B) on a thread
//! of its own.
//!
//! Real parts are the choice of a server and the reply to the client (a client's bind), the relay of a
//! message to a server, calls, answers, and all sockets. Emulated parts are the sleeps for the inter-node
//! delay, as in the paper, and the client's own work. The cost of the paper's agent is also emulated, by a
//! processor that serves in order ([`FifoProcessors`]). In the
//! forwarding architecture its clones are emulated, too: a client holds one from its arrival at the agent
//! until its message is with a server. Servers are processes.
//!
//! A client keeps its own time. Emulated steps advance it by their exact length and real steps by their
//! duration, so that a late wake-up delays one step and no more. The response time is that of a whole cycle.

use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::LabError;
use super::experiment::{AgentArchitecture, COPIES, LoadProtocol, PointApplication};
use super::load_driver::LoadDestination;
use crate::emulated_processors::{FifoProcessors, UsageIntegral};
use crate::record::{FailureKind, RunRecord};
use crate::rng::SplitMix64;

mod caller;
mod worker_threads;

use caller::{AppCaller, ConnectionPurpose};
use worker_threads::AgentThreads;

/// The pause after a failure, so that a missing server is not called in a busy loop.
const FAILURE_PAUSE: Duration = Duration::from_millis(10);
/// The maximum sleep, which bounds the delay until the end of the run is noticed.
const MAX_SLEEP: Duration = Duration::from_millis(50);
/// The maximum lag of a client's own time behind the clock. Further lateness of the machine counts as
/// response time.
const MAX_LAG: Duration = Duration::from_millis(5);
/// The kernel's tolerance for late wake-ups of a thread, in nanoseconds; the default is 50,000.
const TIMER_SLACK: NonZeroU64 = NonZeroU64::MIN;

/// The environment of clients.
pub(super) struct ClientEnvironment {
    /// The application.
    pub(super) application: PointApplication,
    /// The protocol.
    pub(super) protocol: LoadProtocol,
    /// The addresses of A, then B.
    pub(super) destinations: Vec<LoadDestination>,
    /// The servers, with their names.
    pub(super) members: Vec<(String, SocketAddr)>,
    /// The time-out of an answer to a call.
    pub(super) timeout: Duration,
}

/// The running clients.
#[derive(Debug)]
pub(super) struct AppClients {
    shared: Arc<SharedClients>,
    threads: Vec<JoinHandle<()>>,
}

/// The state shared by all clients.
#[derive(Debug)]
struct SharedClients {
    start: Instant,
    stop: AtomicBool,
    record: Mutex<RunRecord>,
    processor: Mutex<FifoProcessors>,
    clones: AgentThreads,
    /// The use of the agent: clients at it, or busy clones.
    agent: Mutex<UsageIntegral>,
}

/// Locks a mutex; a panic of another holder leaves nothing half done.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts `clients` clients.
pub(super) fn start(
    environment: ClientEnvironment,
    clients: usize,
    seed: u64,
) -> Result<AppClients, LabError> {
    let start = Instant::now();
    let clones = match environment.application.architecture {
        AgentArchitecture::Handle => 1,
        AgentArchitecture::Forward => environment.application.clones,
    };
    let shared = Arc::new(SharedClients {
        start,
        stop: AtomicBool::new(false),
        record: Mutex::default(),
        processor: Mutex::new(FifoProcessors::new(1, start)),
        clones: AgentThreads::new(clones),
        agent: Mutex::new(UsageIntegral::new(start)),
    });
    let environment = Arc::new(environment);
    let mut threads = Vec::new();
    for number in 0..clients {
        let client = AppClient::new(&environment, &shared, seed.wrapping_add((number as u64) << 32))?;
        let thread = std::thread::Builder::new().name(format!("client-{number}")).spawn(move || client.run());
        threads.push(thread.map_err(|error| LabError::failed(format!("no thread for a client: {error}")))?);
    }
    Ok(AppClients { shared, threads })
}

impl AppClients {
    /// Returns the time since the load began.
    pub(super) fn elapsed(&self) -> Duration {
        self.shared.start.elapsed()
    }

    /// Takes the results since the last call.
    pub(super) fn take_record(&self) -> RunRecord {
        std::mem::take(&mut *lock(&self.shared.record))
    }

    /// Returns `true` if all clients have ended.
    pub(super) fn is_finished(&self) -> bool {
        self.threads.iter().all(JoinHandle::is_finished)
    }

    /// Returns the busy times of the agent's threads (summed) and of its processor, in seconds.
    pub(super) fn agent_busy_times(&self) -> (f64, f64) {
        let now = Instant::now();
        let threads = lock(&self.shared.agent).busy_time(now);
        (threads.as_secs_f64(), lock(&self.shared.processor).busy_time(now).as_secs_f64())
    }

    /// Stops and joins the clients.
    pub(super) fn stop_clients(mut self) -> Result<(), LabError> {
        self.shared.stop.store(true, Relaxed);
        for thread in std::mem::take(&mut self.threads) {
            thread.join().map_err(|_| LabError::failed("a client of the application panicked"))?;
        }
        Ok(())
    }
}

impl Drop for AppClients {
    fn drop(&mut self) {
        self.shared.stop.store(true, Relaxed);
    }
}

/// The reason why a cycle failed.
enum CycleError {
    /// The end of the run.
    RunEnded,
    /// A failed call.
    Failed(FailureKind),
}

impl From<FailureKind> for CycleError {
    fn from(failure: FailureKind) -> Self {
        Self::Failed(failure)
    }
}

/// One client.
struct AppClient {
    environment: Arc<ClientEnvironment>,
    shared: Arc<SharedClients>,
    rng: SplitMix64,
    /// The client's own time.
    now: Instant,
    /// The connections for A and B: they ask for a server, or deliver a message to one.
    agents: Vec<AppCaller>,
    /// The connections to the servers.
    servers: Vec<AppCaller>,
}

impl AppClient {
    fn new(
        environment: &Arc<ClientEnvironment>,
        shared: &Arc<SharedClients>,
        seed: u64,
    ) -> Result<Self, LabError> {
        let length = environment.application.length;
        let agent_purpose = match environment.application.architecture {
            AgentArchitecture::Handle => ConnectionPurpose::Bind,
            AgentArchitecture::Forward => ConnectionPurpose::Deliver(length),
        };
        let agents: Result<_, _> = environment
            .destinations
            .iter()
            .map(|destination| AppCaller::new(destination, agent_purpose))
            .collect();
        let new_server = |(_, address): &(String, SocketAddr)| {
            let destination = match environment.protocol {
                LoadProtocol::Http => LoadDestination::Http(*address),
                LoadProtocol::Iiop => {
                    LoadDestination::Iiop(format!("iiop://{address}/{}", super::proxy_under_test::OBJECT_KEY))
                }
            };
            AppCaller::new(&destination, ConnectionPurpose::Call(length))
        };
        let servers: Result<_, _> = environment.members.iter().map(new_server).collect();
        Ok(Self {
            environment: environment.clone(),
            shared: shared.clone(),
            rng: SplitMix64::new(seed),
            now: shared.start,
            agents: agents?,
            servers: servers?,
        })
    }

    /// Performs cycles until the run is over.
    fn run(mut self) {
        // Where that is not allowed, the client wakes a little later.
        let _ = rustix::thread::set_current_timer_slack(Some(TIMER_SLACK));
        self.now = Instant::now();
        if matches!(self.start_at_random_place(), Err(CycleError::RunEnded)) {
            return;
        }
        loop {
            let cycle_start = self.now;
            match self.cycle() {
                Ok(()) => {
                    let time = self.now.saturating_duration_since(cycle_start);
                    let mut record = lock(&self.shared.record);
                    record.record_departure(Duration::ZERO, Duration::ZERO);
                    record.record_success(None, time, time);
                }
                Err(CycleError::RunEnded) => return,
                Err(CycleError::Failed(failure)) => {
                    {
                        let mut record = lock(&self.shared.record);
                        record.record_departure(Duration::ZERO, Duration::ZERO);
                        record.record_failure(None, failure, self.environment.timeout);
                    }
                    std::thread::sleep(FAILURE_PAUSE);
                    self.now = Instant::now();
                }
            }
        }
    }

    /// Begins at a random place in a cycle, which is not counted. Clients that begin together would stay in
    /// step for a hundred cycles and queue differently than in the long run.
    fn start_at_random_place(&mut self) -> Result<(), CycleError> {
        let half_cycle = self.environment.application.single_client_cycle() / 2.0;
        let fraction = self.rng.uniform();
        self.wait_for(fraction * half_cycle)?;
        if self.rng.bernoulli(0.5) { self.request(self.agents.len().saturating_sub(1)) } else { Ok(()) }
    }

    fn cycle(&mut self) -> Result<(), CycleError> {
        let client = self.environment.application.client;
        self.now += self.environment.application.work_piece(client).draw(&mut self.rng);
        self.sleep()?;
        (0..self.agents.len()).try_for_each(|service| self.request(service))
    }

    /// Obtains a server of A, or of B, and calls it.
    fn request(&mut self, service: usize) -> Result<(), CycleError> {
        let server = match self.environment.application.architecture {
            AgentArchitecture::Handle => self.bind(service)?,
            AgentArchitecture::Forward => self.forward(service)?,
        };
        let caller = self.servers.get_mut(server).ok_or(FailureKind::Malformed)?;
        let call_start = Instant::now();
        caller.call(self.environment.timeout, &self.shared.stop).map_err(cycle_error)?;
        self.add_elapsed(call_start);
        Ok(())
    }

    /// Advances the client's own time by the duration of a real step. A late wake-up before the step is
    /// thereby not counted, as before an emulated one.
    fn add_elapsed(&mut self, call_start: Instant) {
        let end = Instant::now();
        self.now = (self.now + end.saturating_duration_since(call_start))
            .max(end.checked_sub(MAX_LAG).unwrap_or(end));
    }

    /// Asks the agent for a server and goes there: two delays for the question and its answer, one for the
    /// call.
    fn bind(&mut self, service: usize) -> Result<usize, CycleError> {
        let PointApplication { delay, agent, .. } = self.environment.application;
        self.wait_for(delay)?;
        lock(&self.shared.agent).enter(self.now);
        let result = self.work(agent);
        lock(&self.shared.agent).leave(self.now);
        result?;
        let pick_start = Instant::now();
        let server = self.ask_agent(service)?;
        lock(&self.shared.record).record_pick(pick_start.elapsed());
        self.wait_for(delay)?;
        self.wait_for(delay)?;
        Ok(server)
    }

    /// Sends a message to the agent: a clone takes it, looks for a server, sleeps and delivers it there.
    fn forward(&mut self, service: usize) -> Result<usize, CycleError> {
        let PointApplication { delay, agent, locate, .. } = self.environment.application;
        self.wait_for(delay)?;
        let shared = self.shared.clone();
        let clone = shared.clones.acquire(self.now);
        if shared.stop.load(Relaxed) {
            return Err(CycleError::RunEnded);
        }
        self.now = clone.held_since();
        lock(&shared.agent).enter(self.now);
        let result = (|| {
            self.work(agent / 4.0)?;
            self.work(locate)?;
            self.work(agent / 4.0)?;
            self.wait_for(delay)?;
            self.work(agent / 4.0)?;
            let pick_start = Instant::now();
            let server = self.ask_agent(service)?;
            lock(&shared.record).record_pick(pick_start.elapsed());
            self.work(agent / 4.0)?;
            Ok(server)
        })();
        lock(&shared.agent).leave(self.now);
        clone.set_held_until(self.now);
        result
    }

    /// Returns the index of the server that names itself in the answer.
    fn ask_agent(&mut self, service: usize) -> Result<usize, CycleError> {
        let caller = self.agents.get_mut(service).ok_or(FailureKind::Malformed)?;
        let call_start = Instant::now();
        let member = caller.call(self.environment.timeout, &self.shared.stop).map_err(cycle_error)?;
        self.add_elapsed(call_start);
        let service_members = service * COPIES..(service + 1) * COPIES;
        let is_member = |(name, address): &(String, SocketAddr)| {
            member.as_deref().is_some_and(|answered| answered == name || answered == address.to_string())
        };
        let index = service_members
            .into_iter()
            .find(|number| self.environment.members.get(*number).is_some_and(is_member));
        // The answer names no server, or one of another service.
        index.ok_or(CycleError::Failed(FailureKind::Malformed))
    }

    /// Waits for `seconds`.
    fn wait_for(&mut self, seconds: f64) -> Result<(), CycleError> {
        self.now += Duration::from_secs_f64(seconds);
        self.sleep()
    }

    /// Queues work with this mean at the agent's processor, and waits for its end.
    fn work(&mut self, mean: f64) -> Result<(), CycleError> {
        let time = self.environment.application.work_piece(mean).draw(&mut self.rng);
        self.now = lock(&self.shared.processor).serve(self.now, time);
        self.sleep()
    }

    /// Sleeps until the client's own time.
    fn sleep(&self) -> Result<(), CycleError> {
        loop {
            if self.shared.stop.load(Relaxed) {
                return Err(CycleError::RunEnded);
            }
            let remaining = self.now.saturating_duration_since(Instant::now());
            if remaining.is_zero() {
                return Ok(());
            }
            std::thread::sleep(remaining.min(MAX_SLEEP));
        }
    }
}

/// Converts a fault; a call that ended with the run did not fail.
fn cycle_error(failure: Option<FailureKind>) -> CycleError {
    failure.map_or(CycleError::RunEnded, CycleError::Failed)
}
