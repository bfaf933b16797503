//! Carries a target's requests at the times of a pacer, and for comparison in a closed loop.
//!
//! The open loop sends each request when it is due, whatever became of the others: one thread, one epoll
//! instance, non-blocking sockets. The offered rate does not depend on the server: a due request takes an
//! idle connection or opens one; nothing waits for an answer. What cannot be offered within the limits (too
//! many in flight, no more sockets) is counted as not sent, never put off, so that memory is bounded and no
//! burst follows a stall. Where the number of connections is limited, as by a pool in front of the server,
//! requests wait for one inside the generator, in order and counted, and their latency includes the wait.
//!
//! A connection that is not up before the kernel would repeat its SYN is closed (Banga and Druschel,
//! "Measuring the capacity of a web server", USITS 1997): repeated SYNs would add load that nobody
//! asked for, at times that nobody chose.
//!
//! The run judges itself: [`Record::punctuality`] is the share of requests that the generator turned to on
//! time. A generator that was itself the bottleneck proves nothing.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::pick::Picker;
use crate::record::Record;
use crate::target::Target;

mod deadlines;
mod engine;
mod picks;
mod poll;
mod slots;

use engine::{Engine, When};

/// How often the thread lets others run while its owner waits for the record: some 50 µs.
const COURTESY: u32 = 100;

/// Bounds of a run.
#[derive(Clone, Debug)]
pub struct Limits {
    /// From when a request is due to the last byte of its answer.
    pub timeout: Duration,
    /// For a connection to be made. Linux repeats a SYN after 1 s: keep it below.
    pub connect_timeout: Duration,
    /// Most requests in flight, each on a connection of its own, and waiting for a connection. One that is
    /// due beyond that is not sent.
    pub in_flight: usize,
    /// A request that the generator turns to no later than this after it was due is on time, whether it
    /// left then or had to wait for a connection.
    pub tolerance: Duration,
    /// Most connections. A request that is due while all are busy waits for one, in order.
    pub connections: Option<usize>,
    /// May a connection carry one request after another? If not, each has a new one, and an HTTP target
    /// should say so to the server with `connection: close`.
    pub reuse: bool,
    /// How long a client of a closed loop waits after an answer before it sends its next request.
    pub think: Duration,
    /// Grace period after a stop: requests still in flight at its end count as cut.
    pub grace: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(5),
            connect_timeout: Duration::from_millis(900),
            in_flight: 16_384,
            tolerance: Duration::from_millis(5),
            connections: None,
            reuse: true,
            think: Duration::ZERO,
            grace: Duration::from_secs(1),
        }
    }
}

/// A run that has begun. Dropping it ends it.
#[derive(Debug)]
pub struct Run {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<io::Result<()>>>,
}

/// What the thread of the run and its owner both see.
#[derive(Debug)]
struct Shared {
    start: Instant,
    /// What ended since the owner last looked.
    record: Mutex<Record>,
    /// The owner waits for the record.
    wanted: AtomicBool,
    in_flight: AtomicUsize,
    stop: AtomicBool,
}

impl Shared {
    /// The record for a turn of the thread's loop. A thread that has much to do gives it back only to take
    /// it again at once: so the owner goes first, if it does not take long.
    fn turn(&self) -> MutexGuard<'_, Record> {
        for _ in 0..COURTESY {
            if !self.wanted.load(Relaxed) {
                break;
            }
            std::thread::yield_now();
        }
        self.record()
    }

    fn record(&self) -> MutexGuard<'_, Record> {
        // Counts are whole after every statement: a panic of the other side leaves nothing half done.
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Starts sending `target`'s requests at the times of `pace`, on a thread of its own.
///
/// Raises the limit on open files of this process as far as it may, and keeps in flight what fits in it.
///
/// # Errors
/// If the kernel grants no epoll instance or no thread.
pub fn start<T, P>(target: T, pace: P, limits: Limits) -> io::Result<Run>
where
    T: Target + Send + 'static,
    P: Iterator<Item = Duration> + Send + 'static,
{
    start_by(target, None, pace, limits)
}

/// The same, where a picker says where each request goes, whatever addresses the target has. The latency counts from when the
/// request was due all the same. A member that cannot be connected to is told to the picker, and another is asked for.
///
/// # Errors
/// As [`start`].
pub fn start_by<T, P>(target: T, picker: Option<Box<dyn Picker>>, pace: P, limits: Limits) -> io::Result<Run>
where
    T: Target + Send + 'static,
    P: Iterator<Item = Duration> + Send + 'static,
{
    begin(target, picker, When::Open(pace), limits)
}

