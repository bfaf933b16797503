//! One core's state for one group between choices: the promised slots, the deadlines, and its estimate of the
//! fleet's failures. Everything else that a choice reads is in the [`Plan`](crate::Plan).
//!
//! A picker state belongs to one core and is never shared, so that a choice takes no lock and writes no line
//! that another core reads. It may be dropped at any time: its content is hints.

use alloc::collections::BinaryHeap;
use alloc::vec::Vec;
use core::cmp::Ordering;
use core::mem;
use core::time::Duration;

use crate::strategy::ProbePool;
use crate::time::nanos;
use crate::{Member, MemberId, Time};

/// One core's state for a group.
#[derive(Clone, Debug, Default)]
pub struct PickerState {
    /// A random number, so that the picker states of a fleet begin at different places.
    pub(crate) seed: u64,
    /// The serial number of the plan of `entries`.
    serial: u64,
    /// An entry for each member of that plan, in its order.
    entries: Vec<PickerEntry>,
    promised_slots: BinaryHeap<PromisedSlot>,
    /// The number of credits from which the expired ones are removed.
    prune_threshold: usize,
    /// The latest virtual deadline served, seconds.
    pub(crate) deadline: f64,
    /// The mean of the requests in flight with the members looked at.
    pub(crate) mean_in_flight: f64,
    /// The averages of the members looked at last, 0 if unknown: the harmonic mean of their latencies,
    /// nanoseconds, and the mean of their weights.
    pub(crate) typical_latency: f64,
    pub(crate) weight: f64,
    /// The mean of the streams and tunnels of the members looked at last.
    pub(crate) streaming: f64,
    /// Whether any member has sent a load report.
    pub(crate) has_reports: bool,
    /// The part of the members' requests that comes from elsewhere, by their load reports, 0 to 1.
    pub(crate) elsewhere_share: f64,
    /// The mean latency of recent requests from this core, nanoseconds.
    pub(crate) latency: f32,
    /// The recent results about some members, for `prequal`.
    pub(crate) probes: ProbePool,
    /// The number of latencies in that mean, up to [`LATENCIES`].
    latency_samples: f32,
    /// The share of failed requests of all members, over the last [`MEMORIES`] for each member.
    failure_shares: [f64; 2],
    /// The member that failed last, by any number that is unique at a time.
    last_failed: usize,
}

/// A core's state of one member.
#[derive(Clone, Copy, Debug)]
struct PickerEntry {
    id: MemberId,
    /// The virtual deadline, seconds.
    deadline: f64,
    /// The time of the last choice; zero for never.
    last_chosen: Time,
}

/// A slot that a member promised.
#[derive(Clone, Copy, Debug)]
struct PromisedSlot {
    /// The cost of a request there, as of the promise.
    cost: f32,
    until: Time,
    member: MemberId,
}

impl PickerState {
    /// Returns an empty state. `seed` is any number, best a different one for each state.
    pub fn new(seed: u64) -> Self {
        Self { seed, ..Self::default() }
    }

    /// Returns the number of held slots, some of which may have expired.
    pub fn held(&self) -> usize {
        self.promised_slots.len()
    }

    /// Returns the share of failed requests of all members, as seen from here: the recent or the long-term
    /// one, whichever is more. The recent share shows a common failure within a few requests; the long-term
    /// one keeps rare failures.
    pub(crate) fn failing(&self) -> f64 {
        self.failure_shares[0].max(self.failure_shares[1])
    }

    /// Takes the members of a plan; those that stay keep their deadlines.
    pub(crate) fn sync_members(&mut self, serial: u64, members: &[Member]) {
        if serial == self.serial && self.entries.len() == members.len() {
            return;
        }
        self.serial = serial;
        let mut previous_entries = mem::take(&mut self.entries);
        previous_entries.sort_unstable_by_key(|entry| entry.id);
        let entry_of =
            |member: &Member| match previous_entries.binary_search_by_key(&member.id, |entry| entry.id) {
                Ok(index) => previous_entries[index],
                Err(_) => PickerEntry { id: member.id, deadline: 0.0, last_chosen: Time(0) },
            };
        self.entries = members.iter().map(entry_of).collect();
    }

