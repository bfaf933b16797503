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
    current_cost: f64,
}

/// Draws one of the members that are `left`.
pub(super) fn draw<L>(plan: &Plan, picker: &PickerState, request: &PickRequest, has_room: &L) -> DrawOutcome
where
    L: Fn(&Member) -> bool + ?Sized,
{
    match draw_below(plan, picker, request, has_room, plan.has_admission()) {
        DrawOutcome::Full if plan.is_nearly_idle() => draw_below(plan, picker, request, has_room, false),
        outcome => outcome,
    }
}

/// Draws one of the members that are `left`; with `limits`, one that also has room.
fn draw_below<L>(
    plan: &Plan,
    picker: &PickerState,
    request: &PickRequest,
    has_room: &L,
    enforce_limits: bool,
) -> DrawOutcome
where
    L: Fn(&Member) -> bool + ?Sized,
{
    let members = plan.members();
    let failure_share = picker.failing();
    let mut random_bits = request.random_bits;
    let mut any_full = false;
    let group_full = enforce_limits && !request.ignores_learnt_limits && plan.is_group_at_limit(request.now);
    for _ in 0..members.len().div_ceil(SAMPLE_SIZE).min(MAX_SAMPLES) {
        let mut targets = [FillTarget::default(); SAMPLE_SIZE];
        let mut count = 0;
        let (mut reporting_count, mut silent_count, mut answered_count, mut knee_sum, mut work_sum) =
            (0, 0, 0, 0.0, 0.0);
        for index in sample(members.len(), random_bits) {
            let member = &members[index];
            let Some(view) = member.current_report(request.now) else {
                silent_count += 1;
                // A member whose last report has expired still counts as a member with reports.
                answered_count += i32::from(
                    !member.vitals.last_report.was_ever_received() && member.vitals.mean_latency().is_some(),
                );
                continue;
            };
            let knee = f64::from(view.reading.knee);
            reporting_count += 1;
            knee_sum += knee;
            work_sum += f64::from(view.reading.work);
            let in_flight = view.faded_in_flight(request.now);
            let queue = member.estimated_queue_from(&view, in_flight);
            // The limit is above the knee: most members need no closer look.
            let is_full = match view.reading.open {
                true => group_full || member.is_at_limit(request.now),
                false => queue >= knee && queue >= f64::from(view.limit()),
            };
            if enforce_limits && is_full {
                any_full = true;
            } else if has_room(member) {
                let floor = f64::from(view.reading.work) * failure_penalty(member, failure_share);
                // The requests sent since come on top of both figures, reported and observed.
                let reported_latency = smooth_max(floor, knee, in_flight);
                let unreported = unreported_latency(
                    member,
                    reported_latency,
                    || picker.elsewhere_share * view.observation_weight(request.now),
                    request.now,
                );
                targets[count] = FillTarget::new(index, floor, knee, queue, unreported);
                count += 1;
            }
        }
        // If most members answer without load reports, observation is better than a guess.
        if answered_count > reporting_count {
            return DrawOutcome::Unknown;
        }
        if reporting_count > 0 && silent_count > 0 {
            // Members without load reports are assumed to be like the others, except for the observed
            // latency.
            let (knee, work) = (knee_sum / f64::from(reporting_count), work_sum / f64::from(reporting_count));
            any_full |= group_full;
            for index in sample(members.len(), random_bits).filter(|_| !group_full) {
                let member = &members[index];
                if member.current_report(request.now).is_none() && has_room(member) {
                    let queue = member.awaiting_everywhere();
                    let floor = member.vitals.observed_latency(request.now).unwrap_or(work).max(work)
                        * failure_penalty(member, failure_share);
                    targets[count] = FillTarget::new(index, floor, knee, queue, 0.0);
                    count += 1;
                }
            }
        }
        random_bits = mix(random_bits);
        if count > 0 {
            return DrawOutcome::Member(fill(&targets[..count], unit(random_bits)));
        }
    }
    if any_full { DrawOutcome::Full } else { DrawOutcome::Unknown }
}

/// Returns up to [`SAMPLE`] different indices below `count`, evenly spread from a random start.
fn sample(count: usize, random_bits: u64) -> impl Iterator<Item = usize> {
    let sample_size = count.min(SAMPLE_SIZE);
    let max_stride = (count / SAMPLE_SIZE).max(1) as u64;
    let mut next = ((random_bits >> 32) % count.max(1) as u64) as usize;
    let stride = (1 + (random_bits & u64::from(u32::MAX)) % max_stride) as usize;
    (0..sample_size).map(move |_| {
        let index = next;
        next += stride;
        next -= if next >= count { count } else { 0 };
        index
    })
}

/// Returns the index of a member, drawn in proportion to what one more request adds to each; `vessels` is not
/// empty.
fn fill(targets: &[FillTarget], unit: f64) -> usize {
    let (lowest, level_bound) = lowest(targets);
    // Only members below `high` get a part of the request. If the queues are too long for the number format
    // to show one more request, no member is below it.
    if targets.iter().filter(|target| target.current_cost < level_bound).count() < 2 {
        return lowest.index;
    }
    let (amounts, total) = level(targets, lowest.current_cost, level_bound);
    let mut remaining = unit * total;
    for (target, amount) in targets.iter().zip(amounts) {
        remaining -= amount;
        if amount > 0.0 && remaining <= 0.0 {
            return target.index;
        }
    }
    lowest.index
}

