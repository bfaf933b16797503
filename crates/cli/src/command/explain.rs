//! `plimsoll explain`: the balancer's data of each member, the results, and the reasons.

use std::process::ExitCode;

use plimsoll_brain::status::{Figure, GroupExplanation, Happening, MemberExplanation};
use plimsoll_brain::strategy;
use serde::Deserialize as _;
use serde_json::Value;

use super::{Exit, Failure, Globals, events};
use crate::control::text::{self, Cell, Tone, ago, plain, short, table, utc};
use crate::control::{self, Said, Where};

/// Say what is known of each member, how old it is, what the strategy makes of it, and what was decided lately
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    /// Explain a group and its members
    Group {
        /// Its name
        name: String,

        #[command(flatten)]
        at: Where,
    },
}

pub(super) fn run(args: &Args, globals: &Globals) -> Result<ExitCode, Failure> {
    let What::Group { name, at } = &args.what;
    if name.is_empty() || !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte)) {
        return Err(Failure::new(Exit::Usage, format_args!("{} is not the name of a group", plain(name))));
    }
    control::each(at, globals, |balancer, _| {
        let json: Value = balancer.get(&format!("/v1/groups/{name}/explain"))?;
        let explanation = GroupExplanation::deserialize(&json)
            .map_err(|error| Failure::failed(format_args!("the balancer is of another version: {error}")))?;
        Ok(Said::shown(json, render(&explanation, globals.color())))
    })
}

fn render(group: &GroupExplanation, color: bool) -> String {
    let mut out = head(group, color);
    let mut part = |rows: Vec<Vec<Cell>>| {
        if rows.len() > 1 {
            out.push('\n');
            out.push_str(&table(&rows, color));
        }
    };
    part(members(group));
    part(facts(group));
    part(happenings(group));
    out
}

/// Returns the lines for the group as a whole.
fn head(group: &GroupExplanation, color: bool) -> String {
    let knobs: Vec<String> =
        group.knobs.iter().map(|(name, value)| format!("{} = {value}", plain(name))).collect();
    let strategy = match knobs.as_slice() {
        [] => group.strategy.clone(),
        knobs => format!("{} {{ {} }}", group.strategy, knobs.join(", ")),
    };
    let mut rows = vec![vec![
        Cell::text("group").tone(Tone::Faint),
        Cell::text(&format!("{}: {}", group.name, group.verdict)).tone(Tone::Strong),
    ]];
    let mut row = |name: &str, text: &str| {
        rows.push(vec![Cell::text(name).tone(Tone::Faint), Cell::text(text)]);
    };
    let off = if group.balancing_disabled { " (balancing disabled)" } else { "" };
    row("strategy", &format!("{strategy}{off}"));
    if let Some(weight) = &group.weight {
        row("weight", weight);
    }
    match &group.monitor {
        Some(monitor) => {
            let interval = text::latency(monitor.interval_seconds);
            let deaf = group.weight.is_none()
                && strategy::find(&group.strategy).is_some_and(|strategy| !strategy.reads_load);
            let heard = if deaf {
                format!("; {} does not choose by it, alerts and the load line do", group.strategy)
            } else {
                String::new()
            };
            row("load", &format!("{} ({}, every {interval}){heard}", monitor.metric, monitor.source));
        }
        None => row("load", "no monitor: what is told is kept, and no load is made of it"),
    }
    table(&rows, color)
}

fn members(group: &GroupExplanation) -> Vec<Vec<Cell>> {
    let heading = |text: &str| Cell::text(text).tone(Tone::Strong);
    let number = |text: &str| Cell::number(text).tone(Tone::Strong);
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
        let (glyph, word, tone) = text::state(member.state);
        let in_flight = match member.limit {
            Some(limit) => format!("{}/{limit}", member.in_flight),
            None => member.in_flight.to_string(),
        };
        let (load, age) = match member.load {
            Some(load) => (short(load.value), age(load.age_seconds)),
            None => ("-".into(), "-".into()),
        };
        let figures: Vec<String> = member.figures.iter().map(figure).collect();
        rows.push(vec![
            Cell::text(&member.name),
            Cell::text(&format!("{glyph} {word}")).tone(tone),
            Cell::number(ago(member.since_seconds)),
            if member.eligible { Cell::text("yes") } else { Cell::text("no").tone(Tone::Fair) },
            Cell::number(short(member.weight)),
            Cell::number(in_flight),
            Cell::number(load),
            Cell::number(age),
            Cell::text(&figures.join(" ")).tone(Tone::Faint),
            Cell::text(&why(member)).tone(Tone::Faint),
        ]);
    }
    rows
}

/// Returns the reason for its state, and the trouble with its load.
fn why(member: &MemberExplanation) -> String {
    let mut why = vec![member.why.clone()];
    why.extend(member.trouble.clone());
    if let Some(alert) = &member.alert {
        why.push(format!(
            "under alert for {}: {} % of its sessions are to go{}",
            ago(alert.since_seconds),
            short(100.0 * alert.share),
            if alert.held { ", once they have been handed over" } else { "" }
        ));
    }
    if member.moved > 0 {
        why.push(format!("{} sessions sent elsewhere", text::grouped(member.moved)));
    }
    if member.dropped > 0 {
        why.push(format!("{} reports dropped", text::grouped(member.dropped)));
    }
    why.join("; ")
}

