//! What a member knows of itself from the requests that pass through it: how many it works on, how many it
//! can work on at once before they slow one another down, how much work a request is, and whether there is
//! room for one more.
//!
//! A value in the response path: [`Meter::begin`] when a request comes, [`Meter::end`] when its answer goes.
//! With each answer goes a [`Reading`]; a balancer needs nothing else from a member. No threshold is set by
//! hand: the number of requests that fit is learned from how completions slow down (see `knee`), and all time
//! constants are multiples of the time that a request takes here.
//!
//! A *slot* is room for one request, promised to whoever gets the answer it stands on, for as long as a request
//! takes. It is promised to one balancer only, so that the balancers of a fleet do not all send their next
//! request to the same member (the idle server's token of Join-Idle-Queue, Lu et al. 2011, given for every place
//! below the knee and not only for the last).

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::time::Duration;

use serde::{Deserialize, Serialize};

use crate::Time;
use knee::{Knee, Seat};

mod host;
mod knee;

pub use host::{Host, Jobs};

/// What a member says of itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Reading {
    /// Requests it works on.
    pub in_flight: u32,
    /// Requests it can work on at once before they slow one another down; at least 1.
    pub knee: f32,
    /// `true` while the knee is a lower bound only, and no limit: no evidence says that the member is slowed down by the
    /// requests that it works on.
    pub open: bool,
    /// Work of a request: how long it takes alone, seconds. 0 before the first success.
    pub work: f32,
    /// Mean of the requests in flight over about the last 50 sojourns.
    pub mean_in_flight: f32,
    /// How long a request takes now, from its coming to its answer, seconds. 0 before the first success.
    pub sojourn: f32,
    /// Is a slot promised with it?
    pub slot: bool,
}

/// The meter of one member. What it keeps is bounded, whatever comes.
#[derive(Clone, Debug)]
pub struct Meter {
    /// One for each request in flight, and free ones.
    entries: Vec<Entry>,
    free: Vec<u32>,
    in_flight: u32,
    knee: Knee,
    /// Up to when all of this holds.
    at: Time,
    mean_in_flight: f64,
    /// Seconds; 0 before the first success.
    sojourn: f64,
    /// Seconds of service given and successes, both over about the last [`WORK_MEMORY`] successes.
    served: f64,
    successes: f64,
    /// When each slot expires that is promised and not used, the oldest first.
    slots: VecDeque<Time>,
}

/// One request between [`Meter::begin`] and [`Meter::end`].
#[derive(Debug, PartialEq, Eq)]
pub struct Job(u32);

#[derive(Clone, Debug)]
struct Entry {
    begun: Time,
    seat: Seat,
}

impl Meter {
    /// The meter of a member that has just come up: it is believed to take 2 requests at once until it has shown more.
    pub fn new(now: Time) -> Self {
        Self {
            entries: Vec::new(),
            free: Vec::new(),
            in_flight: 0,
            knee: Knee::default(),
            at: now,
            mean_in_flight: 0.0,
            sojourn: 0.0,
            served: 0.0,
            successes: 0.0,
            slots: VecDeque::new(),
        }
    }

    /// A request has come. Whether it spends a slot it does not say: it is taken to spend the oldest, which makes no
    /// difference that could be measured.
    pub fn begin(&mut self, now: Time) -> Job {
        self.slots.pop_front();
        self.came(now)
    }

    /// A request has come, with whatever slot.
    fn came(&mut self, now: Time) -> Job {
        self.advance(now);
        let job = match self.free.pop() {
            Some(job) => job,
            None => {
                self.entries.push(Entry { begun: self.at, seat: Seat::default() });
                self.entries.len() as u32 - 1
            }
        };
        self.entries[job as usize] = Entry { begun: self.at, seat: self.knee.came(job, self.in_flight) };
        self.in_flight += 1;
        Job(job)
    }

    /// A request has been answered, well or not; what the answer is to say. An answer that says of a failure
    /// promises no slot: room at a member that fails is no room.
    pub fn end(&mut self, job: Job, succeeded: bool, now: Time) -> Reading {
        self.left(job, succeeded, now);
        let slot = succeeded && self.has_room();
        if slot {
            self.promise();
        }
        Reading { slot, ..self.reading() }
    }

