//! Checks of health checks and of the members' protocol against other keys, and the settings of checks for
//! the data plane.

use plimsoll_proxy as proxy;

use super::place::Spot;
use super::problem::Problem;
use super::{Group, Health, MemberProtocol};

/// The hint for the checks of groups.
pub(super) const OF_GROUPS: &str = "add http = \"/healthz\", grpc = \"\", tcp = true or iiop = true";

impl Health {
    /// Returns the settings for the data plane.
    pub(super) fn settings(&self) -> proxy::ProbeSettings {
        let host = || self.host.as_ref().map(|host| host.0.clone());
        let kind = match (&self.http, &self.grpc) {
            (Some(path), _) => {
                proxy::ProbeKind::Http { path: path.0.clone(), host: host(), expect: self.expect }
            }
            (None, Some(service)) => proxy::ProbeKind::Grpc { service: service.0.clone(), host: host() },
            (None, None) if self.iiop => proxy::ProbeKind::Iiop,
            (None, None) => proxy::ProbeKind::Tcp,
        };
        proxy::ProbeSettings { kind, interval: self.interval.0, timeout: self.timeout.0 }
    }
}

/// Checks that `[group.health]`, or a table like it, names one way to check.
pub(super) fn check(health: &Health, spot: &Spot, section: &str, hint: &str, found: &mut Vec<Problem>) {
    if ["http", "grpc", "tcp", "iiop"].into_iter().any(|kind| spot.broken(kind)) {
        return;
    }
    let kinds = [
        ("http", health.http.is_some()),
        ("grpc", health.grpc.is_some()),
        ("tcp", health.tcp),
        ("iiop", health.iiop),
    ];
    let set: Vec<&str> = kinds.iter().filter(|(_, set)| *set).map(|(kind, _)| *kind).collect();
    match set.as_slice() {
        [] => {
            let problem = Problem::error(spot.value(), format!("{section} does not say how to check"));
            found.push(problem.hint(hint));
        }
        ["http"] => {}
        [kind] => {
            let idle: &[&str] = if *kind == "grpc" { &["expect"] } else { &["host", "expect"] };
            for key in idle.iter().copied().filter(|key| spot.has(key)) {
                let message = format!("`{key}` has no effect: this check is none of http");
                found.push(Problem::warning(spot.name(key), message));
            }
        }
        [one, .., other] => found.push(
            Problem::error(spot.name(other), format!("either `{one}` or `{other}`, not both"))
                .also(spot.name(one), "this check connects, too"),
        ),
    }
}

/// Checks the keys that exclude HTTP/2.
pub(super) fn check_protocol(group: &Group, spot: &Spot, found: &mut Vec<Problem>) {
    if group.protocol == MemberProtocol::H2 && group.send_proxy.is_some() {
        let message = "`send_proxy` says who the client of a connection is, and with `protocol = \"h2\"` many share one";
        let problem = Problem::error(spot.name("send_proxy"), message).also(spot.name("protocol"), "here");
        found.push(problem.hint("members are told in each request: x-forwarded-for, or forwarded"));
    }
}
