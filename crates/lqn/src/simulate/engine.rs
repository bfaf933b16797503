//! What happens next, and what comes of it.
//!
//! A *request* asks an entry for something; a *thread* of its task takes it, and one *branch* of the thread (several,
//! after a fork) goes through activities: a piece of work at the processor, a call, the next piece. What happens without
//! taking time is done at once, from a list of things to do, the last one first: so a caller that was answered goes on
//! before the server does what follows its answer.

use std::collections::VecDeque;

use super::Stuck;
use super::program::{Ask, Calls, ENDLESS, Program};
use super::route::Route;
use super::station::{Station, Wish};
use super::streams::Streams;
use super::tally::Tally;
use crate::Model;
use agenda::{Agenda, Event};
use graph::{Joins, Loops};
use slab::Slab;

mod agenda;
mod ends;
mod graph;
mod limits;
mod next;
mod slab;

/// Nobody.
const NONE: u32 = u32::MAX;
/// Most that is done at one moment.
const AT_ONCE: u64 = 10_000_000;

/// A run.
pub(super) struct Engine<'p> {
    program: &'p Program,
    chance: Streams,
    pub(super) now: f64,
    agenda: Agenda,
    pub(super) stations: Vec<Station>,
    /// Number of the alarm of each station that counts.
    alarms: Vec<u32>,
    crews: Vec<State>,
    /// Of each entry, how it chooses whom it forwards to, if not by chance.
    routes: Vec<Option<Route>>,
    /// Requests that wait or are served at each task.
    loads: Vec<u32>,
    requests: Slab<Request>,
    threads: Slab<Thread>,
    branches: Slab<Branch>,
    /// Of each branch, the call that it waits for; only where calls can fail.
    asked: Vec<Waiting>,
    todo: Vec<Do>,
    /// When clients last began, and how many did since that took no time.
    begun: (f64, u64),
    /// Events so far.
    pub(super) events: u64,
    pub(super) tally: Tally,
    /// Requests, threads or branches at a time.
    most: usize,
}

/// Things to do at this moment.
#[derive(Clone, Copy)]
enum Do {
    /// A branch begins its activity.
    Begin(u32),
    /// A branch has a piece of work to do.
    Piece(u32),
    /// It has done one.
    Pieced(u32),
    /// A request comes to its entry's task.
    Come(u32),
    /// A branch goes on to what follows its activity.
    Next(u32),
    /// A branch makes its call, perhaps not for the first time.
    Ask(u32),
    /// A call of a branch has failed: it leaves out what is left of its activity.
    Fail(u32),
}

/// The threads of a task.
struct State {
    /// None for as many as are needed.
    free: Option<u32>,
    queue: VecDeque<u32>,
}

#[derive(Clone, Default)]
struct Request {
    entry: u32,
    /// The branch that waits.
    caller: u32,
    /// When it came to the entry at which it is now.
    came: f64,
    /// The entry to which it came from outside, and when; `NONE` if it did not.
    origin: u32,
    outside: f64,
    /// Something that was done for it failed.
    failed: bool,
    /// Rank of the task that asks.
    rank: u16,
}

#[derive(Clone, Default)]
struct Thread {
    task: u32,
    entry: u32,
    /// What is to be answered.
    request: u32,
    branches: u32,
    begun: f64,
    /// A call has failed.
    failed: bool,
    /// Only of activity graphs with joins, or with forks in loops.
    joins: Option<Box<Joins>>,
}

#[derive(Clone, Default)]
struct Branch {
    thread: u32,
    activity: u32,
    /// When it began with the activity.
    begun: f64,
    /// Number of the alarm that counts.
    alarm: u32,
    /// Calls that are left, of those made exactly so often.
    left: Vec<u32>,
    /// Only in loops.
    loops: Option<Box<Loops>>,
}

/// A call whose answer is waited for: whom it asks, with what patience, its request and how often it tried again.
#[derive(Clone, Copy, Default)]
struct Waiting {
    entry: u32,
    patience: u32,
    request: u32,
    tries: u32,
    /// Number of the event at which it gives up; 0 for none.
    until: u32,
}

impl<'p> Engine<'p> {
    pub(super) fn new(model: &Model, program: &'p Program, seed: u64, most: usize) -> Self {
        let mut engine = Self {
            program,
            chance: Streams::new(model, seed),
            now: 0.0,
            agenda: Agenda::default(),
            stations: model.processors.iter().map(Station::new).collect(),
            alarms: vec![0; model.processors.len()],
            crews: Vec::new(),
            routes: Vec::new(),
            loads: vec![0; model.tasks.len()],
            requests: Slab::default(),
            threads: Slab::default(),
            branches: Slab::default(),
            asked: Vec::new(),
            todo: Vec::new(),
            begun: (0.0, 0),
            events: 0,
            tally: Tally::new(model),
            most,
        };
        for crew in &program.tasks {
            engine.crews.push(State { free: crew.copies, queue: VecDeque::new() });
        }
        for (place, crew) in program.tasks.iter().enumerate() {
            for _ in 0..crew.think.and(crew.copies).unwrap_or(0) {
                let thread = Thread { task: place as u32, request: NONE, ..Thread::default() };
                let thread = engine.threads.add(thread);
                engine.rest(thread);
            }
        }
        // Clients are there from the first.
        engine.most += engine.threads.count();
        for (place, entry) in program.entries.iter().enumerate() {
            if entry.arrivals > 0.0 {
                engine.arrival(place as u32);
            }
            let key = engine.chance.routes[place].key();
            let route = entry.routing.map(|routing| Route::new(entry, program, routing, key));
            if let Some(age) = route.as_ref().map(|route| route.age).filter(|age| *age > 0.0) {
                engine.at(age, Event::Look(place as u32));
            }
            engine.routes.push(route);
        }
        engine
    }