    /// A request has been answered, and nothing is promised yet.
    fn left(&mut self, job: Job, succeeded: bool, now: Time) {
        self.advance(now);
        let entry = self.entries[job.0 as usize].clone();
        self.knee.left(job.0, entry.seat, succeeded, self.in_flight, self.work());
        self.free.push(job.0);
        self.in_flight -= 1;
        if succeeded {
            let took = self.at.since(entry.begun).as_secs_f64();
            self.sojourn += (took - self.sojourn) * if self.sojourn > 0.0 { 0.01 } else { 1.0 };
            let kept = 1.0 - 1.0 / WORK_MEMORY;
            self.served *= kept;
            self.successes = self.successes * kept + 1.0;
        }
    }

    /// What the member would say now, without a promise.
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

    /// Is one more request better refused than served? Balancers stop sending at the knee and twice its square root by what they know;
    /// where many of them see room for one at the same moment, only the member can stop them. It leaves them some
    /// room, so that it need not as long as they know enough.
    pub fn full(&self) -> bool {
        f64::from(self.in_flight) >= self.knee.most()
    }

    /// When a slot that was promised last expires unless it is used: a good moment to [`offer`](Self::offer) it to
    /// somebody else.
    pub fn poll_timeout(&self) -> Option<Time> {
        self.slots.back().copied()
    }

    /// A reading with a slot for a balancer that did not ask, if there is one: for members that can send more than
    /// answers.
    pub fn offer(&mut self, now: Time) -> Option<Reading> {
        self.advance(now);
        self.has_room().then(|| {
            self.promise();
            Reading { slot: true, ..self.reading() }
        })
    }

    /// Is a slot free?
    fn has_room(&mut self) -> bool {
        while self.slots.front().is_some_and(|until| *until <= self.at) {
            self.slots.pop_front();
        }
        let taken = self.in_flight as usize + self.slots.len();
        taken < libm::round(self.knee.estimate()) as usize && self.slots.len() < SLOTS
    }

    /// Promises a slot; until when.
    fn promise(&mut self) -> Time {
        let until = self.at + Duration::try_from_secs_f64(self.sojourn).unwrap_or_default();
        self.slots.push_back(until);
        until
    }

    /// Promises one until then, which others tell: of slots that last differently long the first to expire is first.
    fn promise_until(&mut self, until: Time) {
        let place = self.slots.partition_point(|other| *other <= until);
        self.slots.insert(place, until);
    }

    /// The slot that expires then was used, or will not be.
    fn withdraw(&mut self, until: Time) {
        let place = self.slots.partition_point(|other| *other < until);
        if self.slots.get(place) == Some(&until) {
            self.slots.remove(place);
        }
    }

    /// Seconds of service that a request needs.
    fn work(&self) -> f64 {
        if self.successes > 0.0 { self.served / self.successes } else { 0.0 }
    }

    fn advance(&mut self, now: Time) {
        let step = now.since(self.at).as_secs_f64();
        if step <= 0.0 {
            return;
        }
        self.at = now;
        let in_flight = f64::from(self.in_flight);
        let horizon = (50.0 * self.sojourn).max(0.1);
        self.mean_in_flight += (in_flight - self.mean_in_flight) * -libm::expm1(-step / horizon);
        self.knee.passed(self.in_flight, step, self.sojourn, self.work(), self.mean_in_flight);
        if self.in_flight == 0 {
            return;
        }
        let knee = self.knee.estimate();
        self.served += step * in_flight.min(knee);
    }
}

/// Requests in flight at which a balancer sends no more to a member with this knee: the knee and twice its square
/// root (square-root staffing, Halfin and Whitt 1981, from the other side).
pub(crate) fn limit(knee: f64) -> u32 {
    // Rounded up without `ceil`, which a processor may have no instruction for.
    let most = knee + 2.0 * libm::sqrt(knee);
    let whole = most as u32;
    whole.saturating_add(u32::from(f64::from(whole) < most))
}

/// Successes over which the work of a request is averaged.
const WORK_MEMORY: f64 = 200.0;

/// Most slots promised at once.
const SLOTS: usize = 4096;
