//! The home page, and the page of a group.

use plimsoll_brain::status::{GroupStatus, SourceStatus};
use plimsoll_brain::strategy;
use serde::Serialize;

use super::format::{ago, count, latency, number, percent, rate};
use super::urls::{self, PageUrl};
use super::view_models::{
    ActionLink, EventView, GroupView, LabeledValue, MAX_GROUP_MEMBERS, MAX_HOME_MEMBERS, PageContext,
    PageFrame, labeled_value,
};
use crate::LeaseHolder;
use crate::api::Operation;

/// The maximum number of groups on the home page.
const MAX_GROUPS: usize = 50;
/// The maximum number of groups with charts on the home page.
const MAX_CHARTED_GROUPS: usize = 6;
/// The number of events on pages with other contents.
pub(super) const MAX_EVENTS: usize = 20;

/// The home page.
#[derive(Debug, Serialize)]
pub(super) struct HomePage {
    base: PageFrame,
    groups: Vec<GroupView>,
    hidden: usize,
    events: Vec<EventView>,
}

/// Returns the page of all groups.
pub(super) fn home_page(page_context: &PageContext<'_>, path: &str) -> HomePage {
    let mut groups: Vec<GroupView> = Vec::new();
    for (index, group) in page_context.status.groups.iter().take(MAX_GROUPS).enumerate() {
        let mut group_view = GroupView::new(page_context, group, index, MAX_HOME_MEMBERS);
        if index >= MAX_CHARTED_GROUPS {
            group_view.charts.clear();
        }
        groups.push(group_view);
    }
    HomePage {
        base: page_context.frame("Overview", &PageUrl::Home, path),
        hidden: page_context.status.groups.len().saturating_sub(MAX_GROUPS),
        groups,
        events: EventView::all(page_context, &page_context.events(), MAX_EVENTS),
    }
}

/// A prediction.
#[derive(Debug, Serialize)]
pub(super) struct PredictionRow {
    at: String,
    rate: String,
    says: String,
    over: bool,
}

/// A group.
#[derive(Debug, Serialize)]
pub(super) struct GroupPage {
    base: PageFrame,
    group: GroupView,
    facts: Vec<LabeledValue>,
    /// The facts about its load line.
    line: Vec<LabeledValue>,
    predicted: Vec<PredictionRow>,
    knobs: Vec<LabeledValue>,
    rejected: Vec<LabeledValue>,
    sources: Vec<SourceRow>,
    leases: Vec<LeaseRow>,
    actions: Vec<ActionLink>,
    /// The strategies to choose from, if the caller may.
    strategies: Vec<&'static str>,
    /// The alternative way to act, if it is not possible here.
    how: Option<String>,
    events: Vec<EventView>,
}

/// A source of members.
#[derive(Debug, Serialize)]
pub(super) struct SourceRow {
    what: String,
    members: usize,
    age: String,
    state: String,
    bad: bool,
}

/// Leases of one holder.
#[derive(Debug, Serialize)]
pub(super) struct LeaseRow {
    member: String,
    from: String,
    leases: usize,
    left: String,
}

/// Returns the page of a group; `None` if there is none that the caller may see.
pub(super) fn group_page(page_context: &PageContext<'_>, name: &str, path: &str) -> Option<GroupPage> {
    let group = page_context.group(name)?;
    let explanation = if page_context.is_allowed(Operation::Explain, name) {
        page_context.balancer.explain(name)
    } else {
        None
    };
    let mut settings: Vec<LabeledValue> = Vec::new();
    if let Some(explanation) = &explanation {
        settings.extend(
            explanation
                .knobs
                .iter()
                .map(|(setting, value)| labeled_value(setting.replace('_', " "), number(*value))),
        );
        settings.extend(explanation.weight.as_ref().map(|weight| labeled_value("weight", weight)));
        if let Some(monitor) = &explanation.monitor {
            let monitor_text = format!(
                "{} by {}, every {}",
                monitor.metric,
                monitor.source,
                latency(monitor.interval_seconds)
            );
            settings.push(labeled_value("load is", monitor_text));
        }
    }
    let is_of_group = |entry: &&crate::EventEntry| entry.group == name;
    let events: Vec<_> = page_context.events().iter().filter(is_of_group).take(MAX_EVENTS).cloned().collect();
    let leases = if page_context.is_allowed(Operation::Leases, name) {
        page_context.balancer.leases(name).unwrap_or_default()
    } else {
        Vec::new()
    };
    let can_set = page_context.can_execute(Operation::Set, name);
    Some(GroupPage {
        base: page_context.frame(name, &PageUrl::Group(name.to_owned()), path),
        group: GroupView::new(page_context, group, 0, MAX_GROUP_MEMBERS),
        facts: group_facts(page_context, group),
        line: load_line(group),
        predicted: prediction_rows(group),
        knobs: settings,
        rejected: group
            .rejected
            .iter()
            .filter(|(_, rejected_count)| **rejected_count > 0)
            .map(|(reason, rejected_count)| {
                labeled_value(reason.replace('_', " "), rejected_count.to_string())
            })
            .collect(),
        sources: group.discovery.iter().map(source_row).collect(),
        leases: leases.iter().map(lease_row).collect(),
        actions: group_actions(page_context, group),
        strategies: if can_set {
            strategy::ALL.iter().map(|strategy| strategy.name).collect()
        } else {
            Vec::new()
        },
        how: super::actions::unavailable_reason(
            page_context.endpoint,
            page_context.caller,
            Operation::Set,
            name,
        ),
        events: EventView::all(page_context, &events, MAX_EVENTS),
    })
}

