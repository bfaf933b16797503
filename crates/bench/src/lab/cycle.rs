//! Clients of the application: each does one cycle after another (bind A, call A, bind B, call B) on a thread
//! of its own.
//!
//! Real parts are the choice of a server and the reply to the client (a client's bind), the relay of a
//! message to a server, calls, answers, and all sockets. Emulated parts are the sleeps for the inter-node
//! delay, as in the paper, and the client's own work. The cost of the paper's agent is also emulated, by a
//! processor that serves in order ([`Processors`](crate::busy::Processors)). In the forwarding architecture
//! its clones are emulated, too: a client holds one from its arrival at the agent until its message is with a
//! server. Servers are processes.
//!
//! A client keeps its own time. Emulated steps advance it by their exact length and real steps by their
//! duration, so that a late wake-up delays one step and no more. The response time is that of a whole cycle.

use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::Trouble;
use super::drive::Door;
use super::experiment::{Architecture, COPIES, Protocol, Setting};
use crate::busy::{InUse, Processors};
use crate::chance::Chance;
use crate::record::{Fault, Record};

mod caller;
mod clones;

use caller::{Caller, Plug};
use clones::Clones;

/// The pause after a failure, so that a missing server is not called in a busy loop.
const PAUSE: Duration = Duration::from_millis(10);
/// The maximum sleep, which bounds the delay until the end of the run is noticed.
const NAP: Duration = Duration::from_millis(50);
/// The maximum lag of a client's own time behind the clock. Further lateness of the machine counts as
/// response time.
const LAG: Duration = Duration::from_millis(5);
/// The kernel's tolerance for late wake-ups of a thread, in nanoseconds; the default is 50,000.
const SLACK: NonZeroU64 = NonZeroU64::MIN;

/// The environment of clients.
pub(super) struct Scene {
    /// The application.
    pub(super) setting: Setting,
    /// The protocol.
    pub(super) protocol: Protocol,
    /// The addresses of A, then B.
    pub(super) doors: Vec<Door>,
    /// The servers, with their names.
    pub(super) members: Vec<(String, SocketAddr)>,
    /// The time-out of an answer to a call.
    pub(super) timeout: Duration,
}

/// The running clients.
#[derive(Debug)]
pub(super) struct Cycles {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

/// The state shared by all clients.
#[derive(Debug)]
struct Shared {
    start: Instant,
    stop: AtomicBool,
    record: Mutex<Record>,
    processor: Mutex<Processors>,
    clones: Clones,
    /// The use of the agent: clients at it, or busy clones.
    agent: Mutex<InUse>,
}

/// Locks a mutex; a panic of another holder leaves nothing half done.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts `clients` clients.
pub(super) fn start(scene: Scene, clients: usize, seed: u64) -> Result<Cycles, Trouble> {
    let start = Instant::now();
    let clones = match scene.setting.architecture {
        Architecture::Handle => 1,
        Architecture::Forward => scene.setting.clones,
    };
    let shared = Arc::new(Shared {
        start,
        stop: AtomicBool::new(false),
        record: Mutex::default(),
        processor: Mutex::new(Processors::new(1, start)),
        clones: Clones::new(clones),
        agent: Mutex::new(InUse::new(start)),
    });
    let scene = Arc::new(scene);
    let mut threads = Vec::new();
    for number in 0..clients {
        let client = Client::new(&scene, &shared, seed.wrapping_add((number as u64) << 32))?;
        let thread = std::thread::Builder::new().name(format!("client-{number}")).spawn(move || client.run());
        threads.push(thread.map_err(|error| Trouble::failed(format!("no thread for a client: {error}")))?);
    }
    Ok(Cycles { shared, threads })
}

impl Cycles {
    /// Returns the time since the load began.
    pub(super) fn elapsed(&self) -> Duration {
        self.shared.start.elapsed()
    }

    /// Takes the results since the last call.
    pub(super) fn take(&self) -> Record {
        std::mem::take(&mut *lock(&self.shared.record))
    }

    /// Returns `true` if all clients have ended.
    pub(super) fn finished(&self) -> bool {
        self.threads.iter().all(JoinHandle::is_finished)
    }

