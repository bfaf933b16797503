//! Rate limiting of a client's redirects while members are under alert.

use std::time::Duration;

use plimsoll_brain::Time;

/// The interval between redirects after the burst: 40 per second.
const TOKEN_INTERVAL: Duration = Duration::from_millis(25);

/// The maximum wait for a redirect.
const MAX_WAIT: Duration = Duration::from_secs(1);

/// A token bucket: full at first, with one token for each redirect.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RedirectBucket {
    /// The time at which the bucket will be full again; 0 for full.
    full_at: Time,
}

impl RedirectBucket {
    /// Takes a token, and returns the delay of the next redirect. `burst` redirects are immediate; each of
    /// `cores` gets its share of the requests.
    pub(super) fn take_token(&mut self, now: Time, burst: u32, cores: u32) -> Duration {
        self.full_at = self.full_at.max(now) + TOKEN_INTERVAL * cores;
        let free_until = now + TOKEN_INTERVAL * cores * burst;
        // Clients that gave up meanwhile no longer count.
        self.full_at = self.full_at.min(free_until + MAX_WAIT);
        if self.full_at > free_until { self.full_at.since(free_until) } else { Duration::ZERO }
    }

    /// Returns `true` if the bucket is full.
    pub(super) fn is_full(&self, now: Time) -> bool {
        self.full_at <= now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_are_free_and_the_rest_come_forty_a_second() {
        let (mut bucket, mut now, mut granted) = (RedirectBucket::default(), Time(0), 0);
        let end = now + Duration::from_secs(10);
        while now < end {
            // The client is back a fifth of a millisecond after its redirect.
            now = now + bucket.take_token(now, 4, 1) + Duration::from_micros(200);
            granted += 1;
        }
        assert!((390..=410).contains(&granted), "{granted}");
        // A client that returns rarely never waits.
        let mut bucket = RedirectBucket::default();
        assert!(
            (0..100)
                .all(|index| bucket.take_token(Time(0) + Duration::from_millis(30) * index, 4, 1).is_zero())
        );
    }
}
