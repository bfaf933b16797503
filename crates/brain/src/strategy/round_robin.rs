//! Each member in turn, capacity aside.

use super::{Strategy, nothing};
use crate::{Ask, Plan};

pub(super) const STRATEGY: Strategy = Strategy {
    name: "round_robin",
    about: "each member in turn, capacity aside",
    knobs: &[],
    reads_latency: false,
    reads_key: false,
    prepare: nothing,
    choose,
};

fn choose(plan: &Plan, ask: &Ask) -> usize {
    (ask.turn % plan.members().len() as u64) as usize
}
