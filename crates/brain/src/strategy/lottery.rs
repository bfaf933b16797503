//! A lottery in which a member's tickets are its weight divided by one more than its load.
//!
//! It is the selection of AGS's rate.d: every server draws for itself, from a hash of the request and from
//! the last broadcast of all, and usually all draw the same winner. There tickets are laid end to end and one
//! of them is drawn, so a small change of one member's tickets moves requests between all others. Here each
//! member draws a number of its own from the request, and the least `-ln(h) / tickets` wins (weighted
//! rendezvous, see `rendezvous`). Balancers whose information about one member differs a little then differ
//! only in that member's requests, and the second, third, … choices are known as well.
//!
//! The request is [`PickRequest::key`] if it has one (not 0) and [`PickRequest::random_bits`] if not. The
//! load is the reported load, or the requests in flight here without a report.

use super::{DEFAULTS, Eligible, Strategy};
use crate::hash::unit;
use crate::{Member, PickRequest, PickerState, Plan, mix};

pub(super) static STRATEGY: Strategy = Strategy {
    name: "lottery",
    about: "a member by a lottery over its capacity divided by one more than its load",
    params: &[],
    reads_load: true,
    prefers_less_load: true,
    // The key of the request is a number of its own here, not an affinity.
    shares: false,
    choose,
    second_choice,
    ..DEFAULTS
};

/// Returns the member with the least `-ln(h) / tickets` for `key` among those that `may` be taken.
pub(super) fn winner(
    members: &[Member],
    key: u64,
    tickets: impl Fn(&Member) -> f64,
    is_eligible: impl Fn(&Member) -> bool,
) -> Option<usize> {
    let (mut best, mut min_cost) = (None, f64::INFINITY);
    for (index, member) in members.iter().enumerate() {
        let tickets = tickets(member);
        // 1 - h, which is as uniform as h, and not above -ln(h).
        let uniform = unit(mix(member.seed ^ key));
        if uniform < min_cost * tickets && is_eligible(member) {
            let cost = -libm::log1p(-uniform) / tickets;
            // However few the tickets are, one member wins.
            if cost < min_cost || best.is_none() {
                (best, min_cost) = (Some(index), cost);
            }
        }
    }
    best
}

fn choose(plan: &Plan, _: &mut PickerState, request: &PickRequest) -> usize {
    draw(plan, request, |_| true).unwrap_or(0)
}

fn second_choice(
    plan: &Plan,
    _: &mut PickerState,
    request: &PickRequest,
    has_room: Eligible<'_>,
) -> Option<usize> {
    draw(plan, request, has_room)
}

fn draw(plan: &Plan, request: &PickRequest, is_eligible: impl Fn(&Member) -> bool) -> Option<usize> {
    let key = if request.key != 0 { request.key } else { request.random_bits };
    winner(plan.members(), key, tickets, is_eligible)
}

fn tickets(member: &Member) -> f64 {
    let load = member.effective.map_or_else(|| member.in_flight_everywhere(), |effective| effective.value);
    // A load can be so great that nothing is left.
    (member.weight / (load + 1.0)).max(f64::MIN_POSITIVE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{EffectiveLoad, StrategyParams};

    #[test]
    fn tickets_follow_loads() {
        let mut members = crate::plan::tests::members(&[1.0, 1.0, 2.0]);
        for (member, load) in members.iter_mut().zip([0.0, 1.0, 3.0]) {
            member.effective = Some(EffectiveLoad { value: load, begun: 0 });
        }
        let plan = Plan::new(&STRATEGY, StrategyParams(alloc::vec![]), members);
        let mut counts = [0_u32; 3];
        for random_bits in 0..40_000_u64 {
            counts[choose(
                &plan,
                &mut PickerState::default(),
                &PickRequest { random_bits: mix(random_bits), ..PickRequest::default() },
            )] += 1;
        }
        // 1, 1/2 and 2/4 tickets.
        for (count, share) in counts.into_iter().zip([0.5, 0.25, 0.25]) {
            assert!((f64::from(count) / 40_000.0 - share).abs() < 0.01, "{counts:?}");
        }
        let keyed_choice = |random_bits| {
            choose(
                &plan,
                &mut PickerState::default(),
                &PickRequest { key: 9, random_bits, ..PickRequest::default() },
            )
        };
        assert!(
            (0..50).all(|random_bits| keyed_choice(random_bits) == keyed_choice(0)),
            "a request with a key has one winner"
        );
    }
}
