//! What follows an activity: ways, forks, joins and loops.

use super::super::dice::Dice;
use super::super::program::{Then, Turns};
use super::{Do, Engine, Now, Thread};

/// How far a thread is with joins and forks.
#[derive(Clone, Default)]
pub(super) struct Joins {
    /// How many came to each join, by its number.
    came: Vec<(usize, u32)>,
    /// Forks in loops that are not over, by number, with the branches that are under way.
    forks: Vec<(u32, u32)>,
    /// Number of the last of those.
    last: u32,
}

/// What a branch is in: loops, by their number, and in those forks, by their number and [`FORK`].
#[derive(Clone, Default)]
pub(super) struct Loops {
    pub(super) all: Vec<u32>,
}

/// It is a fork.
const FORK: u32 = 1 << 31;

impl Engine<'_> {
    /// A branch goes on to what follows its activity.
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
                    // What is done in a loop is over when all of its branches are.
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
                    // It goes on for all that come to the join, also for those that do so later.
                    if let Some(fork) = self.inner(branch).filter(|own| own & FORK != 0) {
                        self.threads.all[thread as usize].over(fork & !FORK, branches - 1);
                    }
                    then = after;
                    continue;
                }
                Then::Loop(turns) => *turns,
                // What is done in a loop leads back to it.
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

    /// The innermost loop or fork that a branch is in.
    fn inner(&self, branch: u32) -> Option<u32> {
        self.branches.all[branch as usize].loops.as_ref().and_then(|own| own.all.last().copied())
    }

    /// A branch is out of that.
    fn leaves(&mut self, branch: u32) {
        if let Some(loops) = &mut self.branches.all[branch as usize].loops {
            loops.all.pop();
        }
    }

    /// A branch goes on with an activity; a way that leads nowhere ends.
    fn go_on(&mut self, branch: u32, activity: Option<usize>) -> Now {
        let Some(activity) = activity else { return self.end(branch) };
        self.branches.all[branch as usize].activity = activity as u32;
        self.begin(branch)
    }
}

/// One of several ways by their probabilities.
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
    /// It forks in a loop: the number of that.
    fn forks(&mut self, branches: u32) -> u32 {
        let joins = self.joins.get_or_insert_default();
        joins.last = (joins.last + 1) & !FORK;
        joins.forks.push((joins.last, branches));
        joins.last
    }

    /// So many branches of a fork are over: how many are left. Of one that is over already some are left for ever.
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

    /// One more branch has come to a join: how many by now. After the last it is as if none had.
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
