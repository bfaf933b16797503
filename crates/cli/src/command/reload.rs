//! `plimsoll reload`: have the balancer read its configuration again.

use std::process::ExitCode;

use serde_json::Value;

use super::{Failure, Globals};
use crate::control::text::plain;
use crate::control::{self, Said, Where};

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
    control::each(&args.at, globals, |balancer, _| Ok(reloaded(balancer.post("/v1/reload", &Value::Null)?)))
}

/// Returns the changes of a reload.
pub(super) fn reloaded(said: Value) -> Said {
    let changes = said["changes"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let table: String = changes.map(|change| format!("{}\n", plain(change))).collect();
    let talk = if table.is_empty() { "reloaded: nothing is different\n" } else { "" };
    Said { talk: talk.into(), ..Said::shown(said, table) }
}
