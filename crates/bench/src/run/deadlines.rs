//! Deadlines of equal length: they end in the order they began, so a queue replaces a heap.

use std::collections::VecDeque;
use std::time::Instant;

use super::connection_slots::SlotKey;

/// Deadlines in the order of their ends. A request that ends before its deadline leaves its entry behind.
#[derive(Debug, Default)]
pub(super) struct DeadlineQueue(VecDeque<(Instant, SlotKey)>);

impl DeadlineQueue {
    /// Adds a deadline that is not before the previous ones. `alive` is the number of those that have not
    /// ended. If more entries than that are stale, those that `ended` selects are removed. Memory is
    /// therefore bounded by the requests in flight and not by all past ones.
    pub(super) fn push(
        &mut self,
        deadline: Instant,
        key: SlotKey,
        live_count: usize,
        has_ended: impl Fn(SlotKey) -> bool,
    ) {
        if self.0.len() >= 2 * live_count + 1024 {
            self.0.retain(|(_, key)| !has_ended(*key));
        }
        self.0.push_back((deadline, key));
    }

    /// Takes the next expired deadline of a request that has not ended; drops stale ones.
    pub(super) fn pop_expired(
        &mut self,
        now: Instant,
        has_ended: impl Fn(SlotKey) -> bool,
    ) -> Option<SlotKey> {
        while let Some((deadline, key)) = self.0.front().copied() {
            let ended = has_ended(key);
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

    /// Returns the next deadline. Right after [`pop_expired`](Self::pop_expired) it belongs to a request that
    /// has not ended.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.0.front().map(|(deadline, _)| *deadline)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn key(slot: u32) -> SlotKey {
        SlotKey { slot, serial: 1 }
    }

    #[test]
    fn in_order_and_without_those_that_ended() {
        let mut deadlines = DeadlineQueue::default();
        let start = Instant::now();
        let after_millis = |n: u32| start + n * Duration::from_millis(1);
        for n in 0..5 {
            deadlines.push(after_millis(n), key(n), 5, |_| false);
        }
        let is_odd = |key: SlotKey| key.slot % 2 == 1;
        assert_eq!(deadlines.pop_expired(after_millis(2), is_odd), Some(key(0)));
        assert_eq!(deadlines.pop_expired(after_millis(2), is_odd), Some(key(2)));
        assert_eq!(deadlines.pop_expired(after_millis(2), is_odd), None);
        assert_eq!(deadlines.next_deadline(), Some(after_millis(4)));
    }

    /// One request that hangs must not keep the entries of millions that came after it.
    #[test]
    fn what_has_ended_does_not_pile_up_behind_one_that_has_not() {
        let mut deadlines = DeadlineQueue::default();
        let now = Instant::now();
        for n in 0..1_000_000 {
            deadlines.push(now, key(n), 1, |key| key.slot != 0);
        }
        assert!(deadlines.0.len() < 2000);
        assert_eq!(deadlines.0.front().map(|(_, key)| key.slot), Some(0));
    }
}
