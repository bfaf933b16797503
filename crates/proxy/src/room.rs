//! The work that waits for a member of a group, over all cores.
//!
//! There are two kinds. In the *queue* is work that found every member at its configured limit: in order,
//! with a configured maximum number and time. In the *line* is work for which the strategy found no room:
//! [`WaitQueues`] decide for how long, and in which order.
//!
//! The end of a piece of work notifies one task of each kind, or of the queue alone if a member refused the
//! work for lack of room (`Trip::refused`). A notified task that finds a member notifies the next. So each
//! free place costs one useful wake-up and one in vain.
//!
//! While nothing waits, all this is one load of an atomic. Only when something waits does the urgency of new
//! work matter.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};
use std::task::Waker;

use plimsoll_brain::{Pace, Ticket, Time, Turn, Urgency, WaitQueues};
use tokio::sync::Notify;
use tokio::sync::futures::Notified;

use crate::core::Core;
use crate::inner::lock;

/// The waiting work.
#[derive(Debug)]
pub(crate) struct Room {
    /// The numbers of waiting tasks: in the queue below, in the line above, 32 bits each, so that one load
    /// shows both.
    waiting: AtomicU64,
    /// Notified when a member may have fallen below its limit.
    freed: Notify,
    line: Mutex<WaitQueues<Waker>>,
    /// The highest urgency in the line, as given by [`WaitQueues::first`]; [`NOBODY`] if the line is empty.
    first: AtomicU8,
}

/// A place in the queue.
pub(crate) struct Queued<'a>(&'a Room);

/// A place in the line.
pub(crate) struct Lined<'a> {
    room: &'a Room,
    core: &'a Core,
    ticket: Ticket,
    served: bool,
}

impl Default for Room {
    fn default() -> Self {
        Self {
            waiting: AtomicU64::new(0),
            freed: Notify::new(),
            line: Mutex::default(),
            first: AtomicU8::new(NOBODY),
        }
    }
}

impl Room {
    /// Returns `true` if nothing waits.
    #[inline]
    pub(crate) fn calm(&self) -> bool {
        self.waiting.load(Relaxed) == 0
    }

    /// Returns `true` if waiting work may be more urgent than new work.
    pub(crate) fn ranked(&self) -> bool {
        self.first.load(Relaxed) != NOBODY
    }

    /// Returns `true` if waiting work is more urgent than this.
    pub(crate) fn outranked(&self, urgency: Urgency) -> bool {
        self.first.load(Relaxed) < urgency.value()
    }

    /// Returns the length of the queue.
    pub(crate) fn queued(&self) -> u32 {
        self.waiting.load(Relaxed) as u32
    }

    /// Returns the number of waiting tasks.
    pub(crate) fn waiting(&self) -> u64 {
        let waiting = self.waiting.load(Relaxed);
        (waiting >> 32) + (waiting & u64::from(u32::MAX))
    }

    /// Wakes one task of each kind, as a place may be free.
    #[cold]
    pub(crate) fn ring(&self) {
        self.ring_queue();
        self.call();
    }

    /// Wakes one task of the queue only: a member may have fallen below its limit, but has no room. Tasks of
    /// the line are not notified, as each refusal would cause the next. (In a simulation of twenty balancers
    /// at 130 % of capacity, notifying them took 8.4 attempts per waiting request instead of 1.0, of at most
    /// 32. No more requests were served.)
    #[cold]
    pub(crate) fn ring_queue(&self) {
        if self.queued() > 0 {
            self.freed.notify_one();
        }
    }

    /// Wakes all tasks of the queue and one of the line, as everything may have changed.
    pub(crate) fn ring_all(&self) {
        self.freed.notify_waiters();
        self.call();
    }

