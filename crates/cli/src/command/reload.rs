//! `plimsoll reload`: have the balancer read its configuration again.

use std::process::ExitCode;

use serde_json::Value;

use super::{CliError, GlobalArgs};
use crate::control::format::sanitize;
use crate::control::{self, BalancerSelector, CommandOutput};

/// Reload the configuration and print the differences
///
/// Counters and connections are kept. If the file is invalid, the configuration in force is kept too and the
/// exit code is 2.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(flatten)]
    at: BalancerSelector,
}

pub(super) fn run(args: &Args, globals: &GlobalArgs) -> Result<ExitCode, CliError> {
    control::run_each(&args.at, globals, |balancer, _| {
        Ok(reload_changes(balancer.post("/v1/reload", &Value::Null)?))
    })
}

/// Returns the changes of a reload.
pub(super) fn reload_changes(response: Value) -> CommandOutput {
    let changes = response["changes"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let table: String = changes.map(|change| format!("{}\n", sanitize(change))).collect();
    let messages = if table.is_empty() { "reloaded: nothing is different\n" } else { "" };
    CommandOutput { messages: messages.into(), ..CommandOutput::from_view(response, table) }
}
