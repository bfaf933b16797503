//! Threads of an agent: a fixed number, taken in the order of the requests for them.

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::mpsc::{Sender, channel};
use std::time::Instant;

use super::lock;

/// The threads.
#[derive(Debug)]
pub(super) struct AgentThreads(Mutex<ThreadQueue>);

#[derive(Debug)]
struct ThreadQueue {
    free_count: usize,
    /// The waiters, the first in front.
    waiters: VecDeque<Sender<Instant>>,
}

impl AgentThreads {
    /// Creates `count` threads, at least one.
    pub(super) fn new(count: usize) -> Self {
        Self(Mutex::new(ThreadQueue { free_count: count.max(1), waiters: VecDeque::new() }))
    }

    /// Waits for a thread and holds it until the result is dropped; the caller arrives at `now`.
    pub(super) fn acquire(&self, now: Instant) -> HeldThread<'_> {
        let handover = {
            let mut state = lock(&self.0);
            if state.free_count > 0 {
                state.free_count -= 1;
                return HeldThread { threads: self, held_until: Cell::new(now) };
            }
            let (handover_sender, handover_receiver) = channel();
            state.waiters.push_back(handover_sender);
            handover_receiver
        };
        // The sender is dropped only after use.
        let free_since = handover.recv().unwrap_or(now);
        HeldThread { threads: self, held_until: Cell::new(now.max(free_since)) }
    }
}

/// A thread that is held.
#[derive(Debug)]
pub(super) struct HeldThread<'a> {
    threads: &'a AgentThreads,
    held_until: Cell<Instant>,
}

impl HeldThread<'_> {
    /// Returns the time from which it is held: the later of the caller's time and that of the previous
    /// holder's end.
    pub(super) fn held_since(&self) -> Instant {
        self.held_until.get()
    }

    /// Records the time until which it is held: the next holder continues from there, however late it wakes.
    pub(super) fn set_held_until(&self, now: Instant) {
        self.held_until.set(now);
    }
}

impl Drop for HeldThread<'_> {
    fn drop(&mut self) {
        let mut state = lock(&self.threads.0);
        while let Some(waiter) = state.waiters.pop_front() {
            if waiter.send(self.held_until.get()).is_ok() {
                return;
            }
        }
        state.free_count += 1;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::thread;
    use std::time::Duration;

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn who_asks_first_is_served_first() {
        let clones = Arc::new(AgentThreads::new(1));
        let order = Arc::new(Mutex::new(Vec::new()));
        let start = Instant::now();
        let first = clones.acquire(start);
        let waiting = |clones: &AgentThreads| lock(&clones.0).waiters.len();
        let threads: Vec<_> = (0..4)
            .map(|number| {
                let (clones, order) = (clones.clone(), order.clone());
                let observed = clones.clone();
                let thread = thread::spawn(move || {
                    let clone = clones.acquire(start);
                    lock(&order).push((number, clone.held_since() - start));
                    clone.set_held_until(clone.held_since() + MS);
                });
                while waiting(&observed) <= number {
                    thread::yield_now();
                }
                thread
            })
            .collect();
        first.set_held_until(start + 5 * MS);
        drop(first);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        // Each continues from the end of the one before, whatever the clock shows.
        assert_eq!(*lock(&order), [(0, 5 * MS), (1, 6 * MS), (2, 7 * MS), (3, 8 * MS)]);
        assert_eq!(lock(&clones.0).free_count, 1);
    }
}
