//! Metrics of the groups' capacity. Unknown values have no sample: a capacity of 0 would be a group without
//! capacity.

use plimsoll_brain::status::{GroupStatus, LoadLine, WhatIf};

use super::{MetricKind, MetricsPage};

pub(super) fn load_lines(page: &mut MetricsPage, groups: &[GroupStatus]) {
    let lines: Vec<(&str, &LoadLine)> =
        groups.iter().filter_map(|group| Some((&*group.name, group.load_line.as_ref()?))).collect();
    let mut each = |name, help, value: fn(&LoadLine) -> Option<f64>| {
        page.family(name, MetricKind::Gauge, help);
        for (group, line) in &lines {
            if let Some(value) = value(line) {
                page.sample("", &[("group", group)], value);
            }
        }
    };
    each(
        "plimsoll_group_capacity_requests_per_second",
        "Above which requests pile up, as predicted.",
        |line| line.capacity,
    );
    each("plimsoll_group_headroom_ratio", "Part of the capacity that is free; below 0 above it.", |line| {
        line.headroom
    });
    each(
        "plimsoll_group_prediction_error_ratio",
        "Mean relative error of past predictions at other loads.",
        |line| line.error,
    );
    page.family(
        "plimsoll_group_predictions_checked_total",
        MetricKind::Counter,
        "Past predictions that met another load.",
    );
    for (group, line) in &lines {
        page.sample("", &[("group", group)], line.predictions_checked as f64);
    }
    page.family(
        "plimsoll_group_capacity_bound_requests_per_second",
        MetricKind::Gauge,
        "Ends of the interval in which the capacity lies, and what the balancer itself can do.",
    );
    for (group, line) in &lines {
        let bounds =
            [("low", line.capacity_low), ("high", line.capacity_high), ("balancer", line.balancer_capacity)];
        for (bound, value) in bounds {
            if let Some(value) = value {
                page.sample("", &[("group", group), ("bound", bound)], value);
            }
        }
    }
    page.family(
        "plimsoll_group_prediction_age_seconds",
        MetricKind::Gauge,
        "Time since capacity, predictions and effects of changes were worked out.",
    );
    for (group, line) in lines.iter().filter(|(_, line)| line.capacity.or(line.capacity_high).is_some()) {
        page.sample("", &[("group", group)], line.age_seconds);
    }
    page.family(
        "plimsoll_group_predicted_latency_seconds",
        MetricKind::Gauge,
        "Response times at a part of the capacity, as predicted.",
    );
    for (group, line) in &lines {
        for predicted in &line.predicted {
            let load = predicted.load.to_string();
            // `quantile` is a label of summaries: tools that check pages reject it here.
            for (percentile, value) in [("50", predicted.p50), ("99", predicted.p99)] {
                if let Some(value) = value {
                    page.sample("", &[("group", group), ("load", &load), ("percentile", percentile)], value);
                }
            }
        }
    }
    what_if(page, &lines);
    members(page, groups);
}

fn what_if(page: &mut MetricsPage, lines: &[(&str, &LoadLine)]) {
    let mut each = |name, help, value: fn(&WhatIf) -> Option<f64>| {
        page.family(name, MetricKind::Gauge, help);
        for (group, line) in lines {
            for change in &line.what_if {
                if let Some(value) = value(change) {
                    page.sample("", &[("group", group), ("change", &change.change)], value);
                }
            }
        }
    };
    each(
        "plimsoll_group_what_if_capacity_requests_per_second",
        "Capacity with one member less or more, or twice the traffic.",
        |change| change.capacity,
    );
    each("plimsoll_group_what_if_headroom_ratio", "Part of that capacity that would be free.", |change| {
        change.headroom
    });
    each(
        "plimsoll_group_what_if_latency_seconds",
        "99th percentile then; none over the load line.",
        |change| change.p99,
    );
}

fn members(page: &mut MetricsPage, groups: &[GroupStatus]) {
    page.family(
        "plimsoll_member_capacity_requests_per_second",
        MetricKind::Gauge,
        "What a member can do, as predicted.",
    );
    for group in groups {
        for member in &group.members {
            if let Some(capacity) = member.load_line.as_ref().and_then(|line| line.capacity) {
                page.sample("", &[("group", &group.name), ("member", &member.name)], capacity);
            }
        }
    }
}
