//! The work that waits for a member of a group, over all cores.
//!
//! There are two kinds. In the *queue* is work that found every member at its configured limit: in order,
//! with a configured maximum number and time. In the *line* is work for which the strategy found no room:
//! [`WaitQueues`] decide for how long, and in which order.
//!
//! The end of a piece of work notifies one task of each kind, or of the queue alone if a member refused the
//! work for lack of room (`InFlight::refused`). A notified task that finds a member notifies the next. So
//! each free place costs one useful wake-up and one in vain.
//!
//! While nothing waits, all this is one load of an atomic. Only when something waits does the urgency of new
//! work matter.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};
use std::task::Waker;

use plimsoll_brain::{DrainRate, Time, Urgency, WaitQueues, WaitTicket, WaitVerdict};
use tokio::sync::Notify;
use tokio::sync::futures::Notified;

use crate::runtime::sync::lock;
use crate::upstream::thread_context::ThreadContext;

/// The waiting work.
#[derive(Debug)]
pub(crate) struct GroupWaitQueue {
    /// The numbers of waiting tasks: in the queue below, in the line above, 32 bits each, so that one load
    /// shows both.
    waiting: AtomicU64,
    /// Notified when a member may have fallen below its limit.
    slot_freed: Notify,
    admission_line: Mutex<WaitQueues<Waker>>,
    /// The highest urgency in the line, as given by [`WaitQueues::first`]; [`NO_URGENCY`] if the line is
    /// empty.
    top_urgency: AtomicU8,
}

/// A place in the queue.
pub(crate) struct QueueTicket<'a>(&'a GroupWaitQueue);

/// A place in the line.
pub(crate) struct AdmissionTicket<'a> {
    queue: &'a GroupWaitQueue,
    core: &'a ThreadContext,
    ticket: WaitTicket,
    served: bool,
}

impl Default for GroupWaitQueue {
    fn default() -> Self {
        Self {
            waiting: AtomicU64::new(0),
            slot_freed: Notify::new(),
            admission_line: Mutex::default(),
            top_urgency: AtomicU8::new(NO_URGENCY),
        }
    }
}

impl GroupWaitQueue {
    /// Returns `true` if nothing waits.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.load(Relaxed) == 0
    }

    /// Returns `true` if waiting work may be more urgent than new work.
    pub(crate) fn has_urgent(&self) -> bool {
        self.top_urgency.load(Relaxed) != NO_URGENCY
    }

    /// Returns `true` if waiting work is more urgent than this.
    pub(crate) fn is_outranked(&self, urgency: Urgency) -> bool {
        self.top_urgency.load(Relaxed) < urgency.value()
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
    pub(crate) fn wake_one(&self) {
        self.wake_queue();
        self.wake_line();
    }

    /// Wakes one task of the queue only: a member may have fallen below its limit, but has no room. Tasks of
    /// the line are not notified, as each refusal would cause the next. (In a simulation of twenty balancers
    /// at 130 % of capacity, notifying them took 8.4 attempts per waiting request instead of 1.0, of at most
    /// 32. No more requests were served.)
    #[cold]
    pub(crate) fn wake_queue(&self) {
        if self.queued() > 0 {
            self.slot_freed.notify_one();
        }
    }

    /// Wakes all tasks of the queue and one of the line, as everything may have changed.
    pub(crate) fn wake_all(&self) {
        self.slot_freed.notify_waiters();
        self.wake_line();
    }

    /// Returns a place in the queue, unless `most` are taken.
    pub(crate) fn enter_queue(&self, max_queued: usize) -> Option<QueueTicket<'_>> {
        if (self.waiting.fetch_add(1, Relaxed) as u32) as usize >= max_queued {
            self.waiting.fetch_sub(1, Relaxed);
            return None;
        }
        Some(QueueTicket(self))
    }

    /// Returns a place in the line for work that first found no room at `since`; `None` if it should not wait
    /// ([`WaitQueues::enter`]). The waker is used when the task should try or leave.
    pub(crate) fn line<'a>(
        &'a self,
        core: &'a ThreadContext,
        waker: &Waker,
        urgency: Urgency,
        drain_rate: DrainRate,
        since: Time,
    ) -> Option<AdmissionTicket<'a>> {
        let ticket = {
            let mut line = lock(&self.admission_line);
            let ticket = line.enter(urgency, waker.clone(), drain_rate, since, core.now());
            self.update_top_urgency(&line);
            ticket?
        };
        self.waiting.fetch_add(ONE_IN_LINE, Relaxed);
        self.wake_expired(core.now());
        Some(AdmissionTicket { queue: self, core, ticket, served: false })
    }

    /// Wakes one task of the line, which should try.
    fn wake_line(&self) {
        if self.waiting.load(Relaxed) >= ONE_IN_LINE {
            // Not woken under the lock.
            let waker = lock(&self.admission_line).call().cloned();
            waker.iter().for_each(Waker::wake_by_ref);
        }
    }

    /// Returns `true` if tasks of the line wait and none was served for a while. Then one may proceed
    /// regardless of limits.
    pub(crate) fn is_starved(&self, now: Time) -> bool {
        self.waiting.load(Relaxed) >= ONE_IN_LINE && lock(&self.admission_line).is_starved(now)
    }

    /// Wakes the task that may proceed so, if there is one.
    #[cold]
    pub(crate) fn wake_starved(&self, now: Time) {
        if self.is_starved(now) {
            self.wake_line();
        }
    }

    /// Wakes the tasks of the line that have waited long enough, so that they leave.
    fn wake_expired(&self, now: Time) {
        loop {
            let expired = {
                let mut line = lock(&self.admission_line);
                let expired = line.expire_next(now);
                self.update_top_urgency(&line);
                expired
            };
            let Some(waker) = expired else { return };
            waker.wake();
        }
    }

    /// Updates the highest urgency after a change of the line.
    fn update_top_urgency(&self, line: &WaitQueues<Waker>) {
        self.top_urgency.store(line.first().map_or(NO_URGENCY, Urgency::value), Relaxed);
    }
}

