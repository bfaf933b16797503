//! The exchange of two sessions.
//!
//! A session about as large as the gap between two members changes nothing by moving alone: its target then
//! has the excess. But if the target's sessions are smaller, a later decision moves one of them back, because
//! the target has too much then; and both moves together even the loads. With sizes a and b, and a about the
//! gap, the net move is a - b. Half of the gap is best, and anything from 0.3 to three quarters leaves half
//! of it or little more.
//!
//! The sizes of sessions elsewhere are known from their requests there ([`MigrationProgress::asked`]).

use super::{MigrationProgress, ShedDecision};

/// A session that is as large as the gap, and may be exchanged.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SessionExchange {
    /// Its size and that of the gap, both in the unit of [`MigrationProgress::asked`].
    size: f32,
    gap: f32,
}

impl SessionExchange {
    /// Returns the exchange for a session with this `part` of its member's load, and this `size` in the unit
    /// of [`MigrationProgress::asked`].
    ///
    /// Returns `None` if it is smaller than the gap, or larger by a fifth, when it might come back. Returns
    /// `None`, too, if its member would have almost nothing without it: such a session has a member for
    /// itself, which is the best for it.
    pub fn of(part: f32, size: f32, shed: &ShedDecision) -> Option<Self> {
        let about = (super::session::MAX_GAP_PART * shed.gap..=LARGEST * shed.gap).contains(&part);
        let may = about && part <= MOST && size > 0.0;
        may.then(|| Self { size, gap: size / part * shed.gap })
    }

    /// Returns `true` if the sessions of that member have sizes with which an exchange helps.
    pub fn is_useful_with(self, there: &MigrationProgress) -> bool {
        there.mean_size().is_some_and(|usual| HELPS.contains(&((self.size - usual) / self.gap)))
    }
}

/// The maximum multiple of the gap at which a session counts as large as the gap.
const LARGEST: f32 = 1.2;

/// The maximum part of a member's load of a session that is exchanged.
const MOST: f32 = 0.8;

/// The net move of both, as a part of the gap.
const HELPS: core::ops::RangeInclusive<f32> = 0.3..=0.75;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_of_two_large_ones_and_one_of_two_small_ones() {
        // 100 and 100 here, 50 and 50 there: the gap is half of this member's load.
        let shed = ShedDecision { share: 0.25, gap: 0.5, load: 200.0, ..ShedDecision::default() };
        let there = |sizes: &[f32]| {
            let flow = MigrationProgress::default();
            sizes.iter().cycle().take(4 * sizes.len()).for_each(|size| flow.asked(*size));
            flow
        };
        let swap = SessionExchange::of(0.5, 100.0, &shed).expect("as large as the gap");
        assert!(swap.is_useful_with(&there(&[50.0, 50.0])) && swap.is_useful_with(&there(&[30.0])));
        assert!(!swap.is_useful_with(&there(&[100.0])), "the same the other way round");
        assert!(!swap.is_useful_with(&there(&[90.0])), "hardly smaller");
        assert!(!swap.is_useful_with(&there(&[5.0])), "all of the gap goes there");
        assert!(!swap.is_useful_with(&there(&[])), "nobody knows");
        for (part, size) in [(0.39, 78.0), (0.61, 122.0), (0.5, 0.0)] {
            assert_eq!(SessionExchange::of(part, size, &shed), None, "{part}");
        }
        let alone = ShedDecision { gap: 0.9, ..shed };
        assert_eq!(SessionExchange::of(0.9, 180.0, &alone), None, "it has a member for itself");
    }

    #[test]
    fn no_number_is_taken_for_one_that_helps() {
        let there = MigrationProgress::default();
        (0..4).for_each(|_| there.asked(50.0));
        for gap in [0.0, f32::INFINITY, f32::NAN, 0.5] {
            for part in [0.0, 0.5, f32::NAN, f32::INFINITY] {
                for size in [f32::NAN, f32::INFINITY, -1.0, 100.0] {
                    let real = gap == 0.5 && part == 0.5 && size == 100.0;
                    let swap =
                        SessionExchange::of(part, size, &ShedDecision { gap, ..ShedDecision::default() });
                    assert_eq!(
                        swap.is_some_and(|swap| swap.is_useful_with(&there)),
                        real,
                        "{gap} {part} {size}"
                    );
                }
            }
        }
    }
}
