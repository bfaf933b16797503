//! What holds a system back.
//!
//! A task can be busy because it waits for others; what holds back is what is busy while everything below it is not
//! (Neilson, Woodside, Petriu and Majumdar, Software bottlenecking in client-server systems and rendezvous networks, IEEE
//! TSE 21(9), 1995). So: of all that is nearly as busy as the busiest, that below which nothing is nearly as busy. A task
//! is a *software* bottleneck, and more threads help; a processor is a *hardware* bottleneck. The *strength* is the
//! utilization over the greatest below it, for a processor over the greatest of another processor: what holds back next
//! is that much less used.

use serde::Serialize;

use crate::model::{Copies, EntryId, ProcessorId, TaskId};
use crate::{Findings, Model};

/// What is used that much of something else is nearly as busy as it.
const NEARLY: f64 = 0.9;
/// So much of the busiest one's utilization is the same as it: copies of one server.
const SAME: f64 = 0.95;
/// From here on it limits the whole.
pub const SATURATED: f64 = 0.9;

/// Something that there is only so much of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Resource {
    /// Threads of a server.
    Task(TaskId),
    /// Cores.
    Processor(ProcessorId),
}

/// Which kind of thing holds back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Threads of a task.
    Software,
    /// A processor.
    Hardware,
}

/// What holds a system back.
#[derive(Clone, Debug, PartialEq)]
pub struct Bottleneck {
    /// Software or hardware.
    pub kind: Kind,
    /// What it is; several if they are used alike, as copies of a server are.
    pub of: Vec<Resource>,
    /// Of the busiest of them.
    pub utilization: f64,
    /// Utilization over the greatest below it (software), or of another processor (hardware); infinite if there is none.
    pub strength: f64,
    /// What that greatest is.
    pub against: Option<Resource>,
    /// Is it so busy that it limits the whole?
    pub limits: bool,
}

impl Resource {
    /// Its name in the model.
    pub fn name(self, model: &Model) -> &str {
        match self {
            Self::Task(TaskId(own)) => &model.tasks[own].name,
            Self::Processor(ProcessorId(own)) => &model.processors[own].name,
        }
    }

    /// Threads or cores; `None` for as many as are needed, and for clients.
    fn copies(self, model: &Model) -> Option<f64> {
        let copies = match self {
            Self::Task(TaskId(own)) if model.tasks[own].is_client() => return None,
            Self::Task(TaskId(own)) => model.tasks[own].copies,
            Self::Processor(ProcessorId(own)) => model.processors[own].copies,
        };
        match copies {
            Copies::Some(count) => Some(f64::from(count)),
            Copies::Infinite => None,
        }
    }

    /// The part of it that is in use; `None` of what there is without limit.
    pub fn utilization(self, model: &Model, found: &Findings) -> Option<f64> {
        let busy = match self {
            Self::Task(TaskId(own)) => found.tasks[own].busy,
            Self::Processor(ProcessorId(own)) => found.processors[own].busy,
        };
        Some(busy.mean / self.copies(model)?)
    }
}

/// Everything that there is only so much of, the busiest first.
pub fn resources(model: &Model, found: &Findings) -> Vec<(Resource, f64)> {
    let tasks = (0..model.tasks.len()).map(|own| Resource::Task(TaskId(own)));
    let processors = (0..model.processors.len()).map(|own| Resource::Processor(ProcessorId(own)));
    let used = tasks.chain(processors).filter_map(|own| Some((own, own.utilization(model, found)?)));
    let mut used: Vec<_> = used.filter(|(_, used)| *used > 0.0).collect();
    used.sort_by(|one, other| other.1.total_cmp(&one.1).then(one.0.cmp(&other.0)));
    used
}

/// What a thread of a task waits for while it is busy: its processor, whom it calls and waits for, whom those ask or
/// forward to, and their processors.
pub fn below(model: &Model, task: TaskId) -> Vec<Resource> {
    let mut all = vec![Resource::Processor(model.tasks[task.0].processor)];
    let mut seen = vec![false; model.entries.len()];
    let called = |task: TaskId| {
        let own = model.activities.iter().filter(move |activity| activity.task == task);
        own.flat_map(|activity| &activity.calls).filter(|call| call.waits).map(|call| call.entry)
    };
    let mut open: Vec<EntryId> = called(task).collect();
    while let Some(entry) = open.pop() {
        if std::mem::replace(&mut seen[entry.0], true) {
            continue;
        }
        let own = &model.entries[entry.0];
        for resource in [Resource::Task(own.task), Resource::Processor(model.tasks[own.task.0].processor)] {
            if !all.contains(&resource) {
                all.push(resource);
            }
        }
        open.extend(called(own.task));
        open.extend(own.forwards.iter().map(|(to, _)| *to));
    }
    all
}

/// What holds back, by these results; `None` if nothing there is only so much of is ever used.
pub fn bottleneck(model: &Model, found: &Findings) -> Option<Bottleneck> {
    let used = resources(model, found);
    let (_, top) = *used.first()?;
    let busiest = |among: &mut dyn Iterator<Item = Resource>| {
        among
            .filter_map(|own| Some((own, own.utilization(model, found)?)))
            .max_by(|one, other| one.1.total_cmp(&other.1))
    };
    let rival = |own: Resource| match own {
        Resource::Task(task) => busiest(&mut below(model, task).into_iter()),
        Resource::Processor(_) => None,
    };
    let nearly = used.iter().filter(|(_, own)| *own >= NEARLY * top);
    let alone = |(own, used): &&(Resource, f64)| rival(*own).is_none_or(|(_, rival)| rival < NEARLY * used);
    let (first, utilization) = *nearly.clone().find(alone).or_else(|| used.first())?;
    let is_task = |own: Resource| matches!(own, Resource::Task(_));
    let alike = |(own, used): &&(Resource, f64)| {
        *own == first || is_task(*own) == is_task(first) && *used >= SAME * utilization
    };
    let of: Vec<Resource> = nearly.filter(alone).filter(alike).map(|(own, _)| *own).collect();
    let mut of = if of.is_empty() { vec![first] } else { of };
    of.sort();
    let against = if is_task(first) {
        rival(first)
    } else {
        let others = used.iter().map(|(own, _)| *own);
        busiest(&mut others.filter(|own| !is_task(*own) && !of.contains(own)))
    };
    Some(Bottleneck {
        kind: if is_task(first) { Kind::Software } else { Kind::Hardware },
        of,
        utilization,
        strength: against.map_or(f64::INFINITY, |(_, used)| utilization / used),
        against: against.map(|(own, _)| own),
        limits: utilization >= SATURATED,
    })
}
