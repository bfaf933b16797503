//! Where a request goes when no slot is held: water filling.
//!
//! What is the most even way to add one request? Fill every member up to one level of cost, such that the request is used up; the
//! share of each member in that is the chance with which it gets this one (Goren, Vargaftik and Moses, Stochastic
//! coordination in heterogeneous load balancing systems, PODC 2021, with costs that bend at a knee).
//!
//! In their paper as much is poured as all balancers send before they hear anything new, because all of them look at the same
//! report: that is what keeps them from meeting at the same member, and the older the report the more of a draw by capacity it is.
//! Here it is [`POURED`], one request, however old what is known is. A member's word comes with the answer to a request of this
//! balancer's and is known to no other, and what was sent there since is counted on top: there is no moment at which all see the
//! same member as the emptiest. What grows old is not followed but fades to what the member has in the mean; what its answers take here
//! counts in place of that where it is more, as far as requests come from elsewhere: how those from here fare is known. With `[fleet]`
//! several may know the same word; it counts only with those that have heard nothing of the member themselves for a while
//! (`fleet/hear.rs`). Reports of monitors are no views here at all.

use super::{bend, scorn, unsaid};
use crate::hash::unit;
use crate::{Ask, Hand, Member, Plan, mix};

/// What came of it.
pub(super) enum Draw {
    /// Index of a member.
    Member(usize),
    /// All that have spoken have as many requests as they can work on.
    Full,
    /// Nothing is known of any that was looked at, or most say nothing though they answer.
    Unknown,
}

/// One member that can be filled.
#[derive(Clone, Copy, Default)]
struct Vessel {
    index: usize,
    /// Cost of a request to an idle member, seconds.
    floor: f64,
    knee: f64,
    queue: f64,
    /// Seconds on top of every request, whatever the queue.
    unsaid: f64,
    /// What one more request costs as it stands.
    now: f64,
}

/// Draws one of the members that are `left`.
pub(super) fn draw<L>(plan: &Plan, hand: &Hand, ask: &Ask, left: &L) -> Draw
where
    L: Fn(&Member) -> bool + ?Sized,
{
    match draw_below(plan, hand, ask, left, plan.admission()) {
        Draw::Full if plan.blind() => draw_below(plan, hand, ask, left, false),
        drawn => drawn,
    }
}

/// The same; `limits`: of those that have room.
fn draw_below<L>(plan: &Plan, hand: &Hand, ask: &Ask, left: &L, limits: bool) -> Draw
where
    L: Fn(&Member) -> bool + ?Sized,
{
    let members = plan.members();
    let fleet = hand.failing();
    let mut chance = ask.chance;
    let mut full = false;
    let crowded = limits && !ask.insist && plan.crowded(ask.now);
    for _ in 0..members.len().div_ceil(SAMPLE).min(SAMPLES) {
        let mut vessels = [Vessel::default(); SAMPLE];
        let mut count = 0;
        let (mut spoke, mut silent, mut answered, mut knees, mut works) = (0, 0, 0, 0.0, 0.0);
        for index in sample(members.len(), chance) {
            let member = &members[index];
            let Some(view) = member.view(ask.now) else {
                silent += 1;
                // One that has not spoken for a while speaks for all that.
                answered += i32::from(!member.vitals.heard.ever() && member.vitals.blended().is_some());
                continue;
            };
            let knee = f64::from(view.reading.knee);
            spoke += 1;
            knees += knee;
            works += f64::from(view.reading.work);
            let had = view.had(ask.now);
            let queue = member.queue_of(&view, had);
            // The limit is above the knee: most are looked at no closer.
            let is_full = match view.reading.open {
                true => crowded || member.busy(ask.now),
                false => queue >= knee && queue >= f64::from(view.limit()),
            };
            if limits && is_full {
                full = true;
            } else if left(member) {
                let floor = f64::from(view.reading.work) * scorn(member, fleet);
                // What was sent there since comes on top of either, of what it said and of what was seen.
                let said = bend(floor, knee, had);
                let unsaid = unsaid(member, said, || hand.elsewhere * view.faded(ask.now), ask.now);
                vessels[count] = Vessel::new(index, floor, knee, queue, unsaid);
                count += 1;
            }
        }
        // What most do not say, though they answer, is guessed worse than it is seen.
        if answered > spoke {
            return Draw::Unknown;
        }
        if spoke > 0 && silent > 0 {
            // Those that say nothing are taken to be like the others, but for what is seen of them.
            let (knee, work) = (knees / f64::from(spoke), works / f64::from(spoke));
            full |= crowded;
            for index in sample(members.len(), chance).filter(|_| !crowded) {
                let member = &members[index];
                if member.view(ask.now).is_none() && left(member) {
                    let queue = member.awaiting_everywhere();
                    let floor = member.vitals.seen(ask.now).unwrap_or(work).max(work) * scorn(member, fleet);
                    vessels[count] = Vessel::new(index, floor, knee, queue, 0.0);
                    count += 1;
                }
            }
        }
        chance = mix(chance);
        if count > 0 {
            return Draw::Member(fill(&vessels[..count], unit(chance)));
        }
    }
    if full { Draw::Full } else { Draw::Unknown }
}

