//! `plimsoll remove`: take a registered member out of its group.

use std::process::ExitCode;

use serde_json::Value;

use super::add::GroupMemberArgs;
use super::{CliError, GlobalArgs};
use crate::control::format::sanitize;
use crate::control::{self, CommandOutput};

/// Remove a registered member from its group; drain it first to let its work end
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: RemoveCommand,
}

#[derive(Debug, clap::Subcommand)]
enum RemoveCommand {
    /// Remove a member from a group
    Member {
        #[command(flatten)]
        target: GroupMemberArgs,
    },
}

pub(super) fn run(args: &Args, globals: &GlobalArgs) -> Result<ExitCode, CliError> {
    let RemoveCommand::Member { target } = &args.what;
    let path = target.path()?;
    control::run_each(&target.at, globals, |balancer, _| {
        let response = balancer.delete(&path, &Value::Null)?;
        let text = format!(
            "{}: no member of group {} any more\n",
            sanitize(&target.member),
            sanitize(&target.group)
        );
        Ok(CommandOutput::from_action(response, text))
    })
}
