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
    begun: u64,
    /// The seconds since work was begun or in flight.
    idle_seconds: u32,
}

impl IdleBackoff {
    /// Creates the state of a group whose turn is the `nth`.
    pub(crate) fn new(nth: usize) -> Self {
        // A value below [`IDLE_THRESHOLD`] is not idle, so the turn must be preserved.
        Self { begun: 0, idle_seconds: (nth % IDLE_INTERVAL as usize) as u32 }
    }

    /// Counts another second, and returns `true` if the group is to be examined; `begun` is the work begun so
    /// far. `busy` returns `true` if work is in flight or another party may have changed something. It is
    /// called only for a group that is examined.
    pub(crate) fn advance(&mut self, begun: u64, busy: impl FnOnce() -> bool) -> bool {
        if std::mem::replace(&mut self.begun, begun) != begun {
            self.idle_seconds %= IDLE_INTERVAL;
            return true;
        }
        self.idle_seconds = self.idle_seconds.saturating_add(1);
        let looks = self.idle_seconds < IDLE_THRESHOLD || self.idle_seconds.is_multiple_of(IDLE_INTERVAL);
        if looks && busy() {
            self.idle_seconds %= IDLE_INTERVAL;
        }
        looks
    }

    /// Returns `true` if the group is idle, unless more work than `begun` was begun.
    pub(crate) fn is_idle(&self, begun: u64) -> bool {
        self.idle_seconds >= IDLE_THRESHOLD && self.begun == begun
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
    fn looks(rest: &mut IdleBackoff, begun: u64, count: u32, busy: bool) -> u32 {
        (0..count).map(|_| u32::from(rest.advance(begun, || busy))).sum()
    }

    #[test]
    fn what_is_quiet_for_long_is_looked_at_seldom() {
        let mut rest = IdleBackoff::new(3);
        assert!(!rest.is_idle(0));
        assert!(looks(&mut rest, 0, IDLE_THRESHOLD, false) >= IDLE_THRESHOLD - IDLE_INTERVAL);
        assert!(rest.is_idle(0));
        assert_eq!(looks(&mut rest, 0, 80, false), 80 / IDLE_INTERVAL);
        // Work was begun: the next second is examined, and all after it for a while.
        assert!(!rest.is_idle(1));
        assert_eq!(looks(&mut rest, 1, 30, false), 30);
        assert!(!rest.is_idle(1));
    }

    #[test]
    fn what_is_under_way_keeps_it_awake() {
        let mut rest = IdleBackoff::default();
        assert_eq!(looks(&mut rest, 1, 1000, true), 1000);
        // The group became busy without a notification while it was idle: the next examination detects it.
        looks(&mut rest, 1, 100, false);
        assert!(rest.is_idle(1));
        assert!(looks(&mut rest, 1, IDLE_INTERVAL + 40, true) >= 40);
        assert!(!rest.is_idle(1));
        looks(&mut rest, 1, 100, false);
        rest.wake();
        assert!(!rest.is_idle(1));
    }

    #[test]
    fn groups_take_turns() {
        let mut groups: Vec<IdleBackoff> = (0..800).map(IdleBackoff::new).collect();
        for _ in 0..100 {
            for rest in &mut groups {
                rest.advance(0, || false);
            }
        }
        for _ in 0..2 * IDLE_INTERVAL {
            let seen: usize = groups.iter_mut().map(|rest| usize::from(rest.advance(0, || false))).sum();
            assert_eq!(seen, 800 / IDLE_INTERVAL as usize);
        }
    }
}
