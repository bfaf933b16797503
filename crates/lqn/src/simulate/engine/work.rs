//! The work and calls of a branch within an activity.

use super::super::compiled::{CallPlan, CompiledCall, NO_RETRY_POLICY};
use super::{Engine, NONE, NextAction, PendingAction, PendingCall, RequestRecord, SimulationEvent};

impl Engine<'_> {
    /// Starts the activity of a branch.
    pub(super) fn begin_activity(&mut self, branch: u32) -> NextAction {
        let own = &mut self.branches.values[branch as usize];
        own.started_at = self.now;
        let activity = own.activity as usize;
        let step = &self.program.activities[activity];
        if let CallPlan::Exact { targets, .. } = &step.calls {
            own.remaining_calls.clear();
            own.remaining_calls.extend(targets.iter().map(|(count, _)| *count));
        }
        if step.think > 0.0 {
            let time = step.think * self.streams.executions[activity].think.exponential();
            self.at(self.now + time, SimulationEvent::ActivityThinkEnd(branch));
            return None;
        }
        self.begin_slice(branch)
    }

    /// Starts a slice of work of a branch.
    pub(super) fn begin_slice(&mut self, branch: u32) -> NextAction {
        let activity = self.branches.values[branch as usize].activity as usize;
        let step = &self.program.activities[activity];
        let work = step.slice.sample(&mut self.streams.slices[activity].work);
        if work <= 0.0 {
            return Some(PendingAction::EndSlice(branch));
        }
        let (place, priority) = (step.processor, step.priority);
        let station = &mut self.stations[place];
        if station.is_plain {
            if let Some(at) = station.enter_plain(branch, work, self.now) {
                self.schedule_completion(branch, at);
            }
            return None;
        }
        let (wish, ousted) = station.enter(branch, priority, work, self.now);
        if let Some(ousted) = ousted {
            // The alarm of the preempted branch is invalid: valid numbers are above 0.
            self.branches.values[ousted as usize].alarm = 0;
        }
        self.perform_station_action(place, wish);
        None
    }

    /// Continues after a slice of work: with a call, or with the end of the activity.
    pub(super) fn end_slice(&mut self, branch: u32) -> NextAction {
        let program = self.program;
        let own = &mut self.branches.values[branch as usize];
        let activity = own.activity as usize;
        match &program.activities[activity].calls {
            CallPlan::None => self.finish_activity(branch),
            CallPlan::Stochastic { ends, targets } => {
                let drawn = self.streams.slices[activity].calls.uniform();
                if drawn < *ends {
                    return self.finish_activity(branch);
                }
                let target = targets.iter().find(|(sum, _)| drawn < *sum).or_else(|| targets.last());
                // There is at least one target.
                target.and_then(|(_, ask)| self.call(branch, *ask))
            }
            CallPlan::Exact { targets, ordered } => {
                let all: u32 = own.remaining_calls.iter().sum();
                if all == 0 {
                    return self.finish_activity(branch);
                }
                let calls = &mut self.streams.slices[activity].calls;
                let mut place = if *ordered { 0 } else { calls.uniform_below(all as usize) as u32 };
                let chosen = own.remaining_calls.iter().position(|left| {
                    let found = place < *left;
                    place = place.saturating_sub(*left);
                    found
                });
                let chosen = chosen?;
                own.remaining_calls[chosen] -= 1;
                self.call(branch, targets[chosen].1)
            }
        }
    }

    fn call(&mut self, branch: u32, ask: CompiledCall) -> NextAction {
        let CompiledCall { entry, waits, retry_policy: patience, rank } = ask;
        if !waits {
            self.actions.push(PendingAction::BeginSlice(branch));
            let request = self.create_request(entry, NONE, rank);
            return self.arrive(request);
        }
        if self.program.can_fail {
            self.set_pending_call(
                branch,
                PendingCall { entry, retry_policy: patience, request: 0, retries: 0, timeout_event: 0 },
            );
        }
        if patience != NO_RETRY_POLICY {
            return self.make_call(branch);
        }
        let request = self.create_request(entry, branch, rank);
        self.arrive(request)
    }

    /// Creates a request for an entry on behalf of a waiting branch.
    pub(super) fn create_request(&mut self, entry: u32, caller: u32, rank: u16) -> u32 {
        let now = self.now;
        self.requests.insert(RequestRecord {
            entry,
            caller,
            arrived_at: now,
            origin: NONE,
            entered_at: now,
            failed: false,
            rank,
        })
    }
}
