//! `plimsoll undrain`: take a drained member back.

use std::process::ExitCode;

use super::drain::MemberTargetArgs;
use super::{CliError, GlobalArgs};
use crate::control::{self, CommandOutput};

/// Put a drained member back in use
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(flatten)]
    target: MemberTargetArgs,
}

pub(super) fn run(args: &Args, globals: &GlobalArgs) -> Result<ExitCode, CliError> {
    let target = &args.target;
    control::run_each(&target.at, globals, |balancer, _| {
        let response = balancer.post("/v1/undrain", &target.request_body())?;
        Ok(CommandOutput::from_action(response, format!("{}: taken back\n", target.member)))
    })
}
