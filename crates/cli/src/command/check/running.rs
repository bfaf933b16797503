//! The status of a running balancer.

use plimsoll_brain::State;
use plimsoll_brain::status::{GroupExplanation, Status};

use super::finding::{Part, See};
use super::machine::OpenFiles;
use crate::command::status::refused;
use crate::config::{File, count};
use crate::control::text::{ago, latency, state};
use crate::control::{Balancer, Trouble};

/// The share of the limit on open files above which a warning is given.
const NEAR: f64 = 0.8;

/// The age of an old report, in intervals of its monitor, and the seconds that any report may be old.
const OLD: (f64, f64) = (3.0, 10.0);

/// Asks the balancer; returns its status if it answers, and whether it should have answered and did not.
pub(super) fn reached(balancer: &Result<Balancer, Trouble>, named: bool) -> (Part, Option<Status>, bool) {
    let mut part = Part::new("balancer");
    let balancer = match balancer {
        Ok(balancer) => balancer,
        Err(why) if named => {
            super::trouble(&mut part, why);
            return (part, None, true);
        }
        Err(why) => {
            part.skip(format!("no balancer is looked for: {why}"));
            return (part, None, false);
        }
    };
    match balancer.status() {
        Ok((_, status)) => {
            let up = ago(status.uptime_seconds);
            part.ok(format!("{balancer} answers: plimsoll {}, pid {}, up {up}", status.version, status.pid));
            match &status.store {
                Some(store) => part.ok(format!("what operators do is kept in {} {}", store.kind, store.place)),
                None => part.skip(
                    "what operators do is forgotten with it: it has neither [store] nor a folder for state (StateDirectory= of \
                     systemd)",
                ),
            }
            if let Balancer::Unix(_) = balancer {
                files(&mut part, status.pid);
            }
            (part, Some(status), false)
        }
        Err(_) if !named && balancer.gone() => {
            part.skip(format!(
                "no balancer runs at {balancer}: what only one that runs can tell is left out"
            ));
            (part, None, false)
        }
        Err(why) => {
            super::trouble(&mut part, &why);
            (part, None, true)
        }
    }
}

/// Checks its open files against their limit; its own user and root can count them.
fn files(part: &mut Part, pid: u32) {
    let Ok(open) = std::fs::read_dir(format!("/proc/{pid}/fd")).map(Iterator::count) else { return };
    let Some(OpenFiles { soft: most, .. }) = OpenFiles::of(pid) else { return };
    let what = format!("{open} of {most} files are open");
    if open as f64 > most as f64 * NEAR {
        part.warn(what, "raise LimitNOFILE=, or lower max_connections", See::Limits);
    } else {
        part.ok(what);
    }
}

/// Checks that groups can be used, and names the members that cannot.
pub(super) fn health(file: Option<&File>, seen: Option<&Status>) -> Part {
    let mut part = Part::new("health");
    for group in file.iter().flat_map(|file| &file.config.groups) {
        if group.health.is_none() && group.lottery.is_none() {
            part.warn(
                format!("{}: no health checks: members count as up until their traffic fails", group.name),
                "add [group.health] with http = \"/healthz\", tcp = true or grpc = \"\"",
                See::Health,
            );
        }
    }
    for group in seen.iter().flat_map(|status| &status.groups) {
        for member in &group.members {
            let (_, word, _) = state(member.state);
            let what = format!(
                "{} {} is {word} for {}: {}",
                group.name,
                member.name,
                ago(member.since_seconds),
                member.why
            );
            match member.state {
                State::Up | State::SlowStart => {}
                State::Down | State::Ejected => {
                    part.fail(what, format!("plimsoll explain group {}", group.name), See::MemberOut)
                }
                State::Unchecked => part.warn(what, "its first check has not ended yet", See::MemberOut),
                State::Draining => {
                    part.warn(what, format!("plimsoll undrain {} takes it back", member.name), See::MemberOut)
                }
                State::Disabled => part.warn(
                    what,
                    format!("plimsoll enable member {} takes it back", member.name),
                    See::MemberOut,
                ),
            }
        }
        if let Some(refused) = refused(group) {
            part.fail(
                format!("{}: {refused}", group.name),
                format!("plimsoll members {} says which members take nothing, and why", group.name),
                See::Refusals,
            );
        }
        if group.healthy {
            part.ok(format!("{}: {}", group.name, group.verdict));
        } else {
            part.fail(
                format!("{}: no member can be used: {}", group.name, group.verdict),
                "clients are refused until one can",
                See::MemberOut,
            );
        }
    }
    part
}

