//! A random member, with a probability in proportion to its capacity (see `alias`).

use super::{PLAIN, Strategy, alias, share};
use crate::{Ask, Hand, Plan};

pub(super) static STRATEGY: Strategy = Strategy {
    name: "random",
    about: "a member by chance, as likely as its capacity says",
    knobs: &[],
    shares: true,
    prepare: alias::prepare,
    choose,
    explain: share,
    ..PLAIN
};

fn choose(plan: &Plan, _: &mut Hand, ask: &Ask) -> usize {
    alias::draw(plan, ask.chance)
}
