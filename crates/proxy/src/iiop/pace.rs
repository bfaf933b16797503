//! Rate limiting of a client's redirects while members are under alert.

use std::time::Duration;

use plimsoll_brain::Time;

/// The interval between redirects after the burst: 40 per second.
const APART: Duration = Duration::from_millis(25);

/// The maximum wait for a redirect.
const LONGEST: Duration = Duration::from_secs(1);

/// A token bucket: full at first, with one token for each redirect.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pace {
    /// The time at which the bucket will be full again; 0 for full.
    full: Time,
}

impl Pace {
    /// Takes a token, and returns the delay of the next redirect. `burst` redirects are immediate; each of
    /// `cores` gets its share of the requests.
    pub(super) fn hold(&mut self, now: Time, burst: u32, cores: u32) -> Duration {
        self.full = self.full.max(now) + APART * cores;
        let free = now + APART * cores * burst;
        // Clients that gave up meanwhile no longer count.
        self.full = self.full.min(free + LONGEST);
        if self.full > free { self.full.since(free) } else { Duration::ZERO }
    }

    /// Returns `true` if the bucket is full.
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
            // The client is back a fifth of a millisecond after its redirect.
            now = now + pace.hold(now, 4, 1) + Duration::from_micros(200);
            given += 1;
        }
        assert!((390..=410).contains(&given), "{given}");
        // A client that returns rarely never waits.
        let mut pace = Pace::default();
        assert!((0..100).all(|turn| pace.hold(Time(0) + Duration::from_millis(30) * turn, 4, 1).is_zero()));
    }
}
