//! Each member in turn, as often as its capacity says, spread evenly over the round (see `schedule`).

use super::{Strategy, least_loaded, schedule, share, unobserved};
use crate::{Ask, Plan};

pub(super) static STRATEGY: Strategy = Strategy {
    name: "weighted_round_robin",
    about: "each member in turn, as often as its capacity says, spread evenly",
    knobs: &[],
    reads_latency: false,
    reads_key: false,
    shares: true,
    prepare: schedule::prepare,
    choose,
    second: least_loaded,
    observe: unobserved,
    explain: share,
};

fn choose(plan: &Plan, ask: &Ask) -> usize {
    schedule::at(plan, ask.turn)
}
