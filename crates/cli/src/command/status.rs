//! `plimsoll status`: the state of all groups and listeners, one line each, and an exit code for scripts.

use std::fmt::Write as _;
use std::process::ExitCode;

use plimsoll_brain::MemberState;
use plimsoll_brain::status::{
    CertificateStatus, FleetStatus, GroupHealth, GroupStatus, ListenerStatus, StatusReport, StoreStatus,
};
use plimsoll_config::pluralize;
use serde_json::Value;

use super::{CliError, CliExitCode, GlobalArgs, load_line, member_sources};
use crate::control::format::{TableCell, TextStyle, group_digits, latency, sanitize, short_duration, table};
use crate::control::{self, BalancerSelector, CommandOutput};

/// Show a one-line summary per group; exit code 1 on a fault
///
/// Faults are a group without a usable member, with one that fails its health checks, or that has refused
/// requests for lack of capacity within the last ten seconds; a store that cannot be used; a last reload that
/// was refused; or a certificate that has expired or does not exist yet. Certificates that expire soon are
/// listed. --fail-below sets the number of members that is sufficient instead, and --fail-headroom adds a
/// requirement. Exit code 3 if the balancer is unreachable.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Only this group
    group: Option<String>,

    /// Minimum number of usable members of a group, or share of its members (80%), below which the group is
    /// at fault; some of the others may be down
    #[arg(long, value_name = "N|N%")]
    fail_below: Option<MinimumMembers>,

    /// Minimum free capacity of a group, where it is known, below which the group is at fault (10%)
    #[arg(long, value_name = "N%", value_parser = share)]
    fail_headroom: Option<f64>,

    #[command(flatten)]
    at: BalancerSelector,
}

/// The least number of members.
#[derive(Clone, Copy, Debug, PartialEq)]
enum MinimumMembers {
    Number(usize),
    /// A share, 0 to 1.
    Share(f64),
}

impl std::str::FromStr for MinimumMembers {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.strip_suffix('%') {
            Some(_) => share(text).map(Self::Share),
            None => text
                .parse()
                .map(Self::Number)
                .map_err(|_| "expected a number of members, or 0% to 100%".to_owned()),
        }
    }
}

fn share(text: &str) -> Result<f64, String> {
    let percent = text.strip_suffix('%').and_then(|number| number.parse::<f64>().ok());
    let percent = percent.filter(|percent| (0.0..=100.0).contains(percent));
    percent.map(|percent| percent / 100.0).ok_or_else(|| "expected 0% to 100%".to_owned())
}

pub(super) fn run(args: &Args, globals: &GlobalArgs) -> Result<ExitCode, CliError> {
    control::run_each(&args.at, globals, |balancer, _| {
        let (json, mut status) = balancer.status()?;
        let json = retain_group(args.group.as_deref(), json, &mut status)?;
        let mut problems = group_faults(args, &status);
        problems.extend(unmet_conditions(args, &status));
        let messages = problems.iter().map(|line| format!("{line}\n")).collect();
        let table = render(&status, globals.stdout_has_color());
        Ok(CommandOutput {
            is_ok: is_healthy(&status) && problems.is_empty(),
            messages,
            ..CommandOutput::from_view(json, table)
        })
    })
}

/// Removes all groups but one, and the listeners of others.
fn retain_group(group: Option<&str>, mut json: Value, status: &mut StatusReport) -> Result<Value, CliError> {
    let Some(group_name) = group else { return Ok(json) };
    if !status.groups.iter().any(|group| group.name == group_name) {
        let names: Vec<&str> = status.groups.iter().map(|group| &*group.name).collect();
        let message = format!("there is no group {group_name}; there are: {}", names.join(", "));
        return Err(CliError::new(CliExitCode::Usage, message));
    }
    status.groups.retain(|group| group.name == group_name);
    status.listeners.retain(|listener| listener.serves_group(group_name));
    if let Some(groups) = json["groups"].as_array_mut() {
        groups.retain(|entry| entry["name"] == group_name);
    }
    if let Some(listeners) = json["listeners"].as_array_mut() {
        let serves_other = |listener: &Value| {
            listener["others"].as_array().is_some_and(|others| others.iter().any(|name| name == group_name))
        };
        listeners.retain(|listener| listener["group"] == group_name || serves_other(listener));
    }
    Ok(json)
}

