//! Which numbers of a result are meant: `response`, `client.p95`, `cpu.utilization`.

use super::{ACTIVITY, Line};

/// A metric, of something or of all that have it.
#[derive(Clone, Debug, PartialEq)]
pub struct Metric {
    /// Of what.
    pub name: Option<String>,
    /// A metric of [`Line`].
    pub metric: &'static str,
}

/// Metrics that there are.
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

/// Those that only a simulation knows.
pub const PLAYED: [&str; 7] = ["p50", "p95", "p99", "goodput", "refusals", "timeouts", "retries"];

impl Metric {
    /// `response`, `client.p95`
    ///
    /// # Errors
    /// What there is.
    pub fn parse(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let (name, word) = text.rsplit_once('.').map_or((None, text), |(name, word)| (Some(name), word));
        let word = if word == "utilisation" { "utilization" } else { word };
        let metric = METRICS.into_iter().find(|metric| *metric == word);
        let metric = metric.ok_or_else(|| format!("no metric `{word}`; there are {}", METRICS.join(", ")))?;
        Ok(Self { name: name.map(str::to_owned), metric })
    }

    /// Does only a simulation know it?
    pub fn is_played(&self) -> bool {
        PLAYED.contains(&self.metric)
    }

    /// Its numbers. Throughput of nothing by name is that of clients and of requests from outside; phases and activities are
    /// meant by their names only, where nothing else has the name.
    pub fn of<'l>(&self, lines: &'l [Line]) -> Vec<&'l Line> {
        let asks = |line: &Line| {
            let same = |other: &Line| other.kind == line.kind && other.name == line.name;
            lines.iter().any(|other| other.metric == "response" && same(other))
        };
        let own = |line: &&Line| match &self.name {
            Some(name) => line.name == *name,
            None => line.kind != ACTIVITY && (self.metric != "throughput" || asks(line)),
        };
        let mut found: Vec<&Line> =
            lines.iter().filter(|line| line.metric == self.metric).filter(own).collect();
        if found.iter().any(|line| line.kind != ACTIVITY) {
            found.retain(|line| line.kind != ACTIVITY);
        }
        found
    }
}
