//! Numbers of a model that can be changed without its text: `client.threads`, `cpu.cores`, `lookup.demand`.

use crate::Model;
use crate::model::{ActivityId, Body, Copies, EntryId, ProcessorId, Role, TaskId};

/// Which number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Knob {
    /// Threads of a task; of clients, how many there are.
    Threads(TaskId),
    /// Mean time for which clients think.
    Think(TaskId),
    /// Cores of a processor.
    Cores(ProcessorId),
    /// Speed of a processor.
    Speed(ProcessorId),
    /// Mean work of an activity, or of an entry's first phase.
    Demand(ActivityId),
    /// Requests from outside.
    Arrivals(EntryId),
}

/// Words that follow a name and a point, and what they stand for.
pub const WORDS: [(&str, &str); 6] = [
    ("threads", "threads of a task, or how many clients"),
    ("think", "mean time for which clients think"),
    ("cores", "cores of a processor"),
    ("speed", "speed of a processor"),
    ("demand", "mean work of an entry's first phase, or of an activity"),
    ("arrivals", "requests from outside to an entry, per unit of time"),
];

impl Knob {
    /// The number of this name.
    ///
    /// # Errors
    /// What is not there, and what there could be.
    pub fn find(model: &Model, name: &str) -> Result<Self, String> {
        let Some((whose, word)) = name.rsplit_once('.') else {
            return Err(format!("`{name}` is no number of the model: expected {}", forms()));
        };
        let none = |kind: &str, names: Vec<&str>| {
            let mut known = names;
            known.truncate(20);
            format!("no {kind} `{whose}`; there are {}", known.join(", "))
        };
        let task = || model.tasks.iter().position(|own| own.name == whose).map(TaskId);
        let tasks = || model.tasks.iter().map(|own| own.name.as_str()).collect();
        let processor = || model.processors.iter().position(|own| own.name == whose).map(ProcessorId);
        let processors = || model.processors.iter().map(|own| own.name.as_str()).collect();
        let entry = || model.entries.iter().position(|own| own.name == whose).map(EntryId);
        let entries = || model.entries.iter().map(|own| own.name.as_str()).collect();
        match word {
            "threads" => task().map(Self::Threads).ok_or_else(|| none("task", tasks())),
            "think" => {
                let found = task().ok_or_else(|| none("task", tasks()))?;
                let client = model.tasks[found.0].is_client();
                if client {
                    Ok(Self::Think(found))
                } else {
                    Err(format!("`{whose}` is no reference task: it does not think"))
                }
            }
            "cores" => processor().map(Self::Cores).ok_or_else(|| none("processor", processors())),
            "speed" => processor().map(Self::Speed).ok_or_else(|| none("processor", processors())),
            "arrivals" => entry().map(Self::Arrivals).ok_or_else(|| none("entry", entries())),
            "demand" => {
                let first = entry().and_then(|id| match &model.entries[id.0].body {
                    Body::Phases(phases) => phases.first().copied(),
                    Body::Graph(_) => None,
                });
                let activity = || model.activities.iter().position(|own| own.name == whose).map(ActivityId);
                let found = first.or_else(activity);
                found.map(Self::Demand).ok_or_else(|| none("entry with phases, or activity,", entries()))
            }
            _ => Err(format!("`{name}` is no number of the model: expected {}", forms())),
        }
    }

    /// What it is; of what there is as many as needed, infinite.
    pub fn value(self, model: &Model) -> f64 {
        let count = |copies| match copies {
            Copies::Some(count) => f64::from(count),
            Copies::Infinite => f64::INFINITY,
        };
        match self {
            Self::Threads(TaskId(own)) => count(model.tasks[own].copies),
            Self::Think(TaskId(own)) => match model.tasks[own].role {
                Role::Client { think } => think,
                Role::Server { .. } => 0.0,
            },
            Self::Cores(ProcessorId(own)) => count(model.processors[own].copies),
            Self::Speed(ProcessorId(own)) => model.processors[own].speed,
            Self::Demand(ActivityId(own)) => model.activities[own].demand,
            Self::Arrivals(EntryId(own)) => model.entries[own].arrivals,
        }
    }

    /// Is it a count?
    pub fn is_whole(self) -> bool {
        matches!(self, Self::Threads(_) | Self::Cores(_))
    }

    /// Gives it another value.
    ///
    /// # Errors
    /// If it cannot have that one.
    pub fn set(self, model: &mut Model, value: f64) -> Result<(), String> {
        let count = || {
            let whole = value.fract() == 0.0 && (1.0..=1e6).contains(&value);
            if whole {
                Ok(Copies::Some(value as u32))
            } else {
                Err(format!("there cannot be {value} of it: a whole number from 1 to 1000000"))
            }
        };
        if !value.is_finite() || value < 0.0 {
            return Err(format!("it cannot be {value}: a number from 0 on"));
        }
        match self {
            Self::Threads(TaskId(own)) => model.tasks[own].copies = count()?,
            Self::Cores(ProcessorId(own)) => model.processors[own].copies = count()?,
            Self::Think(TaskId(own)) => model.tasks[own].role = Role::Client { think: value },
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
        }
        Ok(())
    }
}

/// `NAME.threads, NAME.think …`
fn forms() -> String {
    WORDS.map(|(word, _)| format!("NAME.{word}")).join(", ")
}
