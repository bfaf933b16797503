//! The first member in the order of the configuration that is not at its limit. One is filled before the
//! next, so that the last ones stay idle and can be switched off, or stand by (HAProxy's `balance first`).
//!
//! A member in slow start takes a growing part of the requests, and the next one has the rest. A primary that
//! returns does not get all of them cold while its spare is warm.

use super::{DEFAULTS, Eligible, Strategy, takes_turn};
use crate::{PickRequest, PickerState, Plan, mix};

pub(super) static STRATEGY: Strategy = Strategy {
    name: "first_available",
    about: "the first member, in the order written, that is below its limit",
    params: &[],
    shares: false,
    choose,
    second_choice,
    ..DEFAULTS
};

fn choose(plan: &Plan, picker: &mut PickerState, request: &PickRequest) -> usize {
    second_choice(plan, picker, request, &|member| !member.is_full()).unwrap_or(0)
}

fn second_choice(
    plan: &Plan,
    _: &mut PickerState,
    request: &PickRequest,
    has_room: Eligible<'_>,
) -> Option<usize> {
    let mut first = None;
    for (index, member) in plan.members().iter().enumerate().filter(|(_, member)| has_room(member)) {
        if takes_turn(member, mix(request.random_bits ^ member.seed)) {
            return Some(index);
        }
        first = first.or(Some(index));
    }
    // Only members in slow start are left.
    first
}
