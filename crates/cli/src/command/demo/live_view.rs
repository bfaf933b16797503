//! The live view: a few lines, drawn over themselves; or a plain line per second without a terminal.

use std::fmt::Write as _;
use std::io::{self, IsTerminal};
use std::sync::Once;
use std::time::Duration;

use plimsoll_bench::record::RunRecord;
use plimsoll_bench::units::format_duration;
use plimsoll_brain::MemberState;

use super::counts::DemoEvent;
use crate::command::GlobalArgs;
use crate::control::format::{self, TextStyle, sanitize};
use crate::output::ColorMode;
use crate::terminal::{
    CLEAR_BELOW, HIDE_CURSOR, SHOW_CURSOR, StyledLine, bar, is_dumb, restore_on_panic, size, write_stderr,
};

/// One picture.
pub(super) struct ViewFrame<'a> {
    pub(super) title: String,
    /// The members.
    pub(super) member_summary: String,
    /// The hint for more information.
    pub(super) hint: String,
    pub(super) elapsed: Duration,
    pub(super) duration: Duration,
    /// The name of the current phase.
    pub(super) phase: &'a str,
    pub(super) rows: Vec<MemberRow<'a>>,
    /// The length of the time that `recent` covers, in seconds.
    pub(super) seconds: f64,
    /// The results of the last moments.
    pub(super) recent: RunRecord,
    /// The number of requests that have failed, in all.
    pub(super) failed: u64,
    pub(super) events: &'a [DemoEvent],
}

/// One member.
pub(super) struct MemberRow<'a> {
    pub(super) name: &'a str,
    /// Its state at the balancer.
    pub(super) state: Option<MemberState>,
    /// The fault of the member.
    pub(super) fault_label: Option<&'a str>,
    /// Its share of the answers, from 0 to 1.
    pub(super) share: f64,
    /// Answers per second.
    pub(super) rate: f64,
    /// The requests in flight, by the balancer's count.
    pub(super) in_flight: u32,
    /// The latencies p50 and p99, as the clients see them.
    pub(super) latency: Option<(Duration, Duration)>,
    /// Tries that failed, by the balancer's count.
    pub(super) failed: u64,
}

/// A place to draw.
pub(super) struct LiveScreen {
    mode: ScreenMode,
    color: bool,
    /// The number of seconds that have had their plain line.
    printed_seconds: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ScreenMode {
    /// The picture is drawn over itself; the number of its lines on the screen.
    Live(usize),
    Plain,
    Silent,
}

impl LiveScreen {
    pub(super) fn new(globals: &GlobalArgs, no_live: bool) -> Self {
        let stderr = io::stderr();
        let mode = match stderr.is_terminal() && !is_dumb() && !no_live {
            _ if globals.quiet => ScreenMode::Silent,
            true => ScreenMode::Live(0),
            false => ScreenMode::Plain,
        };
        if mode == ScreenMode::Live(0) {
            show_cursor_on_panic();
            write_stderr(HIDE_CURSOR);
        }
        let color = match globals.color {
            ColorMode::Always => true,
            ColorMode::Never => false,
            // Only the live view has colour, and it is on a terminal.
            ColorMode::Auto => std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()),
        };
        Self { mode, color, printed_seconds: 0 }
    }

    /// Draws a picture over the last one.
    pub(super) fn draw(&mut self, frame: &ViewFrame<'_>) {
        match self.mode {
            ScreenMode::Silent => {}
            ScreenMode::Live(drawn_lines) => {
                let (width, height) = size(io::stderr());
                let lines = frame.lines(width, height.saturating_sub(1).max(1));
                let mut out = cursor_up(drawn_lines);
                for line in &lines {
                    // Each line is cleared to its end, in case a longer one stood there.
                    let _ = write!(out, "{}\x1b[K\r\n", line.paint(self.color));
                }
                out.push_str(CLEAR_BELOW);
                write_stderr(&out);
                self.mode = ScreenMode::Live(lines.len());
            }
            ScreenMode::Plain if frame.elapsed.as_secs() > self.printed_seconds => {
                self.printed_seconds = frame.elapsed.as_secs();
                write_stderr(&(frame.plain_line() + "\n"));
            }
            ScreenMode::Plain => {}
        }
    }