    /// Returns a place in the queue, unless `most` are taken.
    pub(crate) fn queue(&self, most: usize) -> Option<Queued<'_>> {
        if (self.waiting.fetch_add(1, Relaxed) as u32) as usize >= most {
            self.waiting.fetch_sub(1, Relaxed);
            return None;
        }
        Some(Queued(self))
    }

    /// Returns a place in the line for work that first found no room at `since`; `None` if it should not wait
    /// ([`WaitQueues::enter`]). The waker is used when the task should try or leave.
    pub(crate) fn line<'a>(
        &'a self,
        core: &'a Core,
        waker: &Waker,
        urgency: Urgency,
        pace: Pace,
        since: Time,
    ) -> Option<Lined<'a>> {
        let ticket = {
            let mut line = lock(&self.line);
            let ticket = line.enter(urgency, waker.clone(), pace, since, core.now());
            self.look(&line);
            ticket?
        };
        self.waiting.fetch_add(LINED, Relaxed);
        self.dismiss(core.now());
        Some(Lined { room: self, core, ticket, served: false })
    }

    /// Wakes one task of the line, which should try.
    fn call(&self) {
        if self.waiting.load(Relaxed) >= LINED {
            // Not woken under the lock.
            let next = lock(&self.line).call().cloned();
            next.iter().for_each(Waker::wake_by_ref);
        }
    }

    /// Returns `true` if tasks of the line wait and none was served for a while. Then one may proceed
    /// regardless of limits.
    pub(crate) fn starved(&self, now: Time) -> bool {
        self.waiting.load(Relaxed) >= LINED && lock(&self.line).starved(now)
    }

    /// Wakes the task that may proceed so, if there is one.
    #[cold]
    pub(crate) fn call_starved(&self, now: Time) {
        if self.starved(now) {
            self.call();
        }
    }

    /// Wakes the tasks of the line that have waited long enough, so that they leave.
    fn dismiss(&self, now: Time) {
        loop {
            let gone = {
                let mut line = lock(&self.line);
                let gone = line.dismiss(now);
                self.look(&line);
                gone
            };
            let Some(gone) = gone else { return };
            gone.wake();
        }
    }

    /// Updates the highest urgency after a change of the line.
    fn look(&self, line: &WaitQueues<Waker>) {
        self.first.store(line.first().map_or(NOBODY, Urgency::value), Relaxed);
    }
}

impl<'a> Queued<'a> {
    /// Completes when a member may have fallen below its limit.
    pub(crate) fn freed(&self) -> Notified<'a> {
        self.0.freed.notified()
    }
}

impl Drop for Queued<'_> {
    fn drop(&mut self) {
        // A task that leaves without a member passes on its notification, if it had one.
        if self.0.waiting.fetch_sub(1, Relaxed) as u32 > 1 {
            self.0.freed.notify_one();
        }
    }
}

impl Lined<'_> {
    /// Returns the end of the wait.
    pub(crate) fn until(&self) -> Time {
        self.ticket.until
    }

    /// Returns `true` if there is no other task in the line.
    pub(crate) fn alone(&self) -> bool {
        self.room.waiting.load(Relaxed) >> 32 == 1
    }

    /// Returns the action of a woken task.
    pub(crate) fn turn(&self) -> Turn {
        lock(&self.room.line).turn(self.ticket)
    }

    /// Records that the task has found a member.
    pub(crate) fn serve(mut self) {
        self.served = true;
    }
}

impl Drop for Lined<'_> {
    fn drop(&mut self) {
        let now = self.core.now();
        let called = {
            let mut line = lock(&self.room.line);
            let called = line.leave(self.ticket, self.served, now);
            self.room.look(&line);
            called
        };
        self.room.waiting.fetch_sub(LINED, Relaxed);
        self.room.dismiss(now);
        // If one found room there may be more; an unused notification passes to another task.
        if called || self.served {
            self.room.call();
        }
    }
}

/// One task of the line, as counted in [`Room::waiting`].
const LINED: u64 = 1 << 32;

