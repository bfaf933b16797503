//! Threads of an agent: so many, taken in the order in which they are asked for.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::mpsc::{Sender, channel};

use super::lock;

/// The threads.
#[derive(Debug)]
pub(super) struct Clones(Mutex<State>);

#[derive(Debug)]
struct State {
    free: usize,
    /// Those who wait, the first in front.
    waiting: VecDeque<Sender<()>>,
}

impl Clones {
    /// So many, at least one.
    pub(super) fn new(count: usize) -> Self {
        Self(Mutex::new(State { free: count.max(1), waiting: VecDeque::new() }))
    }

    /// Waits for one and holds it as long as what is returned lives.
    pub(super) fn take(&self) -> Clone<'_> {
        let turn = {
            let mut state = lock(&self.0);
            if state.free > 0 {
                state.free -= 1;
                return Clone(self);
            }
            let (call, turn) = channel();
            state.waiting.push_back(call);
            turn
        };
        // The sender is lost only when it has been used.
        let _ = turn.recv();
        Clone(self)
    }
}

/// A thread that is held.
#[derive(Debug)]
pub(super) struct Clone<'a>(&'a Clones);

impl Drop for Clone<'_> {
    fn drop(&mut self) {
        let mut state = lock(&self.0.0);
        while let Some(first) = state.waiting.pop_front() {
            if first.send(()).is_ok() {
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

    use super::*;

    #[test]
    fn who_asks_first_is_served_first() {
        let clones = Arc::new(Clones::new(1));
        let order = Arc::new(Mutex::new(Vec::new()));
        let first = clones.take();
        let waiting = |clones: &Clones| lock(&clones.0).waiting.len();
        let threads: Vec<_> = (0..4)
            .map(|number| {
                let (clones, order) = (clones.clone(), order.clone());
                let of = clones.clone();
                let thread = thread::spawn(move || {
                    let _clone = clones.take();
                    lock(&order).push(number);
                });
                while waiting(&of) <= number {
                    thread::yield_now();
                }
                thread
            })
            .collect();
        drop(first);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(*lock(&order), [0, 1, 2, 3]);
        assert_eq!(lock(&clones.0).free, 1);
    }
}
