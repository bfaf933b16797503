//! How many of its member's requests are a session's, and how often it asks.

use std::time::Duration;

use plimsoll_brain::Time;

/// Counts the session's requests, beside the member's of this process and beside time, from when it was bound.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Part {
    asked: u32,
    /// What the member had begun before.
    before: u32,
    since: Time,
}

/// What that comes to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Asked {
    /// Which part of the member's requests from here is the session's, above 0, to 1.
    pub(super) here: f32,
    /// The session's requests a second.
    pub(super) rate: f32,
}

impl Part {
    /// With the session's first request, with which the member has `begun` so many.
    pub(super) fn begin(begun: u32, now: Time) -> Self {
        Self { asked: 1, before: begun.wrapping_sub(1), since: now }
    }

    /// The session has one more.
    pub(super) fn asks(&mut self) {
        self.asked = self.asked.saturating_add(1);
    }

    /// When the member has begun so many; `None` while that is too few, or too short a time, to say. Of what was long ago no more is kept
    /// than says as much again.
    pub(super) fn look(&mut self, begun: u32, now: Time) -> Option<Asked> {
        let (all, long) = (begun.wrapping_sub(self.before), now.since(self.since));
        // A member's count starts again at 0 after 2^32: so long ago nothing counts.
        if self.asked > all {
            *self = Self { asked: 0, before: begun, since: now };
        }
        if self.asked == 0 || all < FEW || long < SHORT {
            return None;
        }
        let asked =
            Asked { here: self.asked as f32 / all as f32, rate: self.asked as f32 / long.as_secs_f32() };
        let kept = (ENOUGH as f32 / all as f32).max(LONG.as_secs_f32() / long.as_secs_f32());
        if kept < 1.0 {
            let all = (all as f32 * kept).ceil();
            self.asked = (asked.here * all).round().max(1.0) as u32;
            self.before = begun.wrapping_sub(all as u32);
            self.since = now - long.mul_f32(kept);
        }
        Some(asked)
    }
}

/// Requests of a member, and time, that say nothing yet: those of a client that has just come are as many as it asks for at once.
const FEW: u32 = 20;
const SHORT: Duration = Duration::from_millis(500);

/// Both, by which it is known well enough.
const ENOUGH: u32 = 1000;
const LONG: Duration = Duration::from_secs(20);

#[cfg(test)]
mod tests {
    use super::*;

    const T: Duration = Duration::from_secs(1);

    fn at(second: u64) -> Time {
        Time(0) + Duration::from_secs(second)
    }

    /// So many of the member's next requests are the session's, and so many are others'.
    fn go_on(part: &mut Part, begun: &mut u32, own: u32, others: u32) {
        (0..own).for_each(|_| part.asks());
        *begun = begun.wrapping_add(own + others);
    }

    #[test]
    fn it_counts_from_when_the_session_was_bound() {
        // The member's count starts again at 0 meanwhile.
        for before in [0, 1_000_000, u32::MAX - 10] {
            let mut begun = before.wrapping_add(1);
            let mut part = Part::begin(begun, at(1000));
            go_on(&mut part, &mut begun, 9, 9);
            assert_eq!(part.look(begun, at(1002)), None, "nineteen");
            go_on(&mut part, &mut begun, 0, 21);
            assert_eq!(part.look(begun, at(1000) + T / 4), None, "a quarter of a second");
            assert_eq!(part.look(begun, at(1002)), Some(Asked { here: 0.25, rate: 5.0 }), "ten of forty");
        }
    }

    #[test]
    fn what_was_long_ago_is_forgotten() {
        let mut begun = 1;
        let mut part = Part::begin(begun, at(0));
        go_on(&mut part, &mut begun, 1_000_000, 0);
        assert!(part.look(begun, at(10_000)).unwrap().here > 0.99);
        // It becomes a tenth, and 10 a second where it was 100.
        for second in 10_001..10_100 {
            go_on(&mut part, &mut begun, 10, 90);
            part.look(begun, at(second));
        }
        let Asked { here, rate } = part.look(begun, at(10_100)).unwrap();
        assert!((0.09..0.12).contains(&here) && (9.0..12.0).contains(&rate), "{here} {rate}");
    }

    #[test]
    fn a_count_that_began_again_unseen_counts_from_then() {
        let mut begun = 1;
        let mut part = Part::begin(begun, at(0));
        go_on(&mut part, &mut begun, 5000, 0);
        begun = 100;
        assert_eq!(part.look(begun, at(100)), None);
        go_on(&mut part, &mut begun, 10, 30);
        assert_eq!(part.look(begun, at(102)), Some(Asked { here: 0.25, rate: 5.0 }));
    }
}
