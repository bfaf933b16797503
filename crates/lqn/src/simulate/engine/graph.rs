//! The successors of activities: branches, forks, joins and loops.

use super::super::compiled::{CompiledLoop, CompiledSuccessors};
use super::super::rng::RandomStream;
use super::{Engine, NextAction, PendingAction, ThreadRecord};

/// The state of a thread's joins and forks.
#[derive(Clone, Default)]
pub(super) struct JoinState {
    /// The number of branches that arrived at each join, by its number.
    arrivals: Vec<(usize, u32)>,
    /// The unfinished forks within loops, by number, with their active branches.
    forks: Vec<(u32, u32)>,
    /// The number of the latest fork.
    last_fork: u32,
}

/// The loops and forks that a branch is in: loops by their number, forks within loops by their number and
/// [`FORK`].
#[derive(Clone, Default)]
pub(super) struct LoopStack {
    pub(super) stack: Vec<u32>,
}

/// The flag of a fork.
const FORK: u32 = 1 << 31;

impl Engine<'_> {
    /// Continues a branch after its activity.
    pub(super) fn continue_after_activity(&mut self, branch: u32) -> NextAction {
        let program = self.program;
        let activity = self.branches.values[branch as usize].activity;
        let mut successors = &program.activities[activity as usize].successors;
        loop {
            let loop_index = match successors {
                CompiledSuccessors::Or(branch_shares) => {
                    let to =
                        choose_branch(branch_shares, &mut self.streams.executions[activity as usize].next);
                    return self.continue_with(branch, to);
                }
                CompiledSuccessors::And(targets) => {
                    let branch_record = &mut self.branches.values[branch as usize];
                    let thread = branch_record.thread;
                    // A loop body ends when all of its branches have ended.
                    if let Some(loops) =
                        branch_record.loops.as_mut().filter(|loop_stack| !loop_stack.stack.is_empty())
                    {
                        let fork = self.threads.values[thread as usize].begin_fork(targets.len() as u32);
                        loops.stack.push(fork | FORK);
                    }
                    let loops = branch_record.loops.clone();
                    for to in targets.iter().skip(1).rev() {
                        let new_branch = self.start_branch(thread, *to as u32, loops.clone());
                        self.actions.push(PendingAction::BeginActivity(new_branch));
                    }
                    return self.continue_with(branch, targets.first().copied());
                }
                CompiledSuccessors::Join { join, wanted, branches, then: next_successors } => {
                    let thread = self.branches.values[branch as usize].thread;
                    let arrived_count = self.threads.values[thread as usize].arrive_at_join(*join, *branches);
                    if arrived_count != *wanted {
                        return self.end_branch(branch);
                    }
                    // The branch continues for all that arrive at the join, also for those that arrive later.
                    if let Some(fork) = self.innermost_loop(branch).filter(|frame| frame & FORK != 0) {
                        self.threads.values[thread as usize].end_fork_branches(fork & !FORK, branches - 1);
                    }
                    successors = next_successors;
                    continue;
                }
                CompiledSuccessors::Loop(index) => *index,
                // The end of a loop body leads back to the loop.
                CompiledSuccessors::End => {
                    let Some(frame) = self.innermost_loop(branch) else { return self.end_branch(branch) };
                    if frame & FORK != 0 {
                        let thread = self.branches.values[branch as usize].thread;
                        if self.threads.values[thread as usize].end_fork_branches(frame & !FORK, 1) > 0 {
                            return self.end_branch(branch);
                        }
                    }
                    self.leave_loop(branch);
                    if frame & FORK != 0 {
                        continue;
                    }
                    frame as usize
                }
            };
            let CompiledLoop { bodies, exit } = &program.loops[loop_index];
            let sample = self.streams.loops[loop_index].uniform();
            if let Some((_, body)) = bodies.iter().find(|(sum, _)| sample < *sum) {
                let loops = self.branches.values[branch as usize].loops.get_or_insert_default();
                loops.stack.push(loop_index as u32);
                return self.continue_with(branch, Some(*body));
            }
            if exit.is_some() {
                return self.continue_with(branch, *exit);
            }
            successors = &CompiledSuccessors::End;
        }
    }

    /// Returns the innermost loop or fork of a branch.
    fn innermost_loop(&self, branch: u32) -> Option<u32> {
        self.branches.values[branch as usize]
            .loops
            .as_ref()
            .and_then(|loop_stack| loop_stack.stack.last().copied())
    }

    /// Leaves the innermost loop or fork of a branch.
    fn leave_loop(&mut self, branch: u32) {
        if let Some(loops) = &mut self.branches.values[branch as usize].loops {
            loops.stack.pop();
        }
    }

    /// Continues a branch with an activity, or ends it if there is none.
    fn continue_with(&mut self, branch: u32, activity: Option<usize>) -> NextAction {
        let Some(activity) = activity else { return self.end_branch(branch) };
        self.branches.values[branch as usize].activity = activity as u32;
        self.begin_activity(branch)
    }
}

/// Chooses one of several branches by their probabilities.
fn choose_branch(branch_shares: &[(f64, usize)], random: &mut RandomStream) -> Option<usize> {
    if let [(_, target)] = branch_shares {
        return Some(*target);
    }
    let sample = random.uniform();
    branch_shares.iter().find(|(sum, _)| sample < *sum).or_else(|| branch_shares.last()).map(|(_, to)| *to)
}

impl JoinState {
    pub(super) fn clear(&mut self) {
        self.arrivals.clear();
        self.forks.clear();
    }
}

impl ThreadRecord {
    /// Registers a fork within a loop and returns its number.
    fn begin_fork(&mut self, branches: u32) -> u32 {
        let joins = self.joins.get_or_insert_default();
        joins.last_fork = (joins.last_fork + 1) & !FORK;
        joins.forks.push((joins.last_fork, branches));
        joins.last_fork
    }

    /// Ends branches of a fork and returns the number of those left. For a fork that has ended it returns 1.
    fn end_fork_branches(&mut self, fork: u32, branches: u32) -> u32 {
        let forks = &mut self.joins.get_or_insert_default().forks;
        let Some(index) = forks.iter().position(|(fork_number, _)| *fork_number == fork) else { return 1 };
        forks[index].1 = forks[index].1.saturating_sub(branches);
        let remaining = forks[index].1;
        if remaining == 0 {
            forks.swap_remove(index);
        }
        remaining
    }

    /// Counts a branch that arrived at a join, and returns their number. The last one resets the count.
    fn arrive_at_join(&mut self, join: usize, branches: u32) -> u32 {
        let joins = &mut self.joins.get_or_insert_default().arrivals;
        let index = joins.iter().position(|(join_index, _)| *join_index == join);
        let index = index.unwrap_or_else(|| {
            joins.push((join, 0));
            joins.len() - 1
        });
        joins[index].1 += 1;
        let arrived_count = joins[index].1;
        if arrived_count == branches {
            joins[index].1 = 0;
        }
        arrived_count
    }
}
