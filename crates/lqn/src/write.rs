//! Models as text that other tools read: LQNX, with results (`.lqxo`) or without, and the `.lqn` grammar.
//!
//! What is written is read again to the same model, to the bit of every number. Only order may differ: in LQNX a task
//! stands in its processor, and joins are numbered anew. Parameters are written as the values they have.

use std::collections::{BTreeMap, BTreeSet};

use crate::Findings;
use crate::model::{Activity, Body, Call, Entry, Model, Routing, TaskId};

mod graph;
mod results;
mod text;
mod xml;

/// Why a model cannot be written in a format.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unwritable {
    /// A name that the grammar does not have.
    #[error("`{0}` is no name in the .lqn grammar (two or more of letters, digits and `_`): write lqnx")]
    Name(String),
    /// Calls in the listed order.
    #[error("`{0}` makes its calls in the listed order, which the .lqn grammar cannot say: write lqnx")]
    Order(String),
    /// Calls to one entry whose callers have not the same patience.
    #[error("`{0}` calls one entry with more than one patience, which a pragma cannot say: write lqnx")]
    Patience(String),
    /// Two entries that begin with one activity.
    #[error("activity `{0}` begins two entries, which LQNX cannot say: write lqn")]
    Start(String),
}

/// How results came about, for readers of a file of results.
#[derive(Clone, Debug, PartialEq)]
pub struct Origin<'o> {
    /// The program and what it did: `plimsoll model simulate`.
    pub by: &'o str,
    /// Are the results as good as was asked for?
    pub valid: bool,
    /// How good that is: the part by which the last step changed something, or the relative half-width of intervals.
    pub convergence: f64,
    /// Steps, or batches.
    pub iterations: u64,
}

/// A model in LQNX.
///
/// # Errors
/// If one activity begins several entries.
pub fn lqnx(model: &Model) -> Result<String, Unwritable> {
    xml::document(model, None)
}

/// A model in LQNX with results, as solvers leave it in a file `.lqxo`. Means are attributes of `result-…` elements,
/// halves of 95 % intervals the same attributes of `result-conf-95` in them, where there are intervals.
///
/// # Errors
/// If one activity begins several entries.
pub fn lqxo(model: &Model, found: &Findings, origin: &Origin<'_>) -> Result<String, Unwritable> {
    xml::document(model, Some((found, origin)))
}

/// A model in the `.lqn` grammar.
///
/// # Errors
/// Names that are no words, and calls in the listed order.
pub fn lqn(model: &Model) -> Result<String, Unwritable> {
    text::document(model)
}

/// Entries with a policy by which they forward, by name.
fn routes(model: &Model) -> BTreeMap<&str, Routing> {
    model.entries.iter().filter_map(|entry| Some((entry.name.as_str(), entry.routing?))).collect()
}

/// Tasks that ask others where one of both has replicas, by name.
fn replicated(model: &Model) -> Vec<(TaskId, TaskId)> {
    if model.tasks.iter().all(|task| task.replicas == 1) {
        return Vec::new();
    }
    let mut all: Vec<(TaskId, TaskId)> = model.pairs().into_iter().collect();
    let name = |task: TaskId| model.tasks[task.0].name.as_str();
    all.sort_by_key(|(from, to)| (name(*from), name(*to)));
    all
}

/// Limits as pragmas of the `.lqn` grammar: what of, and the value.
fn limits(model: &Model) -> Result<Vec<(String, String)>, Unwritable> {
    let mut all = Vec::new();
    for task in &model.tasks {
        all.extend(task.queue_limit.map(|limit| (format!("queue.{}", task.name), limit.to_string())));
    }
    let mut calls = |from: &str, own: &Activity| -> Result<(), Unwritable> {
        for (place, call) in own.calls.iter().enumerate().filter(|(_, call)| call.waits) {
            let to = |other: &&Call| other.waits && other.entry == call.entry;
            if own.calls.iter().filter(to).any(|other| other.patience != call.patience) {
                return Err(Unwritable::Patience(own.name.clone()));
            }
            let first = own.calls.iter().position(|other| to(&other)) == Some(place);
            if let (true, Some(patience)) = (first, call.patience) {
                all.push((format!("call.{from}.{}", model.entries[call.entry.0].name), patience.to_string()));
            }
        }
        Ok(())
    };
    for entry in &model.entries {
        if let Body::Phases(phases) = &entry.body {
            for (number, phase) in phases.iter().enumerate() {
                calls(&format!("{}.{}", entry.name, number + 1), &model.activities[phase.0])?;
            }
        }
    }
    for place in in_graphs(model) {
        let own = &model.activities[place];
        // An entry with phases of that name would be meant.
        let phases = |entry: &Entry| entry.name == own.name && matches!(entry.body, Body::Phases(_));
        let same = |other: &Activity| other.name == own.name && other.task != own.task;
        let shared = model.entries.iter().any(phases) || model.activities.iter().any(same);
        if shared && own.calls.iter().any(|call| call.patience.is_some()) {
            return Err(Unwritable::Patience(own.name.clone()));
        }
        calls(&own.name, own)?;
    }
    Ok(all)
}

/// The activities that belong to graphs: all that are no phase.
fn in_graphs(model: &Model) -> BTreeSet<usize> {
    let mut all: BTreeSet<usize> = (0..model.activities.len()).collect();
    for entry in &model.entries {
        if let Body::Phases(phases) = &entry.body {
            for phase in phases {
                all.remove(&phase.0);
            }
        }
    }
    all
}
