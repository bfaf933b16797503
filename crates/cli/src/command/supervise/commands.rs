//! The commands for a running Supervisor.

use std::process::ExitCode;
use std::thread::sleep;
use std::time::Duration;

use clap::ValueEnum;
use plimsoll_admin::ProcessStatus;
use plimsoll_brain::supervision::ProcessPhase;
use plimsoll_config::ConfigName;
use serde_json::Value;

use super::super::reload::reload_changes;
use super::super::{CliError, GlobalArgs};
use crate::control::format::sanitize;
use crate::control::{self, CommandOutput, PeerClient, SupervisorSelector};

/// The time between two looks while waiting.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Start a process, unless it is running
#[derive(clap::Args, Debug)]
pub(super) struct ProcessStartArgs {
    /// Name of the process in the file
    name: ConfigName,

    #[command(flatten)]
    at: SupervisorSelector,
}

/// Stop a process permanently: only `start` runs it again
#[derive(clap::Args, Debug)]
pub(super) struct ProcessStopArgs {
    /// Name of the process in the file
    name: ConfigName,

    /// Wait until it has exited
    #[arg(long)]
    wait: bool,

    #[command(flatten)]
    at: SupervisorSelector,
}

/// Restart a process
#[derive(clap::Args, Debug)]
pub(super) struct ProcessRestartArgs {
    /// Name of the process in the file
    name: ConfigName,

    /// Wait until the new process runs
    #[arg(long)]
    wait: bool,

    #[command(flatten)]
    at: SupervisorSelector,
}

/// Reload the configuration of a process; without a name, the Supervisor's own file
#[derive(clap::Args, Debug)]
pub(super) struct ProcessReloadArgs {
    /// Name of the process in the file
    name: Option<ConfigName>,

    #[command(flatten)]
    at: SupervisorSelector,
}

/// Shut down the Supervisor
#[derive(clap::Args, Debug)]
pub(super) struct SupervisorShutdownArgs {
    /// Treatment of its processes
    #[arg(long, value_enum, default_value_t = ChildrenPolicy::Stop)]
    children: ChildrenPolicy,

    /// Wait until it has exited
    #[arg(long)]
    wait: bool,

    #[command(flatten)]
    at: SupervisorSelector,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ChildrenPolicy {
    /// Stop them first
    Stop,
    /// Keep them running; a Supervisor that is started later finds them
    Leave,
}

pub(super) fn start(args: &ProcessStartArgs, globals: &GlobalArgs) -> Result<ExitCode, CliError> {
    control::run_each(&args.at, globals, |endpoint, _| {
        let response =
            PeerClient::supervisor(endpoint).post(&process_path(&args.name, "start"), &Value::Null)?;
        let text = format!("{}: {}\n", args.name, describe_result(&response));
        Ok(CommandOutput::from_action(response, text))
    })
}

pub(super) fn stop(args: &ProcessStopArgs, globals: &GlobalArgs) -> Result<ExitCode, CliError> {
    control::run_each(&args.at, globals, |endpoint, _| {
        let supervisor = PeerClient::supervisor(endpoint);
        let mut response = supervisor.post(&process_path(&args.name, "stop"), &Value::Null)?;
        if args.wait {
            response = wait_until(&supervisor, &args.name, |process| process.pid.is_none())?;
        }
        let text = format!("{}: {}\n", args.name, describe_result(&response));
        Ok(CommandOutput::from_action(response, text))
    })
}

pub(super) fn restart(args: &ProcessRestartArgs, globals: &GlobalArgs) -> Result<ExitCode, CliError> {
    control::run_each(&args.at, globals, |endpoint, _| {
        let supervisor = PeerClient::supervisor(endpoint);
        let previous: ProcessStatus = supervisor.get(&format!("/v1/processes/{}", args.name))?;
        let mut response = supervisor.post(&process_path(&args.name, "restart"), &Value::Null)?;
        if args.wait {
            response = wait_until(&supervisor, &args.name, |current| {
                current.pid.is_some() && current.pid != previous.pid
            })?;
        }
        let text = format!("{}: {}\n", args.name, describe_result(&response));
        Ok(CommandOutput::from_action(response, text))
    })
}

pub(super) fn reload(args: &ProcessReloadArgs, globals: &GlobalArgs) -> Result<ExitCode, CliError> {
    control::run_each(&args.at, globals, |endpoint, _| {
        let supervisor = PeerClient::supervisor(endpoint);
        if let Some(name) = &args.name {
            let response = supervisor.post(&process_path(name, "reload"), &Value::Null)?;
            return Ok(CommandOutput::from_action(
                response,
                format!("{name}: told to read its configuration again\n"),
            ));
        }
        Ok(reload_changes(supervisor.post("/v1/reload", &Value::Null)?))
    })
}

pub(super) fn shut_down(args: &SupervisorShutdownArgs, globals: &GlobalArgs) -> Result<ExitCode, CliError> {
    control::run_each(&args.at, globals, |endpoint, _| {
        let supervisor = PeerClient::supervisor(endpoint);
        let policy = if args.children == ChildrenPolicy::Stop { "stop" } else { "leave" };
        let response = supervisor.post(&format!("/v1/shutdown?children={policy}"), &Value::Null)?;
        while args.wait && !supervisor.is_gone() {
            sleep(POLL_INTERVAL);
        }
        let progress = if args.wait { "ended" } else { "ending" };
        let note = if args.children == ChildrenPolicy::Stop { "" } else { "; its processes go on" };
        Ok(CommandOutput::from_action(response, format!("{progress}{note}\n")))
    })
}

/// Waits until a process has reached the wanted state; returns its status then. The time is bounded by its
/// `stop_timeout`, or by its failures.
fn wait_until(
    supervisor: &PeerClient<'_>,
    name: &ConfigName,
    is_done: impl Fn(&ProcessStatus) -> bool,
) -> Result<Value, CliError> {
    loop {
        let process: ProcessStatus = supervisor.get(&format!("/v1/processes/{name}"))?;
        if is_done(&process) {
            return Ok(serde_json::to_value(process).unwrap_or_default());
        }
        if process.state == ProcessPhase::Failed {
            return Err(CliError::failed(format_args!("{name}: {}", sanitize(&process.why))));
        }
        sleep(POLL_INTERVAL);
    }
}

fn process_path(name: &ConfigName, action: &str) -> String {
    format!("/v1/processes/{name}/{action}")
}

/// Returns the result in words.
fn describe_result(response: &Value) -> String {
    let state = response["state"].as_str().unwrap_or("told").replace('_', " ");
    match response["pid"].as_u64() {
        Some(pid) => format!("{}, pid {pid}", sanitize(&state)),
        None => sanitize(&state),
    }
}
