//! Checks of health checks and of the members' protocol against other keys, and the settings of checks for
//! the data plane.

use plimsoll_proxy as proxy;

use super::diagnostic::ConfigDiagnostic;
use super::spans::SpanTree;
use super::{GroupConfig, HealthConfig, MemberProtocol};

/// The hint for the checks of groups.
pub(super) const GROUP_CHECK_HINT: &str = "add http = \"/healthz\", grpc = \"\", tcp = true or iiop = true";

impl HealthConfig {
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
pub(super) fn check(
    health: &HealthConfig,
    spans: &SpanTree,
    section: &str,
    hint: &str,
    diagnostics: &mut Vec<ConfigDiagnostic>,
) {
    if ["http", "grpc", "tcp", "iiop"].into_iter().any(|kind| spans.is_broken(kind)) {
        return;
    }
    let kinds = [
        ("http", health.http.is_some()),
        ("grpc", health.grpc.is_some()),
        ("tcp", health.tcp),
        ("iiop", health.iiop),
    ];
    let is_set: Vec<&str> = kinds.iter().filter(|(_, is_set)| *is_set).map(|(kind, _)| *kind).collect();
    match is_set.as_slice() {
        [] => {
            let problem =
                ConfigDiagnostic::error(spans.value_span(), format!("{section} does not say how to check"));
            diagnostics.push(problem.hint(hint));
        }
        ["http"] => {}
        [kind] => {
            let idle: &[&str] = if *kind == "grpc" { &["expect"] } else { &["host", "expect"] };
            for key in idle.iter().copied().filter(|key| spans.has_key(key)) {
                let message = format!("`{key}` has no effect: this check is none of http");
                diagnostics.push(ConfigDiagnostic::warning(spans.key_span(key), message));
            }
        }
        [first_kind, .., last_kind] => diagnostics.push(
            ConfigDiagnostic::error(
                spans.key_span(last_kind),
                format!("either `{first_kind}` or `{last_kind}`, not both"),
            )
            .with_related(spans.key_span(first_kind), "this check connects, too"),
        ),
    }
}

/// Checks the keys that exclude HTTP/2.
pub(super) fn check_protocol(group: &GroupConfig, spans: &SpanTree, diagnostics: &mut Vec<ConfigDiagnostic>) {
    if group.protocol == MemberProtocol::H2 && group.send_proxy.is_some() {
        let message = "`send_proxy` says who the client of a connection is, and with `protocol = \"h2\"` \
            many share one";
        let problem = ConfigDiagnostic::error(spans.key_span("send_proxy"), message)
            .with_related(spans.key_span("protocol"), "here");
        diagnostics.push(problem.hint("members are told in each request: x-forwarded-for, or forwarded"));
    }
}
