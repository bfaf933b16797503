//! `plimsoll ctl`: the commands that look at a running balancer, or act on it, once more under one word. Each
//! is one line in [`ControlCommand`] and one in its `run`, and thereby exists in both forms: `plimsoll drain`
//! and `plimsoll ctl drain` are the same.

use std::process::ExitCode;

use clap::Subcommand;

use super::{
    CliError, GlobalArgs, add, bindings, check, disable, drain, enable, events, explain, fleet, leases,
    members, reload, remove, scale, set, status, stop, top, undrain, upgrade,
};

/// Look at a balancer that runs, or tell it something: the same commands as without this word
///
/// `plimsoll ctl status` is `plimsoll status`, and so on, with the same options and the same exit codes.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(super) verb: ControlCommand,
}

/// What is done with a balancer that runs.
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

#[cfg(test)]
mod tests {
    use clap::{CommandFactory as _, Parser as _};

    use super::super::{Cli, CliCommand};
    use super::ControlCommand;

    #[test]
    fn all_that_is_done_with_a_balancer_is_there_both_ways() {
        let tree = Cli::command();
        let ctl = tree.find_subcommand("ctl").unwrap();
        let options = |command: &clap::Command| -> Vec<String> {
            command.get_arguments().map(|argument| argument.get_id().to_string()).collect()
        };
        let mut seen = 0;
        for verb in ctl.get_subcommands() {
            let flat = tree.find_subcommand(verb.get_name()).unwrap();
            assert_eq!(options(verb), options(flat), "{}", verb.get_name());
            assert_eq!(verb.get_about().map(ToString::to_string), flat.get_about().map(ToString::to_string));
            seen += 1;
        }
        assert_eq!(seen, 20);
        let words = ["plimsoll", "ctl", "set", "group", "web.strategy=round_robin"];
        let CliCommand::Ctl(args) = Cli::try_parse_from(words).unwrap().command else { panic!("it is ctl") };
        assert!(matches!(args.verb, ControlCommand::Set(_)));
        let CliCommand::Verb(ControlCommand::Drain(_)) =
            Cli::try_parse_from(["plimsoll", "drain", "a:1"]).unwrap().command
        else {
            panic!("it is a verb")
        };
    }
}
