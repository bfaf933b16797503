//! The findings of a model, in each of the output formats.

use plimsoll_lqn::write::{Origin, lqxo};
use plimsoll_lqn::{Findings, Model};
use serde_json::Value;

use super::{short, simulate};
use crate::command::{Exit, Failure, Globals};
use crate::talk::{Output, write};

/// The output formats.
pub(super) const OUTPUTS: &[Output] = &[Output::Table, Output::Json, Output::Csv, Output::Lqxo];

/// Prints the findings: `json` for programs, the numbers as lines, LQNX with results, or else a table with
/// `more` after it.
pub(super) fn print(
    model: &Model,
    found: &Findings,
    origin: &Origin<'_>,
    json: &Value,
    more: impl FnOnce() -> String,
    globals: &Globals,
) -> Result<(), Failure> {
    match globals.output {
        Output::Csv => write(&simulate::csv(model, found)),
        Output::Lqxo => write(&lqxo(model, found, origin).map_err(|why| Failure::new(Exit::Usage, why))?),
        _ => globals.show(json, || simulate::render(model, found, globals.color()) + &more()),
    }
}

/// Returns and prints what formulas leave out of these models, each once.
pub(super) fn left_out<'m>(models: impl Iterator<Item = &'m Model>, globals: &Globals) -> Vec<String> {
    let mut all = Vec::new();
    for what in models.flat_map(plimsoll_lqn::solve::left_out) {
        if !all.contains(&what) {
            globals
                .insist(&format!("warning: solved as if it were not there: {what}; `simulate` plays it\n"));
            all.push(what);
        }
    }
    all
}

/// Prints the names without an observation in a simulation; returns `true` if there are any.
pub(super) fn unseen(found: &Findings, globals: &Globals) -> bool {
    for name in &found.unseen {
        globals.insist(&format!(
            "warning: nothing of `{name}` came to an end in the {} of the model's time that was simulated: its response time \
             is not known; give more --events, a plan a longer --budget\n",
            short(found.time)
        ));
    }
    !found.unseen.is_empty()
}
