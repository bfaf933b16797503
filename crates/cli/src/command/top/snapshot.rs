//! The snapshot of two looks: for each member the columns of the table, for each group its line of verdict.

use std::collections::{BTreeMap, HashMap};

use plimsoll_admin::member_table::{self, LoadScale, MemberFigures, MemberLoad};
use plimsoll_brain::MemberState;
use plimsoll_brain::status::{
    GroupHealth, GroupStatus, MemberExplanation, MemberRecent, MemberStatus, RecentSecond, StatusReport,
};
use serde::Serialize;

use super::SortOrder;
use super::load_bar::LoadBar;
use super::poll::PollResult;

/// All groups at one moment.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct TopSnapshot {
    #[serde(skip)]
    pub(super) title: String,
    /// The warnings that come before anything else.
    #[serde(skip)]
    pub(super) banners: Vec<String>,
    /// The groups, in the order of the configuration.
    pub(super) groups: Vec<GroupPanel>,
}

/// A group.
#[derive(Clone, Debug, Serialize)]
pub(super) struct GroupPanel {
    pub(super) name: String,
    pub(super) healthy: bool,
    #[serde(skip)]
    pub(super) standing: GroupHealth,
    pub(super) verdict: String,
    pub(super) strategy: String,
    /// The requests that ended, a second; `None` before there are two looks, unless the load line has it.
    pub(super) requests_per_second: Option<f64>,
    /// The predicted rate above which requests queue up.
    pub(super) capacity: Option<f64>,
    /// The lower and upper end, if it is a range.
    pub(super) range: Option<(f64, f64)>,
    /// The free part of it.
    pub(super) headroom: Option<f64>,
    /// The percentile of the last seconds; since start if those are not known. In seconds.
    pub(super) p50: Option<f64>,
    pub(super) p99: Option<f64>,
    /// The requests in the wait queue now.
    pub(super) queued: u64,
    /// The requests that the balancer rejected, since start.
    pub(super) rejected: u64,
    /// The part of those that was rejected for want of room.
    pub(super) shed: u64,
    /// The members, in the order of the configuration.
    pub(super) members: Vec<MemberLine>,
}

/// A member.
#[derive(Clone, Debug, Serialize)]
pub(super) struct MemberLine {
    pub(super) name: String,
    pub(super) state: MemberState,
    /// Whether it is in use, and ten times slower than its group.
    pub(super) slow: bool,
    pub(super) why: String,
    pub(super) since_seconds: f64,
    pub(super) load: LoadBar,
    /// The part of its capacity that is in use.
    pub(super) used: Option<f64>,
    /// The time since its load was measured, or it reported its limit with an answer, in seconds.
    pub(super) report_age_seconds: Option<f64>,
    /// The sessions that are bound to it, over all listeners, and leases of it; `None` if a member is chosen
    /// for each request.
    pub(super) bindings: Option<u64>,
    pub(super) in_flight: u32,
    /// The requests a second, over the last ten seconds.
    pub(super) requests_per_second: Option<f64>,
    /// The percentile of about the last ten seconds; since start if those are not known. In seconds.
    pub(super) p50: Option<f64>,
    pub(super) p99: Option<f64>,
    /// The requests that failed, since start.
    pub(super) errors: u64,
    /// The failures a second, over the last ten seconds.
    pub(super) errors_per_second: f64,
    /// The sessions that left it under alert, since start.
    pub(super) sheds: u64,
    /// The sessions that left it in the last minute.
    pub(super) sheds_lately: u64,
    /// The share of its sessions that must leave now.
    pub(super) alert_share: f64,
}

impl TopSnapshot {
    /// Returns the snapshot; `before` is an earlier look, for rates.
    pub(super) fn from_polls(poll: &PollResult, previous: Option<&PollResult>) -> Self {
        let status = &poll.status;
        let previous = previous.filter(|previous| previous.status.pid == status.pid);
        let earlier = EarlierCounts::from_polls(poll, previous);
        let groups = status.groups.iter().map(|group| group_panel(group, poll, &earlier)).collect();
        let uptime = crate::control::format::short_duration(status.uptime_seconds);
        Self {
            title: format!("plimsoll {}, {}, up {uptime}", status.version, poll.balancer_name),
            banners: banners(status),
            groups,
        }
    }