    /// Returns the busy times of the agent's threads (summed) and of its processor, in seconds.
    pub(super) fn used(&self) -> (f64, f64) {
        let now = Instant::now();
        let threads = lock(&self.shared.agent).busy(now);
        (threads.as_secs_f64(), lock(&self.shared.processor).busy(now).as_secs_f64())
    }

    /// Stops and joins the clients.
    pub(super) fn end(mut self) -> Result<(), Trouble> {
        self.shared.stop.store(true, Relaxed);
        for thread in std::mem::take(&mut self.threads) {
            thread.join().map_err(|_| Trouble::failed("a client of the application panicked"))?;
        }
        Ok(())
    }
}

impl Drop for Cycles {
    fn drop(&mut self) {
        self.shared.stop.store(true, Relaxed);
    }
}

/// The reason why a cycle failed.
enum Broken {
    /// The end of the run.
    Over,
    /// A failed call.
    Failed(Fault),
}

impl From<Fault> for Broken {
    fn from(fault: Fault) -> Self {
        Self::Failed(fault)
    }
}

/// One client.
struct Client {
    scene: Arc<Scene>,
    shared: Arc<Shared>,
    chance: Chance,
    /// The client's own time.
    now: Instant,
    /// The connections for A and B: they ask for a server, or deliver a message to one.
    doors: Vec<Caller>,
    /// The connections to the servers.
    servers: Vec<Caller>,
}

impl Client {
    fn new(scene: &Arc<Scene>, shared: &Arc<Shared>, seed: u64) -> Result<Self, Trouble> {
        let length = scene.setting.length;
        let plug = match scene.setting.architecture {
            Architecture::Handle => Plug::Bind,
            Architecture::Forward => Plug::Bring(length),
        };
        let doors: Result<_, _> = scene.doors.iter().map(|door| Caller::new(door, plug)).collect();
        let server = |(_, address): &(String, SocketAddr)| {
            let door = match scene.protocol {
                Protocol::Http => Door::Http(*address),
                Protocol::Iiop => Door::Iiop(format!("iiop://{address}/{}", super::front::KEY)),
            };
            Caller::new(&door, Plug::Call(length))
        };
        let servers: Result<_, _> = scene.members.iter().map(server).collect();
        Ok(Self {
            scene: scene.clone(),
            shared: shared.clone(),
            chance: Chance::new(seed),
            now: shared.start,
            doors: doors?,
            servers: servers?,
        })
    }

    /// Performs cycles until the run is over.
    fn run(mut self) {
        // Where that is not allowed, the client wakes a little later.
        let _ = rustix::thread::set_current_timer_slack(Some(SLACK));
        self.now = Instant::now();
        if matches!(self.fall_in(), Err(Broken::Over)) {
            return;
        }
        loop {
            let begin = self.now;
            match self.cycle() {
                Ok(()) => {
                    let time = self.now.saturating_duration_since(begin);
                    let mut record = lock(&self.shared.record);
                    record.left(Duration::ZERO, Duration::ZERO);
                    record.answered(None, time, time);
                }
                Err(Broken::Over) => return,
                Err(Broken::Failed(fault)) => {
                    {
                        let mut record = lock(&self.shared.record);
                        record.left(Duration::ZERO, Duration::ZERO);
                        record.failed(None, fault, self.scene.timeout);
                    }
                    std::thread::sleep(PAUSE);
                    self.now = Instant::now();
                }
            }
        }
    }

    /// Begins at a random place in a cycle, which is not counted. Clients that begin together would stay in
    /// step for a hundred cycles and queue differently than in the long run.
    fn fall_in(&mut self) -> Result<(), Broken> {
        let half = self.scene.setting.alone() / 2.0;
        let part = self.chance.unit();
        self.pass(part * half)?;
        if self.chance.happens(0.5) { self.request(self.doors.len().saturating_sub(1)) } else { Ok(()) }
    }

    fn cycle(&mut self) -> Result<(), Broken> {
        let client = self.scene.setting.client;
        self.now += self.scene.setting.piece(client).draw(&mut self.chance);
        self.sleep()?;
        (0..self.doors.len()).try_for_each(|service| self.request(service))
    }

