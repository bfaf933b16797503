//! `[group.monitor]`: the source of a group's loads, and the expression of a load.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use plimsoll_cluster as cluster;
use plimsoll_proxy::SessionLoad;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::diagnostic::ConfigDiagnostic;
use super::spans::SpanTree;
use super::text::{TextValue, text};
use super::{ExpressionText, MemberAddress, ProbePath, TimeSpan, expression};

/// Load of members: the metric that counts as load, and its source. Reports (`POST /v1/report`) are accepted
/// with any setting. Without this section they are stored and shown, but no load is derived from them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct MonitorConfig {
    /// Load of a member: the name of a reported number, or an expression over several. The balancer's own are
    /// `in_flight`, `latency` (seconds), `requests_per_second` and `capacity`; the rate of a counter is
    /// `NAME_per_second`.
    pub metric: ExpressionText,

    /// Source of the numbers. Members report them (`push`), the balancer queries an agent (`pull`) or reads a
    /// page of metrics (`prometheus`), or answers carry them (`orca`). gRPC members report them on a stream
    /// (`orca-oob`), or the balancer's own suffice (`passive`).
    pub source: MonitorSource,

    /// Interval between two queries, or two expected reports. Numbers older than three intervals (at least
    /// 10 s) expire.
    #[schemars(extend("x-minimum" = "100ms", "x-maximum" = "1h"))]
    pub interval: TimeSpan,

    /// URL of one monitor for all members (pull, prometheus), instead of `port` and `path`. `{member}` in its
    /// path stands for the member as written in `members`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url: Option<MonitorUrl>,

    /// Port to query at the member's host (pull, prometheus, orca-oob). Default: the member's own port.
    #[schemars(range(min = 1, max = 65_535))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,

    /// Path to query (pull, prometheus). Default: `/load`, or `/metrics` for prometheus.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<ProbePath>,

    /// Timeout of a complete query (pull, prometheus), or of a connection (orca-oob).
    #[schemars(extend("x-minimum" = "1ms"))]
    pub timeout: TimeSpan,
}

impl Default for MonitorConfig {
    fn default() -> Self {
        Self {
            metric: ExpressionText("cpu".into()),
            source: MonitorSource::Push,
            interval: TimeSpan::millis(1_000),
            url: None,
            port: None,
            path: None,
            timeout: TimeSpan::millis(1_000),
        }
    }
}

impl MonitorConfig {
    /// Returns the time between two samples of a member's reports with its answers: several to an interval,
    /// and no more than ten a second.
    pub fn sample_interval(&self) -> Option<Duration> {
        (self.source == MonitorSource::Orca).then(|| (self.interval.0 / 4).max(Duration::from_millis(100)))
    }

    /// Returns the part of such a load that a session's requests make up.
    pub fn session_load(&self) -> SessionLoad {
        let text: String = self.metric.0.split_whitespace().collect();
        match text.split_once('/') {
            None if self.source.is_passive() && cluster::is_request_rate(&text) => SessionLoad::Own,
            Some((rate, "capacity")) if self.source.is_passive() && cluster::is_request_rate(rate) => {
                SessionLoad::Own
            }
            None if cluster::is_request_rate(&text) => SessionLoad::Rate,
            Some((rate, "capacity")) if cluster::is_request_rate(rate) => SessionLoad::RateForSize,
            _ => SessionLoad::Unknown,
        }
    }

    /// Returns the settings of the monitor; `None` only for an invalid metric, which a checked file does not
    /// have.
    pub fn settings(&self) -> Option<cluster::MonitorSettings> {
        let path = self.path.as_ref().map_or_else(|| self.source.path(), |path| &path.0);
        let (host, port, path) = match &self.url {
            Some(url) if !self.source.streams() => {
                (Some(url.host.clone()), Some(url.port), url.path.as_str())
            }
            _ => (None, self.port, path),
        };
        Some(cluster::MonitorSettings {
            source: self.source.into(),
            metric: cluster::Expression::new(&self.metric.0).ok()?,
            interval: self.interval.0,
            target: cluster::MonitorTarget {
                host,
                port,
                path: path.to_owned(),
                timeout: self.timeout.0.min(Duration::from_secs(3600)),
            },
        })
    }
}

/// Source of the numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum MonitorSource {
    /// Members report, or another program on their behalf.
    #[default]
    Push,
    /// The balancer queries an agent: `{"values": {"cpu": {"value": 0.4, "age_seconds": 0.1}}}`.
    Pull,
    /// Only the balancer's own measurements count.
    Passive,
    /// Members' answers carry the numbers (ORCA's `endpoint-load-metrics`).
    Orca,
    /// Members report on a stream that the balancer opens (ORCA out of band,
    /// `xds.service.orca.v3.OpenRcaService`).
    #[serde(rename = "orca-oob")]
    OrcaOob,
    /// The balancer reads a page of metrics; a name stands for the sum over its labels.
    Prometheus,
}

