//! Finds remedies for a bottleneck: tries each on the model, and sorts them by response time.

use super::bottleneck::{Bottleneck, Kind, Resource, below, bottleneck};
use super::{Solve, Whole};
use crate::model::{Copies, ProcessorId, TaskId};
use crate::{Model, Stuck};

/// A change of the model.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// This number of threads for each task: the least with which they are no bottleneck any more.
    Threads(Vec<TaskId>, u32),
    /// One more core for each processor.
    Core(Vec<ProcessorId>),
    /// Half the demand of each task.
    Half(Vec<TaskId>),
    /// An unlimited number of threads or cores of the bottleneck: the limit of what more of them can achieve.
    Unbounded(Vec<Resource>),
}

/// A change and its effect.
#[derive(Clone, Debug, PartialEq)]
pub struct Remedy {
    /// The change.
    pub change: Change,
    /// The overall results with the change.
    pub whole: Whole,
    /// The bottleneck with the change.
    pub then: Option<Bottleneck>,
}

/// The largest factor by which the number of threads is increased.
const MOST: u32 = 256;
/// The number of tasks below the bottleneck whose demand is halved.
const TASKS: usize = 8;

impl Change {
    /// Returns the changed model.
    pub fn apply(&self, model: &Model) -> Model {
        let mut model = model.clone();
        match self {
            Self::Threads(tasks, count) => {
                tasks.iter().for_each(|task| model.tasks[task.0].copies = Copies::Some(*count));
            }
            Self::Core(processors) => {
                for own in processors {
                    if let Copies::Some(cores) = &mut model.processors[own.0].copies {
                        *cores += 1;
                    }
                }
            }
            Self::Half(tasks) => {
                for activity in model.activities.iter_mut().filter(|own| tasks.contains(&own.task)) {
                    activity.demand /= 2.0;
                }
            }
            Self::Unbounded(resources) => {
                for resource in resources {
                    match resource {
                        Resource::Task(own) => model.tasks[own.0].copies = Copies::Infinite,
                        Resource::Processor(own) => model.processors[own.0].copies = Copies::Infinite,
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
pub fn remedies(model: &Model, own: &Bottleneck, solve: &Solve<'_>) -> Result<Vec<Remedy>, Stuck> {
    let mut changes = Vec::new();
    let tasks: Vec<TaskId> = own
        .of
        .iter()
        .filter_map(|own| if let Resource::Task(task) = own { Some(*task) } else { None })
        .collect();
    let mut processors: Vec<ProcessorId> = match own.kind {
        Kind::Software => tasks.iter().map(|task| model.tasks[task.0].processor).collect(),
        Kind::Hardware => {
            let one = |own: &Resource| if let Resource::Processor(own) = own { Some(*own) } else { None };
            own.of.iter().filter_map(one).collect()
        }
    };
    processors.sort();
    processors.dedup();
    processors.retain(|own| model.processors[own.0].copies != Copies::Infinite);
    if own.kind == Kind::Software {
        changes.extend(fewest(model, own, &tasks, solve)?);
    }
    if !processors.is_empty() {
        changes.push(Change::Core(processors.clone()));
    }
    changes.extend(halves(model, own, &tasks, &processors));
    changes.push(Change::Unbounded(own.of.clone()));
    let mut remedies = Vec::new();
    let mut last = None;
    for change in changes {
        let changed = change.apply(model);
        match solve(&changed) {
            Ok(found) => {
                let (whole, then) = (Whole::of(&changed, &found), bottleneck(&changed, &found));
                let whole = whole.unless_overloaded(&changed);
                remedies.push(Remedy { change, whole, then });
            }
            Err(stuck) => last = Some(stuck),
        }
    }
    if let (true, Some(stuck)) = (remedies.is_empty(), last) {
        return Err(stuck);
    }
    remedies.sort_by(|one, other| one.whole.response.total_cmp(&other.whole.response));
    Ok(remedies)
}

/// Returns the tasks whose demand may be halved: the bottleneck's, each one below it, or each one on the
/// processor.
fn halves(model: &Model, own: &Bottleneck, tasks: &[TaskId], processors: &[ProcessorId]) -> Vec<Change> {
    let demand = |task: TaskId| -> f64 {
        model.activities.iter().filter(|own| own.task == task).map(|own| own.demand).sum()
    };
    let mut others: Vec<TaskId> = match own.kind {
        Kind::Software => {
            let below = tasks.iter().flat_map(|task| below(model, *task));
            below.filter_map(|own| if let Resource::Task(task) = own { Some(task) } else { None }).collect()
        }
        Kind::Hardware => {
            let on = |task: &TaskId| processors.contains(&model.tasks[task.0].processor);
            (0..model.tasks.len()).map(TaskId).filter(on).collect()
        }
    };
    others.sort();
    others.dedup();
    others.retain(|task| !tasks.contains(task) && demand(*task) > 0.0);
    others.sort_by(|one, other| demand(*other).total_cmp(&demand(*one)));
    others.truncate(TASKS);
    let mut changes: Vec<Change> = others.into_iter().map(|task| Change::Half(vec![task])).collect();
    if tasks.iter().any(|task| demand(*task) > 0.0) {
        changes.push(Change::Half(tasks.to_vec()));
    }
    changes
}

/// Returns the least number of threads with which these tasks are no bottleneck any more; `None` if there is
/// none up to `MOST` times as many.
fn fewest(
    model: &Model,
    own: &Bottleneck,
    tasks: &[TaskId],
    solve: &Solve<'_>,
) -> Result<Option<Change>, Stuck> {
    let most = tasks.iter().map(|task| match model.tasks[task.0].copies {
        Copies::Some(count) => count,
        Copies::Infinite => 1,
    });
    let Some(now) = most.max() else { return Ok(None) };
    let moves = |count: u32| -> Result<bool, Stuck> {
        let changed = Change::Threads(tasks.to_vec(), count).apply(model);
        let found = solve(&changed)?;
        let then = bottleneck(&changed, &found);
        Ok(then.is_none_or(|then| then.of.iter().all(|resource| !own.of.contains(resource))))
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
    Ok(Some(Change::Threads(tasks.to_vec(), enough)))
}
