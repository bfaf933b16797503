//! Finds the bottleneck of a system.
//!
//! A task may be busy only because it waits for others. A bottleneck is busy while everything below it is not
//! (Neilson, Woodside, Petriu and Majumdar, Software bottlenecking in client-server systems and rendezvous
//! networks, IEEE TSE 21(9), 1995). So it is a resource that is nearly as busy as the busiest one, and below
//! which no resource is nearly as busy.
//!
//! A task is a *software* bottleneck, which more threads relieve; a processor is a *hardware* bottleneck. The
//! *strength* of a task is its utilization divided by the greatest one below it. That of a processor is its
//! utilization divided by the greatest one of another processor. The next bottleneck is less utilized by this
//! factor.

use serde::Serialize;

use crate::model::{Copies, EntryId, ProcessorId, TaskId};
use crate::{Findings, Model};

/// The ratio of two utilizations from which one resource is nearly as busy as the other.
const NEARLY: f64 = 0.9;
/// The ratio of two utilizations from which they count as equal, as those of copies of one server.
const SAME: f64 = 0.95;
/// The utilization from which a resource limits the throughput of the system.
pub const SATURATED: f64 = 0.9;

/// A limited resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Resource {
    /// The threads of a server.
    Task(TaskId),
    /// The cores of a processor.
    Processor(ProcessorId),
}

/// The kind of a bottleneck.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// The threads of a task.
    Software,
    /// A processor.
    Hardware,
}

/// A bottleneck of a system.
#[derive(Clone, Debug, PartialEq)]
pub struct Bottleneck {
    /// The kind, software or hardware.
    pub kind: Kind,
    /// The resource; several if they are utilized alike, as copies of a server are.
    pub of: Vec<Resource>,
    /// The utilization of the busiest of them.
    pub utilization: f64,
    /// The utilization divided by the greatest one below it (software) or of another processor (hardware);
    /// infinite if there is none.
    pub strength: f64,
    /// The resource with that greatest utilization.
    pub against: Option<Resource>,
    /// Whether it is busy enough to limit the throughput of the system.
    pub limits: bool,
}

impl Resource {
    /// Returns the resource's name in the model.
    pub fn name(self, model: &Model) -> &str {
        match self {
            Self::Task(TaskId(own)) => &model.tasks[own].name,
            Self::Processor(ProcessorId(own)) => &model.processors[own].name,
        }
    }

    /// Returns the number of threads or cores; `None` if it is infinite, and for clients.
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

    /// Returns the utilization; `None` for an unlimited resource.
    pub fn utilization(self, model: &Model, found: &Findings) -> Option<f64> {
        let busy = match self {
            Self::Task(TaskId(own)) => found.tasks[own].busy,
            Self::Processor(ProcessorId(own)) => found.processors[own].busy,
        };
        Some(busy.mean / self.copies(model)?)
    }
}

/// Returns all limited resources that are used, the busiest first.
pub fn resources(model: &Model, found: &Findings) -> Vec<(Resource, f64)> {
    let tasks = (0..model.tasks.len()).map(|own| Resource::Task(TaskId(own)));
    let processors = (0..model.processors.len()).map(|own| Resource::Processor(ProcessorId(own)));
    let used = tasks.chain(processors).filter_map(|own| Some((own, own.utilization(model, found)?)));
    let mut used: Vec<_> = used.filter(|(_, used)| *used > 0.0).collect();
    used.sort_by(|one, other| other.1.total_cmp(&one.1).then(one.0.cmp(&other.0)));
    used
}

/// Returns the resources that a busy thread of a task waits for: its processor, the tasks that it calls with
/// rendezvous, those that they call or forward to, and their processors.
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

/// Finds the bottleneck in the results; `None` if no limited resource is used.
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
