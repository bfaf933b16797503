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
    free: Vec<Instant>,
    /// The work that has arrived so far.
    work: Duration,
}

impl FifoProcessors {
    /// Creates `count` idle processors, at least one.
    pub(crate) fn new(count: usize, now: Instant) -> Self {
        Self { free: vec![now; count.max(1)], work: Duration::ZERO }
    }

    /// Adds work that arrives now; returns the time at which it will be done.
    pub(crate) fn serve(&mut self, now: Instant, time: Duration) -> Instant {
        self.work += time;
        let first = self.free.iter_mut().min();
        let Some(first) = first else { return now + time };
        *first = (*first).max(now) + time;
        *first
    }

    /// Returns the time for which the processors have been busy until now, summed over all.
    pub(crate) fn busy_time(&self, now: Instant) -> Duration {
        // Until it is free, each processor works without a gap.
        let left: Duration = self.free.iter().map(|free| free.saturating_duration_since(now)).sum();
        self.work.saturating_sub(left)
    }
}

/// The integral of a count over time: the total time for which the counted things were busy.
#[derive(Debug)]
pub(crate) struct UsageIntegral {
    count: usize,
    busy: Duration,
    since: Instant,
}

impl UsageIntegral {
    /// Starts with a count of zero.
    pub(crate) fn new(now: Instant) -> Self {
        Self { count: 0, busy: Duration::ZERO, since: now }
    }

    /// Increments the count.
    pub(crate) fn enter(&mut self, now: Instant) {
        self.busy = self.busy_time(now);
        (self.count, self.since) = (self.count + 1, now.max(self.since));
    }

    /// Decrements the count.
    pub(crate) fn leave(&mut self, now: Instant) {
        self.busy = self.busy_time(now);
        (self.count, self.since) = (self.count.saturating_sub(1), now.max(self.since));
    }

    /// Returns the integral until now.
    pub(crate) fn busy_time(&self, now: Instant) -> Duration {
        self.busy + now.saturating_duration_since(self.since) * self.count as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn who_comes_first_is_served_first_and_what_is_left_is_not_used_yet() {
        let begin = Instant::now();
        let mut one = FifoProcessors::new(1, begin);
        assert_eq!(one.serve(begin, 10 * MS), begin + 10 * MS);
        assert_eq!(one.serve(begin + 4 * MS, 5 * MS), begin + 15 * MS);
        assert_eq!((one.busy_time(begin + 6 * MS), one.busy_time(begin + 15 * MS)), (6 * MS, 15 * MS));
        // Idle from 15 to 20.
        assert_eq!(one.serve(begin + 20 * MS, MS), begin + 21 * MS);
        assert_eq!(one.busy_time(begin + 30 * MS), 16 * MS);
        let mut two = FifoProcessors::new(2, begin);
        let ends = [10, 4, 3].map(|time| two.serve(begin, time * MS));
        assert_eq!(ends, [begin + 10 * MS, begin + 4 * MS, begin + 7 * MS]);
    }

    #[test]
    fn what_is_in_use_adds_up() {
        let begin = Instant::now();
        let mut threads = UsageIntegral::new(begin);
        threads.enter(begin);
        threads.enter(begin + 2 * MS);
        assert_eq!(threads.busy_time(begin + 5 * MS), 8 * MS);
        threads.leave(begin + 5 * MS);
        threads.leave(begin + 6 * MS);
        assert_eq!(threads.busy_time(begin + 100 * MS), 9 * MS);
    }
}
