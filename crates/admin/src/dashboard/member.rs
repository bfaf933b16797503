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
pub(super) fn member_page(
    page_context: &PageContext<'_>,
    group: &str,
    name: &str,
    path: &str,
) -> Option<MemberPage> {
    let status = page_context.group(group)?;
    let member = status.members.iter().find(|member| member.name == name)?;
    let recent = page_context.balancer.recent(group).unwrap_or_default();
    let member_recent = recent.members.iter().find(|recent| recent.name == name);
    let scale = LoadScale::of(status, &recent.members);
    let bound_count =
        member_table::bound_sessions(page_context.listeners(&status.name)).get(name).copied().unwrap_or(0);
    let group_explanation = if page_context.is_allowed(Operation::Explain, group) {
        page_context.balancer.explain(group)
    } else {
        None
    };
    let explanation = group_explanation
        .and_then(|explained_group| explained_group.members.into_iter().find(|member| member.name == name));
    let is_of_member =
        |entry: &&crate::EventEntry| entry.group == group && entry.member.as_deref() == Some(name);
    let events: Vec<_> =
        page_context.events().iter().filter(is_of_member).take(MAX_EVENTS).cloned().collect();
    let mut charts = Vec::new();
    if let Some(member_recent) = member_recent {
        let capacity = member.load_line.as_ref().and_then(|line| line.capacity);
        let rates = ChartLine {
            name: "completed",
            points: recent
                .seconds
                .iter()
                .zip(&member_recent.seconds)
                .map(|(second_info, second)| {
                    (second_info.age_seconds, second.requests_per_second.map(f64::from))
                })
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
        let in_flight_line = member_line(member_recent, 1.0, LoadScale::InFlight(1.0), &recent);
        let in_flight_line = ChartLine { name: "under way", ..in_flight_line };
        let limit = member.limit.map(f64::from);
        let in_flight_chart =
            draw_chart("m-flight".into(), "Requests under way", &[in_flight_line], limit, false, number);
        charts.push(Chart { rule_is: "gets nothing new from", ..in_flight_chart });
        if member.load.is_some() {
            let load_line =
                ChartLine { name: "load", ..member_line(member_recent, 1.0, LoadScale::Load(1.0), &recent) };
            let alert_above = member_recent.alert_above;
            let load_chart =
                draw_chart("m-load".into(), "Load, as reported", &[load_line], alert_above, false, number);
            charts.push(Chart { rule_is: "sheds sessions above", ..load_chart });
        }
    }
    let page_url = PageUrl::Member { group: group.to_owned(), member: name.to_owned() };
    Some(MemberPage {
        base: page_context.frame(name, &page_url, path),
        group: group.to_owned(),
        group_href: urls::group_url(group),
        row: MemberRow::new(
            status,
            &member_table::with_limit(member, explanation.as_ref()),
            member_recent,
            scale,
            bound_count,
        ),
        scale: scale.description(),
        facts: member_facts(member, bound_count, &status.strategy),
        told: explanation.iter().flat_map(|member| &member.facts).map(reported_value).collect(),
        figures: explanation
            .iter()
            .flat_map(|member| &member.figures)
            .map(|figure| labeled_value(figure.name.replace('_', " "), number(figure.value)))
            .collect(),
        alert: explanation.as_ref().and_then(alert_view),
        charts,
        actions: member_actions(page_context, group, member),
        how: super::actions::unavailable_reason(
            page_context.endpoint,
            page_context.caller,
            Operation::Drain,
            group,
        ),
        events: EventView::all(page_context, &events, MAX_EVENTS),
    })
}

fn reported_value(fact: &FactExplanation) -> ReportedValue {
    ReportedValue {
        name: fact.name.clone(),
        value: number(fact.value),
        age: ago(fact.age_seconds),
        source: fact.source.clone(),
    }
}

fn alert_view(member: &MemberExplanation) -> Option<AlertView> {
    let alert = member.alert.as_ref()?;
    let held_text = if alert.held { "; it waits for the answer of the drain hook" } else { "" };
    let summary = format!(
        "Under alert for {}: {} of its sessions are to go elsewhere (decision {}){held_text}.",
        ago(alert.since_seconds),
        percent(alert.share),
        alert.epoch
    );
    let inputs =
        alert.inputs.iter().map(|(name, value)| labeled_value(name.replace('_', " "), number(*value)));
    Some(AlertView { says: summary, inputs: inputs.collect() })
}

fn member_facts(member: &MemberStatus, bound_count: u64, strategy: &str) -> Vec<LabeledValue> {
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
        let capacity_text = match (line.capacity, line.capacity_low, line.capacity_high) {
            (Some(capacity), Some(low), Some(high)) => {
                format!("{}/s ({} to {})", rate(capacity), rate(low), rate(high))
            }
            (Some(capacity), ..) => format!("{}/s", rate(capacity)),
            (None, Some(low), _) => format!("not known; at least {}/s", rate(low)),
            (None, ..) => "not known".to_owned(),
        };
        facts.push(labeled_value("it can do", capacity_text));
        facts.extend(line.source.as_ref().map(|source| labeled_value("known from", source)));
    }
    let effective = member.load_effective.map_or_else(|| "none that counts".to_owned(), number);
    // Operators should know when a strategy ignores reports.
    let strategy_text = match strategy::find(strategy) {
        Some(strategy_info) if !strategy_info.reads_load => {
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
            format!("{} reported {} ago; {strategy_text}", number(load.value), ago(load.age_seconds)),
        )),
        None if let Some(said_age) = member.said_age_seconds => facts.push(labeled_value(
            "load",
            format!(
                "none is reported; with its answers it says itself what it can do, {} ago",
                ago(said_age)
            ),
        )),
        None => facts.push(labeled_value("load", "nothing is reported of it")),
    }
    facts.push(labeled_value("bound to it", format!("{}, {} of them by leases", bound_count, member.leases)));
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
        .filter(|(_, answer_count)| **answer_count > 0)
        .map(|(class, answer_count)| format!("{class} {answer_count}"))
        .collect();
    if !answers.is_empty() {
        facts.push(labeled_value("answers", answers.join(", ")));
    }
    if member.latency.count > 0 {
        let latency_summary = member.latency;
        let latency_text = format!(
            "p50 {}, p90 {}, p99 {}, p99.9 {}",
            latency(latency_summary.p50),
            latency(latency_summary.p90),
            latency(latency_summary.p99),
            latency(latency_summary.p999)
        );
        facts.push(labeled_value("times since the start", latency_text));
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

fn member_actions(page_context: &PageContext<'_>, group: &str, member: &MemberStatus) -> Vec<ActionLink> {
    let member_fields = [("group", group), ("member", &*member.name)];
    let mut actions = Vec::new();
    let mut offer_action = |operation: Operation, label: &'static str, about: &str| {
        if page_context.can_execute(operation, group) {
            actions.push(ActionLink {
                word: label,
                about: about.to_owned(),
                href: urls::action_url(operation.name(), &member_fields),
            });
        }
    };
    match member.state {
        MemberState::Draining => offer_action(Operation::Undrain, "Undrain", "take it back"),
        _ => offer_action(Operation::Drain, "Drain", "nothing new for it; what it has ends in its own time"),
    }
    match member.state {
        MemberState::Disabled => offer_action(Operation::Enable, "Enable", "put it back in use"),
        _ => offer_action(
            Operation::Disable,
            "Disable",
            "out of use at once, without a call of the drain hook",
        ),
    }
    actions
}
