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

pub(super) fn process_page(page_context: &PageContext<'_>, path: &str) -> ProcessPage {
    let status = &page_context.status;
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
        let balancer_count = fleet.balancers.len();
        let alive_count = fleet.balancers.iter().filter(|balancer| balancer.state == "up").count();
        let others_text = match balancer_count {
            0 => "no other balancer has reported".to_owned(),
            _ => format!("{alive_count} of {} alive", count(balancer_count as u64, "other balancer")),
        };
        facts.push(labeled_value("fleet", format!("{} at {}; {others_text}", fleet.name, fleet.address)));
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
        let listener_action = |operation: Operation, name: &'static str, label: &'static str| {
            (page_context.endpoint.granted_scope(page_context.caller, operation) == GrantedScope::All
                && page_context.can_execute(operation, ""))
            .then(|| ActionLink {
                word: label,
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
                listener_action(Operation::Enable, "enable-listener", "Enable")
            } else {
                listener_action(Operation::Disable, "disable-listener", "Disable")
            },
        }
    });
    ProcessPage {
        base: page_context.frame("Process", &PageUrl::Process, path),
        facts,
        fleet: status.fleet.as_ref().map(balancer_rows).unwrap_or_default(),
        listeners: listeners.collect(),
        certificates: status.certificates.iter().map(certificate_row).collect(),
    }
}

fn balancer_rows(fleet: &FleetStatus) -> Vec<BalancerRow> {
    let no_value = || "–".to_owned();
    let own_row = BalancerRow {
        name: fleet.name.clone(),
        address: fleet.address.clone(),
        tone: Severity::Good,
        glyph: "●",
        word: "this one".into(),
        heard: no_value(),
        reports: no_value(),
        loss: no_value(),
        groups: no_value(),
    };
    let balancer_row = |balancer: &BalancerStatus| {
        let (glyph, severity) = match &*balancer.state {
            "up" => ("✔", Severity::Good),
            "silent" => ("?", Severity::Fair),
            _ => ("✘", Severity::Bad),
        };
        // Two balancers with one address cannot be distinguished.
        let address_note = if balancer.address == fleet.address { " (as this one)" } else { "" };
        BalancerRow {
            name: if balancer.name.is_empty() { "(no name yet)".into() } else { balancer.name.clone() },
            address: format!("{}{address_note}", balancer.address),
            tone: severity,
            glyph,
            word: balancer.state.clone(),
            heard: format!("{} ago", ago(balancer.age_seconds)),
            reports: balancer.reports.to_string(),
            loss: format!("{:.1} %", 100.0 * balancer.loss),
            groups: balancer.groups.to_string(),
        }
    };
    std::iter::once(own_row).chain(fleet.balancers.iter().map(balancer_row)).collect()
}

fn certificate_row(certificate: &CertificateStatus) -> CertificateRow {
    let time_left = |seconds: Option<f64>, fallback: &str| match seconds {
        Some(seconds) if seconds < 0.0 => format!("{} ago", ago(-seconds)),
        Some(seconds) => format!("in {}", ago(seconds)),
        None => fallback.to_owned(),
    };
    let has_expired = certificate.expires_seconds.is_some_and(|seconds| seconds < 0.0);
    let state = match (&certificate.failure, has_expired, certificate.ends_soon) {
        (Some(failure), ..) => format!("✘ {failure}"),
        (None, true, _) => "✘ it has ended".to_owned(),
        (None, false, true) => "▲ it ends soon".to_owned(),
        _ if certificate.expires_seconds.is_none() => "○ not there yet".to_owned(),
        _ => "● in force".to_owned(),
    };
    CertificateRow {
        name: certificate.name.clone(),
        names: certificate.names.join(", "),
        source: certificate.source.clone(),
        ends: time_left(certificate.expires_seconds, "–"),
        renewal: time_left(certificate.renewal_seconds, if certificate.acme { "–" } else { "by hand" }),
        bad: certificate.failure.is_some() || has_expired || certificate.ends_soon,
        state,
    }
}
