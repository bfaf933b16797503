//! Deadlines of one length: they end in the order they began, so that a queue does for a heap.

use std::collections::VecDeque;
use std::time::Instant;

use super::slots::Key;

/// Deadlines in the order they end. What has ended before its deadline leaves its entry behind.
#[derive(Debug, Default)]
pub(super) struct Deadlines(VecDeque<(Instant, Key)>);

impl Deadlines {
    /// Adds one that ends no sooner than those before it. There are `alive` that have not ended: when the
    /// entries left behind are more than those, `ended` tells which go, so that memory is bounded by what
    /// is in flight and not by how much has been.
    pub(super) fn push(&mut self, deadline: Instant, key: Key, alive: usize, ended: impl Fn(Key) -> bool) {
        if self.0.len() >= 2 * alive + 1024 {
            self.0.retain(|(_, key)| !ended(*key));
        }
        self.0.push_back((deadline, key));
    }

    /// Takes the next that is over and has not ended before; drops those that have.
    pub(super) fn over(&mut self, now: Instant, ended: impl Fn(Key) -> bool) -> Option<Key> {
        while let Some((deadline, key)) = self.0.front().copied() {
            let ended = ended(key);
            if !ended && deadline > now {
                return None;
            }
            self.0.pop_front();
            if !ended {
                return Some(key);
            }
        }
        None
    }

    /// When the next is over; only after [`over`](Self::over) certainly one that has not ended.
    pub(super) fn next(&self) -> Option<Instant> {
        self.0.front().map(|(deadline, _)| *deadline)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn key(slot: u32) -> Key {
        Key { slot, serial: 1 }
    }

    #[test]
    fn in_order_and_without_those_that_ended() {
        let mut deadlines = Deadlines::default();
        let start = Instant::now();
        let at = |n: u32| start + n * Duration::from_millis(1);
        for n in 0..5 {
            deadlines.push(at(n), key(n), 5, |_| false);
        }
        let odd = |key: Key| key.slot % 2 == 1;
        assert_eq!(deadlines.over(at(2), odd), Some(key(0)));
        assert_eq!(deadlines.over(at(2), odd), Some(key(2)));
        assert_eq!(deadlines.over(at(2), odd), None);
        assert_eq!(deadlines.next(), Some(at(4)));
    }

    /// One request that hangs must not keep the entries of millions that came after it.
    #[test]
    fn what_has_ended_does_not_pile_up_behind_one_that_has_not() {
        let mut deadlines = Deadlines::default();
        let now = Instant::now();
        for n in 0..1_000_000 {
            deadlines.push(now, key(n), 1, |key| key.slot != 0);
        }
        assert!(deadlines.0.len() < 2000);
        assert_eq!(deadlines.0.front().map(|(_, key)| key.slot), Some(0));
    }
}
