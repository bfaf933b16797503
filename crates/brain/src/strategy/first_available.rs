//! The first member in the order of the configuration that is not at its limit. One is filled before the
//! next, so that the last ones stay idle and can be switched off, or stand by (HAProxy's `balance first`).
//!
//! A member in slow start takes a growing part of the requests, and the next one has the rest. A primary that
//! returns does not get all of them cold while its spare is warm.

use super::{Left, PLAIN, Strategy, takes_turn};
use crate::{Ask, Hand, Plan, mix};

pub(super) static STRATEGY: Strategy = Strategy {
    name: "first_available",
    about: "the first member, in the order written, that is below its limit",
    knobs: &[],
    shares: false,
    choose,
    second,
    ..PLAIN
};

fn choose(plan: &Plan, hand: &mut Hand, ask: &Ask) -> usize {
    second(plan, hand, ask, &|member| !member.full()).unwrap_or(0)
}

fn second(plan: &Plan, _: &mut Hand, ask: &Ask, left: Left<'_>) -> Option<usize> {
    let mut first = None;
    for (index, member) in plan.members().iter().enumerate().filter(|(_, member)| left(member)) {
        if takes_turn(member, mix(ask.chance ^ member.seed)) {
            return Some(index);
        }
        first = first.or(Some(index));
    }
    // Only members in slow start are left.
    first
}
