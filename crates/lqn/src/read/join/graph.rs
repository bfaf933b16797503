//! Joins the activities of a task to a graph.

use std::collections::HashMap;

use super::super::Trouble;
use super::super::draft::{self, After, Before, Name};
use super::Joiner;
use crate::model::{ActivityId, Next, TaskId};

/// The indices of a task's activities by name.
pub(super) struct Graph {
    places: HashMap<String, ActivityId>,
}

impl Graph {
    /// Adds the activities of a task to the model, with their successors.
    pub(super) fn new(joiner: &mut Joiner, id: TaskId, task: &draft::Task) -> Result<Self, Trouble> {
        let mut graph = Self { places: HashMap::new() };
        for activity in &task.activities {
            let place = joiner.activity(id, activity)?;
            if graph.places.insert(activity.name.text.clone(), place).is_some() {
                return Err(activity
                    .name
                    .at
                    .says(format!("there are two activities `{}`", activity.name.text)));
            }
        }
        for (name, answered) in &task.replies {
            let place = graph.place(name)?;
            for entry in answered {
                let entry = joiner.entry(entry)?;
                joiner.model.activities[place.0].replies.push(entry);
            }
        }
        for (join, link) in task.links.iter().enumerate() {
            let then = graph.next(&link.after)?;
            let (names, next) = match &link.before {
                Before::One(name) => (vec![name], then),
                Before::Any(names) => (names.iter().collect(), then),
                Before::All(names, quorum) => {
                    let branches = names.len() as u32;
                    let wanted = match quorum {
                        Some((wanted, at)) if *wanted == 0 || *wanted > branches => {
                            return Err(
                                at.says(format!("of {branches} branches from 1 to {branches} can go on"))
                            );
                        }
                        Some((wanted, _)) => *wanted,
                        None => branches,
                    };
                    // A join of one branch is none.
                    let next = if branches == 1 {
                        then
                    } else {
                        Next::Join { join, wanted, branches, then: Box::new(then) }
                    };
                    (names.iter().collect(), next)
                }
            };
            for name in names {
                let place = graph.place(name)?;
                let own = &mut joiner.model.activities[place.0].next;
                if *own != Next::End {
                    return Err(name.at.says(format!("`{}` is followed by two things", name.text)));
                }
                *own = next.clone();
            }
        }
        Ok(graph)
    }

    /// Returns the activity with this name.
    pub(super) fn place(&self, name: &Name) -> Result<ActivityId, Trouble> {
        let found = self.places.get(&name.text).copied();
        found.ok_or_else(|| name.at.says(format!("no activity `{}` in this task", name.text)))
    }

    fn next(&self, after: &After) -> Result<Next, Trouble> {
        Ok(match after {
            After::Nothing => Next::End,
            After::One(name) => Next::Or(vec![(1.0, self.place(name)?)]),
            After::Any(ways) => {
                let all: f64 = ways.iter().map(|(share, _)| share).sum();
                if (all - 1.0).abs() > 1e-3 {
                    let at = ways.first().map(|(_, name)| name.at).unwrap_or_default();
                    return Err(at.says(format!("the probabilities of the ways add up to {all}, not to 1")));
                }
                // A sum of 1 up to rounding is kept, so that a written model is read again unchanged.
                let all = if (all - 1.0).abs() < 1e-9 { 1.0 } else { all };
                let places = ways.iter().map(|(share, name)| Ok((share / all, self.place(name)?)));
                Next::Or(places.collect::<Result<_, Trouble>>()?)
            }
            After::All(names) if names.len() == 1 => Next::Or(vec![(1.0, self.place(&names[0])?)]),
            After::All(names) => {
                Next::And(names.iter().map(|name| self.place(name)).collect::<Result<_, _>>()?)
            }
            After::Loop(bodies, exit) => {
                let one = |(count, name): &(f64, Name)| {
                    if count.is_finite() {
                        return Ok((*count, self.place(name)?));
                    }
                    Err(name.at.says(format!("how often `{}` is done is a number", name.text)))
                };
                let bodies = bodies.iter().map(one).collect::<Result<_, Trouble>>()?;
                Next::Loop { bodies, exit: exit.as_ref().map(|exit| self.place(exit)).transpose()? }
            }
        })
    }
}
