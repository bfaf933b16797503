//! The commands that look at a running balancer, or act on it. Each is one line in [`ControlCommand`] and one
//! in its `run`.

use std::process::ExitCode;

use clap::Subcommand;

use super::{
    CliError, GlobalArgs, add, bindings, check, disable, drain, enable, events, explain, fleet, leases,
    members, reload, remove, scale, set, status, stop, top, undrain, upgrade,
};

/// A command to a running balancer.
#[derive(Debug, Subcommand)]
pub(crate) enum ControlCommand {
    Status(status::Args),
    Members(members::Args),
    Bindings(bindings::Args),
    Leases(leases::Args),
    Events(events::Args),
    Top(top::Args),
    Check(check::Args),
    Explain(explain::Args),
    Fleet(fleet::Args),
    Drain(drain::Args),
    Undrain(undrain::Args),
    Disable(disable::Args),
    Enable(enable::Args),
    Scale(scale::Args),
    Set(set::Args),
    Add(add::Args),
    Remove(remove::Args),
    Reload(reload::Args),
    Upgrade(upgrade::Args),
    Stop(stop::Args),
}

impl ControlCommand {
    /// Runs the command.
    pub(super) fn run(&self, globals: &GlobalArgs) -> Result<ExitCode, CliError> {
        match self {
            Self::Status(args) => status::run(args, globals),
            Self::Members(args) => members::run(args, globals),
            Self::Bindings(args) => bindings::run(args, globals),
            Self::Leases(args) => leases::run(args, globals),
            Self::Events(args) => events::run(args, globals),
            Self::Top(args) => top::run(args, globals),
            Self::Check(args) => check::run(args, globals),
            Self::Explain(args) => explain::run(args, globals),
            Self::Fleet(args) => fleet::run(args, globals),
            Self::Drain(args) => drain::run(args, globals),
            Self::Undrain(args) => undrain::run(args, globals),
            Self::Disable(args) => disable::run(args, globals),
            Self::Enable(args) => enable::run(args, globals),
            Self::Scale(args) => scale::run(args, globals),
            Self::Set(args) => set::run(args, globals),
            Self::Add(args) => add::run(args, globals),
            Self::Remove(args) => remove::run(args, globals),
            Self::Reload(args) => reload::run(args, globals),
            Self::Upgrade(args) => upgrade::run(args, globals),
            Self::Stop(args) => stop::run(args, globals),
        }
    }
}
