//! The model: processors, the tasks on them, their entries and what those do.
//!
//! Everything is kept in lists and known by its place in them. A model that was read holds together: every number is in
//! its range, every place exists, calls form no cycle, and every entry that is called answers.

use std::collections::BTreeMap;
use std::fmt;

/// Place of a processor in [`Model::processors`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProcessorId(pub usize);
/// Place of a task in [`Model::tasks`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaskId(pub usize);
/// Place of an entry in [`Model::entries`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EntryId(pub usize);
/// Place of an activity in [`Model::activities`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ActivityId(pub usize);

/// A layered queueing network.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Model {
    /// What its author says of it.
    pub comment: String,
    /// What work is done on.
    pub processors: Vec<Processor>,
    /// Who does it.
    pub tasks: Vec<Task>,
    /// What tasks can be asked for.
    pub entries: Vec<Entry>,
    /// What is done for it: phases and activities.
    pub activities: Vec<Activity>,
    /// Names that no author wrote, because a reader made the part up, and how to speak of it in words that its author knows.
    pub made: BTreeMap<String, String>,
}

/// How many there are of something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Copies {
    /// So many, at least 1.
    Some(u32),
    /// As many as are needed.
    Infinite,
}

/// Who goes next where several wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheduling {
    /// In the order in which they came.
    Fcfs,
    /// The task of the highest priority, and whoever is served is served to the end.
    HeadOfLine,
    /// The task of the highest priority, which takes the processor from one of a lower.
    Preemptive,
    /// Any of them.
    Random,
    /// All at once, each a bit slower (processor sharing).
    Sharing,
}

/// A processor, or a device.
#[derive(Clone, Debug, PartialEq)]
pub struct Processor {
    /// Its name.
    pub name: String,
    /// Who goes next.
    pub scheduling: Scheduling,
    /// Its cores.
    pub copies: Copies,
    /// Demands are divided by this; above 0.
    pub speed: f64,
    /// How many of it there are, each with a queue of its own; at least 1.
    pub replicas: u32,
}

/// What a task is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Role {
    /// A reference task: so many clients that begin again whenever they are done, after a time to think of this mean.
    Client {
        /// Mean, exponential; 0 for none.
        think: f64,
    },
    /// It waits for calls.
    Server {
        /// Who goes first of those that wait for a thread: [`Scheduling::Fcfs`], or [`Scheduling::HeadOfLine`] by the
        /// priority of the task that asks and of the entry, added up.
        queue: Scheduling,
    },
}

/// A program: clients, or a server with threads.
#[derive(Clone, Debug, PartialEq)]
pub struct Task {
    /// Its name.
    pub name: String,
    /// Client or server.
    pub role: Role,
    /// Where it runs.
    pub processor: ProcessorId,
    /// Its threads; of clients, how many there are.
    pub copies: Copies,
    /// How many of it there are, each with threads and a queue of its own; at least 1, and a multiple of its processor's. See
    /// [`Model::fan_out`].
    pub replicas: u32,
    /// How many replicas of another task each of its own asks, where that is not 1; by the order of tasks.
    pub fan_out: Vec<(TaskId, u32)>,
    /// Higher ones go first, where the processor or the task that it asks looks at it.
    pub priority: i32,
    /// Requests that may wait for a thread; one more is refused at once. None for any number.
    pub queue_limit: Option<u32>,
    /// What can be asked of it.
    pub entries: Vec<EntryId>,
}

/// Something that a task can be asked for.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// Its name.
    pub name: String,
    /// Whose it is.
    pub task: TaskId,
    /// Requests from outside, per unit of time; 0 for none.
    pub arrivals: f64,
    /// Where its task serves by priority: what is added to the priority of the task that asks. Higher ones go first.
    pub priority: i32,
    /// Who answers in its stead, with the probability; together at most 1.
    pub forwards: Vec<(EntryId, f64)>,
    /// How it chooses among those; none for by chance. Where there is one, probabilities add up to 1 and are weights.
    pub routing: Option<Routing>,
    /// What is done for a request.
    pub body: Body,
}

/// How an entry chooses whom it forwards to, as a balancer does. Models of other tools know only chance.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Routing {
    /// By what rule.
    pub policy: Policy,
    /// How long loads are believed: they are looked at once in this time, all at once. 0 for those of the moment.
    pub age: f64,
}

/// A rule by which a balancer chooses. The load of a target is how many requests wait or are served at its task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// By chance, in proportion to the weights.
    Random,
    /// One after the other.
    RoundRobin,
    /// In turns, in proportion to the weights.
    Weighted,
    /// The least loaded; of several any.
    LeastLoaded,
    /// The less loaded of any two.
    PowerOfTwo,
    /// Always the same for one client.
    Sticky,
    /// The first in the order in which they stand of those that have a thread free; where none has, the first of those for whose
    /// threads fewest wait.
    FirstAvailable,
}

impl Policy {
    /// All, by their names in texts.
    pub const ALL: [(&'static str, Self); 7] = [
        ("random", Self::Random),
        ("round_robin", Self::RoundRobin),
        ("weighted", Self::Weighted),
        ("least_loaded", Self::LeastLoaded),
        ("power_of_two", Self::PowerOfTwo),
        ("sticky", Self::Sticky),
        ("first_available", Self::FirstAvailable),
    ];

    /// Its name in texts.
    pub fn name(self) -> &'static str {
        Self::ALL.into_iter().find(|(_, own)| *own == self).map_or("", |(name, _)| name)
    }

