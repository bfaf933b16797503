//! Metrics of a fleet of balancers.

use plimsoll_brain::status::{BalancerStatus, FleetStatus, GroupStatus};

use super::{MetricKind, MetricsPage, flag};

/// Writes the state of the other balancers; nothing for a balancer without a fleet.
pub(super) fn fleet(page: &mut MetricsPage, fleet: Option<&FleetStatus>, groups: &[GroupStatus]) {
    let Some(fleet) = fleet else { return };
    let mut each = |name, kind, help, value: fn(&BalancerStatus) -> f64| {
        page.family(name, kind, help);
        for one in &fleet.balancers {
            page.sample("", &[("balancer", &one.name), ("address", &one.address)], value(one));
        }
    };
    each("plimsoll_fleet_up", MetricKind::Gauge, "1 if another balancer of the fleet reports.", |one| {
        flag(one.state == "up")
    });
    each("plimsoll_fleet_age_seconds", MetricKind::Gauge, "Seconds since its last report.", |one| {
        one.age_seconds
    });
    each("plimsoll_fleet_reports_total", MetricKind::Counter, "Its reports that came.", |one| {
        one.reports as f64
    });
    each(
        "plimsoll_fleet_loss",
        MetricKind::Gauge,
        "Share of its latest reports that did not come, 0 to 1.",
        |one| one.loss,
    );
    let mut one = |name, help, value: u64| {
        page.family(name, MetricKind::Counter, help);
        page.sample("", &[], value as f64);
    };
    one("plimsoll_fleet_sent_total", "Datagrams sent to other balancers.", fleet.sent);
    one("plimsoll_fleet_sent_bytes_total", "Their bytes.", fleet.sent_bytes);
    one("plimsoll_fleet_received_total", "Datagrams that came from other balancers.", fleet.received);
    one("plimsoll_fleet_received_bytes_total", "Their bytes.", fleet.received_bytes);
    let help = "Datagrams that were dropped: made without the key, sent again, or not understood.";
    one("plimsoll_fleet_refused_total", help, fleet.refused);
    one("plimsoll_fleet_unsent_total", "Datagrams that could not be sent.", fleet.unsent);
    let help = "Requests in flight at a member from other balancers, by their reports.";
    page.family("plimsoll_member_in_flight_elsewhere", MetricKind::Gauge, help);
    for group in groups {
        for member in &group.members {
            let labels = [("group", &*group.name), ("member", &*member.name)];
            page.sample("", &labels, member.in_flight_elsewhere);
        }
    }
}
