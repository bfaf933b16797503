//! A round in which each member appears as often as its weight demands, spread as evenly as possible.
//!
//! Weighted round robin is smooth if in every stretch of the round each member has had its share so far.
//! NGINX raises every member's counter at every request, O(members) for each slot. Here the round is made
//! once, in O(len log members). With `count` slots out of `len`, the k-th slot of a member lies between
//! ceil(k len / count) and ceil((k + 1) len / count), the end not included. At each slot, of the members with
//! an open window, the one whose window closes first is taken.
//!
//! Every window is met, whatever the counts. In a stretch of L slots a member has fewer than (L + 1) count /
//! len windows. The counts add up to len, so there are fewer than L + 1 windows in the stretch, at most L.
//! Then taking the earliest end meets all of them (Jackson 1955; the problem is the chairman assignment of
//! Tijdeman 1980, one-processor Pfair scheduling of Baruah and others 1996). So at no point of the round is a
//! member a whole request ahead of its share or behind it, which NGINX's rule does not guarantee.
//!
//! Weights become counts exactly if a round of some thousand slots can hold them: 1 : 2 : 2.5 becomes 2 : 4
//! : 5. If not, each member gets the nearest number of slots but at least one. So a member gains or loses at
//! most half a slot, and a member of negligible weight still gets one slot of the round.

use alloc::collections::BinaryHeap;
use alloc::vec;
use alloc::vec::Vec;
use core::cmp::Reverse;
use core::mem;

use crate::{Member, Plan, StrategyParams, StrategyTable};

/// Returns the round for the members' weights.
pub(super) fn prepare(members: &[Member], _: &StrategyParams) -> StrategyTable {
    from_weights(&members.iter().map(|member| member.weight).collect::<Vec<f64>>())
}

/// Returns the round for weights.
pub(super) fn from_weights(weights: &[f64]) -> StrategyTable {
    StrategyTable::Schedule(spread(&counts(weights)))
}

/// Returns the member whose turn it is.
pub(super) fn member_at(plan: &Plan, number: u64) -> usize {
    match plan.table() {
        StrategyTable::Schedule(schedule) if !schedule.is_empty() => {
            schedule[(number % schedule.len() as u64) as usize] as usize
        }
        _ => 0,
    }
}

/// Returns the maximum number of slots of a round. Half a slot is then negligible for an average member, at a
/// cost of a few dozen kilobytes and a millisecond, and each member has some slots.
fn max_slots(members: usize) -> usize {
    (256 * members).clamp(2_048, 16_384).max(4 * members)
}

/// Returns the number of slots of each member.
fn counts(weights: &[f64]) -> Vec<u32> {
    let max_slots = max_slots(weights.len()) as f64;
    let is_usable = |weight: &f64| weight.is_finite() && *weight > 0.0;
    let min_weight = weights.iter().copied().filter(|weight| is_usable(weight)).fold(f64::INFINITY, f64::min);
    let max_weight =
        weights.iter().copied().filter(|weight| is_usable(weight)).fold(f64::MIN_POSITIVE, f64::max);
    let ratios: f64 = weights.iter().map(|weight| weight / min_weight).sum();
    // Not a number if a weight is none: then no scale fits.
    let max_scale = if ratios.is_finite() { (max_slots / ratios) as u32 } else { 0 };
    let is_integral = |count: f64| (count - libm::round(count)).abs() <= 1e-9 * count;
    for scale in 1..=max_scale {
        let count = |weight: &f64| weight / min_weight * f64::from(scale);
        if weights.iter().all(|weight| is_integral(count(weight))) {
            return weights.iter().map(|weight| libm::round(count(weight)) as u32).collect();
        }
    }
    let relative_weight = |weight: &f64| if is_usable(weight) { weight / max_weight } else { 0.0 };
    let sum: f64 = weights.iter().map(relative_weight).sum();
    let is_negligible = |weight: &f64| is_usable(weight) && relative_weight(weight) < NEGLIGIBLE_WEIGHT;
    let slot_count = |weight: &f64| {
        (libm::round(relative_weight(weight) / sum * max_slots) as u32).max(u32::from(!is_negligible(weight)))
    };
    weights.iter().map(slot_count).collect()
}

/// The part of the greatest weight that counts as 0: such a member gets no turn, and all others at least one.
const NEGLIGIBLE_WEIGHT: f64 = 1e-100;

