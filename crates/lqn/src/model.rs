//! The model: processors, the tasks on them, their entries, and the activities of entries.
//!
//! All objects are in lists and identified by their index. A model that was read is consistent: every number
//! is in its range, every index is valid, calls form no cycle, and every entry that is called replies.

use std::collections::BTreeMap;
use std::fmt;

/// The index of a processor in [`Model::processors`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProcessorId(pub usize);
/// The index of a task in [`Model::tasks`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaskId(pub usize);
/// The index of an entry in [`Model::entries`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EntryId(pub usize);
/// The index of an activity in [`Model::activities`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ActivityId(pub usize);

/// A layered queueing network.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Model {
    /// The author's comment.
    pub comment: String,
    /// The processors.
    pub processors: Vec<Processor>,
    /// The tasks.
    pub tasks: Vec<Task>,
    /// The entries.
    pub entries: Vec<Entry>,
    /// The phases of entries and the activities of graphs.
    pub activities: Vec<Activity>,
    /// The names that a reader generated, each with a description that the author of the model understands.
    pub generated_names: BTreeMap<String, String>,
}

/// The multiplicity of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Multiplicity {
    /// This number, at least 1.
    Finite(u32),
    /// An unlimited number.
    Infinite,
}

/// The queueing discipline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheduling {
    /// First come, first served.
    Fcfs,
    /// Priority order without preemption (head of line), by the task's priority.
    HeadOfLine,
    /// Priority order with preemption, by the task's priority.
    Preemptive,
    /// Random order.
    Random,
    /// Processor sharing.
    ProcessorSharing,
}

/// A processor or a device.
#[derive(Clone, Debug, PartialEq)]
pub struct Processor {
    /// The name.
    pub name: String,
    /// The queueing discipline.
    pub scheduling: Scheduling,
    /// The number of cores.
    pub copies: Multiplicity,
    /// The speed, by which demands are divided; above 0.
    pub speed: f64,
    /// The number of replicas, each with its own queue; at least 1.
    pub replicas: u32,
}

/// The role of a task.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum TaskRole {
    /// A reference task: a number of clients that start a new cycle when the previous one ends, after a think
    /// time.
    Client {
        /// The mean think time, exponentially distributed; 0 for none.
        think: f64,
    },
    /// A server, which waits for calls.
    Server {
        /// The order of requests that wait for a thread: [`Scheduling::Fcfs`], or [`Scheduling::HeadOfLine`]
        /// by the sum of the calling task's and the entry's priority.
        queue: Scheduling,
    },
}

/// A program: clients, or a server with threads.
#[derive(Clone, Debug, PartialEq)]
pub struct Task {
    /// The name.
    pub name: String,
    /// The role, client or server.
    pub role: TaskRole,
    /// The processor that it runs on.
    pub processor: ProcessorId,
    /// The number of threads, or of clients.
    pub copies: Multiplicity,
    /// The number of replicas, each with its own threads and queue. It is at least 1 and a multiple of its
    /// processor's. See [`Model::fan_out`].
    pub replicas: u32,
    /// The number of another task's replicas that each of its own calls, where it is not 1; sorted by task.
    pub fan_out: Vec<(TaskId, u32)>,
    /// The priority at a processor or called task that considers it; greater values go first.
    pub priority: i32,
    /// The largest number of requests that wait for a thread; a further one is refused at once. `None` for no
    /// limit.
    pub queue_limit: Option<u32>,
    /// The entries.
    pub entries: Vec<EntryId>,
}

/// An operation of a task that can be called.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// The name.
    pub name: String,
    /// The task that it belongs to.
    pub task: TaskId,
    /// The rate of requests from outside, per unit of time; 0 for none.
    pub arrivals: f64,
    /// The addition to the calling task's priority, if its own task serves by priority; greater values go
    /// first.
    pub priority: i32,
    /// The entries that it forwards to, with probabilities; their sum is at most 1.
    pub forwards: Vec<(EntryId, f64)>,
    /// The policy by which it chooses among them; `None` for random choice. With a policy, the probabilities
    /// add up to 1 and are weights.
    pub routing: Option<Routing>,
    /// The work for a request.
    pub body: EntryBody,
}

