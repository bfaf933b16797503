//! `plimsoll model show`: a model as a picture.

use std::process::ExitCode;

use plimsoll_lqn::draw::Diagram;
use serde_json::json;

use super::ModelArgs;
use crate::command::{CliError, GlobalArgs};
use crate::output::{OutputFormat, write_stdout};

/// Show a model: layers of tasks with their entries, processors, and calls with their mean numbers
///
/// In the terminal, or as SVG (-o svg) in the usual notation of layered queueing networks: tasks are
/// parallelograms, processors circles, calls arrows with their mean numbers.
#[derive(clap::Args, Debug)]
pub(super) struct Args {
    #[command(flatten)]
    which: ModelArgs,
}

pub(super) const OUTPUTS: &[OutputFormat] = &[OutputFormat::Table, OutputFormat::Json, OutputFormat::Svg];

pub(super) fn run(args: &Args, globals: &GlobalArgs) -> Result<ExitCode, CliError> {
    let diagram = Diagram::of(&args.which.read(globals)?.model);
    if globals.output == OutputFormat::Svg {
        write_stdout(&diagram.svg())?;
    } else {
        globals.print_result(&json!({ "schema": 1, "picture": diagram }), || diagram.text())?;
    }
    Ok(ExitCode::SUCCESS)
}
