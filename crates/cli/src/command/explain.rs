//! `plimsoll explain`: the balancer's data of each member, the results, and the reasons; and the route of a
//! request.

mod request;

use std::process::ExitCode;

use plimsoll_brain::status::{GroupExplanation, LoggedEvent, MemberExplanation, StrategyFigure};
use plimsoll_brain::strategy;
use serde::Deserialize as _;
use serde_json::Value;

use super::{CliError, CliExitCode, GlobalArgs, events};
use crate::control::format::{
    self, TableCell, TextStyle, sanitize, short_duration, short_number, table, utc_time,
};
use crate::control::{self, BalancerSelector, CommandOutput};

/// Show the measurements of each member, their age, the strategy's result, and the latest decisions
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: ExplainCommand,
}

#[derive(Debug, clap::Subcommand)]
enum ExplainCommand {
    /// Explain a group and its members
    Group {
        /// Name of the group
        name: String,

        #[command(flatten)]
        at: BalancerSelector,
    },
    Request(request::Args),
}

pub(super) fn run(args: &Args, globals: &GlobalArgs) -> Result<ExitCode, CliError> {
    let (name, at) = match &args.what {
        ExplainCommand::Group { name, at } => (name, at),
        ExplainCommand::Request(args) => return request::run(args, globals),
    };
    if name.is_empty() || !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte)) {
        return Err(CliError::new(
            CliExitCode::Usage,
            format_args!("{} is not the name of a group", sanitize(name)),
        ));
    }
    control::run_each(at, globals, |balancer, _| {
        let json: Value = balancer.get(&format!("/v1/groups/{name}/explain"))?;
        let explanation = GroupExplanation::deserialize(&json)
            .map_err(|error| CliError::failed(format_args!("the balancer is of another version: {error}")))?;
        Ok(CommandOutput::from_view(json, render(&explanation, globals.stdout_has_color())))
    })
}

fn render(group: &GroupExplanation, color: bool) -> String {
    let mut out = render_header(group, color);
    let mut push_table = |rows: Vec<Vec<TableCell>>| {
        if rows.len() > 1 {
            out.push('\n');
            out.push_str(&table(&rows, color));
        }
    };
    push_table(member_rows(group));
    push_table(fact_rows(group));
    push_table(event_rows(group));
    out
}

/// Returns the lines for the group as a whole.
fn render_header(group: &GroupExplanation, color: bool) -> String {
    let settings: Vec<String> =
        group.knobs.iter().map(|(name, value)| format!("{} = {value}", sanitize(name))).collect();
    let strategy = match settings.as_slice() {
        [] => group.strategy.clone(),
        settings => format!("{} {{ {} }}", group.strategy, settings.join(", ")),
    };
    let mut rows = vec![vec![
        TableCell::text("group").style(TextStyle::Faint),
        TableCell::text(&format!("{}: {}", group.name, group.verdict)).style(TextStyle::Strong),
    ]];
    let mut row = |name: &str, text: &str| {
        rows.push(vec![TableCell::text(name).style(TextStyle::Faint), TableCell::text(text)]);
    };
    let disabled_note = if group.balancing_disabled { " (balancing disabled)" } else { "" };
    row("strategy", &format!("{strategy}{disabled_note}"));
    if let Some(weight) = &group.weight {
        row("weight", weight);
    }
    match &group.monitor {
        Some(monitor) => {
            let interval = format::latency(monitor.interval_seconds);
            let ignores_load = group.weight.is_none()
                && strategy::find(&group.strategy).is_some_and(|strategy| !strategy.reads_load);
            let load_note = if ignores_load {
                format!("; {} does not choose by it, alerts and the load line do", group.strategy)
            } else {
                String::new()
            };
            row("load", &format!("{} ({}, every {interval}){load_note}", monitor.metric, monitor.source));
        }
        None => row("load", "no monitor: what is told is kept, and no load is made of it"),
    }
    table(&rows, color)
}

