//! Recombines the successors of activities: the model stores them by activity, formats by whole forks and
//! joins.

use super::{Model, in_graphs};
use crate::model::{ActivityId, Next, TaskId};

/// A connection of predecessors and successors.
pub(super) struct Link<'m> {
    pub(super) before: Vec<ActivityId>,
    pub(super) kind: Kind,
    /// The successors, never a join.
    pub(super) after: &'m Next,
}

/// The combination of several predecessors.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
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
pub(super) struct Graph<'m> {
    /// The activities, in the order of the model.
    pub(super) activities: Vec<ActivityId>,
    /// The connections, in the order of their first activity.
    pub(super) links: Vec<Link<'m>>,
}

impl<'m> Graph<'m> {
    pub(super) fn of(model: &'m Model, task: TaskId) -> Self {
        let own = |place: &usize| model.activities[*place].task == task;
        let activities: Vec<ActivityId> = in_graphs(model).into_iter().filter(own).map(ActivityId).collect();
        let mut links: Vec<Link<'m>> = Vec::new();
        for id in &activities {
            let (kind, after) = match &model.activities[id.0].next {
                Next::End => continue,
                Next::Join { join, wanted, branches, then } => {
                    let quorum = (wanted < branches).then_some(*wanted);
                    (Kind::Join { number: *join, quorum }, &**then)
                }
                next => (Kind::Or, next),
            };
            match links.iter_mut().find(|link| link.kind == kind && link.after == after) {
                Some(link) => link.before.push(*id),
                None => links.push(Link { before: vec![*id], kind, after }),
            }
        }
        Self { activities, links }
    }
}
