//! The meter with which a member measures itself by the requests that pass through it.
//!
//! It measures the requests in flight and the work of a request. It learns the number of requests that the
//! member can work on at once before they slow one another down (the knee), and whether there is room for one
//! more.
//!
//! It is a value in the response path: [`Meter::begin`] at a request, [`Meter::end`] at its answer. Each
//! answer carries a [`Reading`]; a balancer needs nothing else from a member. No threshold is set by hand.
//! The knee is learnt from how completions slow down (see `knee`), and all time constants are multiples of
//! the time that a request takes here.
//!
//! A *slot* is room for one request, promised to the receiver of the answer that carries it, for as long as a
//! request takes. It is promised to one balancer only, so that the balancers of a fleet do not all send their
//! next request to the same member. (It is the idle server's token of Join-Idle-Queue, Lu et al. 2011, given
//! for every place below the knee and not only for the last.)

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::time::Duration;

use serde::{Deserialize, Serialize};

use crate::Time;
use knee::{CohortSlot, KneeEstimator};

mod host_meter;
mod knee;

pub use host_meter::{HostedRequest, SharedHostMeter};

/// A member's report of itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Reading {
    /// The requests in flight at the member.
    pub in_flight: u32,
    /// The requests that it can work on at once before they slow one another down; at least 1.
    pub knee: f32,
    /// `true` while the knee is only a lower bound and no limit: no evidence shows that the requests in
    /// flight slow the member down.
    pub open: bool,
    /// The work of a request: the time that it takes alone, seconds. 0 before the first success.
    pub work: f32,
    /// The mean of the requests in flight over about the last 50 sojourns.
    pub mean_in_flight: f32,
    /// The present time of a request from its arrival to its answer, seconds. 0 before the first success.
    pub sojourn: f32,
    /// Whether the report promises a slot.
    pub slot: bool,
}

/// The meter of one member. Its state is bounded, whatever the traffic.
#[derive(Clone, Debug)]
pub struct Meter {
    /// An entry for each request in flight, and free ones.
    entries: Vec<MeterEntry>,
    free: Vec<u32>,
    in_flight: u32,
    knee: KneeEstimator,
    /// The time of the last update.
    updated_at: Time,
    mean_in_flight: f64,
    /// Seconds; 0 before the first success.
    sojourn: f64,
    /// The seconds of service and the successes, both over about the last [`WORK_MEMORY`] successes.
    served: f64,
    successes: f64,
    /// The expiry of each promised and unused slot, the oldest first.
    offered_slots: VecDeque<Time>,
}

/// A request between [`Meter::begin`] and [`Meter::end`].
#[derive(Debug, PartialEq, Eq)]
pub struct MeteredRequest(u32);

#[derive(Clone, Debug)]
struct MeterEntry {
    begun_at: Time,
    cohort_slot: CohortSlot,
}

impl Meter {
    /// Returns the meter of a member that has just come up. Its knee is open, with 2 as its lower bound,
    /// until there is evidence.
    pub fn new(now: Time) -> Self {
        Self {
            entries: Vec::new(),
            free: Vec::new(),
            in_flight: 0,
            knee: KneeEstimator::default(),
            updated_at: now,
            mean_in_flight: 0.0,
            sojourn: 0.0,
            served: 0.0,
            successes: 0.0,
            offered_slots: VecDeque::new(),
        }
    }

    /// Records the arrival of a request. The request does not state which slot it uses. It is assumed to use
    /// the oldest, which makes no measurable difference.
    pub fn begin(&mut self, now: Time) -> MeteredRequest {
        self.offered_slots.pop_front();
        self.record_arrival(now)
    }

    /// Records the arrival of a request, without regard to slots.
    fn record_arrival(&mut self, now: Time) -> MeteredRequest {
        self.advance(now);
        let index = match self.free.pop() {
            Some(index) => index,
            None => {
                self.entries
                    .push(MeterEntry { begun_at: self.updated_at, cohort_slot: CohortSlot::default() });
                self.entries.len() as u32 - 1
            }
        };
        self.entries[index as usize] = MeterEntry {
            begun_at: self.updated_at,
            cohort_slot: self.knee.record_arrival(index, self.in_flight),
        };
        self.in_flight += 1;
        MeteredRequest(index)
    }

    /// Records the end of a request and returns the report for its answer. The answer to a failed request
    /// promises no slot: room at a failing member is useless.
    pub fn end(&mut self, request: MeteredRequest, succeeded: bool, now: Time) -> Reading {
        self.record_end(request, succeeded, now);
        let slot = succeeded && self.has_room();
        if slot {
            self.record_offer();
        }
        Reading { slot, ..self.reading() }
    }

