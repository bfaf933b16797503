//! Joins the activities of a task to a graph.

use std::collections::HashMap;

use super::super::InputError;
use super::super::draft::{self, DraftPredecessors, DraftSuccessors, SourceName};
use super::NameResolver;
use crate::model::{ActivityId, Successors, TaskId};

/// The indices of a task's activities by name.
pub(super) struct ActivityIndex {
    ids: HashMap<String, ActivityId>,
}

impl ActivityIndex {
    /// Adds the activities of a task to the model, with their successors.
    pub(super) fn new(
        resolver: &mut NameResolver,
        id: TaskId,
        task: &draft::DraftTask,
    ) -> Result<Self, InputError> {
        let mut graph = Self { ids: HashMap::new() };
        for activity in &task.activities {
            let activity_id = resolver.activity(id, activity)?;
            if graph.ids.insert(activity.name.text.clone(), activity_id).is_some() {
                return Err(activity
                    .name
                    .at
                    .error(format!("there are two activities `{}`", activity.name.text)));
            }
        }
        for (name, replied_entries) in &task.replies {
            let activity_id = graph.find(name)?;
            for entry in replied_entries {
                let entry = resolver.entry(entry)?;
                resolver.model.activities[activity_id.0].replies.push(entry);
            }
        }
        for (join, link) in task.links.iter().enumerate() {
            let successors = graph.next(&link.successors)?;
            let (names, linked_successors) = match &link.predecessors {
                DraftPredecessors::One(name) => (vec![name], successors),
                DraftPredecessors::Or(names) => (names.iter().collect(), successors),
                DraftPredecessors::And(names, quorum) => {
                    let branches = names.len() as u32;
                    let quorum_count = match quorum {
                        Some((count, position)) if *count == 0 || *count > branches => {
                            return Err(position
                                .error(format!("of {branches} branches from 1 to {branches} can go on")));
                        }
                        Some((count, _)) => *count,
                        None => branches,
                    };
                    // A join of one branch is none.
                    let joined = if branches == 1 {
                        successors
                    } else {
                        Successors::Join { join, wanted: quorum_count, branches, then: Box::new(successors) }
                    };
                    (names.iter().collect(), joined)
                }
            };
            for name in names {
                let activity_id = graph.find(name)?;
                let successors_slot = &mut resolver.model.activities[activity_id.0].successors;
                if *successors_slot != Successors::End {
                    return Err(name.at.error(format!("`{}` is followed by two things", name.text)));
                }
                *successors_slot = linked_successors.clone();
            }
        }
        Ok(graph)
    }

    /// Returns the activity with this name.
    pub(super) fn find(&self, name: &SourceName) -> Result<ActivityId, InputError> {
        let id = self.ids.get(&name.text).copied();
        id.ok_or_else(|| name.at.error(format!("no activity `{}` in this task", name.text)))
    }

    fn next(&self, draft_successors: &DraftSuccessors) -> Result<Successors, InputError> {
        Ok(match draft_successors {
            DraftSuccessors::End => Successors::End,
            DraftSuccessors::One(name) => Successors::Or(vec![(1.0, self.find(name)?)]),
            DraftSuccessors::Or(branches) => {
                let share_sum: f64 = branches.iter().map(|(share, _)| share).sum();
                if (share_sum - 1.0).abs() > 1e-3 {
                    let position = branches.first().map(|(_, name)| name.at).unwrap_or_default();
                    return Err(position
                        .error(format!("the probabilities of the ways add up to {share_sum}, not to 1")));
                }
                // A sum of 1 up to rounding is kept, so that a written model is read again unchanged.
                let total = if (share_sum - 1.0).abs() < 1e-9 { 1.0 } else { share_sum };
                let branch_ids = branches.iter().map(|(share, name)| Ok((share / total, self.find(name)?)));
                Successors::Or(branch_ids.collect::<Result<_, InputError>>()?)
            }
            DraftSuccessors::And(names) if names.len() == 1 => {
                Successors::Or(vec![(1.0, self.find(&names[0])?)])
            }
            DraftSuccessors::And(names) => {
                Successors::And(names.iter().map(|name| self.find(name)).collect::<Result<_, _>>()?)
            }
            DraftSuccessors::Loop(bodies, exit) => {
                let body = |(count, name): &(f64, SourceName)| {
                    if count.is_finite() {
                        return Ok((*count, self.find(name)?));
                    }
                    Err(name.at.error(format!("how often `{}` is done is a number", name.text)))
                };
                let bodies = bodies.iter().map(body).collect::<Result<_, InputError>>()?;
                Successors::Loop { bodies, exit: exit.as_ref().map(|exit| self.find(exit)).transpose()? }
            }
        })
    }
}
