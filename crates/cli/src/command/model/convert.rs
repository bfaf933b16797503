//! `plimsoll model convert`: a model in another format.

use std::process::ExitCode;

use plimsoll_lqn::write;

use super::ModelArgs;
use crate::command::{CliError, CliExitCode, GlobalArgs};
use crate::output::{self, OutputFormat};

/// Write a model in another format: -o lqnx (XML) or lqn (text)
///
/// Parameters are written as their values. Constructs that the `.lqn` grammar cannot express are refused by
/// name.
#[derive(clap::Args, Debug)]
pub(super) struct Args {
    #[command(flatten)]
    which: ModelArgs,
}

pub(super) const OUTPUTS: &[OutputFormat] = &[OutputFormat::Lqnx, OutputFormat::Lqn];

pub(super) fn run(args: &Args, globals: &GlobalArgs) -> Result<ExitCode, CliError> {
    let model = args.which.read(globals)?.model;
    let text = if globals.output == OutputFormat::Lqn { write::lqn(&model) } else { write::lqnx(&model) };
    output::write_stdout(&text.map_err(|error| CliError::new(CliExitCode::Usage, error))?)?;
    Ok(ExitCode::SUCCESS)
}
