//! The picture: a line of verdict for each group, its members in columns, the last events, and the keys.

use std::time::Duration;

use plimsoll_admin::EventEntry;
use plimsoll_admin::member_table::COLUMNS;

use super::SortOrder;
use super::input::{KEY_HELP, KeyPress};
use super::load_bar::{CRITICAL_MARK, REJECT_MARK, SATURATION_MARK};
use super::snapshot::{GroupPanel, MemberLine, TopSnapshot};
use crate::command::events;
use crate::control::format::{self, TextStyle, group_digits, latency, sanitize, short_duration, utc_time};
use crate::terminal::StyledLine;

/// The content of the picture, and its settings.
#[derive(Debug)]
pub(super) struct TopView {
    /// The group that is shown alone.
    pub(super) group: Option<String>,
    pub(super) sort: SortOrder,
    pub(super) paused: bool,
    pub(super) help: bool,
    /// The number of lines of the middle part above the visible ones.
    pub(super) scroll_offset: usize,
    /// The reason why the last look failed.
    pub(super) poll_error: Option<String>,
    interval: Duration,
    snapshot: TopSnapshot,
    /// The events, oldest first.
    events: Vec<EventEntry>,
}

/// The number of events that are kept for the picture.
const MAX_EVENTS: usize = 200;
/// The number of events that are shown, if there is room.
const MAX_SHOWN_EVENTS: usize = 8;
/// The columns of a picture that is not for a terminal.
const PLAIN_WIDTH: usize = 200;

/// A column of numbers: its place among [`COLUMNS`], its width, and the order in which it is left out if
/// there is no room for all (0 is never).
struct NumberColumn {
    heading_index: usize,
    width: usize,
    drop_order: u8,
    cell: fn(&MemberLine) -> (String, TextStyle),
}

/// The columns between the load's and the last one, from the left.
static NUMBER_COLUMNS: [NumberColumn; 7] = [
    NumberColumn {
        heading_index: 3,
        width: 6,
        drop_order: 3,
        cell: |row| (format_age(row.report_age_seconds), TextStyle::Plain),
    },
    NumberColumn {
        heading_index: 4,
        width: 8,
        drop_order: 2,
        cell: |row| (row.bindings.map_or_else(dash, group_digits), TextStyle::Plain),
    },
    NumberColumn {
        heading_index: 5,
        width: 7,
        drop_order: 0,
        cell: |row| (format_rate(row.requests_per_second), TextStyle::Plain),
    },
    NumberColumn {
        heading_index: 6,
        width: 7,
        drop_order: 5,
        cell: |row| (format_time(row.p50), TextStyle::Plain),
    },
    NumberColumn {
        heading_index: 7,
        width: 7,
        drop_order: 0,
        cell: |row| (format_time(row.p99), TextStyle::Plain),
    },
    NumberColumn { heading_index: 8, width: 11, drop_order: 4, cell: error_cell },
    NumberColumn { heading_index: 9, width: 11, drop_order: 1, cell: shed_cell },
];

/// Returns a heading, as this table has it.
fn column_heading(column: usize) -> String {
    COLUMNS[column].to_lowercase()
}

/// The number of columns between two columns.
const GAP: usize = 2;

impl TopView {
    pub(super) fn new(group: &Option<String>, sort: SortOrder, interval: Duration) -> Self {
        Self {
            group: group.clone(),
            sort,
            paused: false,
            help: false,
            scroll_offset: 0,
            poll_error: None,
            interval,
            snapshot: TopSnapshot::default(),
            events: Vec::new(),
        }
    }

    /// Takes a new snapshot and its events.
    pub(super) fn update(&mut self, snapshot: TopSnapshot, events: &[EventEntry]) {
        self.snapshot = snapshot;
        self.events.extend_from_slice(events);
        let surplus = self.events.len().saturating_sub(MAX_EVENTS);
        self.events.drain(..surplus);
        self.poll_error = None;
        if let Some(group_name) = &self.group
            && !self.snapshot.groups.iter().any(|group| group.name == *group_name)
        {
            // The group went with a reload.
            self.group = None;
        }
    }

    /// Handles a key for the content of the picture.
    pub(super) fn handle_key(&mut self, key: KeyPress) {
        match key {
            KeyPress::Sort => self.sort = self.sort.next(),
            KeyPress::Group => self.next_group(),
            KeyPress::Pause => self.paused = !self.paused,
            KeyPress::Help => self.help = !self.help,
            KeyPress::Close => self.help = false,
            KeyPress::Up => self.scroll_offset = self.scroll_offset.saturating_sub(1),
            KeyPress::Down => self.scroll_offset += 1,
            KeyPress::PageUp => self.scroll_offset = self.scroll_offset.saturating_sub(10),
            KeyPress::PageDown => self.scroll_offset += 10,
            KeyPress::Quit | KeyPress::Interrupt => {}
        }
    }

