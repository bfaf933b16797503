//! `plimsoll disable`: take a member, a listener or a group's balancing out of use.

use std::process::ExitCode;

use clap::Subcommand;
use serde_json::{Value, json};

use super::{CliError, GlobalArgs};
use crate::control::format::sanitize;
use crate::control::{self, BalancerSelector, CommandOutput};

/// Take a member, a listener or the balancing of a group out of use
///
/// Takes effect at once and is recorded as an event. It lasts until `enable` or the end of the process; the
/// next reload also restores the balancing of a group.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: SwitchTarget,
}

/// The targets of `disable` and `enable`.
#[derive(Debug, Subcommand)]
pub(super) enum SwitchTarget {
    /// A member: while disabled it gets no new requests and keeps its current ones, without the advance
    /// notice of `drain`
    Member {
        /// Member address as configured: HOST:PORT
        member: String,

        /// Group of the member, if it is in several groups
        #[arg(short, long, value_name = "GROUP")]
        group: Option<String>,

        #[command(flatten)]
        at: BalancerSelector,
    },
    /// A listener: while disabled it refuses connections; open ones end after the current request (http), or
    /// by themselves
    Listener {
        /// Listener address, as configured or as `plimsoll status` shows it; udp:ADDRESS distinguishes a UDP
        /// listener from another at the same address
        #[arg(value_name = "[PROTOCOL:]ADDRESS")]
        address: String,

        #[command(flatten)]
        at: BalancerSelector,
    },
    /// The balancing of a group: while disabled, its members take equal turns (round robin), regardless of
    /// strategy and load
    Balancing {
        /// Name of the group
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
    pub(super) fn switch(&self, action: &str, globals: &GlobalArgs) -> Result<ExitCode, CliError> {
        let (body, selector) = match self {
            Self::Member { member, group, at } => (json!({"member": member, "group": group}), at),
            Self::Listener { address, at } => (json!({"listener": address}), at),
            Self::Balancing { group, at } => (json!({"balancing": group}), at),
        };
        control::run_each(selector, globals, |balancer, _| {
            let response = balancer.post(&format!("/v1/{action}"), &body)?;
            let changes = response["changes"].as_array().into_iter().flatten().filter_map(Value::as_str);
            let lines: String = changes.map(|change| format!("{}\n", sanitize(change))).collect();
            let lines = if lines.is_empty() { "it was so already\n".to_owned() } else { lines };
            Ok(CommandOutput::from_action(response, lines))
        })
    }
}