    /// Goes on until so many events have happened in all.
    pub(super) fn run_events(&mut self, until: u64) -> Result<(), Stuck> {
        while self.events < until {
            self.step()?;
        }
        Ok(())
    }

    /// Goes on until this time.
    pub(super) fn run_time(&mut self, until: f64) -> Result<(), Stuck> {
        while self.agenda.has_by(until) {
            self.step()?;
        }
        self.now = until;
        Ok(())
    }

    /// Brings all that is summed up over time up to now.
    pub(super) fn count(&mut self) {
        self.stations.iter_mut().for_each(|station| station.count(self.now));
        self.tally.count(self.now);
    }

    /// How many requests wait or are served at a task now; of clients, how many do not think.
    pub(super) fn there(&self, task: usize) -> f64 {
        match self.program.tasks[task].think {
            Some(_) => self.tally.tasks[task].busy as f64,
            None => f64::from(self.loads[task]),
        }
    }

    fn step(&mut self) -> Result<(), Stuck> {
        let Some((at, number, event)) = self.agenda.take() else {
            return Err(Stuck::Nothing(self.now));
        };
        self.now = at;
        self.events += 1;
        match event {
            Event::Done(branch) => {
                if self.branches.all[branch as usize].alarm == number {
                    let station = self.station_of(branch);
                    let chance = &mut self.chance.stations[station];
                    let wish = self.stations[station].done(branch, self.now, chance);
                    self.grant(station, wish);
                    self.todo.push(Do::Pieced(branch));
                }
            }
            Event::Thought(branch) => self.todo.push(Do::Piece(branch)),
            Event::Awake(thread) => {
                self.begun = (self.now, if self.now > self.begun.0 { 0 } else { self.begun.1 + 1 });
                if self.begun.1 > AT_ONCE {
                    return Err(Stuck::Still(self.now));
                }
                self.set_out(thread);
            }
            Event::Arrival(entry) => {
                let request = Request {
                    entry,
                    caller: NONE,
                    came: self.now,
                    origin: entry,
                    outside: self.now,
                    failed: false,
                    rank: self.program.outside(),
                };
                let request = self.requests.add(request);
                self.todo.push(Do::Come(request));
                self.arrival(entry);
            }
            Event::Ring(station) => {
                let station = station as usize;
                if self.alarms[station] == number {
                    let (who, wish) = self.stations[station].rung(self.now);
                    self.grant(station, wish);
                    self.todo.extend(who.map(Do::Pieced));
                }
            }
            Event::Look(entry) => {
                if let Some(route) = &mut self.routes[entry as usize] {
                    route.look(&self.loads);
                    let age = route.age;
                    self.at(self.now + age, event);
                }
            }
            Event::GiveUp(branch) => self.give_up(branch, number),
            Event::Again(branch) => self.todo.push(Do::Ask(branch)),
        }
        let mut done = 0;
        while let Some(next) = self.todo.pop() {
            match next {
                Do::Begin(branch) => self.begin(branch),
                Do::Piece(branch) => self.piece(branch),
                Do::Pieced(branch) => self.pieced(branch),
                Do::Come(request) => self.come(request),
                Do::Next(branch) => self.next(branch),
                Do::Ask(branch) => self.ask(branch),
                Do::Fail(branch) => self.fail(branch),
            }
            done += 1;
            if done > AT_ONCE {
                return Err(Stuck::Still(self.now));
            }
        }
        if self.requests.count().max(self.threads.count()).max(self.branches.count()) > self.most {
            return Err(Stuck::Grows(self.now));
        }
        Ok(())
    }

    fn at(&mut self, at: f64, event: Event) -> u32 {
        self.agenda.put(at, event)
    }

    fn grant(&mut self, station: usize, wish: Wish) {
        match wish {
            Wish::Done { who, at } => {
                let number = self.at(at, Event::Done(who));
                self.branches.all[who as usize].alarm = number;
            }
            Wish::Ring { at } => self.alarms[station] = self.at(at, Event::Ring(station as u32)),
            Wish::Nothing => {}
        }
    }

    fn station_of(&self, branch: u32) -> usize {
        self.program.activities[self.branches.all[branch as usize].activity as usize].processor
    }

