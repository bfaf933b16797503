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
        let Some((subject, word)) = name.rsplit_once('.') else {
            return Err(format!("`{name}` is no number of the model: expected {}", name_forms()));
        };
        let not_found = |kind: &str, names: Vec<String>| unknown_name(kind, subject, names);
        let task = || model.tasks.iter().position(|task| task.name == subject).map(TaskId);
        let tasks = || model.tasks.iter().map(|task| task.name.clone()).collect();
        let processor =
            || model.processors.iter().position(|processor| processor.name == subject).map(ProcessorId);
        let processors = || model.processors.iter().map(|processor| processor.name.clone()).collect();
        let entry = || model.entries.iter().position(|entry| entry.name == subject).map(EntryId);
        let entries = || model.entries.iter().map(|entry| entry.name.clone()).collect();
        match word {
            "threads" => task().map(Self::Threads).ok_or_else(|| not_found("task", tasks())),
            "think" => {
                let task_id = task().ok_or_else(|| not_found("task", tasks()))?;
                let is_client = model.tasks[task_id.0].is_client();
                if is_client {
                    Ok(Self::ThinkTime(task_id))
                } else {
                    Err(format!("`{subject}` is no reference task: it does not think"))
                }
            }
            "cores" => processor().map(Self::Cores).ok_or_else(|| not_found("processor", processors())),
            "speed" => processor().map(Self::Speed).ok_or_else(|| not_found("processor", processors())),
            "arrivals" => entry().map(Self::Arrivals).ok_or_else(|| not_found("entry", entries())),
            "demand" | "variation" => {
                let first_phase = entry().and_then(|id| match &model.entries[id.0].body {
                    EntryBody::Phases(phases) => phases.first().copied(),
                    EntryBody::Graph(_) => None,
                });
                let activity =
                    || model.activities.iter().position(|activity| activity.name == subject).map(ActivityId);
                let candidate = first_phase.or_else(|| phase(model, subject)).or_else(activity);
                let activity_id =
                    candidate.ok_or_else(|| not_found("entry with phases, or activity,", entries()))?;
                Ok(if word == "demand" { Self::Demand(activity_id) } else { Self::Variation(activity_id) })
            }
            "probability" => branches::probability(model, subject),
            "turns" => branches::loop_count(model, subject),
            "priority" => {
                let parameter = task().map(Self::Priority).or_else(|| entry().map(Self::EntryPriority));
                parameter.ok_or_else(|| not_found("task or entry", tasks()))
            }
            "calls" => call(model, subject, false).map(|(from, index)| Self::CallCount(from, index)),
            "timeout" => call(model, subject, true).map(|(from, index)| Self::Timeout(from, index)),
            "age" => {
                let routed_entry = routed(model).find(|(_, entry)| is_named(model, entry, subject));
                let names = || routed(model).map(|(_, entry)| entry.name.clone()).collect();
                let (id, entry) = routed_entry.ok_or_else(|| not_found("entry with a policy", names()))?;
                let uses_loads = entry.routing.is_some_and(|routing| routing.policy.uses_loads());
                let error = || format!("`{subject}` looks at no loads, which could have an age");
                if uses_loads { Ok(Self::LoadAge(id)) } else { Err(error()) }
            }
            "weight" => {
                let splitting_entries = || routed(model).filter(|(_, entry)| entry.forwards.len() > 1);
                let weight = splitting_entries().find_map(|(id, entry)| {
                    let (from, to) = subject.rsplit_once('.')?;
                    let is_target = |(entry, _): &(EntryId, f64)| model.entries[entry.0].name == to;
                    let index = entry.forwards.iter().position(is_target)?;
                    is_named(model, entry, from).then_some(Self::Weight(id, index))
                });
                let names = splitting_entries().flat_map(|(_, entry)| {
                    let name =
                        |(to, _): &(EntryId, f64)| format!("{}.{}", entry.name, model.entries[to.0].name);
                    entry.forwards.iter().map(name)
                });
                weight.ok_or_else(|| not_found("FROM.TO of an entry with a policy", names.collect()))
            }
            "queue" => {
                let task_id = task().ok_or_else(|| not_found("task", tasks()))?;
                let is_client = model.tasks[task_id.0].is_client();
                let error = || format!("`{subject}` is a reference task: nothing waits for it");
                if is_client { Err(error()) } else { Ok(Self::QueueLimit(task_id)) }
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
            Self::Threads(TaskId(task)) => count(model.tasks[task].copies),
            Self::ThinkTime(TaskId(task)) => match model.tasks[task].role {
                TaskRole::Client { think } => think,
                TaskRole::Server { .. } => 0.0,
            },
            Self::Cores(ProcessorId(processor)) => count(model.processors[processor].copies),
            Self::Speed(ProcessorId(processor)) => model.processors[processor].speed,
            Self::Demand(ActivityId(activity)) => model.activities[activity].demand,
            Self::Arrivals(EntryId(entry)) => model.entries[entry].arrivals,
            Self::CallCount(ActivityId(activity), index) => model.activities[activity].calls[index].count,
            Self::Timeout(ActivityId(activity), index) => model.activities[activity].calls[index]
                .retry_policy
                .map_or(f64::INFINITY, |policy| policy.timeout),
            Self::LoadAge(EntryId(entry)) => {
                model.entries[entry].routing.map_or(0.0, |routing| routing.max_age)
            }
            Self::Weight(EntryId(entry), index) => {
                let (weight, others_mean) = target_weights(&model.entries[entry], index);
                weight / others_mean
            }
            Self::QueueLimit(TaskId(task)) => model.tasks[task].queue_limit.map_or(f64::INFINITY, f64::from),
            Self::Variation(ActivityId(activity)) => model.activities[activity].variation,
            Self::ForwardProbability(EntryId(entry), index) => model.entries[entry].forwards[index].1,
            Self::BranchProbability(activity, index) | Self::LoopCount(activity, index) => {
                branches::branch_value(model, activity, index)
            }
            Self::Priority(TaskId(task)) => f64::from(model.tasks[task].priority),
            Self::EntryPriority(EntryId(entry)) => f64::from(model.entries[entry].priority),
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
            let is_whole = value.fract() == 0.0 && (1.0..=1e6).contains(&value);
            if is_whole {
                Ok(Multiplicity::Finite(value as u32))
            } else {
                Err(format!("there cannot be {value} of it: a whole number from 1 to 1000000"))
            }
        };
        let is_priority = matches!(self, Self::Priority(_) | Self::EntryPriority(_));
        if !value.is_finite() || value < 0.0 && !is_priority {
            return Err(format!("it cannot be {value}: a number from 0 on"));
        }
        let priority = || {
            let is_whole = value.fract() == 0.0 && value.abs() <= 1e6;
            let error = || format!("it cannot be {value}: a whole number from -1000000 to 1000000");
            if is_whole { Ok(value as i32) } else { Err(error()) }
        };
        match self {
            Self::Threads(TaskId(task)) => model.tasks[task].copies = count()?,
            Self::Cores(ProcessorId(processor)) => model.processors[processor].copies = count()?,
            Self::ThinkTime(TaskId(task)) => model.tasks[task].role = TaskRole::Client { think: value },
            Self::Speed(ProcessorId(processor)) if value > 0.0 => model.processors[processor].speed = value,
            Self::Speed(_) => return Err("a speed is above 0".to_owned()),
            Self::Demand(ActivityId(activity)) => model.activities[activity].demand = value,
            Self::Arrivals(EntryId(entry)) => {
                let task = model.entries[entry].task;
                if model.tasks[task.0].is_client() {
                    return Err("clients take no requests from outside".to_owned());
                }
                model.entries[entry].arrivals = value;
            }
            Self::CallCount(ActivityId(activity_index), index) => {
                let activity = &mut model.activities[activity_index];
                if activity.order != CallOrder::Stochastic && value.fract() != 0.0 || value > 1e6 {
                    let expected = "at most 1000000, and a whole number where it is exactly so many";
                    return Err(format!("there cannot be {value} calls: {expected}"));
                }
                activity.calls[index].count = value;
            }
            Self::Timeout(ActivityId(activity), index) if value > 0.0 => {
                let call = &mut model.activities[activity].calls[index];
                call.retry_policy.get_or_insert(RetryPolicy::UNLIMITED).timeout = value;
            }
            Self::Timeout(..) => return Err("a timeout is a time above 0".to_owned()),
            Self::LoadAge(EntryId(entry)) => {
                model.entries[entry].routing.iter_mut().for_each(|routing| routing.max_age = value);
            }
            Self::Weight(EntryId(entry), index) if (1e-6..=1e6).contains(&value) => {
                set_target_weight(&mut model.entries[entry], index, value);
            }
            Self::Weight(..) => return Err("a weight is a number from 0.000001 to 1000000".to_owned()),
            Self::QueueLimit(TaskId(task_index)) => {
                let task = &mut model.tasks[task_index];
                if task.copies == Multiplicity::Infinite {
                    return Err("it has as many threads as are needed: nothing waits for one".to_owned());
                }
                if value.fract() != 0.0 || value > 1e6 {
                    return Err(format!("there cannot wait {value}: a whole number from 0 to 1000000"));
                }
                task.queue_limit = Some(value as u32);
            }
            Self::Variation(ActivityId(activity)) => model.activities[activity].variation = value,
            Self::ForwardProbability(EntryId(entry), index) => {
                branches::set_forward(&mut model.entries[entry], index, value)?
            }
            Self::BranchProbability(activity, index) => branches::set_branch(model, activity, index, value)?,
            Self::LoopCount(activity, index) => branches::set_loop_count(model, activity, index, value)?,
            Self::Priority(TaskId(task)) => model.tasks[task].priority = priority()?,
            Self::EntryPriority(EntryId(entry)) => model.entries[entry].priority = priority()?,
        }
        Ok(())
    }
}

