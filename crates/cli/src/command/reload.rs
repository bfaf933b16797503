//! `plimsoll reload`: have the balancer read its configuration again.

use serde_json::Value;

use crate::control::Where;
use crate::failure::Failure;
use crate::talk::{self, Global, Output};

/// Have the configuration read again and print what is different
///
/// Counters and connections stay. If the file is wrong, the configuration in force stays too and the exit
/// code is 2.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(flatten)]
    at: Where,
}

pub(super) fn run(args: &Args, global: &Global) -> Result<(), Failure> {
    let said = args.at.balancer()?.post("/v1/reload", &Value::Null)?;
    if global.output == Output::Json {
        return talk::write_json(&said);
    }
    let changes: Vec<_> = said["changes"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    if changes.is_empty() {
        global.say("reloaded: nothing is different\n");
    }
    talk::write(&changes.iter().map(|change| format!("{change}\n")).collect::<String>())
}
