//! The estimate of the knee from the order in which requests end.
//!
//! The length of requests need not be known. Of all requests that have had the same service so far, each is
//! the next to end with a chance in proportion to its share at that moment. That is the partial likelihood of
//! Cox (Regression models and life-tables, 1972) with the attained service as the age and min(1, c/n) as the
//! hazard ratio. It depends neither on the distribution of work nor on the speed of the member, only on c.
//!
//! It needs the least traffic to find c where processors are shared. Where requests wait in order its result
//! is meaningless, because the latest arrivals cannot end next.

use alloc::vec;
use alloc::vec::Vec;

use super::{LEVELS, level, value};

/// The estimator by shares.
#[derive(Clone, Debug)]
pub(super) struct SharingEstimator {
    /// The requests whose service is tracked.
    tracked: Vec<TrackedRequest>,
    /// In this window: the seconds of requests of each bin at each level.
    exposure: Vec<[f32; BINS]>,
    /// In this window: the completions of each bin, and at each level.
    ended_in_bin: [f32; BINS],
    ended_at_level: Vec<f32>,
    ended_count: u32,
}

#[derive(Clone, Debug)]
struct TrackedRequest {
    job: u32,
    /// The service so far, in seconds of a member without other work.
    attained: f32,
}

impl Default for SharingEstimator {
    fn default() -> Self {
        Self {
            tracked: Vec::new(),
            exposure: vec![[0.0; BINS]; LEVELS + 1],
            ended_in_bin: [0.0; BINS],
            ended_at_level: vec![0.0; LEVELS + 1],
            ended_count: 0,
        }
    }
}

impl SharingEstimator {
    /// Records `seconds` with `in_flight` requests, with the estimate `knee` and a mean `work` of a request.
    pub(super) fn advance(&mut self, in_flight: u32, seconds: f64, knee: f64, work: f64) {
        let attained_gain = (seconds * (knee / f64::from(in_flight.max(1))).min(1.0)) as f32;
        let exposure = &mut self.exposure[level(in_flight)];
        for request in &mut self.tracked {
            exposure[bin(request.attained, work as f32)] += seconds as f32;
            request.attained += attained_gain;
        }
    }

    /// Records the arrival of a request.
    pub(super) fn record_arrival(&mut self, job: u32) {
        if self.tracked.len() < MAX_TRACKED {
            self.tracked.push(TrackedRequest { job, attained: 0.0 });
        }
    }

    /// Records the end of a request; `in_flight` includes it. Returns the log-likelihoods of the candidates
    /// from 1 to `top` at the end of a window.
    pub(super) fn record_end(
        &mut self,
        job: u32,
        succeeded: bool,
        in_flight: u32,
        work: f64,
        top: usize,
    ) -> Option<Vec<f64>> {
        let index = self.tracked.iter().position(|request| request.job == job)?;
        let request = self.tracked.swap_remove(index);
        if !succeeded {
            return None;
        }
        self.ended_in_bin[bin(request.attained, work as f32)] += 1.0;
        self.ended_at_level[level(in_flight)] += 1.0;
        self.ended_count += 1;
        if self.ended_count < WINDOW {
            return None;
        }
        let gains = (1..=top).map(|candidate| self.likelihood(value(candidate), top)).collect();
        self.exposure[..=top].fill([0.0; BINS]);
        self.ended_in_bin = [0.0; BINS];
        self.ended_at_level[..=top].fill(0.0);
        self.ended_count = 0;
        Some(gains)
    }

    /// Returns the log partial likelihood of this window with the given `knee`.
    fn likelihood(&self, knee: f64, top: usize) -> f64 {
        let mut sum = 0.0;
        let mut exposure_sums = [0.0_f64; BINS];
        for level in 1..=top {
            let share = (knee / value(level)).min(1.0);
            let ended = f64::from(self.ended_at_level[level]);
            if ended > 0.0 {
                sum += ended * libm::log(share);
            }
            for (exposure_sum, exposure) in exposure_sums.iter_mut().zip(&self.exposure[level]) {
                *exposure_sum += f64::from(*exposure) * share;
            }
        }
        for (exposure_sum, ended) in exposure_sums.iter().zip(&self.ended_in_bin) {
            if *ended > 0.0 && *exposure_sum > 0.0 {
                sum -= f64::from(*ended) * libm::log(*exposure_sum);
            }
        }
        sum
    }
}

/// Returns the bin of a request's age: `attained` seconds of service, where a request needs `work`. Bins
/// double in width, from a sixteenth of the work to sixteen times.
fn bin(attained: f32, work: f32) -> usize {
    let ratio = attained / work;
    // The exponent is the whole part of the logarithm. Without a ratio (no work known yet) the request is
    // young.
    if !(ratio.is_finite() && ratio > 0.0) {
        return 0;
    }
    let exponent = (ratio.to_bits() >> 23) as i32 - 127;
    (exponent + 4).clamp(0, BINS as i32 - 1) as usize
}

/// The completions of a window.
const WINDOW: u32 = 64;

/// The maximum number of tracked requests. They are a sample that does not depend on their length, so the
/// others do not bias the estimate.
const MAX_TRACKED: usize = 128;

const BINS: usize = 9;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bins_double() {
        assert_eq!((bin(0.0, 1.0), bin(1.0, 1.0), bin(2.0, 1.0), bin(100.0, 1.0)), (0, 4, 5, 8));
        assert_eq!((bin(1.0, 0.0), bin(f32::NAN, 1.0)), (0, 0));
    }
}
