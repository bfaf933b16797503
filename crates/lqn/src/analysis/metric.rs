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
        let (name, word) = text.rsplit_once('.').map_or((None, text), |(name, word)| (Some(name), word));
        let word = if word == "utilisation" { "utilization" } else { word };
        let metric = METRICS.into_iter().find(|metric| *metric == word);
        let metric = metric.ok_or_else(|| format!("no metric `{word}`; there are {}", METRICS.join(", ")))?;
        Ok(Self { name: name.map(str::to_owned), metric })
    }

    /// Returns `true` if only a simulation provides the metric.
    pub fn needs_simulation(&self) -> bool {
        SIMULATED_ONLY.contains(&self.metric)
    }

    /// Selects its lines. Throughput without a name is that of clients and of requests from outside. Phases
    /// and activities are selected only by name, and only if nothing else has that name.
    pub fn select<'l>(&self, lines: &'l [ResultLine]) -> Vec<&'l ResultLine> {
        let asks = |line: &ResultLine| {
            let same = |other: &ResultLine| other.kind == line.kind && other.name == line.name;
            lines.iter().any(|other| other.metric == "response" && same(other))
        };
        let own = |line: &&ResultLine| match &self.name {
            Some(name) => line.name == *name,
            None => line.kind != ACTIVITY && (self.metric != "throughput" || asks(line)),
        };
        let mut found: Vec<&ResultLine> =
            lines.iter().filter(|line| line.metric == self.metric).filter(own).collect();
        if found.iter().any(|line| line.kind != ACTIVITY) {
            found.retain(|line| line.kind != ACTIVITY);
        }
        found
    }
}
