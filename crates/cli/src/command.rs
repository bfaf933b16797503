//! The command tree. A command is a file `command/<name>.rs` with `Args` and `run`, and two lines here.
//! Commands that look at a running balancer, or act on it, are in `control_command.rs`. `help_groups.rs`
//! lists each command under its heading of `--help`.

mod add;
mod agent;
mod bindings;
mod cert;
mod check;
mod completions;
mod config;
mod control_command;
mod demo;
mod disable;
#[cfg(test)]
mod documentation;
mod drain;
mod enable;
mod events;
mod explain;
mod fleet;
mod help_groups;
mod ior;
mod lab;
mod leases;
mod load;
mod load_line;
mod lottery;
mod man;
mod member;
mod member_sources;
mod members;
mod model;
mod pick;
mod reload;
mod remove;
mod scale;
mod set;
mod status;
mod stop;
mod supervise;
mod top;
mod undrain;
mod up;
mod upgrade;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use plimsoll_admin::SelfStatus;

pub(crate) use crate::error::{CliError, CliExitCode};
pub(crate) use crate::output::GlobalArgs;

/// Adaptive load balancing and monitoring.
///
/// Exit codes: 0 success; 1 failure; 2 invalid usage or configuration; 3 balancer unreachable; 130
/// interrupted. Data goes to standard output, messages to standard error.
#[derive(Debug, Parser)]
#[command(name = "plimsoll", version, propagate_version = true, max_term_width = 100)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: CliCommand,

    #[command(flatten)]
    pub(crate) globals: GlobalArgs,
}

/// A command of the program.
#[derive(Debug, Subcommand)]
pub(crate) enum CliCommand {
    Up(up::Args),
    Agent(agent::Args),
    Supervise(supervise::Args),
    Demo(demo::Args),
    #[command(flatten)]
    Control(control_command::ControlCommand),
    Member(member::Args),
    Load(load::Args),
    Ior(ior::Args),
    Lab(lab::Args),
    Lottery(lottery::Args),
    Model(model::Args),
    Pick(pick::Args),
    Cert(cert::Args),
    Config(config::Args),
    Completions(completions::Args),
    Man(man::Args),
}

impl Cli {
    /// Reads the command line; prints the help or what is wrong with it, and ends, if it names no command.
    pub(crate) fn from_arguments() -> Self {
        let matches = help_groups::with_groups(Self::command()).get_matches();
        Self::from_arg_matches(&matches).unwrap_or_else(|error| error.exit())
    }
}

impl CliCommand {
    /// Returns the command that these arguments name, if they are valid.
    pub(crate) fn parse_arguments(arguments: &[String]) -> Option<Self> {
        let argv = std::iter::once("plimsoll").chain(arguments.iter().map(String::as_str));
        Cli::try_parse_from(argv).ok().map(|cli| cli.command)
    }

    /// Returns the configuration file of a command that a Supervisor runs, if that is a file.
    pub(crate) fn config_file(&self) -> Option<PathBuf> {
        match self {
            Self::Up(args) => Some(args.config_file()),
            Self::Lottery(args) => args.config_file(),
            _ => None,
        }
    }

    /// Asks the running process of this command for its status; waits for the answer.
    pub(crate) fn self_status(&self) -> Option<SelfStatus> {
        match self {
            Self::Up(args) => Some(up::self_status::self_status(args)),
            Self::Lottery(args) => Some(lottery::self_status::self_status(args)),
            Self::Agent(args) => Some(agent::self_status::self_status(args)),
            _ => None,
        }
    }

    /// Runs the command.
    pub(crate) fn run(&self, globals: &GlobalArgs) -> Result<ExitCode, CliError> {
        let output = globals.output;
        let (is_load_format, is_reference_format, is_model_format) =
            (output.is_load_format(), output.is_reference_format(), output.is_model_format());
        let supported_formats = match self {
            Self::Load(_) if is_reference_format || is_model_format => "table, json, hgrm and html",
            Self::Ior(_) if is_load_format || is_model_format => "table, json, ior and corbaloc",
            // Each of these commands lists its own formats.
            Self::Load(_) | Self::Ior(_) | Self::Model(_) => "",
            _ if is_load_format || is_reference_format || is_model_format => "table and json",
            _ => "",
        };
        if !supported_formats.is_empty() {
            return Err(CliError::new(
                CliExitCode::Usage,
                format_args!("this command knows --output {supported_formats} only"),
            ));
        }
        match self {
            Self::Up(args) => up::run(args, globals),
            Self::Agent(args) => agent::run(args, globals),
            Self::Supervise(args) => supervise::run(args, globals),
            Self::Demo(args) => demo::run(args, globals),
            Self::Control(command) => command.run(globals),
            Self::Member(args) => member::run(args, globals),
            Self::Load(args) => load::run(args, globals),
            Self::Ior(args) => ior::run(args, globals),
            Self::Lab(args) => lab::run(args, globals),
            Self::Lottery(args) => lottery::run(args, globals),
            Self::Model(args) => model::run(args, globals),
            Self::Pick(args) => pick::run(args, globals),
            Self::Cert(args) => cert::run(args, globals),
            Self::Config(args) => config::run(args, globals),
            Self::Completions(args) => completions::run(args),
            Self::Man(args) => man::run(args, globals),
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
