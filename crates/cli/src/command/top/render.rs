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
const EVENTS: usize = 200;
/// The number of events that are shown, if there is room.
const SHOWN: usize = 8;
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
static NUMBERS: [NumberColumn; 7] = [
    NumberColumn {
        heading_index: 3,
        width: 6,
        drop_order: 3,
        cell: |row| (age(row.report_age_seconds), TextStyle::Plain),
    },
    NumberColumn {
        heading_index: 4,
        width: 8,
        drop_order: 2,
        cell: |row| (row.bindings.map_or_else(none, group_digits), TextStyle::Plain),
    },
    NumberColumn {
        heading_index: 5,
        width: 7,
        drop_order: 0,
        cell: |row| (rate(row.requests_per_second), TextStyle::Plain),
    },
    NumberColumn { heading_index: 6, width: 7, drop_order: 5, cell: |row| (time(row.p50), TextStyle::Plain) },
    NumberColumn { heading_index: 7, width: 7, drop_order: 0, cell: |row| (time(row.p99), TextStyle::Plain) },
    NumberColumn { heading_index: 8, width: 11, drop_order: 4, cell: errors },
    NumberColumn { heading_index: 9, width: 11, drop_order: 1, cell: sheds },
];

/// Returns a heading, as this table has it.
fn heading(place: usize) -> String {
    COLUMNS[place].to_lowercase()
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
    pub(super) fn update(&mut self, board: TopSnapshot, events: &[EventEntry]) {
        self.snapshot = board;
        self.events.extend_from_slice(events);
        let surplus = self.events.len().saturating_sub(EVENTS);
        self.events.drain(..surplus);
        self.poll_error = None;
        if let Some(wanted) = &self.group
            && !self.snapshot.groups.iter().any(|group| group.name == *wanted)
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
            Some(shown) => names.iter().position(|name| *name == shown).map_or(0, |at| at + 1),
        };
        self.group = names.get(next).map(|name| (*name).clone());
        self.scroll_offset = 0;
    }

    /// Returns the picture, in at most so many lines of so many columns.
    pub(super) fn lines(&mut self, width: usize, height: usize) -> Vec<StyledLine> {
        let mut lines = self.top();
        let body = if self.help { help() } else { self.body(width) };
        let events = self.recent(SHOWN.min(height / 4));
        let below = if events.is_empty() { 0 } else { events.len() + 1 };
        // The last line is that of the keys.
        let room = height.saturating_sub(lines.len() + below + 1);
        self.scroll_offset = self.scroll_offset.min(body.len().saturating_sub(room));
        let hidden = body.len().saturating_sub(room);
        let shown: Vec<StyledLine> = body.into_iter().skip(self.scroll_offset).take(room).collect();
        let empty = room - shown.len();
        lines.extend(shown);
        if !events.is_empty() {
            // The events stand at the bottom.
            lines.extend(std::iter::repeat_n(StyledLine::default(), empty));
            lines.push(StyledLine::default());
            lines.extend(events);
        }
        if lines.len() < height {
            lines.push(self.foot(hidden));
        }
        lines.truncate(height);
        lines.into_iter().map(|line| line.truncate_to(width)).collect()
    }

    /// Returns all of it in plain lines of any length.
    pub(super) fn plain_lines(&self) -> Vec<StyledLine> {
        let mut lines = self.top();
        lines.extend(self.body(PLAIN_WIDTH));
        let events = self.recent(SHOWN);
        if !events.is_empty() {
            lines.push(StyledLine::default());
            lines.extend(events);
        }
        lines
    }

    fn top(&self) -> Vec<StyledLine> {
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
        let wanted = |group: &&GroupPanel| self.group.as_ref().is_none_or(|wanted| group.name == *wanted);
        self.snapshot.groups.iter().filter(wanted)
    }

    /// Returns verdicts and members.
    fn body(&self, width: usize) -> Vec<StyledLine> {
        let names =
            self.visible_groups().flat_map(|group| &group.members).map(|row| row.name.chars().count());
        let layout = ColumnLayout::new(names.max().unwrap_or(6).clamp(6, 40), width);
        let mut lines = Vec::new();
        for group in self.visible_groups() {
            if !lines.is_empty() {
                lines.push(StyledLine::default());
            }
            lines.extend(verdict(group, width));
            lines.push(layout.head());
            lines.extend(group.sorted_members(self.sort).into_iter().map(|row| layout.row(row)));
        }
        lines
    }

    /// Returns the last events, at most so many.
    fn recent(&self, most: usize) -> Vec<StyledLine> {
        let about: Vec<&EventEntry> =
            self.events.iter().filter(|entry| is_about_group(&self.group, entry)).collect();
        about[about.len().saturating_sub(most)..].iter().map(|entry| event(entry)).collect()
    }

    fn foot(&self, hidden: usize) -> StyledLine {
        let every = latency(self.interval.as_secs_f64());
        let more = match hidden {
            0 => String::new(),
            hidden => format!("  {} of {hidden} lines above: ↑ ↓", self.scroll_offset),
        };
        let text = format!(
            "q quit  h help  s sort  g group  p pause  every {every}  bar: █ load {REJECT_MARK} reject \
             {CRITICAL_MARK} critical \
             {SATURATION_MARK} saturation{more}"
        );
        StyledLine::new(&text, TextStyle::Faint)
    }
}

