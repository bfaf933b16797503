//! `plimsoll completions`: the script with which a shell completes commands and options.

use std::process::ExitCode;

use clap::CommandFactory as _;
use clap_complete::Shell;

use super::{Cli, CliError};
use crate::output;

/// Print a completion script for a shell
///
/// For bash: plimsoll completions bash > ~/.local/share/bash-completion/completions/plimsoll
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Name of the shell
    shell: Shell,
}

pub(super) fn run(args: &Args) -> Result<ExitCode, CliError> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "plimsoll", &mut script);
    output::write_stdout(&String::from_utf8_lossy(&script))?;
    Ok(ExitCode::SUCCESS)
}
