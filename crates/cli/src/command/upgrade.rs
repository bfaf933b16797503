//! `plimsoll upgrade`: have a new process take over from the running one.

use std::path::PathBuf;
use std::process::ExitCode;

use plimsoll_config::TimeSpan;
use serde_json::{Value, json};

use super::{CliError, GlobalArgs};
use crate::control::{self, BalancerSelector, CommandOutput, ControlEndpoint};

/// Replace the balancer by a new process from the binary on disk, without losing a request
///
/// The new process is started with the same command line, takes over all listening sockets, state and
/// counters, and serves; the old process lets its connections end, until upgrade_deadline of the
/// configuration. If the new process does not become ready, for example because the file is invalid, the old
/// process continues unchanged, and the exit code is 2.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Binary to run in place of the current one; over the control socket only
    #[arg(long, value_name = "PATH")]
    binary: Option<PathBuf>,

    /// Time limit for the new process to become ready, 1s to 10m
    #[arg(long, value_name = "TIME", default_value = "30s")]
    timeout: TimeSpan,

    #[command(flatten)]
    at: BalancerSelector,
}

pub(super) fn run(args: &Args, globals: &GlobalArgs) -> Result<ExitCode, CliError> {
    let binary = args.binary.as_ref().map(std::path::absolute).transpose().map_err(CliError::failed)?;
    let request = json!({"binary": binary, "timeout_seconds": args.timeout.0.as_secs_f64()});
    control::run_each(&args.at, globals, |balancer, _| upgrade(balancer, &request))
}

fn upgrade(balancer: &ControlEndpoint, request: &Value) -> Result<CommandOutput, CliError> {
    let response = balancer.post("/v1/upgrade", request)?;
    let (pid, version) = (&response["pid"], response["version"].as_str().unwrap_or_default());
    let connections = response["connections"].as_u64().unwrap_or_default();
    let message = format!(
        "process {pid}, version {version}, has taken over; {connections} connections end with the one \
         before\n"
    );
    Ok(CommandOutput::from_action(response, message))
}
