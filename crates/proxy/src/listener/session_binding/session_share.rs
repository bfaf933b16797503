//! A session's share of its member's requests, and its request rate.

use std::time::Duration;

use plimsoll_brain::Time;

/// Counts the session's requests relative to the member's requests from this process, and to time, mostly
/// over the last ten seconds.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ShareCounter {
    own_requests: u32,
    /// The number of requests that the member had begun before.
    other_requests_base: u32,
    since: Time,
}

/// The result of the count.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct ShareEstimate {
    /// The session's share of the member's requests from this process: above 0, at most 1.
    pub(super) member_share: f32,
    /// The session's requests per second.
    pub(super) rate: f32,
}

impl ShareCounter {
    /// Starts the count at the session's first request, which is number `begun` of the member.
    pub(super) fn begin(requests_begun: u32, now: Time) -> Self {
        Self { own_requests: 1, other_requests_base: requests_begun.wrapping_sub(1), since: now }
    }

    /// Counts another request, which is number `begun` of the member. Old requests decay.
    pub(super) fn record_request(&mut self, requests_begun: u32, now: Time) {
        let (total_requests, elapsed) =
            (requests_begun.wrapping_sub(self.other_requests_base), now.since(self.since));
        if elapsed > DECAY_AGE && total_requests > 2 * MIN_REQUESTS {
            let decay = (DECAY_AGE.as_secs_f32() / elapsed.as_secs_f32())
                .max(MIN_REQUESTS as f32 / total_requests as f32 * 2.0)
                / 2.0;
            self.own_requests = (self.own_requests as f32 * decay).round() as u32;
            (self.other_requests_base, self.since) = (
                requests_begun.wrapping_sub((total_requests as f32 * decay) as u32),
                now - elapsed.mul_f32(decay),
            );
        }
        self.own_requests = self.own_requests.saturating_add(1);
    }

    /// Returns the share when the member has begun `begun` requests; `None` while the requests or the time
    /// are too few.
    pub(super) fn estimate(&self, requests_begun: u32, now: Time) -> Option<ShareEstimate> {
        let (total_requests, elapsed) =
            (requests_begun.wrapping_sub(self.other_requests_base), now.since(self.since));
        if total_requests < MIN_REQUESTS || elapsed < MIN_DURATION {
            return None;
        }
        let own_requests = self.own_requests as f32;
        Some(ShareEstimate {
            member_share: (own_requests / total_requests as f32).min(1.0),
            rate: own_requests / elapsed.as_secs_f32(),
        })
    }
}

/// The minimum requests of a member, and time, for a result: a new client's first requests are as many as it
/// sends at once.
const MIN_REQUESTS: u32 = 20;
const MIN_DURATION: Duration = Duration::from_millis(500);

/// The age beyond which half of the count is dropped at a time, down to the minimum number of the member's
/// requests.
const DECAY_AGE: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn at(second: u32) -> Time {
        Time(1) + SECOND * second
    }

    /// Adds requests second by second: `own` of the session, and `others` of other sessions.
    fn send_requests(
        counter: &mut ShareCounter,
        requests_begun: &mut u32,
        seconds: core::ops::Range<u32>,
        (own_per_second, others_per_second): (u32, u32),
    ) {
        for second in seconds {
            *requests_begun = requests_begun.wrapping_add(others_per_second);
            for _ in 0..own_per_second {
                *requests_begun = requests_begun.wrapping_add(1);
                counter.record_request(*requests_begun, at(second));
            }
        }
    }

    #[test]
    fn it_counts_from_when_the_session_was_bound() {
        // The member's count wraps around to 0 meanwhile.
        for initial_count in [0, 1_000_000, u32::MAX - 10] {
            let mut requests_begun = initial_count.wrapping_add(1);
            let mut counter = ShareCounter::begin(requests_begun, at(1000));
            send_requests(&mut counter, &mut requests_begun, 1000..1001, (9, 9));
            assert_eq!(counter.estimate(requests_begun, at(1002)), None, "nineteen");
            send_requests(&mut counter, &mut requests_begun, 1001..1002, (0, 21));
            assert_eq!(
                counter.estimate(requests_begun, at(1000) + SECOND / 4),
                None,
                "a quarter of a second"
            );
            assert_eq!(
                counter.estimate(requests_begun, at(1002)),
                Some(ShareEstimate { member_share: 0.25, rate: 5.0 }),
                "ten of forty"
            );
        }
    }

    #[test]
    fn what_was_long_ago_is_forgotten() {
        let assert_near = |counter: &ShareCounter, requests_begun, second, member_share: f32, rate: f32| {
            let estimate = counter.estimate(requests_begun, at(second)).unwrap();
            assert!(
                (estimate.member_share / member_share - 1.0).abs() < 0.15
                    && (estimate.rate / rate - 1.0).abs() < 0.15,
                "{estimate:?}"
            );
        };
        let mut requests_begun = 1;
        let mut counter = ShareCounter::begin(requests_begun, at(0));
        send_requests(&mut counter, &mut requests_begun, 0..10_000, (100, 0));
        assert_near(&counter, requests_begun, 10_000, 1.0, 100.0);
        send_requests(&mut counter, &mut requests_begun, 10_000..10_060, (10, 90));
        assert_near(&counter, requests_begun, 10_060, 0.1, 10.0);
        // After an hour in which others had as many.
        send_requests(&mut counter, &mut requests_begun, 10_060..13_660, (0, 100));
        send_requests(&mut counter, &mut requests_begun, 13_660..13_720, (50, 50));
        assert_near(&counter, requests_begun, 13_720, 0.5, 50.0);
        // If requests are few, they count for longer.
        send_requests(&mut counter, &mut requests_begun, 13_720..14_720, (0, 0));
        for second in (14_720..15_720).step_by(10) {
            send_requests(&mut counter, &mut requests_begun, second..second + 1, (1, 3));
        }
        assert_near(&counter, requests_begun, 15_720, 0.25, 0.1);
    }
}
