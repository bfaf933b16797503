//! `plimsoll model convert`: a model in another format.

use std::process::ExitCode;

use plimsoll_lqn::write;

use super::Which;
use crate::command::{Exit, Failure, Globals};
use crate::talk::{self, Output};

/// Write a model in another format: -o lqnx (XML) or lqn (text)
///
/// Parameters are written as the values that they have. What the `.lqn` grammar cannot say is refused by name.
#[derive(clap::Args, Debug)]
pub(super) struct Args {
    #[command(flatten)]
    which: Which,
}

pub(super) const OUTPUTS: &[Output] = &[Output::Lqnx, Output::Lqn];

pub(super) fn run(args: &Args, globals: &Globals) -> Result<ExitCode, Failure> {
    let model = args.which.read(globals)?.model;
    let text = if globals.output == Output::Lqn { write::lqn(&model) } else { write::lqnx(&model) };
    talk::write(&text.map_err(|why| Failure::new(Exit::Usage, why))?)?;
    Ok(ExitCode::SUCCESS)
}
