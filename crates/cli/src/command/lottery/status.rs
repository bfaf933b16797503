//! `plimsoll lottery status`: the status of daemons, as they see it themselves.

use std::process::ExitCode;

use plimsoll_admin::DaemonStatus;
use plimsoll_config::pluralize;
use serde::Deserialize as _;
use serde_json::Value;

use super::super::{CliError, CliExitCode, GlobalArgs};
use crate::control::format::{TableCell, TextStyle, latency, sanitize, table};
use crate::control::{self, CommandOutput, DaemonSelector, PeerClient};

/// Show services, states, loads, the other members, queues and counters of daemons; exit code 1 on a fault
///
/// Faults are a daemon that is not up, a service that fails its check or is disabled, and a file that was
/// refused.
#[derive(clap::Args, Debug)]
pub(super) struct Args {
    #[command(flatten)]
    at: DaemonSelector,
}

pub(super) fn run(args: &Args, globals: &GlobalArgs) -> Result<ExitCode, CliError> {
    control::run_each(&args.at, globals, |endpoint, _| {
        let json: Value = PeerClient::daemon(endpoint).get("/v1/lottery")?;
        let status = DaemonStatus::deserialize(&json).map_err(|error| {
            let message = format_args!("it does not answer as a daemon of this version does: {error}");
            CliError::new(CliExitCode::Unreachable, message)
        })?;
        let table = render(&status, globals.stdout_has_color());
        Ok(CommandOutput { is_ok: is_healthy(&status), ..CommandOutput::from_view(json, table) })
    })
}

fn is_healthy(status: &DaemonStatus) -> bool {
    status.state == "up"
        && status.reload_error.is_none()
        && status.services.iter().all(|service| service.ready && service.enabled)
}

fn render(status: &DaemonStatus, color: bool) -> String {
    let mut out = format!(
        "plimsoll lottery {}, pid {}, member {} at {}: {}\n",
        sanitize(&status.version),
        status.pid,
        status.member,
        status.address,
        sanitize(&status.state)
    );
    if let Some(error) = &status.reload_error {
        let banner = format!("‼ the last reload was refused, all is as it was before: {}", sanitize(error));
        out.push_str(&(TextStyle::Bad.paint(&banner, color) + "\n"));
    }
    let load = |load: Option<f64>| load.map_or_else(|| "?".to_owned(), |load| format!("{load:.2}"));
    let header = |names: &[&str]| {
        names.iter().map(|name| TableCell::text(name).style(TextStyle::Strong)).collect::<Vec<_>>()
    };
    if !status.services.is_empty() {
        let mut rows = vec![header(&["", "SERVICE", "SERVER", "CAPACITY", "WANTS", "LOAD", "IN FLIGHT"])];
        rows.extend(status.services.iter().map(|service| {
            let (glyph, style) = match (service.ready, service.enabled) {
                (true, true) => ("✔", TextStyle::Good),
                (true, false) => ("◌", TextStyle::Fair),
                (false, _) => ("✘", TextStyle::Bad),
            };
            vec![
                TableCell::text(glyph).style(style),
                TableCell::text(&service.name),
                TableCell::text(&service.server.to_string()),
                TableCell::number(service.capacity),
                TableCell::number(format!("{:.1}", service.weight)),
                TableCell::number(load(service.load)),
                TableCell::number(service.in_flight),
            ]
        }));
        out += &table(&rows, color);
    }
    if !status.members.is_empty() {
        let mut rows = vec![header(&["", "MEMBER", "ADDRESS", "STATE", "SERVICES", ""])];
        rows.extend(status.members.iter().map(|member| {
            let is_up = member.state == "up" && !member.suspect;
            let (glyph, style) = if is_up { ("✔", TextStyle::Good) } else { ("◌", TextStyle::Fair) };
            let state = if member.suspect { "suspect" } else { &member.state };
            vec![
                TableCell::text(glyph).style(style),
                TableCell::number(member.member),
                TableCell::text(&member.address.to_string()),
                TableCell::text(state).style(style),
                TableCell::number(member.services.len()),
                TableCell::text(if member.differs { "knows something else" } else { "" })
                    .style(TextStyle::Fair),
            ]
        }));
        out += &table(&rows, color);
    }
    let counts = &status.counts;
    out += &format!(
        "{} referred, {} won, {} turned away; {} ({:.2} %); {} pending\n",
        counts.referred,
        counts.won,
        counts.turned_away,
        pluralize(usize::try_from(counts.duplicates).unwrap_or(usize::MAX), "duplicate"),
        status.duplicate_share * 100.0,
        status.pending,
    );
    let delay = status.commit_delay_seconds.map_or_else(|| "not known".to_owned(), latency);
    out += &format!(
        "digests differ at {:.0} % of the members; commit delay {delay}, step {}, own lag {}\n",
        status.digest_disagreement * 100.0,
        latency(status.step_seconds),
        latency(status.lag_seconds)
    );
    if status.prefer_referral {
        out += "clients do better to ask one daemon than all\n";
    }
    out += &format!(
        "{} requests remembered at most, {} forgotten too early\n",
        status.remembers, counts.forgotten
    );
    let accepted_keys: Vec<String> = status.keys.iter().skip(1).map(u32::to_string).collect();
    let accepted = if accepted_keys.is_empty() {
        String::new()
    } else {
        format!(", also accepted: {}", accepted_keys.join(", "))
    };
    out += &format!(
        "sends with key {}{accepted}{}\n",
        status.sealing_key,
        super::key_rotation::client_keys_note(&status.client_keys)
    );
    out
}

