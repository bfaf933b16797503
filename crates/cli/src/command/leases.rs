//! `plimsoll leases`: the leases of a group's members, and their end.

use std::net::IpAddr;
use std::process::ExitCode;

use plimsoll_admin::LeaseHolder;
use plimsoll_config::pluralize;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{CliError, CliExitCode, GlobalArgs};
use crate::control::format::{TableCell, TextStyle, sanitize, table};
use crate::control::{self, BalancerSelector, CommandOutput};

/// Show or end leases of members
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: LeasesCommand,
}

#[derive(Debug, clap::Subcommand)]
enum LeasesCommand {
    /// Show the number of leases per member and per client address
    Show {
        /// Name of the group
        group: String,

        #[command(flatten)]
        at: BalancerSelector,
    },
    /// End leases: their clients have to bind again at the next renewal
    End {
        /// Name of the group
        group: String,

        #[command(flatten)]
        whose: LeaseFilter,

        #[command(flatten)]
        at: BalancerSelector,
    },
}

#[derive(clap::Args, Debug)]
#[group(required = true, multiple = true)]
struct LeaseFilter {
    /// Leases of this member, as configured: HOST:PORT
    #[arg(long, value_name = "MEMBER")]
    member: Option<String>,

    /// Leases of clients at this address
    #[arg(long, value_name = "ADDRESS")]
    from: Option<IpAddr>,

    /// All leases of the group
    #[arg(long, conflicts_with_all = ["member", "from"])]
    all: bool,
}

pub(super) fn run(args: &Args, globals: &GlobalArgs) -> Result<ExitCode, CliError> {
    match &args.what {
        LeasesCommand::Show { group, at } => {
            let path = leases_path(group)?;
            control::run_each(at, globals, |balancer, _| {
                let json: Value = balancer.get(&path)?;
                let list = LeaseList::deserialize(&json).map_err(|error| {
                    CliError::failed(format_args!("the balancer is of another version: {error}"))
                })?;
                Ok(CommandOutput::from_view(json, render(&list, globals.stdout_has_color())))
            })
        }
        LeasesCommand::End { group, whose: filter, at } => {
            let path = leases_path(group)?;
            let body = json!({"member": filter.member, "from": filter.from});
            control::run_each(at, globals, |balancer, _| {
                let response = balancer.delete(&path, &body)?;
                let ended = response["ended"].as_u64().unwrap_or_default();
                let ended = pluralize(usize::try_from(ended).unwrap_or(usize::MAX), "lease");
                Ok(CommandOutput::from_action(response, format!("{group}: {ended} ended\n")))
            })
        }
    }
}

/// Returns the path of the leases of a group.
fn leases_path(group: &str) -> Result<String, CliError> {
    let is_name_byte = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    if group.is_empty() || !group.bytes().all(is_name_byte) {
        return Err(CliError::new(
            CliExitCode::Usage,
            format_args!("{} is not the name of a group", sanitize(group)),
        ));
    }
    Ok(format!("/v1/groups/{group}/leases"))
}

/// The balancer's list.
#[derive(Deserialize)]
struct LeaseList {
    lessees: Vec<LeaseHolder>,
}

fn render(list: &LeaseList, color: bool) -> String {
    let heading = |text: &str| TableCell::text(text).style(TextStyle::Strong);
    let number = |text: &str| TableCell::number(text).style(TextStyle::Strong);
    let mut rows = vec![vec![heading("MEMBER"), heading("FROM"), number("LEASES"), number("LEFT")]];
    for LeaseHolder { member, from, leases, left_seconds } in &list.lessees {
        let is_other = member.is_none();
        rows.push(vec![
            TableCell::text(member.as_deref().unwrap_or("others")),
            TableCell::text(&from.map_or_else(
                || if is_other { "-" } else { "unix socket" }.to_owned(),
                |from| from.to_string(),
            )),
            TableCell::number(leases),
            TableCell::number(format!("{left_seconds:.0} s")),
        ]);
    }
    table(&rows, color)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table() {
        let lessee = |member: Option<&str>, from: Option<&str>, leases| LeaseHolder {
            member: member.map(str::to_owned),
            from: from.map(|from| from.parse().unwrap()),
            leases,
            left_seconds: 59.7,
        };
        let lessees = vec![
            lessee(Some("10.0.0.1:80"), Some("10.0.0.7"), 1200),
            lessee(Some("10.0.0.2:80"), None, 3),
            lessee(None, None, 17),
        ];
        insta::assert_snapshot!(render(&LeaseList { lessees }, false), @r"
        MEMBER       FROM         LEASES  LEFT
        10.0.0.1:80  10.0.0.7       1200  60 s
        10.0.0.2:80  unix socket       3  60 s
        others       -                17  60 s
        ");
    }

    #[test]
    fn a_group_has_a_plain_name() {
        assert_eq!(leases_path("web").unwrap(), "/v1/groups/web/leases");
        for name in ["", "a/b", "a b", "../x"] {
            assert!(leases_path(name).is_err(), "{name}");
        }
    }
}
