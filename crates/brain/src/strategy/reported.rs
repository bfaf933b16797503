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
pub(super) fn prepare(members: &[Member], knobs: &StrategyParams) -> StrategyTable {
    let load = |member: &Member| load(member, 0.0);
    let least = members.iter().filter_map(load).fold(f64::INFINITY, f64::min);
    if knobs.at(PER_BALANCE) > 0.0 || !least.is_finite() || least >= reject(knobs) {
        return alias::prepare(members, knobs);
    }
    let most = (least * knobs.at(TOLERANCE)).max(least);
    let best = |member: &Member| load(member).is_some_and(|load| load <= most && load < reject(knobs));
    // Scaled by the greatest first, so that no sum overflows.
    let greatest = members.iter().map(|member| member.weight).fold(f64::MIN_POSITIVE, f64::max);
    let sum = |of: &dyn Fn(&Member) -> bool| {
        members.iter().filter(|member| of(member)).map(|member| member.weight / greatest).sum::<f64>()
    };
    let (reporting, chosen) = (sum(&|member| load(member).is_some()), sum(&best).max(f64::MIN_POSITIVE));
    let weight = |member: &Member| match load(member) {
        None => member.weight / greatest,
        Some(_) if best(member) => member.weight / greatest / chosen * reporting,
        Some(_) => 0.0,
    };
    alias::from_weights(&members.iter().map(weight).collect::<Vec<f64>>())
}

/// Implements [`Strategy::choose`](super::Strategy).
pub(super) fn choose(plan: &Plan, _: &mut PickerState, ask: &PickRequest) -> usize {
    if plan.params().at(PER_BALANCE) > 0.0 {
        return pick(plan, ask, |_| true).unwrap_or(NO_MEMBER);
    }
    let drawn = alias::draw(plan, ask.random_bits);
    let rejected = |member: &Member| load(member, 0.0).is_some_and(|load| load >= reject(plan.params()));
    if plan.members().get(drawn).is_some_and(rejected) { NO_MEMBER } else { drawn }
}

/// Implements [`Strategy::second`](super::Strategy).
pub(super) fn second(
    plan: &Plan,
    _: &mut PickerState,
    ask: &PickRequest,
    left: Eligible<'_>,
) -> Option<usize> {
    pick(plan, ask, left)
}

/// Implements [`Strategy::refuses`](super::Strategy).
pub(super) fn overload_message(plan: &Plan, member: &Member) -> Option<String> {
    let (load, reject) = (load(member, plan.params().at(PER_BALANCE))?, reject(plan.params()));
    (load >= reject)
        .then(|| format!("its load counts as {load:.2}, and at {reject} (`reject`) it gets nothing new"))
}

/// Implements [`Strategy::explain`](super::Strategy). The effective load is shown with every strategy.
pub(super) fn explain(plan: &Plan, member: &Member, _: Time) -> Vec<(&'static str, f64)> {
    let per_balance = plan.params().at(PER_BALANCE);
    let load = load(member, per_balance).filter(|_| per_balance > 0.0);
    load.map(|load| ("load_with_bindings", load)).into_iter().collect()
}

fn pick(plan: &Plan, ask: &PickRequest, left: impl Fn(&Member) -> bool) -> Option<usize> {
    let members = plan.members();
    let drawn = alias::draw(plan, ask.random_bits);
    if members.get(drawn).is_some_and(|member| load(member, 0.0).is_none() && left(member)) {
        return Some(drawn);
    }
    let bits = mix(ask.random_bits);
    let reject = reject(plan.params());
    let per_balance = plan.params().at(PER_BALANCE);
    let (mut first, mut least, mut reporting) = (None, f64::INFINITY, false);
    for (index, member) in members.iter().enumerate() {
        let Some(load) = load(member, per_balance) else { continue };
        if left(member) {
            reporting = true;
            if load < least && load < reject {
                (first, least) = (Some(index), load);
            }
        }
    }
    let Some(first) = first else {
        // All members with reports are at or above `reject`: the others must not get everything for that.
        return if reporting { None } else { by_weight(members, bits, left) };
    };
    let most = (least * plan.params().at(TOLERANCE)).max(least);
    let equal = |member: &Member| {
        load(member, per_balance).is_some_and(|load| load <= most && load < reject) && left(member)
    };
    Some(by_weight(members, bits, equal).unwrap_or(first))
}

/// Returns the load at which a member gets nothing new.
fn reject(knobs: &StrategyParams) -> f64 {
    if knobs.at(REJECT) > 0.0 { knobs.at(REJECT) } else { f64::INFINITY }
}

/// Returns a member's assumed present load; `None` without a valid report.
fn load(member: &Member, per_balance: f64) -> Option<f64> {
    let effective = member.effective.filter(|_| member.state != MemberState::SlowStart)?;
    if per_balance == 0.0 {
        return Some(effective.value);
    }
    let since = member.vitals.begun().wrapping_sub(effective.begun);
    Some(effective.value + per_balance * f64::from(since))
}

/// Returns a random one of those that `may` be taken, in proportion to weight (Chao 1982).
pub(super) fn by_weight(members: &[Member], mut bits: u64, may: impl Fn(&Member) -> bool) -> Option<usize> {
    let (mut best, mut weight) = (None, 0.0);
    for (index, member) in members.iter().enumerate() {
        if may(member) {
            weight += member.weight;
            bits = mix(bits);
            if best.is_none() || unit(bits) * weight < member.weight {
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
