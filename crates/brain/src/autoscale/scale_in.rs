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
    all: Vec<&'a MemberObservation<'a>>,
    /// The indices of those that can be spared.
    spare_indices: Vec<usize>,
}

impl<'a> RemovalCandidates<'a> {
    pub(super) fn from_observation(seen: &GroupObservation<'a>) -> Self {
        let may = |member: &&'a MemberObservation<'a>| {
            member.is_removable
                && matches!(member.state, ScaledMemberState::Usable | ScaledMemberState::Starting)
        };
        let mut all: Vec<&'a MemberObservation<'a>> = seen.members.iter().filter(may).collect();
        // The last of equals first: a stable order of the reverse.
        all.reverse();
        let burden =
            |member: &MemberObservation<'_>| f64::from(member.in_flight) / member.group_capacity().max(1e-9);
        all.sort_by(|one, other| {
            let coming =
                other.has_state(ScaledMemberState::Starting).cmp(&one.has_state(ScaledMemberState::Starting));
            coming.then(burden(one).total_cmp(&burden(other)))
        });
        Self { all, spare_indices: Vec::new() }
    }

    /// Returns the members without which the rest of `have` members with capacity `worth` has at least
    /// `floor`; one member always stays.
    pub(super) fn spare(&mut self, worth: f64, floor: f64, have: u32) -> &[usize] {
        let (mut left, mut members) = (worth, have);
        self.spare_indices.clear();
        for (place, member) in self.all.iter().enumerate() {
            if members > 1 && left - member.group_capacity() >= floor {
                left -= member.group_capacity();
                members -= 1;
                self.spare_indices.push(place);
            }
        }
        &self.spare_indices
    }

    /// Returns the first `count` of them, those first that can be spared.
    pub(super) fn first_names(&mut self, count: usize) -> Vec<String> {
        let others = (0..self.all.len()).filter(|place| !self.spare_indices.contains(place));
        let order = self.spare_indices.iter().copied().chain(others);
        order
            .take(count)
            .filter_map(|place| self.all.get(place))
            .map(|member| member.name.to_owned())
            .collect()
    }
}