    /// Obtains a server of A, or of B, and calls it.
    fn request(&mut self, service: usize) -> Result<(), Broken> {
        let server = match self.scene.setting.architecture {
            Architecture::Handle => self.bind(service)?,
            Architecture::Forward => self.forward(service)?,
        };
        let caller = self.servers.get_mut(server).ok_or(Fault::Malformed)?;
        let begin = Instant::now();
        caller.call(self.scene.timeout, &self.shared.stop).map_err(broken)?;
        self.took(begin);
        Ok(())
    }

    /// Advances the client's own time by the duration of a real step. A late wake-up before the step is
    /// thereby not counted, as before an emulated one.
    fn took(&mut self, begin: Instant) {
        let end = Instant::now();
        self.now = (self.now + end.saturating_duration_since(begin)).max(end.checked_sub(LAG).unwrap_or(end));
    }

    /// Asks the agent for a server and goes there: two delays for the question and its answer, one for the
    /// call.
    fn bind(&mut self, service: usize) -> Result<usize, Broken> {
        let Setting { delay, agent, .. } = self.scene.setting;
        self.pass(delay)?;
        lock(&self.shared.agent).enter(self.now);
        let worked = self.work(agent);
        lock(&self.shared.agent).leave(self.now);
        worked?;
        let begin = Instant::now();
        let server = self.ask(service)?;
        lock(&self.shared.record).picked(begin.elapsed());
        self.pass(delay)?;
        self.pass(delay)?;
        Ok(server)
    }

    /// Sends a message to the agent: a clone takes it, looks for a server, sleeps and delivers it there.
    fn forward(&mut self, service: usize) -> Result<usize, Broken> {
        let Setting { delay, agent, locate, .. } = self.scene.setting;
        self.pass(delay)?;
        let shared = self.shared.clone();
        let clone = shared.clones.take(self.now);
        if shared.stop.load(Relaxed) {
            return Err(Broken::Over);
        }
        self.now = clone.since();
        lock(&shared.agent).enter(self.now);
        let brought = (|| {
            self.work(agent / 4.0)?;
            self.work(locate)?;
            self.work(agent / 4.0)?;
            self.pass(delay)?;
            self.work(agent / 4.0)?;
            let begin = Instant::now();
            let server = self.ask(service)?;
            lock(&shared.record).picked(begin.elapsed());
            self.work(agent / 4.0)?;
            Ok(server)
        })();
        lock(&shared.agent).leave(self.now);
        clone.until(self.now);
        brought
    }

    /// Returns the index of the server that names itself in the answer.
    fn ask(&mut self, service: usize) -> Result<usize, Broken> {
        let caller = self.doors.get_mut(service).ok_or(Fault::Malformed)?;
        let begin = Instant::now();
        let member = caller.call(self.scene.timeout, &self.shared.stop).map_err(broken)?;
        self.took(begin);
        let own = service * COPIES..(service + 1) * COPIES;
        let is = |(name, address): &(String, SocketAddr)| {
            member.as_deref().is_some_and(|said| said == name || said == address.to_string())
        };
        let found = own.into_iter().find(|number| self.scene.members.get(*number).is_some_and(is));
        // The answer names no server, or one of another service.
        found.ok_or(Broken::Failed(Fault::Malformed))
    }

    /// Waits for `seconds`.
    fn pass(&mut self, seconds: f64) -> Result<(), Broken> {
        self.now += Duration::from_secs_f64(seconds);
        self.sleep()
    }

    /// Queues work with this mean at the agent's processor, and waits for its end.
    fn work(&mut self, mean: f64) -> Result<(), Broken> {
        let time = self.scene.setting.piece(mean).draw(&mut self.chance);
        self.now = lock(&self.shared.processor).serve(self.now, time);
        self.sleep()
    }

    /// Sleeps until the client's own time.
    fn sleep(&self) -> Result<(), Broken> {
        loop {
            if self.shared.stop.load(Relaxed) {
                return Err(Broken::Over);
            }
            let left = self.now.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            std::thread::sleep(left.min(NAP));
        }
    }
}

/// Converts a fault; a call that ended with the run did not fail.
fn broken(fault: Option<Fault>) -> Broken {
    fault.map_or(Broken::Over, Broken::Failed)
}
