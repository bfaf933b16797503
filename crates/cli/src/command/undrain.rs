//! `plimsoll undrain`: take a drained member back.

use std::process::ExitCode;

use super::drain::Target;
use super::{Failure, Globals};
use crate::control::report;

/// Take a drained member back
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(flatten)]
    target: Target,
}

pub(super) fn run(args: &Args, globals: &Globals) -> Result<ExitCode, Failure> {
    let target = &args.target;
    let said = target.at.balancer()?.post("/v1/undrain", &target.body())?;
    report(globals, &said, &format!("{}: taken back\n", target.member))
}
