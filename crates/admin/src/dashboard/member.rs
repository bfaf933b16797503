//! The page of a member.

use plimsoll_brain::status::{FactExplanation, MemberExplanation, MemberStatus};
use plimsoll_brain::{State, strategy};
use serde::Serialize;

use super::chart::{Chart, Line, chart};
use super::pages::EVENTS;
use super::place::{self, Place};
use super::view::{Action, Base, EventView, Eye, Fact, MemberRow, drawn, fact};
use super::words::{ago, bytes, count, latency, number, percent, rate};
use crate::table::{self, Scale};
use crate::verb::Verb;

/// A member.
#[derive(Debug, Serialize)]
pub(super) struct Member {
    base: Base,
    group: String,
    group_href: String,
    row: MemberRow,
    scale: &'static str,
    facts: Vec<Fact>,
    told: Vec<Told>,
    figures: Vec<Fact>,
    alert: Option<Alert>,
    charts: Vec<Chart>,
    actions: Vec<Action>,
    how: Option<String>,
    events: Vec<EventView>,
}

/// A reported figure of a member.
#[derive(Debug, Serialize)]
pub(super) struct Told {
    name: String,
    value: String,
    age: String,
    source: String,
}

/// An alert in force.
#[derive(Debug, Serialize)]
pub(super) struct Alert {
    says: String,
    inputs: Vec<Fact>,
}

/// Returns the page of a member; `None` if there is none that the caller may see.
pub(super) fn member(eye: &Eye<'_>, group: &str, name: &str, path: &str) -> Option<Member> {
    let status = eye.group(group)?;
    let member = status.members.iter().find(|member| member.name == name)?;
    let recent = eye.subject.recent(group).unwrap_or_default();
    let of_it = recent.members.iter().find(|recent| recent.name == name);
    let scale = Scale::of(status, &recent.members);
    let bound = table::bound(eye.listeners(&status.name)).get(name).copied().unwrap_or(0);
    let explained = if eye.may(Verb::Explain, group) { eye.subject.explain(group) } else { None };
    let explained = explained.and_then(|all| all.members.into_iter().find(|member| member.name == name));
    let mine = |entry: &&crate::Entry| entry.group == group && entry.member.as_deref() == Some(name);
    let events: Vec<_> = eye.events().iter().filter(mine).take(EVENTS).cloned().collect();
    let mut charts = Vec::new();
    if let Some(of_it) = of_it {
        let capacity = member.load_line.as_ref().and_then(|line| line.capacity);
        let rates = Line {
            name: "completed",
            points: recent
                .seconds
                .iter()
                .zip(&of_it.seconds)
                .map(|(at, second)| (at.age_seconds, second.requests_per_second.map(f64::from)))
                .collect(),
        };
        charts.push(chart("m-rate".into(), "Completed, requests a second", &[rates], capacity, false, rate));
        let flights = drawn(of_it, 1.0, Scale::Flight(1.0), &recent);
        let flights = Line { name: "under way", ..flights };
        let limit = member.limit.map(f64::from);
        let flights = chart("m-flight".into(), "Requests under way", &[flights], limit, false, number);
        charts.push(Chart { rule_is: "gets nothing new from", ..flights });
        if member.load.is_some() {
            let loads = Line { name: "load", ..drawn(of_it, 1.0, Scale::Load(1.0), &recent) };
            let above = of_it.alert_above;
            let loads = chart("m-load".into(), "Load, as reported", &[loads], above, false, number);
            charts.push(Chart { rule_is: "sheds sessions above", ..loads });
        }
    }
    let place = Place::Member { group: group.to_owned(), member: name.to_owned() };
    Some(Member {
        base: eye.base(name, &place, path),
        group: group.to_owned(),
        group_href: place::of_group(group),
        row: MemberRow::new(status, &table::with_limit(member, explained.as_ref()), of_it, scale, bound),
        scale: scale.about(),
        facts: member_facts(member, bound, &status.strategy),
        told: explained.iter().flat_map(|member| &member.facts).map(told).collect(),
        figures: explained
            .iter()
            .flat_map(|member| &member.figures)
            .map(|own| fact(own.name.replace('_', " "), number(own.value)))
            .collect(),
        alert: explained.as_ref().and_then(alert),
        charts,
        actions: member_actions(eye, group, member),
        how: super::act::how(eye.plane, eye.caller, Verb::Drain, group),
        events: EventView::all(eye, &events, EVENTS),
    })
}

