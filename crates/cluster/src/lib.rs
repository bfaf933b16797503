//! Observes the members: records their reports, polls their monitors, and computes loads and weights.
//!
//! Figures arrive in four ways: by push ([`LoadObserver::report`]), by pull, from responses
//! ([`LoadObserver::observe`]), and from the balancer itself ([`Balancer::counters`]). Tasks on this crate's
//! one thread pull an agent's JSON, a page of Prometheus metrics or a stream of load reports. An operator's
//! [`Expression`]s compute a member's load and, if the strategy needs it, its weight, which are passed to the
//! balancer. All of this is the slow path: no request waits for it.
//!
//! Input is bounded: 64 names per member, 64 characters per name, 50 reports per second and member, ages of a
//! minute at most, finite numbers only. Wrong or excessive input affects only the member that it is about.
//!
//! This crate does not depend on the data plane, which implements [`Balancer`].

pub mod corba;
pub mod discover;
pub mod etcd;
mod expression;
pub mod fleet;
mod load_tracker;
mod local_metrics;
pub mod lottery;
#[cfg(test)]
#[path = "../../../fuzz/near.rs"]
mod near;
mod observations;
mod orca_stream;
pub mod scaler;
mod scrape;
mod scrape_parser;
mod service_account;
mod settings;
pub mod store;
mod token_bucket;

/// The laws of network parsers, for the fuzz targets: each panics if its law is broken.
#[cfg(fuzzing)]
#[expect(missing_docs, reason = "named like the targets")]
pub mod laws {
    pub fn etcd_keys(input: &[u8]) {
        crate::discover::etcd_law(input);
    }

    pub fn gossip(input: &[u8]) {
        crate::lottery::gossip_law(input);
    }

    pub fn kubernetes(input: &[u8]) {
        crate::discover::kubernetes_law(input);
    }

    pub fn monitor(input: &[u8]) {
        crate::scrape_parser::invariants::check(input);
    }

    pub fn resolver(input: &[u8]) {
        crate::discover::resolver_law(input);
    }
}

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use plimsoll_brain::status::{FactExplanation, LoadExplanation, MonitorExplanation};
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::time::MissedTickBehavior;

pub use expression::{Expression, ExpressionError, MAX_EXPRESSION_LENGTH, is_name};
pub use load_tracker::{LOCAL_METRIC_NAMES, is_local_metric, is_request_rate};
pub use local_metrics::TrafficCounters;
pub use observations::{MAX_AGE, MAX_NAMES};
pub use settings::{GroupSettings, MemberSettings, MetricSource, MonitorSettings, MonitorTarget};

use load_tracker::{LoadTracker, LoadUpdate};
use scrape::{ScrapeResult, ScrapeTasks};

/// The balancer that uses loads and weights. Its methods are called on any thread, and should take
/// milliseconds.
pub trait Balancer: Send + Sync + 'static {
    /// Returns the counters of each member of a group; empty if there is no such group.
    fn counters(&self, group: &str) -> Vec<(Arc<str>, TrafficCounters)>;

    /// Sets the load of a member, measured `age` ago: finite, not negative. `of_host` means that it covers
    /// the whole host.
    fn set_load(&self, group: &str, member: &str, value: f64, age: Duration, of_host: bool);

    /// Discards the loads of a group whose metric has changed.
    fn forget_loads(&self, group: &str);

    /// Sets a member's usage, measured `age` ago: finite, not negative.
    fn set_usage(&self, group: &str, member: &str, usage: MemberUsage, age: Duration);

    /// Sets the utilization of a member's processors, measured `age` ago: finite, not negative.
    fn set_cpu_utilization(&self, group: &str, member: &str, sensed: CpuUtilization, age: Duration);

    /// Sets the weights of all members of a group; `None` if a weight is unknown.
    fn set_weights(&self, group: &str, weights: &[(Arc<str>, Option<f64>)]);

    /// Notes that a member's reports exceed the rate limit.
    fn note_flood(&self, group: &str, member: &str);

    /// Notes that a member does not report its load in the way that its group's monitor requires, and the
    /// reason.
    fn note_missing_reports(&self, group: &str, member: &str, reason: &str);
}

