//! Water filling: the placement of a request while no slot is held.
//!
//! All members are filled up to one level of cost until one request is used up. The share of each member in
//! that is its chance to get the request. (Goren, Vargaftik and Moses, Stochastic coordination in
//! heterogeneous load balancing systems, PODC 2021; here costs bend at a knee.)
//!
//! The paper pours the requests that all balancers send before they get new information, because all
//! balancers see the same report. That keeps them from choosing the same member. The older the report, the
//! closer the draw is to capacity. Here [`POURED`], one request, is poured whatever the age of the report. A
//! load report comes with the answer to this balancer's own request, so no other balancer knows it, and the
//! requests sent since are added. At no moment do all balancers see the same member as the emptiest.
//!
//! An old report fades into the member's mean. The latency observed here replaces it where it is higher, as
//! far as requests come from elsewhere: the fate of those from here is known. With `[fleet]` several
//! balancers may know the same report. It counts only at balancers without a recent report of their own
//! (`fleet/receive.rs`). Reports of monitors are not used here.

use super::{failure_penalty, smooth_max, unreported_latency};
use crate::hash::unit;
use crate::{Member, PickRequest, PickerState, Plan, mix};

/// The outcome of a draw.
pub(super) enum DrawOutcome {
    /// The index of a member.
    Member(usize),
    /// All members with load reports have reached their limits.
    Full,
    /// No sampled member has a load report, or most of them answer without one.
    Unknown,
}

/// A member that can be filled.
#[derive(Clone, Copy, Default)]
struct FillTarget {
    index: usize,
    /// The cost of a request at an idle member, seconds.
    floor: f64,
    knee: f64,
    queue: f64,
    /// The addition to every request's cost, whatever the queue, seconds.
    unreported_latency: f64,
    /// The cost of one more request at the present queue.
    now: f64,
}

/// Draws one of the members that are `left`.
pub(super) fn draw<L>(plan: &Plan, hand: &PickerState, ask: &PickRequest, left: &L) -> DrawOutcome
where
    L: Fn(&Member) -> bool + ?Sized,
{
    match draw_below(plan, hand, ask, left, plan.has_admission()) {
        DrawOutcome::Full if plan.is_nearly_idle() => draw_below(plan, hand, ask, left, false),
        drawn => drawn,
    }
}

/// Draws one of the members that are `left`; with `limits`, one that also has room.
fn draw_below<L>(plan: &Plan, hand: &PickerState, ask: &PickRequest, left: &L, limits: bool) -> DrawOutcome
where
    L: Fn(&Member) -> bool + ?Sized,
{
    let members = plan.members();
    let fleet = hand.failing();
    let mut chance = ask.random_bits;
    let mut full = false;
    let crowded = limits && !ask.ignores_learnt_limits && plan.is_group_at_limit(ask.now);
    for _ in 0..members.len().div_ceil(SAMPLE).min(SAMPLES) {
        let mut vessels = [FillTarget::default(); SAMPLE];
        let mut count = 0;
        let (mut spoke, mut silent, mut answered, mut knees, mut works) = (0, 0, 0, 0.0, 0.0);
        for index in sample(members.len(), chance) {
            let member = &members[index];
            let Some(view) = member.current_report(ask.now) else {
                silent += 1;
                // A member whose last report has expired still counts as a member with reports.
                answered += i32::from(
                    !member.vitals.last_report.was_ever_received() && member.vitals.mean_latency().is_some(),
                );
                continue;
            };
            let knee = f64::from(view.reading.knee);
            spoke += 1;
            knees += knee;
            works += f64::from(view.reading.work);
            let had = view.faded_in_flight(ask.now);
            let queue = member.estimated_queue_from(&view, had);
            // The limit is above the knee: most members need no closer look.
            let is_full = match view.reading.open {
                true => crowded || member.is_at_limit(ask.now),
                false => queue >= knee && queue >= f64::from(view.limit()),
            };
            if limits && is_full {
                full = true;
            } else if left(member) {
                let floor = f64::from(view.reading.work) * failure_penalty(member, fleet);
                // The requests sent since come on top of both figures, reported and observed.
                let said = smooth_max(floor, knee, had);
                let unsaid = unreported_latency(
                    member,
                    said,
                    || hand.elsewhere_share * view.observation_weight(ask.now),
                    ask.now,
                );
                vessels[count] = FillTarget::new(index, floor, knee, queue, unsaid);
                count += 1;
            }
        }
        // If most members answer without load reports, observation is better than a guess.
        if answered > spoke {
            return DrawOutcome::Unknown;
        }
        if spoke > 0 && silent > 0 {
            // Members without load reports are assumed to be like the others, except for the observed
            // latency.
            let (knee, work) = (knees / f64::from(spoke), works / f64::from(spoke));
            full |= crowded;
            for index in sample(members.len(), chance).filter(|_| !crowded) {
                let member = &members[index];
                if member.current_report(ask.now).is_none() && left(member) {
                    let queue = member.awaiting_everywhere();
                    let floor = member.vitals.observed_latency(ask.now).unwrap_or(work).max(work)
                        * failure_penalty(member, fleet);
                    vessels[count] = FillTarget::new(index, floor, knee, queue, 0.0);
                    count += 1;
                }
            }
        }
        chance = mix(chance);
        if count > 0 {
            return DrawOutcome::Member(fill(&vessels[..count], unit(chance)));
        }
    }
    if full { DrawOutcome::Full } else { DrawOutcome::Unknown }
}

