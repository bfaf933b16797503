//! The common parts of pages: the viewer, groups with their members and charts, events.

use plimsoll_brain::status::{
    GroupRecent, GroupStatus, ListenerStatus, MemberRecent, MemberStatus, StatusReport,
};
use serde::Serialize;

use super::chart::{Chart, ChartLine, draw_chart};
use super::format::{self, GroupSummary, Severity, ago, latency, number, percent, rate};
use super::load_bar::{self, LoadBar};
use super::urls::{self, PageUrl};
use crate::access::{Caller, CredentialKind};
use crate::api::Operation;
use crate::endpoint::{AdminEndpoint, EndpointCapability};
use crate::member_table::{self, LoadScale, MemberFigures};
use crate::{BalancerBackend, EventEntry, queries};

/// The number of a group's members on the home page.
pub(super) const MAX_HOME_MEMBERS: usize = 40;
/// The number of a group's members on its own page.
pub(super) const MAX_GROUP_MEMBERS: usize = 500;

/// The viewer of a page and the viewed balancer.
pub(super) struct PageContext<'a> {
    pub(super) endpoint: &'a AdminEndpoint,
    pub(super) balancer: &'a dyn BalancerBackend,
    pub(super) caller: &'a Caller,
    /// The status, filtered by the caller's permissions.
    pub(super) status: StatusReport,
    /// The time, milliseconds since 1970.
    pub(super) now: u64,
}

impl<'a> PageContext<'a> {
    pub(super) fn new(
        endpoint: &'a AdminEndpoint,
        balancer: &'a dyn BalancerBackend,
        caller: &'a Caller,
    ) -> Self {
        let status = queries::redact(balancer.status(), &endpoint.granted_scope(caller, Operation::Status));
        Self { endpoint, balancer, caller, status, now: super::csrf::now_ms() }
    }

    pub(super) fn group(&self, name: &str) -> Option<&GroupStatus> {
        self.status.groups.iter().find(|group| group.name == name)
    }

    /// Returns `true` if the caller has the permission.
    pub(super) fn is_allowed(&self, operation: Operation, group: &str) -> bool {
        self.endpoint.granted_scope(self.caller, operation).covers(group)
    }

    /// Returns `true` if the caller has the permission and the endpoint takes commands.
    pub(super) fn can_execute(&self, operation: Operation, group: &str) -> bool {
        self.endpoint.capability == EndpointCapability::Command && self.is_allowed(operation, group)
    }

    /// Returns the log, newest first, filtered by the caller's permissions.
    pub(super) fn events(&self) -> Vec<EventEntry> {
        let mut entries = self.balancer.events(0);
        crate::events::retain_visible(
            &mut entries,
            &self.endpoint.granted_scope(self.caller, Operation::Events),
        );
        entries.reverse();
        entries
    }

    pub(super) fn listeners(&self, group: &str) -> impl Iterator<Item = &ListenerStatus> {
        self.status.listeners.iter().filter(move |listener| listener.group == group)
    }

    /// Returns the common contents of every page.
    pub(super) fn frame(&self, title: &str, page_url: &PageUrl, path: &str) -> PageFrame {
        let mut banners = Vec::new();
        if self.status.stopping {
            banners
                .push("■ The process is stopping: work in flight ends, nothing new is accepted.".to_owned());
        }
        if let Some(error) = &self.status.last_reload_error {
            banners.push(format!(
                "‼ The last reload was refused, the configuration before stays in force: {error}"
            ));
        }
        banners.extend(format::shedding_warning(&self.status.groups));
        let mut base = PageFrame::new(title, self.endpoint, self.caller);
        base.live =
            page_url.is_live().then(|| format!("{}/live?page={}", urls::ROOT, urls::percent_encode(path)));
        base.banners = banners;
        base.version.clone_from(&self.status.version);
        base.here = match page_url {
            PageUrl::Events | PageUrl::Event(_) => "events",
            PageUrl::Process => "process",
            _ => "home",
        };
        base
    }
}

