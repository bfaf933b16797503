//! A member by chance, with probability proportional to its capacity (see `alias`).

use super::{Strategy, alias, least_loaded, share, unobserved};
use crate::{Ask, Plan};

pub(super) static STRATEGY: Strategy = Strategy {
    name: "random",
    about: "a member by chance, as likely as its capacity says",
    knobs: &[],
    reads_latency: false,
    reads_key: false,
    shares: true,
    prepare: alias::prepare,
    choose,
    second: least_loaded,
    observe: unobserved,
    explain: share,
};

fn choose(plan: &Plan, ask: &Ask) -> usize {
    alias::draw(plan, ask.chance)
}
