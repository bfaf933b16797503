//! Know the members: take their reports, ask their monitors, make loads and weights of both.
//!
//! Figures come in by push ([`Cluster::report`]), by pull (an agent's JSON, a page of Prometheus metrics or a stream of load
//! reports, asked for by tasks of this crate's one thread), by whoever sees a member's answers ([`Cluster::observe`]) and from the balancer itself ([`Balancer::counters`]). An operator's
//! [`Expression`]s make of them a member's load and, if the strategy asks for it, its weight, which go to the
//! balancer. All of it is slow path: nothing here is reached by a request.
//!
//! What arrives is bounded: 64 names per member, 64 characters per name, 50 reports per second and member, ages of
//! a minute at most, finite numbers only. What is false or too much costs the member that it is said of, no other.
//!
//! This crate knows nothing of the data plane: whoever joins the two implements [`Balancer`].

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

/// Laws of what the network says, for the fuzz targets: each panics if it does not hold.
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

/// The balancer that loads and weights are for. Called on any thread; should take milliseconds.
pub trait Balancer: Send + Sync + 'static {
    /// What it counts of each member of a group; empty if there is no such group.
    fn counters(&self, group: &str) -> Vec<(Arc<str>, Counters)>;

    /// The load of a member, measured `age` ago, and is it of all that goes on at its host? Finite, not negative.
    fn load(&self, group: &str, member: &str, value: f64, age: Duration, of_host: bool);

    /// The group's metric is another one from now on: what was told by the one before says nothing.
    fn forget_loads(&self, group: &str);

    /// What a member does, measured `age` ago: finite, not negative.
    fn usage(&self, group: &str, member: &str, usage: Usage, age: Duration);

    /// How busy a member's processors are, measured `age` ago: finite, not negative.
    fn sensed(&self, group: &str, member: &str, sensed: Sensed, age: Duration);

    /// The weights of all members of a group; `None` for one that is not known.
    fn weights(&self, group: &str, weights: &[(Arc<str>, Option<f64>)]);

    /// More reports came for a member than are taken.
    fn flooded(&self, group: &str, member: &str);

    /// A member does not report its load in the way that its group's monitor asks it to, and why.
    fn no_reports(&self, group: &str, member: &str, why: &str);
}

/// How much a member does and how busy that makes it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Usage {
    /// Requests a second.
    pub rps: f64,
    /// 1 for fully busy; may exceed 1.
    pub utilization: f64,
    /// Failed requests a second.
    pub eps: f64,
}

/// How busy a member's processors are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sensed {
    /// Share of them that is in use, 0 to 1.
    pub share: f64,
    /// How many there are, above 0.
    pub processors: f64,
    /// Is that all that runs at a host, rather than the server alone?
    pub whole: bool,
}

/// Numbers told of a member.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    /// Its group; `None` for all that have it.
    pub group: Option<String>,
    /// As configured (`host:port`), or its address; without a port, every member at that host.
    pub member: String,
    /// By name.
    pub values: Vec<(String, f64)>,
    /// How old they were when they were sent, seconds; `None` for new. From 0 to 60: what is beyond counts as that.
    pub age_seconds: Option<f64>,
}

/// Why a report was not taken: one line for whoever sent it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// There is no such group or member.
    #[error("{0}")]
    Unknown(String),
    /// It cannot be used as it is.
    #[error("{0}")]
    Wrong(String),
    /// There are too many.
    #[error("{0}")]
    TooFast(String),
}

/// What is known of a group.
#[derive(Clone, Debug, PartialEq)]
pub struct Known {
    /// Where its loads come from.
    pub monitor: Option<MonitorExplanation>,
    /// The expression of its weights.
    pub weight: Option<String>,
    /// In the order of the settings.
    pub members: Vec<MemberKnown>,
}

/// What is known of a member.
#[derive(Clone, Debug, PartialEq)]
pub struct MemberKnown {
    /// As configured.
    pub name: Arc<str>,
    /// By name.
    pub facts: Vec<FactExplanation>,
    /// The last load that was made.
    pub load: Option<LoadExplanation>,
    /// Why there is none now.
    pub trouble: Option<String>,
    /// Reports that were dropped.
    pub dropped: u64,
}

/// Takes reports and asks monitors until it is dropped.
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

/// [`Refused`] on its way out, with what the balancer is to be told nevertheless.
#[derive(Debug)]
pub(crate) enum Refusal {
    Unknown(String),
    Wrong(String),
    TooFast { why: String, said: Vec<Said> },
}

/// How often counters are looked at and weights are made.
const LOOK: Duration = Duration::from_millis(250);

impl Cluster {
    /// Starts with what `groups` say.
    ///
    /// # Errors
    /// The system gives no thread or no event queue.
    pub fn start(
        groups: impl IntoIterator<Item = impl Into<Arc<GroupSettings>>>,
        balancer: Arc<dyn Balancer>,
    ) -> io::Result<Self> {
        // Names are looked up on threads of their own, a few at once.
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
            // A look that hangs must not keep the process from ending.
            runtime.shutdown_background();
        })?;
        let cluster =
            Self { inner, runtime: handle, pulls: Mutex::default(), stop: Some(stop), thread: Some(thread) };
        cluster.update(groups);
        Ok(cluster)
    }

    /// Puts other settings in force. Members that stay, by name, keep what is known of them. Groups whose settings are the very same as
    /// before cost nothing.
    pub fn update(&self, groups: impl IntoIterator<Item = impl Into<Arc<GroupSettings>>>) {
        let said = {
            let mut watch = lock(&self.inner.watch);
            let said = watch.update(groups, Instant::now());
            self.follow(&watch);
            said
        };
        self.inner.say(said);
    }

    /// Takes another expression for the weights of a group's members, or none.
    pub fn weigh(&self, group: &str, weight: Option<Expression>) {
        let mut watch = lock(&self.inner.watch);
        watch.weigh(group, weight);
        self.follow(&watch);
    }

    /// Takes a report. A load that follows from it is with the balancer when this returns.
    ///
    /// # Errors
    /// It cannot be taken; nothing of it is, except where more names came than a member may have.
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

    /// Takes what was found out of a member in another way, such as in its answers (`source`), just now. What has no
    /// name that a figure may have, is no finite number or is of nobody here is left out. How often is the
    /// caller's to bound.
    pub fn observe(&self, group: &str, member: &str, values: &[(String, f64)], source: Source) {
        let said = lock(&self.inner.watch).observe(group, member, values, source, Instant::now());
        self.inner.say(said);
    }

    /// What is known of a group's members; `None` if there is no such group.
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
            // A panic there has been reported by the panic hook; there is nothing to add.
            let _ = thread.join();
        }
    }
}

impl Inner {
    /// Takes what a monitor answered.
    pub(crate) fn pulled(&self, group: &str, member: &str, outcome: Answer) {
        let said = lock(&self.watch).pulled(group, member, outcome, Instant::now());
        self.say(said);
    }

    /// Tells the balancer of a member that does not report.
    pub(crate) fn no_reports(&self, group: &str, member: &str, why: &str) {
        self.balancer.no_reports(group, member, why);
    }

    /// Tells the balancer, without a lock held.
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

/// Looks at the balancer's counters for ever.
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

/// Locks; a thread that panicked while it held the lock left nothing half done that matters more than going on.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
