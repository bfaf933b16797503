//! Observes the members: records their reports, polls their monitors, and computes loads and weights.
//!
//! Figures arrive in four ways: by push ([`Cluster::report`]), by pull, from responses
//! ([`Cluster::observe`]), and from the balancer itself ([`Balancer::counters`]). Tasks on this crate's one
//! thread pull an agent's JSON, a page of Prometheus metrics or a stream of load reports. An operator's
//! [`Expression`]s compute a member's load and, if the strategy needs it, its weight, which are passed to the
//! balancer. All of this is the slow path: no request waits for it.
//!
//! Input is bounded: 64 names per member, 64 characters per name, 50 reports per second and member, ages of a
//! minute at most, finite numbers only. Wrong or excessive input affects only the member that it is about.
//!
//! This crate does not depend on the data plane, which implements [`Balancer`].

mod account;
mod answer;
mod bucket;
pub mod corba;
pub mod discover;
pub mod etcd;
mod expression;
mod facts;
pub mod fleet;
pub mod lottery;
#[cfg(test)]
#[path = "../../../fuzz/near.rs"]
mod near;
mod oob;
mod own;
mod pull;
pub mod scaler;
mod settings;
pub mod store;
mod watch;

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
        crate::answer::law::check(input);
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

pub use expression::{Expression, Fault, LONGEST, is_name};
pub use facts::{LIMIT_AGE, LIMIT_NAMES};
pub use own::Counters;
pub use settings::{GroupSettings, MemberSettings, MonitorSettings, Source, Target};
pub use watch::{OWN, is_own, is_rate};

use pull::{Answer, Pulls};
use watch::{Said, Watch};

/// The balancer that uses loads and weights. Its methods are called on any thread, and should take
/// milliseconds.
pub trait Balancer: Send + Sync + 'static {
    /// Returns the counters of each member of a group; empty if there is no such group.
    fn counters(&self, group: &str) -> Vec<(Arc<str>, Counters)>;

    /// Sets the load of a member, measured `age` ago: finite, not negative. `of_host` means that it covers
    /// the whole host.
    fn load(&self, group: &str, member: &str, value: f64, age: Duration, of_host: bool);

    /// Discards the loads of a group whose metric has changed.
    fn forget_loads(&self, group: &str);

    /// Sets a member's usage, measured `age` ago: finite, not negative.
    fn usage(&self, group: &str, member: &str, usage: Usage, age: Duration);

    /// Sets the utilization of a member's processors, measured `age` ago: finite, not negative.
    fn sensed(&self, group: &str, member: &str, sensed: Sensed, age: Duration);

    /// Sets the weights of all members of a group; `None` if a weight is unknown.
    fn weights(&self, group: &str, weights: &[(Arc<str>, Option<f64>)]);

    /// Notes that a member's reports exceed the rate limit.
    fn flooded(&self, group: &str, member: &str);

    /// Notes that a member does not report its load in the way that its group's monitor requires, and the
    /// reason.
    fn no_reports(&self, group: &str, member: &str, why: &str);
}

/// The throughput of a member and its utilization.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Usage {
    /// Requests per second.
    pub rps: f64,
    /// The utilization, 1 for fully busy; may exceed 1.
    pub utilization: f64,
    /// Failed requests per second.
    pub eps: f64,
}

/// The utilization of a member's processors.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sensed {
    /// The utilization, 0 to 1.
    pub share: f64,
    /// The number of processors, above 0.
    pub processors: f64,
    /// Whether the utilization covers the whole host, rather than the server alone.
    pub whole: bool,
}

/// A load report: numbers about a member.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
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
pub enum Refused {
    /// There is no such group or member.
    #[error("{0}")]
    Unknown(String),
    /// The report is invalid.
    #[error("{0}")]
    Wrong(String),
    /// The reports exceed the rate limit.
    #[error("{0}")]
    TooFast(String),
}

/// The observations of a group.
#[derive(Clone, Debug, PartialEq)]
pub struct Known {
    /// The monitor of its loads.
    pub monitor: Option<MonitorExplanation>,
    /// The expression of its weights.
    pub weight: Option<String>,
    /// The members, in the order of the settings.
    pub members: Vec<MemberKnown>,
}

/// The observations of a member.
#[derive(Clone, Debug, PartialEq)]
pub struct MemberKnown {
    /// The name as configured.
    pub name: Arc<str>,
    /// The observations, by name.
    pub facts: Vec<FactExplanation>,
    /// The last computed load.
    pub load: Option<LoadExplanation>,
    /// The reason why there is no load now.
    pub trouble: Option<String>,
    /// The number of dropped reports.
    pub dropped: u64,
}

