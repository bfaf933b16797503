//! The parameters of a model that can be changed without its text: `client.threads`, `cpu.cores`,
//! `lookup.demand`, `front.server.timeout`.

use crate::Model;
use crate::model::{
    ActivityId, CallOrder, Entry, EntryBody, EntryId, Multiplicity, ProcessorId, RetryPolicy, TaskId,
    TaskRole,
};

mod branches;

/// A parameter of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModelParameter {
    /// The threads of a task, or the number of clients.
    Threads(TaskId),
    /// The mean think time of clients.
    ThinkTime(TaskId),
    /// The cores of a processor.
    Cores(ProcessorId),
    /// The speed of a processor.
    Speed(ProcessorId),
    /// The mean demand of an activity, or of a phase of an entry.
    Demand(ActivityId),
    /// The rate of requests from outside.
    Arrivals(EntryId),
    /// The mean number of calls, by the activity and the index of the call in it.
    CallCount(ActivityId, usize),
    /// The timeout of such a call.
    Timeout(ActivityId, usize),
    /// The age that load information may reach for an entry that forwards by it.
    LoadAge(EntryId),
    /// The weight of a target of an entry that forwards, relative to the mean of the others; by the index of
    /// the target in the entry.
    Weight(EntryId, usize),
    /// The queue limit of a task.
    QueueLimit(TaskId),
    /// The squared coefficient of variation of the demand of an activity, or of a phase of an entry.
    Variation(ActivityId),
    /// The probability with which an entry forwards to a target, by the index of the target in the entry.
    ForwardProbability(EntryId, usize),
    /// The probability of a branch after an activity, by the index of the branch.
    BranchProbability(ActivityId, usize),
    /// The mean number of runs of a loop body after an activity, by the index of the body.
    LoopCount(ActivityId, usize),
    /// The priority of a task.
    Priority(TaskId),
    /// The addition to it for one of its entries.
    EntryPriority(EntryId),
}

/// The last parts of parameter names, with their meaning.
pub const SUFFIXES: [(&str, &str); 15] = [
    ("threads", "threads of a task, or how many clients"),
    ("think", "mean time for which clients think"),
    ("cores", "cores of a processor"),
    ("speed", "speed of a processor"),
    ("demand", "mean work of an entry's first phase (of NAME.2 its second), or of an activity"),
    ("arrivals", "requests from outside to an entry, per unit of time"),
    ("calls", "of FROM.TO, how many calls an entry or activity makes to another"),
    ("timeout", "of FROM.TO, for how long such a call waits"),
    ("age", "how long an entry that forwards believes loads"),
    ("weight", "of FROM.TO, what part an entry that forwards gives one, to what the others get in the mean"),
    ("queue", "requests that may wait for a thread of a task"),
    (
        "variation",
        "squared coefficient of variation of the work of an entry's first phase (of NAME.2 its second), or \
        of an activity",
    ),
    ("probability", "of FROM.TO, how probably an entry forwards to another, or one activity follows another"),
    ("turns", "of FROM.TO, how often the loop after an activity does another"),
    ("priority", "of a task, or of an entry"),
];

