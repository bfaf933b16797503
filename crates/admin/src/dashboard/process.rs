//! The page of objects outside groups: the process, its fleet, its listeners, its certificates.

use plimsoll_brain::status::{BalancerStatus, CertificateStatus, FleetStatus};
use serde::Serialize;

use super::format::{Severity, ago, count};
use super::urls::{self, PageUrl};
use super::view_models::{ActionLink, LabeledValue, PageContext, PageFrame, labeled_value};
use crate::GrantedScope;
use crate::api::Operation;

/// The objects outside groups.
#[derive(Debug, Serialize)]
pub(super) struct ProcessPage {
    base: PageFrame,
    facts: Vec<LabeledValue>,
    /// This balancer and the others; empty without a fleet.
    fleet: Vec<BalancerRow>,
    listeners: Vec<ListenerRow>,
    certificates: Vec<CertificateRow>,
}

/// A balancer of the fleet, as this one sees it.
#[derive(Debug, Serialize)]
struct BalancerRow {
    name: String,
    address: String,
    tone: Severity,
    glyph: &'static str,
    word: String,
    heard: String,
    reports: String,
    loss: String,
    groups: String,
}

#[derive(Debug, Serialize)]
struct ListenerRow {
    address: String,
    protocol: String,
    group: String,
    group_href: String,
    binding: String,
    open: u64,
    accepted: u64,
    refused: u64,
    disabled: bool,
    action: Option<ActionLink>,
}

#[derive(Debug, Serialize)]
struct CertificateRow {
    name: String,
    names: String,
    source: String,
    ends: String,
    renewal: String,
    bad: bool,
    state: String,
}

pub(super) fn process_page(eye: &PageContext<'_>, path: &str) -> ProcessPage {
    let status = &eye.status;
    let mut facts = vec![
        labeled_value("version", status.version.clone()),
        labeled_value("process", format!("{}, up {}", status.pid, ago(status.uptime_seconds))),
        labeled_value("threads", status.threads.to_string()),
        labeled_value("reloads", status.reloads.to_string()),
        labeled_value(
            "configuration in force",
            if status.last_reload_successful {
                "the last one given"
            } else {
                "the one before the last: that was refused"
            },
        ),
    ];
    if let Some(fleet) = &status.fleet {
        let known = fleet.balancers.len();
        let up = fleet.balancers.iter().filter(|one| one.state == "up").count();
        let others = match known {
            0 => "no other balancer has been heard of".to_owned(),
            _ => format!("{up} of {} alive", count(known as u64, "other balancer")),
        };
        facts.push(labeled_value("fleet", format!("{} at {}; {others}", fleet.name, fleet.address)));
    }
    if status.access_log_dropped > 0 {
        facts.push(labeled_value(
            "access log",
            format!("{} lost: the disk was slow or full", count(status.access_log_dropped, "line")),
        ));
    }
    if status.spans_exported + status.spans_dropped > 0 {
        facts.push(labeled_value(
            "spans",
            format!("{} exported, {} dropped", status.spans_exported, status.spans_dropped),
        ));
    }
    let listeners = status.listeners.iter().map(|listener| {
        // Listeners belong to no group: acting on them requires a role with all groups.
        let act = |verb: Operation, name: &'static str, word: &'static str| {
            (eye.endpoint.granted_scope(eye.caller, verb) == GrantedScope::All && eye.can_execute(verb, ""))
                .then(|| ActionLink {
                    word,
                    about: String::new(),
                    href: urls::action_url(name, &[("listener", &listener.address)]),
                })
        };
        ListenerRow {
            address: listener.address.clone(),
            protocol: listener.protocol.clone(),
            group: listener.group.clone(),
            group_href: urls::group_url(&listener.group),
            binding: listener.binding.replace('_', " "),
            open: listener.connections,
            accepted: listener.accepted,
            refused: listener.refused,
            disabled: listener.disabled,
            action: if listener.disabled {
                act(Operation::Enable, "enable-listener", "Enable")
            } else {
                act(Operation::Disable, "disable-listener", "Disable")
            },
        }
    });
    ProcessPage {
        base: eye.frame("Process", &PageUrl::Process, path),
        facts,
        fleet: status.fleet.as_ref().map(balancer_rows).unwrap_or_default(),
        listeners: listeners.collect(),
        certificates: status.certificates.iter().map(certificate_row).collect(),
    }
}

fn balancer_rows(fleet: &FleetStatus) -> Vec<BalancerRow> {
    let nothing = || "–".to_owned();
    let own = BalancerRow {
        name: fleet.name.clone(),
        address: fleet.address.clone(),
        tone: Severity::Good,
        glyph: "●",
        word: "this one".into(),
        heard: nothing(),
        reports: nothing(),
        loss: nothing(),
        groups: nothing(),
    };
    let other = |one: &BalancerStatus| {
        let (glyph, tone) = match &*one.state {
            "up" => ("✔", Severity::Good),
            "silent" => ("?", Severity::Fair),
            _ => ("✘", Severity::Bad),
        };
        // Two balancers with one address cannot be distinguished.
        let same = if one.address == fleet.address { " (as this one)" } else { "" };
        BalancerRow {
            name: if one.name.is_empty() { "(no name yet)".into() } else { one.name.clone() },
            address: format!("{}{same}", one.address),
            tone,
            glyph,
            word: one.state.clone(),
            heard: format!("{} ago", ago(one.age_seconds)),
            reports: one.reports.to_string(),
            loss: format!("{:.1} %", 100.0 * one.loss),
            groups: one.groups.to_string(),
        }
    };
    std::iter::once(own).chain(fleet.balancers.iter().map(other)).collect()
}

fn certificate_row(one: &CertificateStatus) -> CertificateRow {
    let left = |seconds: Option<f64>, none: &str| match seconds {
        Some(seconds) if seconds < 0.0 => format!("{} ago", ago(-seconds)),
        Some(seconds) => format!("in {}", ago(seconds)),
        None => none.to_owned(),
    };
    let over = one.expires_seconds.is_some_and(|seconds| seconds < 0.0);
    let state = match (&one.failure, over, one.ends_soon) {
        (Some(why), ..) => format!("✘ {why}"),
        (None, true, _) => "✘ it has ended".to_owned(),
        (None, false, true) => "▲ it ends soon".to_owned(),
        _ if one.expires_seconds.is_none() => "○ not there yet".to_owned(),
        _ => "● in force".to_owned(),
    };
    CertificateRow {
        name: one.name.clone(),
        names: one.names.join(", "),
        source: one.source.clone(),
        ends: left(one.expires_seconds, "–"),
        renewal: left(one.renewal_seconds, if one.acme { "–" } else { "by hand" }),
        bad: one.failure.is_some() || over || one.ends_soon,
        state,
    }
}
