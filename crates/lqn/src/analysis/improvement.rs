//! Finds remedies for a bottleneck: tries each on the model, and sorts them by response time.

use super::bottleneck::{Bottleneck, BottleneckKind, LimitedResource, find_bottleneck, resources_below};
use super::{OverallResults, SolveFn};
use crate::model::{Multiplicity, ProcessorId, TaskId};
use crate::{Model, SimulationError};

/// A change of the model.
#[derive(Clone, Debug, PartialEq)]
pub enum ModelChange {
    /// This number of threads for each task: the least with which they are no bottleneck any more.
    Threads(Vec<TaskId>, u32),
    /// One more core for each processor.
    ExtraCore(Vec<ProcessorId>),
    /// Half the demand of each task.
    HalfDemand(Vec<TaskId>),
    /// An unlimited number of threads or cores of the bottleneck: the limit of what more of them can achieve.
    Unlimited(Vec<LimitedResource>),
}

/// A change and its effect.
#[derive(Clone, Debug, PartialEq)]
pub struct Improvement {
    /// The change.
    pub change: ModelChange,
    /// The overall results with the change.
    pub results: OverallResults,
    /// The bottleneck with the change.
    pub next_bottleneck: Option<Bottleneck>,
}

/// The largest factor by which the number of threads is increased.
const MAX_FACTOR: u32 = 256;
/// The number of tasks below the bottleneck whose demand is halved.
const MAX_TASKS: usize = 8;

impl ModelChange {
    /// Returns the changed model.
    pub fn apply(&self, model: &Model) -> Model {
        let mut model = model.clone();
        match self {
            Self::Threads(tasks, count) => {
                tasks.iter().for_each(|task| model.tasks[task.0].copies = Multiplicity::Finite(*count));
            }
            Self::ExtraCore(processors) => {
                for processor in processors {
                    if let Multiplicity::Finite(cores) = &mut model.processors[processor.0].copies {
                        *cores += 1;
                    }
                }
            }
            Self::HalfDemand(tasks) => {
                for activity in model.activities.iter_mut().filter(|activity| tasks.contains(&activity.task))
                {
                    activity.demand /= 2.0;
                }
            }
            Self::Unlimited(resources) => {
                for resource in resources {
                    match resource {
                        LimitedResource::Task(task) => model.tasks[task.0].copies = Multiplicity::Infinite,
                        LimitedResource::Processor(processor) => {
                            model.processors[processor.0].copies = Multiplicity::Infinite
                        }
                    }
                }
            }
        }
        model
    }
}

/// Returns the remedies for a bottleneck, sorted by response time. Skips changes with which the model cannot
/// be solved.
///
/// # Errors
/// Returns an error only if the model cannot be solved with any of the changes, or while searching for a
/// number of threads.
pub fn find_improvements(
    model: &Model,
    bottleneck: &Bottleneck,
    solve: &SolveFn<'_>,
) -> Result<Vec<Improvement>, SimulationError> {
    let mut changes = Vec::new();
    let tasks: Vec<TaskId> = bottleneck
        .resources
        .iter()
        .filter_map(|resource| if let LimitedResource::Task(task) = resource { Some(*task) } else { None })
        .collect();
    let mut processors: Vec<ProcessorId> = match bottleneck.kind {
        BottleneckKind::Software => tasks.iter().map(|task| model.tasks[task.0].processor).collect(),
        BottleneckKind::Hardware => {
            let processor_of = |resource: &LimitedResource| {
                if let LimitedResource::Processor(processor) = resource { Some(*processor) } else { None }
            };
            bottleneck.resources.iter().filter_map(processor_of).collect()
        }
    };
    processors.sort();
    processors.dedup();
    processors.retain(|processor| model.processors[processor.0].copies != Multiplicity::Infinite);
    if bottleneck.kind == BottleneckKind::Software {
        changes.extend(fewest_threads(model, bottleneck, &tasks, solve)?);
    }
    if !processors.is_empty() {
        changes.push(ModelChange::ExtraCore(processors.clone()));
    }
    changes.extend(demand_halvings(model, bottleneck, &tasks, &processors));
    changes.push(ModelChange::Unlimited(bottleneck.resources.clone()));
    let mut improvements = Vec::new();
    let mut last_error = None;
    for change in changes {
        let changed = change.apply(model);
        match solve(&changed) {
            Ok(results) => {
                let (overall, next_bottleneck) =
                    (OverallResults::of(&changed, &results), find_bottleneck(&changed, &results));
                let bounded = overall.infinite_if_overloaded(&changed);
                improvements.push(Improvement { change, results: bounded, next_bottleneck });
            }
            Err(error) => last_error = Some(error),
        }
    }
    if let (true, Some(error)) = (improvements.is_empty(), last_error) {
        return Err(error);
    }
    improvements.sort_by(|left, right| left.results.response.total_cmp(&right.results.response));
    Ok(improvements)
}

