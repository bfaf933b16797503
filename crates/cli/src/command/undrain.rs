//! `plimsoll undrain`: take a drained member back.

use std::process::ExitCode;

use super::drain::Target;
use super::{Failure, Globals};
use crate::control::{self, Said};

/// Take a drained member back
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(flatten)]
    target: Target,
}

pub(super) fn run(args: &Args, globals: &Globals) -> Result<ExitCode, Failure> {
    let target = &args.target;
    control::each(&target.at, globals, |balancer, _| {
        let said = balancer.post("/v1/undrain", &target.body())?;
        Ok(Said::done(said, format!("{}: taken back\n", target.member)))
    })
}
