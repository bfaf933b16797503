//! A budget for the bytes that peers make this process keep.
//!
//! What a peer sends and does not finish, or asks for and does not read, stays in memory: unfinished heads, messages of IIOP,
//! streams of HTTP/2, bytes that a socket does not accept. Each of these has a bound of its own, but the sum of all bounds over all
//! connections is more than any machine has. So each draws from one budget, by what has arrived and never by what was announced,
//! and is refused when the budget is used up. Nothing is drawn for requests that are passed on as they arrive.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

/// Drawn and returned in steps of this many bytes, so that a buffer that grows byte by byte costs little.
const STEP: usize = 4096;

/// A number of bytes that all connections share.
pub(crate) struct MemoryBudget {
    most: AtomicUsize,
    kept: AtomicUsize,
    refused: AtomicU64,
}

impl MemoryBudget {
    /// A budget of so many bytes.
    pub(crate) fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { most: AtomicUsize::new(most), kept: AtomicUsize::new(0), refused: AtomicU64::new(0) })
    }

    /// Replaces the number of bytes. What is kept beyond it stays until it is returned.
    pub(crate) fn resize(&self, most: usize) {
        self.most.store(most, Relaxed);
    }

    /// Returns the budget, the bytes that are kept, and how often a draw was refused.
    pub(crate) fn status(&self) -> (usize, usize, u64) {
        (self.most.load(Relaxed), self.kept.load(Relaxed), self.refused.load(Relaxed))
    }

    fn draw(&self, bytes: usize) -> bool {
        let most = self.most.load(Relaxed);
        let drawn = self
            .kept
            .fetch_update(Relaxed, Relaxed, |kept| kept.checked_add(bytes).filter(|kept| *kept <= most));
        if drawn.is_err() {
            self.refused.fetch_add(1, Relaxed);
        }
        drawn.is_ok()
    }
}

/// Bytes that are kept for one peer. They return to the budget when this is dropped.
#[derive(Default)]
pub(crate) struct Kept {
    budget: Option<Arc<MemoryBudget>>,
    bytes: usize,
}

impl Kept {
    /// Draws or returns what is needed to keep `bytes`. False if the budget is used up: then as much is kept as before.
    #[must_use]
    pub(crate) fn set(&mut self, budget: &Arc<MemoryBudget>, bytes: usize) -> bool {
        let bytes = bytes.next_multiple_of(STEP);
        if bytes > self.bytes {
            if !budget.draw(bytes - self.bytes) {
                return false;
            }
            self.budget.get_or_insert_with(|| Arc::clone(budget));
        } else {
            self.give_back(self.bytes - bytes);
        }
        self.bytes = bytes;
        true
    }

    /// Draws what is needed to keep at least `bytes`. False if the budget is used up.
    #[must_use]
    pub(crate) fn grow(&mut self, budget: &Arc<MemoryBudget>, bytes: usize) -> bool {
        bytes <= self.bytes || self.set(budget, bytes)
    }

    /// Returns how many bytes are drawn.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns all of it.
    #[inline]
    pub(crate) fn clear(&mut self) {
        if self.bytes > 0 {
            self.give_back(self.bytes);
            self.bytes = 0;
        }
    }

    fn give_back(&self, bytes: usize) {
        if let Some(budget) = &self.budget {
            budget.kept.fetch_sub(bytes, Relaxed);
        }
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_never_exceeds_the_budget_and_returns_to_it() {
        let budget = MemoryBudget::new(10 * STEP);
        let (mut one, mut other) = (Kept::default(), Kept::default());
        assert!(one.set(&budget, 6 * STEP - 5) && other.set(&budget, 4 * STEP));
        assert!(!other.set(&budget, 4 * STEP + 1), "the budget is used up");
        assert_eq!(budget.status(), (10 * STEP, 10 * STEP, 1));
        assert!(one.set(&budget, 1) && other.grow(&budget, 2) && other.grow(&budget, 5 * STEP));
        assert_eq!(budget.status().1, 6 * STEP);
        budget.resize(STEP);
        assert!(!one.grow(&budget, 2 * STEP) && one.grow(&budget, STEP));
        one.clear();
        drop(other);
        assert_eq!(budget.status().1, 0);
        assert!(one.set(&budget, 0) && budget.status().1 == 0);
    }
}
