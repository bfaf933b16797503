//! The log on standard error: lines for people or JSON for machines.

use std::io::{self, IsTerminal as _};

use clap::ValueEnum;
use tracing_subscriber::EnvFilter;

use crate::output::GlobalArgs;

/// Form of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// One line for people.
    Text,
    /// One JSON object per line.
    Json,
}

/// Sends the program's log to standard error from now on. `RUST_LOG` selects more finely than `-q` and `-v`
/// do.
pub(crate) fn start(format: LogFormat, globals: &GlobalArgs) {
    let level = match (globals.quiet, globals.verbose) {
        (true, _) => "error",
        // Faults of peers are not the balancer's: `h2` would log each frame, and `kube_client` each answer
        // that is a failure.
        (false, 0) => "info,h2=error,kube_client=off",
        (false, 1) => {
            "warn,h2=error,kube_client=off,plimsoll=debug,plimsoll_proxy=debug,plimsoll_admin=debug"
        }
        (false, _) => "trace",
    };
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(level));
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr).with_target(false);
    // A line that cannot be written is lost. An error message about it, where nothing can be written, would
    // end the process.
    let log = log.log_internal_errors(false);
    // The journal dates its lines itself.
    let has_timestamps = std::env::var_os("JOURNAL_STREAM").is_none();
    let color = globals.allows_color(&io::stderr());
    // A running log stays.
    let _ = match format {
        LogFormat::Json => log.json().flatten_event(true).try_init(),
        LogFormat::Text if has_timestamps => log.with_ansi(color).compact().try_init(),
        LogFormat::Text => {
            log.with_ansi(color && io::stderr().is_terminal()).compact().without_time().try_init()
        }
    };
}
