//! The member with the fewest requests in flight for its weight: exact, over all members.
//!
//! Most groups are idle or nearly so most of the time, and then nearly all members tie; how ties are resolved
//! decides who gets what. Here idle members take turns by the smooth weighted round (see `schedule`), so a
//! lightly used group behaves as weighted round robin does. If the member whose turn it is is busy, a few slots
//! of the round drawn by chance may find an idle one, which cannot be beaten; only then are all members looked
//! at. Ties in that scan are resolved by chance in proportion to weight and not by position: a scan that takes
//! the first after a busy member gives that neighbour the busy one's requests on top of its own.
//!
//! Where other balancers serve the same members, what they have there counts, too (see `fleet/company.rs`).
//!
//! HAProxy's `leastconn` and NGINX's `least_conn` are the same rule with round robin among ties.

use super::{Left, PLAIN, Strategy, relative_load, schedule};
use crate::hash::unit;
use crate::{Ask, Hand, Member, Plan, mix};

pub(super) static STRATEGY: Strategy = Strategy {
    name: "least_connections",
    about: "the member with the fewest requests in flight for its capacity; in turn where several are equal",
    knobs: &[],
    heeds_load: true,
    shares: true,
    prepare: schedule::prepare,
    choose,
    second,
    explain: relative_load,
    ..PLAIN
};

/// Is `a` in flight at `member` less, for its weight, than `b` at `other`? Without a division, so that equal
/// ratios of whole numbers are equal.
pub(super) fn lighter(a: f64, member: &Member, b: f64, other: &Member) -> bool {
    a * other.weight < b * member.weight
}

/// The least loaded of the members that are `left`; of several, one by chance in proportion to weight.
///
/// Two passes, because in a single one the processor cannot guess which branch a member takes.
pub(super) fn least(plan: &Plan, ask: &Ask, left: impl Fn(&Member) -> bool) -> Option<usize> {
    let members = plan.members();
    let mut first = None;
    let mut least = f64::INFINITY;
    for (index, member) in members.iter().enumerate() {
        let load = plan.crowd(member) / member.weight;
        if load < least && left(member) {
            (first, least) = (Some(index), load);
        }
    }
    let mut best = first.or_else(|| members.iter().position(&left))?;
    // Sampling from a stream of unknown length: the newcomer stays with its share of what was seen (Chao 1982).
    // Room for rounding, and for another core that changes what is in flight meanwhile.
    let least = least * (1.0 + 1e-12);
    let mut weight = 0.0;
    let mut bits = ask.chance;
    for (index, member) in members.iter().enumerate() {
        if plan.crowd(member) <= least * member.weight && left(member) {
            weight += member.weight;
            bits = mix(bits);
            if unit(bits) * weight < member.weight {
                best = index;
            }
        }
    }
    Some(best)
}

/// Slots looked at before all members are.
const SLOTS: usize = 8;

fn choose(plan: &Plan, _: &mut Hand, ask: &Ask) -> usize {
    let members = plan.members();
    // What others have somewhere in the mean is hardly ever nothing at all.
    let idle = |index: usize| members[index].everywhere() < IDLE;
    let turn = schedule::at(plan, ask.turn);
    if idle(turn) {
        return turn;
    }
    let mut bits = ask.chance;
    if members.len() > SLOTS {
        for _ in 0..SLOTS {
            bits = mix(bits);
            let drawn = schedule::at(plan, bits);
            if idle(drawn) {
                return drawn;
            }
        }
    }
    let ask = Ask { chance: bits, ..*ask };
    least(plan, &ask, |_| true).unwrap_or(turn)
}

fn second(plan: &Plan, _: &mut Hand, ask: &Ask, left: Left<'_>) -> Option<usize> {
    least(plan, ask, left)
}

/// Requests in flight below which a member counts as idle.
const IDLE: f64 = 0.5;