/// The method by which an entry chooses its target, as a balancer does. Models of other tools have random
/// choice only.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Routing {
    /// The policy.
    pub policy: RoutingPolicy,
    /// The maximal age of load information: all loads are read at once, once in this time. 0 for current
    /// loads.
    pub max_age: f64,
}

/// A balancing policy. The load of a target is the number of requests that wait or are served at its task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoutingPolicy {
    /// Random choice, in proportion to the weights.
    Random,
    /// One target after the other.
    RoundRobin,
    /// One target after the other, in proportion to the weights.
    Weighted,
    /// The least loaded target; a random one of several.
    LeastLoaded,
    /// The less loaded of two random targets.
    PowerOfTwo,
    /// The same target for all requests of a client.
    Sticky,
    /// The first target in list order with a free thread; without one, the first of those with the fewest
    /// waiting requests.
    FirstAvailable,
}

impl RoutingPolicy {
    /// All policies with their names in models.
    pub const ALL: [(&'static str, Self); 7] = [
        ("random", Self::Random),
        ("round_robin", Self::RoundRobin),
        ("weighted", Self::Weighted),
        ("least_loaded", Self::LeastLoaded),
        ("power_of_two", Self::PowerOfTwo),
        ("sticky", Self::Sticky),
        ("first_available", Self::FirstAvailable),
    ];

    /// Returns the name in models.
    pub fn name(self) -> &'static str {
        Self::ALL.into_iter().find(|(_, policy)| *policy == self).map_or("", |(name, _)| name)
    }

    /// Returns `true` if the policy uses loads, which can be out of date.
    pub fn uses_loads(self) -> bool {
        matches!(self, Self::LeastLoaded | Self::PowerOfTwo)
    }
}

/// Formats the form used in models: `least_loaded(0.5)`.
impl fmt::Display for Routing {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.policy.name())?;
        if self.max_age > 0.0 { write!(out, "({})", self.max_age) } else { Ok(()) }
    }
}

/// The work for a request.
#[derive(Clone, Debug, PartialEq)]
pub enum EntryBody {
    /// One to three phases in order. The reply follows the first; the others run without the caller.
    Phases(Vec<ActivityId>),
    /// A graph of activities that begins with this one.
    Graph(ActivityId),
}

/// The order of calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallOrder {
    /// A geometrically distributed number of calls, each to a random target in proportion to the mean
    /// numbers.
    Stochastic,
    /// Exactly the given numbers of calls, in random order.
    Deterministic,
    /// Exactly the given numbers of calls, in list order.
    List,
}

/// A phase, or an activity of a graph.
#[derive(Clone, Debug, PartialEq)]
pub struct Activity {
    /// The name; a phase has that of the entry and its number.
    pub name: String,
    /// The task that performs it.
    pub task: TaskId,
    /// The mean demand on the processor.
    pub demand: f64,
    /// The squared coefficient of variation of each slice of the demand between two calls; 1 is exponential.
    pub variation: f64,
    /// The mean think time before it, exponentially distributed; 0 for none.
    pub think: f64,
    /// The order of calls.
    pub order: CallOrder,
    /// The calls.
    pub calls: Vec<Call>,
    /// The entries whose callers it replies to when it ends (activities of graphs only).
    pub replies: Vec<EntryId>,
    /// The successors (activities of graphs only).
    pub successors: Successors,
}

/// A call made by an activity.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Call {
    /// The called entry.
    pub entry: EntryId,
    /// The mean number of calls; a whole number unless the order is stochastic.
    pub count: f64,
    /// Whether the caller waits for the reply (rendezvous).
    pub waits: bool,
    /// The timeout and retries; `None` to wait without a limit. Only for calls with rendezvous.
    pub retry_policy: Option<RetryPolicy>,
}

