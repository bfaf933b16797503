//! The sensors of one service of a lottery's daemon, besides those of the machine: like those of an agent
//! beside that server.

use std::fmt;
use std::str::FromStr;

use plimsoll_agent::{Cgroup, ScrapeMetric, ServerUrl};

use super::text::{TextValue, text};

/// The URL of a page in Prometheus' text format.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageUrl(pub ServerUrl);

text! {
    PageUrl,
    format: "plimsoll-page-url",
    what: "an http URL",
    example: "http://127.0.0.1:9113/metrics",
    pattern: "^http://.+$",
}

impl FromStr for PageUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if !text.starts_with("http://") {
            return Err("does not begin with http://".into());
        }
        text.parse().map(Self).map_err(|reason: String| format!("is no page: {reason}"))
    }
}

impl fmt::Display for PageUrl {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(out)
    }
}

/// A metric to read from a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetricText {
    text: String,
    /// The parsed name and labels.
    pub metric: ScrapeMetric,
}

text! {
    MetricText,
    format: "plimsoll-metric",
    what: "a series of a page",
    example: "in_flight=nginx_connections_active",
}

impl FromStr for MetricText {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Ok(Self { text: text.into(), metric: text.parse()? })
    }
}

impl fmt::Display for MetricText {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.text)
    }
}

/// A control group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CgroupName(pub String);

text! {
    CgroupName,
    format: "plimsoll-cgroup",
    what: "a control group",
    example: "system.slice/nginx.service",
}

impl FromStr for CgroupName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.is_empty() { Err("is empty".into()) } else { Ok(Self(text.into())) }
    }
}

impl fmt::Display for CgroupName {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

impl CgroupName {
    /// Returns the control group for an agent.
    pub fn cgroup(&self) -> Cgroup {
        self.0.parse().unwrap_or_default()
    }
}