    /// Does it look at loads, which can be old?
    pub fn looks_at_loads(self) -> bool {
        matches!(self, Self::LeastLoaded | Self::PowerOfTwo)
    }
}

/// As in texts: `least_loaded(0.5)`.
impl fmt::Display for Routing {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.policy.name())?;
        if self.age > 0.0 { write!(out, "({})", self.age) } else { Ok(()) }
    }
}

/// What is done for a request.
#[derive(Clone, Debug, PartialEq)]
pub enum Body {
    /// One to three phases in order. The caller is answered after the first; the others go on without it.
    Phases(Vec<ActivityId>),
    /// A graph of activities that begins with this one.
    Graph(ActivityId),
}

/// In which order calls are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// A geometrically distributed number of calls, of which each goes anywhere in proportion.
    Stochastic,
    /// Exactly so many calls, in random order.
    Deterministic,
    /// Exactly so many calls, in the order in which they are listed.
    List,
}

/// A phase, or an activity of a graph.
#[derive(Clone, Debug, PartialEq)]
pub struct Activity {
    /// Its name; of a phase, that of the entry and its number.
    pub name: String,
    /// Who does it.
    pub task: TaskId,
    /// Mean work for the processor.
    pub demand: f64,
    /// Squared coefficient of variation of each piece of the work between two calls; 1 is exponential.
    pub variation: f64,
    /// Mean time to think before it; exponential, 0 for none.
    pub think: f64,
    /// How often and in which order calls are made.
    pub order: Order,
    /// The calls.
    pub calls: Vec<Call>,
    /// Entries whose callers are answered when it is done (activities of graphs only).
    pub replies: Vec<EntryId>,
    /// What follows (activities of graphs only).
    pub next: Next,
}

/// A call that is made while something is done.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Call {
    /// What is asked for.
    pub entry: EntryId,
    /// How often, in the mean; a whole number where the order is not stochastic.
    pub count: f64,
    /// Does the caller wait for the answer?
    pub waits: bool,
    /// For how long, and what then; none for as long as it takes. Only of calls that wait.
    pub patience: Option<Patience>,
}

/// What a caller does when it is not answered. Models of other tools wait for ever.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Patience {
    /// For how long it waits for an answer; infinite for ever.
    pub timeout: f64,
    /// How often it tries again after it was refused or gave up; at most [`Patience::MOST`].
    pub retries: u32,
    /// For how long it waits before the first of those; each next time twice as long.
    pub backoff: f64,
}

impl Patience {
    /// Retries at most.
    pub const MOST: u32 = 100;
    /// As if there were none.
    pub const ENDLESS: Self = Self { timeout: f64::INFINITY, retries: 0, backoff: 0.0 };
}

/// As in texts: `timeout(0.5) retries(2) backoff(0.1)`.
impl fmt::Display for Patience {
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

/// What follows an activity.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Next {
    /// Nothing: this way ends here.
    #[default]
    End,
    /// One of these, with the probability; together 1.
    Or(Vec<(f64, ActivityId)>),
    /// All of these at the same time.
    And(Vec<ActivityId>),
    /// It waits at a join until as many of its branches have come as it wants; then this one follows.
    Join {
        /// Number of the join within the model.
        join: usize,
        /// Branches that it wants.
        wanted: u32,
        /// Branches that there are.
        branches: u32,
        /// What follows.
        then: Box<Self>,
    },
    /// Each of these so often in the mean, in random order, and then what is after it.
    Loop {
        /// Mean number of times and what is done.
        bodies: Vec<(f64, ActivityId)>,
        /// What follows, if anything does.
        exit: Option<ActivityId>,
    },
}

impl Task {
    /// Is it a reference task?
    pub fn is_client(&self) -> bool {
        matches!(self.role, Role::Client { .. })
    }
}

impl Model {
    /// How to speak of a processor, task, entry or activity of this name to whoever wrote the model: in backquotes, if it is
    /// the author's own.
    pub fn called(&self, name: &str) -> String {
        self.made.get(name).cloned().unwrap_or_else(|| format!("`{name}`"))
    }

    /// The same of an activity: a phase has no name of its own, but its entry's.
    pub fn called_activity(&self, place: ActivityId) -> String {
        let phase = |entry: &Entry| match &entry.body {
            Body::Phases(phases) => phases.iter().position(|phase| *phase == place),
            Body::Graph(_) => None,
        };
        match self.entries.iter().find_map(|entry| Some((entry, phase(entry)?))) {
            Some((entry, 0)) => self.called(&entry.name),
            Some((entry, number)) => format!("phase {} of {}", number + 1, self.called(&entry.name)),
            None => self.activities.get(place.0).map_or_else(String::new, |own| self.called(&own.name)),
        }
    }

    /// Can a call fail in it: is there a queue with a limit, or a caller whose patience has an end?
    pub fn has_limits(&self) -> bool {
        self.tasks.iter().any(|task| task.queue_limit.is_some())
            || self.activities.iter().flat_map(|own| &own.calls).any(|call| call.patience.is_some())
    }

    /// The task that an entry belongs to.
    pub fn task_of(&self, entry: EntryId) -> &Task {
        &self.tasks[self.entries[entry.0].task.0]
    }
}