/// The common contents of every page.
#[derive(Debug, Default, Serialize)]
pub(super) struct PageFrame {
    pub(super) title: String,
    /// The source of its live updates.
    pub(super) live: Option<String>,
    /// Warnings about the process.
    pub(super) banners: Vec<String>,
    pub(super) version: String,
    /// The part of the dashboard.
    pub(super) here: &'static str,
    /// The kind of process: `balancer`, `lottery daemon`, `Supervisor`.
    pub(super) kind: &'static str,
    /// The caller.
    pub(super) who: String,
    /// Whether signing in, or out, is possible here.
    pub(super) sign_in: bool,
    pub(super) sign_out: bool,
}

impl PageFrame {
    pub(super) fn new(title: &str, endpoint: &AdminEndpoint, caller: &Caller) -> Self {
        let caller_text = match (endpoint.capability, caller.kind) {
            (EndpointCapability::Command, CredentialKind::None) => "nobody".to_owned(),
            (EndpointCapability::Command, _) => caller.to_string(),
            _ => "looking only".to_owned(),
        };
        Self {
            title: title.to_owned(),
            kind: endpoint.backend.process_kind().name(),
            who: caller_text,
            sign_in: endpoint.accepts_tokens() && caller.kind != CredentialKind::Jwt,
            sign_out: endpoint.accepts_tokens() && caller.kind == CredentialKind::Jwt,
            ..Self::default()
        }
    }
}

/// A name and a value.
#[derive(Debug, Serialize)]
pub(super) struct LabeledValue {
    pub(super) name: String,
    pub(super) value: String,
}

/// Creates a fact.
pub(super) fn labeled_value(name: impl Into<String>, value: impl Into<String>) -> LabeledValue {
    LabeledValue { name: name.into(), value: value.into() }
}

/// An available action.
#[derive(Debug, Serialize)]
pub(super) struct ActionLink {
    pub(super) word: &'static str,
    pub(super) about: String,
    pub(super) href: String,
}

/// A group with its members.
#[derive(Debug, Serialize)]
pub(super) struct GroupView {
    pub(super) name: String,
    pub(super) href: String,
    pub(super) suppose: String,
    pub(super) strategy: String,
    pub(super) verdict: GroupSummary,
    /// Further notes.
    pub(super) notes: Vec<String>,
    pub(super) rows: Vec<MemberRow>,
    /// The number of members that are not shown.
    pub(super) hidden: usize,
    /// Whether the columns of reports, bindings and sheds have contents.
    pub(super) reports: bool,
    pub(super) bindings: bool,
    pub(super) sheds: bool,
    /// The description of the bars' scale.
    pub(super) scale: &'static str,
    pub(super) marks: bool,
    pub(super) lines: bool,
    pub(super) charts: Vec<Chart>,
}

/// A member in a table.
#[derive(Debug, Serialize)]
pub(super) struct MemberRow {
    pub(super) name: String,
    pub(super) href: String,
    pub(super) tone: Severity,
    pub(super) glyph: &'static str,
    pub(super) word: &'static str,
    pub(super) why: String,
    pub(super) since: String,
    pub(super) bar: LoadBar,
    pub(super) report: String,
    pub(super) bindings: u64,
    pub(super) rate: String,
    pub(super) p50: String,
    pub(super) p99: String,
    pub(super) errors: String,
    pub(super) errors_tone: Severity,
    pub(super) sheds: String,
    pub(super) sheds_tone: Severity,
}

