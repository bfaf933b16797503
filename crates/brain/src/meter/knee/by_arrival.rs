//! The estimate of the knee from the requests that each request found at its arrival, against the service
//! that it got.
//!
//! Under candidate c a request gets min(1, c/n) of a processor while n are in flight. So for each candidate
//! the service of a request is the growth of one sum between its arrival and its end. If c is right, that is
//! the request's own length, which is independent of the number it found. If c is too large, requests that
//! found many seem longer; if it is too small, shorter. The likelihood of a candidate is that of no
//! correlation between the logarithms of both.
//!
//! The number found does depend on earlier requests, long ones among them. So it is compared with the numbers
//! found *before*, and the service of a request with that of *later* ones (forward orthogonal deviations;
//! Arellano and Bover 1995). Compared with the mean of all, short requests would seem to find more. Requests
//! form cohorts by arrival: by end, long ones of other times would stand beside short ones of now.

use alloc::vec;
use alloc::vec::Vec;

use super::{LEVELS, value};

/// The index of a request in its cohort, if it is in one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::meter) struct CohortSlot {
    /// The number of the cohort; 0 for none.
    cohort: u32,
    index: u32,
}

/// The estimator by visits.
#[derive(Clone, Debug)]
pub(super) struct ArrivalEstimator {
    /// The service of a request that was there all along, by candidate, seconds.
    service_given: Vec<f64>,
    /// The mean of the logarithms of the recent numbers found.
    usual_log_level: f64,
    /// The cohort that admits requests, and the previous one, of which some have not left yet.
    cohorts: [Cohort; 2],
    /// The index of the cohort that admits requests.
    open_cohort: usize,
    /// The number of cohorts so far.
    last_number: u32,
    /// The fading sum over cohorts of how much longer requests took that found more, in standard deviations,
    /// and its variance under no correlation.
    deviation_sum: f64,
    weight_square_sum: f64,
}

#[derive(Clone, Debug)]
struct Cohort {
    number: u32,
    arrived: usize,
    ended: usize,
    /// The requests that have ended since it was full, of this cohort or not.
    ends_waited: usize,
    /// For each request: how much more than usual it found, as a logarithm, and whether it was served.
    arrivals: Vec<(f64, bool)>,
    /// For each request and candidate: the sum at its arrival, and after its end the logarithm of its
    /// service.
    services: Vec<f64>,
}

impl Default for ArrivalEstimator {
    fn default() -> Self {
        let cohort = |number| Cohort {
            number,
            arrived: 0,
            ended: 0,
            ends_waited: 0,
            arrivals: vec![(0.0, false); COHORT_SIZE],
            services: vec![0.0; COHORT_SIZE * WIDTH],
        };
        Self {
            service_given: vec![0.0; WIDTH],
            usual_log_level: 0.0,
            cohorts: [cohort(1), cohort(2)],
            open_cohort: 0,
            last_number: 2,
            deviation_sum: 0.0,
            weight_square_sum: 0.0,
        }
    }
}

impl ArrivalEstimator {
    /// Records `seconds` with `in_flight` requests.
    pub(super) fn advance(&mut self, in_flight: u32, seconds: f64) {
        if in_flight == 0 {
            return;
        }
        let per_request = seconds / f64::from(in_flight);
        let level = super::level(in_flight);
        for (candidate, service) in self.service_given.iter_mut().enumerate().take(level) {
            *service += per_request * value(candidate);
        }
        for service in &mut self.service_given[level..] {
            *service += seconds;
        }
    }

    /// Records the arrival of a request that found `found` others.
    pub(super) fn record_arrival(&mut self, in_flight: u32) -> CohortSlot {
        let log_level = libm::log(f64::from(in_flight) + 1.0);
        let excess = log_level - self.usual_log_level;
        self.usual_log_level += excess / LEVEL_SAMPLES;
        if self.cohorts[self.open_cohort].arrived == COHORT_SIZE {
            if self.cohorts[1 - self.open_cohort].arrived > 0 {
                return CohortSlot::default();
            }
            self.open_cohort = 1 - self.open_cohort;
        }
        let cohort = &mut self.cohorts[self.open_cohort];
        let index = cohort.arrived;
        cohort.arrivals[index] = (excess, false);
        cohort.services[index * WIDTH..][..WIDTH].copy_from_slice(&self.service_given);
        cohort.arrived += 1;
        CohortSlot { cohort: cohort.number, index: index as u32 }
    }

