//! The recently answered requests, by which a client distinguishes a repeated answer from one with another
//! member.

use alloc::collections::{BTreeMap, VecDeque};

/// The maximum number. The next attempt is sent within a second: an answer after four thousand others belongs
/// to no request.
const MAX_HISTORY: usize = 4096;

/// The member named for each request.
#[derive(Clone, Debug, Default)]
pub(super) struct AnswerHistory {
    first_members: BTreeMap<u64, u16>,
    order: VecDeque<u64>,
    /// The requests for which a second member was named.
    pub(super) answered_twice: u64,
}

impl AnswerHistory {
    /// Records the first answer to a request.
    pub(super) fn record_first(&mut self, id: u64, member: u16) {
        if self.order.len() >= MAX_HISTORY
            && let Some(oldest) = self.order.pop_front()
        {
            self.first_members.remove(&oldest);
        }
        self.first_members.insert(id, member);
        self.order.push_back(id);
    }

    /// Records an answer to a request that does not wait any more.
    pub(super) fn record_repeat(&mut self, id: u64, member: u16) {
        if self.first_members.get(&id).is_some_and(|first_member| *first_member != member) {
            // A third one does not count again.
            self.first_members.remove(&id);
            self.answered_twice += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_member_counts_once() {
        let mut history = AnswerHistory::default();
        history.record_first(1, 7);
        history.record_repeat(1, 7);
        history.record_repeat(2, 9);
        assert_eq!(history.answered_twice, 0, "the same again, and one that was never answered");
        history.record_repeat(1, 8);
        history.record_repeat(1, 9);
        assert_eq!(history.answered_twice, 1);
        for id in 10..10 + 2 * MAX_HISTORY as u64 {
            history.record_first(id, 7);
        }
        assert_eq!((history.first_members.len(), history.order.len()), (MAX_HISTORY, MAX_HISTORY));
        history.record_repeat(10, 8);
        assert_eq!(history.answered_twice, 1, "forgotten");
        history.record_repeat(9 + 2 * MAX_HISTORY as u64, 8);
        assert_eq!(history.answered_twice, 2);
    }
}