impl GroupView {
    /// Creates the view of a group. `place` is a unique number on the page, and `most` the maximum number of
    /// shown members.
    pub(super) fn new(
        page_context: &PageContext<'_>,
        group: &GroupStatus,
        index: usize,
        max_members: usize,
    ) -> Self {
        let recent = page_context.balancer.recent(&group.name).unwrap_or_default();
        let scale = LoadScale::of(group, &recent.members);
        let bound_by_member = member_table::bound_sessions(page_context.listeners(&group.name));
        // The strategy's learned limits are among its figures.
        let can_explain = group.members.len() <= MAX_GROUP_MEMBERS
            && page_context.is_allowed(Operation::Explain, &group.name);
        let explanation = if can_explain { page_context.balancer.explain(&group.name) } else { None };
        let member_row = |member: &MemberStatus| {
            let member_explanation = explanation
                .iter()
                .flat_map(|group_explanation| &group_explanation.members)
                .find(|explained_member| explained_member.name == member.name);
            let member = &member_table::with_limit(member, member_explanation);
            let member_recent = recent.members.iter().find(|recent| recent.name == member.name);
            MemberRow::new(
                group,
                member,
                member_recent,
                scale,
                bound_by_member.get(&*member.name).copied().unwrap_or(0),
            )
        };
        let rows: Vec<MemberRow> = shown_members(group, max_members).map(member_row).collect();
        let what_if_href = format!("{}/what-if", urls::group_url(&group.name));
        Self {
            name: group.name.clone(),
            href: urls::group_url(&group.name),
            suppose: what_if_href,
            strategy: group.strategy.clone(),
            verdict: GroupSummary::of(group, &recent.seconds),
            notes: notes(group),
            hidden: group.members.len().saturating_sub(rows.len()),
            reports: group.members.iter().any(|member| member.load.is_some()),
            bindings: member_table::has_bindings(group, page_context.listeners(&group.name)),
            sheds: group.members.iter().any(|member| member.moved > 0 || member.alert_share > 0.0),
            scale: scale.description(),
            marks: rows.iter().any(|row| !row.bar.marks.is_empty()),
            lines: rows.iter().any(|row| row.bar.line.is_some()),
            rows,
            charts: charts(group, &recent, index),
        }
    }
}

/// Returns the shown members: if there are too many, those with problems first; else all in the order of the
/// configuration.
fn shown_members(group: &GroupStatus, max_members: usize) -> impl Iterator<Item = &MemberStatus> {
    let mut members: Vec<&MemberStatus> = group.members.iter().collect();
    if members.len() > max_members {
        let utilization =
            |member: &MemberStatus| member.load_line.as_ref().and_then(|line| line.used).unwrap_or(0.0);
        members.sort_by(|left, right| {
            let urgency = |member: &MemberStatus| std::cmp::Reverse(format::member_words(member).2);
            urgency(left).cmp(&urgency(right)).then(utilization(right).total_cmp(&utilization(left)))
        });
    }
    members.into_iter().take(max_members)
}

fn notes(group: &GroupStatus) -> Vec<String> {
    let mut notes = Vec::new();
    if group.balancing_disabled {
        notes.push("Balancing is switched off: members take equal turns, whatever their loads.".to_owned());
    }
    if group.queued > 0 {
        notes.push(format!("{} for a member.", waiting_note(group.queued)));
    }
    let load_line = group.load_line.as_ref();
    let member_loss =
        load_line.and_then(|line| line.what_if.iter().find(|change| change.change == "minus_one"));
    if member_loss
        .is_some_and(|member_loss| member_loss.over == Some(true) && member_loss.capacity != Some(0.0))
        && load_line.is_some_and(|line| line.headroom.is_some_and(|headroom| headroom > 0.0))
    {
        notes.push("The loss of one member would put it over the load line.".to_owned());
    }
    for source in group.discovery.iter().filter(|source| source.error.is_some()) {
        let error = source.error.as_deref().unwrap_or_default();
        notes.push(format!(
            "Members are not found any more by {} {}: {error}; those known stay.",
            source.kind, source.what
        ));
    }
    notes
}

fn waiting_note(request_count: u64) -> String {
    if request_count == 1 { "1 request waits".to_owned() } else { format!("{request_count} requests wait") }
}