/// The throughput of a member and its utilization.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MemberUsage {
    /// Requests per second.
    pub rps: f64,
    /// The utilization, 1 for fully busy; may exceed 1.
    pub utilization: f64,
    /// Failed requests per second.
    pub eps: f64,
}

/// The utilization of a member's processors.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CpuUtilization {
    /// The utilization, 0 to 1.
    pub utilization: f64,
    /// The number of processors, above 0.
    pub processors: f64,
    /// Whether the utilization covers the whole host, rather than the server alone.
    pub covers_host: bool,
}

/// A load report: numbers about a member.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MetricReport {
    /// The group; `None` for all groups with this member.
    pub group: Option<String>,
    /// The member as configured (`host:port`), or its address; without a port, every member at that host.
    pub member: String,
    /// The values, by name.
    pub values: Vec<(String, f64)>,
    /// The age of the values when they were sent, in seconds; `None` for 0. Clamped to 60.
    pub age_seconds: Option<f64>,
}

/// The reason why a report was rejected: one line for its sender.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReportRejection {
    /// There is no such group or member.
    #[error("{0}")]
    Unknown(String),
    /// The report is invalid.
    #[error("{0}")]
    Invalid(String),
    /// The reports exceed the rate limit.
    #[error("{0}")]
    RateLimited(String),
}

/// The observations of a group.
#[derive(Clone, Debug, PartialEq)]
pub struct GroupObservations {
    /// The monitor of its loads.
    pub monitor: Option<MonitorExplanation>,
    /// The expression of its weights.
    pub weight: Option<String>,
    /// The members, in the order of the settings.
    pub members: Vec<MemberObservations>,
}

/// The observations of a member.
#[derive(Clone, Debug, PartialEq)]
pub struct MemberObservations {
    /// The name as configured.
    pub name: Arc<str>,
    /// The observations, by name.
    pub observations: Vec<FactExplanation>,
    /// The last computed load.
    pub load: Option<LoadExplanation>,
    /// The reason why there is no load now.
    pub problem: Option<String>,
    /// The number of dropped reports.
    pub dropped: u64,
}

/// The observer, which records reports and polls monitors until it is dropped.
pub struct LoadObserver {
    inner: Arc<ObserverShared>,
    runtime: Handle,
    scrapes: Mutex<ScrapeTasks>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

pub(crate) struct ObserverShared {
    watch: Mutex<LoadTracker>,
    balancer: Arc<dyn Balancer>,
}

/// An internal form of [`ReportRejection`], with updates that the balancer receives nevertheless.
#[derive(Debug)]
pub(crate) enum TrackerRejection {
    Unknown(String),
    Invalid(String),
    RateLimited { why: String, updates: Vec<LoadUpdate> },
}

/// The interval of reading counters and computing weights.
const COUNTER_INTERVAL: Duration = Duration::from_millis(250);

impl LoadObserver {
    /// Starts with the settings in `groups`.
    ///
    /// # Errors
    /// The system provides no thread or no event queue.
    pub fn start(
        groups: impl IntoIterator<Item = impl Into<Arc<GroupSettings>>>,
        balancer: Arc<dyn Balancer>,
    ) -> io::Result<Self> {
        // Names are resolved on threads of their own, a few at once.
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().max_blocking_threads(8).build()?;
        let handle = runtime.handle().clone();
        let shared = Arc::new(ObserverShared { watch: Mutex::default(), balancer });
        let (stop, stopped) = oneshot::channel();
        let thread_shared = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("monitors".into()).spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    () = poll_counters(&thread_shared) => {}
                    _ = stopped => {}
                }
            });
            // A lookup that hangs must not keep the process from ending.
            runtime.shutdown_background();
        })?;
        let cluster = Self {
            inner: shared,
            runtime: handle,
            scrapes: Mutex::default(),
            stop: Some(stop),
            thread: Some(thread),
        };
        cluster.update(groups);
        Ok(cluster)
    }

    /// Applies other settings. Members that stay, by name, keep their observations. Groups with identical
    /// settings cost nothing.
    pub fn update(&self, groups: impl IntoIterator<Item = impl Into<Arc<GroupSettings>>>) {
        let updates = {
            let mut tracker = lock(&self.inner.watch);
            let updates = tracker.update(groups, Instant::now());
            self.sync_scrapes(&tracker);
            updates
        };
        self.inner.deliver_updates(updates);
    }

    /// Sets another expression for the weights of a group's members, or none.
    pub fn set_weight_expression(&self, group: &str, weight: Option<Expression>) {
        let mut tracker = lock(&self.inner.watch);
        tracker.set_weight_expression(group, weight);
        self.sync_scrapes(&tracker);
    }

    /// Records a report. A load that follows from it has reached the balancer when this returns.
    ///
    /// # Errors
    /// The report is rejected as a whole, except for the names up to the limit if there are too many.
    pub fn report(&self, report: &MetricReport) -> Result<(), ReportRejection> {
        let outcome = lock(&self.inner.watch).record_report(report, Instant::now());
        match outcome {
            Ok(updates) => {
                self.inner.deliver_updates(updates);
                Ok(())
            }
            Err(TrackerRejection::RateLimited { why: reason, updates }) => {
                self.inner.deliver_updates(updates);
                Err(ReportRejection::RateLimited(reason))
            }
            Err(TrackerRejection::Unknown(reason)) => Err(ReportRejection::Unknown(reason)),
            Err(TrackerRejection::Invalid(reason)) => Err(ReportRejection::Invalid(reason)),
        }
    }

    /// Records values of a member from another source now, such as its responses (`source`). Invalid names,
    /// values that are not finite, and unknown members are ignored. The caller limits the rate.
    pub fn observe(&self, group: &str, member: &str, values: &[(String, f64)], source: MetricSource) {
        let updates = lock(&self.inner.watch).observe(group, member, values, source, Instant::now());
        self.inner.deliver_updates(updates);
    }

    /// Returns the observations of a group's members; `None` if there is no such group.
    pub fn observations(&self, group: &str) -> Option<GroupObservations> {
        lock(&self.inner.watch).observations(group, Instant::now())
    }

    fn sync_scrapes(&self, tracker: &LoadTracker) {
        lock(&self.scrapes).sync(tracker.settings(), &self.runtime, &Arc::downgrade(&self.inner));
    }
}

