//! Each member in turn, capacity aside.
//!
//! A member in slow start takes a growing part of its turns. Those that it leaves go to members drawn by chance, so that no
//! neighbour in the round has them all.

use super::{PLAIN, Strategy, takes_turn};
use crate::{Ask, Hand, Plan, mix};

pub(super) static STRATEGY: Strategy = Strategy {
    name: "round_robin",
    about: "each member in turn, capacity aside",
    knobs: &[],
    shares: false,
    choose,
    ..PLAIN
};

fn choose(plan: &Plan, _: &mut Hand, ask: &Ask) -> usize {
    let members = plan.members();
    let turn = (ask.turn % members.len() as u64) as usize;
    if takes_turn(&members[turn], ask.chance) { turn } else { passed_on(plan, ask, turn) }
}

/// Who has the turn that a member left: one drawn by chance who takes it. Where nobody does, as all are in slow start and at its
/// beginning, the member itself.
#[cold]
fn passed_on(plan: &Plan, ask: &Ask, turn: usize) -> usize {
    let members = plan.members();
    let mut bits = ask.chance;
    for _ in 0..DRAWS {
        bits = mix(bits);
        let drawn = (((bits >> 32) * members.len() as u64) >> 32) as usize;
        // By the half that has not said who was drawn.
        if drawn != turn && takes_turn(&members[drawn], bits << 32) {
            return drawn;
        }
    }
    turn
}

/// Members drawn for a turn that another left.
const DRAWS: usize = 8;
