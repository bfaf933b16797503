//! The status of a running balancer.

use plimsoll_brain::MemberState;
use plimsoll_brain::status::{GroupExplanation, StatusReport};
use plimsoll_config::{ConfigFile, pluralize};

use super::diagnostic::{CheckSection, GuidePage};
use super::machine::OpenFileLimits;
use crate::command::status::rejected_share;
use crate::control::format::{latency, short_duration, state_label};
use crate::control::{ControlEndpoint, ControlError};

/// The share of the limit on open files above which a warning is given.
const NEAR: f64 = 0.8;

/// The age of an old report, in intervals of its monitor, and the seconds that any report may be old.
const OLD: (f64, f64) = (3.0, 10.0);

/// Asks the balancer; returns its status if it answers, and whether it should have answered and did not.
pub(super) fn check_connection(
    balancer: &Result<ControlEndpoint, ControlError>,
    named: bool,
) -> (CheckSection, Option<StatusReport>, bool) {
    let mut part = CheckSection::new("balancer");
    let balancer = match balancer {
        Ok(balancer) => balancer,
        Err(why) if named => {
            super::add_trouble(&mut part, why);
            return (part, None, true);
        }
        Err(why) => {
            part.skip(format!("no balancer is looked for: {why}"));
            return (part, None, false);
        }
    };
    match balancer.status() {
        Ok((_, status)) => {
            let up = short_duration(status.uptime_seconds);
            part.ok(format!("{balancer} answers: plimsoll {}, pid {}, up {up}", status.version, status.pid));
            match &status.store {
                Some(store) => part.ok(format!(
                    "what operators do is kept in {} \
                    {}",
                    store.kind, store.place
                )),
                None => part.skip(
                    "what operators do is forgotten with it: it has neither [store] nor a folder for state \
                     (StateDirectory= of \
                     systemd)",
                ),
            }
            if let ControlEndpoint::Unix(_) = balancer {
                files(&mut part, status.pid);
            }
            (part, Some(status), false)
        }
        Err(_) if !named && balancer.is_gone() => {
            part.skip(format!(
                "no balancer runs at {balancer}: what only one that runs can tell is left out"
            ));
            (part, None, false)
        }
        Err(why) => {
            super::add_trouble(&mut part, &why);
            (part, None, true)
        }
    }
}

/// Checks its open files against their limit; its own user and root can count them.
fn files(part: &mut CheckSection, pid: u32) {
    let Ok(open) = std::fs::read_dir(format!("/proc/{pid}/fd")).map(Iterator::count) else { return };
    let Some(OpenFileLimits { soft: most, .. }) = OpenFileLimits::for_process(pid) else { return };
    let what = format!("{open} of {most} files are open");
    if open as f64 > most as f64 * NEAR {
        part.warn(what, "raise LimitNOFILE=, or lower max_connections", GuidePage::Limits);
    } else {
        part.ok(what);
    }
}

/// Checks that groups can be used, and names the members that cannot.
pub(super) fn health(file: Option<&ConfigFile>, seen: Option<&StatusReport>) -> CheckSection {
    let mut part = CheckSection::new("health");
    for group in file.iter().flat_map(|file| &file.config.groups) {
        if group.health.is_none() && group.lottery.is_none() {
            part.warn(
                format!("{}: no health checks: members count as up until their traffic fails", group.name),
                "add [group.health] with http = \"/healthz\", tcp = true or grpc = \"\"",
                GuidePage::Health,
            );
        }
    }
    for group in seen.iter().flat_map(|status| &status.groups) {
        for member in &group.members {
            let (_, word, _) = state_label(member.state);
            let what = format!(
                "{} {} is {word} for {}: {}",
                group.name,
                member.name,
                short_duration(member.since_seconds),
                member.why
            );
            match member.state {
                MemberState::Up | MemberState::SlowStart => {}
                MemberState::Down | MemberState::Ejected => {
                    part.fail(what, format!("plimsoll explain group {}", group.name), GuidePage::MemberOut)
                }
                MemberState::Unchecked => {
                    part.warn(what, "its first check has not ended yet", GuidePage::MemberOut)
                }
                MemberState::Draining => part.warn(
                    what,
                    format!("plimsoll undrain {} takes it back", member.name),
                    GuidePage::MemberOut,
                ),
                MemberState::Disabled => part.warn(
                    what,
                    format!("plimsoll enable member {} takes it back", member.name),
                    GuidePage::MemberOut,
                ),
            }
        }
        if let Some(refused) = rejected_share(group) {
            part.fail(
                format!("{}: {refused}", group.name),
                format!("plimsoll members {} says which members take nothing, and why", group.name),
                GuidePage::Refusals,
            );
        }
        if group.healthy {
            part.ok(format!("{}: {}", group.name, group.verdict));
        } else {
            part.fail(
                format!("{}: no member can be used: {}", group.name, group.verdict),
                "clients are refused until one can",
                GuidePage::MemberOut,
            );
        }
    }
    part
}

