//! What was found of a model, in each of the forms in which it is written.

use plimsoll_lqn::{Findings, Model};
use serde_json::Value;

use super::simulate;
use crate::command::{Failure, Globals};
use crate::talk::{Output, write};

/// Writes it: `json` for programs, the numbers as lines, or else a table with `more` after it.
pub(super) fn print(
    model: &Model,
    found: &Findings,
    json: &Value,
    more: impl FnOnce() -> String,
    globals: &Globals,
) -> Result<(), Failure> {
    match globals.output {
        Output::Csv => write(&simulate::csv(found)),
        _ => globals.show(json, || simulate::render(model, found, globals.color()) + &more()),
    }
}
