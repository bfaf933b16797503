//! The common part of the papers' strategies: the member whose monitor reports the least load.
//!
//! A load is a number per member, whatever its metric. It must express how busy the member is for its size,
//! because capacities do not enter the comparison. Reports are seconds old, so the least loaded member of a
//! moment would get everything until the next report. Two parameters of the papers soften that:
//!
//! - `per_balance_load` is added for each binding made since the report (counted by
//!   [`Vitals::begun`](crate::Vitals)), so the member rises in the order before its monitor knows;
//! - `tolerance` is a band: loads up to this many times the least count as equal to it, and equal ones are
//!   chosen at random in proportion to weight. (In TAO it is a divisor inside the average, where it
//!   compounds.)
//!
//! A member without a valid report is neither starved nor flooded: it gets its static share, exactly, by a
//! draw over all weights before the comparison of loads. So does one in slow start, which reports almost no
//! load and would get everything for that. Members at or above `reject` are not chosen. If all members with
//! reports are, no member is chosen: the client waits, as in the papers.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use super::{Eligible, NO_MEMBER, StrategyParam, StrategyParams, alias};
use crate::hash::unit;
use crate::{Member, MemberState, PickRequest, PickerState, Plan, StrategyTable, Time, mix};

/// Returns the first parameter of these strategies, which differ in the default.
pub(super) const fn tolerance(about: &'static str, default: f64) -> StrategyParam {
    StrategyParam { name: "tolerance", about, default, min: 1.0, max: 100.0 }
}

/// The second parameter, which the analyzer implements.
pub(super) const DAMPENING: StrategyParam = StrategyParam {
    name: "dampening",
    about: "weight of what was known before when a report comes; 0 for none",
    default: 0.0,
    min: 0.0,
    max: 0.999,
};

/// The third parameter.
pub(super) const PER_BALANCE_LOAD: StrategyParam = StrategyParam {
    name: "per_balance_load",
    about: "load that each binding is expected to bring, in the unit of the metric; 0 for none",
    default: 0.0,
    min: 0.0,
    max: 1e12,
};

/// Implements [`Strategy::prepare`](super::Strategy). Without a load per binding, the plan knows the least
/// loaded members: the share of all members with reports goes to those in the band, and a choice is one draw.
pub(super) fn prepare(members: &[Member], params: &StrategyParams) -> StrategyTable {
    let load_of = |member: &Member| load(member, 0.0);
    let min_load = members.iter().filter_map(load_of).fold(f64::INFINITY, f64::min);
    if params.at(PER_BALANCE) > 0.0 || !min_load.is_finite() || min_load >= rejection_threshold(params) {
        return alias::prepare(members, params);
    }
    let max_load = (min_load * params.at(TOLERANCE)).max(min_load);
    let is_chosen = |member: &Member| {
        load_of(member).is_some_and(|load| load <= max_load && load < rejection_threshold(params))
    };
    // Scaled by the greatest first, so that no sum overflows.
    let max_weight = members.iter().map(|member| member.weight).fold(f64::MIN_POSITIVE, f64::max);
    let weight_sum = |filter: &dyn Fn(&Member) -> bool| {
        members.iter().filter(|member| filter(member)).map(|member| member.weight / max_weight).sum::<f64>()
    };
    let (reporting_weight, chosen_weight) =
        (weight_sum(&|member| load_of(member).is_some()), weight_sum(&is_chosen).max(f64::MIN_POSITIVE));
    let adjusted_weight = |member: &Member| match load_of(member) {
        None => member.weight / max_weight,
        Some(_) if is_chosen(member) => member.weight / max_weight / chosen_weight * reporting_weight,
        Some(_) => 0.0,
    };
    alias::from_weights(&members.iter().map(adjusted_weight).collect::<Vec<f64>>())
}

/// Implements [`Strategy::choose`](super::Strategy).
pub(super) fn choose(plan: &Plan, _: &mut PickerState, request: &PickRequest) -> usize {
    if plan.params().at(PER_BALANCE) > 0.0 {
        return pick(plan, request, |_| true).unwrap_or(NO_MEMBER);
    }
    let drawn_index = alias::draw(plan, request.random_bits);
    let is_rejected =
        |member: &Member| load(member, 0.0).is_some_and(|load| load >= rejection_threshold(plan.params()));
    if plan.members().get(drawn_index).is_some_and(is_rejected) { NO_MEMBER } else { drawn_index }
}

