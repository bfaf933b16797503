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
    clock_updated_at: f64,
    /// The integral of busy cores over time, up to `area_updated_at`.
    pub(super) area: f64,
    area_updated_at: f64,
}

/// The priority, then the order of arrival; the index of the branch; the remaining work.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct RankedBranch(i32, Reverse<u64>, u32, u64);

impl ProcessorStation {
    pub(super) fn new(processor: &Processor) -> Self {
        let (cores, is_infinite) = match processor.copies {
            Multiplicity::Finite(count) => (count, false),
            Multiplicity::Infinite => (u32::MAX, true),
        };
        Self {
            scheduling: processor.scheduling,
            is_plain: is_infinite || processor.scheduling == Scheduling::Fcfs,
            cores,
            busy: 0,
            waiting: VecDeque::new(),
            ranked: BinaryHeap::new(),
            arrivals: 0,
            served: Vec::new(),
            sharing: BinaryHeap::new(),
            clock: 0.0,
            clock_updated_at: 0.0,
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
    pub(super) fn enter_plain(&mut self, branch: u32, work: f64, now: f64) -> Option<f64> {
        self.update_area(now);
        if self.busy < self.cores {
            self.busy += 1;
            return Some(now + work);
        }
        self.waiting.push_back((branch, work));
        None
    }

    /// Removes a branch of a plain station. Returns the next branch and the end of its service.
    pub(super) fn leave_plain(&mut self, now: f64) -> Option<(u32, f64)> {
        self.update_area(now);
        let next_in_queue = self.waiting.pop_front();
        if next_in_queue.is_none() {
            self.busy -= 1;
        }
        next_in_queue.map(|(next_branch, work)| (next_branch, now + work))
    }

    /// Adds a branch with this work, above 0. With preemption, also returns the preempted branch, whose alarm
    /// becomes invalid.
    pub(super) fn enter(
        &mut self,
        branch: u32,
        priority: i32,
        work: f64,
        now: f64,
    ) -> (StationAction, Option<u32>) {
        self.update_area(now);
        self.arrivals += 1;
        let has_free_core = self.busy < self.cores;
        if self.scheduling == Scheduling::ProcessorSharing {
            self.advance_clock(now);
            self.busy += 1;
            self.sharing.push(Reverse((sortable(self.clock + work), self.arrivals, branch)));
            return (self.next_alarm(now), None);
        }
        if has_free_core {
            return (self.start_service(branch, priority, self.arrivals, work, now), None);
        }
        match self.scheduling {
            Scheduling::HeadOfLine => {
                self.ranked.push(RankedBranch(priority, Reverse(self.arrivals), branch, work.to_bits()));
            }
            Scheduling::Preemptive => {
                // The branch with the lowest priority, and of those the one that arrived last.
                let lowest =
                    self.served.iter().enumerate().min_by_key(|(_, service)| (service.0, Reverse(service.1)));
                if let Some((index, service)) = lowest
                    && service.0 < priority
                {
                    let (rank, arrival_number, preempted, end_time) = self.served.swap_remove(index);
                    let remaining = (end_time - now).max(0.0);
                    self.ranked.push(RankedBranch(
                        rank,
                        Reverse(arrival_number),
                        preempted,
                        remaining.to_bits(),
                    ));
                    self.busy -= 1;
                    return (self.start_service(branch, priority, self.arrivals, work, now), Some(preempted));
                }
                self.ranked.push(RankedBranch(priority, Reverse(self.arrivals), branch, work.to_bits()));
            }
            _ => self.waiting.push_back((branch, work)),
        }
        (StationAction::Nothing, None)
    }

    fn start_service(
        &mut self,
        branch: u32,
        priority: i32,
        arrival_number: u64,
        work: f64,
        now: f64,
    ) -> StationAction {
        self.busy += 1;
        if self.scheduling == Scheduling::Preemptive {
            self.served.push((priority, arrival_number, branch, now + work));
        }
        StationAction::ScheduleEnd { who: branch, at: now + work }
    }

    /// Removes a branch at the end of its service and starts the next one.
    pub(super) fn complete(&mut self, branch: u32, now: f64, random: &mut RandomStream) -> StationAction {
        self.update_area(now);
        self.busy -= 1;
        if self.scheduling == Scheduling::Preemptive {
            self.served.retain(|service| service.2 != branch);
        }
        if let Some(RankedBranch(priority, Reverse(arrival_number), next_branch, work)) = self.ranked.pop() {
            return self.start_service(next_branch, priority, arrival_number, f64::from_bits(work), now);
        }
        let next = if self.scheduling == Scheduling::Random && !self.waiting.is_empty() {
            self.waiting.swap_remove_back(random.uniform_below(self.waiting.len()))
        } else {
            self.waiting.pop_front()
        };
        next.map_or(StationAction::Nothing, |(next_branch, work)| {
            self.start_service(next_branch, 0, 0, work, now)
        })
    }

    /// Handles the alarm: returns the branch that is done, and the next alarm.
    pub(super) fn handle_alarm(&mut self, now: f64) -> (Option<u32>, StationAction) {
        self.update_area(now);
        self.advance_clock(now);
        let Some(Reverse((end_clock, _, branch))) = self.sharing.pop() else {
            return (None, StationAction::Nothing);
        };
        self.clock = self.clock.max(f64::from_bits(end_clock));
        self.busy -= 1;
        if self.sharing.is_empty() {
            // Reset the clock to preserve precision.
            self.clock = 0.0;
        }
        (Some(branch), self.next_alarm(now))
    }

    /// Returns the rate at which each branch in service is served.
    fn speed(&self) -> f64 {
        (f64::from(self.cores) / f64::from(self.busy.max(1))).min(1.0)
    }

    fn advance_clock(&mut self, now: f64) {
        if self.busy > 0 {
            self.clock += (now - self.clock_updated_at) * self.speed();
        }
        self.clock_updated_at = now;
    }

    fn next_alarm(&self, now: f64) -> StationAction {
        match self.sharing.peek() {
            Some(Reverse((end_clock, _, _))) => {
                let remaining = (f64::from_bits(*end_clock) - self.clock).max(0.0);
                StationAction::SetAlarm { at: now + remaining / self.speed() }
            }
            None => StationAction::Nothing,
        }
    }
}
