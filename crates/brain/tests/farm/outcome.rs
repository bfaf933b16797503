//! What a run is judged by.

use super::DEADLINE;

/// What came of a run.
pub(crate) struct Outcome {
    /// Seconds, sorted; what was given up counts as a second, what was refused does not count.
    pub(super) latencies: Vec<f64>,
    /// Seconds until those refused were told so, sorted.
    pub(super) refusals: Vec<f64>,
    /// Requests that waited for a member, and for how many seconds in all.
    pub(crate) waited: u64,
    pub(crate) waits: f64,
    pub(crate) requests: u64,
    pub(crate) failed: u64,
    pub(crate) shed: u64,
    pub(crate) good: u64,
    pub(crate) in_time: u64,
    pub(crate) messages: u64,
    pub(crate) cv: f64,
    pub(crate) seconds: f64,
    /// Mean relative error of the knees that members learned, at the end.
    pub(crate) knee_error: f64,
    /// Capacity, requests per second.
    pub(crate) capacity: f64,
}

impl Outcome {
    pub(crate) fn quantile(&self, q: f64) -> f64 {
        let last = self.latencies.len().saturating_sub(1);
        self.latencies.get((q * last as f64) as usize).copied().unwrap_or(f64::NAN) * 1e3
    }

    /// Quantile of the milliseconds until a refusal.
    pub(crate) fn refusal(&self, q: f64) -> f64 {
        let last = self.refusals.len().saturating_sub(1);
        self.refusals.get((q * last as f64) as usize).copied().unwrap_or(0.0) * 1e3
    }

    /// The same as [`quantile`](Self::quantile), where what was refused counts as much as what was given up.
    pub(crate) fn strict(&self, q: f64) -> f64 {
        let all = self.latencies.len() + self.refusals.len();
        match (q * all as f64) as usize {
            place if place < self.latencies.len() => self.latencies[place] * 1e3,
            _ => (DEADLINE + 2e-3) * 1e3,
        }
    }

    pub(crate) fn share(&self, count: u64) -> f64 {
        100.0 * count as f64 / self.requests.max(1) as f64
    }
}