/// Spreads `counts[i]` slots of each member `i` evenly over a round.
fn spread(counts: &[u32]) -> Vec<u32> {
    let len = counts.iter().map(|count| *count as usize).sum::<usize>();
    let mut schedule = Vec::with_capacity(len);
    // Members that wait for their next window, listed by the slot at which it opens.
    let mut first_opening: Vec<u32> = vec![NONE; len];
    let mut next_opening: Vec<u32> = vec![NONE; counts.len()];
    let mut slots_taken: Vec<u32> = vec![0; counts.len()];
    // Members whose window is open: the one to close first, then the first in the order of the configuration.
    let mut eligible: BinaryHeap<Reverse<(usize, u32)>> = BinaryHeap::with_capacity(counts.len());
    let opening_slot = |number: u32, count: u32| (number as usize * len).div_ceil(count as usize);
    for (index, count) in counts.iter().enumerate().filter(|(_, count)| **count > 0) {
        eligible.push(Reverse((opening_slot(1, *count), index as u32)));
    }
    for slot in 0..len {
        let mut opening = first_opening[slot];
        while opening != NONE {
            let index = opening as usize;
            eligible.push(Reverse((opening_slot(slots_taken[index] + 1, counts[index]), opening)));
            opening = next_opening[index];
        }
        // Never empty, by the argument above; otherwise the round would be a slot shorter.
        let Some(Reverse((_, member))) = eligible.pop() else { continue };
        schedule.push(member);
        let index = member as usize;
        slots_taken[index] += 1;
        // Past the round after the member's last slot.
        if let Some(head) = first_opening.get_mut(opening_slot(slots_taken[index], counts[index])) {
            next_opening[index] = mem::replace(head, member);
        }
    }
    schedule
}

/// The end of a list of members.
const NONE: u32 = u32::MAX;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn schedule_letters(counts: &[u32]) -> alloc::string::String {
        spread(counts).iter().map(|index| char::from(b'a' + *index as u8)).collect()
    }

    #[test]
    fn rounds_one_can_check_by_eye() {
        assert_eq!(schedule_letters(&[1, 1, 1]), "abc");
        assert_eq!(schedule_letters(&[2, 1]), "aba");
        assert_eq!(schedule_letters(&[5, 1, 1]), "abaacaa");
        assert_eq!(schedule_letters(&[4, 4, 2]), "abcababcab");
        assert_eq!(schedule_letters(&[1, 0, 3]), "cacc");
        assert_eq!(schedule_letters(&[]), "");
    }

    #[test]
    fn weights_that_have_a_common_measure_are_kept_exactly() {
        assert_eq!(counts(&[1.0, 1.0]), [1, 1]);
        assert_eq!(counts(&[0.1, 0.3]), [1, 3]);
        assert_eq!(counts(&[1.0, 2.0, 2.5]), [2, 4, 5]);
        assert_eq!(counts(&[3.0, 4.0, 5.0]), [3, 4, 5]);
        assert_eq!(counts(&[100.0, 101.0, 0.5]), [200, 202, 1]);
    }

    #[test]
    fn nothing_is_no_turn_unless_all_have_nothing() {
        assert_eq!(counts(&[1.0, f64::MIN_POSITIVE])[1], 0);
        assert_eq!(counts(&[1e12, 1e-3])[1], 1, "little is one at least");
        assert_eq!(counts(&[f64::MIN_POSITIVE; 2]), [1, 1]);
    }

    #[test]
    fn odd_weights_come_near() {
        let weights = [core::f64::consts::PI, 1.0, core::f64::consts::E];
        let counts = counts(&weights);
        let (sum, len) = (weights.iter().sum::<f64>(), counts.iter().sum::<u32>());
        for (count, weight) in counts.iter().zip(weights) {
            assert!((f64::from(*count) / f64::from(len) - weight / sum).abs() < 1e-3, "{counts:?}");
        }
    }

    #[test]
    fn a_round_has_a_bounded_length() {
        let weights: Vec<f64> = (1..=10_000).map(|index| libm::sqrt(f64::from(index)) + 1e-3).collect();
        let len = counts(&weights).iter().sum::<u32>() as usize;
        assert!((30_000..=60_000).contains(&len), "{len} slots");
        assert_eq!(counts(&[1.0, 1e9]), [1, 2_048]);
        assert_eq!(counts(&[f64::MIN_POSITIVE, f64::MAX]), [0, 2_048]);
        assert_eq!(counts(&[f64::NAN, 1.0, -1.0]), [1, 2_048, 1]);
        assert_eq!(counts(&[0.0, f64::INFINITY]), [1, 1]);
        assert_eq!(counts(&[]), [0; 0]);
    }

    proptest! {
        /// Checks that each member is less than one slot off its share at every point of the round.
        #[test]
        fn no_member_is_ever_a_whole_slot_ahead_or_behind(counts in prop::collection::vec(1_u32..60, 1..40)) {
            let schedule = spread(&counts);
            let len = counts.iter().sum::<u32>() as usize;
            prop_assert_eq!(schedule.len(), len);
            let mut slots_had = vec![0_usize; counts.len()];
            for (slot, member) in schedule.iter().enumerate() {
                slots_had[*member as usize] += 1;
                for (taken, count) in slots_had.iter().zip(&counts) {
                    let lead = (taken * len) as i64 - ((slot + 1) * *count as usize) as i64;
                    prop_assert!(lead.abs() < len as i64, "{} slots in: {:?}", slot + 1, schedule);
                }
            }
        }
    }
}