fn facts(group: &GroupExplanation) -> Vec<Vec<Cell>> {
    let heading = |text: &str| Cell::text(text).tone(Tone::Strong);
    let number = |text: &str| Cell::number(text).tone(Tone::Strong);
    let mut rows =
        vec![vec![heading("MEMBER"), heading("TOLD"), number("VALUE"), number("AGE"), heading("SOURCE")]];
    for member in &group.members {
        for fact in &member.facts {
            rows.push(vec![
                Cell::text(&member.name),
                Cell::text(&fact.name),
                Cell::number(short(fact.value)),
                Cell::number(age(fact.age_seconds)),
                Cell::text(&fact.source).tone(Tone::Faint),
            ]);
        }
    }
    rows
}

fn happenings(group: &GroupExplanation) -> Vec<Vec<Cell>> {
    let heading = |text: &str| Cell::text(text).tone(Tone::Strong);
    let mut rows = vec![vec![heading("WHEN"), heading("MEMBER"), heading("WHAT"), heading("WHY")]];
    let of_members = group
        .members
        .iter()
        .flat_map(|member| member.events.iter().map(|event| (member.name.as_str(), event)));
    let mut all: Vec<(&str, &Happening)> =
        group.events.iter().map(|event| ("-", event)).chain(of_members).collect();
    all.sort_by_key(|(_, event)| event.seq);
    for (member, event) in all {
        let (word, tone) = events::kind(event.kind, &event.why);
        rows.push(vec![
            Cell::text(&utc(event.unix_ms)).tone(Tone::Faint),
            Cell::text(member),
            Cell::text(word).tone(tone),
            Cell::text(&event.why),
        ]);
    }
    rows
}

fn figure(figure: &Figure) -> String {
    format!("{}={}", figure.name, short(figure.value))
}

/// Returns an age: under ten seconds to a tenth of one, a longer one like others.
fn age(seconds: f64) -> String {
    if seconds < 9.95 { format!("{:.1}s", seconds.max(0.0)) } else { ago(seconds) }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use plimsoll_brain::status::{FactExplanation, LoadExplanation, MonitorExplanation};
    use plimsoll_brain::{EventKind, State};

    use super::*;

    fn event(seq: u64, kind: EventKind, why: &str) -> Happening {
        let unix_ms = 1_795_195_840_000 + seq;
        Happening { seq, unix_ms, kind, why: why.into(), inputs: BTreeMap::new() }
    }

    fn member(name: &str, state: State, why: &str) -> MemberExplanation {
        MemberExplanation {
            name: name.into(),
            address: name.into(),
            state,
            eligible: state.eligible(),
            why: why.into(),
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
            figures: vec![Figure { name: "share".into(), value: 0.25 }],
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
            ..member("10.0.0.1:80", State::Up, "no health checks")
        };
        let out = MemberExplanation {
            trouble: Some("`cpu` was never told".into()),
            dropped: 1234,
            events: vec![event(2, EventKind::Ejected, "5 failures in a row")],
            figures: Vec::new(),
            ..member("10.0.0.2:80", State::Ejected, "5 failures in a row; out for 10 s")
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
            members: vec![up, out],
            events: vec![event(1, EventKind::Changed, "strategy random -> expression by an operator")],
        }
    }

    #[test]
    fn balancing_that_is_switched_off_is_said() {
        let group = GroupExplanation { balancing_disabled: true, strategy: "round_robin".into(), ..sample() };
        assert!(head(&group, false).contains("round_robin (balancing disabled)"));
    }

    #[test]
    fn who_reports_to_a_strategy_that_does_not_listen_is_told() {
        let heard = |strategy: &str, weight: Option<&str>| {
            let group =
                GroupExplanation { strategy: strategy.into(), weight: weight.map(Into::into), ..sample() };
            !render(&group, false).contains("does not choose by it")
        };
        assert!(heard("least_loaded", None) && heard("adaptive", Some("1 / cpu")));
        assert!(!heard("adaptive", None) && !heard("least_connections", None));
    }

    #[test]
    fn the_page() {
        insta::assert_snapshot!(render(&sample(), false), @"
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
        ");
        let mut other = sample();
        (other.monitor, other.weight) = (None, None);
        other.knobs = BTreeMap::from([("choices".into(), 2.0)]);
        other.members.clear();
        other.events.clear();
        insta::assert_snapshot!(render(&other, false), @"
        group     web: 1/2 members up, 1 ejected
        strategy  expression { choices = 2 }
        load      no monitor: what is told is kept, and no load is made of it
        ");
    }

    #[test]
    fn ages_are_short() {
        assert_eq!([0.04, 3.26, 75.0, -1.0].map(age), ["0.0s", "3.3s", "1m 15s", "0.0s"]);
    }
}
