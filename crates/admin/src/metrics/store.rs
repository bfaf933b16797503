//! Metrics of the persistent store.

use plimsoll_brain::status::StoreStatus;

use super::{MetricKind, MetricsPage};

/// Writes the state of the store; nothing without a store.
pub(super) fn store(page: &mut MetricsPage, store: Option<&StoreStatus>) {
    let Some(store) = store else { return };
    let label = format!("{} {}", store.kind, store.place);
    let mut one = |name, kind, help, value| {
        page.family(name, kind, help);
        page.sample("", &[("store", &label)], value);
    };
    let up = f64::from(u8::from(store.error.is_none()));
    one("plimsoll_store_up", MetricKind::Gauge, "1 if the store can be used, 0 if not.", up);
    one(
        "plimsoll_store_doubted",
        MetricKind::Gauge,
        "1 while what the store has lost is not believed and stays in force, 0 if there is nothing of that.",
        f64::from(u8::from(store.doubt.is_some())),
    );
    one(
        "plimsoll_store_revision",
        MetricKind::Gauge,
        "The last change that is known here.",
        store.revision as f64,
    );
    one("plimsoll_store_entries", MetricKind::Gauge, "How much is kept.", store.entries as f64);
    one(
        "plimsoll_store_failures_total",
        MetricKind::Counter,
        "How often it came to be that the store could not be used.",
        store.failures as f64,
    );
    one(
        "plimsoll_store_conflicts_total",
        MetricKind::Counter,
        "Changes that were refused because somebody else had been faster.",
        store.conflicts as f64,
    );
    one(
        "plimsoll_store_reads_total",
        MetricKind::Counter,
        "How often all of it was read, the first time included.",
        store.reads as f64,
    );
}
