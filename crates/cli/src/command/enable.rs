//! `plimsoll enable`: put what was disabled back in use.

use std::process::ExitCode;

use super::disable::SwitchTarget;
use super::{CliError, GlobalArgs};

/// Put a member, a listener or the balancing of a group back in use
///
/// A member begins with slow start. A listener binds its address again, which another process may have taken
/// meanwhile.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: SwitchTarget,
}

pub(super) fn run(args: &Args, globals: &GlobalArgs) -> Result<ExitCode, CliError> {
    args.what.switch("enable", globals)
}
