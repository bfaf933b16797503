//! A token bucket: limits the burst and the rate.

use std::time::{Duration, Instant};

/// The maximum burst and rate per second of one member's reports.
const RATE: f64 = 50.0;

/// The remaining tokens of a member, and its dropped reports.
#[derive(Debug)]
pub(crate) struct Bucket {
    tokens: f64,
    filled: Instant,
    /// The number of dropped reports.
    dropped: u64,
    last_drop: Option<Instant>,
}

/// The verdict on a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Passage {
    /// The report is accepted.
    Free,
    /// The report is dropped, the first after a quiet time: worth an event.
    Flood,
    /// The report is dropped.
    Dropped,
}

impl Bucket {
    pub(crate) fn new(now: Instant) -> Self {
        Self { tokens: RATE, filled: now, dropped: 0, last_drop: None }
    }

    pub(crate) fn take(&mut self, now: Instant) -> Passage {
        let since = now.saturating_duration_since(self.filled).as_secs_f64();
        self.tokens = (self.tokens + since * RATE).min(RATE);
        self.filled = self.filled.max(now);
        if self.tokens >= 1.0 {
            self.tokens -= 1.0;
            return Passage::Free;
        }
        self.dropped += 1;
        let quiet = self.last_drop.is_none_or(|last| now.saturating_duration_since(last) >= QUIET);
        self.last_drop = Some(now);
        if quiet { Passage::Flood } else { Passage::Dropped }
    }

    pub(crate) fn dropped(&self) -> u64 {
        self.dropped
    }
}

/// The quiet time after which another flood is reported.
const QUIET: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_holds_fifty_and_a_flood_is_told_once() {
        let start = Instant::now();
        let mut bucket = Bucket::new(start);
        let at = |milliseconds: u64| start + Duration::from_millis(milliseconds);
        assert!((0..50).all(|_| bucket.take(at(0)) == Passage::Free));
        assert_eq!(bucket.take(at(0)), Passage::Flood);
        assert_eq!(bucket.take(at(19)), Passage::Dropped);
        assert_eq!(bucket.take(at(40)), Passage::Free);
        let free = (0..10_000).filter(|step| bucket.take(at(1000 + step)) == Passage::Free).count();
        assert!((540..=552).contains(&free), "{free} in ten seconds, and one second's worth saved up");
        assert_eq!(bucket.dropped() as usize, 2 + 10_000 - free);
        assert_eq!(bucket.take(at(80_000)), Passage::Free);
        assert!((0..49).all(|_| bucket.take(at(80_000)) == Passage::Free));
        assert_eq!(bucket.take(at(80_000)), Passage::Flood, "a new one");
        // A timestamp from the past adds no tokens.
        assert_eq!(bucket.take(at(0)), Passage::Dropped);
    }
}