/// Returns the tasks whose demand may be halved: the bottleneck's, each one below it, or each one on the
/// processor.
fn demand_halvings(
    model: &Model,
    bottleneck: &Bottleneck,
    tasks: &[TaskId],
    processors: &[ProcessorId],
) -> Vec<ModelChange> {
    let demand = |task: TaskId| -> f64 {
        model.activities.iter().filter(|activity| activity.task == task).map(|activity| activity.demand).sum()
    };
    let mut others: Vec<TaskId> = match bottleneck.kind {
        BottleneckKind::Software => {
            let resources = tasks.iter().flat_map(|task| resources_below(model, *task));
            resources
                .filter_map(
                    |resource| if let LimitedResource::Task(task) = resource { Some(task) } else { None },
                )
                .collect()
        }
        BottleneckKind::Hardware => {
            let runs_there = |task: &TaskId| processors.contains(&model.tasks[task.0].processor);
            (0..model.tasks.len()).map(TaskId).filter(runs_there).collect()
        }
    };
    others.sort();
    others.dedup();
    others.retain(|task| !tasks.contains(task) && demand(*task) > 0.0);
    others.sort_by(|left, right| demand(*right).total_cmp(&demand(*left)));
    others.truncate(MAX_TASKS);
    let mut changes: Vec<ModelChange> =
        others.into_iter().map(|task| ModelChange::HalfDemand(vec![task])).collect();
    if tasks.iter().any(|task| demand(*task) > 0.0) {
        changes.push(ModelChange::HalfDemand(tasks.to_vec()));
    }
    changes
}

/// Returns the least number of threads with which these tasks are no bottleneck any more; `None` if there is
/// none up to `MOST` times as many.
fn fewest_threads(
    model: &Model,
    bottleneck: &Bottleneck,
    tasks: &[TaskId],
    solve: &SolveFn<'_>,
) -> Result<Option<ModelChange>, SimulationError> {
    let thread_counts = tasks.iter().map(|task| match model.tasks[task.0].copies {
        Multiplicity::Finite(count) => count,
        Multiplicity::Infinite => 1,
    });
    let Some(current) = thread_counts.max() else { return Ok(None) };
    let moves_bottleneck = |count: u32| -> Result<bool, SimulationError> {
        let changed = ModelChange::Threads(tasks.to_vec(), count).apply(model);
        let results = solve(&changed)?;
        let next_bottleneck = find_bottleneck(&changed, &results);
        Ok(next_bottleneck.is_none_or(|next| {
            next.resources.iter().all(|resource| !bottleneck.resources.contains(resource))
        }))
    };
    let (mut too_few, mut enough) = (current, current);
    loop {
        if enough / MAX_FACTOR >= current {
            return Ok(None);
        }
        enough = enough.saturating_mul(2);
        if moves_bottleneck(enough)? {
            break;
        }
        too_few = enough;
    }
    while enough - too_few > 1 {
        let middle = too_few + (enough - too_few) / 2;
        if moves_bottleneck(middle)? { enough = middle } else { too_few = middle }
    }
    Ok(Some(ModelChange::Threads(tasks.to_vec(), enough)))
}
