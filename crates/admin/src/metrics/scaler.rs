//! Metrics of the scalers: the number of members that groups should have.

use plimsoll_brain::autoscale::ScaleReason;
use plimsoll_brain::status::{GroupStatus, ScalerStatus};

use super::{MetricKind, MetricsPage};

/// Writes the status of each scaler; nothing without scalers.
pub(super) fn scalers(page: &mut MetricsPage, groups: &[GroupStatus]) {
    let scalers: Vec<(&str, &ScalerStatus)> =
        groups.iter().filter_map(|group| Some((group.name.as_str(), group.scaler.as_ref()?))).collect();
    if scalers.is_empty() {
        return;
    }
    let mut each = |name, help, value: fn(&ScalerStatus) -> Option<f64>| {
        page.family(name, MetricKind::Gauge, help);
        for (group, scaler) in &scalers {
            if let Some(value) = value(scaler) {
                page.sample("", &[("group", group)], value);
            }
        }
    };
    each("plimsoll_scaler_desired_members", "Members that the target asks for.", |scaler| {
        Some(f64::from(scaler.desired))
    });
    each("plimsoll_scaler_members", "Members that can be used or are coming.", |scaler| {
        Some(f64::from(scaler.members))
    });
    each("plimsoll_scaler_coming_members", "Members that were started and do not serve yet.", |scaler| {
        Some(f64::from(scaler.coming))
    });
    each("plimsoll_scaler_min_members", "Fewest members.", |scaler| Some(f64::from(scaler.min)));
    each("plimsoll_scaler_max_members", "Most members.", |scaler| Some(f64::from(scaler.max)));
    each("plimsoll_scaler_demand", "Capacity in use, or that would be if there were enough.", |scaler| {
        scaler.inputs.get("demand").copied()
    });
    each(
        "plimsoll_scaler_forecast",
        "Upper end of what that may be when a member could be started.",
        |scaler| scaler.inputs.get("forecast_upper").copied(),
    );
    each("plimsoll_scaler_start_seconds", "How long a member takes to start.", |scaler| {
        Some(scaler.start_seconds)
    });
    each("plimsoll_scaler_failures", "Failures of starting and stopping, in a row.", |scaler| {
        Some(f64::from(scaler.failures))
    });
    each("plimsoll_scaler_paused", "Has an operator paused it?", |scaler| {
        Some(f64::from(u8::from(scaler.paused)))
    });
    page.family(
        "plimsoll_scaler_reason",
        MetricKind::Gauge,
        "1 for why it wants as many as it does, 0 for the others.",
    );
    for (group, scaler) in &scalers {
        for reason in ScaleReason::ALL {
            let labels = [("group", *group), ("reason", reason.name())];
            page.sample("", &labels, f64::from(u8::from(scaler.reason == reason)));
        }
    }
}
