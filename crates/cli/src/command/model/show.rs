//! `plimsoll model show`: a model as a picture.

use std::process::ExitCode;

use plimsoll_lqn::draw::Picture;
use serde_json::json;

use super::Which;
use crate::command::{Failure, Globals};
use crate::talk::{Output, write};

/// Show a model: layers of tasks with their entries, processors, and who asks whom how often
///
/// In the terminal, or as SVG (-o svg) in the notation of the field: tasks are parallelograms, processors circles, calls
/// arrows with their mean numbers.
#[derive(clap::Args, Debug)]
pub(super) struct Args {
    #[command(flatten)]
    which: Which,
}

pub(super) const OUTPUTS: &[Output] = &[Output::Table, Output::Json, Output::Svg];

pub(super) fn run(args: &Args, globals: &Globals) -> Result<ExitCode, Failure> {
    let picture = Picture::of(&args.which.read(globals)?.model);
    if globals.output == Output::Svg {
        write(&picture.svg())?;
    } else {
        globals.show(&json!({ "schema": 1, "picture": picture }), || picture.text())?;
    }
    Ok(ExitCode::SUCCESS)
}
