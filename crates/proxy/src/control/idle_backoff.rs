//! The back-off of examining idle groups: those without new work for a while and without work in flight.
//!
//! Most of a thousand groups are idle most of the time, and each examination reads the counters of every
//! member. A group that was idle for [`IDLE_THRESHOLD`] seconds is examined every [`IDLE_INTERVAL`] seconds
//! only; different groups have different turns. New work wakes it, which the next examination notices.

/// The examinations (one per second) of a group after it has become idle, before it is examined less often.
/// Recent latencies and rates decay meanwhile.
const IDLE_THRESHOLD: u32 = 60;
/// The interval of examinations from then on, in seconds. Not all events begin with a request: clients may
/// connect to members directly, and ejections may have been delayed.
const IDLE_INTERVAL: u32 = 8;

/// The idle time of a group.
#[derive(Debug, Default)]
pub(crate) struct IdleBackoff {
    /// The work begun, up to the last second.
    last_begun: u64,
    /// The seconds since work was begun or in flight.
    idle_seconds: u32,
}

impl IdleBackoff {
    /// Creates the state of a group whose turn is the `nth`.
    pub(crate) fn new(index: usize) -> Self {
        // A value below [`IDLE_THRESHOLD`] is not idle, so the turn must be preserved.
        Self { last_begun: 0, idle_seconds: (index % IDLE_INTERVAL as usize) as u32 }
    }

    /// Counts another second, and returns `true` if the group is to be examined; `begun` is the work begun so
    /// far. `busy` returns `true` if work is in flight or another party may have changed something. It is
    /// called only for a group that is examined.
    pub(crate) fn advance(&mut self, requests_begun: u64, is_busy: impl FnOnce() -> bool) -> bool {
        if std::mem::replace(&mut self.last_begun, requests_begun) != requests_begun {
            self.idle_seconds %= IDLE_INTERVAL;
            return true;
        }
        self.idle_seconds = self.idle_seconds.saturating_add(1);
        let is_due = self.idle_seconds < IDLE_THRESHOLD || self.idle_seconds.is_multiple_of(IDLE_INTERVAL);
        if is_due && is_busy() {
            self.idle_seconds %= IDLE_INTERVAL;
        }
        is_due
    }

    /// Returns `true` if the group is idle, unless more work than `begun` was begun.
    pub(crate) fn is_idle(&self, requests_begun: u64) -> bool {
        self.idle_seconds >= IDLE_THRESHOLD && self.last_begun == requests_begun
    }

    /// Wakes the group, as its members or settings have changed.
    pub(crate) fn wake(&mut self) {
        self.idle_seconds %= IDLE_INTERVAL;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the examinations among a number of seconds.
    fn count_due(backoff: &mut IdleBackoff, requests_begun: u64, count: u32, is_busy: bool) -> u32 {
        (0..count).map(|_| u32::from(backoff.advance(requests_begun, || is_busy))).sum()
    }

    #[test]
    fn what_is_quiet_for_long_is_looked_at_seldom() {
        let mut backoff = IdleBackoff::new(3);
        assert!(!backoff.is_idle(0));
        assert!(count_due(&mut backoff, 0, IDLE_THRESHOLD, false) >= IDLE_THRESHOLD - IDLE_INTERVAL);
        assert!(backoff.is_idle(0));
        assert_eq!(count_due(&mut backoff, 0, 80, false), 80 / IDLE_INTERVAL);
        // Work was begun: the next second is examined, and all after it for a while.
        assert!(!backoff.is_idle(1));
        assert_eq!(count_due(&mut backoff, 1, 30, false), 30);
        assert!(!backoff.is_idle(1));
    }

    #[test]
    fn what_is_under_way_keeps_it_awake() {
        let mut backoff = IdleBackoff::default();
        assert_eq!(count_due(&mut backoff, 1, 1000, true), 1000);
        // The group became busy without a notification while it was idle: the next examination detects it.
        count_due(&mut backoff, 1, 100, false);
        assert!(backoff.is_idle(1));
        assert!(count_due(&mut backoff, 1, IDLE_INTERVAL + 40, true) >= 40);
        assert!(!backoff.is_idle(1));
        count_due(&mut backoff, 1, 100, false);
        backoff.wake();
        assert!(!backoff.is_idle(1));
    }

    #[test]
    fn groups_take_turns() {
        let mut groups: Vec<IdleBackoff> = (0..800).map(IdleBackoff::new).collect();
        for _ in 0..100 {
            for backoff in &mut groups {
                backoff.advance(0, || false);
            }
        }
        for _ in 0..2 * IDLE_INTERVAL {
            let due_count: usize =
                groups.iter_mut().map(|backoff| usize::from(backoff.advance(0, || false))).sum();
            assert_eq!(due_count, 800 / IDLE_INTERVAL as usize);
        }
    }
}
