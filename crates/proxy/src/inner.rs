//! What the handles of an engine and its control thread share.

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

/// A running data plane, from the slow side. Where two locks are held, `control` is the first.
pub(crate) struct Inner {
    pub(crate) clock: Clock,
    /// When this process began; others may have carried the traffic before.
    pub(crate) began: Time,
    pub(crate) control: Mutex<Control>,
    pub(crate) census: Arc<Census>,
    pub(crate) probes: Mutex<Probes>,
    /// What members say, until somebody listens.
    pub(crate) said: Mutex<Option<mpsc::Receiver<Said>>>,
    pub(crate) access: Mutex<Option<AccessLog>>,
    pub(crate) access_dropped: Arc<AtomicU64>,
    /// Where cores send what was traced.
    pub(crate) traces: mpsc::Sender<Vec<Traced>>,
    /// What was traced, until somebody takes it.
    pub(crate) traced: Mutex<Option<mpsc::Receiver<Vec<Traced>>>>,
    pub(crate) spans: Spans,
    /// Grows when other settings are in force.
    pub(crate) version: AtomicU64,
    pub(crate) reloads: AtomicU64,
    pub(crate) reload_error: Mutex<Option<String>>,
    pub(crate) stopping: AtomicBool,
    /// Permits to tell somebody of an alert: each is a thread that waits for an answer.
    pub(crate) hand_overs: Arc<Semaphore>,
    /// Wakes the control thread: something may be due earlier.
    pub(crate) wake: Notify,
    /// Told when checks of members have ended.
    pub(crate) checked: Notify,
    /// Has the control thread to end?
    pub(crate) ended: AtomicBool,
    pub(crate) thread: Mutex<Option<JoinHandle<()>>>,
}

/// Locks; a thread that panicked while it held the lock left nothing half done that matters more than going on.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