/// Formats the error for an unknown name, with the known ones.
fn unknown_name(kind: &str, name: &str, mut known_names: Vec<String>) -> String {
    known_names.truncate(20);
    format!("no {kind} `{name}`; there are {}", known_names.join(", "))
}

/// Returns the entries that forward by a policy.
fn routed(model: &Model) -> impl Iterator<Item = (EntryId, &Entry)> {
    let entries = model.entries.iter().enumerate().map(|(index, entry)| (EntryId(index), entry));
    entries.filter(|(_, entry)| entry.routing.is_some())
}

/// Returns `true` if an entry has this name, or is a part of it that a reader generated.
fn is_named(model: &Model, entry: &Entry, name: &str) -> bool {
    entry.name == name
        || model.generated_names.get(&entry.name).is_some_and(|given_name| *given_name == format!("`{name}`"))
}

/// Returns the weight of one target, and the mean weight of the others.
fn target_weights(entry: &Entry, index: usize) -> (f64, f64) {
    let total: f64 = entry.forwards.iter().map(|(_, weight)| weight).sum();
    let weight = entry.forwards[index].1;
    (weight, (total - weight) / (entry.forwards.len() - 1) as f64)
}

/// Sets the weight of one target to `times` the mean of the others, whose ratios and whose common sum with it
/// are unchanged.
fn set_target_weight(entry: &mut Entry, index: usize, factor: f64) {
    let others = (entry.forwards.len() - 1) as f64;
    let (previous, mean) = target_weights(entry, index);
    let total = previous + others * mean;
    for (target, (_, weight)) in entry.forwards.iter_mut().enumerate() {
        if target == index {
            *weight = total * factor / (factor + others);
        } else if mean > 0.0 {
            *weight *= total / (factor + others) / mean;
        } else {
            *weight = total / (factor + others);
        }
    }
}

