//! The state that an engine's handles and its control thread share.

use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use plimsoll_brain::Time;
use tokio::sync::{Notify, Semaphore, mpsc};

use crate::access::AccessLog;
use crate::clock::Clock;
use crate::control::Control;
use crate::core::Census;
use crate::group::Said;
use crate::probe::Probes;
use crate::trace::{Spans, Traced};

/// The state of a running data plane on the slow side. Lock order: `control` before any other.
pub(crate) struct Inner {
    pub(crate) clock: Clock,
    /// The time at which this process began; others may have carried the traffic before.
    pub(crate) began: Time,
    pub(crate) control: Mutex<Control>,
    pub(crate) census: Arc<Census>,
    pub(crate) probes: Mutex<Probes>,
    /// The receiver of members' report samples, until it is taken.
    pub(crate) said: Mutex<Option<mpsc::Receiver<Said>>>,
    pub(crate) access: Mutex<Option<AccessLog>>,
    pub(crate) access_dropped: Arc<AtomicU64>,
    /// The channel for the cores' traces.
    pub(crate) traces: mpsc::Sender<Vec<Traced>>,
    /// The receiver of traces, until it is taken.
    pub(crate) traced: Mutex<Option<mpsc::Receiver<Vec<Traced>>>>,
    pub(crate) spans: Spans,
    /// Grows when other settings are in force.
    pub(crate) version: AtomicU64,
    pub(crate) reloads: AtomicU64,
    pub(crate) reload_error: Mutex<Option<String>>,
    pub(crate) stopping: AtomicBool,
    /// The permits for notifications about alerts: each is a thread that waits for a response.
    pub(crate) hand_overs: Arc<Semaphore>,
    /// Wakes the control thread, as a timeout may be due earlier.
    pub(crate) wake: Notify,
    /// Notified when members' health checks have ended.
    pub(crate) checked: Notify,
    /// Whether the control thread has to end.
    pub(crate) ended: AtomicBool,
    pub(crate) thread: Mutex<Option<JoinHandle<()>>>,
}

/// Locks a mutex, and ignores poisoning: no thread that panicked with the lock has left a state that is worse
/// than ending.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