    /// Removes all groups but this one.
    pub(super) fn retain_group(&mut self, group: Option<&str>) {
        if let Some(name) = group {
            self.groups.retain(|group| group.name == name);
        }
    }
}

fn banners(status: &StatusReport) -> Vec<String> {
    let mut banners = Vec::new();
    if !status.last_reload_successful {
        let reason = status.last_reload_error.as_deref().unwrap_or("it did not say why");
        let reason = reason.lines().next().unwrap_or_default();
        banners.push(format!("the last reload was refused: {reason}"));
    }
    if status.stopping {
        banners.push("stopping: work in flight may end, nothing new is accepted".to_owned());
    }
    let is_expired = |certificate: &&plimsoll_brain::status::CertificateStatus| {
        certificate.expires_seconds.is_none_or(|seconds| seconds <= 0.0)
    };
    banners.extend(
        status
            .certificates
            .iter()
            .filter(is_expired)
            .map(|certificate| format!("no certificate for {} that counts", certificate.name)),
    );
    banners
}

/// The counts of an earlier look.
struct EarlierCounts<'l> {
    members: BTreeMap<(&'l str, &'l str), &'l MemberStatus>,
    /// The seconds between the two; `None` without an earlier one.
    seconds: Option<f64>,
}

impl<'l> EarlierCounts<'l> {
    fn from_polls(poll: &PollResult, previous: Option<&'l PollResult>) -> Self {
        let groups = previous.into_iter().flat_map(|previous| &previous.status.groups);
        let members = groups
            .flat_map(|group| group.members.iter().map(|member| ((&*group.name, &*member.name), member)))
            .collect();
        let seconds = previous.map(|previous| poll.at.duration_since(previous.at).as_secs_f64());
        Self { members, seconds: seconds.filter(|seconds| *seconds > 0.0) }
    }
}

/// The seconds over which a recent time is computed.
const RECENT_SECONDS: usize = 5;

fn group_panel(group: &GroupStatus, poll: &PollResult, earlier: &EarlierCounts<'_>) -> GroupPanel {
    let line = group.load_line.as_ref();
    let recent = poll.recent.get(&group.name);
    let members = recent.map_or(&[][..], |recent| &recent.members);
    let listeners = || poll.status.listeners.iter().filter(|listener| listener.group == group.name);
    let explanations =
        poll.explanations.get(&group.name).into_iter().flat_map(|explanation| &explanation.members);
    let lookup = MemberLookup {
        scale: LoadScale::of(group, members),
        recent: members.iter().map(|member| (&*member.name, member)).collect(),
        explained: explanations.map(|member| (&*member.name, member)).collect(),
        bound: member_table::bound_sessions(listeners()),
        has_bindings: member_table::has_bindings(group, listeners()),
    };
    let rows: Vec<MemberLine> =
        group.members.iter().map(|member| member_line(group, member, &lookup, earlier)).collect();
    let measured_rate: Option<f64> = rows.iter().map(|row| row.requests_per_second).sum();
    let latest = |quantile: fn(&RecentSecond) -> Option<f64>| {
        let seconds = recent.map_or(&[][..], |recent| &recent.seconds);
        seconds.iter().rev().take(RECENT_SECONDS).find_map(quantile)
    };
    let time = |recent_value: Option<f64>, overall_value: f64| {
        recent_value.or_else(|| (recent.is_none() && group.latency.count > 0).then_some(overall_value))
    };
    GroupPanel {
        name: group.name.clone(),
        healthy: group.healthy,
        standing: GroupHealth::of(group, 0.0),
        verdict: group.verdict.clone(),
        strategy: group.strategy.clone(),
        requests_per_second: measured_rate.or_else(|| line.map(|line| line.requests_per_second)),
        capacity: line.and_then(|line| line.capacity),
        range: line.and_then(|line| line.range()),
        headroom: line.and_then(|line| line.headroom),
        p50: time(latest(|second| second.p50), group.latency.p50),
        p99: time(latest(|second| second.p99), group.latency.p99),
        queued: group.queued,
        rejected: group.rejected.values().sum(),
        shed: group.rejected.get("shed").copied().unwrap_or(0),
        members: rows,
    }
}