/// Finds the phase `lookup.2`, the second one of the entry `lookup`.
fn phase(model: &Model, name: &str) -> Option<ActivityId> {
    let (entry, number) = name.rsplit_once('.')?;
    let number: usize = number.parse().ok()?;
    match &model.entries.iter().find(|candidate| candidate.name == entry)?.body {
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
    let mut calls: Vec<(Vec<String>, (ActivityId, usize))> = Vec::new();
    let mut phases = vec![None; model.activities.len()];
    for entry in &model.entries {
        if let EntryBody::Phases(phase_ids) = &entry.body {
            phase_ids
                .iter()
                .enumerate()
                .for_each(|(number, phase)| phases[phase.0] = Some((entry, number + 1)));
        }
    }
    for (index, activity) in model.activities.iter().enumerate() {
        for (number, call) in activity.calls.iter().enumerate().filter(|(_, call)| call.waits || !waits) {
            let to = &model.entries[call.entry.0].name;
            let names = match phases[index] {
                Some((entry, number)) => {
                    let from = &entry.name;
                    vec![format!("{from}.{to}"), format!("{from}.{number}.{to}"), from.clone()]
                }
                None => vec![format!("{}.{to}", activity.name), activity.name.clone()],
            };
            calls.push((names, (ActivityId(index), number)));
        }
    }
    let mut matching = calls.iter().filter(|(names, _)| names.iter().any(|alias| alias == name));
    match (matching.next(), matching.next()) {
        (Some((_, call)), None) => Ok(*call),
        (None, _) => {
            let names = calls.iter().filter_map(|(names, _)| names.first().cloned());
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
        .map(|(word, description)| {
            format!("{}.{word}", if description.starts_with("of FROM.TO") { "FROM.TO" } else { "NAME" })
        })
        .join(", ")
}