/// Returns up to [`SAMPLE`] different indices below `count`, evenly spread from a random start.
fn sample(count: usize, chance: u64) -> impl Iterator<Item = usize> {
    let taken = count.min(SAMPLE);
    let widest = (count / SAMPLE).max(1) as u64;
    let mut next = ((chance >> 32) % count.max(1) as u64) as usize;
    let stride = (1 + (chance & u64::from(u32::MAX)) % widest) as usize;
    (0..taken).map(move |_| {
        let index = next;
        next += stride;
        next -= if next >= count { count } else { 0 };
        index
    })
}

/// Returns the index of a member, drawn in proportion to what one more request adds to each; `vessels` is not
/// empty.
fn fill(vessels: &[FillTarget], unit: f64) -> usize {
    let (lowest, high) = lowest(vessels);
    // Only members below `high` get a part of the request. If the queues are too long for the number format
    // to show one more request, no member is below it.
    if vessels.iter().filter(|vessel| vessel.now < high).count() < 2 {
        return lowest.index;
    }
    let (parts, poured) = level(vessels, lowest.now, high);
    let mut left = unit * poured;
    for (vessel, part) in vessels.iter().zip(parts) {
        left -= part;
        if part > 0.0 && left <= 0.0 {
            return vessel.index;
        }
    }
    lowest.index
}

/// Returns the member with the lowest cost, and the least cost after one more request. Below that cost a
/// whole request fits into one member, and members that already cost more get nothing.
fn lowest(vessels: &[FillTarget]) -> (&FillTarget, f64) {
    let (mut lowest, mut high) = (&vessels[0], f64::INFINITY);
    for vessel in vessels {
        if vessel.now < lowest.now {
            lowest = vessel;
        }
        let then = vessel.cost(vessel.queue + POURED);
        high = if then < high { then } else { high };
    }
    (lowest, high)
}