/// Returns the member with the lowest cost, and the least cost after one more request. Below that cost a
/// whole request fits into one member, and members that already cost more get nothing.
fn lowest(targets: &[FillTarget]) -> (&FillTarget, f64) {
    let (mut lowest, mut level_bound) = (&targets[0], f64::INFINITY);
    for target in targets {
        if target.current_cost < lowest.current_cost {
            lowest = target;
        }
        let raised_cost = target.cost(target.queue + FILL_REQUESTS);
        level_bound = if raised_cost < level_bound { raised_cost } else { level_bound };
    }
    (lowest, level_bound)
}

/// Returns the part of each member and their sum at the level to which [`POURED`] fills them, within
/// [`CLOSE`]. The level is above `low`, the least cost now, and at most `high`, the least cost after one more
/// request.
///
/// The next level is the zero of the line between a level that is too low and one that is too high. An end
/// that stays twice in a row has its weight halved (Illinois method: Dowell and Jarratt, A modified regula
/// falsi method for computing the root of an equation, BIT 11, 1971). Bisection needs twice as many levels in
/// the mean.
fn level(targets: &[FillTarget], mut low: f64, mut high: f64) -> ([f64; SAMPLE_SIZE], f64) {
    let mut amounts = [0.0; SAMPLE_SIZE];
    let mut fill_to = |level| {
        let mut total = 0.0;
        for (amount, target) in amounts.iter_mut().zip(targets) {
            *amount = target.requests_to_level(level);
            total += *amount;
        }
        total
    };
    // Nothing fits at `low`; at `high` a whole request fits into one member.
    let (mut low_error, mut high_error) = (-FILL_REQUESTS, fill_to(high) - FILL_REQUESTS);
    let mut total = high_error + FILL_REQUESTS;
    let mut last_raised = None;
    for _ in 0..MAX_ITERATIONS {
        if (total - FILL_REQUESTS).abs() <= FILL_TOLERANCE {
            break;
        }
        let midpoint = low + (high - low) * (-low_error / (high_error - low_error));
        total = fill_to(midpoint);
        let error = total - FILL_REQUESTS;
        if error < 0.0 {
            (low, low_error) = (midpoint, error);
            high_error *= if last_raised == Some(true) { 0.5 } else { 1.0 };
        } else {
            (high, high_error) = (midpoint, error);
            low_error *= if last_raised == Some(false) { 0.5 } else { 1.0 };
        }
        last_raised = Some(error < 0.0);
    }
    (amounts, total)
}

impl FillTarget {
    fn new(index: usize, floor: f64, knee: f64, queue: f64, unreported_latency: f64) -> Self {
        Self {
            index,
            floor,
            knee,
            queue,
            unreported_latency,
            current_cost: smooth_max(floor, knee, queue) + unreported_latency,
        }
    }

    fn cost(&self, queue: f64) -> f64 {
        smooth_max(self.floor, self.knee, queue) + self.unreported_latency
    }

    /// Returns the number of requests that fit until the cost has risen to `level`.
    fn requests_to_level(&self, level: f64) -> f64 {
        // The member is at that level or above, as are most members of a large group.
        if level <= self.current_cost {
            return 0.0;
        }
        let rise = (level - self.unreported_latency) / self.floor;
        let requests = self.knee * libm::sqrt(rise * rise - 1.0) - self.queue;
        if requests > 0.0 { requests } else { 0.0 }
    }
}

/// The number of members in a sample; a larger group has a new sample each time.
const SAMPLE_SIZE: usize = 16;

/// The maximum number of samples if all members of one are full.
const MAX_SAMPLES: usize = 4;

/// The requests that are poured: this one, whatever the age of the reports.
const FILL_REQUESTS: f64 = 1.0;

/// The tolerance of [`POURED`], requests: the resulting error of a chance is harmless.
const FILL_TOLERANCE: f64 = 1e-2;

/// The maximum number of levels: two in a thousand draws need more than fourteen, and none of a million
/// needed all.
const MAX_ITERATIONS: usize = 64;

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
                2..=SAMPLE_SIZE,
            ),
        ) {
            let targets: Vec<FillTarget> = vessels
                .into_iter()
                .enumerate()
                .map(|(index, (floor, knee, queue, unsaid))| {
                    FillTarget::new(index, floor, knee, queue, unsaid)
                })
                .collect();
            let (lowest, high) = lowest(&targets);
            let (amounts, total) = level(&targets, lowest.current_cost, high);
            prop_assert!((total - FILL_REQUESTS).abs() <= FILL_TOLERANCE, "{total}");
            prop_assert!((amounts.iter().sum::<f64>() - total).abs() < 1e-9);
            let filled_cost = |target: &FillTarget| target.cost(target.queue + amounts[target.index]);
            let filled_costs =
                || targets.iter().filter(|target| amounts[target.index] > 0.0).map(filled_cost);
            let (lowest, highest) =
                filled_costs().fold((f64::INFINITY, 0.0_f64), |(low, high), at| (low.min(at), high.max(at)));
            prop_assert!(highest - lowest <= 1e-6 * highest, "{lowest} to {highest}");
            for unfilled in targets.iter().filter(|target| amounts[target.index] == 0.0) {
                prop_assert!(unfilled.cost(unfilled.queue) >= lowest - 1e-6 * lowest, "{}", unfilled.index);
            }
        }
    }
}