fn member_rows(group: &GroupExplanation) -> Vec<Vec<TableCell>> {
    let heading = |text: &str| TableCell::text(text).style(TextStyle::Strong);
    let number = |text: &str| TableCell::number(text).style(TextStyle::Strong);
    let mut rows = vec![vec![
        heading("MEMBER"),
        heading("STATE"),
        number("SINCE"),
        heading("CHOSEN"),
        number("WEIGHT"),
        number("IN FLIGHT"),
        number("LOAD"),
        number("AGE"),
        heading("STRATEGY"),
        heading("WHY"),
    ]];
    for member in &group.members {
        let (glyph, label, style) = format::state_label(member.state);
        let in_flight = match member.limit {
            Some(limit) => format!("{}/{limit}", member.in_flight),
            None => member.in_flight.to_string(),
        };
        let (load, age) = match member.load {
            Some(load) => (short_number(load.value), format_age(load.age_seconds)),
            None => ("-".into(), "-".into()),
        };
        let figures: Vec<String> = member.figures.iter().map(format_figure).collect();
        rows.push(vec![
            TableCell::text(&member.name),
            TableCell::text(&format!("{glyph} {label}")).style(style),
            TableCell::number(short_duration(member.since_seconds)),
            if member.eligible {
                TableCell::text("yes")
            } else {
                TableCell::text("no").style(TextStyle::Fair)
            },
            TableCell::number(short_number(member.weight)),
            TableCell::number(in_flight),
            TableCell::number(load),
            TableCell::number(age),
            TableCell::text(&figures.join(" ")).style(TextStyle::Faint),
            TableCell::text(&member_reasons(member)).style(TextStyle::Faint),
        ]);
    }
    rows
}

/// Returns the reason for its state, and the trouble with its load.
fn member_reasons(member: &MemberExplanation) -> String {
    let mut reasons = vec![member.why.clone()];
    reasons.extend(member.trouble.clone());
    if let Some(alert) = &member.alert {
        reasons.push(format!(
            "under alert for {}: {} % of its sessions are to go{}",
            short_duration(alert.since_seconds),
            short_number(100.0 * alert.share),
            if alert.held { ", once they have been handed over" } else { "" }
        ));
    }
    if member.moved > 0 {
        reasons.push(format!("{} sessions sent elsewhere", format::group_digits(member.moved)));
    }
    if member.dropped > 0 {
        reasons.push(format!("{} reports dropped", format::group_digits(member.dropped)));
    }
    reasons.join("; ")
}

fn fact_rows(group: &GroupExplanation) -> Vec<Vec<TableCell>> {
    let heading = |text: &str| TableCell::text(text).style(TextStyle::Strong);
    let number = |text: &str| TableCell::number(text).style(TextStyle::Strong);
    let mut rows =
        vec![vec![heading("MEMBER"), heading("TOLD"), number("VALUE"), number("AGE"), heading("SOURCE")]];
    for member in &group.members {
        for fact in &member.facts {
            rows.push(vec![
                TableCell::text(&member.name),
                TableCell::text(&fact.name),
                TableCell::number(short_number(fact.value)),
                TableCell::number(format_age(fact.age_seconds)),
                TableCell::text(&fact.source).style(TextStyle::Faint),
            ]);
        }
    }
    rows
}

fn event_rows(group: &GroupExplanation) -> Vec<Vec<TableCell>> {
    let heading = |text: &str| TableCell::text(text).style(TextStyle::Strong);
    let mut rows = vec![vec![heading("WHEN"), heading("MEMBER"), heading("WHAT"), heading("WHY")]];
    let member_events = group
        .members
        .iter()
        .flat_map(|member| member.events.iter().map(|event| (member.name.as_str(), event)));
    let mut all_events: Vec<(&str, &LoggedEvent)> =
        group.events.iter().map(|event| ("-", event)).chain(member_events).collect();
    all_events.sort_by_key(|(_, event)| event.seq);
    for (member, event) in all_events {
        let (label, style) = events::kind_label(event.kind, &event.why);
        rows.push(vec![
            TableCell::text(&utc_time(event.unix_ms)).style(TextStyle::Faint),
            TableCell::text(member),
            TableCell::text(label).style(style),
            TableCell::text(&event.why),
        ]);
    }
    rows
}

fn format_figure(figure: &StrategyFigure) -> String {
    format!("{}={}", figure.name, short_number(figure.value))
}

