//! The picture: a line of verdict for each group, its members in columns, the last events, and the keys.

use std::time::Duration;

use plimsoll_admin::Entry;
use plimsoll_admin::table::COLUMNS;

use super::Sort;
use super::board::{Board, Row, Section};
use super::gauge::{CRITICAL, REJECT, SATURATION};
use super::keys::{HELP, Key};
use crate::command::events;
use crate::control::text::{self, Tone, ago, grouped, latency, plain, utc};
use crate::screen::Line;

/// The content of the picture, and its settings.
#[derive(Debug)]
pub(super) struct View {
    /// The group that is shown alone.
    pub(super) group: Option<String>,
    pub(super) sort: Sort,
    pub(super) paused: bool,
    pub(super) help: bool,
    /// The number of lines of the middle part above the visible ones.
    pub(super) above: usize,
    /// The reason why the last look failed.
    pub(super) lost: Option<String>,
    interval: Duration,
    board: Board,
    /// The events, oldest first.
    events: Vec<Entry>,
}

/// The number of events that are kept for the picture.
const EVENTS: usize = 200;
/// The number of events that are shown, if there is room.
const SHOWN: usize = 8;
/// The columns of a picture that is not for a terminal.
const PLAIN_WIDTH: usize = 200;

/// A column of numbers: its place among [`COLUMNS`], its width, and the order in which it is left out if
/// there is no room for all (0 is never).
struct Column {
    place: usize,
    width: usize,
    goes: u8,
    cell: fn(&Row) -> (String, Tone),
}

/// The columns between the load's and the last one, from the left.
static NUMBERS: [Column; 7] = [
    Column { place: 3, width: 6, goes: 3, cell: |row| (age(row.report_age_seconds), Tone::Plain) },
    Column {
        place: 4,
        width: 8,
        goes: 2,
        cell: |row| (row.bindings.map_or_else(none, grouped), Tone::Plain),
    },
    Column { place: 5, width: 7, goes: 0, cell: |row| (rate(row.requests_per_second), Tone::Plain) },
    Column { place: 6, width: 7, goes: 5, cell: |row| (time(row.p50), Tone::Plain) },
    Column { place: 7, width: 7, goes: 0, cell: |row| (time(row.p99), Tone::Plain) },
    Column { place: 8, width: 11, goes: 4, cell: errors },
    Column { place: 9, width: 11, goes: 1, cell: sheds },
];

/// Returns a heading, as this table has it.
fn heading(place: usize) -> String {
    COLUMNS[place].to_lowercase()
}

/// The number of columns between two columns.
const GAP: usize = 2;

impl View {
    pub(super) fn new(group: &Option<String>, sort: Sort, interval: Duration) -> Self {
        Self {
            group: group.clone(),
            sort,
            paused: false,
            help: false,
            above: 0,
            lost: None,
            interval,
            board: Board::default(),
            events: Vec::new(),
        }
    }

    /// Takes a new board and its events.
    pub(super) fn seen(&mut self, board: Board, events: &[Entry]) {
        self.board = board;
        self.events.extend_from_slice(events);
        let surplus = self.events.len().saturating_sub(EVENTS);
        self.events.drain(..surplus);
        self.lost = None;
        if let Some(wanted) = &self.group
            && !self.board.groups.iter().any(|group| group.name == *wanted)
        {
            // The group went with a reload.
            self.group = None;
        }
    }

    /// Handles a key for the content of the picture.
    pub(super) fn press(&mut self, key: Key) {
        match key {
            Key::Sort => self.sort = self.sort.next(),
            Key::Group => self.next_group(),
            Key::Pause => self.paused = !self.paused,
            Key::Help => self.help = !self.help,
            Key::Close => self.help = false,
            Key::Up => self.above = self.above.saturating_sub(1),
            Key::Down => self.above += 1,
            Key::PageUp => self.above = self.above.saturating_sub(10),
            Key::PageDown => self.above += 10,
            Key::Quit | Key::Interrupt => {}
        }
    }

    /// Chooses all groups, then each alone.
    fn next_group(&mut self) {
        let names: Vec<&String> = self.board.groups.iter().map(|group| &group.name).collect();
        let next = match &self.group {
            None => 0,
            Some(shown) => names.iter().position(|name| *name == shown).map_or(0, |at| at + 1),
        };
        self.group = names.get(next).map(|name| (*name).clone());
        self.above = 0;
    }

    /// Returns the picture, in at most so many lines of so many columns.
    pub(super) fn lines(&mut self, width: usize, height: usize) -> Vec<Line> {
        let mut lines = self.top();
        let body = if self.help { help() } else { self.body(width) };
        let events = self.recent(SHOWN.min(height / 4));
        let below = if events.is_empty() { 0 } else { events.len() + 1 };
        // The last line is that of the keys.
        let room = height.saturating_sub(lines.len() + below + 1);
        self.above = self.above.min(body.len().saturating_sub(room));
        let hidden = body.len().saturating_sub(room);
        let shown: Vec<Line> = body.into_iter().skip(self.above).take(room).collect();
        let empty = room - shown.len();
        lines.extend(shown);
        if !events.is_empty() {
            // The events stand at the bottom.
            lines.extend(std::iter::repeat_n(Line::default(), empty));
            lines.push(Line::default());
            lines.extend(events);
        }
        if lines.len() < height {
            lines.push(self.foot(hidden));
        }
        lines.truncate(height);
        lines.into_iter().map(|line| line.fit(width)).collect()
    }