/// The observer, which records reports and polls monitors until it is dropped.
pub struct Cluster {
    inner: Arc<Inner>,
    runtime: Handle,
    pulls: Mutex<Pulls>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

pub(crate) struct Inner {
    watch: Mutex<Watch>,
    balancer: Arc<dyn Balancer>,
}

/// An internal form of [`Refused`], with updates that the balancer receives nevertheless.
#[derive(Debug)]
pub(crate) enum Refusal {
    Unknown(String),
    Wrong(String),
    TooFast { why: String, said: Vec<Said> },
}

/// The interval of reading counters and computing weights.
const LOOK: Duration = Duration::from_millis(250);

impl Cluster {
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
        let inner = Arc::new(Inner { watch: Mutex::default(), balancer });
        let (stop, stopped) = oneshot::channel();
        let own = Arc::clone(&inner);
        let thread = std::thread::Builder::new().name("monitors".into()).spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    () = look(&own) => {}
                    _ = stopped => {}
                }
            });
            // A lookup that hangs must not keep the process from ending.
            runtime.shutdown_background();
        })?;
        let cluster =
            Self { inner, runtime: handle, pulls: Mutex::default(), stop: Some(stop), thread: Some(thread) };
        cluster.update(groups);
        Ok(cluster)
    }

    /// Applies other settings. Members that stay, by name, keep their observations. Groups with identical
    /// settings cost nothing.
    pub fn update(&self, groups: impl IntoIterator<Item = impl Into<Arc<GroupSettings>>>) {
        let said = {
            let mut watch = lock(&self.inner.watch);
            let said = watch.update(groups, Instant::now());
            self.follow(&watch);
            said
        };
        self.inner.say(said);
    }

    /// Sets another expression for the weights of a group's members, or none.
    pub fn weigh(&self, group: &str, weight: Option<Expression>) {
        let mut watch = lock(&self.inner.watch);
        watch.weigh(group, weight);
        self.follow(&watch);
    }

    /// Records a report. A load that follows from it has reached the balancer when this returns.
    ///
    /// # Errors
    /// The report is rejected as a whole, except for the names up to the limit if there are too many.
    pub fn report(&self, report: &Report) -> Result<(), Refused> {
        let outcome = lock(&self.inner.watch).report(report, Instant::now());
        match outcome {
            Ok(said) => {
                self.inner.say(said);
                Ok(())
            }
            Err(Refusal::TooFast { why, said }) => {
                self.inner.say(said);
                Err(Refused::TooFast(why))
            }
            Err(Refusal::Unknown(why)) => Err(Refused::Unknown(why)),
            Err(Refusal::Wrong(why)) => Err(Refused::Wrong(why)),
        }
    }

    /// Records values of a member from another source now, such as its responses (`source`). Invalid names,
    /// values that are not finite, and unknown members are ignored. The caller limits the rate.
    pub fn observe(&self, group: &str, member: &str, values: &[(String, f64)], source: Source) {
        let said = lock(&self.inner.watch).observe(group, member, values, source, Instant::now());
        self.inner.say(said);
    }

    /// Returns the observations of a group's members; `None` if there is no such group.
    pub fn known(&self, group: &str) -> Option<Known> {
        lock(&self.inner.watch).known(group, Instant::now())
    }

    fn follow(&self, watch: &Watch) {
        lock(&self.pulls).follow(watch.settings(), &self.runtime, &Arc::downgrade(&self.inner));
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // The panic hook has already reported a panic of the thread.
            let _ = thread.join();
        }
    }
}

impl Inner {
    /// Records the response of a monitor.
    pub(crate) fn pulled(&self, group: &str, member: &str, outcome: Answer) {
        let said = lock(&self.watch).pulled(group, member, outcome, Instant::now());
        self.say(said);
    }

    /// Notifies the balancer of a member that does not report.
    pub(crate) fn no_reports(&self, group: &str, member: &str, why: &str) {
        self.balancer.no_reports(group, member, why);
    }

    /// Sends updates to the balancer, without a lock held.
    fn say(&self, said: Vec<Said>) {
        for one in said {
            match one {
                Said::Load { group, member, value, age, of_host } => {
                    self.balancer.load(&group, &member, value, age, of_host);
                }
                Said::Anew { group } => self.balancer.forget_loads(&group),
                Said::Usage { group, member, usage, age } => {
                    self.balancer.usage(&group, &member, usage, age);
                }
                Said::Sensed { group, member, sensed, age } => {
                    self.balancer.sensed(&group, &member, sensed, age);
                }
                Said::Weights { group, weights } => self.balancer.weights(&group, &weights),
                Said::Flood { group, member } => self.balancer.flooded(&group, &member),
            }
        }
    }
}

/// Reads the balancer's counters forever.
async fn look(inner: &Inner) {
    let mut tick = tokio::time::interval(LOOK);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tick.tick().await;
        let watched = lock(&inner.watch).watched();
        for group in watched {
            let counters = inner.balancer.counters(&group);
            let said = lock(&inner.watch).look(&group, &counters, Instant::now());
            inner.say(said);
        }
    }
}

/// Locks a mutex. The state stays usable after a panic of another thread, so poisoning is ignored.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
