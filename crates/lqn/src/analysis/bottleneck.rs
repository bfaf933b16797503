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

use crate::model::{EntryId, Multiplicity, ProcessorId, TaskId};
use crate::{Model, ModelResults};

/// The ratio of two utilizations from which one resource is nearly as busy as the other.
const NEARLY: f64 = 0.9;
/// The ratio of two utilizations from which they count as equal, as those of copies of one server.
const SAME: f64 = 0.95;
/// The utilization from which a resource limits the throughput of the system.
pub const SATURATED: f64 = 0.9;

/// A limited resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LimitedResource {
    /// The threads of a server.
    Task(TaskId),
    /// The cores of a processor.
    Processor(ProcessorId),
}

/// The kind of a bottleneck.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum BottleneckKind {
    /// The threads of a task.
    Software,
    /// A processor.
    Hardware,
}

/// A bottleneck of a system.
#[derive(Clone, Debug, PartialEq)]
pub struct Bottleneck {
    /// The kind, software or hardware.
    pub kind: BottleneckKind,
    /// The resource; several if they are utilized alike, as copies of a server are.
    pub resources: Vec<LimitedResource>,
    /// The utilization of the busiest of them.
    pub utilization: f64,
    /// The utilization divided by the greatest one below it (software) or of another processor (hardware);
    /// infinite if there is none.
    pub strength: f64,
    /// The resource with that greatest utilization.
    pub next_busiest: Option<LimitedResource>,
    /// Whether it is busy enough to limit the throughput of the system.
    pub is_saturated: bool,
}

impl LimitedResource {
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
            Multiplicity::Finite(count) => Some(f64::from(count)),
            Multiplicity::Infinite => None,
        }
    }

    /// Returns the utilization; `None` for an unlimited resource.
    pub fn utilization(self, model: &Model, found: &ModelResults) -> Option<f64> {
        let busy = match self {
            Self::Task(TaskId(own)) => found.tasks[own].busy,
            Self::Processor(ProcessorId(own)) => found.processors[own].busy,
        };
        Some(busy.mean / self.copies(model)?)
    }
}

/// Returns all limited resources that are used, the busiest first.
pub fn busiest_resources(model: &Model, found: &ModelResults) -> Vec<(LimitedResource, f64)> {
    let tasks = (0..model.tasks.len()).map(|own| LimitedResource::Task(TaskId(own)));
    let processors = (0..model.processors.len()).map(|own| LimitedResource::Processor(ProcessorId(own)));
    let used = tasks.chain(processors).filter_map(|own| Some((own, own.utilization(model, found)?)));
    let mut used: Vec<_> = used.filter(|(_, used)| *used > 0.0).collect();
    used.sort_by(|one, other| other.1.total_cmp(&one.1).then(one.0.cmp(&other.0)));
    used
}

/// Returns the resources that a busy thread of a task waits for: its processor, the tasks that it calls with
/// rendezvous, those that they call or forward to, and their processors.
pub fn resources_below(model: &Model, task: TaskId) -> Vec<LimitedResource> {
    let mut all = vec![LimitedResource::Processor(model.tasks[task.0].processor)];
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
        for resource in
            [LimitedResource::Task(own.task), LimitedResource::Processor(model.tasks[own.task.0].processor)]
        {
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
pub fn find_bottleneck(model: &Model, found: &ModelResults) -> Option<Bottleneck> {
    let used = busiest_resources(model, found);
    let (_, top) = *used.first()?;
    let busiest = |among: &mut dyn Iterator<Item = LimitedResource>| {
        among
            .filter_map(|own| Some((own, own.utilization(model, found)?)))
            .max_by(|one, other| one.1.total_cmp(&other.1))
    };
    let rival = |own: LimitedResource| match own {
        LimitedResource::Task(task) => busiest(&mut resources_below(model, task).into_iter()),
        LimitedResource::Processor(_) => None,
    };
    let nearly = used.iter().filter(|(_, own)| *own >= NEARLY * top);
    let alone =
        |(own, used): &&(LimitedResource, f64)| rival(*own).is_none_or(|(_, rival)| rival < NEARLY * used);
    let (first, utilization) = *nearly.clone().find(alone).or_else(|| used.first())?;
    let is_task = |own: LimitedResource| matches!(own, LimitedResource::Task(_));
    let alike = |(own, used): &&(LimitedResource, f64)| {
        *own == first || is_task(*own) == is_task(first) && *used >= SAME * utilization
    };
    let of: Vec<LimitedResource> = nearly.filter(alone).filter(alike).map(|(own, _)| *own).collect();
    let mut of = if of.is_empty() { vec![first] } else { of };
    of.sort();
    let against = if is_task(first) {
        rival(first)
    } else {
        let others = used.iter().map(|(own, _)| *own);
        busiest(&mut others.filter(|own| !is_task(*own) && !of.contains(own)))
    };
    Some(Bottleneck {
        kind: if is_task(first) { BottleneckKind::Software } else { BottleneckKind::Hardware },
        resources: of,
        utilization,
        strength: against.map_or(f64::INFINITY, |(_, used)| utilization / used),
        next_busiest: against.map(|(own, _)| own),
        is_saturated: utilization >= SATURATED,
    })
}
