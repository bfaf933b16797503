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

fn choose(plan: &Plan, _: &mut PickerState, ask: &PickRequest) -> usize {
    let members = plan.members();
    let turn = (ask.turn % members.len() as u64) as usize;
    if takes_turn(&members[turn], ask.random_bits) { turn } else { take_over_turn(plan, ask, turn) }
}

/// Returns the member for a turn that a member in slow start left: a random one that takes it. If none does,
/// because all are at the beginning of slow start, it is the member itself.
#[cold]
fn take_over_turn(plan: &Plan, ask: &PickRequest, turn: usize) -> usize {
    let members = plan.members();
    let mut bits = ask.random_bits;
    for _ in 0..DRAWS {
        bits = mix(bits);
        let drawn = (((bits >> 32) * members.len() as u64) >> 32) as usize;
        // The half of the bits that did not decide the draw.
        if drawn != turn && takes_turn(&members[drawn], bits << 32) {
            return drawn;
        }
    }
    turn
}

/// The number of draws for a turn that a member left.
const DRAWS: usize = 8;
