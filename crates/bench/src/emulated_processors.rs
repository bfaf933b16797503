//! Emulated processors: computes which of them serves until when, and how much of them was used.
//!
//! The time at which a processor becomes free describes it completely if it serves in the order of arrival. A
//! job waits until then and is done after its service time, however late the timer fires. Such delays make an
//! answer late but cost no capacity.

use std::time::{Duration, Instant};

/// Processors that serve in the order of arrival.
#[derive(Debug)]
pub(crate) struct FifoProcessors {
    /// The time at which each will be free; never empty.
    free_at: Vec<Instant>,
    /// The work that has arrived so far.
    total_work: Duration,
}

impl FifoProcessors {
    /// Creates `count` idle processors, at least one.
    pub(crate) fn new(count: usize, now: Instant) -> Self {
        Self { free_at: vec![now; count.max(1)], total_work: Duration::ZERO }
    }

    /// Adds work that arrives now; returns the time at which it will be done.
    pub(crate) fn serve(&mut self, now: Instant, time: Duration) -> Instant {
        self.total_work += time;
        let earliest = self.free_at.iter_mut().min();
        let Some(earliest) = earliest else { return now + time };
        *earliest = (*earliest).max(now) + time;
        *earliest
    }

    /// Returns the time for which the processors have been busy until now, summed over all.
    pub(crate) fn busy_time(&self, now: Instant) -> Duration {
        // Until it is free, each processor works without a gap.
        let unfinished: Duration =
            self.free_at.iter().map(|free_at| free_at.saturating_duration_since(now)).sum();
        self.total_work.saturating_sub(unfinished)
    }
}

/// The integral of a count over time: the total time for which the counted things were busy.
#[derive(Debug)]
pub(crate) struct UsageIntegral {
    user_count: usize,
    busy_until_change: Duration,
    changed_at: Instant,
}

impl UsageIntegral {
    /// Starts with a count of zero.
    pub(crate) fn new(now: Instant) -> Self {
        Self { user_count: 0, busy_until_change: Duration::ZERO, changed_at: now }
    }

    /// Increments the count.
    pub(crate) fn enter(&mut self, now: Instant) {
        self.busy_until_change = self.busy_time(now);
        (self.user_count, self.changed_at) = (self.user_count + 1, now.max(self.changed_at));
    }

    /// Decrements the count.
    pub(crate) fn leave(&mut self, now: Instant) {
        self.busy_until_change = self.busy_time(now);
        (self.user_count, self.changed_at) = (self.user_count.saturating_sub(1), now.max(self.changed_at));
    }

    /// Returns the integral until now.
    pub(crate) fn busy_time(&self, now: Instant) -> Duration {
        self.busy_until_change + now.saturating_duration_since(self.changed_at) * self.user_count as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn who_comes_first_is_served_first_and_what_is_left_is_not_used_yet() {
        let start = Instant::now();
        let mut single = FifoProcessors::new(1, start);
        assert_eq!(single.serve(start, 10 * MS), start + 10 * MS);
        assert_eq!(single.serve(start + 4 * MS, 5 * MS), start + 15 * MS);
        assert_eq!((single.busy_time(start + 6 * MS), single.busy_time(start + 15 * MS)), (6 * MS, 15 * MS));
        // Idle from 15 to 20.
        assert_eq!(single.serve(start + 20 * MS, MS), start + 21 * MS);
        assert_eq!(single.busy_time(start + 30 * MS), 16 * MS);
        let mut double = FifoProcessors::new(2, start);
        let completions = [10, 4, 3].map(|time| double.serve(start, time * MS));
        assert_eq!(completions, [start + 10 * MS, start + 4 * MS, start + 7 * MS]);
    }

    #[test]
    fn what_is_in_use_adds_up() {
        let start = Instant::now();
        let mut threads = UsageIntegral::new(start);
        threads.enter(start);
        threads.enter(start + 2 * MS);
        assert_eq!(threads.busy_time(start + 5 * MS), 8 * MS);
        threads.leave(start + 5 * MS);
        threads.leave(start + 6 * MS);
        assert_eq!(threads.busy_time(start + 100 * MS), 9 * MS);
    }
}
