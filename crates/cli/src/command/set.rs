//! `plimsoll set`: change a setting while the balancer runs.

use std::process::ExitCode;
use std::str::FromStr;

use serde_json::{Value, json};

use super::{CliError, GlobalArgs};
use crate::control::format::sanitize;
use crate::control::{self, BalancerSelector, CommandOutput};

/// Change a setting of a running balancer, until the next reload
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: SetCommand,
}

#[derive(Debug, clap::Subcommand)]
enum SetCommand {
    /// Change a setting of a group: web.strategy=least_connections
    ///
    /// The value is written as in the configuration: web.strategy='{ least_request = { choices = 3 } }'. No
    /// connection and no binding is lost. Settings of a scaler: web.scaler.min=3, web.scaler.max=9,
    /// web.scaler.pause=true. The file is not changed: the next reload restores its values.
    Group {
        /// Setting and value: GROUP.strategy=VALUE, GROUP.scaler.min=N, GROUP.scaler.max=N,
        /// GROUP.scaler.pause=true
        #[arg(value_name = "GROUP.KEY=VALUE")]
        setting: GroupSetting,

        #[command(flatten)]
        at: BalancerSelector,
    },
}

/// The settings of a scaler.
const SCALER_KEYS: [&str; 3] = ["min", "max", "pause"];

#[derive(Clone, Debug, PartialEq, Eq)]
struct GroupSetting {
    group: String,
    key: String,
    value: String,
}

impl FromStr for GroupSetting {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, value) = text.split_once('=').ok_or("there is no `=`: give GROUP.KEY=VALUE")?;
        // Names of groups may have dots, keys have none.
        let (group, key) = name.trim().rsplit_once('.').ok_or("there is no `.`: give GROUP.KEY=VALUE")?;
        let (group, key) = match group.strip_suffix(".scaler") {
            Some(group) if SCALER_KEYS.contains(&key) => (group, format!("scaler.{key}")),
            _ => (group, key.to_owned()),
        };
        Ok(Self { group: group.into(), key, value: value.trim().into() })
    }
}

pub(super) fn run(args: &Args, globals: &GlobalArgs) -> Result<ExitCode, CliError> {
    let SetCommand::Group { setting, at } = &args.what;
    let body = json!({"group": setting.group, "key": setting.key, "value": setting.value});
    control::run_each(at, globals, |balancer, _| {
        let response = balancer.post("/v1/set", &body)?;
        let changes = response["changes"].as_array().into_iter().flatten().filter_map(Value::as_str);
        let lines: String = changes.map(|change| format!("{}\n", sanitize(change))).collect();
        Ok(CommandOutput::from_action(response, format!("{lines}until the next reload\n")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_taken_apart() {
        let parse = |text: &str| {
            text.parse::<GroupSetting>().map(|setting| (setting.group, setting.key, setting.value))
        };
        let expected = |group: &str, key: &str, value: &str| Ok((group.into(), key.into(), value.into()));
        assert_eq!(parse("web.strategy=random"), expected("web", "strategy", "random"));
        assert_eq!(parse("a.b.strategy = { x = 1 }"), expected("a.b", "strategy", "{ x = 1 }"));
        assert_eq!(parse("a.b.scaler.min=3"), expected("a.b", "scaler.min", "3"));
        assert_eq!(parse("web.scaler.strategy=random"), expected("web.scaler", "strategy", "random"));
        assert!(parse("web.strategy").unwrap_err().contains("`=`"));
        assert!(parse("strategy=random").unwrap_err().contains("`.`"));
    }
}
