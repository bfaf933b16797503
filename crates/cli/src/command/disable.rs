//! `plimsoll disable`: take a member, a listener or a group's balancing out of use.

use std::process::ExitCode;

use clap::Subcommand;
use serde_json::{Value, json};

use super::{CliError, GlobalArgs};
use crate::control::format::sanitize;
use crate::control::{self, BalancerSelector, CommandOutput};

/// Take a member, a listener or the balancing of a group out of use
///
/// It takes effect at once, and each is an event. What is out of use stays so until it is enabled or the
/// process ends; a group's balancing comes back with the next reload, too.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: SwitchTarget,
}

/// What can be taken out of use and put back.
#[derive(Debug, Subcommand)]
pub(super) enum SwitchTarget {
    /// A member: it gets nothing new and keeps what it has; nobody is told before, as they are with `drain`
    Member {
        /// The member as configured: HOST:PORT
        member: String,

        /// Its group, if more than one has it
        #[arg(short, long, value_name = "GROUP")]
        group: Option<String>,

        #[command(flatten)]
        at: BalancerSelector,
    },
    /// A listener: it refuses connections, and those that are there end after the request under way (http),
    /// or by themselves
    Listener {
        /// Its address, as configured or as `plimsoll status` shows it; udp:ADDRESS tells it from another
        #[arg(value_name = "[PROTOCOL:]ADDRESS")]
        address: String,

        #[command(flatten)]
        at: BalancerSelector,
    },
    /// The balancing of a group: its members take equal turns, whatever its strategy and their loads
    Balancing {
        /// The group
        group: String,

        #[command(flatten)]
        at: BalancerSelector,
    },
}

pub(super) fn run(args: &Args, globals: &GlobalArgs) -> Result<ExitCode, CliError> {
    args.what.switch("disable", globals)
}

impl SwitchTarget {
    /// Switches; `act` is `disable` or `enable`.
    pub(super) fn switch(&self, act: &str, globals: &GlobalArgs) -> Result<ExitCode, CliError> {
        let (body, at) = match self {
            Self::Member { member, group, at } => (json!({"member": member, "group": group}), at),
            Self::Listener { address, at } => (json!({"listener": address}), at),
            Self::Balancing { group, at } => (json!({"balancing": group}), at),
        };
        control::run_each(at, globals, |balancer, _| {
            let said = balancer.post(&format!("/v1/{act}"), &body)?;
            let changes = said["changes"].as_array().into_iter().flatten().filter_map(Value::as_str);
            let lines: String = changes.map(|change| format!("{}\n", sanitize(change))).collect();
            let lines = if lines.is_empty() { "it was so already\n".to_owned() } else { lines };
            Ok(CommandOutput::from_action(said, lines))
        })
    }
}
