//! The recently answered requests, by which a client distinguishes a repeated answer from one with another
//! member.

use alloc::collections::{BTreeMap, VecDeque};

/// The maximum number. The next attempt is sent within a second: an answer after four thousand others belongs
/// to no request.
const KNOWN: usize = 4096;

/// The member named for each request.
#[derive(Clone, Debug, Default)]
pub(super) struct Past {
    named: BTreeMap<u64, u16>,
    order: VecDeque<u64>,
    /// The requests for which a second member was named.
    pub(super) twice: u64,
}

impl Past {
    /// Records the first answer to a request.
    pub(super) fn first(&mut self, id: u64, member: u16) {
        if self.order.len() >= KNOWN
            && let Some(oldest) = self.order.pop_front()
        {
            self.named.remove(&oldest);
        }
        self.named.insert(id, member);
        self.order.push_back(id);
    }

    /// Records an answer to a request that does not wait any more.
    pub(super) fn again(&mut self, id: u64, member: u16) {
        if self.named.get(&id).is_some_and(|first| *first != member) {
            // A third one does not count again.
            self.named.remove(&id);
            self.twice += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_member_counts_once() {
        let mut past = Past::default();
        past.first(1, 7);
        past.again(1, 7);
        past.again(2, 9);
        assert_eq!(past.twice, 0, "the same again, and one that was never answered");
        past.again(1, 8);
        past.again(1, 9);
        assert_eq!(past.twice, 1);
        for id in 10..10 + 2 * KNOWN as u64 {
            past.first(id, 7);
        }
        assert_eq!((past.named.len(), past.order.len()), (KNOWN, KNOWN));
        past.again(10, 8);
        assert_eq!(past.twice, 1, "forgotten");
        past.again(9 + 2 * KNOWN as u64, 8);
        assert_eq!(past.twice, 2);
    }
}
