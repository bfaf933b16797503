//! The command tree. A command is a file `command/<name>.rs` with `Args` and `run`, and two lines here.

mod completions;
mod config;
mod man;
mod up;

use clap::{Parser, Subcommand};

use crate::failure::Failure;
use crate::talk::Global;

/// Adaptive load balancing and monitoring.
///
/// Exit codes: 0 ok; 1 failed; 2 wrong usage or configuration; 3 cannot reach the balancer; 130 interrupted.
/// Standard output is data, standard error is talk.
#[derive(Debug, Parser)]
#[command(name = "plimsoll", version, propagate_version = true, max_term_width = 100)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,

    #[command(flatten)]
    pub(crate) global: Global,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Up(up::Args),
    Config(config::Args),
    Completions(completions::Args),
    Man(man::Args),
}

impl Command {
    /// Does it.
    pub(crate) fn run(&self, global: &Global) -> Result<(), Failure> {
        match self {
            Self::Up(args) => up::run(args, global),
            Self::Config(args) => config::run(args, global),
            Self::Completions(args) => completions::run(args),
            Self::Man(args) => man::run(args, global),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    #[test]
    fn the_tree_is_sound() {
        super::Cli::command().debug_assert();
    }
}