impl ModelParameter {
    /// Finds the parameter with this name.
    ///
    /// # Errors
    /// Returns the missing part and the possible names.
    pub fn find(model: &Model, name: &str) -> Result<Self, String> {
        let Some((whose, word)) = name.rsplit_once('.') else {
            return Err(format!("`{name}` is no number of the model: expected {}", name_forms()));
        };
        let none = |kind: &str, names: Vec<String>| unknown_name(kind, whose, names);
        let task = || model.tasks.iter().position(|own| own.name == whose).map(TaskId);
        let tasks = || model.tasks.iter().map(|own| own.name.clone()).collect();
        let processor = || model.processors.iter().position(|own| own.name == whose).map(ProcessorId);
        let processors = || model.processors.iter().map(|own| own.name.clone()).collect();
        let entry = || model.entries.iter().position(|own| own.name == whose).map(EntryId);
        let entries = || model.entries.iter().map(|own| own.name.clone()).collect();
        match word {
            "threads" => task().map(Self::Threads).ok_or_else(|| none("task", tasks())),
            "think" => {
                let found = task().ok_or_else(|| none("task", tasks()))?;
                let client = model.tasks[found.0].is_client();
                if client {
                    Ok(Self::ThinkTime(found))
                } else {
                    Err(format!("`{whose}` is no reference task: it does not think"))
                }
            }
            "cores" => processor().map(Self::Cores).ok_or_else(|| none("processor", processors())),
            "speed" => processor().map(Self::Speed).ok_or_else(|| none("processor", processors())),
            "arrivals" => entry().map(Self::Arrivals).ok_or_else(|| none("entry", entries())),
            "demand" | "variation" => {
                let first = entry().and_then(|id| match &model.entries[id.0].body {
                    EntryBody::Phases(phases) => phases.first().copied(),
                    EntryBody::Graph(_) => None,
                });
                let activity = || model.activities.iter().position(|own| own.name == whose).map(ActivityId);
                let found = first.or_else(|| phase(model, whose)).or_else(activity);
                let found = found.ok_or_else(|| none("entry with phases, or activity,", entries()))?;
                Ok(if word == "demand" { Self::Demand(found) } else { Self::Variation(found) })
            }
            "probability" => branches::probability(model, whose),
            "turns" => branches::loop_count(model, whose),
            "priority" => {
                let found = task().map(Self::Priority).or_else(|| entry().map(Self::EntryPriority));
                found.ok_or_else(|| none("task or entry", tasks()))
            }
            "calls" => call(model, whose, false).map(|(from, place)| Self::CallCount(from, place)),
            "timeout" => call(model, whose, true).map(|(from, place)| Self::Timeout(from, place)),
            "age" => {
                let found = routed(model).find(|(_, own)| is_named(model, own, whose));
                let names = || routed(model).map(|(_, own)| own.name.clone()).collect();
                let (id, own) = found.ok_or_else(|| none("entry with a policy", names()))?;
                let looks = own.routing.is_some_and(|routing| routing.policy.uses_loads());
                let why = || format!("`{whose}` looks at no loads, which could have an age");
                if looks { Ok(Self::LoadAge(id)) } else { Err(why()) }
            }
            "weight" => {
                let all = || routed(model).filter(|(_, own)| own.forwards.len() > 1);
                let found = all().find_map(|(id, own)| {
                    let (from, to) = whose.rsplit_once('.')?;
                    let to = |(entry, _): &(EntryId, f64)| model.entries[entry.0].name == to;
                    let place = own.forwards.iter().position(to)?;
                    is_named(model, own, from).then_some(Self::Weight(id, place))
                });
                let names = all().flat_map(|(_, own)| {
                    let name =
                        |(to, _): &(EntryId, f64)| format!("{}.{}", own.name, model.entries[to.0].name);
                    own.forwards.iter().map(name)
                });
                found.ok_or_else(|| none("FROM.TO of an entry with a policy", names.collect()))
            }
            "queue" => {
                let found = task().ok_or_else(|| none("task", tasks()))?;
                let client = model.tasks[found.0].is_client();
                let why = || format!("`{whose}` is a reference task: nothing waits for it");
                if client { Err(why()) } else { Ok(Self::QueueLimit(found)) }
            }
            _ => Err(format!("`{name}` is no number of the model: expected {}", name_forms())),
        }
    }

    /// Returns the value; infinite for an unlimited number.
    pub fn value(self, model: &Model) -> f64 {
        let count = |copies| match copies {
            Multiplicity::Finite(count) => f64::from(count),
            Multiplicity::Infinite => f64::INFINITY,
        };
        match self {
            Self::Threads(TaskId(own)) => count(model.tasks[own].copies),
            Self::ThinkTime(TaskId(own)) => match model.tasks[own].role {
                TaskRole::Client { think } => think,
                TaskRole::Server { .. } => 0.0,
            },
            Self::Cores(ProcessorId(own)) => count(model.processors[own].copies),
            Self::Speed(ProcessorId(own)) => model.processors[own].speed,
            Self::Demand(ActivityId(own)) => model.activities[own].demand,
            Self::Arrivals(EntryId(own)) => model.entries[own].arrivals,
            Self::CallCount(ActivityId(own), place) => model.activities[own].calls[place].count,
            Self::Timeout(ActivityId(own), place) => {
                model.activities[own].calls[place].retry_policy.map_or(f64::INFINITY, |own| own.timeout)
            }
            Self::LoadAge(EntryId(own)) => model.entries[own].routing.map_or(0.0, |own| own.max_age),
            Self::Weight(EntryId(own), place) => {
                let (part, others) = target_weights(&model.entries[own], place);
                part / others
            }
            Self::QueueLimit(TaskId(own)) => model.tasks[own].queue_limit.map_or(f64::INFINITY, f64::from),
            Self::Variation(ActivityId(own)) => model.activities[own].variation,
            Self::ForwardProbability(EntryId(own), place) => model.entries[own].forwards[place].1,
            Self::BranchProbability(own, place) | Self::LoopCount(own, place) => {
                branches::branch_value(model, own, place)
            }
            Self::Priority(TaskId(own)) => f64::from(model.tasks[own].priority),
            Self::EntryPriority(EntryId(own)) => f64::from(model.entries[own].priority),
        }
    }