/// Returns the conditions that were given and do not hold, a line for each group.
fn unmet_conditions(args: &Args, status: &StatusReport) -> Vec<String> {
    let mut lines = Vec::new();
    for group in &status.groups {
        let member_count = group.members.len();
        let usable = group.members.iter().filter(|member| member.state.is_eligible()).count();
        let minimum = match args.fail_below {
            None => 0.0,
            Some(MinimumMembers::Number(number)) => number as f64,
            Some(MinimumMembers::Share(share)) => share * member_count as f64,
        };
        // Shares of whole numbers are not exact.
        if (usable as f64) < minimum - 1e-9 {
            let members = pluralize(member_count, "member");
            lines.push(format!("{}: {usable} of {members} can be used", group.name));
        }
        let headroom = group.load_line.as_ref().and_then(|line| line.headroom);
        if let (Some(minimum), Some(free_share)) = (args.fail_headroom, headroom)
            && free_share < minimum
        {
            lines.push(format!("{}: {:.0}% of its capacity is free", group.name, free_share * 100.0));
        }
    }
    lines
}

/// Returns the faults of each group, a line each, also without further conditions.
fn group_faults(args: &Args, status: &StatusReport) -> Vec<String> {
    let mut lines = Vec::new();
    for group in &status.groups {
        let down = group.members.iter().filter(|member| member.state == MemberState::Down).count();
        if down > 0 && args.fail_below.is_none() {
            let members = pluralize(group.members.len(), "member");
            lines.push(format!("{}: {down} of {members} down", group.name));
        }
        if let (Some(since), Some(rejections)) = (group.shedding_seconds, rejected_share(group)) {
            lines.push(format!("{}: {rejections}, for {}", group.name, short_duration(since)));
        }
    }
    lines
}

/// Returns the share of recent requests that a group rejects, and the reason: `12% of the requests are
/// refused for want of room (shed)`.
pub(super) fn rejected_share(group: &GroupStatus) -> Option<String> {
    group.shedding_seconds?;
    let share_text = match group.shedding_share {
        Some(share) if share >= 0.01 => format!("{:.0}% of the requests are", share * 100.0),
        Some(share) if share > 0.0 => "less than 1% of the requests are".to_owned(),
        // The balancer does not count them, or has just taken over from one that did not.
        _ => "requests are".to_owned(),
    };
    let reason = group.shedding_reason.as_ref().map(|reason| format!(" ({reason})")).unwrap_or_default();
    Some(format!("{share_text} refused for want of room{reason}"))
}

fn is_healthy(status: &StatusReport) -> bool {
    let is_valid =
        |certificate: &CertificateStatus| certificate.expires_seconds.is_some_and(|seconds| seconds > 0.0);
    status.last_reload_successful
        && status.store.as_ref().is_none_or(|store| store.error.is_none())
        && status.groups.iter().all(|group| group.healthy)
        && status.certificates.iter().all(is_valid)
}

/// Returns the trouble with a certificate, if there is any.
fn certificate_problem(certificate: &CertificateStatus) -> Option<(String, TextStyle)> {
    let reason = certificate.failure.as_ref().map(|error| format!(": {error}")).unwrap_or_default();
    let (message, style) = match certificate.expires_seconds {
        None => (format!("there is no certificate for {} yet{reason}", certificate.name), TextStyle::Bad),
        Some(seconds) if seconds <= 0.0 => (
            format!(
                "the certificate for {} is over since {}{reason}",
                certificate.name,
                short_duration(-seconds)
            ),
            TextStyle::Bad,
        ),
        Some(seconds) if certificate.ends_soon => (
            format!(
                "the certificate for {} ends in {} ({}){reason}",
                certificate.name,
                short_duration(seconds),
                certificate.source
            ),
            TextStyle::Fair,
        ),
        Some(_) if certificate.failure.is_some() => (
            format!("the certificate for {} could not be renewed{reason}", certificate.name),
            TextStyle::Fair,
        ),
        Some(_) => return None,
    };
    Some((message, style))
}

