//! The active requests, threads and branches, and the calls that await a reply.

use std::collections::VecDeque;

use super::graph::{JoinState, LoopStack};

/// The threads and the queue of a task.
pub(super) struct TaskState {
    /// The number of free threads; `None` if it is infinite.
    pub(super) free_threads: Option<u32>,
    pub(super) queue: VecDeque<u32>,
}

#[derive(Clone, Default)]
pub(super) struct RequestRecord {
    pub(super) entry: u32,
    /// The branch that waits.
    pub(super) caller: u32,
    /// The time of its arrival at the present entry.
    pub(super) arrived_at: f64,
    /// The entry at which it arrived from outside (`NONE` otherwise), and the time.
    pub(super) origin: u32,
    pub(super) entered_at: f64,
    /// Whether a call for it has failed.
    pub(super) failed: bool,
    /// The rank of the calling task's priority.
    pub(super) rank: u16,
}

#[derive(Clone, Default)]
pub(super) struct ThreadRecord {
    pub(super) task: u32,
    pub(super) entry: u32,
    /// The request to reply to.
    pub(super) request: u32,
    pub(super) branches: u32,
    pub(super) started_at: f64,
    /// Whether a call has failed.
    pub(super) failed: bool,
    /// The state of joins, and of forks in loops; only for graphs with those.
    pub(super) joins: Option<Box<JoinState>>,
}

#[derive(Clone, Default)]
pub(super) struct BranchRecord {
    pub(super) thread: u32,
    pub(super) activity: u32,
    /// The time at which the activity began.
    pub(super) started_at: f64,
    /// The number of the valid alarm.
    pub(super) alarm: u32,
    /// The remaining calls of each kind, if their numbers are exact.
    pub(super) remaining_calls: Vec<u32>,
    /// The loops that the branch is in, if any.
    pub(super) loops: Option<Box<LoopStack>>,
}

/// A call that awaits a reply: its entry, its timeout and retries, its request and the number of retries so
/// far.
#[derive(Clone, Copy, Default)]
pub(super) struct PendingCall {
    pub(super) entry: u32,
    pub(super) retry_policy: u32,
    pub(super) request: u32,
    pub(super) retries: u32,
    /// The number of the timeout event; 0 for none.
    pub(super) timeout_event: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The records that a simulation touches at each event must be small: rare data are boxed.
    #[test]
    fn what_is_under_way_is_small() {
        assert_eq!(
            (size_of::<RequestRecord>(), size_of::<ThreadRecord>(), size_of::<BranchRecord>()),
            (32, 40, 56)
        );
    }
}
