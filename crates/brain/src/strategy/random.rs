//! A member by chance, with probability proportional to its capacity (see `alias`).

use super::{Strategy, alias, least_loaded, unheard, unobserved};
use crate::{Ask, Hand, Plan};

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
    hear: unheard,
};

fn choose(plan: &Plan, _: &mut Hand, ask: &Ask) -> usize {
    alias::draw(plan, ask.chance)
}
