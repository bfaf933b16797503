//! The pages of a lottery daemon (the members and their weights) and of a Supervisor (the processes and the
//! reasons of failures).

use std::sync::Arc;

use plimsoll_brain::supervision::ProcessPhase;
use serde::Serialize;

use super::format::{Severity, ago, count, latency, number, percent};
use super::render;
use super::urls::{self, PageUrl};
use super::view_models::{LabeledValue, PageFrame, labeled_value};
use crate::access::{Caller, GrantedScope};
use crate::api::Operation;
use crate::endpoint::AdminEndpoint;
use crate::{DaemonBackend, DaemonStatus, ProcessStatus, SupervisorBackend, SupervisorStatus};

/// A lottery daemon.
#[derive(Serialize)]
struct LotteryPage {
    base: PageFrame,
    tone: Severity,
    glyph: &'static str,
    says: String,
    facts: Vec<LabeledValue>,
    counts: Vec<LabeledValue>,
    services: Vec<ServiceView>,
    members: Vec<PeerView>,
}

/// A service with the share of each member.
#[derive(Serialize)]
struct ServiceView {
    name: String,
    parts: Vec<ServiceShare>,
}

#[derive(Serialize)]
struct ServiceShare {
    who: String,
    own: bool,
    server: String,
    capacity: u16,
    weight: String,
    /// The length of its bar, of 160.
    bar: f64,
    share: String,
    load: String,
    in_flight: u16,
    ready: &'static str,
}

#[derive(Serialize)]
struct PeerView {
    member: u16,
    address: String,
    glyph: &'static str,
    state: String,
    tone: Severity,
    differs: bool,
}

/// Returns the page of a daemon; the query may be slow.
pub(super) async fn lottery_response(
    endpoint: &Arc<AdminEndpoint>,
    daemon: &Arc<dyn DaemonBackend>,
    caller: &Caller,
    path: &str,
) -> Result<String, String> {
    let scope = endpoint.granted_scope(caller, Operation::Lottery);
    let backend = Arc::clone(daemon);
    let status = {
        let _guard = endpoint.locks.slow_query.lock().await;
        tokio::task::spawn_blocking(move || backend.status()).await.map_err(|error| error.to_string())??
    };
    let mut status = crate::lottery::redact(status, &scope);
    if scope == GrantedScope::Denied {
        status.members.clear();
    }
    let base = page_frame(
        endpoint,
        caller,
        "Lottery",
        path,
        &status.version,
        status.stopping,
        status.reload_error.as_deref(),
    );
    render::render_text("lottery.html", &lottery_page(base, &status))
}

fn page_frame(
    endpoint: &AdminEndpoint,
    caller: &Caller,
    title: &str,
    path: &str,
    version: &str,
    stopping: bool,
    reload_error: Option<&str>,
) -> PageFrame {
    let mut base = PageFrame::new(title, endpoint, caller);
    base.live = Some(format!("{}/live?page={}", urls::ROOT, urls::percent_encode(path)));
    version.clone_into(&mut base.version);
    base.here = if PageUrl::parse(path) == Some(PageUrl::Home) { "home" } else { "" };
    if stopping {
        base.banners.push("■ The process is stopping.".to_owned());
    }
    if let Some(reload_error) = reload_error {
        base.banners.push(format!(
            "‼ The last reload was refused, the configuration before stays in force: {reload_error}"
        ));
    }
    base
}