    fn arrival(&mut self, entry: u32) {
        let gap = self.chance.arrivals[entry as usize].exponential()
            / self.program.entries[entry as usize].arrivals;
        self.at(self.now + gap, Event::Arrival(entry));
    }

    /// A client thinks.
    fn rest(&mut self, thread: u32) {
        let task = self.threads.all[thread as usize].task as usize;
        let think = self.program.tasks[task].think.unwrap_or(0.0);
        let time = if think > 0.0 { think * self.chance.clients[thread as usize].exponential() } else { 0.0 };
        self.at(self.now + time, Event::Awake(thread));
    }

    /// A client begins.
    fn set_out(&mut self, thread: u32) {
        let task = self.threads.all[thread as usize].task;
        let entries = &self.program.tasks[task as usize].entries;
        let drawn = &mut self.chance.tasks[task as usize];
        let entry = entries[if entries.len() > 1 { drawn.below(entries.len()) } else { 0 }];
        let own = &mut self.threads.all[thread as usize];
        (own.entry, own.begun, own.failed) = (entry as u32, self.now, false);
        self.tally.busy(task as usize, 1, self.now);
        self.branch(thread, self.program.entries[entry].start as u32, None);
    }

    /// A branch of a thread begins with this activity.
    fn branch(&mut self, thread: u32, activity: u32, loops: Option<Box<Loops>>) {
        self.threads.all[thread as usize].branches += 1;
        let branch = self.branches.take();
        let own = &mut self.branches.all[branch as usize];
        (own.thread, own.activity) = (thread, activity);
        // What it was left with is empty.
        if loops.is_some() {
            own.loops = loops;
        }
        self.todo.push(Do::Begin(branch));
    }

    fn come(&mut self, request: u32) {
        let entry = self.requests.all[request as usize].entry as usize;
        let task = self.program.entries[entry].task;
        self.tally.came(entry);
        match &mut self.crews[task].free {
            Some(0) => {
                if self.crews[task].queue.len() >= self.program.tasks[task].queue_limit {
                    return self.refuse(request);
                }
                self.loads[task] += 1;
                self.crews[task].queue.push_back(request);
                return;
            }
            Some(free) => *free -= 1,
            None => {}
        }
        self.loads[task] += 1;
        self.take(task, request);
    }

    /// A thread takes a request.
    fn take(&mut self, task: usize, request: u32) {
        let Request { entry, came, .. } = self.requests.all[request as usize];
        self.tally.waited(entry as usize, self.now - came);
        self.tally.busy(task, 1, self.now);
        let thread = self.threads.take();
        let own = &mut self.threads.all[thread as usize];
        (own.task, own.entry, own.request, own.begun) = (task as u32, entry, request, self.now);
        own.failed = false;
        let start = self.program.entries[entry as usize].start as u32;
        self.branch(thread, start, None);
    }

    fn begin(&mut self, branch: u32) {
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
        } else {
            self.todo.push(Do::Piece(branch));
        }
    }

    fn piece(&mut self, branch: u32) {
        let activity = self.branches.all[branch as usize].activity as usize;
        let step = &self.program.activities[activity];
        let work = step.piece.draw(&mut self.chance.activities[activity].work);
        if work <= 0.0 {
            self.todo.push(Do::Pieced(branch));
            return;
        }
        let (station, priority) = (step.processor, step.priority);
        let (wish, ousted) = self.stations[station].come(branch, priority, work, self.now);
        if let Some(ousted) = ousted {
            // Its alarm, which is a greater number than 0 by now, counts no more.
            self.branches.all[ousted as usize].alarm = 0;
        }
        self.grant(station, wish);
    }

    /// Between two pieces of work, or after the last.
    fn pieced(&mut self, branch: u32) {
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
                let drawn = (drawn - ends) / (1.0 - ends);
                let target = targets.iter().find(|(sum, _)| drawn < *sum).or_else(|| targets.last());
                // There is one at least.
                if let Some((_, ask)) = target {
                    self.call(branch, *ask);
                }
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
                if let Some(chosen) = chosen {
                    own.left[chosen] -= 1;
                    self.call(branch, targets[chosen].1);
                }
            }
        }
    }

    fn call(&mut self, branch: u32, ask: Ask) {
        let Ask { entry, waits, patience, rank } = ask;
        if !waits {
            self.todo.push(Do::Piece(branch));
            self.send(entry, NONE, rank);
            return;
        }
        if self.program.limited {
            self.waits_for(branch, Waiting { entry, patience, request: 0, tries: 0, until: 0 });
        }
        if patience == ENDLESS {
            self.send(entry, branch, rank);
        } else {
            self.ask(branch);
        }
    }

    /// A request goes to an entry, for a branch that waits.
    fn send(&mut self, entry: u32, caller: u32, rank: u16) -> u32 {
        let request =
            Request { entry, caller, came: self.now, origin: NONE, outside: self.now, failed: false, rank };
        let request = self.requests.add(request);
        self.todo.push(Do::Come(request));
        request
    }
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
