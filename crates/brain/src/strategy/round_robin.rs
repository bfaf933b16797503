//! Each member in turn, capacity aside.

use super::{PLAIN, Strategy};
use crate::{Ask, Hand, Plan};

pub(super) static STRATEGY: Strategy = Strategy {
    name: "round_robin",
    about: "each member in turn, capacity aside",
    knobs: &[],
    shares: false,
    choose,
    ..PLAIN
};

fn choose(plan: &Plan, _: &mut Hand, ask: &Ask) -> usize {
    (ask.turn % plan.members().len() as u64) as usize
}
