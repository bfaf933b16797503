//! Threads of an agent: so many, taken in the order in which they are asked for.

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::mpsc::{Sender, channel};
use std::time::Instant;

use super::lock;

/// The threads.
#[derive(Debug)]
pub(super) struct Clones(Mutex<State>);

#[derive(Debug)]
struct State {
    free: usize,
    /// Those who wait, the first in front.
    waiting: VecDeque<Sender<Instant>>,
}

impl Clones {
    /// So many, at least one.
    pub(super) fn new(count: usize) -> Self {
        Self(Mutex::new(State { free: count.max(1), waiting: VecDeque::new() }))
    }

    /// Waits for one and holds it as long as what is returned lives; whoever comes does so at `now`.
    pub(super) fn take(&self, now: Instant) -> Clone<'_> {
        let turn = {
            let mut state = lock(&self.0);
            if state.free > 0 {
                state.free -= 1;
                return Clone { of: self, until: Cell::new(now) };
            }
            let (call, turn) = channel();
            state.waiting.push_back(call);
            turn
        };
        // The sender is lost only when it has been used.
        let free = turn.recv().unwrap_or(now);
        Clone { of: self, until: Cell::new(now.max(free)) }
    }
}

/// A thread that is held.
#[derive(Debug)]
pub(super) struct Clone<'a> {
    of: &'a Clones,
    until: Cell<Instant>,
}

impl Clone<'_> {
    /// From when it is held, by the times of those who held it before and of who holds it.
    pub(super) fn since(&self) -> Instant {
        self.until.get()
    }

    /// It is held until then: the next one goes on from there, however late that wakes.
    pub(super) fn until(&self, now: Instant) {
        self.until.set(now);
    }
}

impl Drop for Clone<'_> {
    fn drop(&mut self) {
        let mut state = lock(&self.of.0);
        while let Some(first) = state.waiting.pop_front() {
            if first.send(self.until.get()).is_ok() {
                return;
            }
        }
        state.free += 1;
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
        let clones = Arc::new(Clones::new(1));
        let order = Arc::new(Mutex::new(Vec::new()));
        let begin = Instant::now();
        let first = clones.take(begin);
        let waiting = |clones: &Clones| lock(&clones.0).waiting.len();
        let threads: Vec<_> = (0..4)
            .map(|number| {
                let (clones, order) = (clones.clone(), order.clone());
                let of = clones.clone();
                let thread = thread::spawn(move || {
                    let clone = clones.take(begin);
                    lock(&order).push((number, clone.since() - begin));
                    clone.until(clone.since() + MS);
                });
                while waiting(&of) <= number {
                    thread::yield_now();
                }
                thread
            })
            .collect();
        first.until(begin + 5 * MS);
        drop(first);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        // Each goes on from where the one before ended, whatever the clock says.
        assert_eq!(*lock(&order), [(0, 5 * MS), (1, 6 * MS), (2, 7 * MS), (3, 8 * MS)]);
        assert_eq!(lock(&clones.0).free, 1);
    }
}