    /// Chooses all groups, then each alone.
    fn next_group(&mut self) {
        let names: Vec<&String> = self.snapshot.groups.iter().map(|group| &group.name).collect();
        let next = match &self.group {
            None => 0,
            Some(current) => names.iter().position(|name| *name == current).map_or(0, |index| index + 1),
        };
        self.group = names.get(next).map(|name| (*name).clone());
        self.scroll_offset = 0;
    }

    /// Returns the picture, in at most so many lines of so many columns.
    pub(super) fn lines(&mut self, width: usize, height: usize) -> Vec<StyledLine> {
        let mut lines = self.header_lines();
        let body = if self.help { help_lines() } else { self.body_lines(width) };
        let events = self.recent_events(MAX_SHOWN_EVENTS.min(height / 4));
        let events_height = if events.is_empty() { 0 } else { events.len() + 1 };
        // The last line is that of the keys.
        let body_height = height.saturating_sub(lines.len() + events_height + 1);
        self.scroll_offset = self.scroll_offset.min(body.len().saturating_sub(body_height));
        let hidden = body.len().saturating_sub(body_height);
        let visible_lines: Vec<StyledLine> =
            body.into_iter().skip(self.scroll_offset).take(body_height).collect();
        let blank_lines = body_height - visible_lines.len();
        lines.extend(visible_lines);
        if !events.is_empty() {
            // The events stand at the bottom.
            lines.extend(std::iter::repeat_n(StyledLine::default(), blank_lines));
            lines.push(StyledLine::default());
            lines.extend(events);
        }
        if lines.len() < height {
            lines.push(self.footer(hidden));
        }
        lines.truncate(height);
        lines.into_iter().map(|line| line.truncate_to(width)).collect()
    }

    /// Returns all of it in plain lines of any length.
    pub(super) fn plain_lines(&self) -> Vec<StyledLine> {
        let mut lines = self.header_lines();
        lines.extend(self.body_lines(PLAIN_WIDTH));
        let events = self.recent_events(MAX_SHOWN_EVENTS);
        if !events.is_empty() {
            lines.push(StyledLine::default());
            lines.extend(events);
        }
        lines
    }

    fn header_lines(&self) -> Vec<StyledLine> {
        let mut title = StyledLine::new(&sanitize(&self.snapshot.title), TextStyle::Strong);
        if self.sort != SortOrder::Configured {
            title.push(&format!(", by {}", self.sort.label()), TextStyle::Plain);
        }
        if self.paused {
            title.push("  PAUSED", TextStyle::Fair);
        }
        let mut lines = vec![title];
        let banners = self.poll_error.iter().chain(&self.snapshot.banners);
        lines.extend(
            banners.map(|banner| StyledLine::new(&format!("‼ {}", sanitize(banner)), TextStyle::Bad)),
        );
        lines
    }

    fn visible_groups(&self) -> impl Iterator<Item = &GroupPanel> {
        let is_visible = |group: &&GroupPanel| self.group.as_ref().is_none_or(|name| group.name == *name);
        self.snapshot.groups.iter().filter(is_visible)
    }

    /// Returns verdicts and members.
    fn body_lines(&self, width: usize) -> Vec<StyledLine> {
        let names =
            self.visible_groups().flat_map(|group| &group.members).map(|row| row.name.chars().count());
        let layout = ColumnLayout::new(names.max().unwrap_or(6).clamp(6, 40), width);
        let mut lines = Vec::new();
        for group in self.visible_groups() {
            if !lines.is_empty() {
                lines.push(StyledLine::default());
            }
            lines.extend(verdict_lines(group, width));
            lines.push(layout.header_line());
            lines.extend(group.sorted_members(self.sort).into_iter().map(|row| layout.member_row(row)));
        }
        lines
    }

    /// Returns the last events, at most so many.
    fn recent_events(&self, max_len: usize) -> Vec<StyledLine> {
        let relevant: Vec<&EventEntry> =
            self.events.iter().filter(|entry| is_about_group(&self.group, entry)).collect();
        relevant[relevant.len().saturating_sub(max_len)..].iter().map(|entry| event_line(entry)).collect()
    }

    fn footer(&self, hidden: usize) -> StyledLine {
        let interval = latency(self.interval.as_secs_f64());
        let scroll_note = match hidden {
            0 => String::new(),
            hidden => format!("  {} of {hidden} lines above: ↑ ↓", self.scroll_offset),
        };
        let text = format!(
            "q quit  h help  s sort  g group  p pause  every {interval}  bar: █ load {REJECT_MARK} reject \
             {CRITICAL_MARK} critical \
             {SATURATION_MARK} saturation{scroll_note}"
        );
        StyledLine::new(&text, TextStyle::Faint)
    }
}

