//! The commands for running daemons.

use std::process::ExitCode;
use std::str::FromStr;
use std::thread::sleep;
use std::time::Duration;

use serde_json::{Value, json};

use super::super::reload::reloaded;
use super::super::{Failure, Globals};
use crate::control::text::plain;
use crate::control::{self, DaemonPlace, Peer, Said};

/// The time between two looks while waiting.
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

/// Send no more clients to a service of a daemon's server, or to all of them, which is to drain it
#[derive(clap::Args, Debug)]
pub(super) struct Disable {
    #[command(flatten)]
    switch: Switch,
}

/// Send clients to a service that was disabled again, slowly, or to all of them
#[derive(clap::Args, Debug)]
pub(super) struct Enable {
    #[command(flatten)]
    switch: Switch,
}

#[derive(clap::Args, Debug)]
struct Switch {
    /// The service; all of the daemon's if it is left out
    service: Option<String>,

    #[command(flatten)]
    at: DaemonPlace,
}

/// Change a setting of running daemons, until they read their files again: ttl=1s, slow_start=30s, rate=1000, web.capacity=50
#[derive(clap::Args, Debug)]
pub(super) struct Set {
    /// ttl=TIME, slow_start=TIME, rate=NUMBER or SERVICE.capacity=NUMBER
    #[arg(value_name = "[SERVICE.]KEY=VALUE")]
    setting: Wish,

    #[command(flatten)]
    at: DaemonPlace,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Wish {
    service: Option<String>,
    key: String,
    value: String,
}

impl FromStr for Wish {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, value) = text.split_once('=').ok_or("there is no `=`: give KEY=VALUE")?;
        // Names of services may have dots, keys have none.
        let (service, key) = match name.trim().rsplit_once('.') {
            Some((service, key)) => (Some(service.to_owned()), key),
            None => (None, name.trim()),
        };
        Ok(Self { service, key: key.into(), value: value.trim().into() })
    }
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

pub(super) fn disable(args: &Disable, globals: &Globals) -> Result<ExitCode, Failure> {
    args.switch.to("disable", globals)
}

pub(super) fn enable(args: &Enable, globals: &Globals) -> Result<ExitCode, Failure> {
    args.switch.to("enable", globals)
}

impl Switch {
    fn to(&self, act: &str, globals: &Globals) -> Result<ExitCode, Failure> {
        let body = self.service.as_ref().map_or(Value::Null, |service| json!({"balancing": service}));
        control::each(&self.at, globals, |at, _| {
            let said = Peer::daemon(at).post(&format!("/v1/{act}"), &body)?;
            let lines = changes(&said);
            Ok(Said::done(said, lines))
        })
    }
}

pub(super) fn set(args: &Set, globals: &Globals) -> Result<ExitCode, Failure> {
    let Wish { service, key, value } = &args.setting;
    let body = json!({"group": service, "key": key, "value": value});
    control::each(&args.at, globals, |at, _| {
        let said = Peer::daemon(at).post("/v1/set", &body)?;
        let lines = changes(&said);
        Ok(Said::done(said, format!("{lines}until the next reload\n")))
    })
}

/// Returns the changes, a line each.
fn changes(said: &Value) -> String {
    let changes = said["changes"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let lines: String = changes.map(|change| format!("{}\n", plain(change))).collect();
    if lines.is_empty() { "it was so already\n".to_owned() } else { lines }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_taken_apart() {
        let wish = |text: &str| text.parse::<Wish>().map(|wish| (wish.service, wish.key, wish.value));
        let parts = |service: Option<&str>, key: &str, value: &str| {
            Ok((service.map(str::to_owned), key.to_owned(), value.to_owned()))
        };
        assert_eq!(wish("ttl=1s"), parts(None, "ttl", "1s"));
        assert_eq!(wish("web.v2.capacity = 50"), parts(Some("web.v2"), "capacity", "50"));
        assert!(wish("ttl").unwrap_err().contains("`=`"));
    }
}
