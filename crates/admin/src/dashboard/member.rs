//! The page of a member.

use plimsoll_brain::status::{FactExplanation, MemberExplanation, MemberStatus};
use plimsoll_brain::{MemberState, strategy};
use serde::Serialize;

use super::chart::{Chart, ChartLine, draw_chart};
use super::format::{ago, bytes, count, latency, number, percent, rate};
use super::pages::MAX_EVENTS;
use super::urls::{self, PageUrl};
use super::view_models::{
    ActionLink, EventView, LabeledValue, MemberRow, PageContext, PageFrame, labeled_value, member_line,
};
use crate::api::Operation;
use crate::member_table::{self, LoadScale};

/// A member.
#[derive(Debug, Serialize)]
pub(super) struct MemberPage {
    base: PageFrame,
    group: String,
    group_href: String,
    row: MemberRow,
    scale: &'static str,
    facts: Vec<LabeledValue>,
    told: Vec<ReportedValue>,
    figures: Vec<LabeledValue>,
    alert: Option<AlertView>,
    charts: Vec<Chart>,
    actions: Vec<ActionLink>,
    how: Option<String>,
    events: Vec<EventView>,
}

/// A reported figure of a member.
#[derive(Debug, Serialize)]
pub(super) struct ReportedValue {
    name: String,
    value: String,
    age: String,
    source: String,
}

/// An alert in force.
#[derive(Debug, Serialize)]
pub(super) struct AlertView {
    says: String,
    inputs: Vec<LabeledValue>,
}

/// Returns the page of a member; `None` if there is none that the caller may see.
pub(super) fn member_page(eye: &PageContext<'_>, group: &str, name: &str, path: &str) -> Option<MemberPage> {
    let status = eye.group(group)?;
    let member = status.members.iter().find(|member| member.name == name)?;
    let recent = eye.balancer.recent(group).unwrap_or_default();
    let of_it = recent.members.iter().find(|recent| recent.name == name);
    let scale = LoadScale::of(status, &recent.members);
    let bound = member_table::bound_sessions(eye.listeners(&status.name)).get(name).copied().unwrap_or(0);
    let explained =
        if eye.is_allowed(Operation::Explain, group) { eye.balancer.explain(group) } else { None };
    let explained = explained.and_then(|all| all.members.into_iter().find(|member| member.name == name));
    let mine = |entry: &&crate::EventEntry| entry.group == group && entry.member.as_deref() == Some(name);
    let events: Vec<_> = eye.events().iter().filter(mine).take(MAX_EVENTS).cloned().collect();
    let mut charts = Vec::new();
    if let Some(of_it) = of_it {
        let capacity = member.load_line.as_ref().and_then(|line| line.capacity);
        let rates = ChartLine {
            name: "completed",
            points: recent
                .seconds
                .iter()
                .zip(&of_it.seconds)
                .map(|(at, second)| (at.age_seconds, second.requests_per_second.map(f64::from)))
                .collect(),
        };
        charts.push(draw_chart(
            "m-rate".into(),
            "Completed, requests a second",
            &[rates],
            capacity,
            false,
            rate,
        ));
        let flights = member_line(of_it, 1.0, LoadScale::InFlight(1.0), &recent);
        let flights = ChartLine { name: "under way", ..flights };
        let limit = member.limit.map(f64::from);
        let flights = draw_chart("m-flight".into(), "Requests under way", &[flights], limit, false, number);
        charts.push(Chart { rule_is: "gets nothing new from", ..flights });
        if member.load.is_some() {
            let loads = ChartLine { name: "load", ..member_line(of_it, 1.0, LoadScale::Load(1.0), &recent) };
            let above = of_it.alert_above;
            let loads = draw_chart("m-load".into(), "Load, as reported", &[loads], above, false, number);
            charts.push(Chart { rule_is: "sheds sessions above", ..loads });
        }
    }
    let place = PageUrl::Member { group: group.to_owned(), member: name.to_owned() };
    Some(MemberPage {
        base: eye.frame(name, &place, path),
        group: group.to_owned(),
        group_href: urls::group_url(group),
        row: MemberRow::new(
            status,
            &member_table::with_limit(member, explained.as_ref()),
            of_it,
            scale,
            bound,
        ),
        scale: scale.description(),
        facts: member_facts(member, bound, &status.strategy),
        told: explained.iter().flat_map(|member| &member.facts).map(reported_value).collect(),
        figures: explained
            .iter()
            .flat_map(|member| &member.figures)
            .map(|own| labeled_value(own.name.replace('_', " "), number(own.value)))
            .collect(),
        alert: explained.as_ref().and_then(alert_view),
        charts,
        actions: member_actions(eye, group, member),
        how: super::actions::unavailable_reason(eye.endpoint, eye.caller, Operation::Drain, group),
        events: EventView::all(eye, &events, MAX_EVENTS),
    })
}

fn reported_value(told: &FactExplanation) -> ReportedValue {
    ReportedValue {
        name: told.name.clone(),
        value: number(told.value),
        age: ago(told.age_seconds),
        source: told.source.clone(),
    }
}

