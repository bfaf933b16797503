//! Recombines the successors of activities: the model stores them by activity, formats by whole forks and
//! joins.

use super::{Model, in_graphs};
use crate::model::{ActivityId, Successors, TaskId};

/// A connection of predecessors and successors.
pub(super) struct GraphLink<'m> {
    pub(super) predecessors: Vec<ActivityId>,
    pub(super) kind: PredecessorKind,
    /// The successors, never a join.
    pub(super) successors: &'m Successors,
}

/// The combination of several predecessors.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum PredecessorKind {
    /// Any of them.
    Or,
    /// All of them, or a quorum, at the join with this number.
    Join {
        number: usize,
        /// The quorum; `None` for all.
        quorum: Option<u32>,
    },
}

/// The graph of a task.
pub(super) struct TaskGraph<'m> {
    /// The activities, in the order of the model.
    pub(super) activities: Vec<ActivityId>,
    /// The connections, in the order of their first activity.
    pub(super) links: Vec<GraphLink<'m>>,
}

impl<'m> TaskGraph<'m> {
    pub(super) fn of(model: &'m Model, task: TaskId) -> Self {
        let belongs_to_task = |index: &usize| model.activities[*index].task == task;
        let activities: Vec<ActivityId> =
            in_graphs(model).into_iter().filter(belongs_to_task).map(ActivityId).collect();
        let mut links: Vec<GraphLink<'m>> = Vec::new();
        for id in &activities {
            let (kind, successors) = match &model.activities[id.0].successors {
                Successors::End => continue,
                Successors::Join { join, wanted, branches, then } => {
                    let quorum = (wanted < branches).then_some(*wanted);
                    (PredecessorKind::Join { number: *join, quorum }, &**then)
                }
                successors => (PredecessorKind::Or, successors),
            };
            match links.iter_mut().find(|link| link.kind == kind && link.successors == successors) {
                Some(link) => link.predecessors.push(*id),
                None => links.push(GraphLink { predecessors: vec![*id], kind, successors }),
            }
        }
        Self { activities, links }
    }
}
