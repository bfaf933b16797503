//! Metrics of the sources of members.

use plimsoll_brain::status::{GroupStatus, SourceStatus};

use super::{MetricKind, MetricsPage};

/// Writes the status of each source; nothing without sources. There is no age before the first response: 0
/// would mean fresh.
pub(super) fn sources(page: &mut MetricsPage, groups: &[GroupStatus]) {
    if groups.iter().all(|group| group.discovery.is_empty()) {
        return;
    }
    let mut each = |name, kind, help, value: fn(&SourceStatus) -> Option<f64>| {
        page.family(name, kind, help);
        for group in groups {
            for source in &group.discovery {
                let label = format!("{} {}", source.kind, source.what);
                if let Some(value) = value(source) {
                    page.sample("", &[("group", &group.name), ("source", &label)], value);
                }
            }
        }
    };
    each(
        "plimsoll_discovery_members",
        MetricKind::Gauge,
        "Members by the last answer that counts.",
        |source| Some(source.members as f64),
    );
    each("plimsoll_discovery_age_seconds", MetricKind::Gauge, "Since that answer.", |source| {
        source.age_seconds
    });
    each(
        "plimsoll_discovery_failures_total",
        MetricKind::Counter,
        "Answers that did not come, or were not believed.",
        |source| Some(source.failures as f64),
    );
}
