//! The ends of activities, of calls, of branches, and of threads with their last branch.

use super::super::compiled::ReplyTargets;
use super::{Engine, NONE, NextAction, PendingAction, RequestRecord};

impl Engine<'_> {
    /// Ends an activity: sends the reply if it is due, then continues with the successors.
    pub(super) fn finish_activity(&mut self, branch: u32) -> NextAction {
        let branch_record = &self.branches.values[branch as usize];
        let (thread, activity) = (branch_record.thread, branch_record.activity);
        self.statistics.record_execution(activity as usize, self.now - branch_record.started_at);
        let entry = self.threads.values[thread as usize].entry as usize;
        let sends_reply = match &self.program.activities[activity as usize].replies {
            ReplyTargets::NoCaller => false,
            ReplyTargets::OwnCaller => true,
            ReplyTargets::CallersOf(entries) => entries.contains(&entry),
        };
        let reply_action = if sends_reply { self.answer(thread) } else { None };
        let next_action = match reply_action {
            Some(PendingAction::BeginSlice(caller)) => self.begin_slice(caller),
            Some(PendingAction::Arrive(request)) => self.arrive(request),
            other => other,
        };
        if next_action.is_some() {
            self.actions.push(PendingAction::Continue(branch));
            return next_action;
        }
        self.continue_after_activity(branch)
    }

    /// Replies to the thread's caller, or forwards its request.
    fn answer(&mut self, thread: u32) -> NextAction {
        let thread_record = &mut self.threads.values[thread as usize];
        let (request, entry, failed) = (
            std::mem::replace(&mut thread_record.request, NONE),
            thread_record.entry as usize,
            thread_record.failed,
        );
        if request == NONE {
            return None;
        }
        self.requests.values[request as usize].failed |= failed;
        self.statistics.record_service(entry, self.now - thread_record.started_at);
        self.loads[self.program.entries[entry].task] -= 1;
        if let Some(to) = self.choose_forward_target(entry, request) {
            let request_record = &mut self.requests.values[request as usize];
            (request_record.entry, request_record.arrived_at) = (to as u32, self.now);
            return Some(PendingAction::Arrive(request));
        }
        let RequestRecord { caller, origin, entered_at, failed, .. } = self.requests.values[request as usize];
        self.requests.release(request);
        if caller != NONE {
            if let Some(pending_call) = self.pending_calls.get_mut(caller as usize) {
                pending_call.timeout_event = 0;
            }
            return Some(if failed {
                PendingAction::FailActivity(caller)
            } else {
                PendingAction::BeginSlice(caller)
            });
        }
        if origin != NONE {
            self.statistics.record_external_reply(origin as usize, self.now - entered_at, !failed);
        }
        None
    }

    /// Ends a branch, and its thread with the last one.
    pub(super) fn end_branch(&mut self, branch: u32) -> NextAction {
        let thread = self.branches.values[branch as usize].thread;
        if let Some(loops) = &mut self.branches.values[branch as usize].loops {
            loops.stack.clear();
        }
        self.branches.release(branch);
        let thread_record = &mut self.threads.values[thread as usize];
        thread_record.branches -= 1;
        if thread_record.branches > 0 {
            return None;
        }
        if let Some(joins) = &mut thread_record.joins {
            joins.clear();
        }
        let (task, entry, started_at) =
            (thread_record.task as usize, thread_record.entry as usize, thread_record.started_at);
        // A graph without a reply replies at its end.
        let reply_action = self.answer(thread);
        self.actions.extend(reply_action);
        self.statistics.change_busy(task, -1, self.now);
        self.statistics.record_thread_end(entry, self.now - started_at);
        if self.program.tasks[task].think.is_some() {
            let is_successful = !self.threads.values[thread as usize].failed;
            self.statistics.record_cycle(task, self.now - started_at, is_successful);
            self.start_think_time(thread);
            return None;
        }
        self.threads.release(thread);
        match self.take_next_request(task) {
            Some(request) => self.start_thread(task, request),
            None => {
                if let Some(free_count) = &mut self.tasks[task].free_threads {
                    *free_count += 1;
                }
                None
            }
        }
    }
}
