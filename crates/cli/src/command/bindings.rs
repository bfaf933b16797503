//! `plimsoll bindings`: the session bindings of each listener, and the number of redirected sessions.

use std::process::ExitCode;

use plimsoll_brain::status::{ListenerStatus, StatusReport};
use serde_json::{Value, json};

use super::{CliError, GlobalArgs};
use crate::control::format::{TableCell, TextStyle, table};
use crate::control::{self, BalancerSelector, CommandOutput};

/// List, per listener and member, the sessions bound to it and those moved to other members so far
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(flatten)]
    at: BalancerSelector,
}

pub(super) fn run(args: &Args, globals: &GlobalArgs) -> Result<ExitCode, CliError> {
    control::run_each(&args.at, globals, |balancer, _| {
        let (json, status) = balancer.status()?;
        Ok(CommandOutput::from_view(listeners_json(&json), render(&status, globals.stdout_has_color())))
    })
}

/// Returns the bindings in a balancer's status.
fn listeners_json(status: &Value) -> Value {
    let listeners = status["listeners"].as_array().into_iter().flatten().map(|listener| {
        let keys = ["address", "protocol", "group", "binding", "bindings"];
        keys.map(|key| (key.to_owned(), listener[key].clone())).into_iter().collect()
    });
    json!({"schema": status["schema"], "listeners": listeners.collect::<Vec<Value>>()})
}

fn render(status: &StatusReport, color: bool) -> String {
    let heading = |text: &str| TableCell::text(text).style(TextStyle::Strong);
    let number = |text: &str| TableCell::number(text).style(TextStyle::Strong);
    let mut rows = vec![vec![
        heading("LISTENER"),
        heading("PROTOCOL"),
        heading("BINDING"),
        heading("GROUP"),
        heading("MEMBER"),
        number("BOUND"),
        number("MOVED"),
    ]];
    for listener in &status.listeners {
        let row =
            |listener: &ListenerStatus, member: TableCell, bound_cell: TableCell, moved_cell: TableCell| {
                vec![
                    TableCell::text(&listener.address),
                    TableCell::text(&listener.protocol),
                    TableCell::text(&listener.binding),
                    TableCell::text(&listener.group),
                    member,
                    bound_cell,
                    moved_cell,
                ]
            };
        if listener.bindings.is_empty() {
            let dash = || TableCell::number("-");
            rows.push(row(listener, TableCell::text("-"), dash(), dash()));
        }
        for binding in &listener.bindings {
            let moved_cell = TableCell::number(binding.moved);
            let moved_cell = if binding.moved > 0 { moved_cell.style(TextStyle::Fair) } else { moved_cell };
            rows.push(row(
                listener,
                TableCell::text(&binding.member),
                TableCell::number(binding.bound),
                moved_cell,
            ));
        }
    }
    table(&rows, color)
}

#[cfg(test)]
mod tests {
    use plimsoll_brain::status::BindingStatus;

    use super::*;

    fn status() -> StatusReport {
        let listener = |address: &str, binding: &str, bindings| ListenerStatus {
            address: address.into(),
            protocol: "http".into(),
            group: "web".into(),
            binding: binding.into(),
            bindings,
            ..ListenerStatus::default()
        };
        let binding_status =
            |member: &str, bound, moved| BindingStatus { member: member.into(), bound, moved };
        let bindings = vec![binding_status("10.0.0.1:80", 12, 345), binding_status("10.0.0.2:80", 250, 0)];
        let listeners = vec![
            listener("0.0.0.0:80", "on_demand", bindings),
            listener("0.0.0.0:81", "per_request", Vec::new()),
        ];
        StatusReport { schema: 1, listeners, ..StatusReport::default() }
    }

    #[test]
    fn the_table() {
        insta::assert_snapshot!(render(&status(), false), @"
        LISTENER    PROTOCOL  BINDING      GROUP  MEMBER       BOUND  MOVED
        0.0.0.0:80  http      on_demand    web    10.0.0.1:80     12    345
        0.0.0.0:80  http      on_demand    web    10.0.0.2:80    250      0
        0.0.0.0:81  http      per_request  web    -                -      -
        ");
    }

    #[test]
    fn json_tells_of_bindings_only() {
        let json = listeners_json(&serde_json::to_value(status()).unwrap());
        assert_eq!(json["schema"], 1);
        assert_eq!(
            json["listeners"][0]["bindings"][0],
            json!({"member": "10.0.0.1:80", "bound": 12, "moved": 345})
        );
        assert_eq!(json["listeners"][0].get("accepted"), None);
    }
}
