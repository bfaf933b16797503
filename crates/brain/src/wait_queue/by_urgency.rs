//! Wait queues of requests that are not equally urgent.
//!
//! Each urgency has a queue of its own, and a place that comes free goes to the most urgent request. So a request waits as if less urgent
//! ones were not there, and whether the first or the last to come goes first is its queue's own state. Where less urgent work is more than
//! can be served it is refused, while the urgent, of which there is little, waits its turn. This is load shedding by
//! priority (Zhou and others, Overload control for scaling WeChat microservices, 2018) without a threshold: the places that come free
//! are the threshold.
//!
//! Those that go first take places that others would have had. So a queue holds no more requests than there are places left that come free
//! within its wait, and urgent newcomers push out the oldest of the least urgent. A newcomer that is outranked by one
//! that waits must not take the place that is to come free for that one ([`WaitQueues::outranked`]).
//!
//! Where all are equally urgent this is one queue and nothing else.

use super::{Pace, Ticket, Turn, WaitQueue};
use crate::Time;
use alloc::collections::BTreeMap;

/// How urgent a request is: from 0, the most urgent, to 7 (RFC 9218 section 4.1). The default is 3.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Urgency(u8);

impl Urgency {
    /// How many there are.
    pub const COUNT: usize = 8;

    /// `None` above 7.
    pub fn new(urgency: u8) -> Option<Self> {
        (usize::from(urgency) < Self::COUNT).then_some(Self(urgency))
    }

    /// 0 to 7.
    pub fn value(self) -> u8 {
        self.0
    }
}

impl Default for Urgency {
    fn default() -> Self {
        Self(3)
    }
}

/// The requests that wait, by urgency. They belong to one group, and are bounded by how many places come free while a request may wait.
#[derive(Clone, Debug)]
pub struct WaitQueues<T> {
    /// The queues of those that ever found no room, the most urgent first.
    queues: BTreeMap<Urgency, WaitQueue<T>>,
}

impl<T> Default for WaitQueues<T> {
    fn default() -> Self {
        Self { queues: BTreeMap::new() }
    }
}

impl<T> WaitQueues<T> {
    /// Adds a request that came at `since` and found no room; the `wait` of the pace may be its own. Returns `None` if it is to be refused at
    /// once. Ask [`dismiss`](Self::dismiss) afterwards which ones it pushed out.
    pub fn enter(&mut self, urgency: Urgency, who: T, pace: Pace, since: Time, now: Time) -> Option<Ticket> {
        self.queues.entry(urgency).or_default();
        // How quickly places come free is the same for all.
        self.queues.values_mut().for_each(|queue| queue.set_pace(pace));
        self.compare();
        let ticket = self.queues.get_mut(&urgency)?.enter(who, pace, since, now)?;
        Some(Ticket { urgency, ..ticket })
    }

    /// Returns the request to wake because room may have come free. None is woken twice before it has looked.
    pub fn call(&mut self) -> Option<&T> {
        self.queues.values_mut().find_map(WaitQueue::call)
    }

    /// Returns the next step of a request that was woken. Once it has looked in vain, it waits on.
    pub fn turn(&mut self, ticket: Ticket) -> Turn {
        self.queues.get_mut(&ticket.urgency).map_or(Turn::Go, |queue| queue.turn(ticket))
    }

    /// Removes a request, with a member or without. Returns true if it was woken and has not looked: then another is to be woken.
    pub fn leave(&mut self, ticket: Ticket, served: bool, now: Time) -> bool {
        self.queues.get_mut(&ticket.urgency).is_some_and(|queue| queue.leave(ticket, served, now))
    }

    /// Removes and returns the next request whose wait is over, to be woken for that. Call it until there is none.
    pub fn dismiss(&mut self, now: Time) -> Option<T> {
        self.compare();
        self.queues.values_mut().find_map(|queue| queue.dismiss(now))
    }

    /// Returns whether a more urgent request waits.
    pub fn outranked(&self, urgency: Urgency) -> bool {
        self.queues.range(..urgency).any(|(_, queue)| !queue.is_empty())
    }

    /// Returns the urgency of the most urgent request that waits. `None` if none does, and where none ever was more or less urgent than
    /// others.
    pub fn first(&self) -> Option<Urgency> {
        let told_apart = self.queues.len() > 1 || !self.queues.contains_key(&Urgency::default());
        let waits = |(urgency, queue): (&Urgency, &WaitQueue<T>)| (!queue.is_empty()).then_some(*urgency);
        if told_apart { self.queues.iter().find_map(waits) } else { None }
    }

    /// Returns how many wait.
    pub fn len(&self) -> usize {
        self.queues.values().map(WaitQueue::len).sum()
    }

    /// Returns whether none waits.
    pub fn is_empty(&self) -> bool {
        self.queues.values().all(WaitQueue::is_empty)
    }

    /// Returns whether more is asked for, of this urgency, than can be served.
    pub fn standing(&self, urgency: Urgency) -> bool {
        self.queues.get(&urgency).is_some_and(WaitQueue::is_standing)
    }

    /// Returns whether somebody waits and none was served for [`TARGET`](super::TARGET), or for as long as a request takes. What is known of
    /// members may be out of date then: one request is to go on without a look at limits ([`Ask::insist`](crate::Ask::insist)).
    pub fn starved(&self, now: Time) -> bool {
        let mut waits = self.queues.values().filter(|queue| !queue.is_empty()).peekable();
        waits.peek().is_some() && waits.all(|queue| queue.starved(now))
    }

    /// Tells each queue how many go before all of it.
    fn compare(&mut self) {
        let mut ahead = 0;
        for queue in self.queues.values_mut() {
            queue.ahead = ahead;
            ahead += queue.len();
        }
    }
}
