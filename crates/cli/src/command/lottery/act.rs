//! What running daemons are told.

use std::process::ExitCode;
use std::thread::sleep;
use std::time::Duration;

use serde_json::Value;

use super::super::reload::reloaded;
use super::super::{Failure, Globals};
use crate::control::{self, DaemonPlace, Peer, Said};

/// Between two looks while waiting.
const LOOK: Duration = Duration::from_millis(100);

/// Send clients to other daemons' servers; what runs at the server runs on
#[derive(clap::Args, Debug)]
pub(super) struct Drain {
    #[command(flatten)]
    at: DaemonPlace,
}

/// Take part again, slowly
#[derive(clap::Args, Debug)]
pub(super) struct Undrain {
    #[command(flatten)]
    at: DaemonPlace,
}

/// Have the file and the keys read again and print what is different
#[derive(clap::Args, Debug)]
pub(super) struct Reload {
    #[command(flatten)]
    at: DaemonPlace,
}

/// Send clients to others, tell the other daemons, and end
#[derive(clap::Args, Debug)]
pub(super) struct Stop {
    /// Return when it has ended
    #[arg(long)]
    wait: bool,

    #[command(flatten)]
    at: DaemonPlace,
}

pub(super) fn drain(args: &Drain, globals: &Globals) -> Result<ExitCode, Failure> {
    control::each(&args.at, globals, |at, _| {
        let said = Peer::daemon(at).post("/v1/drain", &Value::Null)?;
        Ok(Said::done(said, "draining: clients are sent to others\n".into()))
    })
}

pub(super) fn undrain(args: &Undrain, globals: &Globals) -> Result<ExitCode, Failure> {
    control::each(&args.at, globals, |at, _| {
        let said = Peer::daemon(at).post("/v1/undrain", &Value::Null)?;
        Ok(Said::done(said, "taking part again\n".into()))
    })
}

pub(super) fn reload(args: &Reload, globals: &Globals) -> Result<ExitCode, Failure> {
    control::each(&args.at, globals, |at, _| Ok(reloaded(Peer::daemon(at).post("/v1/reload", &Value::Null)?)))
}

pub(super) fn stop(args: &Stop, globals: &Globals) -> Result<ExitCode, Failure> {
    control::each(&args.at, globals, |at, _| {
        let daemon = Peer::daemon(at);
        let said = daemon.post("/v1/stop", &Value::Null)?;
        while args.wait && !daemon.gone() {
            sleep(LOOK);
        }
        Ok(Said::done(said, if args.wait { "stopped\n" } else { "stopping\n" }.into()))
    })
}
