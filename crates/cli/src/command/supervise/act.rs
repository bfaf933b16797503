//! The commands for a running Supervisor.

use std::process::ExitCode;
use std::thread::sleep;
use std::time::Duration;

use clap::ValueEnum;
use plimsoll_admin::ProcessStatus;
use plimsoll_brain::ward::Phase;
use serde_json::Value;

use super::super::reload::reloaded;
use super::super::{Failure, Globals};
use crate::config::Name;
use crate::control::text::plain;
use crate::control::{self, Peer, Place, Said};

/// The time between two looks while waiting.
const LOOK: Duration = Duration::from_millis(100);

/// Start a process, unless it runs
#[derive(clap::Args, Debug)]
pub(super) struct Start {
    /// Its name in the file
    name: Name,

    #[command(flatten)]
    at: Place,
}

/// Stop a process, for good: only a start brings it back
#[derive(clap::Args, Debug)]
pub(super) struct Stop {
    /// Its name in the file
    name: Name,

    /// Return when it has ended
    #[arg(long)]
    wait: bool,

    #[command(flatten)]
    at: Place,
}

/// Stop a process and start it again
#[derive(clap::Args, Debug)]
pub(super) struct Restart {
    /// Its name in the file
    name: Name,

    /// Return when another runs
    #[arg(long)]
    wait: bool,

    #[command(flatten)]
    at: Place,
}

/// Have a process read its configuration again; without a name, the Supervisor its own file
#[derive(clap::Args, Debug)]
pub(super) struct Reload {
    /// Its name in the file
    name: Option<Name>,

    #[command(flatten)]
    at: Place,
}

/// End the Supervisor
#[derive(clap::Args, Debug)]
pub(super) struct Shutdown {
    /// What becomes of its processes
    #[arg(long, value_enum, default_value_t = Children::Stop)]
    children: Children,

    /// Return when it has ended
    #[arg(long)]
    wait: bool,

    #[command(flatten)]
    at: Place,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Children {
    /// They are stopped first
    Stop,
    /// They go on; a Supervisor that is started later finds them
    Leave,
}

pub(super) fn start(args: &Start, globals: &Globals) -> Result<ExitCode, Failure> {
    control::each(&args.at, globals, |at, _| {
        let said = Peer::supervisor(at).post(&path(&args.name, "start"), &Value::Null)?;
        let text = format!("{}: {}\n", args.name, told(&said));
        Ok(Said::done(said, text))
    })
}

pub(super) fn stop(args: &Stop, globals: &Globals) -> Result<ExitCode, Failure> {
    control::each(&args.at, globals, |at, _| {
        let supervisor = Peer::supervisor(at);
        let mut said = supervisor.post(&path(&args.name, "stop"), &Value::Null)?;
        if args.wait {
            said = wait(&supervisor, &args.name, |process| process.pid.is_none())?;
        }
        let text = format!("{}: {}\n", args.name, told(&said));
        Ok(Said::done(said, text))
    })
}

pub(super) fn restart(args: &Restart, globals: &Globals) -> Result<ExitCode, Failure> {
    control::each(&args.at, globals, |at, _| {
        let supervisor = Peer::supervisor(at);
        let before: ProcessStatus = supervisor.get(&format!("/v1/processes/{}", args.name))?;
        let mut said = supervisor.post(&path(&args.name, "restart"), &Value::Null)?;
        if args.wait {
            said = wait(&supervisor, &args.name, |now| now.pid.is_some() && now.pid != before.pid)?;
        }
        let text = format!("{}: {}\n", args.name, told(&said));
        Ok(Said::done(said, text))
    })
}

pub(super) fn reload(args: &Reload, globals: &Globals) -> Result<ExitCode, Failure> {
    control::each(&args.at, globals, |at, _| {
        let supervisor = Peer::supervisor(at);
        if let Some(name) = &args.name {
            let said = supervisor.post(&path(name, "reload"), &Value::Null)?;
            return Ok(Said::done(said, format!("{name}: told to read its configuration again\n")));
        }
        Ok(reloaded(supervisor.post("/v1/reload", &Value::Null)?))
    })
}

pub(super) fn shut_down(args: &Shutdown, globals: &Globals) -> Result<ExitCode, Failure> {
    control::each(&args.at, globals, |at, _| {
        let supervisor = Peer::supervisor(at);
        let word = if args.children == Children::Stop { "stop" } else { "leave" };
        let said = supervisor.post(&format!("/v1/shutdown?children={word}"), &Value::Null)?;
        while args.wait && !supervisor.gone() {
            sleep(LOOK);
        }
        let done = if args.wait { "ended" } else { "ending" };
        let and = if args.children == Children::Stop { "" } else { "; its processes go on" };
        Ok(Said::done(said, format!("{done}{and}\n")))
    })
}

/// Waits until a process has reached the wanted state; returns its status then. The time is bounded by its
/// `stop_timeout`, or by its failures.
fn wait(
    supervisor: &Peer<'_>,
    name: &Name,
    enough: impl Fn(&ProcessStatus) -> bool,
) -> Result<Value, Failure> {
    loop {
        let process: ProcessStatus = supervisor.get(&format!("/v1/processes/{name}"))?;
        if enough(&process) {
            return Ok(serde_json::to_value(process).unwrap_or_default());
        }
        if process.state == Phase::Failed {
            return Err(Failure::failed(format_args!("{name}: {}", plain(&process.why))));
        }
        sleep(LOOK);
    }
}

fn path(name: &Name, act: &str) -> String {
    format!("/v1/processes/{name}/{act}")
}

/// Returns the result in words.
fn told(said: &Value) -> String {
    let state = said["state"].as_str().unwrap_or("told").replace('_', " ");
    match said["pid"].as_u64() {
        Some(pid) => format!("{}, pid {pid}", plain(&state)),
        None => plain(&state),
    }
}
