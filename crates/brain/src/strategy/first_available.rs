//! The first member in the order of the configuration that is not at its limit: fill one before the next, so
//! that the last ones stay idle and can be switched off, or stand by (HAProxy's `balance first`).

use super::{Left, PLAIN, Strategy};
use crate::{Ask, Hand, Plan};

pub(super) static STRATEGY: Strategy = Strategy {
    name: "first_available",
    about: "the first member, in the order written, that is below its limit",
    knobs: &[],
    shares: false,
    choose,
    second,
    ..PLAIN
};

fn choose(plan: &Plan, _: &mut Hand, _: &Ask) -> usize {
    plan.members().iter().position(|member| !member.full()).unwrap_or(0)
}

fn second(plan: &Plan, _: &mut Hand, _: &Ask, left: Left<'_>) -> Option<usize> {
    plan.members().iter().position(left)
}
