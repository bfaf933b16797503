//! Calls without a reply: refused because the queue is at its limit, or timed out.
//!
//! The caller retries as often as allowed. After that the call has failed: the rest of the caller's activity
//! is skipped. Its own caller gets a reply with the failure, which is not retried. A server does not notice
//! that the caller has given up: it serves the request to the end.

use super::super::program::ENDLESS;
use super::{Do, Engine, Event, NONE, Now, Request, Waiting};

impl Engine<'_> {
    /// Records the call that a branch waits for.
    pub(super) fn waits_for(&mut self, branch: u32, asked: Waiting) {
        if self.asked.len() <= branch as usize {
            self.asked.resize(branch as usize + 1, Waiting::default());
        }
        self.asked[branch as usize] = asked;
    }

    /// Makes a branch's call with its timeout.
    pub(super) fn ask(&mut self, branch: u32) -> Now {
        let asked = self.asked[branch as usize];
        let thread = self.branches.all[branch as usize].thread;
        let task = self.threads.all[thread as usize].task;
        let rank = self.program.tasks[task as usize].rank;
        let request = self.request(asked.entry, branch, rank);
        let timeout = self.program.patience[asked.patience as usize].timeout;
        let until = if timeout.is_finite() { self.at(self.now + timeout, Event::GiveUp(branch)) } else { 0 };
        let own = &mut self.asked[branch as usize];
        (own.request, own.until) = (request, until);
        self.come(request)
    }

    /// Refuses a request because the queue is at its limit.
    pub(super) fn refuse(&mut self, request: u32) -> Now {
        let Request { entry, caller, .. } = self.requests.all[request as usize];
        self.tally.refused(entry as usize);
        self.requests.give(request);
        if caller == NONE { None } else { self.in_vain(caller) }
    }

    /// Handles a timeout, if the branch still waits for the call that set it.
    pub(super) fn give_up(&mut self, branch: u32, number: u32) -> Now {
        let asked = self.asked[branch as usize];
        if asked.until != number {
            return None;
        }
        self.tally.timed_out(asked.entry as usize);
        // The server continues with the request.
        self.requests.all[asked.request as usize].caller = NONE;
        self.in_vain(branch)
    }

    /// Retries a call without a reply, or lets it fail.
    fn in_vain(&mut self, branch: u32) -> Now {
        let own = &mut self.asked[branch as usize];
        own.until = 0;
        let patience = (own.patience != ENDLESS).then(|| self.program.patience[own.patience as usize]);
        let Some(patience) = patience.filter(|patience| own.tries < patience.retries) else {
            return Some(Do::Fail(branch));
        };
        let pause = patience.backoff * 2.0_f64.powi(own.tries as i32);
        own.tries += 1;
        self.tally.retried(own.entry as usize);
        if pause > 0.0 {
            self.at(self.now + pause, Event::Again(branch));
            return None;
        }
        Some(Do::Ask(branch))
    }

    /// Ends the activity of a failed call.
    pub(super) fn fail(&mut self, branch: u32) -> Now {
        let thread = self.branches.all[branch as usize].thread;
        self.threads.all[thread as usize].failed = true;
        self.finish(branch)
    }
}
