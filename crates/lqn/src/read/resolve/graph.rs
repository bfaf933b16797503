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
        joiner: &mut NameResolver,
        id: TaskId,
        task: &draft::DraftTask,
    ) -> Result<Self, InputError> {
        let mut graph = Self { ids: HashMap::new() };
        for activity in &task.activities {
            let place = joiner.activity(id, activity)?;
            if graph.ids.insert(activity.name.text.clone(), place).is_some() {
                return Err(activity
                    .name
                    .at
                    .error(format!("there are two activities `{}`", activity.name.text)));
            }
        }
        for (name, answered) in &task.replies {
            let place = graph.find(name)?;
            for entry in answered {
                let entry = joiner.entry(entry)?;
                joiner.model.activities[place.0].replies.push(entry);
            }
        }
        for (join, link) in task.links.iter().enumerate() {
            let then = graph.next(&link.successors)?;
            let (names, next) = match &link.predecessors {
                DraftPredecessors::One(name) => (vec![name], then),
                DraftPredecessors::Or(names) => (names.iter().collect(), then),
                DraftPredecessors::And(names, quorum) => {
                    let branches = names.len() as u32;
                    let wanted = match quorum {
                        Some((wanted, at)) if *wanted == 0 || *wanted > branches => {
                            return Err(
                                at.error(format!("of {branches} branches from 1 to {branches} can go on"))
                            );
                        }
                        Some((wanted, _)) => *wanted,
                        None => branches,
                    };
                    // A join of one branch is none.
                    let next = if branches == 1 {
                        then
                    } else {
                        Successors::Join { join, wanted, branches, then: Box::new(then) }
                    };
                    (names.iter().collect(), next)
                }
            };
            for name in names {
                let place = graph.find(name)?;
                let own = &mut joiner.model.activities[place.0].successors;
                if *own != Successors::End {
                    return Err(name.at.error(format!("`{}` is followed by two things", name.text)));
                }
                *own = next.clone();
            }
        }
        Ok(graph)
    }

    /// Returns the activity with this name.
    pub(super) fn find(&self, name: &SourceName) -> Result<ActivityId, InputError> {
        let found = self.ids.get(&name.text).copied();
        found.ok_or_else(|| name.at.error(format!("no activity `{}` in this task", name.text)))
    }

    fn next(&self, after: &DraftSuccessors) -> Result<Successors, InputError> {
        Ok(match after {
            DraftSuccessors::End => Successors::End,
            DraftSuccessors::One(name) => Successors::Or(vec![(1.0, self.find(name)?)]),
            DraftSuccessors::Or(ways) => {
                let all: f64 = ways.iter().map(|(share, _)| share).sum();
                if (all - 1.0).abs() > 1e-3 {
                    let at = ways.first().map(|(_, name)| name.at).unwrap_or_default();
                    return Err(at.error(format!("the probabilities of the ways add up to {all}, not to 1")));
                }
                // A sum of 1 up to rounding is kept, so that a written model is read again unchanged.
                let all = if (all - 1.0).abs() < 1e-9 { 1.0 } else { all };
                let places = ways.iter().map(|(share, name)| Ok((share / all, self.find(name)?)));
                Successors::Or(places.collect::<Result<_, InputError>>()?)
            }
            DraftSuccessors::And(names) if names.len() == 1 => {
                Successors::Or(vec![(1.0, self.find(&names[0])?)])
            }
            DraftSuccessors::And(names) => {
                Successors::And(names.iter().map(|name| self.find(name)).collect::<Result<_, _>>()?)
            }
            DraftSuccessors::Loop(bodies, exit) => {
                let one = |(count, name): &(f64, SourceName)| {
                    if count.is_finite() {
                        return Ok((*count, self.find(name)?));
                    }
                    Err(name.at.error(format!("how often `{}` is done is a number", name.text)))
                };
                let bodies = bodies.iter().map(one).collect::<Result<_, InputError>>()?;
                Successors::Loop { bodies, exit: exit.as_ref().map(|exit| self.find(exit)).transpose()? }
            }
        })
    }
}
