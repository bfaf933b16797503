//! What one core keeps for one group between choices: the slots it was promised, deadlines, what it makes of
//! the fleet's failures. Everything else that a choice reads is in the [`Plan`](crate::Plan).
//!
//! A hand belongs to one core and is never shared, so that a choice takes no lock and writes no line that
//! another core reads. It may be thrown away at any time: what it holds are hints.

use alloc::collections::BinaryHeap;
use alloc::vec::Vec;
use core::cmp::Ordering;
use core::mem;
use core::time::Duration;

use crate::strategy::Pool;
use crate::time::nanos;
use crate::{Member, MemberId, Time};

/// One core's memory of a group.
#[derive(Clone, Debug, Default)]
pub struct Hand {
    /// Chance, so that the hands of a fleet begin at different places; any number.
    pub(crate) seed: u64,
    /// Number of the plan that `seats` belong to.
    serial: u64,
    /// One for each member of that plan, in its order.
    seats: Vec<Seat>,
    credits: BinaryHeap<Credit>,
    /// Credits to hold before the expired ones are thrown out.
    room: usize,
    /// The latest virtual deadline served, seconds.
    pub(crate) deadline: f64,
    /// Mean of the requests in flight with the members looked at.
    pub(crate) busy: f64,
    /// What is usual with the members looked at last, 0 for not known: the harmonic mean of their latencies, nanoseconds, and the
    /// mean of their weights.
    pub(crate) usual: f64,
    pub(crate) weight: f64,
    /// Mean of the streams and tunnels of the members looked at last.
    pub(crate) streaming: f64,
    /// Has any member said anything of itself?
    pub(crate) heard: bool,
    /// What part of the requests comes from elsewhere that members have when they speak, 0 to 1.
    pub(crate) elsewhere: f64,
    /// Mean latency of the requests chosen for lately, nanoseconds.
    pub(crate) latency: f32,
    /// What was found out of some members lately, by `prequal`.
    pub(crate) probes: Pool,
    /// How many that is a mean of, up to [`LATENCIES`].
    latencies: f32,
    /// Share of the requests that fail with all members, over the last [`MEMORIES`] for each member.
    failing: [f64; 2],
    /// Which member failed last, by any number that no two have at a time.
    failed: usize,
}

/// What a core keeps of one member.
#[derive(Clone, Copy, Debug)]
struct Seat {
    id: MemberId,
    /// Virtual deadline, seconds.
    deadline: f64,
    /// When it was chosen last; zero for never.
    chosen: Time,
}

/// A slot that a member promised.
#[derive(Clone, Copy, Debug)]
struct Credit {
    /// What a request costs there, as of the promise.
    cost: f32,
    until: Time,
    member: MemberId,
}

impl Hand {
    /// An empty one. `seed` is any number; hands do well to have different ones.
    pub fn new(seed: u64) -> Self {
        Self { seed, ..Self::default() }
    }

    /// Slots held, some of which may have expired.
    pub fn held(&self) -> usize {
        self.credits.len()
    }

    /// Share of the requests that fail with all members, as seen from here: of late, or for long, whichever is more. By the one it is
    /// known within a few requests that all fail, by the other what happens seldom is not forgotten in between.
    pub(crate) fn failing(&self) -> f64 {
        self.failing[0].max(self.failing[1])
    }

    /// Takes the seats of a plan; members that stay keep their deadlines.
    pub(crate) fn sit(&mut self, serial: u64, members: &[Member]) {
        if serial == self.serial && self.seats.len() == members.len() {
            return;
        }
        self.serial = serial;
        let mut before = mem::take(&mut self.seats);
        before.sort_unstable_by_key(|seat| seat.id);
        let seat = |member: &Member| match before.binary_search_by_key(&member.id, |seat| seat.id) {
            Ok(place) => before[place],
            Err(_) => Seat { id: member.id, deadline: 0.0, chosen: Time(0) },
        };
        self.seats = members.iter().map(seat).collect();
    }

