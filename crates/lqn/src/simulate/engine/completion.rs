//! The ends of activities, of calls, of branches, and of threads with their last branch.

use super::super::compiled::ReplyTargets;
use super::{Engine, NONE, NextAction, PendingAction, RequestRecord};

impl Engine<'_> {
    /// Ends an activity: sends the reply if it is due, then continues with the successors.
    pub(super) fn finish_activity(&mut self, branch: u32) -> NextAction {
        let own = &self.branches.values[branch as usize];
        let (thread, activity) = (own.thread, own.activity);
        self.tally.record_execution(activity as usize, self.now - own.started_at);
        let entry = self.threads.values[thread as usize].entry as usize;
        let answers = match &self.program.activities[activity as usize].replies {
            ReplyTargets::NoCaller => false,
            ReplyTargets::OwnCaller => true,
            ReplyTargets::CallersOf(entries) => entries.contains(&entry),
        };
        let answered = if answers { self.answer(thread) } else { None };
        let first = match answered {
            Some(PendingAction::BeginSlice(caller)) => self.begin_slice(caller),
            Some(PendingAction::Arrive(request)) => self.arrive(request),
            other => other,
        };
        if first.is_some() {
            self.actions.push(PendingAction::Continue(branch));
            return first;
        }
        self.continue_after_activity(branch)
    }

    /// Replies to the thread's caller, or forwards its request.
    fn answer(&mut self, thread: u32) -> NextAction {
        let own = &mut self.threads.values[thread as usize];
        let (request, entry, failed) =
            (std::mem::replace(&mut own.request, NONE), own.entry as usize, own.failed);
        if request == NONE {
            return None;
        }
        self.requests.values[request as usize].failed |= failed;
        self.tally.record_service(entry, self.now - own.started_at);
        self.loads[self.program.entries[entry].task] -= 1;
        if let Some(to) = self.choose_forward_target(entry, request) {
            let own = &mut self.requests.values[request as usize];
            (own.entry, own.arrived_at) = (to as u32, self.now);
            return Some(PendingAction::Arrive(request));
        }
        let RequestRecord { caller, origin, entered_at: outside, failed, .. } =
            self.requests.values[request as usize];
        self.requests.release(request);
        if caller != NONE {
            if let Some(asked) = self.pending_calls.get_mut(caller as usize) {
                asked.timeout_event = 0;
            }
            return Some(if failed {
                PendingAction::FailActivity(caller)
            } else {
                PendingAction::BeginSlice(caller)
            });
        }
        if origin != NONE {
            self.tally.record_external_reply(origin as usize, self.now - outside, !failed);
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
        let own = &mut self.threads.values[thread as usize];
        own.branches -= 1;
        if own.branches > 0 {
            return None;
        }
        if let Some(joins) = &mut own.joins {
            joins.clear();
        }
        let (task, entry, begun) = (own.task as usize, own.entry as usize, own.started_at);
        // A graph without a reply replies at its end.
        let answered = self.answer(thread);
        self.actions.extend(answered);
        self.tally.change_busy(task, -1, self.now);
        self.tally.record_thread_end(entry, self.now - begun);
        if self.program.tasks[task].think.is_some() {
            let good = !self.threads.values[thread as usize].failed;
            self.tally.record_cycle(task, self.now - begun, good);
            self.start_think_time(thread);
            return None;
        }
        self.threads.release(thread);
        match self.take_next_request(task) {
            Some(request) => self.start_thread(task, request),
            None => {
                if let Some(free) = &mut self.tasks[task].free_threads {
                    *free += 1;
                }
                None
            }
        }
    }
}
