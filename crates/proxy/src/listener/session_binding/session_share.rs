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
    pub(super) fn begin(begun: u32, now: Time) -> Self {
        Self { own_requests: 1, other_requests_base: begun.wrapping_sub(1), since: now }
    }

    /// Counts another request, which is number `begun` of the member. Old requests decay.
    pub(super) fn record_request(&mut self, begun: u32, now: Time) {
        let (all, long) = (begun.wrapping_sub(self.other_requests_base), now.since(self.since));
        if long > DECAY_AGE && all > 2 * MIN_REQUESTS {
            let kept = (DECAY_AGE.as_secs_f32() / long.as_secs_f32())
                .max(MIN_REQUESTS as f32 / all as f32 * 2.0)
                / 2.0;
            self.own_requests = (self.own_requests as f32 * kept).round() as u32;
            (self.other_requests_base, self.since) =
                (begun.wrapping_sub((all as f32 * kept) as u32), now - long.mul_f32(kept));
        }
        self.own_requests = self.own_requests.saturating_add(1);
    }

    /// Returns the share when the member has begun `begun` requests; `None` while the requests or the time
    /// are too few.
    pub(super) fn estimate(&self, begun: u32, now: Time) -> Option<ShareEstimate> {
        let (all, long) = (begun.wrapping_sub(self.other_requests_base), now.since(self.since));
        if all < MIN_REQUESTS || long < MIN_SPAN {
            return None;
        }
        let asked = self.own_requests as f32;
        Some(ShareEstimate { member_share: (asked / all as f32).min(1.0), rate: asked / long.as_secs_f32() })
    }
}

/// The minimum requests of a member, and time, for a result: a new client's first requests are as many as it
/// sends at once.
const MIN_REQUESTS: u32 = 20;
const MIN_SPAN: Duration = Duration::from_millis(500);

/// The age beyond which half of the count is dropped at a time, down to the minimum number of the member's
/// requests.
const DECAY_AGE: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    const T: Duration = Duration::from_secs(1);

    fn at(second: u32) -> Time {
        Time(1) + T * second
    }

    /// Adds requests second by second: `own` of the session, and `others` of other sessions.
    fn go_on(
        part: &mut ShareCounter,
        begun: &mut u32,
        seconds: core::ops::Range<u32>,
        (own, others): (u32, u32),
    ) {
        for second in seconds {
            *begun = begun.wrapping_add(others);
            for _ in 0..own {
                *begun = begun.wrapping_add(1);
                part.record_request(*begun, at(second));
            }
        }
    }

    #[test]
    fn it_counts_from_when_the_session_was_bound() {
        // The member's count wraps around to 0 meanwhile.
        for before in [0, 1_000_000, u32::MAX - 10] {
            let mut begun = before.wrapping_add(1);
            let mut part = ShareCounter::begin(begun, at(1000));
            go_on(&mut part, &mut begun, 1000..1001, (9, 9));
            assert_eq!(part.estimate(begun, at(1002)), None, "nineteen");
            go_on(&mut part, &mut begun, 1001..1002, (0, 21));
            assert_eq!(part.estimate(begun, at(1000) + T / 4), None, "a quarter of a second");
            assert_eq!(
                part.estimate(begun, at(1002)),
                Some(ShareEstimate { member_share: 0.25, rate: 5.0 }),
                "ten of forty"
            );
        }
    }

    #[test]
    fn what_was_long_ago_is_forgotten() {
        let near = |part: &ShareCounter, begun, second, here: f32, rate: f32| {
            let is = part.estimate(begun, at(second)).unwrap();
            assert!(
                (is.member_share / here - 1.0).abs() < 0.15 && (is.rate / rate - 1.0).abs() < 0.15,
                "{is:?}"
            );
        };
        let mut begun = 1;
        let mut part = ShareCounter::begin(begun, at(0));
        go_on(&mut part, &mut begun, 0..10_000, (100, 0));
        near(&part, begun, 10_000, 1.0, 100.0);
        go_on(&mut part, &mut begun, 10_000..10_060, (10, 90));
        near(&part, begun, 10_060, 0.1, 10.0);
        // After an hour in which others had as many.
        go_on(&mut part, &mut begun, 10_060..13_660, (0, 100));
        go_on(&mut part, &mut begun, 13_660..13_720, (50, 50));
        near(&part, begun, 13_720, 0.5, 50.0);
        // If requests are few, they count for longer.
        go_on(&mut part, &mut begun, 13_720..14_720, (0, 0));
        for second in (14_720..15_720).step_by(10) {
            go_on(&mut part, &mut begun, second..second + 1, (1, 3));
        }
        near(&part, begun, 15_720, 0.25, 0.1);
    }
}
