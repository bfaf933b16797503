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
    pub fn of(load_share: f32, size: f32, shed: &ShedDecision) -> Option<Self> {
        let is_near_gap =
            (super::session::MAX_GAP_PART * shed.gap..=MAX_GAP_RATIO * shed.gap).contains(&load_share);
        let is_possible = is_near_gap && load_share <= MAX_LOAD_SHARE && size > 0.0;
        is_possible.then(|| Self { size, gap: size / load_share * shed.gap })
    }

    /// Returns `true` if the sessions of that member have sizes with which an exchange helps.
    pub fn is_useful_with(self, target: &MigrationProgress) -> bool {
        target
            .mean_size()
            .is_some_and(|mean_size| USEFUL_GAP_SHARES.contains(&((self.size - mean_size) / self.gap)))
    }
}

/// The maximum multiple of the gap at which a session counts as large as the gap.
const MAX_GAP_RATIO: f32 = 1.2;

/// The maximum part of a member's load of a session that is exchanged.
const MAX_LOAD_SHARE: f32 = 0.8;

/// The net move of both, as a part of the gap.
const USEFUL_GAP_SHARES: core::ops::RangeInclusive<f32> = 0.3..=0.75;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_of_two_large_ones_and_one_of_two_small_ones() {
        // 100 and 100 here, 50 and 50 there: the gap is half of this member's load.
        let shed = ShedDecision { share: 0.25, gap: 0.5, load: 200.0, ..ShedDecision::default() };
        let progress_with = |sizes: &[f32]| {
            let progress = MigrationProgress::default();
            sizes.iter().cycle().take(4 * sizes.len()).for_each(|size| progress.asked(*size));
            progress
        };
        let exchange = SessionExchange::of(0.5, 100.0, &shed).expect("as large as the gap");
        assert!(
            exchange.is_useful_with(&progress_with(&[50.0, 50.0]))
                && exchange.is_useful_with(&progress_with(&[30.0]))
        );
        assert!(!exchange.is_useful_with(&progress_with(&[100.0])), "the same the other way round");
        assert!(!exchange.is_useful_with(&progress_with(&[90.0])), "hardly smaller");
        assert!(!exchange.is_useful_with(&progress_with(&[5.0])), "all of the gap goes there");
        assert!(!exchange.is_useful_with(&progress_with(&[])), "nobody knows");
        for (load_share, size) in [(0.39, 78.0), (0.61, 122.0), (0.5, 0.0)] {
            assert_eq!(SessionExchange::of(load_share, size, &shed), None, "{load_share}");
        }
        let single_session = ShedDecision { gap: 0.9, ..shed };
        assert_eq!(SessionExchange::of(0.9, 180.0, &single_session), None, "it has a member for itself");
    }

    #[test]
    fn no_number_is_taken_for_one_that_helps() {
        let target = MigrationProgress::default();
        (0..4).for_each(|_| target.asked(50.0));
        for gap in [0.0, f32::INFINITY, f32::NAN, 0.5] {
            for load_share in [0.0, 0.5, f32::NAN, f32::INFINITY] {
                for size in [f32::NAN, f32::INFINITY, -1.0, 100.0] {
                    let is_valid = gap == 0.5 && load_share == 0.5 && size == 100.0;
                    let exchange = SessionExchange::of(
                        load_share,
                        size,
                        &ShedDecision { gap, ..ShedDecision::default() },
                    );
                    assert_eq!(
                        exchange.is_some_and(|exchange| exchange.is_useful_with(&target)),
                        is_valid,
                        "{gap} {load_share} {size}"
                    );
                }
            }
        }
    }
}
