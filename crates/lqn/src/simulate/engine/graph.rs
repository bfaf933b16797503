//! What follows an activity: ways, forks, joins and loops.

use super::super::dice::Dice;
use super::super::program::{Then, Turns};
use super::{Do, Engine, Thread};

impl Engine<'_> {
    /// A branch goes on to what follows its activity.
    pub(super) fn next(&mut self, branch: u32) {
        let program = self.program;
        let activity = self.branches.all[branch as usize].activity;
        let mut then = &program.activities[activity as usize].then;
        loop {
            let turns = match then {
                Then::Or(ways) => {
                    let to = chosen(ways, &mut self.dice);
                    return self.go_on(branch, to);
                }
                Then::And(ways) => {
                    let own = &self.branches.all[branch as usize];
                    let (thread, loops) = (own.thread, own.loops.clone());
                    for to in ways.iter().skip(1).rev() {
                        self.branch(thread, *to as u32, loops.clone());
                    }
                    return self.go_on(branch, ways.first().copied());
                }
                Then::Join { join, wanted, branches, then: after } => {
                    let thread = self.branches.all[branch as usize].thread;
                    let came = self.threads.all[thread as usize].came(*join, *branches);
                    if came != *wanted {
                        return self.end(branch);
                    }
                    then = after;
                    continue;
                }
                Then::Loop(turns) => *turns,
                // What is done in a loop leads back to it.
                Then::End => {
                    match self.branches.all[branch as usize].loops.as_mut().and_then(|own| own.all.pop()) {
                        Some(turns) => turns as usize,
                        None => return self.end(branch),
                    }
                }
            };
            let Turns { bodies, exit } = &program.loops[turns];
            let drawn = self.dice.unit();
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

    /// A branch goes on with an activity; a way that leads nowhere ends.
    fn go_on(&mut self, branch: u32, activity: Option<usize>) {
        let Some(activity) = activity else { return self.end(branch) };
        self.branches.all[branch as usize].activity = activity as u32;
        self.todo.push(Do::Begin(branch));
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

impl Thread {
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