/// The known values of the members of a group beside their status, by name.
struct MemberLookup<'l> {
    scale: LoadScale,
    recent: HashMap<&'l str, &'l MemberRecent>,
    explained: HashMap<&'l str, &'l MemberExplanation>,
    bound: HashMap<&'l str, u64>,
    /// Whether the group binds sessions.
    has_bindings: bool,
}

fn member_line(
    group: &GroupStatus,
    member: &MemberStatus,
    lookup: &MemberLookup<'_>,
    earlier: &EarlierCounts<'_>,
) -> MemberLine {
    let name = &*member.name;
    let recent = lookup.recent.get(name).copied();
    let figures = MemberFigures::of(member, recent, lookup.bound.get(name).copied().unwrap_or(0));
    let limited_member = member_table::with_limit(member, lookup.explained.get(name).copied());
    // Counts without values by the second are taken between two looks.
    let previous = earlier.members.get(&(&*group.name, &*member.name)).filter(|_| recent.is_none());
    let rate_since = |current: u64, count: fn(&MemberStatus) -> u64| {
        let (seconds, previous) = earlier.seconds.zip(previous)?;
        Some(current.saturating_sub(count(previous)) as f64 / seconds)
    };
    MemberLine {
        name: member.name.clone(),
        state: member.state,
        slow: member.is_slow(),
        why: member.why.clone(),
        since_seconds: member.since_seconds,
        load: LoadBar::new(MemberLoad::of(&limited_member, recent, lookup.scale), lookup.scale),
        used: member.load_line.as_ref().and_then(|line| line.used),
        report_age_seconds: figures.report_age,
        bindings: lookup.has_bindings.then_some(figures.bindings),
        in_flight: member.in_flight,
        requests_per_second: rate_since(member.requests, |previous| previous.requests).or(figures.rate),
        p50: figures.p50,
        p99: figures.p99,
        errors: figures.failures,
        errors_per_second: rate_since(member.failures, |previous| previous.failures)
            .unwrap_or(figures.failing),
        sheds: figures.moved,
        sheds_lately: figures.moved_lately,
        alert_share: figures.alert_share,
    }
}

impl GroupPanel {
    /// Returns members in this order.
    pub(super) fn sorted_members(&self, sort: SortOrder) -> Vec<&MemberLine> {
        let mut rows: Vec<&MemberLine> = self.members.iter().collect();
        let sort_descending = |rows: &mut Vec<&MemberLine>, key: &dyn Fn(&MemberLine) -> f64| {
            rows.sort_by(|a, b| key(b).total_cmp(&key(a)));
        };
        match sort {
            SortOrder::Configured => {}
            SortOrder::Name => rows.sort_by(|a, b| a.name.cmp(&b.name)),
            SortOrder::State => rows.sort_by_key(|row| std::cmp::Reverse(severity(row.state))),
            SortOrder::Load => sort_descending(&mut rows, &|row| row.load.share()),
            SortOrder::Rate => sort_descending(&mut rows, &|row| row.requests_per_second.unwrap_or(-1.0)),
            SortOrder::P99 => sort_descending(&mut rows, &|row| row.p99.unwrap_or(-1.0)),
            SortOrder::Errors => sort_descending(&mut rows, &|row| row.errors as f64),
            SortOrder::Age => sort_descending(&mut rows, &|row| row.report_age_seconds.unwrap_or(-1.0)),
        }
        rows
    }
}

/// Returns the badness of a state.
fn severity(state: MemberState) -> u8 {
    match state {
        MemberState::Down => 6,
        MemberState::Ejected => 5,
        MemberState::Unchecked => 4,
        MemberState::Draining => 3,
        MemberState::Disabled => 2,
        MemberState::SlowStart => 1,
        MemberState::Up => 0,
    }
}
