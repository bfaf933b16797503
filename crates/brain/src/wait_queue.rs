//! Wait queues for requests while every member has reached its concurrency limit: the maximum wait, and the
//! order.
//!
//! A request is rejected only if it has waited for as long as its client waits ([`DrainRate::wait`]), or if
//! the queue shows that it would have to. The time that a request takes does not set that bound: if members
//! answer in 20 µs, a millisecond is no long wait.
//!
//! The queue has two states (controlled delay, Nichols and Jacobson 2012, with adaptive last-in first-out,
//! Maurer, Fail at Scale, 2015).
//!
//! | state | order | a request is rejected | ends |
//! |---|---|---|---|
//! | passing | first come, first served | at once if `n >= N(wait)`, else after `wait` | see below |
//! | standing | last come, first served | if `n > N(target)`, the oldest, or after `target` | see below |
//!
//! The passing state ends when the queue was never empty for an interval in which some requests were rejected
//! or gave up. The standing state ends after [`CALM`] without a rejection.
//!
//! `n` requests wait, and `N(t) = in_flight t / sojourn` places come free within `t` (Little's law). `target`
//! is a fifth of [`TARGET_WAIT`], at most `wait`. The interval is [`INTERVAL`], or the time that four
//! requests take if that is more.
//!
//! A queue that is never empty is no overload by itself: clients that ask again as soon as they are answered
//! cause one, too. Only if some requests are rejected all the time, it is better to serve those whose clients
//! still wait.
//!
//! A newcomer that finds room does not check whether others wait: one of them was woken for every free place.
//! If none was served for [`TARGET_WAIT`], the known state of members may be outdated. One request then
//! ignores the learnt limits ([`WaitQueues::is_starved`]), but not those by members' load reports.

use alloc::collections::VecDeque;
use core::time::Duration;

use crate::Time;

mod by_urgency;

pub use by_urgency::{Urgency, WaitQueues};

/// The rate at which places come free, and the time that clients wait.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct DrainRate {
    /// The mean time that a request takes with the members; [`TARGET_WAIT`] if it is unknown.
    pub sojourn: Duration,
    /// The requests in flight with them, from here, that await an answer.
    pub in_flight: u32,
    /// The maximum wait of a request that can still be answered in time.
    pub wait: Duration,
}

impl DrainRate {
    /// Returns the drain rate for requests that take `sojourn` with the members, zero if unknown, and a
    /// latency `objective`.
    ///
    /// | objective | `wait` |
    /// |---|---|
    /// | `Some(objective)` | `objective - sojourn` |
    /// | `None` | `max(1 s, 4 sojourn) - 2 sojourn` |
    pub fn new(sojourn: Duration, in_flight: u32, objective: Option<Duration>) -> Self {
        let twice_sojourn = sojourn.saturating_mul(2);
        let default_wait =
            || crate::DEFAULT_MAX_WAIT.max(twice_sojourn.saturating_mul(2)).saturating_sub(twice_sojourn);
        let wait = objective.map_or_else(default_wait, |objective| objective.saturating_sub(sojourn));
        Self { sojourn: if sojourn.is_zero() { TARGET_WAIT } else { sojourn }, in_flight, wait }
    }
}

/// The waiting requests of one urgency, each with its wake-up (`T`: a waker, a number). A queue belongs to
/// one group. Its bound is the number of places that come free while a request may wait.
#[derive(Clone, Debug)]
pub(crate) struct WaitQueue<T> {
    /// The requests in the order of their arrival.
    waiters: VecDeque<QueuedRequest<T>>,
    last_ticket: u64,
    drain_rate: DrainRate,
    is_standing: bool,
    /// The number of more urgent requests that wait.
    ahead: usize,
    /// The time at which the last served one left.
    last_served: Time,
    /// The time since which the queue has not been empty; while standing, the time of the last rejection.
    since: Time,
    /// The time of the last rejection, or of a client that gave up.
    last_rejected: Option<Time>,
}

/// A place in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct WaitTicket {
    number: u64,
    /// The end of the wait, unless it ends earlier.
    pub until: Time,
    /// The queue among [`WaitQueues`] that it belongs to.
    urgency: Urgency,
}

/// The next step of a waiting request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitVerdict {
    /// Wait on.
    Wait,
    /// Look for a member: room may have come free.
    TryAgain,
    /// Leave: the wait is over.
    GiveUp,
}

#[derive(Clone, Debug)]
struct QueuedRequest<T> {
    ticket: WaitTicket,
    arrived_at: Time,
    /// Whether it was woken to look, and has not yet.
    is_woken: bool,
    waker: T,
}

impl<T> Default for WaitQueue<T> {
    fn default() -> Self {
        Self {
            waiters: VecDeque::new(),
            last_ticket: 0,
            drain_rate: DrainRate::default(),
            is_standing: false,
            ahead: 0,
            last_served: Time(0),
            since: Time(0),
            last_rejected: None,
        }
    }
}

impl<T> WaitQueue<T> {
    /// Adds a request that came at `since` and found no room. Returns `None` if it is to be rejected at once.
    /// Call [`expire_next`](Self::expire_next) afterwards for the requests that it pushed out.
    pub(crate) fn enter(
        &mut self,
        waker: T,
        drain_rate: DrainRate,
        since: Time,
        now: Time,
    ) -> Option<WaitTicket> {
        self.drain_rate = drain_rate;
        if self.waiters.is_empty() {
            self.last_served = self.last_served.max(now);
            if !self.is_standing {
                self.since = now;
            }
        }
        self.judge(now);
        let until = since + drain_rate.wait;
        let room = self.capacity(drain_rate.wait);
        // Last come, first served: it takes the place of the oldest, if there is one to take.
        let is_full = room == 0 || (!self.is_standing && self.waiters.len() >= room);
        if until <= now || is_full {
            self.record_rejection(now);
            return None;
        }
        self.last_ticket += 1;
        let ticket = WaitTicket { number: self.last_ticket, until, urgency: Urgency::default() };
        self.waiters.push_back(QueuedRequest { ticket, arrived_at: since, is_woken: false, waker });
        Some(ticket)
    }

