//! The work and calls of a branch within an activity.

use super::super::compiled::{CallPlan, CompiledCall, NO_RETRY_POLICY};
use super::{Engine, NONE, NextAction, PendingAction, PendingCall, RequestRecord, SimulationEvent};

impl Engine<'_> {
    /// Starts the activity of a branch.
    pub(super) fn begin_activity(&mut self, branch: u32) -> NextAction {
        let branch_record = &mut self.branches.values[branch as usize];
        branch_record.started_at = self.now;
        let activity = branch_record.activity as usize;
        let compiled_activity = &self.program.activities[activity];
        if let CallPlan::Exact { targets, .. } = &compiled_activity.calls {
            branch_record.remaining_calls.clear();
            branch_record.remaining_calls.extend(targets.iter().map(|(count, _)| *count));
        }
        if compiled_activity.think > 0.0 {
            let time = compiled_activity.think * self.streams.executions[activity].think.exponential();
            self.schedule(self.now + time, SimulationEvent::ActivityThinkEnd(branch));
            return None;
        }
        self.begin_slice(branch)
    }

    /// Starts a slice of work of a branch.
    pub(super) fn begin_slice(&mut self, branch: u32) -> NextAction {
        let activity = self.branches.values[branch as usize].activity as usize;
        let compiled_activity = &self.program.activities[activity];
        let work = compiled_activity.slice.sample(&mut self.streams.slices[activity].work);
        if work <= 0.0 {
            return Some(PendingAction::EndSlice(branch));
        }
        let (index, priority) = (compiled_activity.processor, compiled_activity.priority);
        let station = &mut self.stations[index];
        if station.is_plain {
            if let Some(end_time) = station.enter_plain(branch, work, self.now) {
                self.schedule_completion(branch, end_time);
            }
            return None;
        }
        let (action, preempted) = station.enter(branch, priority, work, self.now);
        if let Some(preempted_branch) = preempted {
            // The alarm of the preempted branch is invalid: valid numbers are above 0.
            self.branches.values[preempted_branch as usize].alarm = 0;
        }
        self.perform_station_action(index, action);
        None
    }

    /// Continues after a slice of work: with a call, or with the end of the activity.
    pub(super) fn end_slice(&mut self, branch: u32) -> NextAction {
        let program = self.program;
        let branch_record = &mut self.branches.values[branch as usize];
        let activity = branch_record.activity as usize;
        match &program.activities[activity].calls {
            CallPlan::None => self.finish_activity(branch),
            CallPlan::Stochastic { ends, targets } => {
                let sample = self.streams.slices[activity].calls.uniform();
                if sample < *ends {
                    return self.finish_activity(branch);
                }
                let target = targets.iter().find(|(sum, _)| sample < *sum).or_else(|| targets.last());
                // There is at least one target.
                target.and_then(|(_, call)| self.call(branch, *call))
            }
            CallPlan::Exact { targets, ordered } => {
                let remaining: u32 = branch_record.remaining_calls.iter().sum();
                if remaining == 0 {
                    return self.finish_activity(branch);
                }
                let calls = &mut self.streams.slices[activity].calls;
                let mut draw = if *ordered { 0 } else { calls.uniform_below(remaining as usize) as u32 };
                let chosen_target = branch_record.remaining_calls.iter().position(|call_count| {
                    let is_chosen = draw < *call_count;
                    draw = draw.saturating_sub(*call_count);
                    is_chosen
                });
                let target_index = chosen_target?;
                branch_record.remaining_calls[target_index] -= 1;
                self.call(branch, targets[target_index].1)
            }
        }
    }

    fn call(&mut self, branch: u32, compiled_call: CompiledCall) -> NextAction {
        let CompiledCall { entry, waits, retry_policy: policy_index, rank } = compiled_call;
        if !waits {
            self.actions.push(PendingAction::BeginSlice(branch));
            let request = self.create_request(entry, NONE, rank);
            return self.arrive(request);
        }
        if self.program.can_fail {
            self.set_pending_call(
                branch,
                PendingCall { entry, retry_policy: policy_index, request: 0, retries: 0, timeout_event: 0 },
            );
        }
        if policy_index != NO_RETRY_POLICY {
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