    /// The virtual deadline of the member at `place`, seconds, and when it was chosen there last.
    pub(crate) fn seat(&self, place: usize) -> (f64, Time) {
        self.seats.get(place).map_or((0.0, Time(0)), |seat| (seat.deadline, seat.chosen))
    }

    /// It is chosen, and has this deadline from here on.
    pub(crate) fn promise(&mut self, place: usize, deadline: f64, now: Time) {
        if let Some(seat) = self.seats.get_mut(place) {
            (seat.deadline, seat.chosen) = (deadline, now);
        }
    }

    /// Where a member sits.
    pub(crate) fn place(&self, member: MemberId) -> Option<usize> {
        // Ids are given in the order in which members join, and plans keep the order of the configuration: both
        // are nearly always the same, so the guess is nearly always right.
        let guess = member.0 as usize;
        if self.seats.get(guess).is_some_and(|seat| seat.id == member) {
            return Some(guess);
        }
        self.seats.iter().position(|seat| seat.id == member)
    }

    /// Keeps a promised slot.
    pub(crate) fn keep(&mut self, member: MemberId, cost: f32, until: Time, now: Time) {
        if self.credits.len() >= self.room.max(LEAST_ROOM) {
            self.credits.retain(|credit| credit.until > now);
            self.room = (2 * self.credits.len()).clamp(LEAST_ROOM, MOST_ROOM);
            if self.credits.len() >= MOST_ROOM {
                return;
            }
        }
        self.credits.push(Credit { cost, until, member });
    }

    /// Spends the cheapest slot that is still good, by the plan it sits at; where that is.
    pub(crate) fn spend(&mut self, now: Time, good: impl Fn(usize) -> bool) -> Option<usize> {
        while let Some(credit) = self.credits.pop() {
            if credit.until <= now {
                continue;
            }
            if let Some(place) = self.place(credit.member).filter(|place| good(*place)) {
                return Some(place);
            }
        }
        None
    }

    /// A request took so long.
    pub(crate) fn took(&mut self, latency: Duration) {
        if !self.heard {
            return;
        }
        self.latencies = (self.latencies + 1.0).min(LATENCIES);
        self.latency += (nanos(latency) - self.latency) / self.latencies;
    }

    /// Mean time that a request chosen for lately took; zero before the first. Where members say nothing, nobody keeps
    /// it.
    pub(crate) fn sojourn(&self) -> Duration {
        Duration::from_nanos(self.latency as u64)
    }

    /// An outcome with one of so many members. A failure counts if the one before was another's: a row of one member's alone says
    /// nothing about the fleet. Where all fail alike one of n fails after another in n - 1 of n cases, so each counts for that many more.
    pub(crate) fn outcome(&mut self, failed: bool, member: usize, members: usize) {
        let weight = if failed {
            let before = mem::replace(&mut self.failed, member);
            if before == member || before == 0 {
                return;
            }
            members as f64 / members.saturating_sub(1).max(1) as f64
        } else if self.failing[1] < 1e-12 {
            return;
        } else {
            0.0
        };
        for (failing, memory) in self.failing.iter_mut().zip(MEMORIES) {
            *failing = (*failing + (weight - *failing) / (memory * members.max(1) as f64)).min(1.0);
        }
    }
}

/// The cheapest is the greatest, for the heap; of equals the newest.
impl Ord for Credit {
    fn cmp(&self, other: &Self) -> Ordering {
        other.cost.total_cmp(&self.cost).then(self.until.cmp(&other.until))
    }
}

impl PartialOrd for Credit {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Credit {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Credit {}

/// Outcomes for each member over which failures are averaged.
const MEMORIES: [f64; 2] = [8.0, 256.0];

/// Latencies over which they are averaged.
const LATENCIES: f32 = 256.0;

/// Slots held before the expired ones are looked for, at least and at most.
const LEAST_ROOM: usize = 64;
const MOST_ROOM: usize = 65_536;