    /// Returns all of it in plain lines of any length.
    pub(super) fn plain(&self) -> Vec<Line> {
        let mut lines = self.top();
        lines.extend(self.body(PLAIN_WIDTH));
        let events = self.recent(SHOWN);
        if !events.is_empty() {
            lines.push(Line::default());
            lines.extend(events);
        }
        lines
    }

    fn top(&self) -> Vec<Line> {
        let mut title = Line::new(&plain(&self.board.title), Tone::Strong);
        if self.sort != Sort::Configured {
            title.push(&format!(", by {}", self.sort.word()), Tone::Plain);
        }
        if self.paused {
            title.push("  PAUSED", Tone::Fair);
        }
        let mut lines = vec![title];
        let banners = self.lost.iter().chain(&self.board.banners);
        lines.extend(banners.map(|banner| Line::new(&format!("‼ {}", plain(banner)), Tone::Bad)));
        lines
    }

    fn shown(&self) -> impl Iterator<Item = &Section> {
        let wanted = |group: &&Section| self.group.as_ref().is_none_or(|wanted| group.name == *wanted);
        self.board.groups.iter().filter(wanted)
    }

    /// Returns verdicts and members.
    fn body(&self, width: usize) -> Vec<Line> {
        let names = self.shown().flat_map(|group| &group.members).map(|row| row.name.chars().count());
        let layout = Layout::new(names.max().unwrap_or(6).clamp(6, 40), width);
        let mut lines = Vec::new();
        for group in self.shown() {
            if !lines.is_empty() {
                lines.push(Line::default());
            }
            lines.extend(verdict(group, width));
            lines.push(layout.head());
            lines.extend(group.sorted(self.sort).into_iter().map(|row| layout.row(row)));
        }
        lines
    }

    /// Returns the last events, at most so many.
    fn recent(&self, most: usize) -> Vec<Line> {
        let about: Vec<&Entry> = self.events.iter().filter(|entry| about(&self.group, entry)).collect();
        about[about.len().saturating_sub(most)..].iter().map(|entry| event(entry)).collect()
    }

    fn foot(&self, hidden: usize) -> Line {
        let every = latency(self.interval.as_secs_f64());
        let more = match hidden {
            0 => String::new(),
            hidden => format!("  {} of {hidden} lines above: ↑ ↓", self.above),
        };
        let text = format!(
            "q quit  h help  s sort  g group  p pause  every {every}  bar: █ load {REJECT} reject {CRITICAL} critical \
             {SATURATION} saturation{more}"
        );
        Line::new(&text, Tone::Faint)
    }
}

/// Returns `true` if an event is about a visible group. An event of the whole process always is.
pub(super) fn about(group: &Option<String>, entry: &Entry) -> bool {
    entry.group.is_empty() || group.as_ref().is_none_or(|wanted| entry.group == *wanted)
}

/// The columns for which there is room.
struct Layout {
    name: usize,
    bar: usize,
    columns: Vec<&'static Column>,
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

impl Layout {
    fn new(name: usize, width: usize) -> Self {
        let taken = |columns: &[&Column]| {
            let numbers: usize = columns.iter().map(|column| GAP + column.width).sum();
            name + GAP + STATE + GAP + GAP + LOAD + numbers
        };
        let mut columns: Vec<&'static Column> = NUMBERS.iter().collect();
        while taken(&columns) + BAR.0 > width {
            let first = columns.iter().enumerate().filter(|(_, column)| column.goes > 0);
            let Some((at, _)) = first.min_by_key(|(_, column)| column.goes) else { break };
            columns.remove(at);
        }
        let room = width.saturating_sub(taken(&columns));
        let beside = room.saturating_sub(room.min(BAR_BESIDE) + GAP);
        let why = if beside >= WHY { beside } else { 0 };
        let bar = if why > 0 { BAR_BESIDE } else { room.min(BAR.1) };
        Self { name, bar, columns, why }
    }

    fn head(&self) -> Line {
        let (name, load) = (self.name, self.bar + GAP + LOAD);
        let mut text = format!("{:name$}  {:STATE$}  {:load$}", heading(0), heading(1), heading(2));
        for column in &self.columns {
            let width = column.width;
            text.push_str(&format!("  {:>width$}", heading(column.place)));
        }
        if self.why > 0 {
            text.push_str(&format!("  {}", heading(10)));
        }
        Line::new(&text, Tone::Faint)
    }

