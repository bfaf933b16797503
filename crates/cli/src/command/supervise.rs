//! `plimsoll supervise`: start processes of this host, watch over them and start again those that fail; and
//! the commands that talk to it.

mod commands;
mod status;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Subcommand;
use plimsoll_balancer::control_config;
use plimsoll_config::{self as config, limits};
use tokio::signal::unix::{SignalKind, signal};

use super::{CliError, CliExitCode, GlobalArgs};
use crate::log;
use crate::supervise::{Supervisor, SupervisorAdmin, SupervisorSignals};

/// Start balancers, agents and lotteries of this host, watch over them and start again those that fail
///
/// Which is in supervise.toml. They do not end with the Supervisor, if that is killed: started again it finds
/// them. SIGHUP reads the file again; SIGTERM and SIGINT stop the processes and then the Supervisor, a second
/// one stops all at once. The commands below talk to a Supervisor that runs.
#[derive(clap::Args, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: Option<SuperviseCommand>,

    /// What is to be run
    #[arg(short, long, value_name = "FILE", default_value = config::DEFAULT_SUPERVISE_FILE)]
    config: PathBuf,

    /// Only say what is wrong with the file; exit code 2 if anything is
    #[arg(long)]
    check: bool,

    /// Form of the log on standard error
    #[arg(long, value_enum, default_value_t = log::LogFormat::Text)]
    log: log::LogFormat,
}

/// What is wanted of a Supervisor that runs.
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
    // The sockets that are held are files.
    limits::raise();
    let own = &file.supervise.supervise;
    let (mut doors, rules) = control_config(own.control_section(), own.audit.as_ref())?;
    (doors.listen, doors.control) = (own.listen.0, Some(file.control()));
    doors.names = own.names.iter().map(config::Domain::host).collect();
    let audit = doors.audit.clone();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| CliError::failed(format_args!("cannot start: {error}")))?;
    runtime.block_on(async {
        // The signals are taken before anything is started, so that none finds the process unprepared.
        let kinds = [SignalKind::hangup(), SignalKind::terminate(), SignalKind::interrupt()];
        let [Ok(hangup), Ok(terminate), Ok(interrupt)] = kinds.map(signal) else {
            return Err(CliError::failed("cannot take signals"));
        };
        let (desk, asked) = SupervisorAdmin::new();
        let control = file.control();
        let json = args.log == log::LogFormat::Json;
        let supervisor =
            Supervisor::new(args.config.clone(), file, json, (desk.clone(), asked), rules, audit);
        let supervisor = supervisor.map_err(|error| {
            CliError::failed(format_args!(
                "cannot start: {error}; is log_dir a folder that this user may write in?"
            ))
        })?;
        // The socket comes before any process: of two Supervisors only one has it.
        let admin = plimsoll_admin::start_supervisor(doors, desk).map_err(|error| {
            let error = error.to_string().replace("[admin", "[supervise");
            CliError::failed(error.replace("plimsoll stop", "plimsoll supervise shutdown"))
        })?;
        tracing::info!("listening control unix:{}", control.display());
        if let Some(address) = admin.addr() {
            tracing::info!("listening status {address}: processes, metrics");
        }
        if let Some(address) = admin.secured() {
            tracing::info!("listening control tls://{address}: for those whom [supervise.access] knows");
        }
        let done = supervisor.run(SupervisorSignals { hangup, terminate, interrupt }).await;
        // The admin plane ends last, so that the stop can be watched.
        drop(admin);
        done.map(|()| ExitCode::SUCCESS)
    })
}