/// Less urgent than all others.
const NOBODY: u8 = u8::MAX;

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;
    use std::task::Wake;
    use std::time::Duration;

    use super::*;
    use crate::clock::held;
    use crate::fixture::run;

    #[derive(Default)]
    struct Bell(AtomicUsize);

    impl Wake for Bell {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Relaxed);
        }
    }

    fn bell() -> (Arc<Bell>, Waker) {
        let bell = Arc::new(Bell::default());
        (Arc::clone(&bell), Waker::from(bell))
    }

    fn rung(bells: &[(Arc<Bell>, Waker)]) -> Vec<usize> {
        bells.iter().map(|(bell, _)| bell.0.load(Relaxed)).collect()
    }

    const PACE: Pace =
        Pace { sojourn: Duration::from_millis(20), in_flight: 16, wait: Duration::from_secs(1) };

    #[test]
    fn each_place_that_comes_free_wakes_one() {
        run(|core| async move {
            let room = Room::default();
            assert!(room.calm());
            let bells: Vec<_> = (0..4).map(|_| bell()).collect();
            let enter = |place: usize| {
                room.line(&core, &bells[place].1, Urgency::default(), PACE, core.now()).expect("a place")
            };
            let (first, second, third, fourth) = (enter(0), enter(1), enter(2), enter(3));
            assert_eq!((room.waiting(), room.queued(), rung(&bells)), (4, 0, vec![0; 4]));
            room.ring();
            room.ring();
            assert_eq!(rung(&bells), [1, 1, 0, 0], "in the order in which they came");
            assert_eq!((first.turn(), first.turn(), third.turn()), (Turn::Look, Turn::Wait, Turn::Wait));
            // It leaves without having tried, so that the next is notified: the first again, which has tried.
            drop(second);
            assert_eq!(rung(&bells), [2, 1, 0, 0]);
            // If one found room there may be more.
            assert_eq!(first.turn(), Turn::Look);
            first.serve();
            assert_eq!(rung(&bells), [2, 1, 1, 0]);
            assert_eq!(third.turn(), Turn::Look);
            drop(third);
            assert_eq!(rung(&bells), [2, 1, 1, 0], "what was looked at in vain is nobody's");
            drop(fourth);
            assert!(room.calm());
            room.ring();
        });
    }

    #[test]
    fn the_most_urgent_is_woken_first_and_nobody_else_is_before_it() {
        run(|core| async move {
            let room = Room::default();
            let bells: Vec<_> = (0..3).map(|_| bell()).collect();
            let enter = |place: usize, urgency: u8| {
                let urgency = Urgency::new(urgency).expect("0 to 7");
                room.line(&core, &bells[place].1, urgency, PACE, core.now()).expect("a place")
            };
            let usual = Urgency::default();
            let first = enter(0, 3);
            assert!(!room.ranked() && !room.outranked(usual), "all are alike so far");
            let urgent = enter(1, 1);
            assert!(room.ranked() && room.outranked(usual));
            let last = enter(2, 5);
            room.ring();
            assert_eq!(rung(&bells), [0, 1, 0]);
            assert_eq!(urgent.turn(), Turn::Look);
            urgent.serve();
            assert_eq!((rung(&bells), room.outranked(usual)), (vec![1, 1, 0], false));
            assert!(room.ranked() && room.outranked(Urgency::new(4).expect("0 to 7")));
            first.serve();
            assert_eq!(rung(&bells), [1, 1, 1]);
            drop(last);
            assert!(room.calm() && !room.ranked());
        });
    }

    #[test]
    fn in_overload_the_last_to_come_is_woken_first_and_the_oldest_refused() {
        let _held = held::hold();
        run(|core| async move {
            let room = Room::default();
            let enter = |waker: &Waker| {
                room.line(&core, waker, Urgency::default(), PACE, core.now()).expect("a place in the queue")
            };
            // The queue is never empty for long enough, and none is served.
            let mut last = enter(Waker::noop());
            while !lock(&room.line).standing(Urgency::default()) {
                held::advance(Duration::from_millis(1));
                core.tick();
                let next = enter(Waker::noop());
                last = next;
            }
            drop(last);
            let bells: Vec<_> = (0..2).map(|_| bell()).collect();
            let (first, second) = (enter(&bells[0].1), enter(&bells[1].1));
            room.ring();
            assert_eq!((rung(&bells), second.turn(), first.turn()), (vec![0, 1], Turn::Look, Turn::Wait));
            assert!(!room.starved(core.now()));
            held::advance(Duration::from_millis(25));
            core.tick();
            drop(second);
            assert_eq!((rung(&bells), first.turn()), (vec![1, 1], Turn::Go), "no time to wait longer");
            drop(first);
            assert!(room.calm());
        });
    }

    #[test]
    fn where_none_is_served_one_is_woken_to_insist() {
        let _held = held::hold();
        run(|core| async move {
            let room = Room::default();
            let bells: Vec<_> = (0..2).map(|_| bell()).collect();
            let waiting: Vec<_> = bells
                .iter()
                .map(|bell| room.line(&core, &bell.1, Urgency::default(), PACE, core.now()).expect("a place"))
                .collect();
            held::advance(Duration::from_millis(99));
            core.tick();
            room.call_starved(core.now());
            assert_eq!(rung(&bells), [0, 0]);
            held::advance(Duration::from_millis(1));
            core.tick();
            room.call_starved(core.now());
            assert_eq!((rung(&bells), room.starved(core.now())), (vec![1, 0], true));
            let mut waiting = waiting.into_iter();
            waiting.next().expect("the first").serve();
            assert!(!room.starved(core.now()), "the next one has to wait as long");
        });
    }
}
