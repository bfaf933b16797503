//! `plimsoll reload`: have the balancer read its configuration again.

use std::process::ExitCode;

use serde_json::Value;

use super::{Failure, Globals};
use crate::control::Where;
use crate::control::text::plain;

/// Have the configuration read again and print what is different
///
/// Counters and connections stay. If the file is wrong, the configuration in force stays too and the exit
/// code is 2.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(flatten)]
    at: Where,
}

pub(super) fn run(args: &Args, globals: &Globals) -> Result<ExitCode, Failure> {
    let said = args.at.balancer()?.post("/v1/reload", &Value::Null)?;
    let changes: Vec<_> =
        said["changes"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    if changes.is_empty() {
        globals.say("reloaded: nothing is different\n");
    }
    globals.show(&said, || changes.iter().map(|change| format!("{}\n", plain(change))).collect())?;
    Ok(ExitCode::SUCCESS)
}
