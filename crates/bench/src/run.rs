//! The load generator's runs: they send a target's requests at the times of a pacer, or, for comparison, in a
//! closed loop.
//!
//! The open loop sends each request when it is due, whatever became of the others: one thread, one epoll
//! instance, non-blocking sockets. The offered rate does not depend on the server: a due request takes an
//! idle connection or opens one and waits for no answer. Requests beyond the limits (too many in flight, no
//! more sockets) are counted as not sent and never deferred. Memory is therefore bounded, and no burst
//! follows a stall. With a limited number of connections, as with a pool in front of the server, requests
//! wait for one inside the generator, in order and counted. Their latency includes the wait.
//!
//! The generator closes a connection that is not established before the kernel would repeat its SYN (Banga
//! and Druschel, "Measuring the capacity of a web server", USITS 1997). Repeated SYNs would add load that is
//! not part of the schedule.
//!
//! The run checks itself: [`RunRecord::punctuality`] is the share of requests that the generator handled on
//! time. A run in which the generator was the bottleneck is not valid.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::pick::MemberPicker;
use crate::record::RunRecord;
use crate::target::RequestTarget;

mod connection_slots;
mod deadlines;
mod engine;
mod pending_picks;
mod reactor;

use engine::{Engine, RequestSchedule};

/// The number of times the thread yields while its owner waits for the record: some 50 µs.
const MAX_LOCK_YIELDS: u32 = 100;

/// The bounds of a run.
#[derive(Clone, Debug)]
pub struct RunLimits {
    /// The maximum time from when a request is due to the last byte of its answer.
    pub timeout: Duration,
    /// The maximum time to establish a connection. Linux repeats a SYN after 1 s: keep it below.
    pub connect_timeout: Duration,
    /// The maximum number of requests in flight, each on a connection of its own, and waiting for a
    /// connection. Requests that are due beyond that are not sent.
    pub max_in_flight: usize,
    /// The maximum time from when a request is due to when the generator handles it for the request to be on
    /// time. It need not have been sent: it may wait for a connection.
    pub tolerance: Duration,
    /// The maximum number of connections. A request that is due while all are busy waits for one, in order.
    pub max_connections: Option<usize>,
    /// Whether a connection may carry one request after another. If not, each has a new one, and an HTTP
    /// target should announce that to the server with `connection: close`.
    pub reuse_connections: bool,
    /// The time that a client of a closed loop waits after an answer before it sends its next request.
    pub think_time: Duration,
    /// The grace period after a stop: requests still in flight at its end count as cut.
    pub grace: Duration,
}

impl Default for RunLimits {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(5),
            connect_timeout: Duration::from_millis(900),
            max_in_flight: 16_384,
            tolerance: Duration::from_millis(5),
            max_connections: None,
            reuse_connections: true,
            think_time: Duration::ZERO,
            grace: Duration::from_secs(1),
        }
    }
}

/// A run that has begun. Dropping it ends it.
#[derive(Debug)]
pub struct LoadRun {
    shared: Arc<SharedRun>,
    thread: Option<JoinHandle<io::Result<()>>>,
}

/// The state shared by the thread of the run and its owner.
#[derive(Debug)]
struct SharedRun {
    start: Instant,
    /// The results since the owner last took them.
    record: Mutex<RunRecord>,
    /// Whether the owner waits for the record.
    record_wanted: AtomicBool,
    in_flight: AtomicUsize,
    stop: AtomicBool,
}

impl SharedRun {
    /// Locks the record for a turn of the thread's loop. A busy thread would release the lock only to take it
    /// again at once, so it yields to the owner first, for a short time.
    fn lock_for_turn(&self) -> MutexGuard<'_, RunRecord> {
        for _ in 0..MAX_LOCK_YIELDS {
            if !self.record_wanted.load(Relaxed) {
                break;
            }
            std::thread::yield_now();
        }
        self.record()
    }

    fn record(&self) -> MutexGuard<'_, RunRecord> {
        // Counts are consistent after every statement: a panic of the other side leaves nothing half done.
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Starts sending `target`'s requests at the times of `pace`, on a separate thread.
///
/// The function raises the process's limit on open files as far as allowed, and bounds the requests in flight
/// by it.
///
/// # Errors
/// Fails if the kernel grants no epoll instance or no thread.
pub fn start<T, P>(target: T, pace: P, limits: RunLimits) -> io::Result<LoadRun>
where
    T: RequestTarget + Send + 'static,
    P: Iterator<Item = Duration> + Send + 'static,
{
    start_with_picker(target, None, pace, limits)
}

/// Starts a run like [`start`] with a picker that chooses each request's destination, whatever addresses the
/// target has.
///
/// The latency still counts from when the request was due. If the connection to a member fails, the generator
/// reports it to the picker and asks for another.
///
/// # Errors
/// As [`start`].
pub fn start_with_picker<T, P>(
    target: T,
    picker: Option<Box<dyn MemberPicker>>,
    pace: P,
    limits: RunLimits,
) -> io::Result<LoadRun>
where
    T: RequestTarget + Send + 'static,
    P: Iterator<Item = Duration> + Send + 'static,
{
    start_engine(target, picker, RequestSchedule::Open(pace), limits)
}

