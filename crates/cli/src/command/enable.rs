//! `plimsoll enable`: put what was disabled back in use.

use std::process::ExitCode;

use super::disable::What;
use super::{Failure, Globals};

/// Put a member, a listener or the balancing of a group back in use
///
/// A member begins with slow start. A listener takes its address again, which another process may have taken meanwhile.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
}

pub(super) fn run(args: &Args, globals: &Globals) -> Result<ExitCode, Failure> {
    args.what.switch("enable", globals)
}
