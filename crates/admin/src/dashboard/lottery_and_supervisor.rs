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
    plane: &Arc<AdminEndpoint>,
    daemon: &Arc<dyn DaemonBackend>,
    caller: &Caller,
    path: &str,
) -> Result<String, String> {
    let permit = plane.granted_scope(caller, Operation::Lottery);
    let asked = Arc::clone(daemon);
    let status = {
        let _turn = plane.locks.slow_query.lock().await;
        tokio::task::spawn_blocking(move || asked.status()).await.map_err(|why| why.to_string())??
    };
    let mut status = crate::lottery::redact(status, &permit);
    if permit == GrantedScope::Denied {
        status.members.clear();
    }
    let base = page_frame(
        plane,
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
    plane: &AdminEndpoint,
    caller: &Caller,
    title: &str,
    path: &str,
    version: &str,
    stopping: bool,
    refused: Option<&str>,
) -> PageFrame {
    let mut base = PageFrame::new(title, plane, caller);
    base.live = Some(format!("{}/live?page={}", urls::ROOT, urls::percent_encode(path)));
    version.clone_into(&mut base.version);
    base.here = if PageUrl::parse(path) == Some(PageUrl::Home) { "home" } else { "" };
    if stopping {
        base.banners.push("■ The process is stopping.".to_owned());
    }
    if let Some(why) = refused {
        base.banners
            .push(format!("‼ The last reload was refused, the configuration before stays in force: {why}"));
    }
    base
}

fn lottery_page(base: PageFrame, status: &DaemonStatus) -> LotteryPage {
    let suspects = status.members.iter().filter(|member| member.suspect).count();
    let differ = status.members.iter().filter(|member| member.differs).count();
    let up = status.members.iter().filter(|member| member.state == "up" && !member.suspect).count();
    let mut says = format!(
        "daemon {} is {}; {} of {} are up",
        status.member,
        status.state,
        up,
        count(status.members.len() as u64, "other daemon")
    );
    if suspects > 0 {
        says.push_str(&format!(", {suspects} not heard of late"));
    }
    if differ > 0 {
        let know = if differ == 1 { "knows" } else { "know" };
        says.push_str(&format!(", {differ} {know} something else than it does"));
    }
    let well = status.state == "up" && suspects == 0 && differ == 0;
    let c = &status.counts;
    let counts = [
        ("answers by referral", c.referred),
        ("answers by lottery", c.won),
        ("of them for another, who was late", c.stood_in),
        ("answers that there is nobody", c.turned_away),
        ("answers repeated", c.repeated),
        ("answered by another as well", c.duplicates),
        ("requests of sources that ask too much", c.limited),
        ("dropped, for want of room", c.dropped),
        ("not sent", c.unsent),
        ("forged", c.forged),
        ("of a key that does not count", c.unknown_key),
        ("malformed", c.malformed),
        ("replayed", c.replayed),
        ("sealed with a key for clients, who may not say that", c.misused),
        ("of lives of long after now", c.implausible),
    ];
    let list = |keys: &[u32]| keys.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
    let mut keys = format!("{}; it sends with {}", list(&status.keys), status.sealing_key);
    if !status.client_keys.is_empty() {
        keys += &format!("; for clients {}", list(&status.client_keys));
    }
    LotteryPage {
        tone: if well { Severity::Good } else { Severity::Fair },
        glyph: if well { "✔" } else { "▲" },
        says,
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
            .filter(|(_, many)| *many > 0)
            .map(|(name, many)| labeled_value(*name, many.to_string()))
            .collect(),
        services: services(status),
        members: status.members.iter().map(peer_view).collect(),
        base,
    }
}

fn services(status: &DaemonStatus) -> Vec<ServiceView> {
    let each = status.services.iter().map(|own| {
        let others = status.members.iter().filter(|member| member.state == "up" && !member.suspect).flat_map(
            |member| {
                member.services.iter().filter(|part| part.service == own.id).map(move |part| (member, part))
            },
        );
        let all: f64 = own.weight + others.clone().map(|(_, part)| part.weight).sum::<f64>();
        let part = |weight: f64| if all > 0.0 { weight / all } else { 0.0 };
        let load = |load: Option<f64>| load.map_or_else(|| "–".to_owned(), percent);
        let mut parts = vec![ServiceShare {
            who: format!("{}", status.member),
            own: true,
            server: own.server.to_string(),
            capacity: own.capacity,
            weight: number(own.weight),
            bar: super::load_bar::round_to_tenth(160.0 * part(own.weight)),
            share: percent(part(own.weight)),
            load: load(own.load),
            in_flight: own.in_flight,
            ready: match own.ready {
                false => "✘ its check fails",
                true if own.weight > 0.0 => "● takes part",
                true => "○ wants nothing",
            },
        }];
        parts.extend(others.map(|(member, theirs)| ServiceShare {
            who: member.member.to_string(),
            own: false,
            server: member.address.ip().to_string(),
            capacity: theirs.capacity,
            weight: number(theirs.weight),
            bar: super::load_bar::round_to_tenth(160.0 * part(theirs.weight)),
            share: percent(part(theirs.weight)),
            load: load(theirs.load),
            in_flight: theirs.in_flight,
            ready: if theirs.weight > 0.0 { "● takes part" } else { "○ wants nothing" },
        }));
        ServiceView { name: own.name.clone(), parts }
    });
    each.collect()
}

fn peer_view(member: &crate::ObservedDaemon) -> PeerView {
    let (glyph, tone) = match (&*member.state, member.suspect) {
        (_, true) => ("▲", Severity::Fair),
        ("up", false) => ("●", Severity::Good),
        ("draining" | "leaving", false) => ("◌", Severity::Fair),
        _ => ("○", Severity::Off),
    };
    let state =
        if member.suspect { format!("{}, not heard of late", member.state) } else { member.state.clone() };
    PeerView {
        member: member.member,
        address: member.address.to_string(),
        glyph,
        state,
        tone,
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
    plane: &Arc<AdminEndpoint>,
    supervisor: &Arc<dyn SupervisorBackend>,
    caller: &Caller,
    path: &str,
) -> Result<String, String> {
    let permit = plane.granted_scope(caller, Operation::ProcessDetails);
    let trusted = crate::supervisor::trusted_scope(plane, caller);
    let asked = Arc::clone(supervisor);
    let view = {
        let _turn = plane.locks.slow_query.lock().await;
        tokio::task::spawn_blocking(move || asked.detailed_status()).await.map_err(|why| why.to_string())?
    };
    let household = crate::supervisor::redact(view, &permit, &trusted);
    let base = page_frame(
        plane,
        caller,
        "Processes",
        path,
        &household.version,
        household.stopping,
        household.reload_error.as_deref(),
    );
    render::render_text("supervisor.html", &supervisor_page(base, &household, super::csrf::now_ms()))
}

fn supervisor_page(base: PageFrame, household: &SupervisorStatus, now: u64) -> SupervisorPage {
    let all = household.processes.len();
    let running = household.processes.iter().filter(|process| process.state == ProcessPhase::Running).count();
    let ill = household
        .processes
        .iter()
        .filter(|process| process.says.as_ref().is_some_and(|says| !says.well))
        .count();
    let failed = household
        .processes
        .iter()
        .filter(|process| matches!(process.state, ProcessPhase::Failed | ProcessPhase::BackingOff))
        .count();
    let mut says =
        format!("{running} of {} run", count(all as u64, "process").replace("processs", "processes"));
    for (many, what) in [(failed, "failed"), (ill, "not well by what they say")] {
        if many > 0 {
            says.push_str(&format!(", {many} {what}"));
        }
    }
    let (tone, glyph) = if failed > 0 {
        (Severity::Bad, "✘")
    } else if ill > 0 {
        (Severity::Fair, "▲")
    } else {
        (Severity::Good, "✔")
    };
    SupervisorPage {
        base,
        tone,
        glyph,
        says,
        processes: household.processes.iter().map(|process| process_view(process, now)).collect(),
    }
}

fn process_view(process: &ProcessStatus, now: u64) -> ProcessView {
    let (glyph, word, tone) = match process.state {
        ProcessPhase::Running => ("●", "running", Severity::Good),
        ProcessPhase::Stopping => ("◌", "stopping", Severity::Fair),
        ProcessPhase::BackingOff => ("▲", "backing off", Severity::Bad),
        ProcessPhase::Failed => ("✘", "failed", Severity::Bad),
        ProcessPhase::Stopped => ("■", "stopped", Severity::Off),
    };
    let since = |unix_ms: u64| ago((now.saturating_sub(unix_ms) / 1000) as f64);
    let mut notes = Vec::new();
    if process.adopted {
        notes.push("found running".to_owned());
    }
    if process.outdated {
        notes.push("▲ runs with another command than the file has: restart it".to_owned());
    }
    if let Some(next) = process.next_start_unix_ms {
        notes.push(format!("started again in {}", ago((next.saturating_sub(now) / 1000) as f64)));
    }
    ProcessView {
        name: process.name.clone(),
        glyph,
        word,
        tone,
        why: process.why.clone(),
        since: since(process.since_unix_ms),
        pid: process.pid.map_or_else(|| "–".to_owned(), |pid| pid.to_string()),
        restarts: process.restarts,
        command: process.command.join(" "),
        notes,
        says: process.says.iter().flat_map(|says| says.lines.clone()).collect(),
        last: process.last_exit.as_ref().map(|exit| format!("{}, {} ago", exit.reason, since(exit.unix_ms))),
        lines: process.last_exit.iter().flat_map(|exit| exit.lines.clone()).collect(),
    }
}
