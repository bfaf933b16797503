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
const MOST: u32 = 256;
/// The number of tasks below the bottleneck whose demand is halved.
const TASKS: usize = 8;

impl ModelChange {
    /// Returns the changed model.
    pub fn apply(&self, model: &Model) -> Model {
        let mut model = model.clone();
        match self {
            Self::Threads(tasks, count) => {
                tasks.iter().for_each(|task| model.tasks[task.0].copies = Multiplicity::Finite(*count));
            }
            Self::ExtraCore(processors) => {
                for own in processors {
                    if let Multiplicity::Finite(cores) = &mut model.processors[own.0].copies {
                        *cores += 1;
                    }
                }
            }
            Self::HalfDemand(tasks) => {
                for activity in model.activities.iter_mut().filter(|own| tasks.contains(&own.task)) {
                    activity.demand /= 2.0;
                }
            }
            Self::Unlimited(resources) => {
                for resource in resources {
                    match resource {
                        LimitedResource::Task(own) => model.tasks[own.0].copies = Multiplicity::Infinite,
                        LimitedResource::Processor(own) => {
                            model.processors[own.0].copies = Multiplicity::Infinite
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
    own: &Bottleneck,
    solve: &SolveFn<'_>,
) -> Result<Vec<Improvement>, SimulationError> {
    let mut changes = Vec::new();
    let tasks: Vec<TaskId> = own
        .resources
        .iter()
        .filter_map(|own| if let LimitedResource::Task(task) = own { Some(*task) } else { None })
        .collect();
    let mut processors: Vec<ProcessorId> = match own.kind {
        BottleneckKind::Software => tasks.iter().map(|task| model.tasks[task.0].processor).collect(),
        BottleneckKind::Hardware => {
            let one = |own: &LimitedResource| {
                if let LimitedResource::Processor(own) = own { Some(*own) } else { None }
            };
            own.resources.iter().filter_map(one).collect()
        }
    };
    processors.sort();
    processors.dedup();
    processors.retain(|own| model.processors[own.0].copies != Multiplicity::Infinite);
    if own.kind == BottleneckKind::Software {
        changes.extend(fewest_threads(model, own, &tasks, solve)?);
    }
    if !processors.is_empty() {
        changes.push(ModelChange::ExtraCore(processors.clone()));
    }
    changes.extend(demand_halvings(model, own, &tasks, &processors));
    changes.push(ModelChange::Unlimited(own.resources.clone()));
    let mut remedies = Vec::new();
    let mut last = None;
    for change in changes {
        let changed = change.apply(model);
        match solve(&changed) {
            Ok(found) => {
                let (whole, then) = (OverallResults::of(&changed, &found), find_bottleneck(&changed, &found));
                let whole = whole.infinite_if_overloaded(&changed);
                remedies.push(Improvement { change, results: whole, next_bottleneck: then });
            }
            Err(stuck) => last = Some(stuck),
        }
    }
    if let (true, Some(stuck)) = (remedies.is_empty(), last) {
        return Err(stuck);
    }
    remedies.sort_by(|one, other| one.results.response.total_cmp(&other.results.response));
    Ok(remedies)
}

/// Returns the tasks whose demand may be halved: the bottleneck's, each one below it, or each one on the
/// processor.
fn demand_halvings(
    model: &Model,
    own: &Bottleneck,
    tasks: &[TaskId],
    processors: &[ProcessorId],
) -> Vec<ModelChange> {
    let demand = |task: TaskId| -> f64 {
        model.activities.iter().filter(|own| own.task == task).map(|own| own.demand).sum()
    };
    let mut others: Vec<TaskId> = match own.kind {
        BottleneckKind::Software => {
            let below = tasks.iter().flat_map(|task| resources_below(model, *task));
            below
                .filter_map(|own| if let LimitedResource::Task(task) = own { Some(task) } else { None })
                .collect()
        }
        BottleneckKind::Hardware => {
            let on = |task: &TaskId| processors.contains(&model.tasks[task.0].processor);
            (0..model.tasks.len()).map(TaskId).filter(on).collect()
        }
    };
    others.sort();
    others.dedup();
    others.retain(|task| !tasks.contains(task) && demand(*task) > 0.0);
    others.sort_by(|one, other| demand(*other).total_cmp(&demand(*one)));
    others.truncate(TASKS);
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
    own: &Bottleneck,
    tasks: &[TaskId],
    solve: &SolveFn<'_>,
) -> Result<Option<ModelChange>, SimulationError> {
    let most = tasks.iter().map(|task| match model.tasks[task.0].copies {
        Multiplicity::Finite(count) => count,
        Multiplicity::Infinite => 1,
    });
    let Some(now) = most.max() else { return Ok(None) };
    let moves = |count: u32| -> Result<bool, SimulationError> {
        let changed = ModelChange::Threads(tasks.to_vec(), count).apply(model);
        let found = solve(&changed)?;
        let then = find_bottleneck(&changed, &found);
        Ok(then.is_none_or(|then| then.resources.iter().all(|resource| !own.resources.contains(resource))))
    };
    let (mut too_few, mut enough) = (now, now);
    loop {
        if enough / MOST >= now {
            return Ok(None);
        }
        enough = enough.saturating_mul(2);
        if moves(enough)? {
            break;
        }
        too_few = enough;
    }
    while enough - too_few > 1 {
        let middle = too_few + (enough - too_few) / 2;
        if moves(middle)? { enough = middle } else { too_few = middle }
    }
    Ok(Some(ModelChange::Threads(tasks.to_vec(), enough)))
}