fn told(told: &FactExplanation) -> Told {
    Told {
        name: told.name.clone(),
        value: number(told.value),
        age: ago(told.age_seconds),
        source: told.source.clone(),
    }
}

fn alert(member: &MemberExplanation) -> Option<Alert> {
    let alert = member.alert.as_ref()?;
    let held = if alert.held { "; it waits until somebody has been told of it" } else { "" };
    let says = format!(
        "Under alert for {}: {} of its sessions are to go elsewhere (decision {}){held}.",
        ago(alert.since_seconds),
        percent(alert.share),
        alert.epoch
    );
    let inputs = alert.inputs.iter().map(|(name, value)| fact(name.replace('_', " "), number(*value)));
    Some(Alert { says, inputs: inputs.collect() })
}

fn member_facts(member: &MemberStatus, bound: u64, strategy: &str) -> Vec<Fact> {
    let mut facts = vec![
        fact("address", member.address.clone()),
        fact("capacity, weight", format!("{}, {}", number(member.capacity), number(member.weight))),
    ];
    let limit = member.limit.map_or_else(|| "no limit".to_owned(), |limit| format!("at most {limit}"));
    facts.push(fact("under way", format!("{}, {limit}", member.in_flight)));
    if let Some(knee) = member.knee {
        facts.push(fact("knee", format!("{} at once before they slow one another down", number(knee))));
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
        facts.push(fact("it can do", can));
        facts.extend(line.source.as_ref().map(|source| fact("known from", source)));
    }
    let effective = member.load_effective.map_or_else(|| "none that counts".to_owned(), number);
    // Operators should know when a strategy ignores reports.
    let heard = match strategy::find(strategy) {
        Some(known) if !known.reads_load => {
            format!(
                "{strategy} does not choose by it; alerts, the load line and a weight that names it go by {effective}"
            )
        }
        _ => format!("{strategy} goes by {effective}"),
    };
    match member.load {
        Some(load) => facts.push(fact(
            "load",
            format!("{} reported {} ago; {heard}", number(load.value), ago(load.age_seconds)),
        )),
        None if let Some(said) = member.said_age_seconds => facts.push(fact(
            "load",
            format!("none is reported; with its answers it says itself what it can do, {} ago", ago(said)),
        )),
        None => facts.push(fact("load", "nothing is reported of it")),
    }
    facts.push(fact("bound to it", format!("{}, {} of them by leases", bound, member.leases)));
    facts.push(fact(
        "ended",
        format!("{}, {} of them failed", count(member.requests, "request"), member.failures),
    ));
    if member.clients_left > 0 {
        facts.push(fact("given up", count(member.clients_left, "request") + " by their clients"));
    }
    let answers: Vec<String> = member
        .answers
        .iter()
        .filter(|(_, many)| **many > 0)
        .map(|(class, many)| format!("{class} {many}"))
        .collect();
    if !answers.is_empty() {
        facts.push(fact("answers", answers.join(", ")));
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
        facts.push(fact("times since the start", said));
    }
    facts.push(fact("connections", format!("{} opened, {} idle", member.connects, member.idle_connections)));
    facts.push(fact(
        "bytes",
        format!("{} to it, {} from it", bytes(member.bytes_out), bytes(member.bytes_in)),
    ));
    facts.push(fact("sessions sent elsewhere", member.moved.to_string()));
    facts
}

fn member_actions(eye: &Eye<'_>, group: &str, member: &MemberStatus) -> Vec<Action> {
    let of = [("group", group), ("member", &*member.name)];
    let mut actions = Vec::new();
    let mut offer = |verb: Verb, word: &'static str, about: &str| {
        if eye.acts(verb, group) {
            actions.push(Action { word, about: about.to_owned(), href: place::of_act(verb.name(), &of) });
        }
    };
    match member.state {
        State::Draining => offer(Verb::Undrain, "Undrain", "take it back"),
        _ => offer(Verb::Drain, "Drain", "nothing new for it; what it has ends in its own time"),
    }
    match member.state {
        State::Disabled => offer(Verb::Enable, "Enable", "put it back in use"),
        _ => offer(Verb::Disable, "Disable", "out of use at once, without anybody being told"),
    }
    actions
}
