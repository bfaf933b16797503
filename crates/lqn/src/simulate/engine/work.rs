//! The work and calls of a branch within an activity.

use super::super::program::{Ask, Calls, ENDLESS};
use super::{Do, Engine, Event, NONE, Now, Request, Waiting};

impl Engine<'_> {
    /// Starts the activity of a branch.
    pub(super) fn begin(&mut self, branch: u32) -> Now {
        let own = &mut self.branches.all[branch as usize];
        own.begun = self.now;
        let activity = own.activity as usize;
        let step = &self.program.activities[activity];
        if let Calls::Exact { targets, .. } = &step.calls {
            own.left.clear();
            own.left.extend(targets.iter().map(|(count, _)| *count));
        }
        if step.think > 0.0 {
            let time = step.think * self.chance.ways[activity].think.exponential();
            self.at(self.now + time, Event::Thought(branch));
            return None;
        }
        self.piece(branch)
    }

    /// Starts a slice of work of a branch.
    pub(super) fn piece(&mut self, branch: u32) -> Now {
        let activity = self.branches.all[branch as usize].activity as usize;
        let step = &self.program.activities[activity];
        let work = step.piece.draw(&mut self.chance.activities[activity].work);
        if work <= 0.0 {
            return Some(Do::Pieced(branch));
        }
        let (place, priority) = (step.processor, step.priority);
        let station = &mut self.stations[place];
        if station.plain {
            if let Some(at) = station.enters(branch, work, self.now) {
                self.done_at(branch, at);
            }
            return None;
        }
        let (wish, ousted) = station.come(branch, priority, work, self.now);
        if let Some(ousted) = ousted {
            // The alarm of the preempted branch is invalid: valid numbers are above 0.
            self.branches.all[ousted as usize].alarm = 0;
        }
        self.grant(place, wish);
        None
    }

    /// Continues after a slice of work: with a call, or with the end of the activity.
    pub(super) fn pieced(&mut self, branch: u32) -> Now {
        let program = self.program;
        let own = &mut self.branches.all[branch as usize];
        let activity = own.activity as usize;
        match &program.activities[activity].calls {
            Calls::None => self.finish(branch),
            Calls::Stochastic { ends, targets } => {
                let drawn = self.chance.activities[activity].calls.unit();
                if drawn < *ends {
                    return self.finish(branch);
                }
                let target = targets.iter().find(|(sum, _)| drawn < *sum).or_else(|| targets.last());
                // There is at least one target.
                target.and_then(|(_, ask)| self.call(branch, *ask))
            }
            Calls::Exact { targets, ordered } => {
                let all: u32 = own.left.iter().sum();
                if all == 0 {
                    return self.finish(branch);
                }
                let calls = &mut self.chance.activities[activity].calls;
                let mut place = if *ordered { 0 } else { calls.below(all as usize) as u32 };
                let chosen = own.left.iter().position(|left| {
                    let found = place < *left;
                    place = place.saturating_sub(*left);
                    found
                });
                let chosen = chosen?;
                own.left[chosen] -= 1;
                self.call(branch, targets[chosen].1)
            }
        }
    }

    fn call(&mut self, branch: u32, ask: Ask) -> Now {
        let Ask { entry, waits, patience, rank } = ask;
        if !waits {
            self.todo.push(Do::Piece(branch));
            let request = self.request(entry, NONE, rank);
            return self.come(request);
        }
        if self.program.limited {
            self.waits_for(branch, Waiting { entry, patience, request: 0, tries: 0, until: 0 });
        }
        if patience != ENDLESS {
            return self.ask(branch);
        }
        let request = self.request(entry, branch, rank);
        self.come(request)
    }

    /// Creates a request for an entry on behalf of a waiting branch.
    pub(super) fn request(&mut self, entry: u32, caller: u32, rank: u16) -> u32 {
        let now = self.now;
        self.requests.add(Request {
            entry,
            caller,
            came: now,
            origin: NONE,
            outside: now,
            failed: false,
            rank,
        })
    }
}