fn group_facts(page_context: &PageContext<'_>, group: &GroupStatus) -> Vec<LabeledValue> {
    let mut facts = vec![labeled_value("strategy", group.strategy.clone())];
    for listener in page_context.listeners(&group.name) {
        let closed_text = if listener.disabled { ", closed by an operator" } else { "" };
        let listener_text = format!(
            "{} {}, {} open, {} accepted, {} refused, bound {}{closed_text}",
            listener.protocol,
            listener.address,
            listener.connections,
            listener.accepted,
            listener.refused,
            listener.binding.replace('_', " ")
        );
        facts.push(labeled_value("listener", listener_text));
    }
    facts.push(labeled_value("waiting for a member", count(group.queued, "request")));
    facts.push(labeled_value(
        "tried again",
        format!("{}, {} denied by the budget", group.retries, group.retries_denied),
    ));
    if group.latency.count > 0 {
        let latency_summary = group.latency;
        let latency_text = format!(
            "p50 {}, p90 {}, p99 {}, p99.9 {} of {} requests",
            latency(latency_summary.p50),
            latency(latency_summary.p90),
            latency(latency_summary.p99),
            latency(latency_summary.p999),
            latency_summary.count
        );
        facts.push(labeled_value("since the start", latency_text));
    }
    if group.hand_overs + group.hand_overs_failed > 0 {
        facts.push(labeled_value(
            "handed over",
            format!("{}, {} times without an answer", group.hand_overs, group.hand_overs_failed),
        ));
    }
    facts
}

fn load_line(group: &GroupStatus) -> Vec<LabeledValue> {
    let Some(line) = &group.load_line else { return Vec::new() };
    let mut facts = vec![labeled_value("now", format!("{}/s", rate(line.requests_per_second)))];
    if let Some(capacity) = line.capacity {
        let range_text = match (line.capacity_low, line.capacity_high) {
            (Some(low), Some(high)) => format!(" ({} to {})", rate(low), rate(high)),
            _ => String::new(),
        };
        let limit_text = if line.limited_by == "balancer" { ", the balancer itself" } else { "" };
        facts.push(labeled_value("load line", format!("{}/s{range_text}{limit_text}", rate(capacity))));
    } else if let Some((low, high)) = line.range() {
        facts.push(labeled_value("load line", format!("somewhere from {} to {}/s", rate(low), rate(high))));
    }
    let predictions = match (line.error, line.predictions_checked) {
        (Some(error), checked) => {
            format!("{}: {} checked, off by {}", line.verdict, count(checked, "prediction"), percent(error))
        }
        (None, _) => line.verdict.clone(),
    };
    facts.push(labeled_value("how good it was", predictions));
    if !line.why.is_empty() {
        facts.push(labeled_value("from", line.why.clone()));
    }
    facts
}

fn prediction_rows(group: &GroupStatus) -> Vec<PredictionRow> {
    let Some(line) = &group.load_line else { return Vec::new() };
    let latency_text = |seconds: Option<f64>| seconds.map_or_else(|| "–".to_owned(), latency);
    let mut rows: Vec<PredictionRow> = Vec::new();
    for prediction in &line.predicted {
        rows.push(PredictionRow {
            at: format!("at {} of it", percent(prediction.load)),
            rate: format!("{}/s", rate(prediction.requests_per_second)),
            says: format!("p50 {}, p99 {}", latency_text(prediction.p50), latency_text(prediction.p99)),
            over: false,
        });
    }
    for change in &line.what_if {
        let summary = match (change.over, change.headroom) {
            (Some(true), _) if change.capacity == Some(0.0) => "no member is left".to_owned(),
            (Some(true), _) => "over the load line".to_owned(),
            (Some(false), Some(headroom)) => {
                let p99 = change.p99.map_or_else(String::new, |p99| format!(", p99 {}", latency(p99)));
                format!("{} below the load line{p99}", percent(headroom))
            }
            (Some(false), None) => "below the load line".to_owned(),
            (None, _) => "unknown".to_owned(),
        };
        rows.push(PredictionRow {
            at: change.about.clone(),
            rate: change.capacity.map_or_else(|| "–".to_owned(), |capacity| format!("{}/s", rate(capacity))),
            says: summary,
            over: change.over == Some(true),
        });
    }
    rows
}

fn source_row(source: &SourceStatus) -> SourceRow {
    SourceRow {
        what: format!("{} {}", source.kind, source.what),
        members: source.members,
        age: source.age_seconds.map_or_else(|| "never".to_owned(), ago),
        bad: source.error.is_some(),
        state: source.error.clone().unwrap_or_else(|| "answers".to_owned()),
    }
}

fn lease_row(lessee: &LeaseHolder) -> LeaseRow {
    LeaseRow {
        member: lessee.member.clone().unwrap_or_else(|| "others".to_owned()),
        from: lessee.from.map_or_else(|| "–".to_owned(), |from| from.to_string()),
        leases: lessee.leases,
        left: ago(lessee.left_seconds),
    }
}

fn group_actions(page_context: &PageContext<'_>, group: &GroupStatus) -> Vec<ActionLink> {
    let group_field = [("group", &*group.name)];
    let mut actions = Vec::new();
    if group.balancing_disabled && page_context.can_execute(Operation::Enable, &group.name) {
        let about = "members get their share by the strategy again".to_owned();
        actions.push(ActionLink {
            word: "Enable balancing",
            about,
            href: urls::action_url("enable-balancing", &group_field),
        });
    } else if !group.balancing_disabled && page_context.can_execute(Operation::Disable, &group.name) {
        let about = "members take equal turns, whatever their loads".to_owned();
        actions.push(ActionLink {
            word: "Disable balancing",
            about,
            href: urls::action_url("disable-balancing", &group_field),
        });
    }
    actions
}
