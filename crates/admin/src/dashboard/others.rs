//! The pages of a lottery daemon (the members and their weights) and of a Supervisor (the processes and the
//! reasons of failures).

use std::sync::Arc;

use plimsoll_brain::ward::Phase;
use serde::Serialize;

use super::place::{self, Place};
use super::render;
use super::view::{Base, Fact, fact};
use super::words::{Tone, ago, count, latency, number, percent};
use crate::access::{Caller, Permit};
use crate::plane::Plane;
use crate::verb::Verb;
use crate::{Daemon, DaemonStatus, Household, ProcessStatus, Supervisor};

/// A lottery daemon.
#[derive(Serialize)]
struct Lottery {
    base: Base,
    tone: Tone,
    glyph: &'static str,
    says: String,
    facts: Vec<Fact>,
    counts: Vec<Fact>,
    services: Vec<Service>,
    members: Vec<Mate>,
}

/// A service with the share of each member.
#[derive(Serialize)]
struct Service {
    name: String,
    parts: Vec<Part>,
}

#[derive(Serialize)]
struct Part {
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
struct Mate {
    member: u16,
    address: String,
    glyph: &'static str,
    state: String,
    tone: Tone,
    differs: bool,
}

/// Returns the page of a daemon; the query may be slow.
pub(super) async fn lottery(
    plane: &Arc<Plane>,
    daemon: &Arc<dyn Daemon>,
    caller: &Caller,
    path: &str,
) -> Result<String, String> {
    let permit = plane.permit(caller, Verb::Lottery);
    let asked = Arc::clone(daemon);
    let status = {
        let _turn = plane.turns.looks.lock().await;
        tokio::task::spawn_blocking(move || asked.status()).await.map_err(|why| why.to_string())??
    };
    let mut status = crate::lottery::seen(status, &permit);
    if permit == Permit::Nothing {
        status.members.clear();
    }
    let base = base(
        plane,
        caller,
        "Lottery",
        path,
        &status.version,
        status.stopping,
        status.reload_error.as_deref(),
    );
    render::text("lottery.html", &lottery_page(base, &status))
}

fn base(
    plane: &Plane,
    caller: &Caller,
    title: &str,
    path: &str,
    version: &str,
    stopping: bool,
    refused: Option<&str>,
) -> Base {
    let mut base = Base::of(title, plane, caller);
    base.live = Some(format!("{}/live?page={}", place::ROOT, place::encoded(path)));
    version.clone_into(&mut base.version);
    base.here = if Place::find(path) == Some(Place::Home) { "home" } else { "" };
    if stopping {
        base.banners.push("■ The process is stopping.".to_owned());
    }
    if let Some(why) = refused {
        base.banners
            .push(format!("‼ The last reload was refused, the configuration before stays in force: {why}"));
    }
    base
}

fn lottery_page(base: Base, status: &DaemonStatus) -> Lottery {
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
    Lottery {
        tone: if well { Tone::Good } else { Tone::Fair },
        glyph: if well { "✔" } else { "▲" },
        says,
        facts: vec![
            fact("address", status.address.to_string()),
            fact("waiting for another daemon", count(status.pending, "request")),
            fact("to be sent", count(status.queued, "message")),
            fact("answered twice", percent(status.duplicate_share)),
            fact(
                "commits come within",
                status.commit_delay_seconds.map_or_else(|| "not known".to_owned(), latency),
            ),
            fact("step of the ladder", latency(status.step_seconds)),
            fact("late by", latency(status.lag_seconds)),
            fact("keys that count", keys),
        ],
        counts: counts
            .iter()
            .filter(|(_, many)| *many > 0)
            .map(|(name, many)| fact(*name, many.to_string()))
            .collect(),
        services: services(status),
        members: status.members.iter().map(mate).collect(),
        base,
    }
}

fn services(status: &DaemonStatus) -> Vec<Service> {
    let each = status.services.iter().map(|own| {
        let others = status.members.iter().filter(|member| member.state == "up" && !member.suspect).flat_map(
            |member| {
                member.services.iter().filter(|part| part.service == own.id).map(move |part| (member, part))
            },
        );
        let all: f64 = own.weight + others.clone().map(|(_, part)| part.weight).sum::<f64>();
        let part = |weight: f64| if all > 0.0 { weight / all } else { 0.0 };
        let load = |load: Option<f64>| load.map_or_else(|| "–".to_owned(), percent);
        let mut parts = vec![Part {
            who: format!("{}", status.member),
            own: true,
            server: own.server.to_string(),
            capacity: own.capacity,
            weight: number(own.weight),
            bar: super::bar::tenth(160.0 * part(own.weight)),
            share: percent(part(own.weight)),
            load: load(own.load),
            in_flight: own.in_flight,
            ready: match own.ready {
                false => "✘ its check fails",
                true if own.weight > 0.0 => "● takes part",
                true => "○ wants nothing",
            },
        }];
        parts.extend(others.map(|(member, theirs)| Part {
            who: member.member.to_string(),
            own: false,
            server: member.address.ip().to_string(),
            capacity: theirs.capacity,
            weight: number(theirs.weight),
            bar: super::bar::tenth(160.0 * part(theirs.weight)),
            share: percent(part(theirs.weight)),
            load: load(theirs.load),
            in_flight: theirs.in_flight,
            ready: if theirs.weight > 0.0 { "● takes part" } else { "○ wants nothing" },
        }));
        Service { name: own.name.clone(), parts }
    });
    each.collect()
}

fn mate(member: &crate::MemberSeen) -> Mate {
    let (glyph, tone) = match (&*member.state, member.suspect) {
        (_, true) => ("▲", Tone::Fair),
        ("up", false) => ("●", Tone::Good),
        ("draining" | "leaving", false) => ("◌", Tone::Fair),
        _ => ("○", Tone::Off),
    };
    let state =
        if member.suspect { format!("{}, not heard of late", member.state) } else { member.state.clone() };
    Mate {
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
struct Supervised {
    base: Base,
    tone: Tone,
    glyph: &'static str,
    says: String,
    processes: Vec<Child>,
}

#[derive(Serialize)]
struct Child {
    name: String,
    glyph: &'static str,
    word: &'static str,
    tone: Tone,
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
pub(super) async fn supervisor(
    plane: &Arc<Plane>,
    supervisor: &Arc<dyn Supervisor>,
    caller: &Caller,
    path: &str,
) -> Result<String, String> {
    let permit = plane.permit(caller, Verb::Household);
    let trusted = crate::supervisor::trusted(plane, caller);
    let asked = Arc::clone(supervisor);
    let view = {
        let _turn = plane.turns.looks.lock().await;
        tokio::task::spawn_blocking(move || asked.view()).await.map_err(|why| why.to_string())?
    };
    let household = crate::supervisor::seen(view, &permit, &trusted);
    let base = base(
        plane,
        caller,
        "Processes",
        path,
        &household.version,
        household.stopping,
        household.reload_error.as_deref(),
    );
    render::text("supervisor.html", &supervised(base, &household, super::door::now()))
}

fn supervised(base: Base, household: &Household, now: u64) -> Supervised {
    let all = household.processes.len();
    let running = household.processes.iter().filter(|process| process.state == Phase::Running).count();
    let ill = household
        .processes
        .iter()
        .filter(|process| process.says.as_ref().is_some_and(|says| !says.well))
        .count();
    let failed = household
        .processes
        .iter()
        .filter(|process| matches!(process.state, Phase::Failed | Phase::BackingOff))
        .count();
    let mut says =
        format!("{running} of {} run", count(all as u64, "process").replace("processs", "processes"));
    for (many, what) in [(failed, "failed"), (ill, "not well by what they say")] {
        if many > 0 {
            says.push_str(&format!(", {many} {what}"));
        }
    }
    let (tone, glyph) = if failed > 0 {
        (Tone::Bad, "✘")
    } else if ill > 0 {
        (Tone::Fair, "▲")
    } else {
        (Tone::Good, "✔")
    };
    Supervised {
        base,
        tone,
        glyph,
        says,
        processes: household.processes.iter().map(|process| child(process, now)).collect(),
    }
}

fn child(process: &ProcessStatus, now: u64) -> Child {
    let (glyph, word, tone) = match process.state {
        Phase::Running => ("●", "running", Tone::Good),
        Phase::Stopping => ("◌", "stopping", Tone::Fair),
        Phase::BackingOff => ("▲", "backing off", Tone::Bad),
        Phase::Failed => ("✘", "failed", Tone::Bad),
        Phase::Stopped => ("■", "stopped", Tone::Off),
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
    Child {
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
