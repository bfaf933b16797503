//! Each member in turn, without regard to capacity.
//!
//! A member in slow start takes a growing part of its turns. The others go to random members, so that no
//! neighbour in the round gets all of them.

use super::{DEFAULTS, Strategy, takes_turn};
use crate::{PickRequest, PickerState, Plan, mix};

pub(super) static STRATEGY: Strategy = Strategy {
    name: "round_robin",
    about: "each member in turn, capacity aside",
    params: &[],
    shares: false,
    choose,
    ..DEFAULTS
};

fn choose(plan: &Plan, _: &mut PickerState, request: &PickRequest) -> usize {
    let members = plan.members();
    let turn_index = (request.turn % members.len() as u64) as usize;
    if takes_turn(&members[turn_index], request.random_bits) {
        turn_index
    } else {
        take_over_turn(plan, request, turn_index)
    }
}

/// Returns the member for a turn that a member in slow start left: a random one that takes it. If none does,
/// because all are at the beginning of slow start, it is the member itself.
#[cold]
fn take_over_turn(plan: &Plan, request: &PickRequest, turn_index: usize) -> usize {
    let members = plan.members();
    let mut bits = request.random_bits;
    for _ in 0..MAX_DRAWS {
        bits = mix(bits);
        let drawn_index = (((bits >> 32) * members.len() as u64) >> 32) as usize;
        // The half of the bits that did not decide the draw.
        if drawn_index != turn_index && takes_turn(&members[drawn_index], bits << 32) {
            return drawn_index;
        }
    }
    turn_index
}

/// The number of draws for a turn that a member left.
const MAX_DRAWS: usize = 8;
