//! Maglev hashing: each key has a member of its own, looked up in a table.
//!
//! Every member goes through the slots of a table of prime size in an order of its own, offset + k skip, both
//! hashed from its name. Members take turns in claiming the next free slot of their order (Eisenbud and
//! others, Maglev: a fast and reliable software network load balancer, NSDI 2016, section 3.4). A key's slot
//! then holds its member: one access, whatever the size of the group. When a member leaves, its keys spread
//! over the others; of the other keys a few move too, which `rendezvous` never does. Weights: a member's k-th
//! turn comes at time k / weight.
//!
//! The table has 65 537 slots, as in the paper's small setting: shares are exact to 1 % up to some hundred
//! members. If the key's own member is full or was tried, the next is drawn by the key among those left (see
//! `lottery`).

use alloc::collections::BinaryHeap;
use alloc::vec;
use alloc::vec::Vec;
use core::cmp::{Ordering, Reverse};

use super::{DEFAULTS, Eligible, Strategy, StrategyParams, lottery};
use crate::{Member, PickRequest, PickerState, Plan, StrategyTable, mix};

pub(super) static STRATEGY: Strategy = Strategy {
    name: "maglev",
    about: "the same member for the same key, from a table: constant cost in groups of any size",
    params: &[],
    reads_key: true,
    shares: true,
    prepare,
    choose,
    second_choice,
    ..DEFAULTS
};

/// The number of slots; a prime, so that every skip visits all of them.
const SLOTS: u64 = 65_537;

fn choose(plan: &Plan, _: &mut PickerState, request: &PickRequest) -> usize {
    let StrategyTable::Slots(slots) = plan.table() else { return 0 };
    slots.get((request.key % SLOTS) as usize).map_or(0, |index| *index as usize)
}

fn second_choice(
    plan: &Plan,
    _: &mut PickerState,
    request: &PickRequest,
    has_room: Eligible<'_>,
) -> Option<usize> {
    // Mixed, so that the keys of one slot do not all go the same way.
    lottery::winner(plan.members(), mix(request.key), |member| member.weight, has_room)
}

fn prepare(members: &[Member], _: &StrategyParams) -> StrategyTable {
    StrategyTable::Slots(fill(&members.iter().map(|member| (member.seed, member.weight)).collect::<Vec<_>>()))
}

/// The next turn of a member: the earliest comes first, of equal ones the first in the order of the
/// configuration.
#[derive(PartialEq)]
struct MemberTurn(f64, usize);

impl Eq for MemberTurn {}

impl Ord for MemberTurn {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.total_cmp(&other.0).then(self.1.cmp(&other.1))
    }
}

impl PartialOrd for MemberTurn {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// Returns for each slot an index into `members`, which have a seed and a weight; empty without members.
fn fill(members: &[(u64, f64)]) -> Vec<u32> {
    let max_weight = members.iter().map(|(_, weight)| *weight).fold(f64::MIN_POSITIVE, f64::max);
    // The time between two turns; infinite for a weight that is negligible beside the greatest.
    let step = |index: usize| 1.0 / (members[index].1 / max_weight);
    let mut turns: BinaryHeap<Reverse<MemberTurn>> =
        (0..members.len()).map(|index| Reverse(MemberTurn(step(index), index))).collect();
    // The position of each member in its order, and its skip.
    let mut permutations: Vec<(u64, u64)> =
        members.iter().map(|(seed, _)| (mix(*seed) % SLOTS, mix(!*seed) % (SLOTS - 1) + 1)).collect();
    let mut slots = vec![FREE; SLOTS as usize];
    for _ in 0..SLOTS {
        let Some(mut next_turn) = turns.peek_mut() else { return Vec::new() };
        let Reverse(MemberTurn(time, index)) = &mut *next_turn;
        *time += step(*index);
        let index = *index;
        let (slot, step_size) = &mut permutations[index];
        while slots[*slot as usize] != FREE {
            *slot = (*slot + *step_size) % SLOTS;
        }
        slots[*slot as usize] = index as u32;
    }
    slots
}

/// The value of a free slot.
const FREE: u32 = u32::MAX;

#[cfg(test)]
mod tests {
    use super::*;

    fn group(count: u64) -> Vec<(u64, f64)> {
        (0..count).map(|index| (mix(index ^ 0x5eed), 1.0)).collect()
    }

    fn counts(members: &[(u64, f64)]) -> Vec<u32> {
        let mut counts = vec![0; members.len()];
        for index in fill(members) {
            counts[index as usize] += 1;
        }
        counts
    }

    #[test]
    fn equal_members_differ_by_one_slot() {
        for count in [1, 2, 7, 100, 1_000] {
            let counts = counts(&group(count));
            let (min_count, max_count) = (counts.iter().min().unwrap(), counts.iter().max().unwrap());
            assert!(max_count - min_count <= 1, "{count} members: {min_count} to {max_count}");
        }
    }

    #[test]
    fn slots_follow_weights() {
        let members = [(1, 1.0), (2, 2.0), (3, 0.5), (4, 1e-300)];
        let counts = counts(&members);
        for (count, (_, weight)) in counts.iter().zip(members) {
            assert!((f64::from(*count) - 65_537.0 * weight / 3.5).abs() <= 2.0, "{counts:?}");
        }
    }

    #[test]
    fn few_keys_move_that_need_not() {
        let members = group(50);
        let (slots_before, slots_after) = (fill(&members), fill(&members[..49]));
        let moved = slots_before
            .iter()
            .zip(&slots_after)
            .filter(|(previous, current)| **previous < 49 && previous != current)
            .count();
        // The paper's figure 12: well below a tenth.
        assert!(moved < 65_537 / 20, "{moved} of 65 537 slots moved beside those of the member that went");
        assert!(fill(&[]).is_empty());
    }
}
