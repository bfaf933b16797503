//! `[group.drain_hook]`: the server that is notified before a member loses its sessions.

use std::time::Duration;

use plimsoll_proxy as proxy;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::diagnostic::ConfigDiagnostic;
use super::root::millis;
use super::spans::SpanTree;
use super::{DrainPolicy, GroupConfig, MonitorUrl, TimeSpan};

/// Webhook that is called before sessions leave a member that is drained, or is under alert with sessions
/// bound on demand. The called service can move the state of these sessions to their new members. It gets
/// `POST` with `{"group": "web", "member": "10.0.0.1:80", "share": 1, "epoch": 3, "reason": "drain"}`. For an
/// alert, `reason` is `"alert"` and `share` is the part of the sessions that leaves. Sessions stay until the
/// service has answered with 2xx.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DrainHookConfig {
    /// URL of the webhook. `{member}` in its path stands for the member as written in `members`.
    #[schemars(extend("examples" = ["http://10.0.0.9:7000/hand-over?member={member}"]))]
    pub url: MonitorUrl,

    /// Timeout of the answer. After the timeout, or another answer than 2xx, sessions leave all the same.
    #[schemars(extend("x-minimum" = "1ms", "x-maximum" = "5s"))]
    #[serde(default = "millis::<2000>")]
    pub timeout: TimeSpan,
}

/// Checks that sessions either follow their state or stay with it.
pub(super) fn check(group: &GroupConfig, spans: &SpanTree, diagnostics: &mut Vec<ConfigDiagnostic>) {
    if group.drain_hook.is_some() && group.on_drain == DrainPolicy::Stay {
        let message = "sessions of a member that is drained cannot both be handed over and stay";
        let span = spans.key("on_drain").value_span();
        let problem =
            ConfigDiagnostic::error(span, message).hint("take out `on_drain`, or [group.drain_hook]");
        diagnostics.push(problem.with_related(spans.key_span("drain_hook"), "this says who hands them over"));
    }
}

impl DrainHookConfig {
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