/// Returns `true` if an event is about a visible group. An event of the whole process always is.
pub(super) fn is_about_group(group: &Option<String>, entry: &EventEntry) -> bool {
    entry.group.is_empty() || group.as_ref().is_none_or(|wanted| entry.group == *wanted)
}

/// The columns for which there is room.
struct ColumnLayout {
    name: usize,
    bar: usize,
    columns: Vec<&'static NumberColumn>,
    /// The width of the last one; 0 if there is no room for it.
    why: usize,
}

/// The width of the state, glyph and word.
const STATE: usize = 12;
/// The width of the load beside its bar.
const LOAD: usize = 13;
/// The shortest and the longest bar, and that beside which the reason of a state is left out first.
const BAR: (usize, usize) = (10, 30);
const BAR_BESIDE: usize = 20;
/// The least width of a reason: a shorter one is useless.
const WHY: usize = 12;

impl ColumnLayout {
    fn new(name: usize, width: usize) -> Self {
        let taken = |columns: &[&NumberColumn]| {
            let numbers: usize = columns.iter().map(|column| GAP + column.width).sum();
            name + GAP + STATE + GAP + GAP + LOAD + numbers
        };
        let mut columns: Vec<&'static NumberColumn> = NUMBERS.iter().collect();
        while taken(&columns) + BAR.0 > width {
            let first = columns.iter().enumerate().filter(|(_, column)| column.drop_order > 0);
            let Some((at, _)) = first.min_by_key(|(_, column)| column.drop_order) else { break };
            columns.remove(at);
        }
        let room = width.saturating_sub(taken(&columns));
        let beside = room.saturating_sub(room.min(BAR_BESIDE) + GAP);
        let why = if beside >= WHY { beside } else { 0 };
        let bar = if why > 0 { BAR_BESIDE } else { room.min(BAR.1) };
        Self { name, bar, columns, why }
    }

    fn head(&self) -> StyledLine {
        let (name, load) = (self.name, self.bar + GAP + LOAD);
        let mut text = format!("{:name$}  {:STATE$}  {:load$}", heading(0), heading(1), heading(2));
        for column in &self.columns {
            let width = column.width;
            text.push_str(&format!("  {:>width$}", heading(column.heading_index)));
        }
        if self.why > 0 {
            text.push_str(&format!("  {}", heading(10)));
        }
        StyledLine::new(&text, TextStyle::Faint)
    }

    fn row(&self, row: &MemberLine) -> StyledLine {
        let width = self.name;
        let name = cut(&sanitize(&row.name), width);
        let mut line = StyledLine::new(&format!("{name:width$}  "), TextStyle::Strong);
        let (glyph, word, tone) = format::member_state_label(row.state, row.slow);
        line.push(&format!("{:STATE$}  ", format!("{glyph} {word}")), tone);
        line.push(&row.load.bar(self.bar), row.load.tone());
        line.push(&format!("  {:LOAD$}", row.load.text()), row.load.tone());
        for column in &self.columns {
            let (text, tone) = (column.cell)(row);
            let width = column.width;
            line.push(&format!("  {text:>width$}"), tone);
        }
        if self.why > 0 {
            let since = format!(" for {}", short_duration(row.since_seconds));
            let why = cut(&sanitize(&row.why), self.why.saturating_sub(since.len()));
            line.push(&format!("  {why}"), TextStyle::Plain);
            line.push(&since, TextStyle::Faint);
        }
        line
    }
}

/// Returns its first letters, at most so many.
fn cut(text: &str, most: usize) -> String {
    text.chars().take(most).collect()
}