#[cfg(test)]
mod tests {
    use plimsoll_admin::{DaemonCounters, ObservedDaemon, OwnService};

    use super::*;

    #[test]
    fn a_daemon_for_people() {
        let service = OwnService {
            name: "web".into(),
            id: 7,
            server: ([10, 0, 0, 1], 8080).into(),
            capacity: 100,
            ready: true,
            enabled: true,
            load: Some(0.5),
            in_flight: 3,
            weight: 133.25,
        };
        let member = ObservedDaemon {
            member: 2,
            address: ([10, 0, 0, 2], 7447).into(),
            state: "up".into(),
            suspect: true,
            differs: true,
            services: Vec::new(),
        };
        let mut status = DaemonStatus {
            schema: 1,
            version: "0.1.0".into(),
            pid: 42,
            started_unix_ms: 0,
            stopping: false,
            reload_error: None,
            member: 1,
            address: ([10, 0, 0, 1], 7447).into(),
            state: "up".into(),
            services: vec![service],
            members: vec![member],
            pending: 2,
            queued: 5,
            sealing_key: 9,
            keys: vec![9, 8],
            client_keys: vec![5],
            counts: DaemonCounters { referred: 1200, won: 200, duplicates: 1, ..DaemonCounters::default() },
            duplicate_share: 0.005,
            digest_disagreement: 1.0,
            commit_delay_seconds: Some(0.0012),
            step_seconds: 0.02,
            lag_seconds: 0.0,
            prefer_referral: true,
            remembers: 65_536,
            ttl_seconds: 0.0,
            slow_start_seconds: 10.0,
            rate: 20_000,
        };
        assert!(is_healthy(&status));
        insta::assert_snapshot!(render(&status, false), @"
        plimsoll lottery 0.1.0, pid 42, member 1 at 10.0.0.1:7447: up
           SERVICE  SERVER         CAPACITY  WANTS  LOAD  IN FLIGHT
        ✔  web      10.0.0.1:8080       100  133.2  0.50          3
           MEMBER  ADDRESS        STATE    SERVICES
        ◌       2  10.0.0.2:7447  suspect         0  knows something else
        1200 referred, 200 won, 0 turned away; 1 duplicate (0.50 %); 2 pending
        digests differ at 100 % of the members; commit delay 1.20ms, step 20.0ms, own lag 0µs
        clients do better to ask one daemon than all
        65536 requests remembered at most, 0 forgotten too early
        sends with key 9, also accepted: 8, for clients 5
        ");
        status.services[0].ready = false;
        assert!(!is_healthy(&status));
    }
}
