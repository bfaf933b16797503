//! How fast a client is sent round while members are under alert.

use std::time::Duration;

use plimsoll_brain::Time;

/// Between the others: 40 a second.
const APART: Duration = Duration::from_millis(25);

/// Longest wait for one.
const LONGEST: Duration = Duration::from_secs(1);

/// A token bucket: full at first, one token for each forward.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pace {
    /// When it will be full again; 0 for full.
    full: Time,
}

impl Pace {
    /// How long the next forward is to wait from now, where `burst` are given at once and each of `cores` sees its part;
    /// it counts as given.
    pub(super) fn hold(&mut self, now: Time, burst: u32, cores: u32) -> Duration {
        self.full = self.full.max(now) + APART * cores;
        let free = now + APART * cores * burst;
        // Who gave up meanwhile no longer comes first.
        self.full = self.full.min(free + LONGEST);
        if self.full > free { self.full.since(free) } else { Duration::ZERO }
    }

    /// Does it remember nothing?
    pub(super) fn full(&self, now: Time) -> bool {
        self.full <= now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_are_free_and_the_rest_come_forty_a_second() {
        let (mut pace, mut now, mut given) = (Pace::default(), Time(0), 0);
        let end = now + Duration::from_secs(10);
        while now < end {
            // The client is back a fifth of a millisecond after it was forwarded.
            now = now + pace.hold(now, 4, 1) + Duration::from_micros(200);
            given += 1;
        }
        assert!((390..=410).contains(&given), "{given}");
        // Who comes back rarely never waits.
        let mut pace = Pace::default();
        assert!((0..100).all(|turn| pace.hold(Time(0) + Duration::from_millis(30) * turn, 4, 1).is_zero()));
    }
}