/// Returns a number of bytes in MiB, rounded up, for people.
fn mebibytes(bytes: u64) -> String {
    format!("{} MiB", group_digits(bytes.div_ceil(1 << 20)))
}

fn render(status: &StatusReport, color: bool) -> String {
    let mut out = format!(
        "plimsoll {}, pid {}, up {}, {}",
        sanitize(&status.version),
        status.pid,
        short_duration(status.uptime_seconds),
        pluralize(status.threads, "thread"),
    );
    let memory = &status.memory;
    if memory.budget_bytes > 0 {
        let _ = write!(out, ", keeps {} of {}", mebibytes(memory.kept_bytes), mebibytes(memory.budget_bytes));
    }
    out.push('\n');
    let mut banner = |text: &str, style: TextStyle| {
        for (index, line) in text.lines().enumerate() {
            let mark = if index == 0 { "‼" } else { " " };
            out.push_str(&style.paint(&format!("{mark} {}", sanitize(line)), color));
            out.push('\n');
        }
    };
    if !status.last_reload_successful {
        let error = status.last_reload_error.as_deref().unwrap_or("it did not say why");
        banner(
            &format!("the last reload was refused and the configuration before it is in force: {error}"),
            TextStyle::Bad,
        );
    }
    if status.stopping {
        banner("stopping: work in flight may end, nothing new is accepted", TextStyle::Bad);
    }
    if let Some(StoreStatus { kind, place, error: Some(error), failing_seconds, .. }) = &status.store {
        let since =
            failing_seconds.map(|since| format!(" for {}", short_duration(since))).unwrap_or_default();
        let message = format!(
            "the store in {kind} {place} cannot be used{since}: {error}; what is known stays in force, and \
             what operators do is refused"
        );
        banner(&message, TextStyle::Bad);
    }
    if let Some(StoreStatus { kind, place, doubt: Some(reason), doubted_seconds, .. }) = &status.store {
        let since =
            doubted_seconds.map(|since| format!("{} ago: ", short_duration(since))).unwrap_or_default();
        banner(&format!("{since}the store in {kind} {place} {reason}"), TextStyle::Bad);
    }
    for (message, style) in status.certificates.iter().filter_map(certificate_problem) {
        banner(&message, style);
    }
    let groups = status.groups.iter().map(|group| {
        let health = GroupHealth::of(group, 0.0);
        let times = match group.latency.count {
            0 => String::new(),
            _ => format!("p50 {}  p99 {}", latency(group.latency.p50), latency(group.latency.p99)),
        };
        vec![
            TableCell::text(health.glyph_and_label().0).style(health.into()),
            TableCell::text(&group.name).style(TextStyle::Strong),
            TableCell::text(&group.verdict),
            TableCell::text(&strategy(group)).style(TextStyle::Faint),
            TableCell::text(&times).style(TextStyle::Faint),
            TableCell::text(&rejected_share(group).unwrap_or_default()).style(TextStyle::Bad),
        ]
    });
    out.push_str(&table(&groups.collect::<Vec<_>>(), color));
    out.push_str(&table(&load_line::capacity_rows(&status.groups), color));
    out.push_str(&table(&member_sources::source_rows(&status.groups), color));
    // A listener that chooses the group by the requested name shows all of them.
    let group_names = |listener: &ListenerStatus| {
        let other_groups = listener.others.iter().map(|other| format!(", {other}"));
        listener.group.clone() + &other_groups.collect::<String>()
    };
    let groups: Vec<String> = status.listeners.iter().map(group_names).collect();
    let listeners = status.listeners.iter().enumerate().map(|(index, listener)| {
        let refused_text = match listener.refused {
            0 => String::new(),
            count => format!("{count} refused"),
        };
        vec![
            TableCell::text(&listener.protocol),
            TableCell::text(&listener.address),
            TableCell::text("→"),
            TableCell::text(groups.get(index).map_or("", String::as_str)).style(TextStyle::Strong),
            TableCell::number(format!("{} open", listener.connections)),
            TableCell::number(format!("{} accepted", listener.accepted)),
            TableCell::text(&refused_text).style(TextStyle::Bad),
            TableCell::text(if listener.disabled { "disabled" } else { "" }).style(TextStyle::Fair),
        ]
    });
    out.push_str(&table(&listeners.collect::<Vec<_>>(), color));
    if let Some(fleet) = &status.fleet {
        let (summary, is_well) = fleet_summary(fleet);
        let style = if is_well { TextStyle::Plain } else { TextStyle::Fair };
        out.push_str(&format!(
            "fleet  {}  {}  {}\n",
            TextStyle::Strong.paint(&sanitize(&fleet.name), color),
            style.paint(&summary, color),
            TextStyle::Faint.paint("(plimsoll fleet)", color)
        ));
    }
    out
}

