//! `plimsoll up`: run the balancer.

use crate::failure::Failure;
use crate::talk::Global;

/// Run the balancer
#[derive(clap::Args, Debug)]
pub(crate) struct Args {}

pub(super) fn run(_: &Args, _: &Global) -> Result<(), Failure> {
    Ok(())
}
