//! Models as text that other tools read: LQNX, with results (`.lqxo`) or without, and the `.lqn` grammar.
//!
//! What is written is read again to the same model, to the bit of every number. Only order may differ: in LQNX a task
//! stands in its processor, and joins are numbered anew. Parameters are written as the values they have.

use std::collections::{BTreeMap, BTreeSet};

use crate::Findings;
use crate::model::{Body, Model, Routing};

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
