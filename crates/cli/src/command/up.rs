//! `plimsoll up`: run the balancer.

use std::process::ExitCode;

use super::{Failure, Globals};

/// Run the balancer
#[derive(clap::Args, Debug)]
pub(crate) struct Args {}

pub(super) fn run(_: &Args, _: &Globals) -> Result<ExitCode, Failure> {
    Ok(ExitCode::SUCCESS)
}
