//! A random member, with a probability in proportion to its capacity (see `alias`).

use super::{DEFAULTS, Strategy, alias, share};
use crate::{PickRequest, PickerState, Plan};

pub(super) static STRATEGY: Strategy = Strategy {
    name: "random",
    about: "a member by chance, as likely as its capacity says",
    params: &[],
    shares: true,
    prepare: alias::prepare,
    choose,
    explain: share,
    ..DEFAULTS
};

fn choose(plan: &Plan, _: &mut PickerState, request: &PickRequest) -> usize {
    alias::draw(plan, request.random_bits)
}