    /// Returns the virtual deadline of the member at `place`, seconds, and the time of its last choice.
    pub(crate) fn member_timing(&self, index: usize) -> (f64, Time) {
        self.entries.get(index).map_or((0.0, Time(0)), |entry| (entry.deadline, entry.last_chosen))
    }

    /// Records the choice of a member and sets its deadline.
    pub(crate) fn record_choice(&mut self, index: usize, deadline: f64, now: Time) {
        if let Some(entry) = self.entries.get_mut(index) {
            (entry.deadline, entry.last_chosen) = (deadline, now);
        }
    }

    /// Returns the index of a member.
    pub(crate) fn index_of(&self, member: MemberId) -> Option<usize> {
        // Ids are given in the order in which members join, and plans keep the order of the configuration:
        // both are nearly always the same, so the guess is nearly always right.
        let index = member.0 as usize;
        if self.entries.get(index).is_some_and(|entry| entry.id == member) {
            return Some(index);
        }
        self.entries.iter().position(|entry| entry.id == member)
    }

    /// Keeps a promised slot.
    pub(crate) fn keep_slot(&mut self, member: MemberId, cost: f32, until: Time, now: Time) {
        if self.promised_slots.len() >= self.prune_threshold.max(MIN_SLOTS) {
            self.promised_slots.retain(|slot| slot.until > now);
            self.prune_threshold = (2 * self.promised_slots.len()).clamp(MIN_SLOTS, MAX_SLOTS);
            if self.promised_slots.len() >= MAX_SLOTS {
                return;
            }
        }
        self.promised_slots.push(PromisedSlot { cost, until, member });
    }

    /// Uses the cheapest slot that is still good, and returns the index of its member in the plan.
    pub(crate) fn spend_slot(&mut self, now: Time, is_usable: impl Fn(usize) -> bool) -> Option<usize> {
        while let Some(slot) = self.promised_slots.pop() {
            if slot.until <= now {
                continue;
            }
            if let Some(index) = self.index_of(slot.member).filter(|index| is_usable(*index)) {
                return Some(index);
            }
        }
        None
    }

    /// Records the latency of a request.
    pub(crate) fn record_latency(&mut self, latency: Duration) {
        if !self.has_reports {
            return;
        }
        self.latency_samples = (self.latency_samples + 1.0).min(LATENCY_SAMPLES);
        self.latency += (nanos(latency) - self.latency) / self.latency_samples;
    }

    /// Returns the mean latency of requests from this core; zero before the first. It is not recorded if
    /// members send no load reports.
    pub(crate) fn sojourn(&self) -> Duration {
        Duration::from_nanos(self.latency as u64)
    }

    /// Records an outcome with one of `members` members.
    ///
    /// A failure counts if the previous one was another member's: a streak of one member is no evidence about
    /// the fleet. If all fail alike, a failure follows one of another member in n - 1 of n cases, so each
    /// counts for that much more.
    pub(crate) fn record_outcome(&mut self, failed: bool, member: usize, members: usize) {
        let weight = if failed {
            let previous = mem::replace(&mut self.last_failed, member);
            if previous == member || previous == 0 {
                return;
            }
            members as f64 / members.saturating_sub(1).max(1) as f64
        } else if self.failure_shares[1] < 1e-12 {
            return;
        } else {
            0.0
        };
        for (share, memory) in self.failure_shares.iter_mut().zip(FAILURE_MEMORIES) {
            *share = (*share + (weight - *share) / (memory * members.max(1) as f64)).min(1.0);
        }
    }
}

/// Orders the cheapest as the greatest, for the heap; of equals the one that expires last.
impl Ord for PromisedSlot {
    fn cmp(&self, other: &Self) -> Ordering {
        other.cost.total_cmp(&self.cost).then(self.until.cmp(&other.until))
    }
}

impl PartialOrd for PromisedSlot {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for PromisedSlot {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for PromisedSlot {}

/// The outcomes for each member over which failures are averaged.
const FAILURE_MEMORIES: [f64; 2] = [8.0, 256.0];

/// The number of latencies in their mean.
const LATENCY_SAMPLES: f32 = 256.0;

/// The number of slots from which the expired ones are removed, and the maximum number of slots.
const MIN_SLOTS: usize = 64;
const MAX_SLOTS: usize = 65_536;
