//! A member by chance, with probability proportional to its capacity (see `alias`).

use super::{Strategy, alias, fewest, surplus, unobserved};
use crate::{Ask, Plan};

pub(super) static STRATEGY: Strategy = Strategy {
    name: "random",
    about: "a member by chance, as likely as its capacity says",
    knobs: &[],
    reads_latency: false,
    reads_load: false,
    reads_key: false,
    shares: true,
    prepare: alias::prepare,
    rule: surplus,
    choose,
    second: fewest,
    observe: unobserved,
};

fn choose(plan: &Plan, ask: &Ask) -> usize {
    alias::draw(plan, ask.chance)
}