fn lottery_page(base: PageFrame, status: &DaemonStatus) -> LotteryPage {
    let suspect_count = status.members.iter().filter(|member| member.suspect).count();
    let differing_count = status.members.iter().filter(|member| member.differs).count();
    let up_count = status.members.iter().filter(|member| member.state == "up" && !member.suspect).count();
    let mut summary = format!(
        "daemon {} is {}; {} of {} are up",
        status.member,
        status.state,
        up_count,
        count(status.members.len() as u64, "other daemon")
    );
    if suspect_count > 0 {
        summary.push_str(&format!(", {suspect_count} silent"));
    }
    if differing_count > 0 {
        let verb_form = if differing_count == 1 { "knows" } else { "know" };
        summary.push_str(&format!(", {differing_count} {verb_form} something else than it does"));
    }
    let is_healthy = status.state == "up" && suspect_count == 0 && differing_count == 0;
    let daemon_counts = &status.counts;
    let counts = [
        ("answers by referral", daemon_counts.referred),
        ("answers by lottery", daemon_counts.won),
        ("of them for another, who was late", daemon_counts.stood_in),
        ("answers without a server", daemon_counts.turned_away),
        ("answers repeated", daemon_counts.repeated),
        ("answered by another as well", daemon_counts.duplicates),
        ("requests of sources that ask too much", daemon_counts.limited),
        ("dropped, for want of room", daemon_counts.dropped),
        ("not sent", daemon_counts.unsent),
        ("forged", daemon_counts.forged),
        ("of a key that does not count", daemon_counts.unknown_key),
        ("malformed", daemon_counts.malformed),
        ("replayed", daemon_counts.replayed),
        ("sealed with a key for clients, who may not say that", daemon_counts.misused),
        ("of lives of long after now", daemon_counts.implausible),
    ];
    let join_keys = |keys: &[u32]| keys.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
    let mut keys = format!("{}; it sends with {}", join_keys(&status.keys), status.sealing_key);
    if !status.client_keys.is_empty() {
        keys += &format!("; for clients {}", join_keys(&status.client_keys));
    }
    LotteryPage {
        tone: if is_healthy { Severity::Good } else { Severity::Fair },
        glyph: if is_healthy { "✔" } else { "▲" },
        says: summary,
        facts: vec![
            labeled_value("address", status.address.to_string()),
            labeled_value("waiting for another daemon", count(status.pending, "request")),
            labeled_value("to be sent", count(status.queued, "message")),
            labeled_value("answered twice", percent(status.duplicate_share)),
            labeled_value(
                "commits come within",
                status.commit_delay_seconds.map_or_else(|| "not known".to_owned(), latency),
            ),
            labeled_value("step of the ladder", latency(status.step_seconds)),
            labeled_value("late by", latency(status.lag_seconds)),
            labeled_value("keys that count", keys),
        ],
        counts: counts
            .iter()
            .filter(|(_, event_count)| *event_count > 0)
            .map(|(name, event_count)| labeled_value(*name, event_count.to_string()))
            .collect(),
        services: services(status),
        members: status.members.iter().map(peer_view).collect(),
        base,
    }
}

fn services(status: &DaemonStatus) -> Vec<ServiceView> {
    let service_views = status.services.iter().map(|own_service| {
        let others = status.members.iter().filter(|member| member.state == "up" && !member.suspect).flat_map(
            |member| {
                member
                    .services
                    .iter()
                    .filter(|peer_service| peer_service.service == own_service.id)
                    .map(move |peer_service| (member, peer_service))
            },
        );
        let total_weight: f64 =
            own_service.weight + others.clone().map(|(_, peer_service)| peer_service.weight).sum::<f64>();
        let share_of = |weight: f64| if total_weight > 0.0 { weight / total_weight } else { 0.0 };
        let load = |load: Option<f64>| load.map_or_else(|| "–".to_owned(), percent);
        let mut shares = vec![ServiceShare {
            who: format!("{}", status.member),
            own: true,
            server: own_service.server.to_string(),
            capacity: own_service.capacity,
            weight: number(own_service.weight),
            bar: super::load_bar::round_to_tenth(160.0 * share_of(own_service.weight)),
            share: percent(share_of(own_service.weight)),
            load: load(own_service.load),
            in_flight: own_service.in_flight,
            ready: match own_service.ready {
                false => "✘ its check fails",
                true if own_service.weight > 0.0 => "● takes part",
                true => "○ wants nothing",
            },
        }];
        shares.extend(others.map(|(member, peer_service)| ServiceShare {
            who: member.member.to_string(),
            own: false,
            server: member.address.ip().to_string(),
            capacity: peer_service.capacity,
            weight: number(peer_service.weight),
            bar: super::load_bar::round_to_tenth(160.0 * share_of(peer_service.weight)),
            share: percent(share_of(peer_service.weight)),
            load: load(peer_service.load),
            in_flight: peer_service.in_flight,
            ready: if peer_service.weight > 0.0 { "● takes part" } else { "○ wants nothing" },
        }));
        ServiceView { name: own_service.name.clone(), parts: shares }
    });
    service_views.collect()
}

fn peer_view(member: &crate::ObservedDaemon) -> PeerView {
    let (glyph, severity) = match (&*member.state, member.suspect) {
        (_, true) => ("▲", Severity::Fair),
        ("up", false) => ("●", Severity::Good),
        ("draining" | "leaving", false) => ("◌", Severity::Fair),
        _ => ("○", Severity::Off),
    };
    let state = if member.suspect { format!("{}, silent", member.state) } else { member.state.clone() };
    PeerView {
        member: member.member,
        address: member.address.to_string(),
        glyph,
        state,
        tone: severity,
        differs: member.differs,
    }
}

/// A Supervisor.
#[derive(Serialize)]
struct SupervisorPage {
    base: PageFrame,
    tone: Severity,
    glyph: &'static str,
    says: String,
    processes: Vec<ProcessView>,
}