/// The behaviour of a caller without a reply. Models of other tools wait without a limit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RetryPolicy {
    /// The timeout for a reply; may be infinite.
    pub timeout: f64,
    /// The number of retries after a refusal or timeout; at most [`RetryPolicy::MAX_RETRIES`].
    pub retries: u32,
    /// The delay before the first retry, doubled for each further one.
    pub backoff: f64,
}

impl RetryPolicy {
    /// The largest number of retries.
    pub const MAX_RETRIES: u32 = 100;
    /// The default: no timeout and no retries.
    pub const UNLIMITED: Self = Self { timeout: f64::INFINITY, retries: 0, backoff: 0.0 };
}

/// Formats the form used in models: `timeout(0.5) retries(2) backoff(0.1)`.
impl fmt::Display for RetryPolicy {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        if self.timeout.is_finite() {
            parts.push(format!("timeout({})", self.timeout));
        }
        if self.retries > 0 || parts.is_empty() {
            parts.push(format!("retries({})", self.retries));
        }
        if self.backoff > 0.0 {
            parts.push(format!("backoff({})", self.backoff));
        }
        out.write_str(&parts.join(" "))
    }
}

/// The successors of an activity.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Successors {
    /// None: the branch ends here.
    #[default]
    End,
    /// One of these activities, with its probability; the sum is 1.
    Or(Vec<(f64, ActivityId)>),
    /// All of these activities in parallel.
    And(Vec<ActivityId>),
    /// A join: once the required number of branches have arrived, `then` follows.
    Join {
        /// The number of the join within the model.
        join: usize,
        /// The required number of branches.
        wanted: u32,
        /// The total number of branches.
        branches: u32,
        /// The successor.
        then: Box<Self>,
    },
    /// A loop: each body a mean number of times, in random order, and then the exit.
    Loop {
        /// The bodies with their mean numbers of runs.
        bodies: Vec<(f64, ActivityId)>,
        /// The successor, if any.
        exit: Option<ActivityId>,
    },
}

impl Task {
    /// Returns `true` for a reference task.
    pub fn is_client(&self) -> bool {
        matches!(self.role, TaskRole::Client { .. })
    }
}

impl Model {
    /// Returns a description of the object with this name for the author of the model: the name in
    /// backquotes, unless a reader generated it.
    pub fn describe(&self, name: &str) -> String {
        self.generated_names.get(name).cloned().unwrap_or_else(|| format!("`{name}`"))
    }

    /// Returns a description of an activity. A phase is described by its entry, since it has no name of its
    /// own.
    pub fn describe_activity(&self, activity: ActivityId) -> String {
        let phase = |entry: &Entry| match &entry.body {
            EntryBody::Phases(phases) => phases.iter().position(|phase| *phase == activity),
            EntryBody::Graph(_) => None,
        };
        match self.entries.iter().find_map(|entry| Some((entry, phase(entry)?))) {
            Some((entry, 0)) => self.describe(&entry.name),
            Some((entry, number)) => format!("phase {} of {}", number + 1, self.describe(&entry.name)),
            None => self
                .activities
                .get(activity.0)
                .map_or_else(String::new, |activity| self.describe(&activity.name)),
        }
    }

    /// Returns `true` if a call can fail, that is, if there is a queue limit or a call with a timeout or
    /// retries.
    pub fn has_limits(&self) -> bool {
        self.tasks.iter().any(|task| task.queue_limit.is_some())
            || self
                .activities
                .iter()
                .flat_map(|activity| &activity.calls)
                .any(|call| call.retry_policy.is_some())
    }

    /// Returns the task of an entry.
    pub fn task_of(&self, entry: EntryId) -> &Task {
        &self.tasks[self.entries[entry.0].task.0]
    }
}