    /// Returns `true` if the value is a whole number.
    pub fn is_whole(self) -> bool {
        matches!(
            self,
            Self::Threads(_)
                | Self::Cores(_)
                | Self::QueueLimit(_)
                | Self::Priority(_)
                | Self::EntryPriority(_)
        )
    }

    /// Sets the value.
    ///
    /// # Errors
    /// Returns an error if the value is invalid.
    pub fn set(self, model: &mut Model, value: f64) -> Result<(), String> {
        let count = || {
            let whole = value.fract() == 0.0 && (1.0..=1e6).contains(&value);
            if whole {
                Ok(Multiplicity::Finite(value as u32))
            } else {
                Err(format!("there cannot be {value} of it: a whole number from 1 to 1000000"))
            }
        };
        let ranks = matches!(self, Self::Priority(_) | Self::EntryPriority(_));
        if !value.is_finite() || value < 0.0 && !ranks {
            return Err(format!("it cannot be {value}: a number from 0 on"));
        }
        let rank = || {
            let whole = value.fract() == 0.0 && value.abs() <= 1e6;
            let why = || format!("it cannot be {value}: a whole number from -1000000 to 1000000");
            if whole { Ok(value as i32) } else { Err(why()) }
        };
        match self {
            Self::Threads(TaskId(own)) => model.tasks[own].copies = count()?,
            Self::Cores(ProcessorId(own)) => model.processors[own].copies = count()?,
            Self::ThinkTime(TaskId(own)) => model.tasks[own].role = TaskRole::Client { think: value },
            Self::Speed(ProcessorId(own)) if value > 0.0 => model.processors[own].speed = value,
            Self::Speed(_) => return Err("a speed is above 0".to_owned()),
            Self::Demand(ActivityId(own)) => model.activities[own].demand = value,
            Self::Arrivals(EntryId(own)) => {
                let task = model.entries[own].task;
                if model.tasks[task.0].is_client() {
                    return Err("clients take no requests from outside".to_owned());
                }
                model.entries[own].arrivals = value;
            }
            Self::CallCount(ActivityId(own), place) => {
                let own = &mut model.activities[own];
                if own.order != CallOrder::Stochastic && value.fract() != 0.0 || value > 1e6 {
                    let what = "at most 1000000, and a whole number where it is exactly so many";
                    return Err(format!("there cannot be {value} calls: {what}"));
                }
                own.calls[place].count = value;
            }
            Self::Timeout(ActivityId(own), place) if value > 0.0 => {
                let call = &mut model.activities[own].calls[place];
                call.retry_policy.get_or_insert(RetryPolicy::UNLIMITED).timeout = value;
            }
            Self::Timeout(..) => return Err("a timeout is a time above 0".to_owned()),
            Self::LoadAge(EntryId(own)) => {
                model.entries[own].routing.iter_mut().for_each(|own| own.max_age = value);
            }
            Self::Weight(EntryId(own), place) if (1e-6..=1e6).contains(&value) => {
                set_target_weight(&mut model.entries[own], place, value);
            }
            Self::Weight(..) => return Err("a weight is a number from 0.000001 to 1000000".to_owned()),
            Self::QueueLimit(TaskId(own)) => {
                let own = &mut model.tasks[own];
                if own.copies == Multiplicity::Infinite {
                    return Err("it has as many threads as are needed: nothing waits for one".to_owned());
                }
                if value.fract() != 0.0 || value > 1e6 {
                    return Err(format!("there cannot wait {value}: a whole number from 0 to 1000000"));
                }
                own.queue_limit = Some(value as u32);
            }
            Self::Variation(ActivityId(own)) => model.activities[own].variation = value,
            Self::ForwardProbability(EntryId(own), place) => {
                branches::set_forward(&mut model.entries[own], place, value)?
            }
            Self::BranchProbability(own, place) => branches::set_branch(model, own, place, value)?,
            Self::LoopCount(own, place) => branches::set_loop_count(model, own, place, value)?,
            Self::Priority(TaskId(own)) => model.tasks[own].priority = rank()?,
            Self::EntryPriority(EntryId(own)) => model.entries[own].priority = rank()?,
        }
        Ok(())
    }
}

