//! Calls without a reply: refused because the queue is at its limit, or timed out.
//!
//! The caller retries as often as allowed. After that the call has failed: the rest of the caller's activity
//! is skipped. Its own caller gets a reply with the failure, which is not retried. A server does not notice
//! that the caller has given up: it serves the request to the end.

use super::super::compiled::NO_RETRY_POLICY;
use super::{Engine, NONE, NextAction, PendingAction, PendingCall, RequestRecord, SimulationEvent};

impl Engine<'_> {
    /// Records the call that a branch waits for.
    pub(super) fn set_pending_call(&mut self, branch: u32, pending_call: PendingCall) {
        if self.pending_calls.len() <= branch as usize {
            self.pending_calls.resize(branch as usize + 1, PendingCall::default());
        }
        self.pending_calls[branch as usize] = pending_call;
    }

    /// Makes a branch's call with its timeout.
    pub(super) fn make_call(&mut self, branch: u32) -> NextAction {
        let pending_call = self.pending_calls[branch as usize];
        let thread = self.branches.values[branch as usize].thread;
        let task = self.threads.values[thread as usize].task;
        let rank = self.program.tasks[task as usize].rank;
        let request = self.create_request(pending_call.entry, branch, rank);
        let timeout = self.program.retry_policies[pending_call.retry_policy as usize].timeout;
        let timeout_event = if timeout.is_finite() {
            self.schedule(self.now + timeout, SimulationEvent::CallTimeout(branch))
        } else {
            0
        };
        let stored_call = &mut self.pending_calls[branch as usize];
        (stored_call.request, stored_call.timeout_event) = (request, timeout_event);
        self.arrive(request)
    }

    /// Refuses a request because the queue is at its limit.
    pub(super) fn refuse_request(&mut self, request: u32) -> NextAction {
        let RequestRecord { entry, caller, .. } = self.requests.values[request as usize];
        self.statistics.record_refusal(entry as usize);
        self.requests.release(request);
        if caller == NONE { None } else { self.retry_or_fail(caller) }
    }

    /// Handles a timeout, if the branch still waits for the call that set it.
    pub(super) fn handle_timeout(&mut self, branch: u32, number: u32) -> NextAction {
        let pending_call = self.pending_calls[branch as usize];
        if pending_call.timeout_event != number {
            return None;
        }
        self.statistics.record_timeout(pending_call.entry as usize);
        // The server continues with the request.
        self.requests.values[pending_call.request as usize].caller = NONE;
        self.retry_or_fail(branch)
    }

    /// Retries a call without a reply, or lets it fail.
    fn retry_or_fail(&mut self, branch: u32) -> NextAction {
        let pending_call = &mut self.pending_calls[branch as usize];
        pending_call.timeout_event = 0;
        let policy = (pending_call.retry_policy != NO_RETRY_POLICY)
            .then(|| self.program.retry_policies[pending_call.retry_policy as usize]);
        let Some(retry_policy) = policy.filter(|candidate| pending_call.retries < candidate.retries) else {
            return Some(PendingAction::FailActivity(branch));
        };
        let pause = retry_policy.backoff * 2.0_f64.powi(pending_call.retries as i32);
        pending_call.retries += 1;
        self.statistics.record_retry(pending_call.entry as usize);
        if pause > 0.0 {
            self.schedule(self.now + pause, SimulationEvent::CallRetry(branch));
            return None;
        }
        Some(PendingAction::MakeCall(branch))
    }

    /// Ends the activity of a failed call.
    pub(super) fn fail_activity(&mut self, branch: u32) -> NextAction {
        let thread = self.branches.values[branch as usize].thread;
        self.threads.values[thread as usize].failed = true;
        self.finish_activity(branch)
    }
}
