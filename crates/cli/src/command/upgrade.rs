//! `plimsoll upgrade`: have a new process take over from the running one.

use std::path::PathBuf;
use std::process::ExitCode;

use plimsoll_config::TimeSpan;
use serde_json::{Value, json};

use super::{CliError, GlobalArgs};
use crate::control::{self, BalancerSelector, CommandOutput, ControlEndpoint};

/// Have a new process take over, from the binary on disk, without losing a request
///
/// It is started with the same command line, gets all listening sockets and all that is known and counted,
/// and serves; the one before lets its connections end, until upgrade_deadline of the configuration. If the
/// new one does not get ready, for its file is wrong say, the one before goes on as if nothing had been, and
/// the exit code is 2.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// The program to run in place of the one that runs; by the control socket only
    #[arg(long, value_name = "PATH")]
    binary: Option<PathBuf>,

    /// How long it may take to be ready, 1s to 10m
    #[arg(long, value_name = "TIME", default_value = "30s")]
    timeout: TimeSpan,

    #[command(flatten)]
    at: BalancerSelector,
}

pub(super) fn run(args: &Args, globals: &GlobalArgs) -> Result<ExitCode, CliError> {
    let binary = args.binary.as_ref().map(std::path::absolute).transpose().map_err(CliError::failed)?;
    let wish = json!({"binary": binary, "timeout_seconds": args.timeout.0.as_secs_f64()});
    control::run_each(&args.at, globals, |balancer, _| upgrade(balancer, &wish))
}

fn upgrade(balancer: &ControlEndpoint, wish: &Value) -> Result<CommandOutput, CliError> {
    let said = balancer.post("/v1/upgrade", wish)?;
    let (pid, version) = (&said["pid"], said["version"].as_str().unwrap_or_default());
    let open = said["connections"].as_u64().unwrap_or_default();
    let talk = format!(
        "process {pid}, version {version}, has taken over; {open} connections end with the one before\n"
    );
    Ok(CommandOutput::from_action(said, talk))
}