/// Returns the number of other balancers of a fleet that are up, in words, and whether all are.
fn fleet_summary(fleet: &FleetStatus) -> (String, bool) {
    let total = fleet.balancers.len();
    let alive = fleet.balancers.iter().filter(|peer| peer.state == "up").count();
    let summary = match total {
        0 => "no other balancer has reported".to_owned(),
        _ => format!("{alive} of {} alive", pluralize(total, "other balancer")),
    };
    (summary, alive == total && total > 0)
}

fn strategy(group: &GroupStatus) -> String {
    let disabled_note = if group.balancing_disabled { " (balancing disabled)" } else { "" };
    format!("{}{disabled_note}", group.strategy)
}

#[cfg(test)]
mod tests {
    use plimsoll_brain::status::{BalancerStatus, LoadLine};

    use super::*;
    use crate::control::sample_status;

    fn args(line: &[&str]) -> Args {
        let arguments: Vec<String> = line.iter().map(|word| (*word).to_owned()).collect();
        let Some(super::super::CliCommand::Control(super::super::control_command::ControlCommand::Status(
            args,
        ))) = super::super::CliCommand::parse_arguments(&arguments)
        else {
            panic!("{arguments:?}")
        };
        args
    }

    fn conditions_for(below: Option<&str>, headroom: Option<f64>) -> Vec<String> {
        let mut line = vec!["plimsoll", "status"];
        line.extend(below.map(|_| "--fail-below"));
        line.extend(below);
        let headroom = headroom.map(|share| format!("--fail-headroom={}%", share * 100.0));
        line.extend(headroom.as_deref());
        let args = args(&line[1..]);
        let mut status = sample_status();
        let load_line = LoadLine { headroom: Some(0.15), ..LoadLine::default() };
        status.groups[0].load_line = Some(load_line);
        unmet_conditions(&args, &status)
    }

    #[test]
    fn a_member_that_is_down_and_requests_that_are_refused_are_not_well() {
        let args = args(&["status"]);
        let mut status = sample_status();
        assert_eq!(group_faults(&args, &status), ["web: 1 of 5 members down"]);
        let args = self::args(&["status", "--fail-below", "1"]);
        assert!(group_faults(&args, &status).is_empty(), "as many as were asked for are enough");
        status.groups[0].shedding_seconds = Some(3.0);
        assert_eq!(group_faults(&args, &status), ["web: requests are refused for want of room, for 3s"]);
        let mut faults_for = |share, reason: &str| {
            status.groups[0].shedding_share = Some(share);
            status.groups[0].shedding_reason = Some(reason.to_owned());
            let line = render(&status, false).lines().find(|line| line.contains("web ")).unwrap().to_owned();
            assert!(line.starts_with("✘  web "), "{line}");
            (group_faults(&args, &status).concat(), line)
        };
        for (share, reason, expected) in [
            (0.124, "shed", "12% of the requests are refused for want of room (shed)"),
            (0.0004, "queue_full", "less than 1% of the requests are refused for want of room (queue_full)"),
        ] {
            let (faults, line) = faults_for(share, reason);
            assert_eq!(faults, format!("web: {expected}, for 3s"));
            assert!(line.ends_with(&format!("p99 37.2ms  {expected}")), "{line}");
        }
    }