/// Returns the part of each member and their sum at the level to which [`POURED`] fills them, within
/// [`CLOSE`]. The level is above `low`, the least cost now, and at most `high`, the least cost after one more
/// request.
///
/// The next level is the zero of the line between a level that is too low and one that is too high. An end
/// that stays twice in a row has its weight halved (Illinois method: Dowell and Jarratt, A modified regula
/// falsi method for computing the root of an equation, BIT 11, 1971). Bisection needs twice as many levels in
/// the mean.
fn level(vessels: &[FillTarget], mut low: f64, mut high: f64) -> ([f64; SAMPLE], f64) {
    let mut parts = [0.0; SAMPLE];
    let mut pour = |level| {
        let mut poured = 0.0;
        for (part, vessel) in parts.iter_mut().zip(vessels) {
            *part = vessel.requests_to_level(level);
            poured += *part;
        }
        poured
    };
    // Nothing fits at `low`; at `high` a whole request fits into one member.
    let (mut lacks, mut exceeds) = (-POURED, pour(high) - POURED);
    let mut poured = exceeds + POURED;
    let mut raised = None;
    for _ in 0..LEVELS {
        if (poured - POURED).abs() <= CLOSE {
            break;
        }
        let middle = low + (high - low) * (-lacks / (exceeds - lacks));
        poured = pour(middle);
        let above = poured - POURED;
        if above < 0.0 {
            (low, lacks) = (middle, above);
            exceeds *= if raised == Some(true) { 0.5 } else { 1.0 };
        } else {
            (high, exceeds) = (middle, above);
            lacks *= if raised == Some(false) { 0.5 } else { 1.0 };
        }
        raised = Some(above < 0.0);
    }
    (parts, poured)
}

impl FillTarget {
    fn new(index: usize, floor: f64, knee: f64, queue: f64, unreported_latency: f64) -> Self {
        Self {
            index,
            floor,
            knee,
            queue,
            unreported_latency,
            now: smooth_max(floor, knee, queue) + unreported_latency,
        }
    }

    fn cost(&self, queue: f64) -> f64 {
        smooth_max(self.floor, self.knee, queue) + self.unreported_latency
    }

    /// Returns the number of requests that fit until the cost has risen to `level`.
    fn requests_to_level(&self, level: f64) -> f64 {
        // The member is at that level or above, as are most members of a large group.
        if level <= self.now {
            return 0.0;
        }
        let rise = (level - self.unreported_latency) / self.floor;
        let part = self.knee * libm::sqrt(rise * rise - 1.0) - self.queue;
        if part > 0.0 { part } else { 0.0 }
    }
}

/// The number of members in a sample; a larger group has a new sample each time.
const SAMPLE: usize = 16;

/// The maximum number of samples if all members of one are full.
const SAMPLES: usize = 4;

/// The requests that are poured: this one, whatever the age of the reports.
const POURED: f64 = 1.0;

/// The tolerance of [`POURED`], requests: the resulting error of a chance is harmless.
const CLOSE: f64 = 1e-2;

/// The maximum number of levels: two in a thousand draws need more than fourteen, and none of a million
/// needed all.
const LEVELS: usize = 64;

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_is_poured_stands_equally_high_in_all_that_take_of_it(
            vessels in proptest::collection::vec(
                (0.001..1.0, 1.0..50.0, prop_oneof![Just(0.0), 0.0..100.0], prop_oneof![Just(0.0), 0.0..1.0]),
                2..=SAMPLE,
            ),
        ) {
            let vessels: Vec<FillTarget> = vessels
                .into_iter()
                .enumerate()
                .map(|(index, (floor, knee, queue, unsaid))| {
                    FillTarget::new(index, floor, knee, queue, unsaid)
                })
                .collect();
            let (lowest, high) = lowest(&vessels);
            let (parts, poured) = level(&vessels, lowest.now, high);
            prop_assert!((poured - POURED).abs() <= CLOSE, "{poured}");
            prop_assert!((parts.iter().sum::<f64>() - poured).abs() < 1e-9);
            let filled = |vessel: &FillTarget| vessel.cost(vessel.queue + parts[vessel.index]);
            let levels = || vessels.iter().filter(|vessel| parts[vessel.index] > 0.0).map(filled);
            let (lowest, highest) =
                levels().fold((f64::INFINITY, 0.0_f64), |(low, high), at| (low.min(at), high.max(at)));
            prop_assert!(highest - lowest <= 1e-6 * highest, "{lowest} to {highest}");
            for dry in vessels.iter().filter(|vessel| parts[vessel.index] == 0.0) {
                prop_assert!(dry.cost(dry.queue) >= lowest - 1e-6 * lowest, "{}", dry.index);
            }
        }
    }
}
