//! A token bucket: limits the burst and the rate.

use std::time::{Duration, Instant};

/// The maximum burst and rate per second of one member's reports.
const MAX_RATE: f64 = 50.0;

/// The remaining tokens of a member, and its dropped reports.
#[derive(Debug)]
pub(crate) struct TokenBucket {
    tokens: f64,
    refilled_at: Instant,
    /// The number of dropped reports.
    dropped: u64,
    last_drop_at: Option<Instant>,
}

/// The verdict on a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RateVerdict {
    /// The report is accepted.
    Accepted,
    /// The report is dropped, the first after a quiet time: worth an event.
    FloodStarted,
    /// The report is dropped.
    Dropped,
}

impl TokenBucket {
    pub(crate) fn new(now: Instant) -> Self {
        Self { tokens: MAX_RATE, refilled_at: now, dropped: 0, last_drop_at: None }
    }

    pub(crate) fn take(&mut self, now: Instant) -> RateVerdict {
        let elapsed = now.saturating_duration_since(self.refilled_at).as_secs_f64();
        self.tokens = (self.tokens + elapsed * MAX_RATE).min(MAX_RATE);
        self.refilled_at = self.refilled_at.max(now);
        if self.tokens >= 1.0 {
            self.tokens -= 1.0;
            return RateVerdict::Accepted;
        }
        self.dropped += 1;
        let was_quiet = self
            .last_drop_at
            .is_none_or(|last_drop| now.saturating_duration_since(last_drop) >= FLOOD_QUIET_TIME);
        self.last_drop_at = Some(now);
        if was_quiet { RateVerdict::FloodStarted } else { RateVerdict::Dropped }
    }

    pub(crate) fn dropped(&self) -> u64 {
        self.dropped
    }
}

/// The quiet time after which another flood is reported.
const FLOOD_QUIET_TIME: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_holds_fifty_and_a_flood_is_told_once() {
        let start = Instant::now();
        let mut bucket = TokenBucket::new(start);
        let at = |milliseconds: u64| start + Duration::from_millis(milliseconds);
        assert!((0..50).all(|_| bucket.take(at(0)) == RateVerdict::Accepted));
        assert_eq!(bucket.take(at(0)), RateVerdict::FloodStarted);
        assert_eq!(bucket.take(at(19)), RateVerdict::Dropped);
        assert_eq!(bucket.take(at(40)), RateVerdict::Accepted);
        let accepted =
            (0..10_000).filter(|step| bucket.take(at(1000 + step)) == RateVerdict::Accepted).count();
        assert!(
            (540..=552).contains(&accepted),
            "{accepted} in ten seconds, and one second's worth saved up"
        );
        assert_eq!(bucket.dropped() as usize, 2 + 10_000 - accepted);
        assert_eq!(bucket.take(at(80_000)), RateVerdict::Accepted);
        assert!((0..49).all(|_| bucket.take(at(80_000)) == RateVerdict::Accepted));
        assert_eq!(bucket.take(at(80_000)), RateVerdict::FloodStarted, "a new one");
        // A timestamp from the past adds no tokens.
        assert_eq!(bucket.take(at(0)), RateVerdict::Dropped);
    }
}