impl<'a> QueueTicket<'a> {
    /// Completes when a member may have fallen below its limit.
    pub(crate) fn slot_freed(&self) -> Notified<'a> {
        self.0.slot_freed.notified()
    }
}

impl Drop for QueueTicket<'_> {
    fn drop(&mut self) {
        // A task that leaves without a member passes on its notification, if it had one.
        if self.0.waiting.fetch_sub(1, Relaxed) as u32 > 1 {
            self.0.slot_freed.notify_one();
        }
    }
}

impl AdmissionTicket<'_> {
    /// Returns the end of the wait.
    pub(crate) fn until(&self) -> Time {
        self.ticket.until
    }

    /// Returns `true` if there is no other task in the line.
    pub(crate) fn is_alone(&self) -> bool {
        self.queue.waiting.load(Relaxed) >> 32 == 1
    }

    /// Returns the action of a woken task.
    pub(crate) fn turn(&self) -> WaitVerdict {
        lock(&self.queue.admission_line).turn(self.ticket)
    }

    /// Records that the task has found a member.
    pub(crate) fn mark_served(mut self) {
        self.served = true;
    }
}

impl Drop for AdmissionTicket<'_> {
    fn drop(&mut self) {
        let now = self.core.now();
        let was_called = {
            let mut line = lock(&self.queue.admission_line);
            let was_called = line.leave(self.ticket, self.served, now);
            self.queue.update_top_urgency(&line);
            was_called
        };
        self.queue.waiting.fetch_sub(ONE_IN_LINE, Relaxed);
        self.queue.wake_expired(now);
        // If one found room there may be more; an unused notification passes to another task.
        if was_called || self.served {
            self.queue.wake_line();
        }
    }
}

/// One task of the line, as counted in [`GroupWaitQueue::waiting`].
const ONE_IN_LINE: u64 = 1 << 32;

