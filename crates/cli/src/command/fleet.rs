//! `plimsoll fleet`: the balancers that act together, as one of them sees it.

use std::process::ExitCode;

use plimsoll_brain::status::{BalancerStatus, FleetStatus};
use serde_json::json;

use super::{CliError, GlobalArgs};
use crate::control::format::{TableCell, TextStyle, sanitize, short_duration, table};
use crate::control::{self, BalancerSelector, CommandOutput};

/// Show the balancers of the fleet; exit code 1 if one is silent or lost
///
/// For each balancer: its state, the time of its last message, its reports, the share of recent reports lost
/// in transit, and the number of groups that it also serves.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(flatten)]
    at: BalancerSelector,
}

pub(super) fn run(args: &Args, globals: &GlobalArgs) -> Result<ExitCode, CliError> {
    control::run_each(&args.at, globals, |balancer, _| {
        let (_, status) = balancer.status()?;
        let all_up = status.fleet.iter().flat_map(|fleet| &fleet.balancers).all(|peer| peer.state == "up");
        let text = match &status.fleet {
            Some(fleet) => render(fleet, globals.stdout_has_color()),
            None => "it acts alone: there is no [fleet] in its configuration\n".to_owned(),
        };
        let json = json!({"schema": 1, "fleet": status.fleet});
        Ok(CommandOutput { is_ok: all_up, ..CommandOutput::from_view(json, text) })
    })
}

fn render(fleet: &FleetStatus, color: bool) -> String {
    let own_row = vec![
        TableCell::text("•").style(TextStyle::Good),
        TableCell::text(&fleet.name).style(TextStyle::Strong),
        TableCell::text(&fleet.address),
        TableCell::text("this one").style(TextStyle::Faint),
    ];
    let rows: Vec<Vec<TableCell>> = [own_row]
        .into_iter()
        .chain(fleet.balancers.iter().map(|peer| balancer_row(peer, &fleet.address)))
        .collect();
    let mut out = table(&rows, color);
    let count = |datagrams: u64, bytes: u64| format!("{datagrams} datagrams, {}", format_bytes(bytes));
    out.push_str(&format!(
        "sent {}  received {}",
        count(fleet.sent, fleet.sent_bytes),
        count(fleet.received, fleet.received_bytes),
    ));
    for (number, label) in [(fleet.refused, "refused"), (fleet.unsent, "not sent")] {
        if number > 0 {
            out.push_str(&format!("  {}", TextStyle::Bad.paint(&format!("{number} {label}"), color)));
        }
    }
    out.push('\n');
    out
}

fn balancer_row(balancer: &BalancerStatus, own_address: &str) -> Vec<TableCell> {
    let (glyph, style) = match &*balancer.state {
        "up" => ("✔", TextStyle::Good),
        "silent" => ("?", TextStyle::Fair),
        _ => ("✘", TextStyle::Bad),
    };
    let name = if balancer.name.is_empty() { "(no name yet)" } else { &balancer.name };
    let last_heard = match balancer.age_seconds {
        ..1.0 => "reported just now".to_owned(),
        age => format!("reported {} ago", short_duration(age)),
    };
    // Two with one address cannot be told apart.
    let address = if balancer.address == own_address {
        format!("{} (as this one)", balancer.address)
    } else {
        balancer.address.clone()
    };
    vec![
        TableCell::text(glyph).style(style),
        TableCell::text(&sanitize(name)).style(TextStyle::Strong),
        TableCell::text(&address),
        TableCell::text(&balancer.state).style(style),
        TableCell::text(&last_heard).style(TextStyle::Faint),
        TableCell::number(format!("{} reports", balancer.reports)),
        TableCell::number(format!("{:.1} % lost", 100.0 * balancer.loss)),
        TableCell::number(plimsoll_config::pluralize(balancer.groups, "group")),
    ]
}

fn format_bytes(bytes: u64) -> String {
    match bytes {
        0..10_000 => format!("{bytes} B"),
        10_000..10_000_000 => format!("{} kB", bytes / 1000),
        _ => format!("{} MB", bytes / 1_000_000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_has_a_line() {
        let peer = |name: &str, port: u16, state: &str, age_seconds, loss| BalancerStatus {
            name: name.into(),
            address: format!("10.0.0.2:{port}"),
            state: state.into(),
            age_seconds,
            reports: 12_345,
            loss,
            groups: 2,
        };
        let fleet = FleetStatus {
            name: "lb1".into(),
            address: "10.0.0.1:7946".into(),
            balancers: vec![
                peer("lb2", 7946, "up", 0.013, 0.0),
                peer("lb3", 7947, "silent", 2.5, 0.25),
                peer("", 7948, "lost", 41.0, 0.0),
            ],
            sent: 50_000,
            sent_bytes: 3_456_789,
            received: 24_000,
            received_bytes: 9_000,
            refused: 3,
            unsent: 0,
        };
        insta::assert_snapshot!(render(&fleet, false), @"
        •  lb1            10.0.0.1:7946  this one
        ✔  lb2            10.0.0.2:7946  up        reported just now  12345 reports   0.0 % lost  2 groups
        ?  lb3            10.0.0.2:7947  silent    reported 2s ago    12345 reports  25.0 % lost  2 groups
        ✘  (no name yet)  10.0.0.2:7948  lost      reported 41s ago   12345 reports   0.0 % lost  2 groups
        sent 50000 datagrams, 3456 kB  received 24000 datagrams, 9000 B  3 refused
        ");
    }
}