/// Sends in a closed loop, for `duration`: each of `concurrency` clients sends its next request when its last
/// one has ended.
///
/// The load slows down with the server, and latencies leave out the waits its users would have had. wrk and
/// ab measure like this; use it only for comparison with them.
///
/// # Errors
/// As [`start`].
pub fn start_closed_loop<T>(
    target: T,
    concurrency: usize,
    duration: Duration,
    limits: RunLimits,
) -> io::Result<LoadRun>
where
    T: RequestTarget + Send + 'static,
{
    start_closed_loop_with_picker(target, None, concurrency, duration, limits)
}

/// Starts a run like [`start_closed_loop`] with a picker that chooses each request's destination.
///
/// # Errors
/// As [`start`].
pub fn start_closed_loop_with_picker<T>(
    target: T,
    picker: Option<Box<dyn MemberPicker>>,
    concurrency: usize,
    duration: Duration,
    limits: RunLimits,
) -> io::Result<LoadRun>
where
    T: RequestTarget + Send + 'static,
{
    let limits = RunLimits { max_in_flight: concurrency.max(1), ..limits };
    // A century is practically unlimited and still fits in the clock.
    let ends_at = Instant::now() + duration.min(Duration::from_secs(100 * 366 * 86_400));
    let schedule: RequestSchedule<std::iter::Empty<Duration>> =
        RequestSchedule::Closed { clients: concurrency, end: ends_at };
    start_engine(target, picker, schedule, limits)
}

fn start_engine<T, P>(
    target: T,
    picker: Option<Box<dyn MemberPicker>>,
    schedule: RequestSchedule<P>,
    limits: RunLimits,
) -> io::Result<LoadRun>
where
    T: RequestTarget + Send + 'static,
    P: Iterator<Item = Duration> + Send + 'static,
{
    let requested_connections = limits.max_connections.unwrap_or(limits.max_in_flight);
    let allowed_connections = requested_connections.min(raise_open_file_limit(requested_connections)).max(1);
    let limits = match limits.max_connections {
        Some(_) => RunLimits {
            max_connections: Some(allowed_connections),
            max_in_flight: limits.max_in_flight.max(1),
            ..limits
        },
        None => RunLimits { max_in_flight: allowed_connections, ..limits },
    };
    let shared = Arc::new(SharedRun {
        start: Instant::now(),
        record: Mutex::default(),
        record_wanted: AtomicBool::new(false),
        in_flight: AtomicUsize::new(0),
        stop: AtomicBool::new(false),
    });
    let engine = Engine::new(target, picker, schedule, limits, shared.clone())?;
    let thread = std::thread::Builder::new().name("load".to_owned()).spawn(move || engine.run())?;
    Ok(LoadRun { shared, thread: Some(thread) })
}

impl LoadRun {
    /// Returns the time since the start, the origin of the due times.
    pub fn elapsed(&self) -> Duration {
        self.shared.start.elapsed()
    }

    /// Takes the results since the last call. A whole run is the sum of its parts.
    pub fn take_record(&self) -> RunRecord {
        let empty_record = RunRecord::new();
        self.shared.record_wanted.store(true, Relaxed);
        let record = std::mem::replace(&mut *self.shared.record(), empty_record);
        self.shared.record_wanted.store(false, Relaxed);
        record
    }

    /// Returns the number of requests in flight or waiting for a connection.
    pub fn in_flight(&self) -> usize {
        self.shared.in_flight.load(Relaxed)
    }

    /// Stops sending, and gives requests in flight [`RunLimits::grace`] to end.
    pub fn stop(&self) {
        self.shared.stop.store(true, Relaxed);
    }

    /// Returns `true` if all requests have been sent and have ended.
    pub fn is_finished(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Waits for the last request to end and takes the remaining results.
    ///
    /// # Errors
    /// Fails if the kernel refused to wait for events, or the target panicked.
    pub fn join(mut self) -> io::Result<RunRecord> {
        if let Some(thread) = self.thread.take() {
            thread.join().map_err(|_| io::Error::other("the load generator panicked"))??;
        }
        Ok(self.take_record())
    }
}

impl Drop for LoadRun {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Returns the number of sockets that may be open, after a request for `wanted` and 64 other descriptors.
fn raise_open_file_limit(needed: usize) -> usize {
    const RESERVED_FILES: u64 = 64;
    let limit = getrlimit(Resource::Nofile);
    let target = (needed as u64).saturating_add(RESERVED_FILES).min(limit.maximum.unwrap_or(u64::MAX));
    if limit.current.is_some_and(|current| current < target) {
        // If this is refused the limit stays as it was, and is read again below.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(target), maximum: limit.maximum });
    }
    let available = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    usize::try_from(available.saturating_sub(RESERVED_FILES)).unwrap_or(usize::MAX)
}