    /// Prints an event if there is no picture to show it in.
    pub(super) fn print_event(&self, elapsed: Duration, message: &str) {
        if self.mode == ScreenMode::Plain {
            write_stderr(&format!("{:>6.1} s  {}\n", elapsed.as_secs_f64(), sanitize(message)));
        }
    }

    /// Removes the picture.
    pub(super) fn clear(&mut self) {
        if let ScreenMode::Live(drawn_lines) = self.mode {
            write_stderr(&(cursor_up(drawn_lines) + CLEAR_BELOW + SHOW_CURSOR));
            self.mode = ScreenMode::Silent;
        }
    }
}

impl Drop for LiveScreen {
    fn drop(&mut self) {
        if let ScreenMode::Live(_) = self.mode {
            write_stderr(SHOW_CURSOR);
        }
    }
}

impl ViewFrame<'_> {
    /// Returns the picture, in at most so many lines of so many columns.
    fn lines(&self, width: usize, height: usize) -> Vec<StyledLine> {
        let mut title = StyledLine::new(&self.title, TextStyle::Strong);
        title.push(&format!(" · {}", self.member_summary), TextStyle::Plain);
        let mut lines = vec![title, self.progress_line(width), StyledLine::default()];
        lines.extend(self.table(width));
        lines.extend([StyledLine::default(), self.client_line(), StyledLine::default()]);
        // The last events, and below them the hint if there is room for a gap between.
        let free_lines = height.saturating_sub(lines.len());
        lines.extend(self.events[self.events.len().saturating_sub(free_lines)..].iter().map(event_line));
        if lines.len() + 2 <= height {
            lines.extend([StyledLine::default(), StyledLine::new(&self.hint, TextStyle::Faint)]);
        }
        lines.truncate(height);
        lines.into_iter().map(|line| line.truncate_to(width)).collect()
    }

    fn progress_line(&self, width: usize) -> StyledLine {
        let (elapsed, duration) = (self.elapsed.as_secs_f64(), self.duration.as_secs_f64());
        let mut line = StyledLine::new(&format!("{elapsed:>5.1} s of {duration:.0} s  "), TextStyle::Plain);
        let room = width.saturating_sub(line.width() + self.phase.chars().count() + 4).min(60);
        line.push(&format!("▕{:room$}▏ ", bar(elapsed / duration, room)), TextStyle::Faint);
        line.push(self.phase, TextStyle::Strong);
        line
    }

    fn table(&self, width: usize) -> Vec<StyledLine> {
        let names = self.rows.iter().map(|row| row.name.len()).max().unwrap_or(0).max(6);
        let (states, numbers) = (21, 34);
        let (shows_in_flight, shows_failures) = (width >= 90, width >= 104);
        let used_width = names
            + 2
            + states
            + numbers
            + if shows_in_flight { 11 } else { 0 }
            + if shows_failures { 14 } else { 0 };
        let room = width.saturating_sub(used_width).min(48);
        let mut header = format!("{:names$}  {:states$}{:room$}  share  req/s", "member", "state", "");
        header.push_str(if shows_in_flight { "  in flight" } else { "" });
        let _ = write!(header, "  {:>8}  {:>8}", "p50", "p99");
        header.push_str(if shows_failures { "  failed tries" } else { "" });
        let mut lines = vec![StyledLine::new(&header, TextStyle::Faint)];
        // The bar is full at twice the fair share, or at the greatest share if that is more.
        let twice_fair_share = 2.0 / self.rows.len().max(1) as f64;
        let max_share = self.rows.iter().map(|row| row.share).fold(twice_fair_share, f64::max);
        for row in &self.rows {
            let mut line = StyledLine::new(&format!("{:names$}  ", row.name), TextStyle::Strong);
            let (state, style) = row.state();
            line.push(&format!("{state:states$}"), style);
            let style = if row.fault_label.is_some() { TextStyle::Fair } else { TextStyle::Good };
            line.push(&format!("{:room$}", bar(row.share / max_share, room)), style);
            line.push(&format!("  {:>3.0} %  {:>5.0}", row.share * 100.0, row.rate), TextStyle::Plain);
            if shows_in_flight {
                line.push(&format!("  {:>9}", row.in_flight), TextStyle::Plain);
            }
            let (p50, p99) = row.latency.map_or_else(
                || ("–".into(), "–".into()),
                |(p50, p99)| (format_duration(p50), format_duration(p99)),
            );
            line.push(&format!("  {p50:>8}  {p99:>8}"), TextStyle::Plain);
            if shows_failures {
                line.push(
                    &format!("  {:>12}", row.failed),
                    if row.failed > 0 { TextStyle::Fair } else { TextStyle::Plain },
                );
            }
            lines.push(line);
        }
        lines
    }

    fn client_line(&self) -> StyledLine {
        let recent = &self.recent;
        let per_second = |count: u64| count as f64 / self.seconds;
        let (p50, p99) = (recent.latency.quantile(0.5), recent.latency.quantile(0.99));
        let mut line = StyledLine::new("clients", TextStyle::Strong);
        let rates = (per_second(recent.due), per_second(recent.ok));
        line.push(&format!("  {:.0}/s offered  {:.0}/s answered  ", rates.0, rates.1), TextStyle::Plain);
        let style = if self.failed > 0 { TextStyle::Bad } else { TextStyle::Good };
        line.push(&format!("{} failed", self.failed), style);
        line.push(&format!("  p50 {}  p99 {}", format_duration(p50), format_duration(p99)), TextStyle::Plain);
        if recent.punctuality() < 0.99 {
            let late = (1.0 - recent.punctuality()) * 100.0;
            line.push(&format!("  {late:.0} % sent late"), TextStyle::Bad);
        }
        line
    }

    /// Returns the same in one plain line.
    fn plain_line(&self) -> String {
        let recent = &self.recent;
        let mut line = format!(
            "{:>6.1} s  {:.0}/s offered  {:.0}/s answered  {} failed  p50 {}  p99 {} ",
            self.elapsed.as_secs_f64(),
            recent.due as f64 / self.seconds,
            recent.ok as f64 / self.seconds,
            self.failed,
            format_duration(recent.latency.quantile(0.5)),
            format_duration(recent.latency.quantile(0.99)),
        );
        for row in &self.rows {
            let _ = write!(line, " {} {:.0} %", row.name, row.share * 100.0);
        }
        line
    }
}