    /// Returns `true` if requests that find many take longer than others, which is not chance.
    pub(super) fn is_slowdown_significant(&self) -> bool {
        self.deviation_sum > SIGNIFICANCE * libm::sqrt(self.weight_square_sum)
    }

    /// Records the end of a request. Returns the log-likelihoods of the candidates from 1 to `top` after the
    /// last one of a cohort.
    pub(super) fn record_end(
        &mut self,
        cohort_slot: CohortSlot,
        succeeded: bool,
        top: usize,
    ) -> Option<Vec<f64>> {
        if let Some(cohort) = self.cohorts.iter_mut().find(|cohort| cohort.number == cohort_slot.cohort) {
            let index = cohort_slot.index as usize;
            cohort.ended += 1;
            cohort.arrivals[index].1 = succeeded;
            for (service, current) in
                cohort.services[index * WIDTH..][..=top].iter_mut().zip(&self.service_given)
            {
                *service = libm::log((current - *service).max(MIN_SERVICE));
            }
        }
        let mut gains = None;
        for cohort in &mut self.cohorts {
            if cohort.arrived < COHORT_SIZE {
                continue;
            }
            cohort.ends_waited += 1;
            // Some requests never end.
            if cohort.ended == COHORT_SIZE || cohort.ends_waited >= MAX_ENDS_WAITED {
                gains = Some((1..=top).map(|candidate| cohort.likelihood(candidate)).collect());
                if let Some((correlation, degrees)) = cohort.correlation(top) {
                    let deviation = correlation * libm::sqrt(degrees / (1.0 - correlation * correlation));
                    self.deviation_sum = DECAY * self.deviation_sum + deviation;
                    self.weight_square_sum = DECAY * DECAY * self.weight_square_sum + 1.0;
                }
                self.last_number = self.last_number.wrapping_add(1).max(1);
                (cohort.number, cohort.arrived, cohort.ended, cohort.ends_waited) =
                    (self.last_number, 0, 0, 0);
            }
        }
        gains
    }
}

impl Cohort {
    /// Returns the log-likelihood of the candidate.
    fn likelihood(&self, candidate: usize) -> f64 {
        self.correlation(candidate)
            .map_or(0.0, |(correlation, degrees)| 0.5 * degrees * libm::log(1.0 - correlation * correlation))
    }

    /// Returns the correlation of the numbers found with the service by the candidate, and its degrees of
    /// freedom. Returns `None` if too few requests were served, or all found the same.
    fn correlation(&self, candidate: usize) -> Option<(f64, f64)> {
        let (mut count, mut sum) = (0.0, 0.0);
        let (mut level_squares, mut service_squares, mut products) = (0.0, 0.0, 0.0);
        for (index, (level, succeeded)) in self.arrivals.iter().enumerate().rev() {
            if !succeeded {
                continue;
            }
            let service = self.services[index * WIDTH + candidate];
            if count > 0.0 {
                let deviation = (service - sum / count) * libm::sqrt(count / (count + 1.0));
                level_squares += level * level;
                service_squares += deviation * deviation + SERVICE_NOISE;
                products += level * deviation;
            }
            count += 1.0;
            sum += service;
        }
        if count < MIN_SUCCESSES || level_squares < 1e-6 {
            return None;
        }
        Some(((products / libm::sqrt(level_squares * service_squares)).clamp(-0.999, 0.999), count - 2.0))
    }
}

const WIDTH: usize = LEVELS + 1;

/// The standard deviations by which the sum must exceed 0, and the part of it that a cohort keeps.
const SIGNIFICANCE: f64 = 4.0;
const DECAY: f64 = 0.95;

/// The requests of a cohort.
const COHORT_SIZE: usize = 32;

/// The minimum number of served requests of a cohort with a result.
const MIN_SUCCESSES: f64 = 8.0;

/// The requests over which the mean of the numbers found is taken.
const LEVEL_SAMPLES: f64 = 64.0;

/// The requests that end after a cohort is full until it is judged without its missing ones.
const MAX_ENDS_WAITED: usize = 16 * COHORT_SIZE;

/// The shortest service, seconds.
const MIN_SERVICE: f64 = 1e-9;

/// The variance of the logarithm of a service that carries no information: a tenth, squared.
const SERVICE_NOISE: f64 = 0.01;