impl MemberRow {
    pub(super) fn new(
        group: &GroupStatus,
        member: &MemberStatus,
        recent: Option<&MemberRecent>,
        scale: LoadScale,
        bound_count: u64,
    ) -> Self {
        let (glyph, label, severity) = format::member_words(member);
        let figures = MemberFigures::of(member, recent, bound_count);
        let latency_text = |seconds: Option<f64>| seconds.map_or_else(|| "–".to_owned(), latency);
        let errors = match (figures.failures, figures.failing) {
            (0, _) => "0".to_owned(),
            (total, failing_rate) if failing_rate > 0.0 => format!("{}/s ({total})", rate(failing_rate)),
            (total, _) => format!("0 ({total})"),
        };
        let mut sheds = match (figures.moved, figures.moved_lately) {
            (0, _) => "0".to_owned(),
            (total, 0) => format!("0 ({total})"),
            (total, moved_lately) => format!("{moved_lately}/min ({total})"),
        };
        if figures.alert_share > 0.0 {
            sheds = format!("▲ {} to go; {sheds}", percent(figures.alert_share));
        }
        Self {
            name: member.name.clone(),
            href: urls::member_url(&group.name, &member.name),
            tone: severity,
            glyph,
            word: label,
            why: state_reason(member),
            since: ago(member.since_seconds),
            bar: load_bar::draw_load_bar(member, recent, scale),
            report: figures.report_age.map_or_else(|| "–".to_owned(), ago),
            bindings: figures.bindings,
            rate: figures.rate.map_or_else(|| "–".to_owned(), rate),
            p50: latency_text(figures.p50),
            p99: latency_text(figures.p99),
            errors,
            errors_tone: if figures.failing > 0.0 { Severity::Bad } else { Severity::Off },
            sheds,
            sheds_tone: if figures.alert_share > 0.0 { Severity::Fair } else { Severity::Off },
        }
    }
}

/// Returns the reason of a member's state, preceded by the duration of its slowness.
fn state_reason(member: &MemberStatus) -> String {
    let slow_seconds = member.slow_seconds.filter(|_| member.is_slow());
    let slow_text =
        slow_seconds.map(|slow_for| format!("ten times slower than its group for {}; ", ago(slow_for)));
    format!("{}{}", slow_text.unwrap_or_default(), member.why)
}

/// Returns the charts of a group.
pub(super) fn charts(group: &GroupStatus, recent: &GroupRecent, index: usize) -> Vec<Chart> {
    let line =
        |name: &'static str, value_of: fn(&plimsoll_brain::status::RecentSecond) -> Option<f64>| ChartLine {
            name,
            points: recent.seconds.iter().map(|second| (second.age_seconds, value_of(second))).collect(),
        };
    let capacity = group.load_line.as_ref().and_then(|line| line.capacity);
    let rate_lines =
        [line("offered", |second| Some(second.offered)), line("completed", |second| Some(second.completed))];
    let loss_lines =
        [line("failed", |second| Some(second.failed)), line("refused", |second| Some(second.refused))];
    let latency_lines = [line("p99", |second| second.p99), line("p50", |second| second.p50)];
    let chart_id = |suffix: &str| format!("g{index}-{suffix}");
    vec![
        draw_chart(
            chart_id("rate"),
            "Offered and completed, requests a second",
            &rate_lines,
            capacity,
            false,
            rate,
        ),
        draw_chart(chart_id("p99"), "Response time, p99 and p50", &latency_lines, None, true, latency),
        draw_chart(
            chart_id("lost"),
            "Failed, and of those refused for want of room, requests a second",
            &loss_lines,
            None,
            false,
            rate,
        ),
        load_chart(group, recent, chart_id("load")),
    ]
}