/// Returns `true` if an event is about a visible group. An event of the whole process always is.
pub(super) fn is_about_group(group: &Option<String>, entry: &EventEntry) -> bool {
    entry.group.is_empty() || group.as_ref().is_none_or(|name| entry.group == *name)
}

/// The columns for which there is room.
struct ColumnLayout {
    name_width: usize,
    bar_width: usize,
    columns: Vec<&'static NumberColumn>,
    /// The width of the last one; 0 if there is no room for it.
    reason_width: usize,
}

/// The width of the state, glyph and word.
const STATE: usize = 12;
/// The width of the load beside its bar.
const LOAD: usize = 13;
/// The shortest and the longest bar, and that beside which the reason of a state is left out first.
const BAR_WIDTHS: (usize, usize) = (10, 30);
const REASON_BAR_WIDTH: usize = 20;
/// The least width of a reason: a shorter one is useless.
const MIN_REASON_WIDTH: usize = 12;

impl ColumnLayout {
    fn new(name_width: usize, width: usize) -> Self {
        let fixed_width = |columns: &[&NumberColumn]| {
            let numbers: usize = columns.iter().map(|column| GAP + column.width).sum();
            name_width + GAP + STATE + GAP + GAP + LOAD + numbers
        };
        let mut columns: Vec<&'static NumberColumn> = NUMBER_COLUMNS.iter().collect();
        while fixed_width(&columns) + BAR_WIDTHS.0 > width {
            let droppable = columns.iter().enumerate().filter(|(_, column)| column.drop_order > 0);
            let Some((index, _)) = droppable.min_by_key(|(_, column)| column.drop_order) else { break };
            columns.remove(index);
        }
        let room = width.saturating_sub(fixed_width(&columns));
        let reason_room = room.saturating_sub(room.min(REASON_BAR_WIDTH) + GAP);
        let reason_width = if reason_room >= MIN_REASON_WIDTH { reason_room } else { 0 };
        let bar_width = if reason_width > 0 { REASON_BAR_WIDTH } else { room.min(BAR_WIDTHS.1) };
        Self { name_width, bar_width, columns, reason_width }
    }

    fn header_line(&self) -> StyledLine {
        let (name, load) = (self.name_width, self.bar_width + GAP + LOAD);
        let mut text =
            format!("{:name$}  {:STATE$}  {:load$}", column_heading(0), column_heading(1), column_heading(2));
        for column in &self.columns {
            let width = column.width;
            text.push_str(&format!("  {:>width$}", column_heading(column.heading_index)));
        }
        if self.reason_width > 0 {
            text.push_str(&format!("  {}", column_heading(10)));
        }
        StyledLine::new(&text, TextStyle::Faint)
    }

    fn member_row(&self, row: &MemberLine) -> StyledLine {
        let width = self.name_width;
        let name = truncate(&sanitize(&row.name), width);
        let mut line = StyledLine::new(&format!("{name:width$}  "), TextStyle::Strong);
        let (glyph, label, style) = format::member_state_label(row.state, row.slow);
        line.push(&format!("{:STATE$}  ", format!("{glyph} {label}")), style);
        line.push(&row.load.bar(self.bar_width), row.load.style());
        line.push(&format!("  {:LOAD$}", row.load.text()), row.load.style());
        for column in &self.columns {
            let (text, style) = (column.cell)(row);
            let width = column.width;
            line.push(&format!("  {text:>width$}"), style);
        }
        if self.reason_width > 0 {
            let since = format!(" for {}", short_duration(row.since_seconds));
            let reason = truncate(&sanitize(&row.why), self.reason_width.saturating_sub(since.len()));
            line.push(&format!("  {reason}"), TextStyle::Plain);
            line.push(&since, TextStyle::Faint);
        }
        line
    }
}

/// Returns its first letters, at most so many.
fn truncate(text: &str, max_chars: usize) -> String {
    text.chars().take(max_chars).collect()
}