/// Checks that loads are known, and not too old.
pub(super) fn reports(balancer: &Balancer, status: &Status) -> Part {
    let mut part = Part::new("reports");
    for group in &status.groups {
        let explained: GroupExplanation = match balancer.get(&format!("/v1/groups/{}/explain", group.name)) {
            Ok(explained) => explained,
            Err(why) => {
                part.skip(format!("{}: {why}", group.name));
                continue;
            }
        };
        let Some(monitor) = &explained.monitor else { continue };
        let most = (monitor.interval_seconds * OLD.0).max(OLD.1);
        let mut oldest: f64 = 0.0;
        let before = part.findings.len();
        for member in &explained.members {
            let of = format!("{} {}", group.name, member.name);
            match (&member.trouble, member.load) {
                (Some(why), _) => part.fail(format!("{of}: {why}"), HOW, See::Reports),
                (None, None) => {
                    part.fail(format!("{of}: no load is known ({})", monitor.metric), HOW, See::Reports)
                }
                (None, Some(load)) if load.age_seconds > most => {
                    part.fail(format!("{of}: its load is {} old", ago(load.age_seconds)), HOW, See::Reports);
                }
                (None, Some(load)) => oldest = oldest.max(load.age_seconds),
            }
        }
        if part.findings.len() == before {
            let members = count(explained.members.len(), "member");
            part.ok(format!(
                "{}: loads of {members} are known, the oldest {} old",
                group.name,
                latency(oldest)
            ));
        }
    }
    part
}

const HOW: &str = "see whether plimsoll agent, or the server's own reports, come here";

/// Checks that sources of members answer.
pub(super) fn discovery(status: &Status) -> Part {
    let mut part = Part::new("discovery");
    for group in &status.groups {
        for source in &group.discovery {
            let of = format!("{} by {} {}", group.name, source.kind, source.what);
            match (&source.error, source.age_seconds) {
                (Some(why), _) => part.fail(
                    format!("{of}: {why}"),
                    "the members of its last good answer are kept until it answers again",
                    See::Discovery,
                ),
                (None, None) => {
                    part.warn(format!("{of}: no answer yet"), "it was asked just now", See::Discovery)
                }
                (None, Some(age)) => {
                    part.ok(format!("{of}: {}, {} ago", count(source.members, "member"), ago(age)));
                }
            }
        }
    }
    part
}

/// Checks that the running version is the installed one.
pub(super) fn versions(status: &Status) -> Part {
    let mut part = Part::new("versions");
    let ours = env!("CARGO_PKG_VERSION");
    if status.version == ours {
        part.ok(format!("the balancer and this command are both {ours}"));
    } else {
        part.warn(
            format!("the balancer is {}, this command {ours}", status.version),
            "start the balancer again with the new binary, or use the old one's commands",
            See::Versions,
        );
    }
    match (&status.last_reload_error, status.last_reload_successful) {
        (_, true) => part.ok(format!(
            "the configuration in force is the last one given ({})",
            count(usize::try_from(status.reloads).unwrap_or(usize::MAX), "reload")
        )),
        (why, false) => {
            let why = why.as_deref().unwrap_or("it did not say why").lines().next().unwrap_or_default();
            part.fail(
                format!("the last reload was refused: {why}"),
                "mend the file, then plimsoll reload",
                See::Reload,
            );
        }
    }
    if status.stopping {
        part.warn(
            "it is stopping: nothing new is accepted",
            "plimsoll status says what is still open",
            See::Reload,
        );
    }
    part
}
