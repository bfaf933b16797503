//! The open loop: sends each request when it is due, whatever became of the others.
//!
//! One thread, one epoll instance, non-blocking sockets. The offered rate does not depend on the server: a
//! due request takes an idle connection or opens one; nothing waits for an answer. What cannot be offered
//! within the limits (too many in flight, no more sockets) is counted as not sent, never put off, so that
//! memory is bounded and no burst follows a stall.
//!
//! A connection that is not up before the kernel would repeat its SYN is closed (Banga and Druschel,
//! "Measuring the capacity of a web server", USITS 1997): repeated SYNs would add load that nobody
//! asked for, at times that nobody chose.
//!
//! The run judges itself: [`Record::punctuality`] is the share of requests that left on time. A generator
//! that was itself the bottleneck proves nothing.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::record::Record;
use crate::target::Target;

mod engine;

use engine::Engine;

/// Bounds of a run.
#[derive(Clone, Debug)]
pub struct Limits {
    /// From when a request is due to the last byte of its answer.
    pub timeout: Duration,
    /// For a connection to be made. Linux repeats a SYN after 1 s: keep it below.
    pub connect_timeout: Duration,
    /// Most requests in flight, each on a connection of its own.
    pub in_flight: usize,
    /// A request that leaves no later than this after it was due left on time.
    pub tolerance: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(5),
            connect_timeout: Duration::from_millis(900),
            in_flight: 16_384,
            tolerance: Duration::from_millis(5),
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
    in_flight: AtomicUsize,
    stop: AtomicBool,
}

impl Shared {
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
    let in_flight = limits.in_flight.min(open_files(limits.in_flight)).max(1);
    let shared = Arc::new(Shared {
        start: Instant::now(),
        record: Mutex::default(),
        in_flight: AtomicUsize::new(0),
        stop: AtomicBool::new(false),
    });
    let engine = Engine::new(target, pace, Limits { in_flight, ..limits }, shared.clone())?;
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
        std::mem::replace(&mut self.shared.record(), fresh)
    }

    /// Requests in flight now.
    pub fn in_flight(&self) -> usize {
        self.shared.in_flight.load(Relaxed)
    }

    /// Sends no more, and gives requests in flight a second to end.
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