impl MemberRow<'_> {
    fn state(&self) -> (String, TextStyle) {
        let (glyph, label, style) = self.state.map_or((" ", "", TextStyle::Plain), format::state_label);
        match self.fault_label {
            Some(fault) => (
                format!("{glyph} {label}, {fault}"),
                if style == TextStyle::Good { TextStyle::Fair } else { style },
            ),
            None => (format!("{glyph} {label}"), style),
        }
    }
}

fn event_line(event: &DemoEvent) -> StyledLine {
    let mut line = StyledLine::new(&format!("{:>5.1} s  ", event.at), TextStyle::Faint);
    if event.by == "balancer" {
        line.push(&format!("balancer: {}", sanitize(&event.what)), TextStyle::Plain);
    } else {
        line.push(&sanitize(&event.what), TextStyle::Fair);
    }
    line
}

/// Returns the code that moves back to the first of so many lines.
fn cursor_up(lines: usize) -> String {
    if lines == 0 { String::new() } else { format!("\x1b[{lines}A\r") }
}

fn show_cursor_on_panic() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| restore_on_panic(|| write_stderr(SHOW_CURSOR)));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(events: &[DemoEvent]) -> ViewFrame<'_> {
        let mut recent = RunRecord::new();
        (recent.due, recent.on_time, recent.ok) = (800, 800, 796);
        recent.latency.record(Duration::from_micros(5230));
        let ms = |p50, p99| Some((Duration::from_millis(p50), Duration::from_millis(p99)));
        let up = MemberRow {
            name: "m1",
            state: Some(MemberState::Up),
            fault_label: None,
            share: 0.46,
            rate: 184.4,
            in_flight: 1,
            latency: ms(5, 29),
            failed: 0,
        };
        let slow = MemberRow {
            name: "m2",
            fault_label: Some("10x slower"),
            share: 0.08,
            latency: ms(43, 1299),
            ..up
        };
        let killed = MemberRow {
            name: "m3",
            state: Some(MemberState::Ejected),
            fault_label: Some("killed"),
            share: 0.0,
            rate: 0.0,
            latency: None,
            failed: 5,
            ..up
        };
        ViewFrame {
            title: "plimsoll demo · least_connections".to_owned(),
            member_summary: "4 members".to_owned(),
            hint: "look: plimsoll members".to_owned(),
            elapsed: Duration::from_secs(15),
            duration: Duration::from_secs(30),
            phase: "m3 killed",
            rows: vec![up, slow, killed],
            seconds: 2.0,
            recent,
            failed: 0,
            events,
        }
    }

    fn events(count: usize) -> Vec<DemoEvent> {
        (0..count)
            .map(|n| DemoEvent { at: n as f64, by: "balancer", what: format!("thing\x1b[2J {n}") })
            .collect()
    }

    fn picture(frame: &ViewFrame<'_>, width: usize, height: usize) -> Vec<String> {
        frame.lines(width, height).iter().map(|line| line.paint(false).trim_end().to_owned()).collect()
    }

    #[test]
    fn the_picture() {
        insta::assert_snapshot!(picture(&frame(&events(2)), 110, 20).join("\n"), @r#"
        plimsoll demo · least_connections · 4 members
         15.0 s of 30 s  ▕██████████████████████████████                              ▏ m3 killed

        member  state                                        share  req/s  in flight       p50       p99  failed tries
        m1      ● up                 ███████████████▏         46 %    184          1   5.00 ms   29.0 ms             0
        m2      ● up, 10x slower     ██▋                       8 %    184          1   43.0 ms    1.30 s             0
        m3      ⊘ ejected, killed                              0 %      0          1         –         –             5

        clients  400/s offered  398/s answered  0 failed  p50 5.23 ms  p99 5.23 ms

          0.0 s  balancer: thing�[2J 0
          1.0 s  balancer: thing�[2J 1

        look: plimsoll members
        "#);
        insta::assert_snapshot!(picture(&frame(&events(2)), 80, 20).join("\n"), @r"
        plimsoll demo · least_connections · 4 members
         15.0 s of 30 s  ▕█████████████████████████                         ▏ m3 killed

        member  state                                   share  req/s       p50       p99
        m1      ● up                 ███████████▊        46 %    184   5.00 ms   29.0 ms
        m2      ● up, 10x slower     ██                   8 %    184   43.0 ms    1.30 s
        m3      ⊘ ejected, killed                         0 %      0         –         –

        clients  400/s offered  398/s answered  0 failed  p50 5.23 ms  p99 5.23 ms

          0.0 s  balancer: thing�[2J 0
          1.0 s  balancer: thing�[2J 1

        look: plimsoll members
        ");
        assert_eq!(
            frame(&[]).plain_line(),
            "  15.0 s  400/s offered  398/s answered  0 failed  p50 5.23 ms  p99 5.23 ms  m1 46 % m2 8 % m3 \
             0 %"
        );
    }

    #[test]
    fn it_fits_whatever_the_size() {
        let events = events(40);
        let frame = frame(&events);
        for width in 1..150 {
            for height in [1, 5, 12, 24, 60] {
                let lines = frame.lines(width, height);
                assert!(lines.len() <= height);
                assert!(lines.iter().all(|line| line.width() <= width), "{width}");
            }
        }
        let full = picture(&frame, 80, 24);
        assert_eq!(full.len(), 24);
        assert!(full[23].ends_with(" 39"), "{full:?}");
    }

    #[test]
    fn only_tones_steer_the_terminal() {
        let events = events(1);
        let frame = frame(&events);
        let painted: String = frame.lines(100, 24).iter().map(|line| line.paint(true)).collect();
        assert!(painted.contains("\x1b[32m") && !painted.contains("\x1b[2J"), "{painted:?}");
        assert!(!picture(&frame, 100, 24).concat().contains('\x1b'));
    }

    #[test]
    fn late_requests_are_pointed_out() {
        let mut frame = frame(&[]);
        frame.recent.on_time = 400;
        assert!(frame.client_line().paint(false).contains("50 % sent late"));
    }
}
