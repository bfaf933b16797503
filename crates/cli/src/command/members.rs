//! `plimsoll members`: every member with its state, the reason and its load; and the capacity of each group.

use std::process::ExitCode;

use plimsoll_brain::status::{GroupStatus, MemberStatus, StatusReport};
use serde_json::{Value, json};

use super::{CliError, CliExitCode, GlobalArgs, load_line, member_sources};
use crate::control::format::{self, TableCell, TextStyle, latency, short_duration, table};
use crate::control::{self, BalancerSelector, CommandOutput};

/// List the members: state and reason, load, share of the requests, latency
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Only members of this group
    group: Option<String>,

    #[command(flatten)]
    at: BalancerSelector,
}

pub(super) fn run(args: &Args, globals: &GlobalArgs) -> Result<ExitCode, CliError> {
    control::run_each(&args.at, globals, |balancer, _| {
        select_groups(&args.group, balancer.status()?, globals)
    })
}

fn select_groups(
    group_filter: &Option<String>,
    (json, status): (Value, StatusReport),
    globals: &GlobalArgs,
) -> Result<CommandOutput, CliError> {
    if let Some(group) = group_filter
        && !status.groups.iter().any(|candidate| candidate.name == *group)
    {
        return Err(CliError::new(CliExitCode::Usage, unknown_group_message(group, &status)));
    }
    let is_wanted = |name: &str| group_filter.as_deref().is_none_or(|group| group == name);
    let groups: Vec<_> = status.groups.iter().filter(|group| is_wanted(&group.name)).collect();
    Ok(CommandOutput::from_view(filter_groups(json, is_wanted), render(&groups, globals.stdout_has_color())))
}

fn unknown_group_message(group: &str, status: &StatusReport) -> String {
    let closest = status
        .groups
        .iter()
        .map(|candidate| (strsim::damerau_levenshtein(group, &candidate.name), &candidate.name))
        .filter(|(distance, name)| *distance <= name.chars().count() / 2)
        .min();
    let names: Vec<_> = status.groups.iter().map(|candidate| candidate.name.as_str()).collect();
    match closest {
        Some((_, name)) => format!("there is no group {group}; did you mean {name}?"),
        None => format!("there is no group {group}; there are: {}", names.join(", ")),
    }
}

/// Returns the groups as the balancer sent them, with the unknown keys of a newer one.
fn filter_groups(mut json: Value, is_wanted: impl Fn(&str) -> bool) -> Value {
    if let Some(groups) = json["groups"].as_array_mut() {
        groups.retain(|group| group["name"].as_str().is_some_and(&is_wanted));
    }
    json!({"schema": json["schema"], "groups": json["groups"]})
}

fn render(groups: &[&GroupStatus], color: bool) -> String {
    // Columns without any value are left out.
    let has_capacities =
        groups.iter().flat_map(|group| &group.members).any(|member| load_line::capacity(member).is_some());
    let heading = |text: &str| TableCell::text(text).style(TextStyle::Strong);
    let number = |text: &str| TableCell::number(text).style(TextStyle::Strong);
    let mut rows = vec![vec![
        heading("GROUP"),
        heading("MEMBER"),
        heading("STATE"),
        number("CAPACITY"),
        number("CAN DO"),
        number("USED"),
        number("IN FLIGHT"),
        number("REQUESTS"),
        number("FAILURES"),
        number("REFUSED"),
        number("SHARE"),
        number("P50"),
        number("P99"),
        number("SINCE"),
        heading("WHY"),
    ]];
    for group in groups {
        let total_requests: u64 = group.members.iter().map(|member| member.requests).sum();
        for member in &group.members {
            let (glyph, label, style) = format::member_state_label(member.state, member.is_slow());
            let share = match total_requests {
                0 => "-".into(),
                total => format!("{:.1}%", member.requests as f64 * 100.0 / total as f64),
            };
            let time = |seconds| if member.latency.count == 0 { "-".into() } else { latency(seconds) };
            let failures = TableCell::number(member.failures);
            rows.push(vec![
                TableCell::text(&group.name),
                TableCell::text(&member.name),
                TableCell::text(&format!("{glyph} {label}")).style(style),
                TableCell::number(member.capacity),
                TableCell::number(load_line::format_capacity(member)),
                TableCell::number(load_line::format_used_share(member)),
                TableCell::number(member.in_flight),
                TableCell::number(member.requests),
                if member.failures > 0 { failures.style(TextStyle::Bad) } else { failures },
                rejections_cell(member),
                TableCell::number(share),
                TableCell::number(time(member.latency.p50)),
                TableCell::number(time(member.latency.p99)),
                TableCell::number(short_duration(member.since_seconds)),
                TableCell::text(&state_reason(member)).style(TextStyle::Faint),
            ]);
        }
    }
    if groups.iter().flat_map(|group| &group.members).all(|member| member.refused.is_empty()) {
        rows.iter_mut().for_each(|row| drop(row.remove(9)));
    }
    if !has_capacities {
        rows.iter_mut().for_each(|row| drop(row.drain(4..6)));
    }
    let capacity_rows = load_line::capacity_rows(groups.iter().copied());
    let prediction_rows: Vec<_> = groups.iter().flat_map(|group| load_line::prediction_rows(group)).collect();
    let source_rows = member_sources::source_rows(groups.iter().copied());
    let append = |lines: &[Vec<TableCell>]| match lines {
        [] => String::new(),
        lines => format!("\n{}", table(lines, color)),
    };
    table(&rows, color) + &append(&capacity_rows) + &append(&prediction_rows) + &append(&source_rows)
}

