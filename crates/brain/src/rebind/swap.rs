//! Two sessions that change places.
//!
//! A session that is about as large as the gap between two members changes nothing by going alone: what its member had too much the other
//! one has then. But where that one's sessions are smaller, one of those comes back by a later decision, as it is then the other one that has
//! too much; and both together even the loads. Of sizes a and b, with a about the gap, a - b moves in all: half of the gap is best, and
//! anything from 0.3 to three quarters leaves half of it or little more.
//!
//! How large sessions are elsewhere is known from those that ask there ([`Flow::asked`]).

use super::{Flow, Shed};

/// A session that is as large as the gap, and may change places.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Swap {
    /// How large it is and how large the gap, both in the unit of [`Flow::asked`].
    size: f32,
    gap: f32,
}

impl Swap {
    /// Of a session that is so large a `part` of its member's load, and so large a `size` in the unit of [`Flow::asked`]. `None` if it is
    /// smaller than the gap, or so much larger that it might come back; or if its member would have next to nothing
    /// without it: such a session has a member for itself, which is the best that there is for it.
    pub fn of(part: f32, size: f32, shed: &Shed) -> Option<Self> {
        let about = (super::moves::WORTH * shed.gap..=LARGEST * shed.gap).contains(&part);
        let may = about && part <= MOST && size > 0.0;
        may.then(|| Self { size, gap: size / part * shed.gap })
    }

    /// Are the sessions of that member such that it helps?
    pub fn helps(self, there: &Flow) -> bool {
        there.usual().is_some_and(|usual| HELPS.contains(&((self.size - usual) / self.gap)))
    }
}

/// Of more than that it is hardly the gap any more, as far as that is known.
const LARGEST: f32 = 1.2;

/// Most of a member's load that a session may be to leave it like this.
const MOST: f32 = 0.8;

/// What moves in all, in parts of the gap.
const HELPS: core::ops::RangeInclusive<f32> = 0.3..=0.75;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_of_two_large_ones_and_one_of_two_small_ones() {
        // 100 and 100 here, 50 and 50 there: the gap is half of this member's load.
        let shed = Shed { share: 0.25, gap: 0.5, load: 200.0, ..Shed::default() };
        let there = |sizes: &[f32]| {
            let flow = Flow::default();
            sizes.iter().cycle().take(4 * sizes.len()).for_each(|size| flow.asked(*size));
            flow
        };
        let swap = Swap::of(0.5, 100.0, &shed).expect("as large as the gap");
        assert!(swap.helps(&there(&[50.0, 50.0])) && swap.helps(&there(&[30.0])));
        assert!(!swap.helps(&there(&[100.0])), "the same the other way round");
        assert!(!swap.helps(&there(&[90.0])), "hardly smaller");
        assert!(!swap.helps(&there(&[5.0])), "all of the gap goes there");
        assert!(!swap.helps(&there(&[])), "nobody knows");
        for (part, size) in [(0.39, 78.0), (0.61, 122.0), (0.5, 0.0)] {
            assert_eq!(Swap::of(part, size, &shed), None, "{part}");
        }
        let alone = Shed { gap: 0.9, ..shed };
        assert_eq!(Swap::of(0.9, 180.0, &alone), None, "it has a member for itself");
    }

    #[test]
    fn no_number_is_taken_for_one_that_helps() {
        let there = Flow::default();
        (0..4).for_each(|_| there.asked(50.0));
        for gap in [0.0, f32::INFINITY, f32::NAN, 0.5] {
            for part in [0.0, 0.5, f32::NAN, f32::INFINITY] {
                for size in [f32::NAN, f32::INFINITY, -1.0, 100.0] {
                    let real = gap == 0.5 && part == 0.5 && size == 100.0;
                    let swap = Swap::of(part, size, &Shed { gap, ..Shed::default() });
                    assert_eq!(swap.is_some_and(|swap| swap.helps(&there)), real, "{gap} {part} {size}");
                }
            }
        }
    }
}
