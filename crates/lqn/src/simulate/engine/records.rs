//! What is under way: requests, threads and branches, and the calls that are waited for.

use std::collections::VecDeque;

use super::graph::{Joins, Loops};

/// The threads of a task.
pub(super) struct State {
    /// None for as many as are needed.
    pub(super) free: Option<u32>,
    pub(super) queue: VecDeque<u32>,
}

#[derive(Clone, Default)]
pub(super) struct Request {
    pub(super) entry: u32,
    /// The branch that waits.
    pub(super) caller: u32,
    /// When it came to the entry at which it is now.
    pub(super) came: f64,
    /// The entry to which it came from outside, and when; `NONE` if it did not.
    pub(super) origin: u32,
    pub(super) outside: f64,
    /// Something that was done for it failed.
    pub(super) failed: bool,
    /// Rank of the task that asks.
    pub(super) rank: u16,
}

#[derive(Clone, Default)]
pub(super) struct Thread {
    pub(super) task: u32,
    pub(super) entry: u32,
    /// What is to be answered.
    pub(super) request: u32,
    pub(super) branches: u32,
    pub(super) begun: f64,
    /// A call has failed.
    pub(super) failed: bool,
    /// Only of activity graphs with joins, or with forks in loops.
    pub(super) joins: Option<Box<Joins>>,
}

#[derive(Clone, Default)]
pub(super) struct Branch {
    pub(super) thread: u32,
    pub(super) activity: u32,
    /// When it began with the activity.
    pub(super) begun: f64,
    /// Number of the alarm that counts.
    pub(super) alarm: u32,
    /// Calls that are left, of those made exactly so often.
    pub(super) left: Vec<u32>,
    /// Only in loops.
    pub(super) loops: Option<Box<Loops>>,
}

/// A call whose answer is waited for: whom it asks, with what patience, its request and how often it tried again.
#[derive(Clone, Copy, Default)]
pub(super) struct Waiting {
    pub(super) entry: u32,
    pub(super) patience: u32,
    pub(super) request: u32,
    pub(super) tries: u32,
    /// Number of the event at which it gives up; 0 for none.
    pub(super) until: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a simulation touches at each event: what is rare is kept apart.
    #[test]
    fn what_is_under_way_is_small() {
        assert_eq!((size_of::<Request>(), size_of::<Thread>(), size_of::<Branch>()), (32, 40, 56));
    }
}