    /// Records the end of a request, without a promise.
    fn record_end(&mut self, request: MeteredRequest, succeeded: bool, now: Time) {
        self.advance(now);
        let entry = self.entries[request.0 as usize].clone();
        self.knee.record_end(request.0, entry.cohort_slot, succeeded, self.in_flight, self.work());
        self.free.push(request.0);
        self.in_flight -= 1;
        if succeeded {
            let seconds = self.updated_at.since(entry.begun_at).as_secs_f64();
            self.sojourn += (seconds - self.sojourn) * if self.sojourn > 0.0 { 0.01 } else { 1.0 };
            let decay = 1.0 - 1.0 / WORK_MEMORY;
            self.served *= decay;
            self.successes = self.successes * decay + 1.0;
        }
    }

    /// Returns the present report, without a promise.
    pub fn reading(&self) -> Reading {
        Reading {
            in_flight: self.in_flight,
            knee: self.knee.estimate() as f32,
            open: self.knee.is_open(),
            work: self.work() as f32,
            mean_in_flight: self.mean_in_flight as f32,
            sojourn: self.sojourn as f32,
            slot: false,
        }
    }

    /// Returns `true` if the member is to reject one more request. Balancers stop at the knee and twice its
    /// square root by their own estimate. If many of them see room for one at the same moment, only the
    /// member can stop them. Its own limit is higher, so that it need not as long as they know enough.
    pub fn is_full(&self) -> bool {
        f64::from(self.in_flight) >= self.knee.rejection_limit()
    }

    /// Returns the expiry of the last promised slot if it stays unused: a good moment to
    /// [`offer_slot`](Self::offer_slot) it to another balancer.
    pub fn poll_timeout(&self) -> Option<Time> {
        self.offered_slots.back().copied()
    }

    /// Returns a report with a slot for a balancer that did not ask, if there is one: for members that can
    /// send more than answers.
    pub fn offer_slot(&mut self, now: Time) -> Option<Reading> {
        self.advance(now);
        self.has_room().then(|| {
            self.record_offer();
            Reading { slot: true, ..self.reading() }
        })
    }

    /// Returns `true` if a slot is free.
    fn has_room(&mut self) -> bool {
        while self.offered_slots.front().is_some_and(|until| *until <= self.updated_at) {
            self.offered_slots.pop_front();
        }
        let used = self.in_flight as usize + self.offered_slots.len();
        used < libm::round(self.knee.estimate()) as usize && self.offered_slots.len() < MAX_OFFERED_SLOTS
    }

    /// Promises a slot and returns its expiry.
    fn record_offer(&mut self) -> Time {
        let until = self.updated_at + Duration::try_from_secs_f64(self.sojourn).unwrap_or_default();
        self.offered_slots.push_back(until);
        until
    }

    /// Promises a slot with the given expiry; slots stay ordered by their expiry.
    fn record_offer_until(&mut self, until: Time) {
        let index = self.offered_slots.partition_point(|other| *other <= until);
        self.offered_slots.insert(index, until);
    }

    /// Removes the slot with this expiry, which was used or will not be.
    fn withdraw(&mut self, until: Time) {
        let index = self.offered_slots.partition_point(|other| *other < until);
        if self.offered_slots.get(index) == Some(&until) {
            self.offered_slots.remove(index);
        }
    }

    /// Returns the seconds of service that a request needs.
    fn work(&self) -> f64 {
        if self.successes > 0.0 { self.served / self.successes } else { 0.0 }
    }

    fn advance(&mut self, now: Time) {
        let step = now.since(self.updated_at).as_secs_f64();
        if step <= 0.0 {
            return;
        }
        self.updated_at = now;
        let in_flight = f64::from(self.in_flight);
        let horizon = (50.0 * self.sojourn).max(0.1);
        self.mean_in_flight += (in_flight - self.mean_in_flight) * -libm::expm1(-step / horizon);
        self.knee.advance(self.in_flight, step, self.sojourn, self.work(), self.mean_in_flight);
        if self.in_flight == 0 {
            return;
        }
        let knee = self.knee.estimate();
        self.served += step * in_flight.min(knee);
    }
}

/// Returns the requests in flight at which a balancer sends no more to a member with this knee: the knee and
/// twice its square root (square-root staffing, Halfin and Whitt 1981, from the other side).
pub(crate) fn limit_at_knee(knee: f64) -> u32 {
    // Rounded up without `ceil`, which a processor may have no instruction for.
    let limit = knee + 2.0 * libm::sqrt(knee);
    let truncated = limit as u32;
    truncated.saturating_add(u32::from(f64::from(truncated) < limit))
}

/// The successes over which the work of a request is averaged.
const WORK_MEMORY: f64 = 200.0;

/// The maximum number of promised slots.
const MAX_OFFERED_SLOTS: usize = 4096;
