//! The results by which a run is judged.

use super::Setting;

/// The results of a run.
pub(crate) struct Outcome {
    /// Seconds, sorted; a request that was given up counts as a second, a rejected one does not count.
    pub(super) latencies: Vec<f64>,
    /// The seconds until rejections, sorted.
    pub(super) refusals: Vec<f64>,
    /// The same of the urgent requests.
    pub(super) urgent: (Vec<f64>, Vec<f64>),
    /// The requests that waited for a member, and the sum of their seconds.
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
    /// The seconds after which clients gave up.
    patience: f64,
    /// The mean relative error of the members' learnt knees, at the end.
    pub(crate) knee_error: f64,
    /// The capacity, requests per second.
    pub(crate) capacity: f64,
}

impl Outcome {
    /// Returns empty results.
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

    /// Records an answer, or a request that was given up.
    pub(super) fn answered(&mut self, latency: f64, urgent: bool) {
        self.latencies.push(latency);
        if urgent {
            self.urgent.0.push(latency);
        }
    }

    /// Records a rejection.
    pub(super) fn refused(&mut self, after: f64, urgent: bool) {
        self.shed += 1;
        self.refusals.push(after);
        if urgent {
            self.urgent.1.push(after);
        }
    }

    /// Sorts the results at the end.
    pub(super) fn sort(&mut self) {
        let Self { latencies, refusals, urgent: (answered, refused), .. } = self;
        [latencies, refusals, answered, refused].into_iter().for_each(|all| all.sort_by(f64::total_cmp));
    }

    /// Returns, for the urgent requests, the quantile of their milliseconds, and the rejected percentage.
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

    /// Returns the percentage of all requests answered within this many milliseconds.
    pub(crate) fn within(&self, millis: f64) -> f64 {
        self.share(self.latencies.partition_point(|latency| *latency < millis / 1e3) as u64)
    }

    /// Returns the quantile of the milliseconds until a rejection.
    pub(crate) fn refusal(&self, q: f64) -> f64 {
        let last = self.refusals.len().saturating_sub(1);
        self.refusals.get((q * last as f64) as usize).copied().unwrap_or(0.0) * 1e3
    }

    /// Returns the same as [`quantile`](Self::quantile), with rejected requests counted like those that were
    /// given up.
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
