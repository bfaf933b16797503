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
const FILES_WARN_SHARE: f64 = 0.8;

/// The age of an old report, in intervals of its monitor, and the seconds that any report may be old.
const MAX_REPORT_AGE: (f64, f64) = (3.0, 10.0);

/// Asks the balancer; returns its status if it answers, and whether it should have answered and did not.
pub(super) fn check_connection(
    balancer: &Result<ControlEndpoint, ControlError>,
    is_named: bool,
) -> (CheckSection, Option<StatusReport>, bool) {
    let mut section = CheckSection::new("balancer");
    let balancer = match balancer {
        Ok(balancer) => balancer,
        Err(error) if is_named => {
            super::add_control_error(&mut section, error);
            return (section, None, true);
        }
        Err(error) => {
            section.skip(format!("no balancer is looked for: {error}"));
            return (section, None, false);
        }
    };
    match balancer.status() {
        Ok((_, status)) => {
            let uptime = short_duration(status.uptime_seconds);
            section.ok(format!(
                "{balancer} answers: plimsoll {}, pid {}, up {uptime}",
                status.version, status.pid
            ));
            match &status.store {
                Some(store) => section.ok(format!(
                    "what operators do is kept in {} \
                    {}",
                    store.kind, store.place
                )),
                None => section.skip(
                    "what operators do is forgotten with it: it has neither [store] nor a folder for state \
                     (StateDirectory= of \
                     systemd)",
                ),
            }
            if let ControlEndpoint::Unix(_) = balancer {
                check_open_files(&mut section, status.pid);
            }
            (section, Some(status), false)
        }
        Err(_) if !is_named && balancer.is_gone() => {
            section.skip(format!(
                "no balancer runs at {balancer}: what only one that runs can tell is left out"
            ));
            (section, None, false)
        }
        Err(error) => {
            super::add_control_error(&mut section, &error);
            (section, None, true)
        }
    }
}

/// Checks its open files against their limit; its own user and root can count them.
fn check_open_files(section: &mut CheckSection, pid: u32) {
    let Ok(open_files) = std::fs::read_dir(format!("/proc/{pid}/fd")).map(Iterator::count) else { return };
    let Some(OpenFileLimits { soft: max_files, .. }) = OpenFileLimits::for_process(pid) else { return };
    let message = format!("{open_files} of {max_files} files are open");
    if open_files as f64 > max_files as f64 * FILES_WARN_SHARE {
        section.warn(message, "raise LimitNOFILE=, or lower max_connections", GuidePage::Limits);
    } else {
        section.ok(message);
    }
}

/// Checks that groups can be used, and names the members that cannot.
pub(super) fn check_health(file: Option<&ConfigFile>, live_status: Option<&StatusReport>) -> CheckSection {
    let mut section = CheckSection::new("health");
    for group in file.iter().flat_map(|file| &file.config.groups) {
        if group.health.is_none() && group.lottery.is_none() {
            section.warn(
                format!("{}: no health checks: members count as up until their traffic fails", group.name),
                "add [group.health] with http = \"/healthz\", tcp = true or grpc = \"\"",
                GuidePage::Health,
            );
        }
    }
    for group in live_status.iter().flat_map(|status| &status.groups) {
        for member in &group.members {
            let (_, label, _) = state_label(member.state);
            let message = format!(
                "{} {} is {label} for {}: {}",
                group.name,
                member.name,
                short_duration(member.since_seconds),
                member.why
            );
            match member.state {
                MemberState::Up | MemberState::SlowStart => {}
                MemberState::Down | MemberState::Ejected => section.fail(
                    message,
                    format!("plimsoll explain group {}", group.name),
                    GuidePage::MemberOut,
                ),
                MemberState::Unchecked => {
                    section.warn(message, "its first check has not ended yet", GuidePage::MemberOut)
                }
                MemberState::Draining => section.warn(
                    message,
                    format!("plimsoll undrain {} takes it back", member.name),
                    GuidePage::MemberOut,
                ),
                MemberState::Disabled => section.warn(
                    message,
                    format!("plimsoll enable member {} takes it back", member.name),
                    GuidePage::MemberOut,
                ),
            }
        }
        if let Some(rejections) = rejected_share(group) {
            section.fail(
                format!("{}: {rejections}", group.name),
                format!("plimsoll members {} says which members take nothing, and why", group.name),
                GuidePage::Refusals,
            );
        }
        if group.healthy {
            section.ok(format!("{}: {}", group.name, group.verdict));
        } else {
            section.fail(
                format!("{}: no member can be used: {}", group.name, group.verdict),
                "clients are refused until one can",
                GuidePage::MemberOut,
            );
        }
    }
    section
}