/// Implements [`Strategy::second`](super::Strategy).
pub(super) fn second_choice(
    plan: &Plan,
    _: &mut PickerState,
    request: &PickRequest,
    has_room: Eligible<'_>,
) -> Option<usize> {
    pick(plan, request, has_room)
}

/// Implements [`Strategy::refuses`](super::Strategy).
pub(super) fn overload_message(plan: &Plan, member: &Member) -> Option<String> {
    let (load, threshold) =
        (load(member, plan.params().at(PER_BALANCE))?, rejection_threshold(plan.params()));
    (load >= threshold)
        .then(|| format!("its load counts as {load:.2}, and at {threshold} (`reject`) it gets nothing new"))
}

/// Implements [`Strategy::explain`](super::Strategy). The effective load is shown with every strategy.
pub(super) fn explain(plan: &Plan, member: &Member, _: Time) -> Vec<(&'static str, f64)> {
    let per_balance = plan.params().at(PER_BALANCE);
    let load = load(member, per_balance).filter(|_| per_balance > 0.0);
    load.map(|load| ("load_with_bindings", load)).into_iter().collect()
}

fn pick(plan: &Plan, request: &PickRequest, has_room: impl Fn(&Member) -> bool) -> Option<usize> {
    let members = plan.members();
    let drawn_index = alias::draw(plan, request.random_bits);
    if members.get(drawn_index).is_some_and(|member| load(member, 0.0).is_none() && has_room(member)) {
        return Some(drawn_index);
    }
    let bits = mix(request.random_bits);
    let threshold = rejection_threshold(plan.params());
    let per_balance = plan.params().at(PER_BALANCE);
    let (mut lightest, mut min_load, mut any_reporting) = (None, f64::INFINITY, false);
    for (index, member) in members.iter().enumerate() {
        let Some(load) = load(member, per_balance) else { continue };
        if has_room(member) {
            any_reporting = true;
            if load < min_load && load < threshold {
                (lightest, min_load) = (Some(index), load);
            }
        }
    }
    let Some(lightest) = lightest else {
        // All members with reports are at or above `reject`: the others must not get everything for that.
        return if any_reporting { None } else { by_weight(members, bits, has_room) };
    };
    let max_load = (min_load * plan.params().at(TOLERANCE)).max(min_load);
    let is_equal = |member: &Member| {
        load(member, per_balance).is_some_and(|load| load <= max_load && load < threshold) && has_room(member)
    };
    Some(by_weight(members, bits, is_equal).unwrap_or(lightest))
}

/// Returns the load at which a member gets nothing new.
fn rejection_threshold(params: &StrategyParams) -> f64 {
    if params.at(REJECT) > 0.0 { params.at(REJECT) } else { f64::INFINITY }
}

/// Returns a member's assumed present load; `None` without a valid report.
fn load(member: &Member, per_balance: f64) -> Option<f64> {
    let effective = member.effective.filter(|_| member.state != MemberState::SlowStart)?;
    if per_balance == 0.0 {
        return Some(effective.value);
    }
    let begun_since = member.vitals.begun().wrapping_sub(effective.begun);
    Some(effective.value + per_balance * f64::from(begun_since))
}

/// Returns a random one of those that `may` be taken, in proportion to weight (Chao 1982).
pub(super) fn by_weight(
    members: &[Member],
    mut bits: u64,
    is_eligible: impl Fn(&Member) -> bool,
) -> Option<usize> {
    let (mut best, mut weight_sum) = (None, 0.0);
    for (index, member) in members.iter().enumerate() {
        if is_eligible(member) {
            weight_sum += member.weight;
            bits = mix(bits);
            if best.is_none() || unit(bits) * weight_sum < member.weight {
                best = Some(index);
            }
        }
    }
    best
}

/// The indices of the parameters that the choice reads. A missing parameter reads as 0, which is none.
const TOLERANCE: usize = 0;
const PER_BALANCE: usize = 2;
const REJECT: usize = 3;
