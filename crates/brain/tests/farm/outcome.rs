//! What a run is judged by.

use super::Setting;

/// What came of a run.
pub(crate) struct Outcome {
    /// Seconds, sorted; what was given up counts as a second, what was refused does not count.
    pub(super) latencies: Vec<f64>,
    /// Seconds until those refused were told so, sorted.
    pub(super) refusals: Vec<f64>,
    /// The same of the urgent requests.
    pub(super) urgent: (Vec<f64>, Vec<f64>),
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
    /// Seconds after which clients gave up.
    patience: f64,
    /// Mean relative error of the knees that members learned, at the end.
    pub(crate) knee_error: f64,
    /// Capacity, requests per second.
    pub(crate) capacity: f64,
}

impl Outcome {
    /// Nothing has happened yet.
    pub(super) fn new(setting: &Setting, capacity: f64) -> Self {
        Self {
            latencies: Vec::new(),
            refusals: Vec::new(),
            urgent: (Vec::new(), Vec::new()),
            waited: 0,
            waits: 0.0,
            requests: 0,
            failed: 0,
            shed: 0,
            good: 0,
            in_time: 0,
            messages: 0,
            cv: 0.0,
            seconds: setting.measured,
            patience: setting.patience,
            knee_error: 0.0,
            capacity,
        }
    }

    /// An answer came, or nobody waits for it any more.
    pub(super) fn answered(&mut self, latency: f64, urgent: bool) {
        self.latencies.push(latency);
        if urgent {
            self.urgent.0.push(latency);
        }
    }

    /// A request was refused.
    pub(super) fn refused(&mut self, after: f64, urgent: bool) {
        self.shed += 1;
        self.refusals.push(after);
        if urgent {
            self.urgent.1.push(after);
        }
    }

    /// No more is to come.
    pub(super) fn sort(&mut self) {
        let Self { latencies, refusals, urgent: (answered, refused), .. } = self;
        [latencies, refusals, answered, refused].into_iter().for_each(|all| all.sort_by(f64::total_cmp));
    }

    /// Of the urgent requests: the quantile of their milliseconds, and the per cent that was refused.
    pub(crate) fn urgent(&self, q: f64) -> (f64, f64) {
        let (answered, refused) = &self.urgent;
        let last = answered.len().saturating_sub(1);
        let quantile = answered.get((q * last as f64) as usize).copied().unwrap_or(f64::NAN) * 1e3;
        (quantile, 100.0 * refused.len() as f64 / (answered.len() + refused.len()).max(1) as f64)
    }

    pub(crate) fn quantile(&self, q: f64) -> f64 {
        let last = self.latencies.len().saturating_sub(1);
        self.latencies.get((q * last as f64) as usize).copied().unwrap_or(f64::NAN) * 1e3
    }

    /// Per cent of all requests that were answered within so many milliseconds.
    pub(crate) fn within(&self, millis: f64) -> f64 {
        self.share(self.latencies.partition_point(|latency| *latency < millis / 1e3) as u64)
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
            _ => (self.patience + 2e-3) * 1e3,
        }
    }

    pub(crate) fn share(&self, count: u64) -> f64 {
        100.0 * count as f64 / self.requests.max(1) as f64
    }
}
