//! Each member in turn, capacity aside.

use super::{Strategy, least_loaded, nothing, unexplained, unobserved};
use crate::{Ask, Plan};

pub(super) static STRATEGY: Strategy = Strategy {
    name: "round_robin",
    about: "each member in turn, capacity aside",
    knobs: &[],
    reads_latency: false,
    reads_key: false,
    shares: false,
    prepare: nothing,
    choose,
    second: least_loaded,
    observe: unobserved,
    explain: unexplained,
};

fn choose(plan: &Plan, ask: &Ask) -> usize {
    (ask.turn % plan.members().len() as u64) as usize
}