    #[test]
    fn scripts_may_ask_for_more() {
        assert!(conditions_for(None, None).is_empty());
        assert_eq!(conditions_for(Some("1"), None), ["game servers: 0 of 1 member can be used"]);
        assert_eq!(conditions_for(Some("3"), None)[0], "web: 2 of 5 members can be used");
        assert!(conditions_for(Some("0"), None).is_empty());
        assert_eq!(conditions_for(Some("40%"), None), ["game servers: 0 of 1 member can be used"]);
        assert_eq!(conditions_for(Some("41%"), None).len(), 2);
        assert_eq!(conditions_for(None, Some(0.2)), ["web: 15% of its capacity is free"]);
        assert!(conditions_for(None, Some(0.1)).is_empty());
        for invalid in ["x", "-1", "101%", "%", "NaN%"] {
            assert!(invalid.parse::<MinimumMembers>().is_err(), "{invalid}");
        }
    }

    #[test]
    fn one_group_alone() {
        let mut status = sample_status();
        let json = serde_json::to_value(&status).unwrap();
        let retained = retain_group(Some("web"), json.clone(), &mut status).unwrap();
        assert_eq!((status.groups.len(), status.listeners.len()), (1, 1));
        assert_eq!(retained["groups"].as_array().unwrap().len(), 1);
        assert_eq!(retained["listeners"][0]["group"], "web");
        assert!(retain_group(Some("mail"), json, &mut status).is_err());
    }

