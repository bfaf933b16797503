//! What ends: an activity, the wait of a caller, a branch, and with its last branch the work of a thread.

use super::super::program::Answers;
use super::{Do, Engine, NONE, Request};

impl Engine<'_> {
    /// An activity is done: perhaps somebody is answered, then comes what follows.
    pub(super) fn finish(&mut self, branch: u32) {
        let own = &self.branches.all[branch as usize];
        let (thread, activity) = (own.thread, own.activity);
        self.tally.done(activity as usize, self.now - own.begun);
        self.todo.push(Do::Next(branch));
        let entry = self.threads.all[thread as usize].entry as usize;
        let answers = match &self.program.activities[activity as usize].answers {
            Answers::Nobody => false,
            Answers::Own => true,
            Answers::Some(entries) => entries.contains(&entry),
        };
        if answers {
            self.answer(thread);
        }
    }

    /// The thread's caller is answered, or its request goes elsewhere.
    fn answer(&mut self, thread: u32) {
        let own = &mut self.threads.all[thread as usize];
        let (request, entry, failed) =
            (std::mem::replace(&mut own.request, NONE), own.entry as usize, own.failed);
        if request == NONE {
            return;
        }
        self.requests.all[request as usize].failed |= failed;
        self.tally.served(entry, self.now - own.begun);
        self.loads[self.program.entries[entry].task] -= 1;
        if let Some(to) = self.forward(entry, request) {
            let own = &mut self.requests.all[request as usize];
            (own.entry, own.came) = (to as u32, self.now);
            self.todo.push(Do::Come(request));
            return;
        }
        let Request { caller, origin, outside, failed, .. } = self.requests.all[request as usize];
        self.requests.give(request);
        if caller != NONE {
            if let Some(asked) = self.asked.get_mut(caller as usize) {
                asked.until = 0;
            }
            self.todo.push(if failed { Do::Fail(caller) } else { Do::Piece(caller) });
        } else if origin != NONE {
            self.tally.answered(origin as usize, self.now - outside, !failed);
        }
    }

    /// A branch has come to its end, and perhaps its thread.
    pub(super) fn end(&mut self, branch: u32) {
        let thread = self.branches.all[branch as usize].thread;
        if let Some(loops) = &mut self.branches.all[branch as usize].loops {
            loops.all.clear();
        }
        self.branches.give(branch);
        let own = &mut self.threads.all[thread as usize];
        own.branches -= 1;
        if own.branches > 0 {
            return;
        }
        if let Some(joins) = &mut own.joins {
            joins.clear();
        }
        let (task, entry, begun) = (own.task as usize, own.entry as usize, own.begun);
        // A graph that answers nowhere answers when it is over.
        self.answer(thread);
        self.tally.busy(task, -1, self.now);
        self.tally.over(entry, self.now - begun);
        if self.program.tasks[task].think.is_some() {
            let good = !self.threads.all[thread as usize].failed;
            self.tally.cycle(task, self.now - begun, good);
            return self.rest(thread);
        }
        self.threads.give(thread);
        match self.next_of(task) {
            Some(request) => self.take(task, request),
            None => {
                if let Some(free) = &mut self.crews[task].free {
                    *free += 1;
                }
            }
        }
    }
}
