//! Members and random numbers for the tests: everything from a seed, nothing from the machine.

use std::sync::Arc;

use plimsoll_brain::{Member, MemberId, MemberState, ShedDecision, Vitals, hash};

pub(crate) use dice::Dice;

mod dice;

/// Returns members that are up and idle, one for each weight, without a limit.
pub(crate) fn members(weights: &[f64]) -> Vec<Member> {
    weights.iter().enumerate().map(|(index, weight)| member(index as u32, *weight, 0, u32::MAX)).collect()
}

pub(crate) fn member(id: u32, weight: f64, in_flight: u32, limit: u32) -> Member {
    let name = format!("10.0.{}.{}:80", id / 256, id % 256);
    Member {
        id: MemberId(id),
        seed: hash(name.as_bytes()),
        address: name.parse().expect("an address"),
        name: Arc::from(name),
        capacity: weight,
        weight,
        limit,
        state: MemberState::Up,
        load: None,
        effective: None,
        usage: None,
        shed: ShedDecision::default(),
        deficit: 0.0,
        vitals: Arc::new(Vitals::with_in_flight(in_flight)),
    }
}
