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
        let mut then = &program.activities[activity as usize].successors;
        loop {
            let turns = match then {
                CompiledSuccessors::Or(ways) => {
                    let to = chosen(ways, &mut self.streams.executions[activity as usize].next);
                    return self.continue_with(branch, to);
                }
                CompiledSuccessors::And(ways) => {
                    let own = &mut self.branches.values[branch as usize];
                    let thread = own.thread;
                    // A loop body ends when all of its branches have ended.
                    if let Some(loops) = own.loops.as_mut().filter(|own| !own.stack.is_empty()) {
                        let fork = self.threads.values[thread as usize].forks(ways.len() as u32);
                        loops.stack.push(fork | FORK);
                    }
                    let loops = own.loops.clone();
                    for to in ways.iter().skip(1).rev() {
                        let other = self.branch(thread, *to as u32, loops.clone());
                        self.actions.push(PendingAction::BeginActivity(other));
                    }
                    return self.continue_with(branch, ways.first().copied());
                }
                CompiledSuccessors::Join { join, wanted, branches, then: after } => {
                    let thread = self.branches.values[branch as usize].thread;
                    let came = self.threads.values[thread as usize].arrive_at_join(*join, *branches);
                    if came != *wanted {
                        return self.end_branch(branch);
                    }
                    // The branch continues for all that arrive at the join, also for those that arrive later.
                    if let Some(fork) = self.inner(branch).filter(|own| own & FORK != 0) {
                        self.threads.values[thread as usize].end_fork_branches(fork & !FORK, branches - 1);
                    }
                    then = after;
                    continue;
                }
                CompiledSuccessors::Loop(turns) => *turns,
                // The end of a loop body leads back to the loop.
                CompiledSuccessors::End => {
                    let Some(inner) = self.inner(branch) else { return self.end_branch(branch) };
                    if inner & FORK != 0 {
                        let thread = self.branches.values[branch as usize].thread;
                        if self.threads.values[thread as usize].end_fork_branches(inner & !FORK, 1) > 0 {
                            return self.end_branch(branch);
                        }
                    }
                    self.leaves(branch);
                    if inner & FORK != 0 {
                        continue;
                    }
                    inner as usize
                }
            };
            let CompiledLoop { bodies, exit } = &program.loops[turns];
            let drawn = self.streams.loops[turns].uniform();
            if let Some((_, body)) = bodies.iter().find(|(sum, _)| drawn < *sum) {
                let loops = self.branches.values[branch as usize].loops.get_or_insert_default();
                loops.stack.push(turns as u32);
                return self.continue_with(branch, Some(*body));
            }
            if exit.is_some() {
                return self.continue_with(branch, *exit);
            }
            then = &CompiledSuccessors::End;
        }
    }

    /// Returns the innermost loop or fork of a branch.
    fn inner(&self, branch: u32) -> Option<u32> {
        self.branches.values[branch as usize].loops.as_ref().and_then(|own| own.stack.last().copied())
    }

    /// Leaves the innermost loop or fork of a branch.
    fn leaves(&mut self, branch: u32) {
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
fn chosen(ways: &[(f64, usize)], dice: &mut RandomStream) -> Option<usize> {
    if let [(_, only)] = ways {
        return Some(*only);
    }
    let drawn = dice.uniform();
    ways.iter().find(|(sum, _)| drawn < *sum).or_else(|| ways.last()).map(|(_, to)| *to)
}

impl JoinState {
    pub(super) fn clear(&mut self) {
        self.arrivals.clear();
        self.forks.clear();
    }
}

impl ThreadRecord {
    /// Registers a fork within a loop and returns its number.
    fn forks(&mut self, branches: u32) -> u32 {
        let joins = self.joins.get_or_insert_default();
        joins.last_fork = (joins.last_fork + 1) & !FORK;
        joins.forks.push((joins.last_fork, branches));
        joins.last_fork
    }

    /// Ends branches of a fork and returns the number of those left. For a fork that has ended it returns 1.
    fn end_fork_branches(&mut self, fork: u32, branches: u32) -> u32 {
        let forks = &mut self.joins.get_or_insert_default().forks;
        let Some(place) = forks.iter().position(|(own, _)| *own == fork) else { return 1 };
        forks[place].1 = forks[place].1.saturating_sub(branches);
        let left = forks[place].1;
        if left == 0 {
            forks.swap_remove(place);
        }
        left
    }

    /// Counts a branch that arrived at a join, and returns their number. The last one resets the count.
    fn arrive_at_join(&mut self, join: usize, branches: u32) -> u32 {
        let joins = &mut self.joins.get_or_insert_default().arrivals;
        let place = joins.iter().position(|(own, _)| *own == join);
        let place = place.unwrap_or_else(|| {
            joins.push((join, 0));
            joins.len() - 1
        });
        joins[place].1 += 1;
        let came = joins[place].1;
        if came == branches {
            joins[place].1 = 0;
        }
        came
    }
}