fn alert_view(member: &MemberExplanation) -> Option<AlertView> {
    let alert = member.alert.as_ref()?;
    let held = if alert.held { "; it waits until somebody has been told of it" } else { "" };
    let says = format!(
        "Under alert for {}: {} of its sessions are to go elsewhere (decision {}){held}.",
        ago(alert.since_seconds),
        percent(alert.share),
        alert.epoch
    );
    let inputs =
        alert.inputs.iter().map(|(name, value)| labeled_value(name.replace('_', " "), number(*value)));
    Some(AlertView { says, inputs: inputs.collect() })
}

fn member_facts(member: &MemberStatus, bound: u64, strategy: &str) -> Vec<LabeledValue> {
    let mut facts = vec![
        labeled_value("address", member.address.clone()),
        labeled_value("capacity, weight", format!("{}, {}", number(member.capacity), number(member.weight))),
    ];
    let limit = member.limit.map_or_else(|| "no limit".to_owned(), |limit| format!("at most {limit}"));
    facts.push(labeled_value("under way", format!("{}, {limit}", member.in_flight)));
    if let Some(knee) = member.knee {
        facts.push(labeled_value(
            "knee",
            format!("{} at once before they slow one another down", number(knee)),
        ));
    }
    if let Some(line) = &member.load_line {
        let can = match (line.capacity, line.capacity_low, line.capacity_high) {
            (Some(best), Some(low), Some(high)) => {
                format!("{}/s ({} to {})", rate(best), rate(low), rate(high))
            }
            (Some(best), ..) => format!("{}/s", rate(best)),
            (None, Some(low), _) => format!("not known; at least {}/s", rate(low)),
            (None, ..) => "not known".to_owned(),
        };
        facts.push(labeled_value("it can do", can));
        facts.extend(line.source.as_ref().map(|source| labeled_value("known from", source)));
    }
    let effective = member.load_effective.map_or_else(|| "none that counts".to_owned(), number);
    // Operators should know when a strategy ignores reports.
    let heard = match strategy::find(strategy) {
        Some(known) if !known.reads_load => {
            format!(
                "{strategy} does not choose by it; alerts, the load line and a weight that names it go by \
                 {effective}"
            )
        }
        _ => format!("{strategy} goes by {effective}"),
    };
    match member.load {
        Some(load) => facts.push(labeled_value(
            "load",
            format!("{} reported {} ago; {heard}", number(load.value), ago(load.age_seconds)),
        )),
        None if let Some(said) = member.said_age_seconds => facts.push(labeled_value(
            "load",
            format!("none is reported; with its answers it says itself what it can do, {} ago", ago(said)),
        )),
        None => facts.push(labeled_value("load", "nothing is reported of it")),
    }
    facts.push(labeled_value("bound to it", format!("{}, {} of them by leases", bound, member.leases)));
    facts.push(labeled_value(
        "ended",
        format!("{}, {} of them failed", count(member.requests, "request"), member.failures),
    ));
    if member.clients_left > 0 {
        facts.push(labeled_value("given up", count(member.clients_left, "request") + " by their clients"));
    }
    let answers: Vec<String> = member
        .answers
        .iter()
        .filter(|(_, many)| **many > 0)
        .map(|(class, many)| format!("{class} {many}"))
        .collect();
    if !answers.is_empty() {
        facts.push(labeled_value("answers", answers.join(", ")));
    }
    if member.latency.count > 0 {
        let all = member.latency;
        let said = format!(
            "p50 {}, p90 {}, p99 {}, p99.9 {}",
            latency(all.p50),
            latency(all.p90),
            latency(all.p99),
            latency(all.p999)
        );
        facts.push(labeled_value("times since the start", said));
    }
    facts.push(labeled_value(
        "connections",
        format!("{} opened, {} idle", member.connects, member.idle_connections),
    ));
    facts.push(labeled_value(
        "bytes",
        format!("{} to it, {} from it", bytes(member.bytes_out), bytes(member.bytes_in)),
    ));
    facts.push(labeled_value("sessions sent elsewhere", member.moved.to_string()));
    facts
}

fn member_actions(eye: &PageContext<'_>, group: &str, member: &MemberStatus) -> Vec<ActionLink> {
    let of = [("group", group), ("member", &*member.name)];
    let mut actions = Vec::new();
    let mut offer = |verb: Operation, word: &'static str, about: &str| {
        if eye.can_execute(verb, group) {
            actions.push(ActionLink {
                word,
                about: about.to_owned(),
                href: urls::action_url(verb.name(), &of),
            });
        }
    };
    match member.state {
        MemberState::Draining => offer(Operation::Undrain, "Undrain", "take it back"),
        _ => offer(Operation::Drain, "Drain", "nothing new for it; what it has ends in its own time"),
    }
    match member.state {
        MemberState::Disabled => offer(Operation::Enable, "Enable", "put it back in use"),
        _ => offer(Operation::Disable, "Disable", "out of use at once, without anybody being told"),
    }
    actions
}
