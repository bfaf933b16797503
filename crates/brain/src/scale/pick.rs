//! The choice of members to remove: those whose loss costs least.
//!
//! First come those that were started and do not serve yet, then those with the fewest requests for their
//! capacity, and of equals the last one.

use alloc::borrow::ToOwned as _;
use alloc::string::String;
use alloc::vec::Vec;

use super::{MemberSeen, Seen, Standing};

/// The members that can be removed, in that order.
#[derive(Clone, Debug, Default)]
pub(super) struct Candidates<'a> {
    all: Vec<&'a MemberSeen<'a>>,
    /// The indices of those that can be spared.
    spare: Vec<usize>,
}

impl<'a> Candidates<'a> {
    pub(super) fn of(seen: &Seen<'a>) -> Self {
        let may = |member: &&'a MemberSeen<'a>| {
            member.ours && matches!(member.standing, Standing::Usable | Standing::Coming)
        };
        let mut all: Vec<&'a MemberSeen<'a>> = seen.members.iter().filter(may).collect();
        // The last of equals first: a stable order of the reverse.
        all.reverse();
        let burden = |member: &MemberSeen<'_>| f64::from(member.in_flight) / member.worth().max(1e-9);
        all.sort_by(|one, other| {
            let coming = other.is(Standing::Coming).cmp(&one.is(Standing::Coming));
            coming.then(burden(one).total_cmp(&burden(other)))
        });
        Self { all, spare: Vec::new() }
    }

    /// Returns the members without which the rest of `have` members with capacity `worth` has at least
    /// `floor`; one member always stays.
    pub(super) fn spare(&mut self, worth: f64, floor: f64, have: u32) -> &[usize] {
        let (mut left, mut members) = (worth, have);
        self.spare.clear();
        for (place, member) in self.all.iter().enumerate() {
            if members > 1 && left - member.worth() >= floor {
                left -= member.worth();
                members -= 1;
                self.spare.push(place);
            }
        }
        &self.spare
    }

    /// Returns the first `count` of them, those first that can be spared.
    pub(super) fn names(&mut self, count: usize) -> Vec<String> {
        let others = (0..self.all.len()).filter(|place| !self.spare.contains(place));
        let order = self.spare.iter().copied().chain(others);
        order
            .take(count)
            .filter_map(|place| self.all.get(place))
            .map(|member| member.name.to_owned())
            .collect()
    }
}