#[derive(Serialize)]
struct ProcessView {
    name: String,
    glyph: &'static str,
    word: &'static str,
    tone: Severity,
    why: String,
    since: String,
    pid: String,
    restarts: u64,
    command: String,
    notes: Vec<String>,
    /// The process' own status.
    says: Vec<String>,
    last: Option<String>,
    lines: Vec<String>,
}

/// Returns the page of a Supervisor. It queries the processes, which may be slow.
pub(super) async fn supervisor_response(
    endpoint: &Arc<AdminEndpoint>,
    supervisor: &Arc<dyn SupervisorBackend>,
    caller: &Caller,
    path: &str,
) -> Result<String, String> {
    let scope = endpoint.granted_scope(caller, Operation::ProcessDetails);
    let trusted_scope = crate::supervisor::trusted_scope(endpoint, caller);
    let backend = Arc::clone(supervisor);
    let detailed_status = {
        let _guard = endpoint.locks.slow_query.lock().await;
        tokio::task::spawn_blocking(move || backend.detailed_status())
            .await
            .map_err(|error| error.to_string())?
    };
    let status = crate::supervisor::redact(detailed_status, &scope, &trusted_scope);
    let base = page_frame(
        endpoint,
        caller,
        "Processes",
        path,
        &status.version,
        status.stopping,
        status.reload_error.as_deref(),
    );
    render::render_text("supervisor.html", &supervisor_page(base, &status, super::csrf::now_ms()))
}

fn supervisor_page(base: PageFrame, status: &SupervisorStatus, now: u64) -> SupervisorPage {
    let process_count = status.processes.len();
    let running_count =
        status.processes.iter().filter(|process| process.state == ProcessPhase::Running).count();
    let unwell_count = status
        .processes
        .iter()
        .filter(|process| process.says.as_ref().is_some_and(|self_status| !self_status.well))
        .count();
    let failed_count = status
        .processes
        .iter()
        .filter(|process| matches!(process.state, ProcessPhase::Failed | ProcessPhase::BackingOff))
        .count();
    let mut summary = format!(
        "{running_count} of {} run",
        count(process_count as u64, "process").replace("processs", "processes")
    );
    for (problem_count, description) in
        [(failed_count, "failed"), (unwell_count, "unhealthy by their own report")]
    {
        if problem_count > 0 {
            summary.push_str(&format!(", {problem_count} {description}"));
        }
    }
    let (severity, glyph) = if failed_count > 0 {
        (Severity::Bad, "✘")
    } else if unwell_count > 0 {
        (Severity::Fair, "▲")
    } else {
        (Severity::Good, "✔")
    };
    SupervisorPage {
        base,
        tone: severity,
        glyph,
        says: summary,
        processes: status.processes.iter().map(|process| process_view(process, now)).collect(),
    }
}

fn process_view(process: &ProcessStatus, now: u64) -> ProcessView {
    let (glyph, label, severity) = match process.state {
        ProcessPhase::Running => ("●", "running", Severity::Good),
        ProcessPhase::Stopping => ("◌", "stopping", Severity::Fair),
        ProcessPhase::BackingOff => ("▲", "backing off", Severity::Bad),
        ProcessPhase::Failed => ("✘", "failed", Severity::Bad),
        ProcessPhase::Stopped => ("■", "stopped", Severity::Off),
    };
    let age_since = |unix_ms: u64| ago((now.saturating_sub(unix_ms) / 1000) as f64);
    let mut notes = Vec::new();
    if process.adopted {
        notes.push("found running".to_owned());
    }
    if process.outdated {
        notes.push("▲ runs with another command than the file has: restart it".to_owned());
    }
    if let Some(next_start_ms) = process.next_start_unix_ms {
        notes.push(format!("started again in {}", ago((next_start_ms.saturating_sub(now) / 1000) as f64)));
    }
    ProcessView {
        name: process.name.clone(),
        glyph,
        word: label,
        tone: severity,
        why: process.why.clone(),
        since: age_since(process.since_unix_ms),
        pid: process.pid.map_or_else(|| "–".to_owned(), |pid| pid.to_string()),
        restarts: process.restarts,
        command: process.command.join(" "),
        notes,
        says: process.says.iter().flat_map(|self_status| self_status.lines.clone()).collect(),
        last: process
            .last_exit
            .as_ref()
            .map(|last_exit| format!("{}, {} ago", last_exit.reason, age_since(last_exit.unix_ms))),
        lines: process.last_exit.iter().flat_map(|last_exit| last_exit.lines.clone()).collect(),
    }
}