impl Drop for LoadObserver {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // The panic hook has already reported a panic of the thread.
            let _ = thread.join();
        }
    }
}

impl ObserverShared {
    /// Records the response of a monitor.
    pub(crate) fn record_scrape(&self, group: &str, member: &str, outcome: ScrapeResult) {
        let updates = lock(&self.watch).record_scrape(group, member, outcome, Instant::now());
        self.deliver_updates(updates);
    }

    /// Notifies the balancer of a member that does not report.
    pub(crate) fn note_missing_reports(&self, group: &str, member: &str, reason: &str) {
        self.balancer.note_missing_reports(group, member, reason);
    }

    /// Sends updates to the balancer, without a lock held.
    fn deliver_updates(&self, updates: Vec<LoadUpdate>) {
        for update in updates {
            match update {
                LoadUpdate::Load { group, member, value, age, of_host } => {
                    self.balancer.set_load(&group, &member, value, age, of_host);
                }
                LoadUpdate::MetricChanged { group } => self.balancer.forget_loads(&group),
                LoadUpdate::Usage { group, member, usage, age } => {
                    self.balancer.set_usage(&group, &member, usage, age);
                }
                LoadUpdate::CpuUtilization { group, member, sensed, age } => {
                    self.balancer.set_cpu_utilization(&group, &member, sensed, age);
                }
                LoadUpdate::Weights { group, weights } => self.balancer.set_weights(&group, &weights),
                LoadUpdate::Flood { group, member } => self.balancer.note_flood(&group, &member),
            }
        }
    }
}

/// Reads the balancer's counters forever.
async fn poll_counters(shared: &ObserverShared) {
    let mut tick = tokio::time::interval(COUNTER_INTERVAL);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tick.tick().await;
        let group_names = lock(&shared.watch).groups_with_counters();
        for group in group_names {
            let counters = shared.balancer.counters(&group);
            let updates = lock(&shared.watch).record_counters(&group, &counters, Instant::now());
            shared.deliver_updates(updates);
        }
    }
}

/// Locks a mutex. The state stays usable after a panic of another thread, so poisoning is ignored.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
