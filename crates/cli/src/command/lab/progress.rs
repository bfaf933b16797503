//! The progress of a run: a bar that is drawn over itself on a terminal, a line for each point elsewhere.

use std::io::{self, IsTerminal as _, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use plimsoll_bench::lab::RunObserver;
use tokio::signal::unix::{SignalKind, signal};

use crate::command::{CliError, GlobalArgs};

/// The progress on the screen, which also handles Ctrl-C.
pub(super) struct LabProgress<'a> {
    globals: &'a GlobalArgs,
    live: bool,
    interrupted: Arc<AtomicBool>,
    count: String,
}

/// The columns of the bar.
const WIDTH: usize = 24;
const CLEAR_LINE: &str = "\r\x1b[K";

impl<'a> LabProgress<'a> {
    /// Begins to listen for SIGINT and SIGTERM.
    pub(super) fn new(globals: &'a GlobalArgs) -> Result<Self, CliError> {
        let interrupted = Arc::new(AtomicBool::new(false));
        let interrupt_flag = interrupted.clone();
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(CliError::failed)?;
        let (mut int, mut term) = {
            let _inside = runtime.enter();
            let listen = |kind| signal(kind).map_err(CliError::failed);
            (listen(SignalKind::interrupt())?, listen(SignalKind::terminate())?)
        };
        std::thread::spawn(move || {
            runtime.block_on(async {
                tokio::select! { _ = int.recv() => {}, _ = term.recv() => {} }
            });
            interrupt_flag.store(true, Relaxed);
        });
        let is_dumb = std::env::var_os("TERM").is_none_or(|term| term.is_empty() || term == "dumb");
        let live = io::stderr().is_terminal() && !is_dumb && !globals.quiet;
        Ok(Self { globals, live, interrupted, count: String::new() })
    }

    /// Removes the bar.
    pub(super) fn end(&mut self) {
        if self.live {
            self.draw("");
        }
    }

    fn draw(&self, line: &str) {
        // A failure here has no reader left.
        let _ = io::stderr().write_all(format!("{CLEAR_LINE}{line}").as_bytes());
    }
}

impl RunObserver for LabProgress<'_> {
    fn on_calibration(&mut self, message: &str) {
        self.globals.print_message(&format!("{message}\n"));
    }

    fn on_point_start(&mut self, completed: usize, total: usize, remaining: Duration, name: &str) {
        self.count = format!("{}/{total}", completed + 1);
        if self.live {
            let filled = WIDTH * completed / total.max(1);
            let bar = format!("{}{}", "█".repeat(filled), "░".repeat(WIDTH - filled));
            self.draw(&format!("{bar} {} {} left: {name}", self.count, short(remaining)));
        } else {
            self.globals.print_message(&format!("{}, about {} left: {name}\n", self.count, short(remaining)));
        }
    }

    fn on_point_end(&mut self, name: &str, numbers: &str) {
        if self.live {
            self.draw("");
        }
        self.globals.print_message(&format!("{} {name}: {numbers}\n", self.count));
    }

    fn is_interrupted(&self) -> bool {
        self.interrupted.load(Relaxed)
    }
}

/// Returns a duration: `45 s`, `12 min`, `3 h 20 min`.
pub(super) fn short(time: Duration) -> String {
    let seconds = time.as_secs_f64().round() as u64;
    match seconds {
        0..100 => format!("{seconds} s"),
        100..6000 => format!("{} min", (seconds + 30) / 60),
        _ => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_short() {
        let short = |seconds| short(Duration::from_secs(seconds));
        assert_eq!(
            (short(5), short(150), short(12_000)),
            ("5 s".into(), "3 min".into(), "3 h 20 min".into())
        );
    }
}