/// Returns the verdict on a group: its state, its rate, its distance from the load line. It is one line, or
/// more if there is no room.
fn verdict(group: &GroupPanel, width: usize) -> Vec<StyledLine> {
    let mut line =
        StyledLine::new(&format!("{} ", group.standing.glyph_and_label().0), group.standing.into());
    line.push(&sanitize(&group.name), TextStyle::Strong);
    line.push(&format!("  {}", sanitize(&group.verdict)), TextStyle::Plain);
    let mut parts = vec![StyledLine::new(&format!("  {}", sanitize(&group.strategy)), TextStyle::Faint)];
    if let Some(now) = group.requests_per_second {
        parts.push(StyledLine::new(&format!("  {}/s", rate(Some(now))), TextStyle::Plain));
    }
    if let Some((low, high)) = group.range {
        let range = format!("  load line {} to {}", rate(Some(low)), rate(Some(high)));
        parts.push(StyledLine::new(&format!("{range}/s"), TextStyle::Plain));
    }
    if let (Some(capacity), Some(headroom)) = (group.capacity, group.headroom) {
        let (free, tone) = match headroom {
            over if over < 0.0 => (format!("{:.0}% over it", -over * 100.0), TextStyle::Bad),
            free if free < 0.2 => (format!("{:.0}% below it", free * 100.0), TextStyle::Fair),
            free => (format!("{:.0}% below it", free * 100.0), TextStyle::Good),
        };
        let mut part =
            StyledLine::new(&format!("  load line {}/s, ", rate(Some(capacity))), TextStyle::Plain);
        part.push(&free, tone);
        parts.push(part);
    }
    if group.p99.is_some() {
        let times = format!("  p50 {}  p99 {}", time(group.p50), time(group.p99));
        parts.push(StyledLine::new(&times, TextStyle::Plain));
    }
    for (count, word) in
        [(group.queued, "waiting"), (group.shed, "shed"), (group.rejected - group.shed, "refused")]
    {
        if count > 0 {
            parts.push(StyledLine::new(&format!("  {} {word}", group_digits(count)), TextStyle::Fair));
        }
    }
    let mut lines = Vec::new();
    for part in parts {
        if line.width() + part.width() > width {
            lines.push(std::mem::replace(&mut line, part));
        } else {
            line.append(part);
        }
    }
    lines.push(line);
    lines
}

fn event(entry: &EventEntry) -> StyledLine {
    let (word, tone) = events::kind_label(entry.kind, &entry.why);
    let whole = utc_time(entry.unix_ms);
    // The time of the day, to the second.
    let mut line = StyledLine::new(whole.get(11..19).unwrap_or(&whole), TextStyle::Faint);
    line.push(&format!("  {word}"), tone);
    let whom = match (&entry.member, &*entry.group) {
        (Some(member), group) => format!("  {group} {member}"),
        (None, "") => String::new(),
        (None, group) => format!("  {group}"),
    };
    line.push(&sanitize(&whom), TextStyle::Strong);
    line.push(&format!("  {}", sanitize(&entry.why)), TextStyle::Plain);
    if !entry.inputs.is_empty() {
        let inputs: Vec<String> =
            entry.inputs.iter().map(|(name, value)| format!("{}={value}", sanitize(name))).collect();
        line.push(&format!(" [{}]", inputs.join(" ")), TextStyle::Faint);
    }
    line
}

fn help() -> Vec<StyledLine> {
    let mut lines = vec![StyledLine::default()];
    lines.extend(KEY_HELP.iter().map(|(keys, what)| {
        let mut line = StyledLine::new(&format!("  {keys:<12}"), TextStyle::Strong);
        line.push(what, TextStyle::Plain);
        line
    }));
    lines
}

fn none() -> String {
    "-".to_owned()
}

fn time(seconds: Option<f64>) -> String {
    seconds.map_or_else(none, latency)
}

fn age(seconds: Option<f64>) -> String {
    match seconds {
        None => none(),
        Some(young) if young < 9.95 => format!("{young:.1}s"),
        Some(old) => short_duration(old).split(' ').next().unwrap_or_default().to_owned(),
    }
}

fn rate(rate: Option<f64>) -> String {
    match rate {
        None => none(),
        Some(rate) if rate < 9.95 => format!("{rate:.1}"),
        Some(rate) if rate < 9999.5 => format!("{rate:.0}"),
        Some(rate) => format!("{:.1}k", rate / 1e3),
    }
}

/// Returns the recent errors a second, and their total.
fn errors(row: &MemberLine) -> (String, TextStyle) {
    let all = group_digits(row.errors);
    match (row.errors, row.errors_per_second) {
        (0, _) => ("0".to_owned(), TextStyle::Plain),
        (_, now) if now > 0.0 => (format!("{}/s ({all})", rate(Some(now))), TextStyle::Bad),
        _ => (format!("0 ({all})"), TextStyle::Plain),
    }
}

/// Returns the sheds in the last minute, and their total.
fn sheds(row: &MemberLine) -> (String, TextStyle) {
    let all = group_digits(row.sheds);
    let text = match (row.sheds, row.sheds_lately) {
        (0, _) => "0".to_owned(),
        (_, 0) => format!("0 ({all})"),
        (_, now) => format!("{now}/min ({all})"),
    };
    (text, if row.alert_share > 0.0 { TextStyle::Fair } else { TextStyle::Plain })
}

#[cfg(test)]
#[path = "render/tests.rs"]
mod tests;
