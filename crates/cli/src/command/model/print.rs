//! What was found of a model, in each of the forms in which it is written.

use plimsoll_lqn::write::{Origin, lqxo};
use plimsoll_lqn::{Findings, Model};
use serde_json::Value;

use super::simulate;
use crate::command::{Exit, Failure, Globals};
use crate::talk::{Output, write};

/// Those forms.
pub(super) const OUTPUTS: &[Output] = &[Output::Table, Output::Json, Output::Csv, Output::Lqxo];

/// Writes it: `json` for programs, the numbers as lines, LQNX with results, or else a table with `more` after it.
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

/// Says what formulas leave out.
pub(super) fn left_out(model: &Model, globals: &Globals) {
    for what in plimsoll_lqn::solve::left_out(model) {
        globals.insist(&format!("warning: solved as if it were not there: {what}; `simulate` plays it\n"));
    }
}