/// Up to [`SAMPLE`] different indices below `count`, evenly spread from a place drawn by chance.
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

/// Index of a member, drawn by what one more request fills of each vessel; there is at least one.
fn fill(vessels: &[Vessel], unit: f64) -> usize {
    let (lowest, high) = lowest(vessels);
    // Those that one more request comes to. Where queues are so long that one more makes no difference in a number, none stands lower.
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

/// The one that stands lowest, and the least cost after one more request: so much fits below that, into one of them, and nothing comes
/// to those that stand higher before.
fn lowest(vessels: &[Vessel]) -> (&Vessel, f64) {
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

/// What each takes, and all do, at the level to which [`POURED`] fills them, to [`CLOSE`] of it: above `low`, the least cost there is, and not
/// above `high`, the least with so much more.
///
/// Of a line between a level that is too low and one that is too high, where it crosses is the next; the end that stays
/// twice in a row weighs half (Illinois method: Dowell and Jarratt, A modified regula falsi method for computing the root of
/// an equation, BIT 11, 1971). Halving needs twice as many levels in the mean.
fn level(vessels: &[Vessel], mut low: f64, mut high: f64) -> ([f64; SAMPLE], f64) {
    let mut parts = [0.0; SAMPLE];
    let mut pour = |level| {
        let mut poured = 0.0;
        for (part, vessel) in parts.iter_mut().zip(vessels) {
            *part = vessel.takes(level);
            poured += *part;
        }
        poured
    };
    // Nothing fits at the lowest cost there is; at the other a whole request does, in one of them.
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

impl Vessel {
    fn new(index: usize, floor: f64, knee: f64, queue: f64, unsaid: f64) -> Self {
        Self { index, floor, knee, queue, unsaid, now: bend(floor, knee, queue) + unsaid }
    }

    fn cost(&self, queue: f64) -> f64 {
        bend(self.floor, self.knee, queue) + self.unsaid
    }

    /// Requests that fit until the cost has risen to `level`.
    fn takes(&self, level: f64) -> f64 {
        // It stands at that level or higher: most do, where there are many.
        if level <= self.now {
            return 0.0;
        }
        let rise = (level - self.unsaid) / self.floor;
        let part = self.knee * libm::sqrt(rise * rise - 1.0) - self.queue;
        if part > 0.0 { part } else { 0.0 }
    }
}

/// Members looked at; where there are more, others each time.
const SAMPLE: usize = 16;

/// Times that others are looked at when all of one sample are full.
const SAMPLES: usize = 4;

/// Requests that are poured: this one, whatever the age of what is known.
const POURED: f64 = 1.0;

/// How near to [`POURED`] is near enough, requests: a chance that is wrong by so little is as good.
const CLOSE: f64 = 1e-2;

/// Levels that are tried at most: two in a thousand need more than fourteen, and none of a million needed all of these.
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
            let vessels: Vec<Vessel> = vessels
                .into_iter()
                .enumerate()
                .map(|(index, (floor, knee, queue, unsaid))| Vessel::new(index, floor, knee, queue, unsaid))
                .collect();
            let (lowest, high) = lowest(&vessels);
            let (parts, poured) = level(&vessels, lowest.now, high);
            prop_assert!((poured - POURED).abs() <= CLOSE, "{poured}");
            prop_assert!((parts.iter().sum::<f64>() - poured).abs() < 1e-9);
            let filled = |vessel: &Vessel| vessel.cost(vessel.queue + parts[vessel.index]);
            let levels = || vessels.iter().filter(|vessel| parts[vessel.index] > 0.0).map(filled);
            let (lowest, highest) = levels().fold((f64::INFINITY, 0.0_f64), |(low, high), at| (low.min(at), high.max(at)));
            prop_assert!(highest - lowest <= 1e-6 * highest, "{lowest} to {highest}");
            for dry in vessels.iter().filter(|vessel| parts[vessel.index] == 0.0) {
                prop_assert!(dry.cost(dry.queue) >= lowest - 1e-6 * lowest, "{}", dry.index);
            }
        }
    }
}