/// Less urgent than all others.
const NO_URGENCY: u8 = u8::MAX;

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;
    use std::task::Wake;
    use std::time::Duration;

    use super::*;
    use crate::runtime::clock::held;
    use crate::test_util::run;

    #[derive(Default)]
    struct WakeCounter(AtomicUsize);

    impl Wake for WakeCounter {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Relaxed);
        }
    }

    fn counting_waker() -> (Arc<WakeCounter>, Waker) {
        let counter = Arc::new(WakeCounter::default());
        (Arc::clone(&counter), Waker::from(counter))
    }

    fn wake_counts(wakers: &[(Arc<WakeCounter>, Waker)]) -> Vec<usize> {
        wakers.iter().map(|(counter, _)| counter.0.load(Relaxed)).collect()
    }

    const DRAIN_RATE: DrainRate =
        DrainRate { sojourn: Duration::from_millis(20), in_flight: 16, wait: Duration::from_secs(1) };

    #[test]
    fn each_place_that_comes_free_wakes_one() {
        run(|core| async move {
            let queue = GroupWaitQueue::default();
            assert!(queue.is_empty());
            let wakers: Vec<_> = (0..4).map(|_| counting_waker()).collect();
            let enter = |index: usize| {
                queue
                    .line(&core, &wakers[index].1, Urgency::default(), DRAIN_RATE, core.now())
                    .expect("a place")
            };
            let (first, second, third, fourth) = (enter(0), enter(1), enter(2), enter(3));
            assert_eq!((queue.waiting(), queue.queued(), wake_counts(&wakers)), (4, 0, vec![0; 4]));
            queue.wake_one();
            queue.wake_one();
            assert_eq!(wake_counts(&wakers), [1, 1, 0, 0], "in the order in which they came");
            assert_eq!(
                (first.turn(), first.turn(), third.turn()),
                (WaitVerdict::TryAgain, WaitVerdict::Wait, WaitVerdict::Wait)
            );
            // It leaves without having tried, so that the next is notified: the first again, which has tried.
            drop(second);
            assert_eq!(wake_counts(&wakers), [2, 1, 0, 0]);
            // If one found room there may be more.
            assert_eq!(first.turn(), WaitVerdict::TryAgain);
            first.mark_served();
            assert_eq!(wake_counts(&wakers), [2, 1, 1, 0]);
            assert_eq!(third.turn(), WaitVerdict::TryAgain);
            drop(third);
            assert_eq!(wake_counts(&wakers), [2, 1, 1, 0], "what was looked at in vain is nobody's");
            drop(fourth);
            assert!(queue.is_empty());
            queue.wake_one();
        });
    }

    #[test]
    fn the_most_urgent_is_woken_first_and_nobody_else_is_before_it() {
        run(|core| async move {
            let queue = GroupWaitQueue::default();
            let wakers: Vec<_> = (0..3).map(|_| counting_waker()).collect();
            let enter = |index: usize, urgency: u8| {
                let urgency = Urgency::new(urgency).expect("0 to 7");
                queue.line(&core, &wakers[index].1, urgency, DRAIN_RATE, core.now()).expect("a place")
            };
            let default_urgency = Urgency::default();
            let first = enter(0, 3);
            assert!(!queue.has_urgent() && !queue.is_outranked(default_urgency), "all are alike so far");
            let urgent = enter(1, 1);
            assert!(queue.has_urgent() && queue.is_outranked(default_urgency));
            let last = enter(2, 5);
            queue.wake_one();
            assert_eq!(wake_counts(&wakers), [0, 1, 0]);
            assert_eq!(urgent.turn(), WaitVerdict::TryAgain);
            urgent.mark_served();
            assert_eq!((wake_counts(&wakers), queue.is_outranked(default_urgency)), (vec![1, 1, 0], false));
            assert!(queue.has_urgent() && queue.is_outranked(Urgency::new(4).expect("0 to 7")));
            first.mark_served();
            assert_eq!(wake_counts(&wakers), [1, 1, 1]);
            drop(last);
            assert!(queue.is_empty() && !queue.has_urgent());
        });
    }

    #[test]
    fn in_overload_the_last_to_come_is_woken_first_and_the_oldest_refused() {
        let _clock = held::hold();
        run(|core| async move {
            let queue = GroupWaitQueue::default();
            let enter = |waker: &Waker| {
                queue
                    .line(&core, waker, Urgency::default(), DRAIN_RATE, core.now())
                    .expect("a place in the queue")
            };
            // The queue is never empty for long enough, and none is served.
            let mut ticket = enter(Waker::noop());
            while !lock(&queue.admission_line).is_standing(Urgency::default()) {
                held::advance(Duration::from_millis(1));
                core.tick();
                let next_ticket = enter(Waker::noop());
                ticket = next_ticket;
            }
            drop(ticket);
            let wakers: Vec<_> = (0..2).map(|_| counting_waker()).collect();
            let (first, second) = (enter(&wakers[0].1), enter(&wakers[1].1));
            queue.wake_one();
            assert_eq!(
                (wake_counts(&wakers), second.turn(), first.turn()),
                (vec![0, 1], WaitVerdict::TryAgain, WaitVerdict::Wait)
            );
            assert!(!queue.is_starved(core.now()));
            held::advance(Duration::from_millis(25));
            core.tick();
            drop(second);
            assert_eq!(
                (wake_counts(&wakers), first.turn()),
                (vec![1, 1], WaitVerdict::GiveUp),
                "no time to wait longer"
            );
            drop(first);
            assert!(queue.is_empty());
        });
    }

    #[test]
    fn where_none_is_served_one_is_woken_to_insist() {
        let _clock = held::hold();
        run(|core| async move {
            let queue = GroupWaitQueue::default();
            let wakers: Vec<_> = (0..2).map(|_| counting_waker()).collect();
            let tickets: Vec<_> = wakers
                .iter()
                .map(|waker| {
                    queue.line(&core, &waker.1, Urgency::default(), DRAIN_RATE, core.now()).expect("a place")
                })
                .collect();
            held::advance(Duration::from_millis(99));
            core.tick();
            queue.wake_starved(core.now());
            assert_eq!(wake_counts(&wakers), [0, 0]);
            held::advance(Duration::from_millis(1));
            core.tick();
            queue.wake_starved(core.now());
            assert_eq!((wake_counts(&wakers), queue.is_starved(core.now())), (vec![1, 0], true));
            let mut tickets = tickets.into_iter();
            tickets.next().expect("the first").mark_served();
            assert!(!queue.is_starved(core.now()), "the next one has to wait as long");
        });
    }
}
