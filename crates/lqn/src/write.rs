//! Writers of models in formats of other tools: LQNX, with results (`.lqxo`) or without, and the `.lqn`
//! grammar.
//!
//! A written model is read again to the same one, with all numbers equal to the bit. Only the order may
//! differ: in LQNX a task is within its processor, and joins are renumbered. Parameters are written as their
//! values.

use std::collections::{BTreeMap, BTreeSet};

use crate::ModelResults;
use crate::model::{Activity, Call, Entry, EntryBody, Model, Routing, TaskId};

mod graph;
mod results;
mod text;
mod xml;

/// The reason why a model cannot be written in a format.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WriteError {
    /// A name that the grammar does not allow.
    #[error("`{0}` is no name in the .lqn grammar (two or more of letters, digits and `_`): write lqnx")]
    InvalidName(String),
    /// Calls in list order.
    #[error("`{0}` makes its calls in the listed order, which the .lqn grammar cannot say: write lqnx")]
    ListOrder(String),
    /// Calls to one entry with different timeouts or retries.
    #[error("`{0}` calls one entry with more than one patience, which a pragma cannot say: write lqnx")]
    DifferentRetryPolicies(String),
    /// Two entries that begin with the same activity.
    #[error("activity `{0}` begins two entries, which LQNX cannot say: write lqn")]
    SharedStart(String),
}

/// The origin of results, written to a file of results.
#[derive(Clone, Debug, PartialEq)]
pub struct ResultOrigin<'o> {
    /// The program and its operation: `plimsoll model simulate`.
    pub program: &'o str,
    /// Whether the results have the requested accuracy.
    pub is_accurate: bool,
    /// The accuracy: the relative change in the last step, or the relative half-width of the intervals.
    pub convergence: f64,
    /// The number of steps or batches.
    pub iterations: u64,
}

/// Writes a model in LQNX.
///
/// # Errors
/// Returns an error if one activity begins several entries.
pub fn lqnx(model: &Model) -> Result<String, WriteError> {
    xml::document(model, None)
}

/// Writes a model in LQNX with results, like a solver's file `.lqxo`. Means are attributes of `result-…`
/// elements. Half-widths of 95 % intervals, if any, are the same attributes of `result-conf-95` within them.
///
/// # Errors
/// Returns an error if one activity begins several entries.
pub fn lqxo(model: &Model, results: &ModelResults, origin: &ResultOrigin<'_>) -> Result<String, WriteError> {
    xml::document(model, Some((results, origin)))
}

/// Writes a model in the `.lqn` grammar.
///
/// # Errors
/// Returns an error for names that are no words, and for calls in list order.
pub fn lqn(model: &Model) -> Result<String, WriteError> {
    text::document(model)
}

/// Returns the policies of entries that forward, sorted by name.
fn routes(model: &Model) -> BTreeMap<&str, Routing> {
    model.entries.iter().filter_map(|entry| Some((entry.name.as_str(), entry.routing?))).collect()
}

/// Returns the pairs of calling and called tasks if the model has replicated tasks, sorted by name.
fn replicated(model: &Model) -> Vec<(TaskId, TaskId)> {
    if model.tasks.iter().all(|task| task.replicas == 1) {
        return Vec::new();
    }
    let mut pairs: Vec<(TaskId, TaskId)> = model.calling_pairs().into_iter().collect();
    let name = |task: TaskId| model.tasks[task.0].name.as_str();
    pairs.sort_by_key(|(from, to)| (name(*from), name(*to)));
    pairs
}

/// Returns the limits as pragmas of the `.lqn` grammar: the object and the value.
fn limits(model: &Model) -> Result<Vec<(String, String)>, WriteError> {
    let mut settings = Vec::new();
    for task in &model.tasks {
        settings.extend(task.queue_limit.map(|limit| (format!("queue.{}", task.name), limit.to_string())));
    }
    let mut add_calls = |from: &str, activity: &Activity| -> Result<(), WriteError> {
        for (index, call) in activity.calls.iter().enumerate().filter(|(_, call)| call.waits) {
            let has_target = |candidate: &&Call| candidate.waits && candidate.entry == call.entry;
            if activity
                .calls
                .iter()
                .filter(has_target)
                .any(|candidate| candidate.retry_policy != call.retry_policy)
            {
                return Err(WriteError::DifferentRetryPolicies(activity.name.clone()));
            }
            let is_first = activity.calls.iter().position(|candidate| has_target(&candidate)) == Some(index);
            if let (true, Some(retry_policy)) = (is_first, call.retry_policy) {
                settings.push((
                    format!("call.{from}.{}", model.entries[call.entry.0].name),
                    retry_policy.to_string(),
                ));
            }
        }
        Ok(())
    };
    for entry in &model.entries {
        if let EntryBody::Phases(phases) = &entry.body {
            for (number, phase) in phases.iter().enumerate() {
                add_calls(&format!("{}.{}", entry.name, number + 1), &model.activities[phase.0])?;
            }
        }
    }
    for index in in_graphs(model) {
        let activity = &model.activities[index];
        // The name would refer to an entry with phases.
        let is_phased_entry =
            |entry: &Entry| entry.name == activity.name && matches!(entry.body, EntryBody::Phases(_));
        let is_same_name =
            |candidate: &Activity| candidate.name == activity.name && candidate.task != activity.task;
        let is_ambiguous =
            model.entries.iter().any(is_phased_entry) || model.activities.iter().any(is_same_name);
        if is_ambiguous && activity.calls.iter().any(|call| call.retry_policy.is_some()) {
            return Err(WriteError::DifferentRetryPolicies(activity.name.clone()));
        }
        add_calls(&activity.name, activity)?;
    }
    Ok(settings)
}

/// Returns the activities of graphs, that is, all that are no phases.
fn in_graphs(model: &Model) -> BTreeSet<usize> {
    let mut activities: BTreeSet<usize> = (0..model.activities.len()).collect();
    for entry in &model.entries {
        if let EntryBody::Phases(phases) = &entry.body {
            for phase in phases {
                activities.remove(&phase.0);
            }
        }
    }
    activities
}
