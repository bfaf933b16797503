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
            Self::Task(TaskId(task)) => &model.tasks[task].name,
            Self::Processor(ProcessorId(processor)) => &model.processors[processor].name,
        }
    }

    /// Returns the number of threads or cores; `None` if it is infinite, and for clients.
    fn copies(self, model: &Model) -> Option<f64> {
        let copies = match self {
            Self::Task(TaskId(task)) if model.tasks[task].is_client() => return None,
            Self::Task(TaskId(task)) => model.tasks[task].copies,
            Self::Processor(ProcessorId(processor)) => model.processors[processor].copies,
        };
        match copies {
            Multiplicity::Finite(count) => Some(f64::from(count)),
            Multiplicity::Infinite => None,
        }
    }

    /// Returns the utilization; `None` for an unlimited resource.
    pub fn utilization(self, model: &Model, results: &ModelResults) -> Option<f64> {
        let busy = match self {
            Self::Task(TaskId(task)) => results.tasks[task].busy,
            Self::Processor(ProcessorId(processor)) => results.processors[processor].busy,
        };
        Some(busy.mean / self.copies(model)?)
    }
}

/// Returns all limited resources that are used, the busiest first.
pub fn busiest_resources(model: &Model, results: &ModelResults) -> Vec<(LimitedResource, f64)> {
    let tasks = (0..model.tasks.len()).map(|index| LimitedResource::Task(TaskId(index)));
    let processors = (0..model.processors.len()).map(|index| LimitedResource::Processor(ProcessorId(index)));
    let utilizations = tasks
        .chain(processors)
        .filter_map(|resource| Some((resource, resource.utilization(model, results)?)));
    let mut resources: Vec<_> = utilizations.filter(|(_, utilization)| *utilization > 0.0).collect();
    resources.sort_by(|left, right| right.1.total_cmp(&left.1).then(left.0.cmp(&right.0)));
    resources
}

/// Returns the resources that a busy thread of a task waits for: its processor, the tasks that it calls with
/// rendezvous, those that they call or forward to, and their processors.
pub fn resources_below(model: &Model, task: TaskId) -> Vec<LimitedResource> {
    let mut resources = vec![LimitedResource::Processor(model.tasks[task.0].processor)];
    let mut seen = vec![false; model.entries.len()];
    let called_entries = |task: TaskId| {
        let task_activities = model.activities.iter().filter(move |activity| activity.task == task);
        task_activities.flat_map(|activity| &activity.calls).filter(|call| call.waits).map(|call| call.entry)
    };
    let mut pending: Vec<EntryId> = called_entries(task).collect();
    while let Some(entry) = pending.pop() {
        if std::mem::replace(&mut seen[entry.0], true) {
            continue;
        }
        let entry_data = &model.entries[entry.0];
        for resource in [
            LimitedResource::Task(entry_data.task),
            LimitedResource::Processor(model.tasks[entry_data.task.0].processor),
        ] {
            if !resources.contains(&resource) {
                resources.push(resource);
            }
        }
        pending.extend(called_entries(entry_data.task));
        pending.extend(entry_data.forwards.iter().map(|(to, _)| *to));
    }
    resources
}

/// Finds the bottleneck in the results; `None` if no limited resource is used.
pub fn find_bottleneck(model: &Model, results: &ModelResults) -> Option<Bottleneck> {
    let utilizations = busiest_resources(model, results);
    let (_, highest) = *utilizations.first()?;
    let busiest_of = |candidates: &mut dyn Iterator<Item = LimitedResource>| {
        candidates
            .filter_map(|resource| Some((resource, resource.utilization(model, results)?)))
            .max_by(|left, right| left.1.total_cmp(&right.1))
    };
    let busiest_below = |resource: LimitedResource| match resource {
        LimitedResource::Task(task) => busiest_of(&mut resources_below(model, task).into_iter()),
        LimitedResource::Processor(_) => None,
    };
    let nearly = utilizations.iter().filter(|(_, utilization)| *utilization >= NEARLY * highest);
    let has_no_rival = |(resource, utilization): &&(LimitedResource, f64)| {
        busiest_below(*resource).is_none_or(|(_, rival)| rival < NEARLY * utilization)
    };
    let (first, utilization) = *nearly.clone().find(has_no_rival).or_else(|| utilizations.first())?;
    let is_task = |resource: LimitedResource| matches!(resource, LimitedResource::Task(_));
    let is_alike = |(resource, used): &&(LimitedResource, f64)| {
        *resource == first || is_task(*resource) == is_task(first) && *used >= SAME * utilization
    };
    let alike_resources: Vec<LimitedResource> =
        nearly.filter(has_no_rival).filter(is_alike).map(|(resource, _)| *resource).collect();
    let mut bottlenecks = if alike_resources.is_empty() { vec![first] } else { alike_resources };
    bottlenecks.sort();
    let next_busiest = if is_task(first) {
        busiest_below(first)
    } else {
        let others = utilizations.iter().map(|(resource, _)| *resource);
        busiest_of(&mut others.filter(|resource| !is_task(*resource) && !bottlenecks.contains(resource)))
    };
    Some(Bottleneck {
        kind: if is_task(first) { BottleneckKind::Software } else { BottleneckKind::Hardware },
        resources: bottlenecks,
        utilization,
        strength: next_busiest.map_or(f64::INFINITY, |(_, next_utilization)| utilization / next_utilization),
        next_busiest: next_busiest.map(|(resource, _)| resource),
        is_saturated: utilization >= SATURATED,
    })
}
