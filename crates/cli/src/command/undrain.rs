//! `plimsoll undrain`: take a drained member back.

use super::drain::Target;
use crate::failure::Failure;
use crate::talk::{self, Global, Output};

/// Take a drained member back
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(flatten)]
    target: Target,
}

pub(super) fn run(args: &Args, global: &Global) -> Result<(), Failure> {
    let target = &args.target;
    let said = target.at.balancer()?.post("/v1/undrain", &target.body())?;
    if global.output == Output::Json {
        return talk::write_json(&said);
    }
    global.say(&format!("{}: taken back\n", target.member));
    Ok(())
}
