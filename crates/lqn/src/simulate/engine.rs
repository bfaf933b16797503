//! The event loop of the simulation.
//!
//! A *request* asks for an entry; a *thread* of its task takes it. A *branch* of the thread (several after a
//! fork) passes through activities: a slice of work on the processor, a call, the next slice. Actions that
//! take no time are done at once, from a stack. So a caller that got its reply continues before the server
//! starts the work after the reply.

use std::collections::VecDeque;

use super::Stuck;
use super::program::Program;
use super::route::Route;
use super::station::{Station, Wish};
use super::streams::Streams;
use super::tally::Tally;
use crate::Model;
use agenda::{Agenda, Event};
use graph::Loops;
use records::{Branch, Request, State, Thread, Waiting};
use slab::Slab;

mod agenda;
mod ends;
mod graph;
mod limits;
mod next;
mod records;
mod slab;
mod work;

/// The absence of an index.
const NONE: u32 = u32::MAX;
/// The largest number of actions at one moment.
const AT_ONCE: u64 = 10_000_000;

/// A simulation run.
pub(super) struct Engine<'p> {
    program: &'p Program,
    chance: Streams,
    pub(super) now: f64,
    agenda: Agenda,
    pub(super) stations: Vec<Station>,
    /// The number of each station's valid alarm.
    alarms: Vec<u32>,
    crews: Vec<State>,
    /// The state of each entry's policy; `None` for random forwarding.
    routes: Vec<Option<Route>>,
    /// The number of requests that wait or are served at each task.
    loads: Vec<u32>,
    requests: Slab<Request>,
    threads: Slab<Thread>,
    branches: Slab<Branch>,
    /// The call that each branch waits for; only where calls can fail.
    asked: Vec<Waiting>,
    todo: Vec<Do>,
    /// The time of the last start of a client cycle, and the number of starts since then without time
    /// passing.
    begun: (f64, u64),
    /// The number of events so far.
    pub(super) events: u64,
    pub(super) tally: Tally,
    /// The largest number of requests, threads or branches at a time.
    most: usize,
}

/// The action to do next, before all those on the stack. It stands for a push followed by a pop. An action
/// that always follows is called directly instead.
type Now = Option<Do>;

/// An action at the current moment.
#[derive(Clone, Copy)]
enum Do {
    /// A branch starts its activity.
    Begin(u32),
    /// A branch starts a slice of work.
    Piece(u32),
    /// A branch has finished a slice.
    Pieced(u32),
    /// A request arrives at its entry's task.
    Come(u32),
    /// A branch continues after its activity.
    Next(u32),
    /// A branch makes its call, possibly again.
    Ask(u32),
    /// A call of a branch has failed: it skips the rest of its activity.
    Fail(u32),
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
        // Clients exist from the beginning.
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

    /// Runs until the total number of events is `until`.
    pub(super) fn run_events(&mut self, until: u64) -> Result<(), Stuck> {
        while self.events < until {
            self.step()?;
        }
        Ok(())
    }

    /// Runs until this time.
    pub(super) fn run_time(&mut self, until: f64) -> Result<(), Stuck> {
        while self.agenda.has_by(until) {
            self.step()?;
        }
        self.now = until;
        Ok(())
    }

    /// Updates all time integrals to the present.
    pub(super) fn count(&mut self) {
        self.stations.iter_mut().for_each(|station| station.count(self.now));
        self.tally.count(self.now);
    }

