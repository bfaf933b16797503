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
    place: u32,
}

/// The estimator by visits.
#[derive(Clone, Debug)]
pub(super) struct ArrivalEstimator {
    /// The service of a request that was there all along, by candidate, seconds.
    given: Vec<f64>,
    /// The mean of the logarithms of the recent numbers found.
    usual: f64,
    /// The cohort that admits requests, and the previous one, of which some have not left yet.
    cohorts: [Cohort; 2],
    /// The index of the cohort that admits requests.
    open: usize,
    /// The number of cohorts so far.
    count: u32,
    /// The fading sum over cohorts of how much longer requests took that found more, in standard deviations,
    /// and its variance under no correlation.
    sum: f64,
    squares: f64,
}

#[derive(Clone, Debug)]
struct Cohort {
    number: u32,
    arrived: usize,
    ended: usize,
    /// The requests that have ended since it was full, of this cohort or not.
    waited: usize,
    /// For each request: how much more than usual it found, as a logarithm, and whether it was served.
    found: Vec<(f64, bool)>,
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
            waited: 0,
            found: vec![(0.0, false); COHORT],
            services: vec![0.0; COHORT * WIDTH],
        };
        Self {
            given: vec![0.0; WIDTH],
            usual: 0.0,
            cohorts: [cohort(1), cohort(2)],
            open: 0,
            count: 2,
            sum: 0.0,
            squares: 0.0,
        }
    }
}

impl ArrivalEstimator {
    /// Records `seconds` with `in_flight` requests.
    pub(super) fn advance(&mut self, in_flight: u32, seconds: f64) {
        if in_flight == 0 {
            return;
        }
        let each = seconds / f64::from(in_flight);
        let level = super::level(in_flight);
        for (candidate, given) in self.given.iter_mut().enumerate().take(level) {
            *given += each * value(candidate);
        }
        for given in &mut self.given[level..] {
            *given += seconds;
        }
    }

    /// Records the arrival of a request that found `found` others.
    pub(super) fn record_arrival(&mut self, found: u32) -> CohortSlot {
        let found = libm::log(f64::from(found) + 1.0);
        let more = found - self.usual;
        self.usual += more / USUAL;
        if self.cohorts[self.open].arrived == COHORT {
            if self.cohorts[1 - self.open].arrived > 0 {
                return CohortSlot::default();
            }
            self.open = 1 - self.open;
        }
        let cohort = &mut self.cohorts[self.open];
        let place = cohort.arrived;
        cohort.found[place] = (more, false);
        cohort.services[place * WIDTH..][..WIDTH].copy_from_slice(&self.given);
        cohort.arrived += 1;
        CohortSlot { cohort: cohort.number, place: place as u32 }
    }

    /// Returns `true` if requests that find many take longer than others, which is not chance.
    pub(super) fn is_slowdown_significant(&self) -> bool {
        self.sum > SURE * libm::sqrt(self.squares)
    }

    /// Records the end of a request. Returns the log-likelihoods of the candidates from 1 to `top` after the
    /// last one of a cohort.
    pub(super) fn record_end(&mut self, seat: CohortSlot, succeeded: bool, top: usize) -> Option<Vec<f64>> {
        if let Some(cohort) = self.cohorts.iter_mut().find(|cohort| cohort.number == seat.cohort) {
            let place = seat.place as usize;
            cohort.ended += 1;
            cohort.found[place].1 = succeeded;
            for (service, given) in cohort.services[place * WIDTH..][..=top].iter_mut().zip(&self.given) {
                *service = libm::log((given - *service).max(LEAST));
            }
        }
        let mut gains = None;
        for cohort in &mut self.cohorts {
            if cohort.arrived < COHORT {
                continue;
            }
            cohort.waited += 1;
            // Some requests never end.
            if cohort.ended == COHORT || cohort.waited >= PATIENCE {
                gains = Some((1..=top).map(|candidate| cohort.likelihood(candidate)).collect());
                if let Some((correlation, degrees)) = cohort.correlation(top) {
                    let deviation = correlation * libm::sqrt(degrees / (1.0 - correlation * correlation));
                    self.sum = KEPT * self.sum + deviation;
                    self.squares = KEPT * KEPT * self.squares + 1.0;
                }
                self.count = self.count.wrapping_add(1).max(1);
                (cohort.number, cohort.arrived, cohort.ended, cohort.waited) = (self.count, 0, 0, 0);
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
        let (mut levels, mut services, mut both) = (0.0, 0.0, 0.0);
        for (place, (more, served)) in self.found.iter().enumerate().rev() {
            if !served {
                continue;
            }
            let service = self.services[place * WIDTH + candidate];
            if count > 0.0 {
                let apart = (service - sum / count) * libm::sqrt(count / (count + 1.0));
                levels += more * more;
                services += apart * apart + NOISE;
                both += more * apart;
            }
            count += 1.0;
            sum += service;
        }
        if count < FEWEST || levels < 1e-6 {
            return None;
        }
        Some(((both / libm::sqrt(levels * services)).clamp(-0.999, 0.999), count - 2.0))
    }
}

const WIDTH: usize = LEVELS + 1;

/// The standard deviations by which the sum must exceed 0, and the part of it that a cohort keeps.
const SURE: f64 = 4.0;
const KEPT: f64 = 0.95;

/// The requests of a cohort.
const COHORT: usize = 32;

/// The minimum number of served requests of a cohort with a result.
const FEWEST: f64 = 8.0;

/// The requests over which the mean of the numbers found is taken.
const USUAL: f64 = 64.0;

/// The requests that end after a cohort is full until it is judged without its missing ones.
const PATIENCE: usize = 16 * COHORT;

/// The shortest service, seconds.
const LEAST: f64 = 1e-9;

/// The variance of the logarithm of a service that carries no information: a tenth, squared.
const NOISE: f64 = 0.01;
