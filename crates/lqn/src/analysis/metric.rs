//! Selects numbers of a result: `response`, `client.p95`, `cpu.utilization`.

use super::{ACTIVITY, ResultLine};

/// A metric, of one object or of all that have it.
#[derive(Clone, Debug, PartialEq)]
pub struct MetricSelector {
    /// The name of the object; `None` for all.
    pub name: Option<String>,
    /// A metric of [`ResultLine`].
    pub metric: &'static str,
}

/// All metrics.
pub const METRICS: [&str; 13] = [
    "response",
    "p50",
    "p95",
    "p99",
    "throughput",
    "utilization",
    "busy",
    "waiting",
    "service",
    "goodput",
    "refusals",
    "timeouts",
    "retries",
];

/// The metrics that only a simulation provides.
pub const SIMULATED_ONLY: [&str; 7] = ["p50", "p95", "p99", "goodput", "refusals", "timeouts", "retries"];

impl MetricSelector {
    /// Parses a metric such as `response` or `client.p95`.
    ///
    /// # Errors
    /// Returns the list of metrics.
    pub fn parse(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let (name, metric_name) =
            text.rsplit_once('.').map_or((None, text), |(name, metric_name)| (Some(name), metric_name));
        let metric_name = if metric_name == "utilisation" { "utilization" } else { metric_name };
        let metric = METRICS.into_iter().find(|metric| *metric == metric_name);
        let metric =
            metric.ok_or_else(|| format!("no metric `{metric_name}`; there are {}", METRICS.join(", ")))?;
        Ok(Self { name: name.map(str::to_owned), metric })
    }

    /// Returns `true` if only a simulation provides the metric.
    pub fn needs_simulation(&self) -> bool {
        SIMULATED_ONLY.contains(&self.metric)
    }

    /// Selects its lines. Throughput without a name is that of clients and of requests from outside. Phases
    /// and activities are selected only by name, and only if nothing else has that name.
    pub fn select<'l>(&self, lines: &'l [ResultLine]) -> Vec<&'l ResultLine> {
        let has_response = |line: &ResultLine| {
            let is_same_subject = |other: &ResultLine| other.kind == line.kind && other.name == line.name;
            lines.iter().any(|other| other.metric == "response" && is_same_subject(other))
        };
        let is_selected = |line: &&ResultLine| match &self.name {
            Some(name) => line.name == *name,
            None => line.kind != ACTIVITY && (self.metric != "throughput" || has_response(line)),
        };
        let mut selected: Vec<&ResultLine> =
            lines.iter().filter(|line| line.metric == self.metric).filter(is_selected).collect();
        if selected.iter().any(|line| line.kind != ACTIVITY) {
            selected.retain(|line| line.kind != ACTIVITY);
        }
        selected
    }
}
