//! The progress of a run: one line drawn over itself on a terminal, a plain line now and then elsewhere.

use std::io::{self, IsTerminal as _, Write as _};
use std::time::Duration;

use plimsoll_bench::record::RunRecord;
use plimsoll_bench::units::format_duration;

use crate::command::GlobalArgs;
use crate::control::format::group_digits;

/// The time between two plain lines.
const PLAIN_INTERVAL: Duration = Duration::from_secs(5);
const BAR_CELLS: usize = 24;

/// The place to draw.
pub(super) struct LoadProgress {
    mode: ProgressMode,
    /// The requests that ended since the last plain line, and the time of that line.
    since_last_line: RunRecord,
    last_line_at: Duration,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ProgressMode {
    Live,
    Plain,
    Silent,
}

/// A look at a run.
pub(super) struct ProgressSample<'a> {
    pub(super) elapsed: Duration,
    /// The planned duration, if it is known.
    pub(super) duration: Option<Duration>,
    /// The requests that ended since the last look: in the last second or so.
    pub(super) recent: &'a RunRecord,
    /// The length of that time.
    pub(super) span: Duration,
    pub(super) in_flight: usize,
    /// The totals so far: failed, answered and due.
    pub(super) failed: u64,
    pub(super) ok: u64,
    pub(super) due: u64,
    /// Whether this is the last look.
    pub(super) is_last: bool,
}

impl LoadProgress {
    pub(super) fn new(globals: &GlobalArgs) -> Self {
        let is_dumb = std::env::var_os("TERM").is_none_or(|term| term.is_empty() || term == "dumb");
        let mode = match globals.quiet {
            true => ProgressMode::Silent,
            false if io::stderr().is_terminal() && !is_dumb => ProgressMode::Live,
            false => ProgressMode::Plain,
        };
        Self { mode, since_last_line: RunRecord::new(), last_line_at: Duration::ZERO }
    }

    /// Draws, if it is time to.
    pub(super) fn draw(&mut self, sample: &ProgressSample<'_>) {
        match self.mode {
            ProgressMode::Silent => {}
            ProgressMode::Live => print_line(&format!("\r\x1b[K{} {}", bar(sample), summary(sample))),
            ProgressMode::Plain => {
                if let Some(line) = self.plain_line(sample) {
                    print_line(&line);
                }
            }
        }
    }

    /// Returns a plain line, if it is time for one. It covers all since the line before, not only the last
    /// second: together the lines are the whole run, and the last one agrees with the outcome.
    fn plain_line(&mut self, sample: &ProgressSample<'_>) -> Option<String> {
        self.since_last_line.merge(sample.recent);
        // The clock of the run decides: a line that comes late does not make the next one later.
        let interval_index = |at: Duration| at.as_nanos() / PLAIN_INTERVAL.as_nanos();
        let has_remainder = sample.is_last
            && self.since_last_line.due
                + self.since_last_line.ok
                + self.since_last_line.failures()
                + self.since_last_line.cut
                > 0;
        if interval_index(sample.elapsed) == interval_index(self.last_line_at) && !has_remainder {
            return None;
        }
        let recent = std::mem::take(&mut self.since_last_line);
        let span = sample.elapsed - std::mem::replace(&mut self.last_line_at, sample.elapsed);
        let text = summary(&ProgressSample { recent: &recent, span, ..*sample });
        let total = format!("answered {} of {} due", group_digits(sample.ok), group_digits(sample.due));
        Some(format!("{:>5.0} s  {text}  {total}\n", sample.elapsed.as_secs_f64()))
    }
}

impl Drop for LoadProgress {
    fn drop(&mut self) {
        if self.mode == ProgressMode::Live {
            print_line("\r\x1b[K");
        }
    }
}

fn print_line(text: &str) {
    // A failure here has no reader left.
    let _ = io::stderr().write_all(text.as_bytes());
}

