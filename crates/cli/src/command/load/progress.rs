//! How a run goes, while it goes: one line drawn over itself on a terminal, a plain line now and then
//! elsewhere.

use std::io::{self, IsTerminal as _, Write as _};
use std::time::Duration;

use plimsoll_bench::record::Record;
use plimsoll_bench::units::short;

use crate::command::Globals;

/// Between two plain lines.
const PLAIN: Duration = Duration::from_secs(5);
const CELLS: usize = 24;

/// Where to draw.
pub(super) struct Progress {
    mode: Mode,
    told: Duration,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    Live,
    Plain,
    Silent,
}

/// A look at a run.
pub(super) struct Look<'a> {
    pub(super) elapsed: Duration,
    /// How long it is to last, if that is known.
    pub(super) duration: Option<Duration>,
    /// What ended in the last second or so.
    pub(super) recent: &'a Record,
    /// How long that was.
    pub(super) span: Duration,
    pub(super) in_flight: usize,
    /// In all.
    pub(super) failed: u64,
}

impl Progress {
    pub(super) fn new(globals: &Globals) -> Self {
        let dumb = std::env::var_os("TERM").is_none_or(|term| term.is_empty() || term == "dumb");
        let mode = match globals.quiet {
            true => Mode::Silent,
            false if io::stderr().is_terminal() && !dumb => Mode::Live,
            false => Mode::Plain,
        };
        Self { mode, told: Duration::ZERO }
    }

    /// Draws, if it is time to.
    pub(super) fn show(&mut self, look: &Look<'_>) {
        match self.mode {
            Mode::Silent => {}
            Mode::Live => tell(&format!("\r\x1b[K{} {}", bar(look), words(look))),
            Mode::Plain if look.elapsed >= self.told + PLAIN => {
                self.told = look.elapsed;
                tell(&format!("{:>5.0} s  {}\n", look.elapsed.as_secs_f64(), words(look)));
            }
            Mode::Plain => {}
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.mode == Mode::Live {
            tell("\r\x1b[K");
        }
    }
}

fn tell(text: &str) {
    // Nobody is left to be told when this fails.
    let _ = io::stderr().write_all(text.as_bytes());
}

fn bar(look: &Look<'_>) -> String {
    let Some(duration) = look.duration else { return format!("{:.0} s", look.elapsed.as_secs_f64()) };
    let share = (look.elapsed.as_secs_f64() / duration.as_secs_f64().max(1e-9)).clamp(0.0, 1.0);
    let full = (share * CELLS as f64).round() as usize;
    format!("▕{}{}▏ {:.0} s", "█".repeat(full), "·".repeat(CELLS - full), duration.as_secs_f64())
}

fn words(look: &Look<'_>) -> String {
    let span = look.span.as_secs_f64().max(1e-9);
    let p99 = match look.recent.latency.count() {
        0 => "-".to_owned(),
        _ => short(look.recent.latency.quantile(0.99)),
    };
    format!(
        "offered {:.0}/s  done {:.0}/s  p99 {p99}  in flight {}  failed {}",
        look.recent.due as f64 / span,
        look.recent.ok as f64 / span,
        look.in_flight,
        look.failed
    )
}

#[cfg(test)]
mod tests {
    use super::super::outcome::sample;
    use super::*;

    #[test]
    fn a_look_in_words() {
        let record = sample::outcome().record;
        let second = Duration::from_secs(1);
        let look = Look {
            elapsed: 5 * second,
            duration: Some(20 * second),
            recent: &record,
            span: second,
            in_flight: 7,
            failed: 2,
        };
        assert_eq!(bar(&look), format!("▕{}{}▏ 20 s", "█".repeat(6), "·".repeat(18)));
        assert_eq!(words(&look), "offered 100/s  done 98/s  p99 5.00 s  in flight 7  failed 2");
        assert_eq!(bar(&Look { duration: None, ..look }), "5 s");
    }
}
