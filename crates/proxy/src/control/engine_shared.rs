//! The state that an engine's handles and its control thread share.

use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use plimsoll_brain::Time;
use tokio::sync::{Notify, Semaphore, mpsc};

use crate::control::ControlPlane;
use crate::control::probe::ProbeRunner;
use crate::runtime::clock::Clock;
use crate::runtime::resource_limits::ResourceLimits;
use crate::upstream::access_log::AccessLog;
use crate::upstream::group::ReportSample;
use crate::upstream::trace::{FinishedTrace, SpanCounters};

/// The state of a running data plane on the slow side. Lock order: `control` before any other.
pub(crate) struct EngineShared {
    pub(crate) clock: Clock,
    /// The time at which this process began; others may have carried the traffic before.
    pub(crate) started_at: Time,
    pub(crate) control: Mutex<ControlPlane>,
    pub(crate) limits: Arc<ResourceLimits>,
    pub(crate) probes: Mutex<ProbeRunner>,
    /// The receiver of members' report samples, until it is taken.
    pub(crate) report_samples: Mutex<Option<mpsc::Receiver<ReportSample>>>,
    pub(crate) access_log: Mutex<Option<AccessLog>>,
    pub(crate) access_dropped: Arc<AtomicU64>,
    /// The channel for the cores' traces.
    pub(crate) traces: mpsc::Sender<Vec<FinishedTrace>>,
    /// The receiver of traces, until it is taken.
    pub(crate) trace_receiver: Mutex<Option<mpsc::Receiver<Vec<FinishedTrace>>>>,
    pub(crate) spans: SpanCounters,
    /// Grows when other settings are in force.
    pub(crate) version: AtomicU64,
    pub(crate) reloads: AtomicU64,
    pub(crate) reload_error: Mutex<Option<String>>,
    pub(crate) stopping: AtomicBool,
    /// The permits for notifications about alerts: each is a thread that waits for a response.
    pub(crate) hook_permits: Arc<Semaphore>,
    /// Wakes the control thread, as a timeout may be due earlier.
    pub(crate) wake: Notify,
    /// Notified when members' health checks have ended.
    pub(crate) probes_finished: Notify,
    /// Whether the control thread has to end.
    pub(crate) ended: AtomicBool,
    pub(crate) thread: Mutex<Option<JoinHandle<()>>>,
}
