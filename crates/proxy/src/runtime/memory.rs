//! A budget for the bytes that peers make this process keep.
//!
//! Bytes that a peer sends and does not complete, or requests and does not read, stay in memory: unfinished
//! heads, IIOP messages, HTTP/2 streams, bytes that a socket does not accept. Each of these has a limit, but
//! the sum of all limits over all connections exceeds any machine's memory. So each draws from one budget, by
//! the bytes that have arrived and never by those that were announced. It is rejected when the budget is used
//! up. Requests that are forwarded as they arrive draw nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

/// The step of draws and returns, in bytes, so that a buffer that grows byte by byte costs little.
const RESERVATION_STEP: usize = 4096;

/// A number of bytes that all connections share.
pub(crate) struct MemoryBudget {
    limit: AtomicUsize,
    used: AtomicUsize,
    rejected: AtomicU64,
}

impl MemoryBudget {
    /// Creates a budget of `most` bytes.
    pub(crate) fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self {
            limit: AtomicUsize::new(limit),
            used: AtomicUsize::new(0),
            rejected: AtomicU64::new(0),
        })
    }

    /// Replaces the size of the budget. Bytes kept beyond it stay until they are returned.
    pub(crate) fn resize(&self, limit: usize) {
        self.limit.store(limit, Relaxed);
    }

    /// Returns the budget's size, the kept bytes, and the number of rejected draws.
    pub(crate) fn status(&self) -> (usize, usize, u64) {
        (self.limit.load(Relaxed), self.used.load(Relaxed), self.rejected.load(Relaxed))
    }

    fn try_reserve(&self, bytes: usize) -> bool {
        let limit = self.limit.load(Relaxed);
        let reserved = self
            .used
            .fetch_update(Relaxed, Relaxed, |used| used.checked_add(bytes).filter(|total| *total <= limit));
        if reserved.is_err() {
            self.rejected.fetch_add(1, Relaxed);
        }
        reserved.is_ok()
    }
}

/// The bytes kept for one peer. They return to the budget when this is dropped.
#[derive(Default)]
pub(crate) struct MemoryReservation {
    budget: Option<Arc<MemoryBudget>>,
    bytes: usize,
}

impl MemoryReservation {
    /// Draws or returns bytes, so as to keep `bytes`. Returns `false`, without a change, if the budget is
    /// used up.
    #[must_use]
    pub(crate) fn set(&mut self, budget: &Arc<MemoryBudget>, bytes: usize) -> bool {
        let bytes = bytes.next_multiple_of(RESERVATION_STEP);
        if bytes > self.bytes {
            if !budget.try_reserve(bytes - self.bytes) {
                return false;
            }
            self.budget.get_or_insert_with(|| Arc::clone(budget));
        } else {
            self.release(self.bytes - bytes);
        }
        self.bytes = bytes;
        true
    }

    /// Draws bytes, so as to keep at least `bytes`. Returns `false` if the budget is used up.
    #[must_use]
    pub(crate) fn grow(&mut self, budget: &Arc<MemoryBudget>, bytes: usize) -> bool {
        bytes <= self.bytes || self.set(budget, bytes)
    }

    /// Returns the number of drawn bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns all bytes to the budget.
    #[inline]
    pub(crate) fn clear(&mut self) {
        if self.bytes > 0 {
            self.release(self.bytes);
            self.bytes = 0;
        }
    }

    fn release(&self, bytes: usize) {
        if let Some(budget) = &self.budget {
            budget.used.fetch_sub(bytes, Relaxed);
        }
    }
}

impl Drop for MemoryReservation {
    fn drop(&mut self) {
        self.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_never_exceeds_the_budget_and_returns_to_it() {
        let budget = MemoryBudget::new(10 * RESERVATION_STEP);
        let (mut first, mut second) = (MemoryReservation::default(), MemoryReservation::default());
        assert!(first.set(&budget, 6 * RESERVATION_STEP - 5) && second.set(&budget, 4 * RESERVATION_STEP));
        assert!(!second.set(&budget, 4 * RESERVATION_STEP + 1), "the budget is used up");
        assert_eq!(budget.status(), (10 * RESERVATION_STEP, 10 * RESERVATION_STEP, 1));
        assert!(
            first.set(&budget, 1) && second.grow(&budget, 2) && second.grow(&budget, 5 * RESERVATION_STEP)
        );
        assert_eq!(budget.status().1, 6 * RESERVATION_STEP);
        budget.resize(RESERVATION_STEP);
        assert!(!first.grow(&budget, 2 * RESERVATION_STEP) && first.grow(&budget, RESERVATION_STEP));
        first.clear();
        drop(second);
        assert_eq!(budget.status().1, 0);
        assert!(first.set(&budget, 0) && budget.status().1 == 0);
    }
}