impl MonitorSource {
    /// Returns `true` if the balancer asks.
    pub fn is_polled(self) -> bool {
        matches!(self, Self::Pull | Self::Prometheus | Self::OrcaOob)
    }

    /// Returns `true` if members report on a stream that the balancer opens.
    pub fn streams(self) -> bool {
        self == Self::OrcaOob
    }

    /// Returns the keys for the peer that the balancer asks, and for the timeout.
    pub fn keys(self) -> &'static [&'static str] {
        match self {
            Self::Push | Self::Passive | Self::Orca => &[],
            Self::OrcaOob => &["port", "timeout"],
            Self::Pull | Self::Prometheus => &["url", "port", "path", "timeout"],
        }
    }

    /// Returns `true` if only the balancer's own figures count.
    pub fn is_passive(self) -> bool {
        self == Self::Passive
    }

    fn path(self) -> &'static str {
        if self == Self::Prometheus { "/metrics" } else { "/load" }
    }
}

impl From<MonitorSource> for cluster::MetricSource {
    fn from(source: MonitorSource) -> Self {
        match source {
            MonitorSource::Push => Self::Push,
            MonitorSource::Pull => Self::Pull,
            MonitorSource::Passive => Self::Passive,
            MonitorSource::Orca => Self::Orca,
            MonitorSource::OrcaOob => Self::OrcaOob,
            MonitorSource::Prometheus => Self::Prometheus,
        }
    }
}

/// The URL of one monitor that answers for all members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MonitorUrl {
    /// A name, or an address without brackets.
    pub host: String,
    /// The TCP port.
    pub port: u16,
    /// The path, which begins with `/`.
    pub path: String,
}

text! {
    MonitorUrl,
    format: "plimsoll-monitor-url",
    what: "an http URL",
    example: "http://monitor.internal:9000/load?member={member}",
    pattern: "^http://.+$",
}

impl FromStr for MonitorUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let Some(rest) = text.strip_prefix("http://") else {
            return Err("does not begin with http://".into());
        };
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let path: ProbePath = if path.is_empty() { "/" } else { path }.parse()?;
        let has_port = authority.rsplit_once(':').is_some_and(|(_, port)| !port.contains(']'));
        let address = if has_port { authority.to_owned() } else { format!("{authority}:80") };
        let MemberAddress { host, port } = address.parse()?;
        Ok(Self { host, port, path: path.0 })
    }
}

impl fmt::Display for MonitorUrl {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let address = MemberAddress { host: self.host.clone(), port: self.port };
        write!(out, "http://{address}{}", self.path)
    }
}

/// Checks its keys against one another.
pub(super) fn check(
    monitor: &MonitorConfig,
    spans: &SpanTree,
    text: &str,
    diagnostics: &mut Vec<ConfigDiagnostic>,
) {
    if !spans.is_broken("metric") {
        expression::check_metric(monitor, spans, text, diagnostics);
    }
    if spans.is_broken("source") {
        return;
    }
    for key in ["port", "path"].into_iter().filter(|key| spans.has_key("url") && spans.has_key(key)) {
        let message = format!("either `url` or `{key}`, not both");
        diagnostics.push(
            ConfigDiagnostic::error(spans.key_span(key), message)
                .with_related(spans.key_span("url"), "this says where to ask"),
        );
    }
    for key in ["url", "port", "path", "timeout"].into_iter().filter(|key| spans.has_key(key)) {
        if !monitor.source.is_polled() {
            let message = format!("`{key}` has no effect: nobody is asked");
            let problem = ConfigDiagnostic::warning(spans.key_span(key), message);
            diagnostics.push(problem.hint("sources that are asked: pull, prometheus, orca-oob"));
        } else if !monitor.source.keys().contains(&key) {
            let message = format!(
                "`{key}` has no effect: of members that report on a stream each is asked for its own"
            );
            let problem = ConfigDiagnostic::warning(spans.key_span(key), message);
            diagnostics.push(problem.hint("source = \"orca-oob\" has `port` and `timeout`"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_of_monitors() {
        for (text, displayed) in [
            ("http://Monitor.internal:9000/load?m={member}", "http://monitor.internal:9000/load?m={member}"),
            ("http://10.0.0.1", "http://10.0.0.1:80/"),
            ("http://[2001:DB8::1]/x", "http://[2001:db8::1]:80/x"),
            ("http://[::1]:81", "http://[::1]:81/"),
        ] {
            assert_eq!(text.parse::<MonitorUrl>().unwrap().to_string(), displayed);
        }
        for invalid in
            ["", "https://a/", "http://", "http:///x", "http://a:0/", "http://a b/", "http://a/b c", "a:80"]
        {
            assert!(invalid.parse::<MonitorUrl>().is_err(), "{invalid}");
        }
    }
}
