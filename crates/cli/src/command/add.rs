//! `plimsoll add`: take a member into a group while the balancer runs.

use std::process::ExitCode;

use plimsoll_config::MemberAddress;
use serde_json::json;

use super::{CliError, CliExitCode, GlobalArgs};
use crate::control::format::sanitize;
use crate::control::{self, BalancerSelector, CommandOutput};

/// Add a registered member to a group, until it is removed
///
/// The group must allow registered members: [[group.discover]] with registered = true. With a store, the
/// member outlives the balancer.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: AddCommand,
}

#[derive(Debug, clap::Subcommand)]
enum AddCommand {
    /// Add a member to a group
    Member {
        #[command(flatten)]
        target: GroupMemberArgs,

        /// Capacity relative to the other members
        #[arg(long, value_name = "NUMBER", default_value_t = 1.0, value_parser = capacity,
              allow_negative_numbers = true)]
        capacity: f64,

        /// Maximum number of concurrent requests, connections or flows [default: the group's]
        #[arg(long, value_name = "NUMBER")]
        max_connections: Option<u32>,
    },
}

/// A member of a group of a running balancer.
#[derive(clap::Args, Debug)]
pub(super) struct GroupMemberArgs {
    /// Member address: HOST:PORT
    pub(super) member: String,

    /// Group of the member
    #[arg(short, long, value_name = "GROUP")]
    pub(super) group: String,

    #[command(flatten)]
    pub(super) at: BalancerSelector,
}

impl GroupMemberArgs {
    /// Returns the path of the member at control.
    ///
    /// # Errors
    /// Fails if the name of the group or the member is invalid.
    pub(super) fn path(&self) -> Result<String, CliError> {
        let usage_error = |message: String| CliError::new(CliExitCode::Usage, message);
        let is_name_byte = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        if self.group.is_empty() || !self.group.bytes().all(is_name_byte) {
            return Err(usage_error(format!("{} is not the name of a group", sanitize(&self.group))));
        }
        let member: MemberAddress = self.member.parse().map_err(|error| {
            usage_error(format!("{} is not a member: it {error}", sanitize(&self.member)))
        })?;
        Ok(format!("/v1/groups/{}/members/{member}", self.group))
    }
}

pub(super) fn run(args: &Args, globals: &GlobalArgs) -> Result<ExitCode, CliError> {
    let AddCommand::Member { target, capacity, max_connections } = &args.what;
    let body = json!({"capacity": capacity, "max_connections": max_connections});
    let path = target.path()?;
    control::run_each(&target.at, globals, |balancer, _| {
        let response = balancer.put(&path, &body)?;
        let name = sanitize(response["member"].as_str().unwrap_or_default());
        Ok(CommandOutput::from_action(
            response,
            format!("{name}: a member of group {}\n", sanitize(&target.group)),
        ))
    })
}

/// Parses the capacity of a member relative to others, within the balancer's bounds.
pub(super) fn capacity(text: &str) -> Result<f64, String> {
    let capacity = text.parse::<f64>().map_err(|_| "expected a number".to_owned())?;
    if (0.001..=1e6).contains(&capacity) { Ok(capacity) } else { Err("expected 0.001 to 1000000".to_owned()) }
}
