//! The member with the fewest requests in flight for its weight: exact, over all members.
//!
//! Most groups are idle or nearly so most of the time, and then nearly all members tie; the resolution of
//! ties decides the shares. Here idle members take turns by the smooth weighted round (see `schedule`), so a
//! lightly used group behaves as weighted round robin does. If the member whose turn it is is busy, a few
//! random slots of the round may find an idle one, which is optimal; only then are all members scanned. Ties
//! in that scan are resolved at random in proportion to weight and not by position. A scan that takes the
//! first member after a busy one would give that neighbour the busy one's requests on top of its own.
//!
//! The known requests of other balancers at the same members count, too (see `fleet/peer_presence.rs`).
//!
//! HAProxy's `leastconn` and NGINX's `least_conn` are the same rule with round robin among ties.

use super::{DEFAULTS, Eligible, Strategy, relative_load, schedule};
use crate::hash::unit;
use crate::{Member, PickRequest, PickerState, Plan, mix};

pub(super) static STRATEGY: Strategy = Strategy {
    name: "least_connections",
    about: "the member with the fewest requests in flight for its capacity; in turn where several are equal",
    params: &[],
    prefers_less_load: true,
    shares: true,
    prepare: schedule::prepare,
    choose,
    second_choice,
    explain: relative_load,
    ..DEFAULTS
};

/// Returns `true` if `a` requests at `member` are less, for its weight, than `b` at `other`. It does not
/// divide, so that equal ratios of whole numbers are equal.
pub(super) fn lighter(load: f64, member: &Member, other_load: f64, other: &Member) -> bool {
    load * other.weight < other_load * member.weight
}

/// Returns the least loaded of the members that are `left`; of several, a random one in proportion to weight.
///
/// It makes two passes, because in a single one the processor cannot predict the branch of a member.
pub(super) fn least_loaded(
    plan: &Plan,
    request: &PickRequest,
    has_room: impl Fn(&Member) -> bool,
) -> Option<usize> {
    let members = plan.members();
    let mut lightest = None;
    let mut min_load = f64::INFINITY;
    for (index, member) in members.iter().enumerate() {
        let load = plan.member_load(member) / member.weight;
        if load < min_load && has_room(member) {
            (lightest, min_load) = (Some(index), load);
        }
    }
    let mut best = lightest.or_else(|| members.iter().position(&has_room))?;
    // Sampling from a stream of unknown length: the newcomer stays with its share of the weights so far (Chao
    // 1982). The margin is for rounding, and for another core that changes the requests in flight meanwhile.
    let max_load = min_load * (1.0 + 1e-12);
    let mut weight_sum = 0.0;
    let mut bits = request.random_bits;
    for (index, member) in members.iter().enumerate() {
        if plan.member_load(member) <= max_load * member.weight && has_room(member) {
            weight_sum += member.weight;
            bits = mix(bits);
            if unit(bits) * weight_sum < member.weight {
                best = index;
            }
        }
    }
    Some(best)
}

/// The number of slots to try before the scan of all members.
const MAX_DRAWS: usize = 8;

fn choose(plan: &Plan, _: &mut PickerState, request: &PickRequest) -> usize {
    let members = plan.members();
    // The mean of other balancers' requests at a member is hardly ever exactly 0.
    let is_idle = |index: usize| members[index].in_flight_everywhere() < IDLE_IN_FLIGHT;
    let turn_index = schedule::member_at(plan, request.turn);
    if is_idle(turn_index) {
        return turn_index;
    }
    let mut bits = request.random_bits;
    if members.len() > MAX_DRAWS {
        for _ in 0..MAX_DRAWS {
            bits = mix(bits);
            let drawn_index = schedule::member_at(plan, bits);
            if is_idle(drawn_index) {
                return drawn_index;
            }
        }
    }
    let request = PickRequest { random_bits: bits, ..*request };
    least_loaded(plan, &request, |_| true).unwrap_or(turn_index)
}

fn second_choice(
    plan: &Plan,
    _: &mut PickerState,
    request: &PickRequest,
    has_room: Eligible<'_>,
) -> Option<usize> {
    least_loaded(plan, request, has_room)
}

/// The requests in flight below which a member counts as idle.
const IDLE_IN_FLIGHT: f64 = 0.5;
