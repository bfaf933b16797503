//! The choice of members to remove: those whose loss costs least.
//!
//! First come those that were started and do not serve yet, then those with the fewest requests for their
//! capacity, and of equals the last one.

use alloc::borrow::ToOwned as _;
use alloc::string::String;
use alloc::vec::Vec;

use super::{GroupObservation, MemberObservation, ScaledMemberState};

/// The members that can be removed, in that order.
#[derive(Clone, Debug, Default)]
pub(super) struct RemovalCandidates<'a> {
    members: Vec<&'a MemberObservation<'a>>,
    /// The indices of those that can be spared.
    spare_indices: Vec<usize>,
}

impl<'a> RemovalCandidates<'a> {
    pub(super) fn from_observation(observation: &GroupObservation<'a>) -> Self {
        let is_removable = |member: &&'a MemberObservation<'a>| {
            member.is_removable
                && matches!(member.state, ScaledMemberState::Usable | ScaledMemberState::Starting)
        };
        let mut members: Vec<&'a MemberObservation<'a>> =
            observation.members.iter().filter(is_removable).collect();
        // The last of equals first: a stable order of the reverse.
        members.reverse();
        let relative_load =
            |member: &MemberObservation<'_>| f64::from(member.in_flight) / member.group_capacity().max(1e-9);
        members.sort_by(|left, right| {
            let starting_first = right
                .has_state(ScaledMemberState::Starting)
                .cmp(&left.has_state(ScaledMemberState::Starting));
            starting_first.then(relative_load(left).total_cmp(&relative_load(right)))
        });
        Self { members, spare_indices: Vec::new() }
    }

    /// Returns the members without which the rest of `have` members with capacity `worth` has at least
    /// `floor`; one member always stays.
    pub(super) fn spare(&mut self, capacity: f64, floor: f64, present: u32) -> &[usize] {
        let (mut remaining_capacity, mut remaining_members) = (capacity, present);
        self.spare_indices.clear();
        for (index, member) in self.members.iter().enumerate() {
            if remaining_members > 1 && remaining_capacity - member.group_capacity() >= floor {
                remaining_capacity -= member.group_capacity();
                remaining_members -= 1;
                self.spare_indices.push(index);
            }
        }
        &self.spare_indices
    }

    /// Returns the first `count` of them, those first that can be spared.
    pub(super) fn first_names(&mut self, count: usize) -> Vec<String> {
        let others = (0..self.members.len()).filter(|index| !self.spare_indices.contains(index));
        let order = self.spare_indices.iter().copied().chain(others);
        order
            .take(count)
            .filter_map(|index| self.members.get(index))
            .map(|member| member.name.to_owned())
            .collect()
    }
}