/// Checks that loads are known, and not too old.
pub(super) fn check_reports(balancer: &ControlEndpoint, status: &StatusReport) -> CheckSection {
    let mut section = CheckSection::new("reports");
    for group in &status.groups {
        let explanation: GroupExplanation = match balancer.get(&format!("/v1/groups/{}/explain", group.name))
        {
            Ok(explanation) => explanation,
            Err(error) => {
                section.skip(format!("{}: {error}", group.name));
                continue;
            }
        };
        let Some(monitor) = &explanation.monitor else { continue };
        let max_age = (monitor.interval_seconds * MAX_REPORT_AGE.0).max(MAX_REPORT_AGE.1);
        let mut oldest: f64 = 0.0;
        let findings_before = section.findings.len();
        for member in &explanation.members {
            let member_label = format!("{} {}", group.name, member.name);
            match (&member.trouble, member.load) {
                (Some(error), _) => {
                    section.fail(format!("{member_label}: {error}"), REPORT_HINT, GuidePage::Reports)
                }
                (None, None) => section.fail(
                    format!("{member_label}: no load is known ({})", monitor.metric),
                    REPORT_HINT,
                    GuidePage::Reports,
                ),
                (None, Some(load)) if load.age_seconds > max_age => {
                    section.fail(
                        format!("{member_label}: its load is {} old", short_duration(load.age_seconds)),
                        REPORT_HINT,
                        GuidePage::Reports,
                    );
                }
                (None, Some(load)) => oldest = oldest.max(load.age_seconds),
            }
        }
        if section.findings.len() == findings_before {
            let members = pluralize(explanation.members.len(), "member");
            section.ok(format!(
                "{}: loads of {members} are known, the oldest {} old",
                group.name,
                latency(oldest)
            ));
        }
    }
    section
}

const REPORT_HINT: &str = "see whether plimsoll agent, or the server's own reports, come here";

/// Checks that sources of members answer.
pub(super) fn check_discovery(status: &StatusReport) -> CheckSection {
    let mut section = CheckSection::new("discovery");
    for group in &status.groups {
        for source in &group.discovery {
            let source_label = format!("{} by {} {}", group.name, source.kind, source.what);
            match (&source.error, source.age_seconds) {
                (Some(error), _) => section.fail(
                    format!("{source_label}: {error}"),
                    "the members of its last good answer are kept until it answers again",
                    GuidePage::Discovery,
                ),
                (None, None) => section.warn(
                    format!("{source_label}: no answer yet"),
                    "it was asked just now",
                    GuidePage::Discovery,
                ),
                (None, Some(age)) => {
                    section.ok(format!(
                        "{source_label}: {}, {} ago",
                        pluralize(source.members, "member"),
                        short_duration(age)
                    ));
                }
            }
        }
    }
    section
}

/// Checks that the running version is the installed one.
pub(super) fn check_versions(status: &StatusReport) -> CheckSection {
    let mut section = CheckSection::new("versions");
    let own_version = env!("CARGO_PKG_VERSION");
    if status.version == own_version {
        section.ok(format!("the balancer and this command are both {own_version}"));
    } else {
        section.warn(
            format!("the balancer is {}, this command {own_version}", status.version),
            "start the balancer again with the new binary, or use the old one's commands",
            GuidePage::Versions,
        );
    }
    match (&status.last_reload_error, status.last_reload_successful) {
        (_, true) => section.ok(format!(
            "the configuration in force is the last one given ({})",
            pluralize(usize::try_from(status.reloads).unwrap_or(usize::MAX), "reload")
        )),
        (reload_error, false) => {
            let reason =
                reload_error.as_deref().unwrap_or("it did not say why").lines().next().unwrap_or_default();
            section.fail(
                format!("the last reload was refused: {reason}"),
                "mend the file, then plimsoll reload",
                GuidePage::Reload,
            );
        }
    }
    if status.stopping {
        section.warn(
            "it is stopping: nothing new is accepted",
            "plimsoll status says what is still open",
            GuidePage::Reload,
        );
    }
    section
}