/// Returns an age: under ten seconds to a tenth of one, a longer one like others.
fn format_age(seconds: f64) -> String {
    if seconds < 9.95 { format!("{:.1}s", seconds.max(0.0)) } else { short_duration(seconds) }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use plimsoll_brain::status::{FactExplanation, LoadExplanation, MonitorExplanation};
    use plimsoll_brain::{EventKind, MemberState};

    use super::*;

    fn event(seq: u64, kind: EventKind, reason: &str) -> LoggedEvent {
        let unix_ms = 1_795_195_840_000 + seq;
        LoggedEvent { seq, unix_ms, kind, why: reason.into(), inputs: BTreeMap::new() }
    }

    fn member(name: &str, state: MemberState, reason: &str) -> MemberExplanation {
        MemberExplanation {
            name: name.into(),
            address: name.into(),
            state,
            eligible: state.is_eligible(),
            why: reason.into(),
            since_seconds: 200.0,
            capacity: 1.0,
            weight: 1.0 / 3.0,
            in_flight: 7,
            moved: 0,
            alert: None,
            limit: None,
            load: None,
            trouble: None,
            facts: Vec::new(),
            dropped: 0,
            figures: vec![StrategyFigure { name: "share".into(), value: 0.25 }],
            events: Vec::new(),
        }
    }

    fn sample() -> GroupExplanation {
        let fact = |name: &str, value, age_seconds| FactExplanation {
            name: name.into(),
            value,
            age_seconds,
            source: "push".into(),
        };
        let up = MemberExplanation {
            load: Some(LoadExplanation { value: 0.4321, age_seconds: 0.24 }),
            facts: vec![fact("cpu", 0.4321, 0.24), fact("memory", 1.5e10, 75.0)],
            limit: Some(64),
            ..member("10.0.0.1:80", MemberState::Up, "no health checks")
        };
        let ejected = MemberExplanation {
            trouble: Some("`cpu` was never told".into()),
            dropped: 1234,
            events: vec![event(2, EventKind::Ejected, "5 failures in a row")],
            figures: Vec::new(),
            ..member("10.0.0.2:80", MemberState::Ejected, "5 failures in a row; out for 10 s")
        };
        GroupExplanation {
            schema: 1,
            name: "web".into(),
            strategy: "expression".into(),
            balancing_disabled: false,
            knobs: BTreeMap::new(),
            weight: Some("capacity / (1 + cpu)".into()),
            verdict: "1/2 members up, 1 ejected".into(),
            monitor: Some(MonitorExplanation {
                source: "push".into(),
                metric: "cpu".into(),
                interval_seconds: 1.0,
            }),
            members: vec![up, ejected],
            events: vec![event(1, EventKind::Changed, "strategy random -> expression by an operator")],
        }
    }

    #[test]
    fn balancing_that_is_switched_off_is_said() {
        let group = GroupExplanation { balancing_disabled: true, strategy: "round_robin".into(), ..sample() };
        assert!(render_header(&group, false).contains("round_robin (balancing disabled)"));
    }

    #[test]
    fn who_reports_to_a_strategy_that_does_not_listen_is_told() {
        let is_heard = |strategy: &str, weight: Option<&str>| {
            let group =
                GroupExplanation { strategy: strategy.into(), weight: weight.map(Into::into), ..sample() };
            !render(&group, false).contains("does not choose by it")
        };
        assert!(is_heard("least_loaded", None) && is_heard("adaptive", Some("1 / cpu")));
        assert!(!is_heard("adaptive", None) && !is_heard("least_connections", None));
    }

    #[test]
    fn the_page() {
        insta::assert_snapshot!(render(&sample(), false), @r#"
        group     web: 1/2 members up, 1 ejected
        strategy  expression
        weight    capacity / (1 + cpu)
        load      cpu (push, every 1.00s)

        MEMBER       STATE       SINCE  CHOSEN  WEIGHT  IN FLIGHT    LOAD   AGE  STRATEGY    WHY
        10.0.0.1:80  ● up       3m 20s  yes     0.3333       7/64  0.4321  0.2s  share=0.25  no health checks
        10.0.0.2:80  ⊘ ejected  3m 20s  no      0.3333          7       -     -              5 failures in a row; out for 10 s; `cpu` was never told; 1 234 reports dropped

        MEMBER       TOLD       VALUE     AGE  SOURCE
        10.0.0.1:80  cpu       0.4321    0.2s  push
        10.0.0.1:80  memory  1.500e10  1m 15s  push

        WHEN                      MEMBER       WHAT     WHY
        2026-11-20 17:30:40.001Z  -            changed  strategy random -> expression by an operator
        2026-11-20 17:30:40.002Z  10.0.0.2:80  ejected  5 failures in a row
        "#);
        let mut changed = sample();
        (changed.monitor, changed.weight) = (None, None);
        changed.knobs = BTreeMap::from([("choices".into(), 2.0)]);
        changed.members.clear();
        changed.events.clear();
        insta::assert_snapshot!(render(&changed, false), @"
        group     web: 1/2 members up, 1 ejected
        strategy  expression { choices = 2 }
        load      no monitor: what is told is kept, and no load is made of it
        ");
    }

    #[test]
    fn ages_are_short() {
        assert_eq!([0.04, 3.26, 75.0, -1.0].map(format_age), ["0.0s", "3.3s", "1m 15s", "0.0s"]);
    }
}
