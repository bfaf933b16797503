//! The commands for running daemons.

use std::process::ExitCode;
use std::str::FromStr;
use std::thread::sleep;
use std::time::Duration;

use serde_json::{Value, json};

use super::super::reload::reload_changes;
use super::super::{CliError, GlobalArgs};
use crate::control::format::sanitize;
use crate::control::{self, CommandOutput, DaemonSelector, PeerClient};

/// The time between two looks while waiting.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Refer clients to the servers of other daemons; work in flight at this server continues
#[derive(clap::Args, Debug)]
pub(super) struct LotteryDrainArgs {
    #[command(flatten)]
    at: DaemonSelector,
}

/// Take part again after a drain, with slow start
#[derive(clap::Args, Debug)]
pub(super) struct LotteryUndrainArgs {
    #[command(flatten)]
    at: DaemonSelector,
}

/// Stop referring clients to one service of a daemon's server, or to all of them, as `drain` does
#[derive(clap::Args, Debug)]
pub(super) struct LotteryDisableArgs {
    #[command(flatten)]
    switch: ServiceSwitchArgs,
}

/// Resume referring clients to a disabled service, or to all services, with slow start
#[derive(clap::Args, Debug)]
pub(super) struct LotteryEnableArgs {
    #[command(flatten)]
    switch: ServiceSwitchArgs,
}

#[derive(clap::Args, Debug)]
struct ServiceSwitchArgs {
    /// Name of the service [default: all services of the daemon]
    service: Option<String>,

    #[command(flatten)]
    at: DaemonSelector,
}

/// Change a setting of running daemons, until the next reload: ttl=1s, slow_start=30s, rate=1000,
/// web.capacity=50
#[derive(clap::Args, Debug)]
pub(super) struct LotterySetArgs {
    /// Setting and value: ttl=TIME, slow_start=TIME, rate=NUMBER or SERVICE.capacity=NUMBER
    #[arg(value_name = "[SERVICE.]KEY=VALUE")]
    setting: SettingChange,

    #[command(flatten)]
    at: DaemonSelector,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct SettingChange {
    service: Option<String>,
    key: String,
    value: String,
}

impl FromStr for SettingChange {
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

/// Reload the file and the keys, and print the differences
#[derive(clap::Args, Debug)]
pub(super) struct LotteryReloadArgs {
    #[command(flatten)]
    at: DaemonSelector,
}

/// Refer clients to other servers, notify the other daemons, and exit
#[derive(clap::Args, Debug)]
pub(super) struct LotteryStopArgs {
    /// Wait until the daemon has exited
    #[arg(long)]
    wait: bool,

    #[command(flatten)]
    at: DaemonSelector,
}

pub(super) fn drain(args: &LotteryDrainArgs, globals: &GlobalArgs) -> Result<ExitCode, CliError> {
    control::run_each(&args.at, globals, |endpoint, _| {
        let response = PeerClient::daemon(endpoint).post("/v1/drain", &Value::Null)?;
        Ok(CommandOutput::from_action(response, "draining: clients are sent to others\n".into()))
    })
}

pub(super) fn undrain(args: &LotteryUndrainArgs, globals: &GlobalArgs) -> Result<ExitCode, CliError> {
    control::run_each(&args.at, globals, |endpoint, _| {
        let response = PeerClient::daemon(endpoint).post("/v1/undrain", &Value::Null)?;
        Ok(CommandOutput::from_action(response, "taking part again\n".into()))
    })
}

pub(super) fn disable(args: &LotteryDisableArgs, globals: &GlobalArgs) -> Result<ExitCode, CliError> {
    args.switch.send("disable", globals)
}

pub(super) fn enable(args: &LotteryEnableArgs, globals: &GlobalArgs) -> Result<ExitCode, CliError> {
    args.switch.send("enable", globals)
}

impl ServiceSwitchArgs {
    fn send(&self, action: &str, globals: &GlobalArgs) -> Result<ExitCode, CliError> {
        let body = self.service.as_ref().map_or(Value::Null, |service| json!({"balancing": service}));
        control::run_each(&self.at, globals, |endpoint, _| {
            let response = PeerClient::daemon(endpoint).post(&format!("/v1/{action}"), &body)?;
            let lines = format_changes(&response);
            Ok(CommandOutput::from_action(response, lines))
        })
    }
}

pub(super) fn set(args: &LotterySetArgs, globals: &GlobalArgs) -> Result<ExitCode, CliError> {
    let SettingChange { service, key, value } = &args.setting;
    let body = json!({"group": service, "key": key, "value": value});
    control::run_each(&args.at, globals, |endpoint, _| {
        let response = PeerClient::daemon(endpoint).post("/v1/set", &body)?;
        let lines = format_changes(&response);
        Ok(CommandOutput::from_action(response, format!("{lines}until the next reload\n")))
    })
}

/// Returns the changes, a line each.
fn format_changes(response: &Value) -> String {
    let changes = response["changes"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let lines: String = changes.map(|change| format!("{}\n", sanitize(change))).collect();
    if lines.is_empty() { "it was so already\n".to_owned() } else { lines }
}

pub(super) fn reload(args: &LotteryReloadArgs, globals: &GlobalArgs) -> Result<ExitCode, CliError> {
    control::run_each(&args.at, globals, |endpoint, _| {
        Ok(reload_changes(PeerClient::daemon(endpoint).post("/v1/reload", &Value::Null)?))
    })
}

pub(super) fn stop(args: &LotteryStopArgs, globals: &GlobalArgs) -> Result<ExitCode, CliError> {
    control::run_each(&args.at, globals, |endpoint, _| {
        let daemon = PeerClient::daemon(endpoint);
        let response = daemon.post("/v1/stop", &Value::Null)?;
        while args.wait && !daemon.is_gone() {
            sleep(POLL_INTERVAL);
        }
        Ok(CommandOutput::from_action(response, if args.wait { "stopped\n" } else { "stopping\n" }.into()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_taken_apart() {
        let parse = |text: &str| {
            text.parse::<SettingChange>().map(|change| (change.service, change.key, change.value))
        };
        let expected = |service: Option<&str>, key: &str, value: &str| {
            Ok((service.map(str::to_owned), key.to_owned(), value.to_owned()))
        };
        assert_eq!(parse("ttl=1s"), expected(None, "ttl", "1s"));
        assert_eq!(parse("web.v2.capacity = 50"), expected(Some("web.v2"), "capacity", "50"));
        assert!(parse("ttl").unwrap_err().contains("`=`"));
    }
}
