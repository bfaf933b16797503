//! Processors: the branches in service, those that wait, and the times at which service ends.
//!
//! A station requests alarms and is called when one is due; only its latest request for an alarm is valid.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use super::rng::RandomStream;
use crate::model::{Multiplicity, Processor, Scheduling};

/// Converts a time to an integer with the same order; times are not negative.
pub(super) fn sortable(time: f64) -> u64 {
    time.to_bits()
}

/// The request of a station after an event.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum StationAction {
    /// Ends the service of this branch at this time.
    ScheduleEnd { who: u32, at: f64 },
    /// Sets an alarm at this time.
    SetAlarm { at: f64 },
    /// Nothing.
    Nothing,
}

/// The state of a processor.
pub(super) struct ProcessorStation {
    scheduling: Scheduling,
    /// Whether branches are served to the end in order of arrival, so that the short functions can be used.
    pub(super) is_plain: bool,
    /// The number of cores; `u32::MAX` if it is infinite.
    cores: u32,
    busy: u32,
    waiting: VecDeque<(u32, f64)>,
    ranked: BinaryHeap<RankedBranch>,
    arrivals: u64,
    /// The branches in service, by priority, with the end of their service (preemptive scheduling).
    served: Vec<(i32, u64, u32, f64)>,
    /// The branches in service with the end of their work, on a clock that advances at the rate at which each
    /// is served (processor sharing).
    sharing: BinaryHeap<Reverse<(u64, u64, u32)>>,
    clock: f64,
    /// The time at which the clock was updated.
    at: f64,
    /// The integral of busy cores over time, up to `area_updated_at`.
    pub(super) area: f64,
    area_updated_at: f64,
}

/// The priority, then the order of arrival; the index of the branch; the remaining work.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct RankedBranch(i32, Reverse<u64>, u32, u64);

impl ProcessorStation {
    pub(super) fn new(processor: &Processor) -> Self {
        let (cores, endless) = match processor.copies {
            Multiplicity::Finite(count) => (count, false),
            Multiplicity::Infinite => (u32::MAX, true),
        };
        Self {
            scheduling: processor.scheduling,
            is_plain: endless || processor.scheduling == Scheduling::Fcfs,
            cores,
            busy: 0,
            waiting: VecDeque::new(),
            ranked: BinaryHeap::new(),
            arrivals: 0,
            served: Vec::new(),
            sharing: BinaryHeap::new(),
            clock: 0.0,
            at: 0.0,
            area: 0.0,
            area_updated_at: 0.0,
        }
    }

    /// Updates the integral of busy cores.
    pub(super) fn update_area(&mut self, now: f64) {
        self.area += f64::from(self.busy.min(self.cores)) * (now - self.area_updated_at);
        self.area_updated_at = now;
    }

    /// Adds a branch with this work to a plain station. Returns the end of its service; `None` if it waits.
    pub(super) fn enter_plain(&mut self, who: u32, work: f64, now: f64) -> Option<f64> {
        self.update_area(now);
        if self.busy < self.cores {
            self.busy += 1;
            return Some(now + work);
        }
        self.waiting.push_back((who, work));
        None
    }

    /// Removes a branch of a plain station. Returns the next branch and the end of its service.
    pub(super) fn leave_plain(&mut self, now: f64) -> Option<(u32, f64)> {
        self.update_area(now);
        let next = self.waiting.pop_front();
        if next.is_none() {
            self.busy -= 1;
        }
        next.map(|(who, work)| (who, now + work))
    }

    /// Adds a branch with this work, above 0. With preemption, also returns the preempted branch, whose alarm
    /// becomes invalid.
    pub(super) fn enter(
        &mut self,
        who: u32,
        priority: i32,
        work: f64,
        now: f64,
    ) -> (StationAction, Option<u32>) {
        self.update_area(now);
        self.arrivals += 1;
        let free = self.busy < self.cores;
        if self.scheduling == Scheduling::ProcessorSharing {
            self.run(now);
            self.busy += 1;
            self.sharing.push(Reverse((sortable(self.clock + work), self.arrivals, who)));
            return (self.next_alarm(now), None);
        }
        if free {
            return (self.start_service(who, priority, self.arrivals, work, now), None);
        }
        match self.scheduling {
            Scheduling::HeadOfLine => {
                self.ranked.push(RankedBranch(priority, Reverse(self.arrivals), who, work.to_bits()));
            }
            Scheduling::Preemptive => {
                // The branch with the lowest priority, and of those the one that arrived last.
                let least = self.served.iter().enumerate().min_by_key(|(_, own)| (own.0, Reverse(own.1)));
                if let Some((place, own)) = least
                    && own.0 < priority
                {
                    let (rank, turn, other, until) = self.served.swap_remove(place);
                    let left = (until - now).max(0.0);
                    self.ranked.push(RankedBranch(rank, Reverse(turn), other, left.to_bits()));
                    self.busy -= 1;
                    return (self.start_service(who, priority, self.arrivals, work, now), Some(other));
                }
                self.ranked.push(RankedBranch(priority, Reverse(self.arrivals), who, work.to_bits()));
            }
            _ => self.waiting.push_back((who, work)),
        }
        (StationAction::Nothing, None)
    }

    fn start_service(&mut self, who: u32, priority: i32, turn: u64, work: f64, now: f64) -> StationAction {
        self.busy += 1;
        if self.scheduling == Scheduling::Preemptive {
            self.served.push((priority, turn, who, now + work));
        }
        StationAction::ScheduleEnd { who, at: now + work }
    }

    /// Removes a branch at the end of its service and starts the next one.
    pub(super) fn complete(&mut self, who: u32, now: f64, dice: &mut RandomStream) -> StationAction {
        self.update_area(now);
        self.busy -= 1;
        if self.scheduling == Scheduling::Preemptive {
            self.served.retain(|own| own.2 != who);
        }
        if let Some(RankedBranch(priority, Reverse(turn), who, work)) = self.ranked.pop() {
            return self.start_service(who, priority, turn, f64::from_bits(work), now);
        }
        let next = if self.scheduling == Scheduling::Random && !self.waiting.is_empty() {
            self.waiting.swap_remove_back(dice.uniform_below(self.waiting.len()))
        } else {
            self.waiting.pop_front()
        };
        next.map_or(StationAction::Nothing, |(who, work)| self.start_service(who, 0, 0, work, now))
    }

    /// Handles the alarm: returns the branch that is done, and the next alarm.
    pub(super) fn handle_alarm(&mut self, now: f64) -> (Option<u32>, StationAction) {
        self.update_area(now);
        self.run(now);
        let Some(Reverse((until, _, who))) = self.sharing.pop() else {
            return (None, StationAction::Nothing);
        };
        self.clock = self.clock.max(f64::from_bits(until));
        self.busy -= 1;
        if self.sharing.is_empty() {
            // Reset the clock to preserve precision.
            self.clock = 0.0;
        }
        (Some(who), self.next_alarm(now))
    }

    /// Returns the rate at which each branch in service is served.
    fn speed(&self) -> f64 {
        (f64::from(self.cores) / f64::from(self.busy.max(1))).min(1.0)
    }

    fn run(&mut self, now: f64) {
        if self.busy > 0 {
            self.clock += (now - self.at) * self.speed();
        }
        self.at = now;
    }

    fn next_alarm(&self, now: f64) -> StationAction {
        match self.sharing.peek() {
            Some(Reverse((until, _, _))) => {
                let left = (f64::from_bits(*until) - self.clock).max(0.0);
                StationAction::SetAlarm { at: now + left / self.speed() }
            }
            None => StationAction::Nothing,
        }
    }
}
