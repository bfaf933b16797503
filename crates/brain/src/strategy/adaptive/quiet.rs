//! Where a request goes when members say nothing of themselves.
//!
//! To the member with the fewest requests in flight from here, for its weight. Most members tie at that, and who
//! of them is chosen decides everything: it is the one with the earliest virtual deadline, where each request
//! moves its member's deadline on by the latency that the member has lately. So a member that is twice as fast
//! gets twice the turns (self-clocked fair queueing, Golestani 1994, with latency for length).
//!
//! Only an *aperture* of the members is used: a ring that begins elsewhere for each balancer and is twice as wide
//! as the requests in flight (Finagle's deterministic aperture, with the width from the load). With many
//! balancers, each sees then enough of few members instead of too little of all.
//!
//! Where the balancers tell one another what they have in flight, there is no aperture: each sees enough of all (see
//! `fleet/company.rs`).

use super::Left;
use crate::{Hand, Member, Plan};

/// Index of the member; `None` if none is left.
pub(super) fn choose(plan: &Plan, hand: &mut Hand, left: Left<'_>) -> Option<usize> {
    if plan.crowded() {
        return None;
    }
    let members = plan.members();
    let count = members.len();
    let width = match count {
        ..=LEAST => count,
        _ if plan.accompanied() => count,
        _ => (libm::ceil(2.0 * hand.busy) as usize).clamp(LEAST, count),
    };
    let start = ((u128::from(hand.seed) * count as u128) >> 64) as usize;
    let mut best: Option<(usize, f64, f64)> = None;
    let mut busy = 0.0;
    let mut seen = 0;
    for turn in 0..count {
        // What cannot be used makes room for the next.
        if seen >= width && best.is_some() {
            break;
        }
        let index = if start + turn < count { start + turn } else { start + turn - count };
        let member = &members[index];
        let in_flight = member.in_flight();
        busy += f64::from(in_flight);
        if !left(member) {
            continue;
        }
        seen += 1;
        let load = plan.crowd(member) / member.weight;
        let deadline = hand.deadline_at(index);
        if best.is_none_or(|(_, least, first)| load < least || (load == least && deadline < first)) {
            best = Some((index, load, deadline));
        }
    }
    hand.busy += (busy - hand.busy) / CHOICES;
    let (mut index, _, mut deadline) = best?;
    if members[index].vitals.crowded() {
        index = uncrowded(plan, left)?;
        deadline = hand.deadline_at(index);
    }
    let member = &members[index];
    let latency = f64::from(member.vitals.blended().unwrap_or(0.0)) * 1e-9 / member.weight;
    hand.promise(index, deadline.max(hand.deadline - latency) + latency);
    hand.deadline = deadline;
    Some(index)
}

/// Where there are fewest in flight, of those below their ceiling; `None` if all are there: one more would only wait.
#[cold]
fn uncrowded(plan: &Plan, left: Left<'_>) -> Option<usize> {
    let load = |member: &Member| plan.crowd(member) / member.weight;
    let room =
        plan.members().iter().enumerate().filter(|(_, member)| left(member) && !member.vitals.crowded());
    room.min_by(|(_, a), (_, b)| load(a).total_cmp(&load(b))).map(|(index, _)| index)
}

/// Members in the aperture, at least.
const LEAST: usize = 10;

/// Choices over which the requests in flight are averaged.
const CHOICES: f64 = 64.0;
