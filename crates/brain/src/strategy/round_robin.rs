//! Each member in turn, capacity aside.

use super::{Strategy, fewest, nothing, surplus, unobserved};
use crate::{Ask, Plan};

pub(super) static STRATEGY: Strategy = Strategy {
    name: "round_robin",
    about: "each member in turn, capacity aside",
    knobs: &[],
    reads_latency: false,
    reads_load: false,
    reads_key: false,
    shares: false,
    prepare: nothing,
    rule: surplus,
    choose,
    second: fewest,
    observe: unobserved,
};

fn choose(plan: &Plan, ask: &Ask) -> usize {
    (ask.turn % plan.members().len() as u64) as usize
}
