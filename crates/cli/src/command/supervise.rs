//! `plimsoll supervise`: start processes of this host, watch over them and start again those that fail; and
//! the commands that talk to it.

mod commands;
mod status;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Subcommand;
use plimsoll_config as config;
use plimsoll_supervisor::CommandLines;

use super::{CliCommand, CliError, CliExitCode, GlobalArgs};
use crate::log;

/// Start, monitor and restart the balancers, agents and lotteries of this host
///
/// supervise.toml lists the processes. They do not end if the Supervisor is killed: when started again, it
/// finds them. SIGHUP reloads the file; SIGTERM and SIGINT stop the processes and then the Supervisor, a
/// second one stops all at once. The commands below act on a running Supervisor.
#[derive(clap::Args, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: Option<SuperviseCommand>,

    /// Configuration file
    #[arg(short, long, value_name = "FILE", default_value = config::DEFAULT_SUPERVISE_FILE)]
    config: PathBuf,

    /// Validate the file without starting; exit code 2 on any error
    #[arg(long)]
    check: bool,

    /// Format of the log on standard error
    #[arg(long, value_enum, default_value_t = log::LogFormat::Text)]
    log: log::LogFormat,
}

/// The commands for a running Supervisor.
#[derive(Debug, Subcommand)]
enum SuperviseCommand {
    Status(status::Args),
    Start(commands::ProcessStartArgs),
    Stop(commands::ProcessStopArgs),
    Restart(commands::ProcessRestartArgs),
    Reload(commands::ProcessReloadArgs),
    Shutdown(commands::SupervisorShutdownArgs),
}

pub(super) fn run(args: &Args, globals: &GlobalArgs) -> Result<ExitCode, CliError> {
    match &args.what {
        None => supervise(args, globals),
        Some(SuperviseCommand::Status(args)) => status::run(args, globals),
        Some(SuperviseCommand::Start(args)) => commands::start(args, globals),
        Some(SuperviseCommand::Stop(args)) => commands::stop(args, globals),
        Some(SuperviseCommand::Restart(args)) => commands::restart(args, globals),
        Some(SuperviseCommand::Reload(args)) => commands::reload(args, globals),
        Some(SuperviseCommand::Shutdown(args)) => commands::shut_down(args, globals),
    }
}

fn supervise(args: &Args, globals: &GlobalArgs) -> Result<ExitCode, CliError> {
    let file = config::read_supervise(&args.config)
        .map_err(|error| CliError::rendered(CliExitCode::Usage, error))?;
    if args.check {
        let names: Vec<&str> = file.supervise.processes.iter().map(|process| &*process.name.0).collect();
        if let Some(rules) = &file.supervise.supervise.access.file {
            config::check_access(&rules.0).map_err(|error| CliError::rendered(CliExitCode::Usage, error))?;
        }
        globals.print_message(&format!("{}: ok: {}\n", config::name_of(&args.config), names.join(", ")));
        return Ok(ExitCode::SUCCESS);
    }
    log::start(args.log, globals);
    let is_json = args.log == log::LogFormat::Json;
    plimsoll_supervisor::run(args.config.clone(), file, is_json, COMMAND_LINES)?;
    Ok(ExitCode::SUCCESS)
}

/// The commands that a Supervisor runs, as this program's command line reads them.
const COMMAND_LINES: CommandLines = CommandLines {
    config_file: |arguments| CliCommand::parse_arguments(arguments)?.config_file(),
    self_status: |arguments| CliCommand::parse_arguments(arguments)?.self_status(),
};
