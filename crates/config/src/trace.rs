//! `[tracing]`: spans of requests for a collector of OpenTelemetry.

use std::fmt;
use std::io::{self, Read as _};
use std::path::PathBuf;
use std::str::FromStr;

use plimsoll_admin as admin;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::auth::SYSTEM_CA;
use super::diagnostic::ConfigDiagnostic;
use super::root::millis;
use super::spans::SpanTree;
use super::text::{TextValue, text};
use super::{FilePath, HeaderName, TimeSpan};

/// Spans of requests (http), sent to an OpenTelemetry collector (OTLP over HTTP, protobuf).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TracingConfig {
    /// URL of the collector, such as `http://127.0.0.1:4318`; `/v1/traces` is appended.
    pub endpoint: CollectorUrl,

    /// Share of the requests without a valid `traceparent` that begin a trace. For the others, the caller's
    /// flag `sampled` decides. 0: only those.
    #[schemars(range(min = 0.0, max = 1.0))]
    #[serde(default = "hundredth")]
    pub sample: f64,

    /// Name of this balancer at the collector (`service.name`).
    #[schemars(length(min = 1, max = 256))]
    #[serde(default = "service")]
    pub service: String,

    /// Header fields to send along, such as `"authorization: Bearer …"`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub headers: Vec<HeaderLine>,

    /// Timeout of one request to the collector.
    #[schemars(extend("x-minimum" = "100ms"))]
    #[schemars(extend("x-maximum" = "1m"))]
    #[serde(default = "millis::<10000>")]
    pub timeout: TimeSpan,

    /// CA certificates that verify the certificate at `endpoint`, PEM. Default: those of the system.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca: Option<FilePath>,
}

fn hundredth() -> f64 {
    0.01
}

fn service() -> String {
    "plimsoll".into()
}

impl TracingConfig {
    /// Returns the same without values that others must not see.
    pub fn masked(&self) -> Self {
        Self { headers: self.headers.iter().map(HeaderLine::masked).collect(), ..self.clone() }
    }

    /// Returns the collector for spans.
    pub fn collector(&self) -> admin::OtlpCollector {
        let header = |line: &HeaderLine| (line.name.0.clone(), line.value.clone());
        admin::OtlpCollector {
            url: admin::traces_url(&self.endpoint.0),
            headers: self.headers.iter().map(header).collect(),
            timeout: self.timeout.0,
            service: self.service.clone(),
            authorities: self.authorities(),
        }
    }

    fn authorities(&self) -> PathBuf {
        self.ca.as_ref().map_or_else(|| SYSTEM_CA.into(), |FilePath(path)| path.clone())
    }
}

/// The URL of a collector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CollectorUrl(pub admin::Url);

text! {
    CollectorUrl,
    format: "plimsoll-collector-url",
    what: "a URL",
    example: "http://127.0.0.1:4318",
    pattern: "^https?://.+$",
}

impl FromStr for CollectorUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let url: admin::Url = text.parse()?;
        if url.path.contains('?') {
            return Err("has a query, and its path goes on with /v1/traces".into());
        }
        Ok(Self(url))
    }
}

impl fmt::Display for CollectorUrl {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(out)
    }
}

/// A header field with its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeaderLine {
    name: HeaderName,
    value: String,
}

text! {
    HeaderLine,
    format: "plimsoll-header-line",
    what: "NAME: VALUE",
    example: "authorization: Bearer 123",
    pattern: "^[!#$%&'*+.^_`|~0-9A-Za-z-]{1,64}:",
    secret: true,
}

/// Header fields that the sender sets, and a file may not.
const RESERVED_HEADERS: [&str; 6] =
    ["connection", "content-length", "content-type", "host", "transfer-encoding", "user-agent"];

impl FromStr for HeaderLine {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, value) = text.split_once(':').ok_or("has no `:`: write \"NAME: VALUE\"")?;
        let name: HeaderName = name.parse().map_err(|error| format!("has a name that {error}"))?;
        if RESERVED_HEADERS.contains(&&*name.0) {
            return Err(format!("is a field that is set anyway ({})", RESERVED_HEADERS.join(", ")));
        }
        let value = value.trim();
        if !value.bytes().all(|byte| byte == b'\t' || (b' '..=b'~').contains(&byte)) {
            return Err("has a value with other characters than ASCII's printable ones".into());
        }
        Ok(Self { name, value: value.into() })
    }
}

impl HeaderLine {
    /// Returns the field with a value that reveals nothing.
    fn masked(&self) -> Self {
        Self { name: self.name.clone(), value: "***".into() }
    }
}

impl fmt::Display for HeaderLine {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}: {}", self.name, self.value)
    }
}

/// Checks its keys against one another.
pub(super) fn check(tracing: &TracingConfig, spans: &SpanTree, diagnostics: &mut Vec<ConfigDiagnostic>) {
    let CollectorUrl(url) = &tracing.endpoint;
    if tracing.ca.is_some() && !url.https {
        let message = "`ca` has no effect: spans are not sent over https";
        diagnostics.push(ConfigDiagnostic::warning(spans.key_span("ca"), message).hint("take it out"));
    }
    let is_local = matches!(&*url.host, "127.0.0.1" | "::1" | "localhost");
    if !tracing.headers.is_empty() && !url.https && !is_local {
        let message = "whoever is on the way to `endpoint` can read what is in `headers`";
        diagnostics
            .push(ConfigDiagnostic::warning(spans.key("headers").value_span(), message).hint("use https://"));
    }
}

/// Checks that the authorities can be read, if they are needed.
pub(super) fn check_files(
    tracing: &TracingConfig,
    spans: &SpanTree,
    diagnostics: &mut Vec<ConfigDiagnostic>,
) {
    if !tracing.endpoint.0.https {
        return;
    }
    let path = tracing.authorities();
    // A folder can be opened, and not be read.
    let check_readable = || -> io::Result<()> { std::fs::File::open(&path)?.read(&mut [0]).map(drop) };
    if let Err(error) = check_readable() {
        let span = if spans.has_key("ca") { spans.key("ca") } else { spans.key("endpoint") };
        let message = format!("cannot read the authorities in {}: {error}", path.display());
        diagnostics.push(
            ConfigDiagnostic::error(span.value_span(), message).hint("name a file of them, PEM, as `ca`"),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_lines() {
        let line: HeaderLine = "X-Api-Key:  a b: c ".parse().unwrap();
        assert_eq!(line.to_string(), "x-api-key: a b: c");
        for invalid in ["authorization", ": x", "a b: x", "Host: x", "x: \u{fc}", "x: a\r\nb: c"] {
            assert!(invalid.parse::<HeaderLine>().is_err(), "{invalid}");
        }
    }

    #[test]
    fn an_endpoint_is_a_url_without_a_query() {
        let url: CollectorUrl = "http://127.0.0.1:4318".parse().unwrap();
        assert_eq!(admin::traces_url(&url.0).to_string(), "http://127.0.0.1:4318/v1/traces");
        for invalid in ["127.0.0.1:4318", "grpc://a", "http://", "http://a/x?y"] {
            assert!(invalid.parse::<CollectorUrl>().is_err(), "{invalid}");
        }
    }
}
