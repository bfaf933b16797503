//! Those that wait for a member of a group, over all cores.
//!
//! Two kinds wait. In the *queue* are those that found every member at its configured limit: in order, as many and as
//! long as the configuration says. In the *line* are those that the strategy found no room for: [`WaitQueues`] say for how
//! long and who goes first. A piece of work that ends tells one of each, or the queue alone if a member refused it for want of room (`Trip::refused`);
//! and who is told and finds a member tells the next: one wake-up for each place that comes free, and one in vain.
//!
//! While nobody waits, all this is one load of a word. Only once somebody waits does it matter how urgent a newcomer is.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};
use std::task::Waker;

use plimsoll_brain::{Pace, Ticket, Time, Turn, Urgency, WaitQueues};
use tokio::sync::Notify;
use tokio::sync::futures::Notified;

use crate::core::Core;
use crate::inner::lock;

/// Who waits.
#[derive(Debug)]
pub(crate) struct Room {
    /// How many: in the queue below, in the line above, 32 bits each, so that one load says whether anybody does.
    waiting: AtomicU64,
    /// Told when a member may have come below its limit.
    freed: Notify,
    line: Mutex<WaitQueues<Waker>>,
    /// The most urgent in the line, as [`WaitQueues::first`] says it; [`NOBODY`] for none.
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
    /// Does nobody wait?
    #[inline]
    pub(crate) fn calm(&self) -> bool {
        self.waiting.load(Relaxed) == 0
    }

    /// Does somebody wait that may be more urgent than a newcomer?
    pub(crate) fn ranked(&self) -> bool {
        self.first.load(Relaxed) != NOBODY
    }

    /// Does somebody wait that is more urgent than this?
    pub(crate) fn outranked(&self, urgency: Urgency) -> bool {
        self.first.load(Relaxed) < urgency.value()
    }

    /// How many are in the queue.
    pub(crate) fn queued(&self) -> u32 {
        self.waiting.load(Relaxed) as u32
    }

    /// How many wait.
    pub(crate) fn waiting(&self) -> u64 {
        let waiting = self.waiting.load(Relaxed);
        (waiting >> 32) + (waiting & u64::from(u32::MAX))
    }

    /// A place may have come free: somebody looks.
    #[cold]
    pub(crate) fn ring(&self) {
        self.ring_queue();
        self.call();
    }

    /// A member may have come below its limit, but has no room: of those that wait for room nobody is told. (If somebody was, each
    /// refusal would be the occasion of the next. Twenty balancers, simulated at 130 % of the capacity there were 8.4 attempts for a request
    /// after a wait then, and 1.0 so, of 32 at most; and no more were served.)
    #[cold]
    pub(crate) fn ring_queue(&self) {
        if self.queued() > 0 {
            self.freed.notify_one();
        }
    }

    /// Everything may have changed.
    pub(crate) fn ring_all(&self) {
        self.freed.notify_waiters();
        self.call();
    }

    /// A place in the queue, unless `most` are in it already.
    pub(crate) fn queue(&self, most: usize) -> Option<Queued<'_>> {
        if (self.waiting.fetch_add(1, Relaxed) as u32) as usize >= most {
            self.waiting.fetch_sub(1, Relaxed);
            return None;
        }
        Some(Queued(self))
    }

    /// A place in the line for one that found no room at `since` for the first time; `None` if it is not to wait
    /// ([`WaitQueues::enter`]). The waker is told to look or to go.
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

    /// Tells one of the line to look.
    fn call(&self) {
        if self.waiting.load(Relaxed) >= LINED {
            // Not woken under the lock.
            let next = lock(&self.line).call().cloned();
            next.iter().for_each(Waker::wake_by_ref);
        }
    }

    /// Returns whether some wait and none was served for a while, so that one is to go on without a look at limits.
    pub(crate) fn starved(&self, now: Time) -> bool {
        self.waiting.load(Relaxed) >= LINED && lock(&self.line).starved(now)
    }

    /// Wakes the one that is to go on, if that is so.
    #[cold]
    pub(crate) fn call_starved(&self, now: Time) {
        if self.starved(now) {
            self.call();
        }
    }

    /// Tells those of the line to go that have waited long enough.
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

    /// Others are in the line than before.
    fn look(&self, line: &WaitQueues<Waker>) {
        self.first.store(line.first().map_or(NOBODY, Urgency::value), Relaxed);
    }
}

impl<'a> Queued<'a> {
    /// Resolves when a member may have come below its limit.
    pub(crate) fn freed(&self) -> Notified<'a> {
        self.0.freed.notified()
    }
}

impl Drop for Queued<'_> {
    fn drop(&mut self) {
        // Whoever leaves without a member passes on what it may have been told.
        if self.0.waiting.fetch_sub(1, Relaxed) as u32 > 1 {
            self.0.freed.notify_one();
        }
    }
}

impl Lined<'_> {
    /// When the wait is over at the latest.
    pub(crate) fn until(&self) -> Time {
        self.ticket.until
    }

    /// Is it the only one?
    pub(crate) fn alone(&self) -> bool {
        self.room.waiting.load(Relaxed) >> 32 == 1
    }

    /// Woken: what is to be done?
    pub(crate) fn turn(&self) -> Turn {
        lock(&self.room.line).turn(self.ticket)
    }

    /// It has found a member.
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
        // Where one found room there may be more, and what it was told and did not look at is for others.
        if called || self.served {
            self.room.call();
        }
    }
}

/// One in the line, as it is counted in [`Room::waiting`].
const LINED: u64 = 1 << 32;

/// Less urgent than all.
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
            // It leaves without having looked, so that the next is told: the first again, which has looked.
            drop(second);
            assert_eq!(rung(&bells), [2, 1, 0, 0]);
            // Where one found room there may be more.
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