fn bar(sample: &ProgressSample<'_>) -> String {
    let Some(duration) = sample.duration else { return format!("{:.0} s", sample.elapsed.as_secs_f64()) };
    let share = (sample.elapsed.as_secs_f64() / duration.as_secs_f64().max(1e-9)).clamp(0.0, 1.0);
    let filled = (share * BAR_CELLS as f64).round() as usize;
    format!("▕{}{}▏ {:.0} s", "█".repeat(filled), "·".repeat(BAR_CELLS - filled), duration.as_secs_f64())
}

fn summary(sample: &ProgressSample<'_>) -> String {
    let span = sample.span.as_secs_f64().max(1e-9);
    let p99 = match sample.recent.latency.count() {
        0 => "-".to_owned(),
        _ => format_duration(sample.recent.latency.quantile(0.99)),
    };
    format!(
        "offered {:.0}/s  done {:.0}/s  p99 {p99}  in flight {}  failed {}",
        sample.recent.due as f64 / span,
        sample.recent.ok as f64 / span,
        sample.in_flight,
        sample.failed
    )
}

#[cfg(test)]
mod tests {
    use super::super::result::sample;
    use super::*;

    #[test]
    fn a_look_in_words() {
        let record = sample::outcome().record;
        let second = Duration::from_secs(1);
        let progress_sample = ProgressSample {
            elapsed: 5 * second,
            duration: Some(20 * second),
            recent: &record,
            span: second,
            in_flight: 7,
            failed: 2,
            ok: 0,
            due: 0,
            is_last: false,
        };
        assert_eq!(bar(&progress_sample), format!("▕{}{}▏ 20 s", "█".repeat(6), "·".repeat(18)));
        assert_eq!(summary(&progress_sample), "offered 100/s  done 98/s  p99 5.00 s  in flight 7  failed 2");
        assert_eq!(bar(&ProgressSample { duration: None, ..progress_sample }), "5 s");
    }

    /// Returns the number before a unit.
    fn number(line: &str, label: &str) -> f64 {
        let rest = line.split(label).nth(1).unwrap();
        rest.split(|letter: char| !letter.is_ascii_digit() && letter != ',')
            .next()
            .unwrap()
            .replace(',', "")
            .parse()
            .unwrap()
    }

    #[test]
    fn plain_lines_add_up_to_the_whole_run() {
        let mut progress = LoadProgress {
            mode: ProgressMode::Plain,
            since_last_line: RunRecord::new(),
            last_line_at: Duration::ZERO,
        };
        let (mut due, mut ok, mut lines) = (0, 0, Vec::new());
        // Looks come a little late, each second; the load varies.
        let sample_count = 13_u64;
        for index in 1..=sample_count {
            let mut record = RunRecord::new();
            record.due = if index == sample_count { 0 } else { 40 * (index % 3 + 1) };
            record.ok = if index == sample_count { 20 } else { record.due - 20 * u64::from(index == 1) };
            (due, ok) = (due + record.due, ok + record.ok);
            let progress_sample = ProgressSample {
                elapsed: Duration::from_millis(1003 * index),
                duration: None,
                recent: &record,
                span: Duration::from_millis(1003),
                in_flight: 0,
                failed: 0,
                ok,
                due,
                is_last: index == sample_count,
            };
            lines.extend(progress.plain_line(&progress_sample).map(|line| (progress_sample.elapsed, line)));
        }
        let times: Vec<u64> = lines.iter().map(|(at, _)| at.as_millis() as u64).collect();
        assert_eq!(times, [5015, 10_030, 13_039], "every five seconds, and the rest: {lines:?}");
        let mut previous = Duration::ZERO;
        let mut sums = [0.0; 2];
        for (elapsed, line) in &lines {
            let span = (*elapsed - std::mem::replace(&mut previous, *elapsed)).as_secs_f64();
            sums[0] += number(line, "offered ") * span;
            sums[1] += number(line, "done ") * span;
        }
        // Rates are rounded to whole numbers.
        assert!(
            (sums[0] - due as f64).abs() < 7.0 && (sums[1] - ok as f64).abs() < 7.0,
            "{sums:?}: {due} {ok}"
        );
        assert!(
            lines[2].1.ends_with(&format!("answered {} of {} due\n", group_digits(ok), group_digits(due))),
            "{lines:?}"
        );
    }
}
