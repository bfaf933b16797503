//! `[group.hand_over]`: the server that is notified before a member loses its sessions.

use std::time::Duration;

use plimsoll_proxy as proxy;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::diagnostic::ConfigDiagnostic;
use super::root::millis;
use super::spans::SpanTree;
use super::{DrainedSessions, GroupConfig, MonitorUrl, TimeSpan};

/// Who is told before sessions of a member go elsewhere because it is drained, or because it is under alert
/// and they are bound on demand, so that what the member keeps for them can be taken to where they go. It
/// gets `POST` with `{"group": "web", "member": "10.0.0.1:80", "share": 1, "epoch": 3, "reason": "drain"}`
/// (or `"alert"`, with the part of its sessions that goes), and sessions stay until it has answered with 2xx.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HandOverConfig {
    /// Where to tell. `{member}` in its path stands for the member as it is written in `members`.
    #[schemars(extend("examples" = ["http://10.0.0.9:7000/hand-over?member={member}"]))]
    pub url: MonitorUrl,

    /// How long to wait for the answer; then, or if it is another, sessions go all the same.
    #[schemars(extend("x-minimum" = "1ms", "x-maximum" = "5s"))]
    #[serde(default = "millis::<2000>")]
    pub timeout: TimeSpan,
}

/// Checks that sessions either follow their state or stay with it.
pub(super) fn check(group: &GroupConfig, spot: &SpanTree, found: &mut Vec<ConfigDiagnostic>) {
    if group.hand_over.is_some() && group.drained_sessions == DrainedSessions::Stay {
        let message = "sessions of a member that is drained cannot both be handed over and stay";
        let at = spot.key("drained_sessions").value_span();
        let problem =
            ConfigDiagnostic::error(at, message).hint("take out `drained_sessions`, or [group.hand_over]");
        found.push(problem.with_related(spot.key_span("hand_over"), "this says who hands them over"));
    }
}

impl HandOverConfig {
    /// Returns the settings for the data plane.
    pub fn settings(&self) -> proxy::DrainHookSettings {
        let MonitorUrl { host, port, path } = &self.url;
        proxy::DrainHookSettings {
            host: host.as_str().into(),
            port: *port,
            path: path.as_str().into(),
            timeout: self.timeout.0.min(Duration::from_secs(5)),
        }
    }
}
