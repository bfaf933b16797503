//! Chooses the target of a forwarded request, and the request that a thread takes next.

use super::{Engine, NONE};

impl Engine<'_> {
    /// Returns the entry that a request is forwarded to, if any.
    pub(super) fn choose_forward_target(&mut self, entry: usize, request: u32) -> Option<usize> {
        let forwards = &self.program.entries[entry].forwards;
        if forwards.is_empty() {
            return None;
        }
        if self.routes[entry].is_some() {
            let session = self.session(request);
            let route = self.routes[entry].as_mut();
            let random = &mut self.streams.routes[entry];
            return route.map(|route| route.choose(&self.loads, session, random));
        }
        let sample = self.streams.routes[entry].uniform();
        forwards.iter().find(|(sum, _)| sample < *sum).map(|(_, to)| *to)
    }

    /// Returns the key of the client that a request is for; `None` for requests from outside and those
    /// without a waiting caller.
    fn session(&self, request: u32) -> Option<u64> {
        let mut request = request;
        loop {
            let caller = self.requests.values[request as usize].caller;
            if caller == NONE {
                return None;
            }
            let thread = self.branches.values[caller as usize].thread;
            let thread_record = &self.threads.values[thread as usize];
            if self.program.tasks[thread_record.task as usize].think.is_some() {
                return self.streams.keys.get(thread as usize).copied();
            }
            if thread_record.request == NONE {
                return None;
            }
            request = thread_record.request;
        }
    }

    /// Removes the request that a task serves next from its queue.
    pub(super) fn take_next_request(&mut self, task: usize) -> Option<u32> {
        let queue = &mut self.tasks[task].queue;
        if !self.program.tasks[task].by_priority || queue.len() < 2 {
            return queue.pop_front();
        }
        let program = self.program;
        // The sum of the caller's and the entry's priority.
        let rank = |request: &u32| {
            let request_record = &self.requests.values[*request as usize];
            let caller_priority =
                program.ranks.get(request_record.rank as usize).copied().unwrap_or(i32::MAX);
            caller_priority.saturating_add(program.entries[request_record.entry as usize].priority)
        };
        let highest = queue.iter().map(rank).max()?;
        let index = queue.iter().position(|request| rank(request) == highest)?;
        queue.remove(index)
    }
}
