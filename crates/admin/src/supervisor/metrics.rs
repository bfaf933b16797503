//! A Supervisor and its processes as a Prometheus page. Every process has every series from the start.

use plimsoll_brain::ward::Phase;

use super::{Household, ProcessStatus};
use crate::metrics::{Kind, Page, flag};

const PHASES: [(Phase, &str); 5] = [
    (Phase::Running, "running"),
    (Phase::Stopping, "stopping"),
    (Phase::BackingOff, "backing_off"),
    (Phase::Failed, "failed"),
    (Phase::Stopped, "stopped"),
];

/// Returns the whole page.
pub(super) fn page(household: &Household) -> String {
    let mut page = Page::default();
    page.family("plimsoll_build_info", Kind::Gauge, "What runs; always 1.");
    page.sample("", &[("version", &household.version)], 1.0);
    page.family("plimsoll_supervise_last_reload_successful", Kind::Gauge, "0 if the last file was refused.");
    page.sample("", &[], flag(household.reload_error.is_none()));
    page.family("plimsoll_supervise_process_state", Kind::Gauge, "1 for the state that a process is in.");
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
    each("plimsoll_supervise_restarts_total", Kind::Counter, "How often it was started again.", |process| {
        process.restarts as f64
    });
    each("plimsoll_supervise_failures_in_a_row", Kind::Gauge, "Since it last ran for a while.", |process| {
        f64::from(process.failures)
    });
    each("plimsoll_supervise_state_since_seconds", Kind::Gauge, "When it came to its state.", |process| {
        process.since_unix_ms as f64 / 1e3
    });
    crate::metrics::own(&mut page);
    page.text
}
