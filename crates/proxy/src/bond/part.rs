//! What part of its member's requests a session is.

/// Counts the session's requests beside the member's, of this process, from when it was bound.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Part {
    asked: u32,
    /// What the member had begun before.
    before: u32,
}

impl Part {
    /// With the session's first request, which the member has `begun`, as so many with it.
    pub(super) fn begin(begun: u32) -> Self {
        Self { asked: 1, before: begun.wrapping_sub(1) }
    }

    /// The session has one more.
    pub(super) fn asks(&mut self) {
        self.asked = self.asked.saturating_add(1);
    }

    /// 0 to 1, when the member has begun so many; `None` while that is too few to say. What was long ago counts for half with each
    /// time that it is asked.
    pub(super) fn of(&mut self, begun: u32) -> Option<f32> {
        let all = begun.wrapping_sub(self.before);
        if all < FEW {
            return None;
        }
        let part = (self.asked as f32 / all as f32).min(1.0);
        if all > ENOUGH {
            self.asked /= 2;
            self.before = self.before.wrapping_add(all / 2);
        }
        Some(part)
    }
}

/// Requests of a member that say nothing yet: those of a client that has just come are as many as it asks for at once.
const FEW: u32 = 20;

/// Requests that say it well enough, so that older ones need not count.
const ENOUGH: u32 = 1000;

#[cfg(test)]
mod tests {
    use super::*;

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
            let mut part = Part::begin(begun);
            go_on(&mut part, &mut begun, 9, 9);
            assert_eq!(part.of(begun), None, "nineteen");
            go_on(&mut part, &mut begun, 0, 21);
            assert_eq!(part.of(begun), Some(0.25), "ten of forty");
        }
    }

    #[test]
    fn what_was_long_ago_is_forgotten() {
        let mut begun = 1;
        let mut part = Part::begin(begun);
        go_on(&mut part, &mut begun, 1_000_000, 0);
        assert!(part.of(begun).unwrap() > 0.99);
        // Now a tenth; asked once for each hundred.
        for _ in 0..40 {
            go_on(&mut part, &mut begun, 10, 90);
            part.of(begun);
        }
        let now = part.of(begun).unwrap();
        assert!((0.08..0.15).contains(&now), "{now}");
    }
}
