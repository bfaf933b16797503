//! The ends of activities, of calls, of branches, and of threads with their last branch.

use super::super::program::Answers;
use super::{Do, Engine, NONE, Now, Request};

impl Engine<'_> {
    /// Ends an activity: sends the reply if it is due, then continues with the successors.
    pub(super) fn finish(&mut self, branch: u32) -> Now {
        let own = &self.branches.all[branch as usize];
        let (thread, activity) = (own.thread, own.activity);
        self.tally.done(activity as usize, self.now - own.begun);
        let entry = self.threads.all[thread as usize].entry as usize;
        let answers = match &self.program.activities[activity as usize].answers {
            Answers::Nobody => false,
            Answers::Own => true,
            Answers::Some(entries) => entries.contains(&entry),
        };
        let answered = if answers { self.answer(thread) } else { None };
        let first = match answered {
            Some(Do::Piece(caller)) => self.piece(caller),
            Some(Do::Come(request)) => self.come(request),
            other => other,
        };
        if first.is_some() {
            self.todo.push(Do::Next(branch));
            return first;
        }
        self.next(branch)
    }

    /// Replies to the thread's caller, or forwards its request.
    fn answer(&mut self, thread: u32) -> Now {
        let own = &mut self.threads.all[thread as usize];
        let (request, entry, failed) =
            (std::mem::replace(&mut own.request, NONE), own.entry as usize, own.failed);
        if request == NONE {
            return None;
        }
        self.requests.all[request as usize].failed |= failed;
        self.tally.served(entry, self.now - own.begun);
        self.loads[self.program.entries[entry].task] -= 1;
        if let Some(to) = self.forward(entry, request) {
            let own = &mut self.requests.all[request as usize];
            (own.entry, own.came) = (to as u32, self.now);
            return Some(Do::Come(request));
        }
        let Request { caller, origin, outside, failed, .. } = self.requests.all[request as usize];
        self.requests.give(request);
        if caller != NONE {
            if let Some(asked) = self.asked.get_mut(caller as usize) {
                asked.until = 0;
            }
            return Some(if failed { Do::Fail(caller) } else { Do::Piece(caller) });
        }
        if origin != NONE {
            self.tally.answered(origin as usize, self.now - outside, !failed);
        }
        None
    }

    /// Ends a branch, and its thread with the last one.
    pub(super) fn end(&mut self, branch: u32) -> Now {
        let thread = self.branches.all[branch as usize].thread;
        if let Some(loops) = &mut self.branches.all[branch as usize].loops {
            loops.all.clear();
        }
        self.branches.give(branch);
        let own = &mut self.threads.all[thread as usize];
        own.branches -= 1;
        if own.branches > 0 {
            return None;
        }
        if let Some(joins) = &mut own.joins {
            joins.clear();
        }
        let (task, entry, begun) = (own.task as usize, own.entry as usize, own.begun);
        // A graph without a reply replies at its end.
        let answered = self.answer(thread);
        self.todo.extend(answered);
        self.tally.busy(task, -1, self.now);
        self.tally.over(entry, self.now - begun);
        if self.program.tasks[task].think.is_some() {
            let good = !self.threads.all[thread as usize].failed;
            self.tally.cycle(task, self.now - begun, good);
            self.rest(thread);
            return None;
        }
        self.threads.give(thread);
        match self.next_of(task) {
            Some(request) => self.take(task, request),
            None => {
                if let Some(free) = &mut self.crews[task].free {
                    *free += 1;
                }
                None
            }
        }
    }
}
