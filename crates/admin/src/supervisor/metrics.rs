//! A Supervisor and its processes as a Prometheus page. Every process has every series from the start.

use plimsoll_brain::supervision::ProcessPhase;

use super::{ProcessStatus, SupervisorStatus};
use crate::metrics::{MetricKind, MetricsPage, flag};

const PHASES: [(ProcessPhase, &str); 5] = [
    (ProcessPhase::Running, "running"),
    (ProcessPhase::Stopping, "stopping"),
    (ProcessPhase::BackingOff, "backing_off"),
    (ProcessPhase::Failed, "failed"),
    (ProcessPhase::Stopped, "stopped"),
];

/// Returns the whole page.
pub(super) fn metrics_page(household: &SupervisorStatus) -> String {
    let mut page = MetricsPage::default();
    page.family("plimsoll_build_info", MetricKind::Gauge, "What runs; always 1.");
    page.sample("", &[("version", &household.version)], 1.0);
    page.family(
        "plimsoll_supervise_last_reload_successful",
        MetricKind::Gauge,
        "0 if the last file was refused.",
    );
    page.sample("", &[], flag(household.reload_error.is_none()));
    page.family(
        "plimsoll_supervise_process_state",
        MetricKind::Gauge,
        "1 for the state that a process is in.",
    );
    for process in &household.processes {
        for (phase, word) in PHASES {
            let labels = [("process", &*process.name), ("state", word)];
            page.sample("", &labels, flag(process.state == phase));
        }
    }
    let mut each = |name, kind, help, value: fn(&ProcessStatus) -> f64| {
        page.family(name, kind, help);
        for process in &household.processes {
            page.sample("", &[("process", &process.name)], value(process));
        }
    };
    each(
        "plimsoll_supervise_restarts_total",
        MetricKind::Counter,
        "How often it was started again.",
        |process| process.restarts as f64,
    );
    each(
        "plimsoll_supervise_failures_in_a_row",
        MetricKind::Gauge,
        "Since it last ran for a while.",
        |process| f64::from(process.failures),
    );
    each(
        "plimsoll_supervise_state_since_seconds",
        MetricKind::Gauge,
        "When it came to its state.",
        |process| process.since_unix_ms as f64 / 1e3,
    );
    crate::metrics::process_metrics(&mut page);
    page.text
}