    /// Returns the request to wake because room may have come free. None is woken twice before it has looked.
    pub(crate) fn wake_next(&mut self) -> Option<&T> {
        let is_waiting = |waiter: &&mut QueuedRequest<T>| !waiter.is_woken;
        let waiter = match self.is_standing {
            true => self.waiters.iter_mut().rev().find(is_waiting),
            false => self.waiters.iter_mut().find(is_waiting),
        }?;
        waiter.is_woken = true;
        Some(&waiter.waker)
    }

    /// Returns the next step of a request that was woken. Once it has looked in vain, it waits on.
    pub(crate) fn verdict(&mut self, ticket: WaitTicket) -> WaitVerdict {
        match self.position(ticket) {
            Some(position) if core::mem::take(&mut self.waiters[position].is_woken) => WaitVerdict::TryAgain,
            Some(_) => WaitVerdict::Wait,
            None => WaitVerdict::GiveUp,
        }
    }

    /// Removes a request, with a member or without. Returns `true` if it was woken and has not looked: then
    /// another is to be woken.
    pub(crate) fn leave(&mut self, ticket: WaitTicket, served: bool, now: Time) -> bool {
        let Some(position) = self.position(ticket) else { return false };
        let was_woken = self.waiters.remove(position).is_some_and(|waiter| waiter.is_woken);
        if served {
            self.last_served = now;
        } else if now >= ticket.until {
            self.record_rejection(now);
        } else {
            self.last_rejected = Some(now);
        }
        self.judge(now);
        was_woken
    }

    /// Removes and returns the next request whose wait is over, to be woken for that. Call it until there is
    /// none.
    pub(crate) fn expire_next(&mut self, now: Time) -> Option<T> {
        let first = self.waiters.front()?;
        let max_wait = if self.is_standing { self.target() } else { self.drain_rate.wait };
        let is_late = now >= first.ticket.until.min(first.arrived_at + max_wait);
        if !is_late && self.waiters.len() <= self.capacity(max_wait) {
            return None;
        }
        self.record_rejection(now);
        self.waiters.pop_front().map(|waiter| waiter.waker)
    }

    /// Returns the number of waiting requests.
    pub(crate) fn len(&self) -> usize {
        self.waiters.len()
    }

    /// Returns whether none waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.waiters.is_empty()
    }

    /// Returns whether the demand exceeds the capacity, so that the last to come goes first.
    pub(crate) fn is_standing(&self) -> bool {
        self.is_standing
    }

    /// Returns whether a request waits and none was served for the longest time that this should take.
    pub(crate) fn is_starved(&self, now: Time) -> bool {
        !self.waiters.is_empty()
            && now.since(self.last_served)
                >= TARGET_WAIT.max(self.drain_rate.sojourn).min(crate::DEFAULT_MAX_WAIT)
    }

    /// Sets the rate at which places come free.
    pub(crate) fn set_drain_rate(&mut self, drain_rate: DrainRate) {
        self.drain_rate = drain_rate;
    }

    /// Returns the number of places that come free within this time for these requests, at least one if none
    /// goes before them. An empty flight from here is chance, and predicts little.
    fn capacity(&self, wait: Duration) -> usize {
        let sojourns = wait.as_secs_f64() / self.drain_rate.sojourn.as_secs_f64().max(1e-9);
        // Rounded up, but not for the error of a division.
        let capacity = libm::ceil(f64::from(self.drain_rate.in_flight.max(1)) * sojourns - 1e-6);
        let capacity = (capacity as usize).max(1);
        capacity.saturating_sub(self.ahead)
    }

    fn target(&self) -> Duration {
        (TARGET_WAIT / 5).min(self.drain_rate.wait)
    }

    fn interval(&self) -> Duration {
        INTERVAL.max(self.drain_rate.sojourn * 4)
    }

    /// Changes the state, if it is time.
    fn judge(&mut self, now: Time) {
        if !self.is_standing && self.waiters.is_empty() {
            self.since = now;
        }
        let interval = if self.is_standing { CALM_INTERVAL } else { self.interval() };
        let may_switch =
            self.is_standing || self.last_rejected.is_some_and(|last_lost| now.since(last_lost) <= interval);
        if may_switch && now.since(self.since) >= interval {
            self.is_standing = !self.is_standing;
            self.since = now;
        }
    }

    fn record_rejection(&mut self, now: Time) {
        self.last_rejected = Some(now);
        if self.is_standing {
            self.since = now;
        }
    }

    fn position(&self, ticket: WaitTicket) -> Option<usize> {
        self.waiters.binary_search_by_key(&ticket.number, |waiter| waiter.ticket.number).ok()
    }
}

/// A wait that hardly any client notices, and for which every server stands still now and then.
pub const TARGET_WAIT: Duration = Duration::from_millis(100);

/// The time in which a burst is over: a queue that was never empty for that time stands.
const INTERVAL: Duration = Duration::from_millis(500);

/// The time without a rejection after which a queue stands no more.
const CALM_INTERVAL: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests;
