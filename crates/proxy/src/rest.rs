//! When the slow path need not look at a group: nothing was begun with it for a while, and nothing is under way.
//!
//! Of a thousand groups most have nothing to do most of the time, and each look reads the counts of every member. So a group that
//! has been quiet for [`AWAKE`] looks is looked at each [`SELDOM`]th time only, each group at a turn of its own; whatever is begun
//! with it wakes it, which is noticed with the next look.

/// Looks (one a second) for which a group that has become quiet is looked at as before: times and rates of late come to rest.
const AWAKE: u32 = 60;
/// From then on it is looked at each so many times, because not all that happens begins with a request: clients that go to members
/// by themselves, ejections that had to wait.
const SELDOM: u32 = 8;

/// How long a group has been quiet.
#[derive(Debug, Default)]
pub(crate) struct Rest {
    /// Pieces of work begun, up to the last look.
    begun: u64,
    /// Looks since something was begun or under way.
    quiet: u32,
}

impl Rest {
    /// A group whose turn is the `nth`.
    pub(crate) fn new(nth: usize) -> Self {
        // What is below `AWAKE` is no rest, so a turn must not come off it.
        Self { begun: 0, quiet: (nth % SELDOM as usize) as u32 }
    }

    /// Another second is over, up to which so much was begun: is the group to be looked at? `busy` says whether something is under
    /// way or somebody else may have changed something, and is asked only of a group that is looked at.
    pub(crate) fn look(&mut self, begun: u64, busy: impl FnOnce() -> bool) -> bool {
        if std::mem::replace(&mut self.begun, begun) != begun {
            self.quiet %= SELDOM;
            return true;
        }
        self.quiet = self.quiet.saturating_add(1);
        let looks = self.quiet < AWAKE || self.quiet.is_multiple_of(SELDOM);
        if looks && busy() {
            self.quiet %= SELDOM;
        }
        looks
    }

    /// Is it not looked at, as long as no more was begun than this?
    pub(crate) fn rests(&self, begun: u64) -> bool {
        self.quiet >= AWAKE && self.begun == begun
    }

    /// It is another group now: with other members, or other settings.
    pub(crate) fn wake(&mut self) {
        self.quiet %= SELDOM;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Which of so many looks were taken.
    fn looks(rest: &mut Rest, begun: u64, count: u32, busy: bool) -> u32 {
        (0..count).map(|_| u32::from(rest.look(begun, || busy))).sum()
    }

    #[test]
    fn what_is_quiet_for_long_is_looked_at_seldom() {
        let mut rest = Rest::new(3);
        assert!(!rest.rests(0));
        assert!(looks(&mut rest, 0, AWAKE, false) >= AWAKE - SELDOM);
        assert!(rest.rests(0));
        assert_eq!(looks(&mut rest, 0, 80, false), 80 / SELDOM);
        // Something was begun: it is seen with the next look, and all looks after it for a while.
        assert!(!rest.rests(1));
        assert_eq!(looks(&mut rest, 1, 30, false), 30);
        assert!(!rest.rests(1));
    }

    #[test]
    fn what_is_under_way_keeps_it_awake() {
        let mut rest = Rest::default();
        assert_eq!(looks(&mut rest, 1, 1000, true), 1000);
        // Nobody told that it became busy while it was at rest: the next look that is taken finds out.
        looks(&mut rest, 1, 100, false);
        assert!(rest.rests(1));
        assert!(looks(&mut rest, 1, SELDOM + 40, true) >= 40);
        assert!(!rest.rests(1));
        looks(&mut rest, 1, 100, false);
        rest.wake();
        assert!(!rest.rests(1));
    }

    #[test]
    fn groups_take_turns() {
        let mut groups: Vec<Rest> = (0..800).map(Rest::new).collect();
        for _ in 0..100 {
            for rest in &mut groups {
                rest.look(0, || false);
            }
        }
        for _ in 0..2 * SELDOM {
            let seen: usize = groups.iter_mut().map(|rest| usize::from(rest.look(0, || false))).sum();
            assert_eq!(seen, 800 / SELDOM as usize);
        }
    }
}