/// Returns how many requests the group refused while a member took none, with the reason of most of them.
fn rejections_cell(member: &MemberStatus) -> TableCell {
    let total: u64 = member.refused.values().sum();
    match member.refused.iter().max_by_key(|(_, count)| **count) {
        Some((reason, _)) => TableCell::number(format!("{total} {reason}")).style(TextStyle::Bad),
        None => TableCell::number("-"),
    }
}

/// Returns the reason of a member's state, after the time for which it has been slow.
fn state_reason(member: &MemberStatus) -> String {
    let slow_seconds = member.slow_seconds.filter(|_| member.is_slow());
    let slow_note =
        slow_seconds.map(|since| format!("ten times slower than its group for {}; ", short_duration(since)));
    format!("{}{}", slow_note.unwrap_or_default(), member.why)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::sample_status;

    #[test]
    fn the_table() {
        let status = sample_status();
        let groups: Vec<_> = status.groups.iter().collect();
        insta::assert_snapshot!(render(&groups, false), @r#"
        GROUP         MEMBER                STATE         CAPACITY  IN FLIGHT  REQUESTS  FAILURES  SHARE     P50     P99    SINCE  WHY
        web           10.0.0.1:80           ● up                 1          7    812345        12  62.3%  12.4ms  37.2ms    9d 9h  2 checks in a row passed
        web           10.0.0.2:80           ◐ slow start       2.5          7      1200         3   0.1%   850µs  2.55ms  23m 20s  came up, 40 % of its share
        web           10.0.0.3:80           ⊘ ejected            1          0     90001      4711   6.9%   2.50s   7.50s    1d 1h  5 failures in a row
        web           10.0.0.4:80           ◌ draining           1          7    400000         0  30.7%  13.0ms  39.0ms   4d 15h  by an operator
        web           [fd00::5]:80          ✘ down               1          0         0         0   0.0%       -       -   3m 20s  connection refused
        game servers  games.internal:27015  ○ unchecked          1          0         0         0      -       -       -   3m 20s  no check has passed yet
        "#);
    }

    #[test]
    fn a_slow_member_is_marked() {
        let mut status = sample_status();
        status.groups[0].members.iter_mut().for_each(|member| member.slow_seconds = Some(12.0));
        let groups: Vec<_> = status.groups.iter().collect();
        let rendered = render(&groups, false);
        let states = rendered.lines().filter(|line| line.contains("▲ slow "));
        let states: Vec<&str> = states.filter_map(|line| line.split_whitespace().nth(1)).collect();
        assert_eq!(states, ["10.0.0.1:80", "10.0.0.2:80"], "of others the state says more: {rendered}");
        let reason = "ten times slower than its group for 12s; 2 checks in a row passed";
        assert!(rendered.lines().any(|line| line.ends_with(reason)), "{rendered}");
        assert!(render(&groups, true).contains("\u{1b}[33m▲ slow"));
    }

    #[test]
    fn refusals_stand_beside_the_members_that_took_none() {
        let mut status = sample_status();
        status.groups.truncate(1);
        status.groups[0].members.truncate(2);
        let rejections = [("limit".to_owned(), 3), ("member_full".to_owned(), 39)];
        status.groups[0].members[0].refused = rejections.into();
        let groups: Vec<_> = status.groups.iter().collect();
        let rendered = render(&groups, false);
        let cells: Vec<Vec<&str>> =
            rendered.lines().map(|line| line.split("  ").map(str::trim).collect()).collect();
        let has = |line: usize, cell: &str| cells[line].contains(&cell);
        assert!(has(0, "REFUSED") && has(1, "42 member_full") && has(2, "-"), "{rendered}");
    }

    #[test]
    fn what_a_group_can_carry_stands_below() {
        let mut status = sample_status();
        status.groups.truncate(1);
        status.groups[0].members.truncate(1);
        status.groups[0].load_line = Some(load_line::tests::line());
        let groups: Vec<_> = status.groups.iter().collect();
        let rendered = render(&groups, false);
        let tail = rendered.split_once("\n\n").map(|(_, tail)| tail).unwrap_or_default();
        insta::assert_snapshot!(tail, @"
        web  load line 200/s (190 to 1.2k)  40% below it  good: 3 predictions checked, off by 3%

        web  at 80%                                160/s  p50 20.0ms  p99 310ms  3s ago
        web  with one more like the median member  300/s  60% free  p99 100ms
        web  with twice the traffic                200/s  over the load line
        web  without its only usable member        0.0/s  no member is left
        ");
    }

    #[test]
    fn json_keeps_what_it_does_not_know() {
        let json = json!({"schema": 1, "pid": 1, "groups": [{"name": "a", "new": 1}, {"name": "b"}]});
        let expected = json!({"schema": 1, "groups": [{"name": "a", "new": 1}]});
        assert_eq!(filter_groups(json, |name| name == "a"), expected);
    }

    #[test]
    fn a_group_that_does_not_exist() {
        let status = sample_status();
        assert_eq!(unknown_group_message("wbe", &status), "there is no group wbe; did you mean web?");
        assert_eq!(
            unknown_group_message("mail", &status),
            "there is no group mail; there are: web, game servers"
        );
    }
}