/// Sends in a closed loop, for `duration`: each of `concurrency` clients sends its next request when its
/// last one has ended.
///
/// The load slows down with the server, and latencies say nothing of the waits its users would have had:
/// this is how wrk and ab measure, and good for comparison with them and for nothing else.
///
/// # Errors
/// As [`start`].
pub fn closed<T>(target: T, concurrency: usize, duration: Duration, limits: Limits) -> io::Result<Run>
where
    T: Target + Send + 'static,
{
    closed_by(target, None, concurrency, duration, limits)
}

/// The same, where a picker says where each request goes.
///
/// # Errors
/// As [`start`].
pub fn closed_by<T>(
    target: T,
    picker: Option<Box<dyn Picker>>,
    concurrency: usize,
    duration: Duration,
    limits: Limits,
) -> io::Result<Run>
where
    T: Target + Send + 'static,
{
    let limits = Limits { in_flight: concurrency.max(1), ..limits };
    // A century is as good as for ever, and still fits in the clock.
    let end = Instant::now() + duration.min(Duration::from_secs(100 * 366 * 86_400));
    let when: When<std::iter::Empty<Duration>> = When::Closed { clients: concurrency, end };
    begin(target, picker, when, limits)
}

fn begin<T, P>(target: T, picker: Option<Box<dyn Picker>>, when: When<P>, limits: Limits) -> io::Result<Run>
where
    T: Target + Send + 'static,
    P: Iterator<Item = Duration> + Send + 'static,
{
    let wanted = limits.connections.unwrap_or(limits.in_flight);
    let granted = wanted.min(open_files(wanted)).max(1);
    let limits = match limits.connections {
        Some(_) => Limits { connections: Some(granted), in_flight: limits.in_flight.max(1), ..limits },
        None => Limits { in_flight: granted, ..limits },
    };
    let shared = Arc::new(Shared {
        start: Instant::now(),
        record: Mutex::default(),
        wanted: AtomicBool::new(false),
        in_flight: AtomicUsize::new(0),
        stop: AtomicBool::new(false),
    });
    let engine = Engine::new(target, picker, when, limits, shared.clone())?;
    let thread = std::thread::Builder::new().name("load".to_owned()).spawn(move || engine.run())?;
    Ok(Run { shared, thread: Some(thread) })
}

impl Run {
    /// Time since the start; due times count from there.
    pub fn elapsed(&self) -> Duration {
        self.shared.start.elapsed()
    }

    /// Takes what ended since the last call. A whole run is the sum of its parts.
    pub fn take(&self) -> Record {
        let fresh = Record::new();
        self.shared.wanted.store(true, Relaxed);
        let record = std::mem::replace(&mut *self.shared.record(), fresh);
        self.shared.wanted.store(false, Relaxed);
        record
    }

    /// Requests in flight now, and waiting for a connection.
    pub fn in_flight(&self) -> usize {
        self.shared.in_flight.load(Relaxed)
    }

    /// Sends no more, and gives requests in flight [`Limits::grace`] to end.
    pub fn stop(&self) {
        self.shared.stop.store(true, Relaxed);
    }

    /// Have all requests been sent and ended?
    pub fn finished(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Waits for the last request to end and takes what was not taken yet.
    ///
    /// # Errors
    /// If the kernel refused to wait for events, or the target panicked.
    pub fn join(mut self) -> io::Result<Record> {
        if let Some(thread) = self.thread.take() {
            thread.join().map_err(|_| io::Error::other("the load generator panicked"))??;
        }
        Ok(self.take())
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        self.stop();
    }
}

/// How many sockets may be open, after asking for `wanted` and what else a process has open.
fn open_files(wanted: usize) -> usize {
    const OTHERS: u64 = 64;
    let limit = getrlimit(Resource::Nofile);
    let goal = (wanted as u64).saturating_add(OTHERS).min(limit.maximum.unwrap_or(u64::MAX));
    if limit.current.is_some_and(|current| current < goal) {
        // If this is refused the limit stays as it was, and is read again below.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(goal), maximum: limit.maximum });
    }
    let now = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    usize::try_from(now.saturating_sub(OTHERS)).unwrap_or(usize::MAX)
}