/// Checks that loads are known, and not too old.
pub(super) fn reports(balancer: &ControlEndpoint, status: &StatusReport) -> CheckSection {
    let mut part = CheckSection::new("reports");
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
                (Some(why), _) => part.fail(format!("{of}: {why}"), REPORT_HINT, GuidePage::Reports),
                (None, None) => part.fail(
                    format!("{of}: no load is known ({})", monitor.metric),
                    REPORT_HINT,
                    GuidePage::Reports,
                ),
                (None, Some(load)) if load.age_seconds > most => {
                    part.fail(
                        format!("{of}: its load is {} old", short_duration(load.age_seconds)),
                        REPORT_HINT,
                        GuidePage::Reports,
                    );
                }
                (None, Some(load)) => oldest = oldest.max(load.age_seconds),
            }
        }
        if part.findings.len() == before {
            let members = pluralize(explained.members.len(), "member");
            part.ok(format!(
                "{}: loads of {members} are known, the oldest {} old",
                group.name,
                latency(oldest)
            ));
        }
    }
    part
}

const REPORT_HINT: &str = "see whether plimsoll agent, or the server's own reports, come here";

/// Checks that sources of members answer.
pub(super) fn discovery(status: &StatusReport) -> CheckSection {
    let mut part = CheckSection::new("discovery");
    for group in &status.groups {
        for source in &group.discovery {
            let of = format!("{} by {} {}", group.name, source.kind, source.what);
            match (&source.error, source.age_seconds) {
                (Some(why), _) => part.fail(
                    format!("{of}: {why}"),
                    "the members of its last good answer are kept until it answers again",
                    GuidePage::Discovery,
                ),
                (None, None) => {
                    part.warn(format!("{of}: no answer yet"), "it was asked just now", GuidePage::Discovery)
                }
                (None, Some(age)) => {
                    part.ok(format!(
                        "{of}: {}, {} ago",
                        pluralize(source.members, "member"),
                        short_duration(age)
                    ));
                }
            }
        }
    }
    part
}

/// Checks that the running version is the installed one.
pub(super) fn versions(status: &StatusReport) -> CheckSection {
    let mut part = CheckSection::new("versions");
    let ours = env!("CARGO_PKG_VERSION");
    if status.version == ours {
        part.ok(format!("the balancer and this command are both {ours}"));
    } else {
        part.warn(
            format!("the balancer is {}, this command {ours}", status.version),
            "start the balancer again with the new binary, or use the old one's commands",
            GuidePage::Versions,
        );
    }
    match (&status.last_reload_error, status.last_reload_successful) {
        (_, true) => part.ok(format!(
            "the configuration in force is the last one given ({})",
            pluralize(usize::try_from(status.reloads).unwrap_or(usize::MAX), "reload")
        )),
        (why, false) => {
            let why = why.as_deref().unwrap_or("it did not say why").lines().next().unwrap_or_default();
            part.fail(
                format!("the last reload was refused: {why}"),
                "mend the file, then plimsoll reload",
                GuidePage::Reload,
            );
        }
    }
    if status.stopping {
        part.warn(
            "it is stopping: nothing new is accepted",
            "plimsoll status says what is still open",
            GuidePage::Reload,
        );
    }
    part
}