    /// Returns the number of requests that wait or are served at a task; for clients, the number that do not
    /// think.
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
        let mut next = match event {
            Event::Done(branch) => self.done(branch, number),
            Event::Thought(branch) => self.piece(branch),
            Event::Awake(thread) => {
                self.begun = (at, if at > self.begun.0 { 0 } else { self.begun.1 + 1 });
                if self.begun.1 > AT_ONCE {
                    return Err(Stuck::Still(at));
                }
                self.set_out(thread)
            }
            Event::Arrival(entry) => {
                let request = Request {
                    entry,
                    caller: NONE,
                    came: at,
                    origin: entry,
                    outside: at,
                    failed: false,
                    rank: self.program.outside(),
                };
                let request = self.requests.add(request);
                self.arrival(entry);
                self.come(request)
            }
            Event::Ring(station) => self.ring(station as usize, number),
            Event::Look(entry) => {
                if let Some(route) = &mut self.routes[entry as usize] {
                    route.look(&self.loads);
                    let age = route.age;
                    self.at(at + age, event);
                }
                None
            }
            Event::GiveUp(branch) => self.give_up(branch, number),
            Event::Again(branch) => self.ask(branch),
        };
        let mut done = 0;
        while let Some(one) = next.or_else(|| self.todo.pop()) {
            next = match one {
                Do::Begin(branch) => self.begin(branch),
                Do::Piece(branch) => self.piece(branch),
                Do::Pieced(branch) => self.pieced(branch),
                Do::Come(request) => self.come(request),
                Do::Next(branch) => self.next(branch),
                Do::Ask(branch) => self.ask(branch),
                Do::Fail(branch) => self.fail(branch),
            };
            done += 1;
            if done > AT_ONCE {
                return Err(Stuck::Still(at));
            }
        }
        if self.requests.most().max(self.threads.most()).max(self.branches.most()) > self.most {
            return Err(Stuck::Grows(at));
        }
        Ok(())
    }

    fn at(&mut self, at: f64, event: Event) -> u32 {
        self.agenda.put(at, event)
    }

    fn grant(&mut self, station: usize, wish: Wish) {
        match wish {
            Wish::Done { who, at } => self.done_at(who, at),
            Wish::Ring { at } => self.alarms[station] = self.at(at, Event::Ring(station as u32)),
            Wish::Nothing => {}
        }
    }

    /// Ends a slice of work of a branch, if the alarm is valid.
    fn done(&mut self, branch: u32, number: u32) -> Now {
        let own = &self.branches.all[branch as usize];
        if own.alarm != number {
            return None;
        }
        let place = self.program.activities[own.activity as usize].processor;
        let station = &mut self.stations[place];
        if station.plain {
            if let Some((who, at)) = station.leaves(self.now) {
                self.done_at(who, at);
            }
        } else {
            let wish = station.done(branch, self.now, &mut self.chance.stations[place]);
            self.grant(place, wish);
        }
        self.pieced(branch)
    }

    /// Handles a station's alarm, if it is valid.
    fn ring(&mut self, station: usize, number: u32) -> Now {
        if self.alarms[station] != number {
            return None;
        }
        let (who, wish) = self.stations[station].rung(self.now);
        self.grant(station, wish);
        who.map(Do::Pieced)
    }

    fn done_at(&mut self, who: u32, at: f64) {
        self.branches.all[who as usize].alarm = self.at(at, Event::Done(who));
    }

    fn arrival(&mut self, entry: u32) {
        let gap = self.chance.arrivals[entry as usize].exponential()
            / self.program.entries[entry as usize].arrivals;
        self.at(self.now + gap, Event::Arrival(entry));
    }

    /// Starts the think time of a client.
    fn rest(&mut self, thread: u32) {
        let task = self.threads.all[thread as usize].task as usize;
        let think = self.program.tasks[task].think.unwrap_or(0.0);
        let time = if think > 0.0 { think * self.chance.clients[thread as usize].exponential() } else { 0.0 };
        self.at(self.now + time, Event::Awake(thread));
    }

    /// Starts a cycle of a client.
    fn set_out(&mut self, thread: u32) -> Now {
        let task = self.threads.all[thread as usize].task;
        let entries = &self.program.tasks[task as usize].entries;
        let drawn = &mut self.chance.tasks[task as usize];
        let entry = entries[if entries.len() > 1 { drawn.below(entries.len()) } else { 0 }];
        let own = &mut self.threads.all[thread as usize];
        (own.entry, own.begun, own.failed) = (entry as u32, self.now, false);
        self.tally.busy(task as usize, 1, self.now);
        let branch = self.branch(thread, self.program.entries[entry].start as u32, None);
        self.begin(branch)
    }

    /// Creates a branch of a thread that starts with this activity.
    fn branch(&mut self, thread: u32, activity: u32, loops: Option<Box<Loops>>) -> u32 {
        self.threads.all[thread as usize].branches += 1;
        let branch = self.branches.take();
        let own = &mut self.branches.all[branch as usize];
        (own.thread, own.activity) = (thread, activity);
        // A reused branch has an empty list of loops.
        if loops.is_some() {
            own.loops = loops;
        }
        branch
    }

    fn come(&mut self, request: u32) -> Now {
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
                return None;
            }
            Some(free) => *free -= 1,
            None => {}
        }
        self.loads[task] += 1;
        self.take(task, request)
    }

    /// Starts a request on a thread.
    fn take(&mut self, task: usize, request: u32) -> Now {
        let Request { entry, came, .. } = self.requests.all[request as usize];
        self.tally.waited(entry as usize, self.now - came);
        self.tally.busy(task, 1, self.now);
        let thread = self.threads.take();
        let own = &mut self.threads.all[thread as usize];
        (own.task, own.entry, own.request, own.begun) = (task as u32, entry, request, self.now);
        own.failed = false;
        let start = self.program.entries[entry as usize].start as u32;
        let branch = self.branch(thread, start, None);
        self.begin(branch)
    }
}