/// Returns the chart of each member's load: as a part of its capacity if that is known for most, else as
/// reported, else as requests in flight.
fn load_chart(group: &GroupStatus, recent: &GroupRecent, id: String) -> Chart {
    let scale = LoadScale::of(group, &recent.members);
    let mut members: Vec<(&MemberRecent, f64)> = Vec::new();
    for member in &recent.members {
        let status = group.members.iter().find(|status| status.name == member.name);
        let capacity = status.and_then(|status| status.load_line.as_ref()?.capacity).unwrap_or(f64::NAN);
        if scale != LoadScale::Capacity || capacity > 0.0 {
            members.push((member, capacity));
        }
    }
    let lines: Vec<ChartLine<'_>> =
        members.iter().map(|(member, capacity)| member_line(member, *capacity, scale, recent)).collect();
    let mut lines = lines;
    if lines.len() > super::chart::MAX_LINES {
        // The busiest members are shown, never a mean over members.
        let last_value =
            |line: &ChartLine<'_>| line.points.last().and_then(|(_, value)| *value).unwrap_or(0.0);
        lines.sort_by(|left, right| last_value(right).total_cmp(&last_value(left)));
    }
    match scale {
        LoadScale::Capacity => {
            draw_chart(id, "Load of each member, part of what it can do", &lines, Some(1.0), false, percent)
        }
        LoadScale::Load(_) => draw_chart(id, "Load of each member, as reported", &lines, None, false, number),
        LoadScale::InFlight(_) => {
            draw_chart(id, "Requests under way at each member", &lines, None, false, number)
        }
    }
}

/// Returns the line of one member.
pub(super) fn member_line<'a>(
    member: &'a MemberRecent,
    capacity: f64,
    scale: LoadScale,
    recent: &GroupRecent,
) -> ChartLine<'a> {
    let value = |second: &plimsoll_brain::status::MemberSecond| match scale {
        LoadScale::Capacity => second.requests_per_second.map(|rate| f64::from(rate) / capacity),
        LoadScale::Load(_) => second.load.map(f64::from),
        LoadScale::InFlight(_) => second.in_flight.map(f64::from),
    };
    let second_pairs = recent.seconds.iter().zip(&member.seconds);
    ChartLine {
        name: &member.name,
        points: second_pairs
            .map(|(group_second, second)| (group_second.age_seconds, value(second)))
            .collect(),
    }
}

/// An event, as it is shown.
#[derive(Debug, Serialize)]
pub(super) struct EventView {
    pub(super) seq: u64,
    pub(super) href: String,
    pub(super) clock: String,
    pub(super) date: String,
    pub(super) ago: String,
    pub(super) glyph: &'static str,
    pub(super) word: String,
    pub(super) tone: Severity,
    pub(super) group: String,
    pub(super) group_href: String,
    pub(super) member: Option<String>,
    /// The member's page; empty for a former member.
    pub(super) member_href: String,
    pub(super) why: String,
    pub(super) inputs: Vec<(String, String)>,
}

impl EventView {
    pub(super) fn new(page_context: &PageContext<'_>, entry: &EventEntry) -> Self {
        let (glyph, label, severity) = format::event_words(entry.kind, &entry.why);
        // A former member has no page.
        let is_member = |name: &&str| {
            page_context
                .group(&entry.group)
                .is_some_and(|group| group.members.iter().any(|member| member.name == *name))
        };
        let member = entry.member.as_deref().filter(is_member);
        Self {
            seq: entry.seq,
            href: urls::event_url(entry.seq),
            clock: format::clock(entry.unix_ms),
            date: format::date(entry.unix_ms),
            ago: ago((page_context.now.saturating_sub(entry.unix_ms) / 1000) as f64),
            glyph,
            word: label,
            tone: severity,
            group: entry.group.clone(),
            group_href: urls::group_url(&entry.group),
            member: entry.member.clone(),
            member_href: member.map(|member| urls::member_url(&entry.group, member)).unwrap_or_default(),
            why: entry.why.clone(),
            inputs: entry
                .inputs
                .iter()
                .map(|(name, value)| (name.replace('_', " "), number(*value)))
                .collect(),
        }
    }

    pub(super) fn all(
        page_context: &PageContext<'_>,
        entries: &[EventEntry],
        max_events: usize,
    ) -> Vec<Self> {
        entries.iter().take(max_events).map(|entry| Self::new(page_context, entry)).collect()
    }
}