    fn row(&self, row: &Row) -> Line {
        let width = self.name;
        let name = cut(&plain(&row.name), width);
        let mut line = Line::new(&format!("{name:width$}  "), Tone::Strong);
        let (glyph, word, tone) = text::standing(row.state, row.slow);
        line.push(&format!("{:STATE$}  ", format!("{glyph} {word}")), tone);
        line.push(&row.load.bar(self.bar), row.load.tone());
        line.push(&format!("  {:LOAD$}", row.load.text()), row.load.tone());
        for column in &self.columns {
            let (text, tone) = (column.cell)(row);
            let width = column.width;
            line.push(&format!("  {text:>width$}"), tone);
        }
        if self.why > 0 {
            let since = format!(" for {}", ago(row.since_seconds));
            let why = cut(&plain(&row.why), self.why.saturating_sub(since.len()));
            line.push(&format!("  {why}"), Tone::Plain);
            line.push(&since, Tone::Faint);
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
fn verdict(group: &Section, width: usize) -> Vec<Line> {
    let mut line = Line::new(&format!("{} ", group.standing.shown().0), group.standing.into());
    line.push(&plain(&group.name), Tone::Strong);
    line.push(&format!("  {}", plain(&group.verdict)), Tone::Plain);
    let mut parts = vec![Line::new(&format!("  {}", plain(&group.strategy)), Tone::Faint)];
    if let Some(now) = group.requests_per_second {
        parts.push(Line::new(&format!("  {}/s", rate(Some(now))), Tone::Plain));
    }
    if let Some((low, high)) = group.range {
        let range = format!("  load line {} to {}", rate(Some(low)), rate(Some(high)));
        parts.push(Line::new(&format!("{range}/s"), Tone::Plain));
    }
    if let (Some(capacity), Some(headroom)) = (group.capacity, group.headroom) {
        let (free, tone) = match headroom {
            over if over < 0.0 => (format!("{:.0}% over it", -over * 100.0), Tone::Bad),
            free if free < 0.2 => (format!("{:.0}% below it", free * 100.0), Tone::Fair),
            free => (format!("{:.0}% below it", free * 100.0), Tone::Good),
        };
        let mut part = Line::new(&format!("  load line {}/s, ", rate(Some(capacity))), Tone::Plain);
        part.push(&free, tone);
        parts.push(part);
    }
    if group.p99.is_some() {
        let times = format!("  p50 {}  p99 {}", time(group.p50), time(group.p99));
        parts.push(Line::new(&times, Tone::Plain));
    }
    for (count, word) in
        [(group.queued, "waiting"), (group.shed, "shed"), (group.rejected - group.shed, "refused")]
    {
        if count > 0 {
            parts.push(Line::new(&format!("  {} {word}", grouped(count)), Tone::Fair));
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

fn event(entry: &Entry) -> Line {
    let (word, tone) = events::kind(entry.kind, &entry.why);
    let whole = utc(entry.unix_ms);
    // The time of the day, to the second.
    let mut line = Line::new(whole.get(11..19).unwrap_or(&whole), Tone::Faint);
    line.push(&format!("  {word}"), tone);
    let whom = match (&entry.member, &*entry.group) {
        (Some(member), group) => format!("  {group} {member}"),
        (None, "") => String::new(),
        (None, group) => format!("  {group}"),
    };
    line.push(&plain(&whom), Tone::Strong);
    line.push(&format!("  {}", plain(&entry.why)), Tone::Plain);
    if !entry.inputs.is_empty() {
        let inputs: Vec<String> =
            entry.inputs.iter().map(|(name, value)| format!("{}={value}", plain(name))).collect();
        line.push(&format!(" [{}]", inputs.join(" ")), Tone::Faint);
    }
    line
}

fn help() -> Vec<Line> {
    let mut lines = vec![Line::default()];
    lines.extend(HELP.iter().map(|(keys, what)| {
        let mut line = Line::new(&format!("  {keys:<12}"), Tone::Strong);
        line.push(what, Tone::Plain);
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
        Some(old) => ago(old).split(' ').next().unwrap_or_default().to_owned(),
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
fn errors(row: &Row) -> (String, Tone) {
    let all = grouped(row.errors);
    match (row.errors, row.errors_per_second) {
        (0, _) => ("0".to_owned(), Tone::Plain),
        (_, now) if now > 0.0 => (format!("{}/s ({all})", rate(Some(now))), Tone::Bad),
        _ => (format!("0 ({all})"), Tone::Plain),
    }
}

/// Returns the sheds in the last minute, and their total.
fn sheds(row: &Row) -> (String, Tone) {
    let all = grouped(row.sheds);
    let text = match (row.sheds, row.sheds_lately) {
        (0, _) => "0".to_owned(),
        (_, 0) => format!("0 ({all})"),
        (_, now) => format!("{now}/min ({all})"),
    };
    (text, if row.alert_share > 0.0 { Tone::Fair } else { Tone::Plain })
}

#[cfg(test)]
#[path = "picture/tests.rs"]
mod tests;