/// Formats the error for an unknown name, with the known ones.
fn unknown_name(kind: &str, whose: &str, mut known: Vec<String>) -> String {
    known.truncate(20);
    format!("no {kind} `{whose}`; there are {}", known.join(", "))
}

/// Returns the entries that forward by a policy.
fn routed(model: &Model) -> impl Iterator<Item = (EntryId, &Entry)> {
    let all = model.entries.iter().enumerate().map(|(place, own)| (EntryId(place), own));
    all.filter(|(_, own)| own.routing.is_some())
}

/// Returns `true` if an entry has this name, or is a part of it that a reader generated.
fn is_named(model: &Model, entry: &Entry, name: &str) -> bool {
    entry.name == name
        || model.generated_names.get(&entry.name).is_some_and(|called| *called == format!("`{name}`"))
}

/// Returns the weight of one target, and the mean weight of the others.
fn target_weights(entry: &Entry, place: usize) -> (f64, f64) {
    let all: f64 = entry.forwards.iter().map(|(_, part)| part).sum();
    let own = entry.forwards[place].1;
    (own, (all - own) / (entry.forwards.len() - 1) as f64)
}

/// Sets the weight of one target to `times` the mean of the others, whose ratios and whose common sum with it
/// are unchanged.
fn set_target_weight(entry: &mut Entry, place: usize, times: f64) {
    let others = (entry.forwards.len() - 1) as f64;
    let (old, mean) = target_weights(entry, place);
    let all = old + others * mean;
    for (other, (_, part)) in entry.forwards.iter_mut().enumerate() {
        if other == place {
            *part = all * times / (times + others);
        } else if mean > 0.0 {
            *part *= all / (times + others) / mean;
        } else {
            *part = all / (times + others);
        }
    }
}

/// Finds the phase `lookup.2`, the second one of the entry `lookup`.
fn phase(model: &Model, name: &str) -> Option<ActivityId> {
    let (entry, number) = name.rsplit_once('.')?;
    let number: usize = number.parse().ok()?;
    match &model.entries.iter().find(|own| own.name == entry)?.body {
        EntryBody::Phases(phases) => phases.get(number.checked_sub(1)?).copied(),
        EntryBody::Graph(_) => None,
    }
}

/// Finds a call. `FROM.TO` is a call in any phase of an entry, or of an activity; `FROM.2.TO` one in the
/// second phase; `FROM` the only call. If `waits`, only calls with rendezvous count.
///
/// # Errors
/// Returns an error if there is none, or more than one.
fn call(model: &Model, name: &str, waits: bool) -> Result<(ActivityId, usize), String> {
    // The names of each call, the shortest unambiguous form first.
    let mut all: Vec<(Vec<String>, (ActivityId, usize))> = Vec::new();
    let mut phases = vec![None; model.activities.len()];
    for entry in &model.entries {
        if let EntryBody::Phases(own) = &entry.body {
            own.iter().enumerate().for_each(|(number, own)| phases[own.0] = Some((entry, number + 1)));
        }
    }
    for (place, own) in model.activities.iter().enumerate() {
        for (number, call) in own.calls.iter().enumerate().filter(|(_, call)| call.waits || !waits) {
            let to = &model.entries[call.entry.0].name;
            let names = match phases[place] {
                Some((entry, number)) => {
                    let from = &entry.name;
                    vec![format!("{from}.{to}"), format!("{from}.{number}.{to}"), from.clone()]
                }
                None => vec![format!("{}.{to}", own.name), own.name.clone()],
            };
            all.push((names, (ActivityId(place), number)));
        }
    }
    let mut found = all.iter().filter(|(names, _)| names.iter().any(|own| own == name));
    match (found.next(), found.next()) {
        (Some((_, call)), None) => Ok(*call),
        (None, _) => {
            let names = all.iter().filter_map(|(names, _)| names.first().cloned());
            Err(unknown_name("call FROM.TO", name, names.collect()))
        }
        (Some(_), Some(_)) => Err(format!(
            "`{name}` is more than one call: say FROM.TO, or FROM.1.TO, FROM.2.TO for a phase of an entry"
        )),
    }
}

/// Lists the forms of names: `NAME.threads, NAME.think …`.
fn name_forms() -> String {
    SUFFIXES
        .map(|(word, what)| {
            format!("{}.{word}", if what.starts_with("of FROM.TO") { "FROM.TO" } else { "NAME" })
        })
        .join(", ")
}
