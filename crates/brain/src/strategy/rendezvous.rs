//! Weighted rendezvous hashing with bounded loads: each key has a member of its own, and keeps it.
//!
//! Every member draws a number from the key, and the best wins (Thaler and Ravishankar, 1998). If a member
//! leaves, only its own keys move; a new one takes from each of the others no more than its share. With h
//! uniform between 0 and 1, the score -w / ln h makes a member win as often as its weight w demands
//! (Schindelhauer and Schomaker, Weighted distributed hash tables, 2005). The greatest such score is the
//! least -ln(h) / w, of which -ln(h) >= 1 - h. A member whose 1 - h is already too much is skipped, so a
//! group of n needs only about log n logarithms. It needs none if all weights are equal, where the greatest h
//! wins.
//!
//! One hot key must not overload its member: a member gets no request while it has more in flight than
//! `load_factor` times its share of all requests in flight (Mirrokni, Thorup, Zadimoghaddam, Consistent
//! hashing with bounded loads, 2018; HAProxy's `hash-balance-factor`). The request then goes to the next
//! member in the order of scores, the same one each time, and so does that of a member that is full or was
//! tried.

use alloc::format;

use super::{DEFAULTS, Eligible, ParamConflict, Strategy, StrategyParam, StrategyParams, relative_load};
use crate::hash::unit;
use crate::{Member, PickRequest, PickerState, Plan, StrategyTable, mix};

pub(super) static STRATEGY: Strategy = Strategy {
    name: "rendezvous",
    about: "the same member for the same key as long as it is there and not overloaded",
    params: &[StrategyParam {
        name: "load_factor",
        about: "most requests in flight at a member, as a multiple of its share of all; 0 for no bound, else \
            at least 1",
        default: 1.25,
        min: 0.0,
        max: 100.0,
    }],
    conflict: find_conflict,
    reads_key: true,
    shares: true,
    prepare,
    choose,
    second_choice,
    explain: relative_load,
    ..DEFAULTS
};

fn find_conflict(params: &StrategyParams) -> Option<ParamConflict> {
    let factor = params.at(0);
    (factor > 0.0 && factor < 1.0).then(|| ParamConflict {
        param: "load_factor",
        conflicts_with: None,
        why: format!("`load_factor` ({factor}) is below 1: no member could have its share"),
        hint: "write 0 for no bound, or 1.25",
    })
}

fn prepare(members: &[Member], _: &StrategyParams) -> StrategyTable {
    let equal_weights = members.windows(2).all(|pair| pair[0].weight == pair[1].weight);
    let weight = |member: &Member| if equal_weights { 1.0 } else { member.weight };
    StrategyTable::Seeds {
        seeds: members.iter().map(|member| (member.seed, weight(member))).collect(),
        equal_weights,
        weight_sum: members.iter().map(|member| member.weight).sum(),
    }
}

fn choose(plan: &Plan, picker: &mut PickerState, request: &PickRequest) -> usize {
    let members = plan.members();
    let best = ranked_first(plan, request.key, |_| true).unwrap_or(0);
    let bound = LoadBound::of(plan);
    let own_in_flight = members[best].in_flight_everywhere();
    let mut total_in_flight = 0.0;
    // Counts no further than needed.
    let is_within_bound = own_in_flight <= 0.0
        || members.iter().any(|member| {
            total_in_flight += member.in_flight_everywhere();
            bound.allows(own_in_flight, &members[best], total_in_flight)
        });
    if is_within_bound { best } else { second_choice(plan, picker, request, &|_| true).unwrap_or(best) }
}

/// Returns the first remaining member in the order of scores within its bound; if none is, the first
/// remaining one.
fn second_choice(
    plan: &Plan,
    _: &mut PickerState,
    request: &PickRequest,
    has_room: Eligible<'_>,
) -> Option<usize> {
    let members = plan.members();
    let bound = LoadBound::of(plan);
    let total_in_flight: f64 = members.iter().map(Member::in_flight_everywhere).sum();
    let is_within_bound =
        |member: &Member| bound.allows(member.in_flight_everywhere(), member, total_in_flight);
    ranked_first(plan, request.key, |index| has_room(&members[index]) && is_within_bound(&members[index]))
        .or_else(|| ranked_first(plan, request.key, |index| has_room(&members[index])))
}

/// Returns the member with the best score for `key` among those that `may` be taken.
fn ranked_first(plan: &Plan, key: u64, is_eligible: impl Fn(usize) -> bool) -> Option<usize> {
    let StrategyTable::Seeds { seeds, equal_weights, .. } = plan.table() else { return None };
    let mut best = None;
    let mut min_cost = f64::INFINITY;
    for (index, (seed, weight)) in seeds.iter().enumerate() {
        // 1 - h, which is as uniform as h.
        let uniform = unit(mix(seed ^ key));
        if uniform < min_cost * weight && is_eligible(index) {
            let cost = if *equal_weights { uniform } else { -libm::log1p(-uniform) / weight };
            // However small the weights are, one member is the first.
            if cost < min_cost || best.is_none() {
                (best, min_cost) = (Some(index), cost);
            }
        }
    }
    best
}

/// The bound of a member's requests in flight.
struct LoadBound {
    /// The multiple of its share; infinite for no bound.
    factor: f64,
    /// The sum of the weights.
    weight_sum: f64,
}

impl LoadBound {
    fn of(plan: &Plan) -> Self {
        let load_factor = plan.params().at(0);
        let factor = if load_factor > 0.0 { load_factor.max(1.0) } else { f64::INFINITY };
        let weight_sum =
            if let StrategyTable::Seeds { weight_sum: sum, .. } = plan.table() { *sum } else { 0.0 };
        Self { factor, weight_sum }
    }

    /// Returns `true` if `member`, with `own` in flight, may take one more while `busy` are in flight at all
    /// members.
    fn allows(&self, member_in_flight: f64, member: &Member, total_in_flight: f64) -> bool {
        member_in_flight <= 0.0
            || member_in_flight * self.weight_sum < self.factor * member.weight * (total_in_flight + 1.0)
    }
}
