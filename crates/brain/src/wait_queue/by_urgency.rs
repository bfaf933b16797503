//! Wait queues of requests with different urgencies.
//!
//! Each urgency has a queue of its own, and a free place goes to the most urgent request. So a request waits
//! as if less urgent ones did not exist, and the order is its queue's own state. If there is more less urgent
//! work than can be served it is rejected, while the little urgent work waits its turn. This is load shedding
//! by priority (Zhou and others, Overload control for scaling WeChat microservices, 2018) without a
//! threshold: the free places are the threshold.
//!
//! More urgent requests take places from the others. So a queue holds no more requests than the remaining
//! places that come free within its wait, and urgent newcomers push out the oldest of the least urgent. A
//! newcomer must not take a place that is to come free for a more urgent waiting request
//! ([`WaitQueues::has_more_urgent`]).
//!
//! If all are equally urgent this is one queue and nothing else.

use super::{DrainRate, WaitQueue, WaitTicket, WaitVerdict};
use crate::Time;
use alloc::collections::BTreeMap;

/// The urgency of a request: from 0, the most urgent, to 7 (RFC 9218 section 4.1). The default is 3.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Urgency(u8);

impl Urgency {
    /// The number of urgencies.
    pub const COUNT: usize = 8;

    /// Returns an urgency; `None` above 7.
    pub fn new(urgency: u8) -> Option<Self> {
        (usize::from(urgency) < Self::COUNT).then_some(Self(urgency))
    }

    /// Returns the number, 0 to 7.
    pub fn value(self) -> u8 {
        self.0
    }
}

impl Default for Urgency {
    fn default() -> Self {
        Self(3)
    }
}

/// The waiting requests, by urgency. They belong to one group. Their bound is the number of places that come
/// free while a request may wait.
#[derive(Clone, Debug)]
pub struct WaitQueues<T> {
    /// The queues of the urgencies that ever found no room, the most urgent first.
    queues: BTreeMap<Urgency, WaitQueue<T>>,
}

impl<T> Default for WaitQueues<T> {
    fn default() -> Self {
        Self { queues: BTreeMap::new() }
    }
}

impl<T> WaitQueues<T> {
    /// Adds a request that came at `since` and found no room; the `wait` of the drain rate may be its own.
    /// Returns `None` if it is to be rejected at once. Call [`expire_next`](Self::expire_next) afterwards for
    /// the requests that it pushed out.
    pub fn enter(
        &mut self,
        urgency: Urgency,
        waker: T,
        drain_rate: DrainRate,
        since: Time,
        now: Time,
    ) -> Option<WaitTicket> {
        self.queues.entry(urgency).or_default();
        // The rate of free places is the same for all.
        self.queues.values_mut().for_each(|queue| queue.set_drain_rate(drain_rate));
        self.update_ahead();
        let ticket = self.queues.get_mut(&urgency)?.enter(waker, drain_rate, since, now)?;
        Some(WaitTicket { urgency, ..ticket })
    }

    /// Returns the request to wake because room may have come free. None is woken twice before it has looked.
    pub fn call(&mut self) -> Option<&T> {
        self.queues.values_mut().find_map(WaitQueue::wake_next)
    }

    /// Returns the next step of a request that was woken. Once it has looked in vain, it waits on.
    pub fn turn(&mut self, ticket: WaitTicket) -> WaitVerdict {
        self.queues.get_mut(&ticket.urgency).map_or(WaitVerdict::GiveUp, |queue| queue.verdict(ticket))
    }

    /// Removes a request, with a member or without. Returns `true` if it was woken and has not looked: then
    /// another is to be woken.
    pub fn leave(&mut self, ticket: WaitTicket, served: bool, now: Time) -> bool {
        self.queues.get_mut(&ticket.urgency).is_some_and(|queue| queue.leave(ticket, served, now))
    }

    /// Removes and returns the next request whose wait is over, to be woken for that. Call it until there is
    /// none.
    pub fn expire_next(&mut self, now: Time) -> Option<T> {
        self.update_ahead();
        self.queues.values_mut().find_map(|queue| queue.expire_next(now))
    }

    /// Returns whether a more urgent request waits.
    pub fn has_more_urgent(&self, urgency: Urgency) -> bool {
        self.queues.range(..urgency).any(|(_, queue)| !queue.is_empty())
    }

    /// Returns the urgency of the most urgent waiting request; `None` if none waits, or if all requests that
    /// ever found no room had the default urgency.
    pub fn first(&self) -> Option<Urgency> {
        let has_several = self.queues.len() > 1 || !self.queues.contains_key(&Urgency::default());
        let first_waiting =
            |(urgency, queue): (&Urgency, &WaitQueue<T>)| (!queue.is_empty()).then_some(*urgency);
        if has_several { self.queues.iter().find_map(first_waiting) } else { None }
    }

    /// Returns the number of waiting requests.
    pub fn len(&self) -> usize {
        self.queues.values().map(WaitQueue::len).sum()
    }

    /// Returns whether none waits.
    pub fn is_empty(&self) -> bool {
        self.queues.values().all(WaitQueue::is_empty)
    }

    /// Returns whether the demand of this urgency exceeds the capacity.
    pub fn is_standing(&self, urgency: Urgency) -> bool {
        self.queues.get(&urgency).is_some_and(WaitQueue::is_standing)
    }

    /// Returns whether a request waits and none was served for [`TARGET_WAIT`](super::TARGET_WAIT), or for as
    /// long as a request takes. The known state of members may then be outdated: one request is to ignore the
    /// learnt limits ([`PickRequest::ignores_learnt_limits`](crate::PickRequest::ignores_learnt_limits)).
    pub fn is_starved(&self, now: Time) -> bool {
        let mut waiting_queues = self.queues.values().filter(|queue| !queue.is_empty()).peekable();
        waiting_queues.peek().is_some() && waiting_queues.all(|queue| queue.is_starved(now))
    }

    /// Sets in each queue the number of requests that go before all of it.
    fn update_ahead(&mut self) {
        let mut ahead = 0;
        for queue in self.queues.values_mut() {
            queue.ahead = ahead;
            ahead += queue.len();
        }
    }
}