    #[test]
    fn all_is_well() {
        let status = sample_status();
        assert!(is_healthy(&status));
        insta::assert_snapshot!(render(&status, false), @"
        plimsoll 0.1.0, pid 4242, up 3d 4h, 2 threads
        ▲  web           3/5 members up, 1 ejected, 1 down  least_connections  p50 12.4ms  p99 37.2ms
        ‼  game servers  0/1 members up, 1 unchecked        rendezvous
        http  0.0.0.0:8080  →  web           128 open  1303546 accepted
        udp   [::]:27015    →  game servers    0 open        9 accepted  3 refused
        ");
    }

    #[test]
    fn a_fleet_is_told_in_a_line() {
        let mut status = sample_status();
        assert!(!render(&status, false).contains("fleet"));
        let balancer = |state: &str| BalancerStatus {
            name: "lb2".into(),
            address: "10.0.0.2:7946".into(),
            state: state.into(),
            age_seconds: 0.1,
            reports: 1,
            loss: 0.0,
            groups: 1,
        };
        let fleet = |balancers: Vec<BalancerStatus>| FleetStatus {
            name: "lb1".into(),
            address: "10.0.0.1:7946".into(),
            balancers,
            ..FleetStatus::default()
        };
        for (balancers, line) in [
            (vec![], "fleet  lb1  no other balancer has reported  (plimsoll fleet)"),
            (vec![balancer("up")], "fleet  lb1  1 of 1 other balancer alive  (plimsoll fleet)"),
            (
                vec![balancer("up"), balancer("silent")],
                "fleet  lb1  1 of 2 other balancers alive  (plimsoll fleet)",
            ),
        ] {
            status.fleet = Some(fleet(balancers));
            assert_eq!(render(&status, false).lines().last(), Some(line));
        }
    }

    #[test]
    fn all_is_not_well() {
        let mut status = sample_status();
        status.groups[1].healthy = false;
        assert!(!is_healthy(&status));
        status.groups[1].healthy = true;
        let store = StoreStatus { error: Some("No space left on device".into()), ..StoreStatus::default() };
        status.store = Some(store);
        assert!(!is_healthy(&status));
        status.store = None;
        status.last_reload_successful = false;
        assert!(!is_healthy(&status));
        status.groups[1].healthy = false;
        status.last_reload_error = Some("plimsoll.toml:3:1: there is no \"lisener\"\nin it".into());
        status.stopping = true;
        status.threads = 1;
        insta::assert_snapshot!(render(&status, false), @r#"
        plimsoll 0.1.0, pid 4242, up 3d 4h, 1 thread
        ‼ the last reload was refused and the configuration before it is in force: plimsoll.toml:3:1: there is no "lisener"
          in it
        ‼ stopping: work in flight may end, nothing new is accepted
        ▲  web           3/5 members up, 1 ejected, 1 down  least_connections  p50 12.4ms  p99 37.2ms
        ✘  game servers  0/1 members up, 1 unchecked        rendezvous
        http  0.0.0.0:8080  →  web           128 open  1303546 accepted
        udp   [::]:27015    →  game servers    0 open        9 accepted  3 refused
        "#);
    }

    #[test]
    fn a_store_that_is_lost_is_told() {
        let mut status = sample_status();
        let mut store = StoreStatus {
            kind: "etcd".into(),
            place: "http://10.0.0.1:2379 /plimsoll/".into(),
            ..StoreStatus::default()
        };
        status.store = Some(store.clone());
        assert!(!render(&status, false).contains("the store"));
        (store.error, store.failing_seconds) = (Some("no leader".into()), Some(75.0));
        status.store = Some(store);
        let rendered = render(&status, false);
        let expected = "‼ the store in etcd http://10.0.0.1:2379 /plimsoll/ cannot be used for 1m 15s: no \
                      leader; what is known \
                      stays in force, and what operators do is refused";
        assert!(rendered.lines().any(|line| line == expected), "{rendered}");
        assert!(!is_healthy(&status), "it serves, and operators are refused");
        let doubted_store = StoreStatus {
            kind: "etcd".into(),
            place: "/plimsoll/".into(),
            doubt: Some("has lost it".into()),
            doubted_seconds: Some(61.0),
            ..StoreStatus::default()
        };
        status.store = Some(doubted_store);
        let rendered = render(&status, false);
        assert!(rendered.contains("‼ 1m 1s ago: the store in etcd /plimsoll/ has lost it\n"), "{rendered}");
        assert!(is_healthy(&status));
    }

    #[test]
    fn certificates_that_end_are_named() {
        let mut status = sample_status();
        let certificate =
            |name: &str, expires_seconds: Option<f64>, ends_soon, failure: Option<&str>| CertificateStatus {
                name: name.into(),
                source: format!("/etc/{name}.pem"),
                expires_seconds,
                ends_soon,
                failure: failure.map(str::to_owned),
                ..CertificateStatus::default()
            };
        status.certificates = vec![
            certificate("long.example", Some(7e6), false, None),
            certificate("soon.example", Some(300_000.0), true, None),
            certificate("late.example", Some(3e6), false, Some("no answer")),
        ];
        assert!(is_healthy(&status));
        let rendered = render(&status, false);
        assert!(!rendered.contains("long.example"), "{rendered}");
        assert!(
            rendered.contains("‼ the certificate for soon.example ends in 3d 11h (/etc/soon.example.pem)\n"),
            "{rendered}"
        );
        assert!(
            rendered.contains("‼ the certificate for late.example could not be renewed: no answer\n"),
            "{rendered}"
        );
        for (seconds, text) in
            [(None, "no certificate for x yet: why"), (Some(-60.0), "for x is over since 1m")]
        {
            status.certificates = vec![certificate("x", seconds, true, Some("why"))];
            assert!(!is_healthy(&status));
            let rendered = render(&status, false);
            assert!(rendered.contains(text), "{rendered}");
        }
    }

    #[test]
    fn colour_only_adds() {
        let status = sample_status();
        let colored = render(&status, true);
        assert!(colored.contains("\u{1b}[33m▲\u{1b}[0m"));
        let mut stripped = colored;
        for code in ["0", "1", "2", "31", "32", "33"] {
            stripped = stripped.replace(&format!("\u{1b}[{code}m"), "");
        }
        assert_eq!(stripped, render(&status, false));
    }
}
