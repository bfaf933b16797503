//! `plimsoll completions`: the script with which a shell completes commands and options.

use std::process::ExitCode;

use clap::CommandFactory as _;
use clap_complete::Shell;

use super::{Cli, Failure};
use crate::talk;

/// Print completions for a shell
///
/// For bash: plimsoll completions bash > ~/.local/share/bash-completion/completions/plimsoll
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// The shell
    shell: Shell,
}

pub(super) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "plimsoll", &mut script);
    talk::write(&String::from_utf8_lossy(&script))?;
    Ok(ExitCode::SUCCESS)
}
