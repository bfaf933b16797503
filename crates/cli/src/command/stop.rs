//! `plimsoll stop`: let the work in flight end, then the process.

use std::process::ExitCode;
use std::thread::sleep;
use std::time::Duration;

use serde_json::{Value, json};

use super::{CliError, GlobalArgs};
use crate::control::{self, BalancerSelector, CommandOutput, ControlEndpoint};

/// The time between two looks while waiting.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Stop the balancer: refuse new work and let work in flight end
///
/// The time limit is drain_deadline of the configuration.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Wait until the balancer has exited
    #[arg(long)]
    wait: bool,

    #[command(flatten)]
    at: BalancerSelector,
}

pub(super) fn run(args: &Args, globals: &GlobalArgs) -> Result<ExitCode, CliError> {
    control::run_each(&args.at, globals, |balancer, print| stop(balancer, args.wait, print))
}

fn stop(balancer: &ControlEndpoint, wait: bool, print: &dyn Fn(&str)) -> Result<CommandOutput, CliError> {
    let (_, status) = balancer.status()?;
    balancer.post("/v1/stop", &Value::Null)?;
    if wait {
        print("stopping: waiting for the work in flight\n");
        // The control socket goes last, unless a supervisor has started the next process meanwhile. A broken
        // answer is one more reason to look again.
        while !balancer.is_gone() && balancer.status().map_or(true, |(_, current)| current.pid == status.pid)
        {
            sleep(POLL_INTERVAL);
        }
    }
    let result = json!({"stopping": true, "stopped": wait});
    Ok(CommandOutput::from_action(result, if wait { "stopped\n" } else { "stopping\n" }.into()))
}