/// Returns the verdict on a group: its state, its rate, its distance from the load line. It is one line, or
/// more if there is no room.
fn verdict_lines(group: &GroupPanel, width: usize) -> Vec<StyledLine> {
    let mut line =
        StyledLine::new(&format!("{} ", group.standing.glyph_and_label().0), group.standing.into());
    line.push(&sanitize(&group.name), TextStyle::Strong);
    line.push(&format!("  {}", sanitize(&group.verdict)), TextStyle::Plain);
    let mut segments = vec![StyledLine::new(&format!("  {}", sanitize(&group.strategy)), TextStyle::Faint)];
    if let Some(request_rate) = group.requests_per_second {
        segments.push(StyledLine::new(&format!("  {}/s", format_rate(Some(request_rate))), TextStyle::Plain));
    }
    if let Some((low, high)) = group.range {
        let range = format!("  load line {} to {}", format_rate(Some(low)), format_rate(Some(high)));
        segments.push(StyledLine::new(&format!("{range}/s"), TextStyle::Plain));
    }
    if let (Some(capacity), Some(headroom)) = (group.capacity, group.headroom) {
        let (headroom_text, style) = match headroom {
            excess if excess < 0.0 => (format!("{:.0}% over it", -excess * 100.0), TextStyle::Bad),
            share if share < 0.2 => (format!("{:.0}% below it", share * 100.0), TextStyle::Fair),
            share => (format!("{:.0}% below it", share * 100.0), TextStyle::Good),
        };
        let mut segment =
            StyledLine::new(&format!("  load line {}/s, ", format_rate(Some(capacity))), TextStyle::Plain);
        segment.push(&headroom_text, style);
        segments.push(segment);
    }
    if group.p99.is_some() {
        let times = format!("  p50 {}  p99 {}", format_time(group.p50), format_time(group.p99));
        segments.push(StyledLine::new(&times, TextStyle::Plain));
    }
    for (count, label) in
        [(group.queued, "waiting"), (group.shed, "shed"), (group.rejected - group.shed, "refused")]
    {
        if count > 0 {
            segments.push(StyledLine::new(&format!("  {} {label}", group_digits(count)), TextStyle::Fair));
        }
    }
    let mut lines = Vec::new();
    for segment in segments {
        if line.width() + segment.width() > width {
            lines.push(std::mem::replace(&mut line, segment));
        } else {
            line.append(segment);
        }
    }
    lines.push(line);
    lines
}

fn event_line(entry: &EventEntry) -> StyledLine {
    let (label, style) = events::kind_label(entry.kind, &entry.why);
    let timestamp = utc_time(entry.unix_ms);
    // The time of the day, to the second.
    let mut line = StyledLine::new(timestamp.get(11..19).unwrap_or(&timestamp), TextStyle::Faint);
    line.push(&format!("  {label}"), style);
    let subject = match (&entry.member, &*entry.group) {
        (Some(member), group) => format!("  {group} {member}"),
        (None, "") => String::new(),
        (None, group) => format!("  {group}"),
    };
    line.push(&sanitize(&subject), TextStyle::Strong);
    line.push(&format!("  {}", sanitize(&entry.why)), TextStyle::Plain);
    if !entry.inputs.is_empty() {
        let inputs: Vec<String> =
            entry.inputs.iter().map(|(name, value)| format!("{}={value}", sanitize(name))).collect();
        line.push(&format!(" [{}]", inputs.join(" ")), TextStyle::Faint);
    }
    line
}

fn help_lines() -> Vec<StyledLine> {
    let mut lines = vec![StyledLine::default()];
    lines.extend(KEY_HELP.iter().map(|(keys, description)| {
        let mut line = StyledLine::new(&format!("  {keys:<12}"), TextStyle::Strong);
        line.push(description, TextStyle::Plain);
        line
    }));
    lines
}

fn dash() -> String {
    "-".to_owned()
}

fn format_time(seconds: Option<f64>) -> String {
    seconds.map_or_else(dash, latency)
}

fn format_age(seconds: Option<f64>) -> String {
    match seconds {
        None => dash(),
        Some(young) if young < 9.95 => format!("{young:.1}s"),
        Some(old) => short_duration(old).split(' ').next().unwrap_or_default().to_owned(),
    }
}

fn format_rate(rate: Option<f64>) -> String {
    match rate {
        None => dash(),
        Some(rate) if rate < 9.95 => format!("{rate:.1}"),
        Some(rate) if rate < 9999.5 => format!("{rate:.0}"),
        Some(rate) => format!("{:.1}k", rate / 1e3),
    }
}

/// Returns the recent errors a second, and their total.
fn error_cell(row: &MemberLine) -> (String, TextStyle) {
    let total = group_digits(row.errors);
    match (row.errors, row.errors_per_second) {
        (0, _) => ("0".to_owned(), TextStyle::Plain),
        (_, per_second) if per_second > 0.0 => {
            (format!("{}/s ({total})", format_rate(Some(per_second))), TextStyle::Bad)
        }
        _ => (format!("0 ({total})"), TextStyle::Plain),
    }
}

/// Returns the sheds in the last minute, and their total.
fn shed_cell(row: &MemberLine) -> (String, TextStyle) {
    let total = group_digits(row.sheds);
    let text = match (row.sheds, row.sheds_lately) {
        (0, _) => "0".to_owned(),
        (_, 0) => format!("0 ({total})"),
        (_, per_minute) => format!("{per_minute}/min ({total})"),
    };
    (text, if row.alert_share > 0.0 { TextStyle::Fair } else { TextStyle::Plain })
}

#[cfg(test)]
#[path = "render/tests.rs"]
mod tests;
