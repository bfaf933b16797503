//! The successors of activities: branches, forks, joins and loops.

use super::super::dice::Dice;
use super::super::program::{Then, Turns};
use super::{Do, Engine, Now, Thread};

/// The state of a thread's joins and forks.
#[derive(Clone, Default)]
pub(super) struct Joins {
    /// The number of branches that arrived at each join, by its number.
    came: Vec<(usize, u32)>,
    /// The unfinished forks within loops, by number, with their active branches.
    forks: Vec<(u32, u32)>,
    /// The number of the latest fork.
    last: u32,
}

/// The loops and forks that a branch is in: loops by their number, forks within loops by their number and
/// [`FORK`].
#[derive(Clone, Default)]
pub(super) struct Loops {
    pub(super) all: Vec<u32>,
}

/// The flag of a fork.
const FORK: u32 = 1 << 31;

impl Engine<'_> {
    /// Continues a branch after its activity.
    pub(super) fn next(&mut self, branch: u32) -> Now {
        let program = self.program;
        let activity = self.branches.all[branch as usize].activity;
        let mut then = &program.activities[activity as usize].then;
        loop {
            let turns = match then {
                Then::Or(ways) => {
                    let to = chosen(ways, &mut self.chance.ways[activity as usize].next);
                    return self.go_on(branch, to);
                }
                Then::And(ways) => {
                    let own = &mut self.branches.all[branch as usize];
                    let thread = own.thread;
                    // A loop body ends when all of its branches have ended.
                    if let Some(loops) = own.loops.as_mut().filter(|own| !own.all.is_empty()) {
                        let fork = self.threads.all[thread as usize].forks(ways.len() as u32);
                        loops.all.push(fork | FORK);
                    }
                    let loops = own.loops.clone();
                    for to in ways.iter().skip(1).rev() {
                        let other = self.branch(thread, *to as u32, loops.clone());
                        self.todo.push(Do::Begin(other));
                    }
                    return self.go_on(branch, ways.first().copied());
                }
                Then::Join { join, wanted, branches, then: after } => {
                    let thread = self.branches.all[branch as usize].thread;
                    let came = self.threads.all[thread as usize].came(*join, *branches);
                    if came != *wanted {
                        return self.end(branch);
                    }
                    // The branch continues for all that arrive at the join, also for those that arrive later.
                    if let Some(fork) = self.inner(branch).filter(|own| own & FORK != 0) {
                        self.threads.all[thread as usize].over(fork & !FORK, branches - 1);
                    }
                    then = after;
                    continue;
                }
                Then::Loop(turns) => *turns,
                // The end of a loop body leads back to the loop.
                Then::End => {
                    let Some(inner) = self.inner(branch) else { return self.end(branch) };
                    if inner & FORK != 0 {
                        let thread = self.branches.all[branch as usize].thread;
                        if self.threads.all[thread as usize].over(inner & !FORK, 1) > 0 {
                            return self.end(branch);
                        }
                    }
                    self.leaves(branch);
                    if inner & FORK != 0 {
                        continue;
                    }
                    inner as usize
                }
            };
            let Turns { bodies, exit } = &program.loops[turns];
            let drawn = self.chance.loops[turns].unit();
            if let Some((_, body)) = bodies.iter().find(|(sum, _)| drawn < *sum) {
                let loops = self.branches.all[branch as usize].loops.get_or_insert_default();
                loops.all.push(turns as u32);
                return self.go_on(branch, Some(*body));
            }
            if exit.is_some() {
                return self.go_on(branch, *exit);
            }
            then = &Then::End;
        }
    }

    /// Returns the innermost loop or fork of a branch.
    fn inner(&self, branch: u32) -> Option<u32> {
        self.branches.all[branch as usize].loops.as_ref().and_then(|own| own.all.last().copied())
    }

    /// Leaves the innermost loop or fork of a branch.
    fn leaves(&mut self, branch: u32) {
        if let Some(loops) = &mut self.branches.all[branch as usize].loops {
            loops.all.pop();
        }
    }

    /// Continues a branch with an activity, or ends it if there is none.
    fn go_on(&mut self, branch: u32, activity: Option<usize>) -> Now {
        let Some(activity) = activity else { return self.end(branch) };
        self.branches.all[branch as usize].activity = activity as u32;
        self.begin(branch)
    }
}

/// Chooses one of several branches by their probabilities.
fn chosen(ways: &[(f64, usize)], dice: &mut Dice) -> Option<usize> {
    if let [(_, only)] = ways {
        return Some(*only);
    }
    let drawn = dice.unit();
    ways.iter().find(|(sum, _)| drawn < *sum).or_else(|| ways.last()).map(|(_, to)| *to)
}

impl Joins {
    pub(super) fn clear(&mut self) {
        self.came.clear();
        self.forks.clear();
    }
}

impl Thread {
    /// Registers a fork within a loop and returns its number.
    fn forks(&mut self, branches: u32) -> u32 {
        let joins = self.joins.get_or_insert_default();
        joins.last = (joins.last + 1) & !FORK;
        joins.forks.push((joins.last, branches));
        joins.last
    }

    /// Ends branches of a fork and returns the number of those left. For a fork that has ended it returns 1.
    fn over(&mut self, fork: u32, branches: u32) -> u32 {
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
    fn came(&mut self, join: usize, branches: u32) -> u32 {
        let joins = &mut self.joins.get_or_insert_default().came;
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
