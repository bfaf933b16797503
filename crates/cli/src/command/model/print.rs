//! The findings of a model, in each of the output formats.

use plimsoll_lqn::write::{ResultOrigin, lqxo};
use plimsoll_lqn::{Model, ModelResults};
use serde_json::Value;

use super::{format_short, simulate};
use crate::command::{CliError, CliExitCode, GlobalArgs};
use crate::output::{OutputFormat, write_stdout};

/// The output formats.
pub(super) const OUTPUTS: &[OutputFormat] =
    &[OutputFormat::Table, OutputFormat::Json, OutputFormat::Csv, OutputFormat::Lqxo];

/// Prints the findings: `json` for programs, the numbers as lines, LQNX with results, or else a table with
/// `more` after it.
pub(super) fn print(
    model: &Model,
    results: &ModelResults,
    origin: &ResultOrigin<'_>,
    json: &Value,
    extra_text: impl FnOnce() -> String,
    globals: &GlobalArgs,
) -> Result<(), CliError> {
    match globals.output {
        OutputFormat::Csv => write_stdout(&simulate::csv(model, results)),
        OutputFormat::Lqxo => write_stdout(
            &lqxo(model, results, origin).map_err(|error| CliError::new(CliExitCode::Usage, error))?,
        ),
        _ => globals.print_result(json, || {
            simulate::render(model, results, globals.stdout_has_color()) + &extra_text()
        }),
    }
}

/// Returns and prints what formulas leave out of these models, each once.
pub(super) fn print_left_out<'m>(
    models: impl Iterator<Item = &'m Model>,
    globals: &GlobalArgs,
) -> Vec<String> {
    let mut parts = Vec::new();
    for part in models.flat_map(plimsoll_lqn::solve::ignored_parts) {
        if !parts.contains(&part) {
            globals.print_always(&format!(
                "warning: solved as if it were not there: {part}; `simulate` plays it\n"
            ));
            parts.push(part);
        }
    }
    parts
}

/// Prints the names without an observation in a simulation; returns `true` if there are any.
pub(super) fn print_unobserved(results: &ModelResults, globals: &GlobalArgs) -> bool {
    for name in &results.unseen {
        globals.print_always(&format!(
            "warning: nothing of `{name}` came to an end in the {} of the model's time that was simulated: \
             its response time \
             is not known; give more --events, a plan a longer --budget\n",
            format_short(results.time)
        ));
    }
    !results.unseen.is_empty()
}
