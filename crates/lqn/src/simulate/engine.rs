//! The event loop of the simulation.
//!
//! A *request* asks for an entry; a *thread* of its task takes it. A *branch* of the thread (several after a
//! fork) passes through activities: a slice of work on the processor, a call, the next slice. Actions that
//! take no time are done at once, from a stack. So a caller that got its reply continues before the server
//! starts the work after the reply.

use std::collections::VecDeque;

use super::SimulationError;
use super::compiled::CompiledModel;
use super::routing::RoutingState;
use super::station::{ProcessorStation, StationAction};
use super::statistics::RunStatistics;
use super::streams::RandomStreams;
use crate::Model;
use event_queue::{EventQueue, SimulationEvent};
use graph::LoopStack;
use records::{BranchRecord, PendingCall, RequestRecord, TaskState, ThreadRecord};
use slab::Slab;

mod completion;
mod dispatch;
mod event_queue;
mod graph;
mod limits;
mod records;
mod slab;
mod work;

/// The absence of an index.
const NONE: u32 = u32::MAX;
/// The largest number of actions at one moment.
const AT_ONCE: u64 = 10_000_000;

/// A simulation run.
pub(super) struct Engine<'p> {
    program: &'p CompiledModel,
    streams: RandomStreams,
    pub(super) now: f64,
    event_queue: EventQueue,
    pub(super) stations: Vec<ProcessorStation>,
    /// The number of each station's valid alarm.
    alarms: Vec<u32>,
    tasks: Vec<TaskState>,
    /// The state of each entry's policy; `None` for random forwarding.
    routes: Vec<Option<RoutingState>>,
    /// The number of requests that wait or are served at each task.
    loads: Vec<u32>,
    requests: Slab<RequestRecord>,
    threads: Slab<ThreadRecord>,
    branches: Slab<BranchRecord>,
    /// The call that each branch waits for; only where calls can fail.
    pending_calls: Vec<PendingCall>,
    actions: Vec<PendingAction>,
    /// The time of the last start of a client cycle, and the number of starts since then without time
    /// passing.
    last_cycle_starts: (f64, u64),
    /// The number of events so far.
    pub(super) events: u64,
    pub(super) tally: RunStatistics,
    /// The largest number of requests, threads or branches at a time.
    max_records: usize,
}

/// The action to do next, before all those on the stack. It stands for a push followed by a pop. An action
/// that always follows is called directly instead.
type NextAction = Option<PendingAction>;

/// An action at the current moment.
#[derive(Clone, Copy)]
enum PendingAction {
    /// A branch starts its activity.
    BeginActivity(u32),
    /// A branch starts a slice of work.
    BeginSlice(u32),
    /// A branch has finished a slice.
    EndSlice(u32),
    /// A request arrives at its entry's task.
    Arrive(u32),
    /// A branch continues after its activity.
    Continue(u32),
    /// A branch makes its call, possibly again.
    MakeCall(u32),
    /// A call of a branch has failed: it skips the rest of its activity.
    FailActivity(u32),
}

impl<'p> Engine<'p> {
    pub(super) fn new(model: &Model, program: &'p CompiledModel, seed: u64, most: usize) -> Self {
        let mut engine = Self {
            program,
            streams: RandomStreams::new(model, seed),
            now: 0.0,
            event_queue: EventQueue::default(),
            stations: model.processors.iter().map(ProcessorStation::new).collect(),
            alarms: vec![0; model.processors.len()],
            tasks: Vec::new(),
            routes: Vec::new(),
            loads: vec![0; model.tasks.len()],
            requests: Slab::default(),
            threads: Slab::default(),
            branches: Slab::default(),
            pending_calls: Vec::new(),
            actions: Vec::new(),
            last_cycle_starts: (0.0, 0),
            events: 0,
            tally: RunStatistics::new(model),
            max_records: most,
        };
        for crew in &program.tasks {
            engine.tasks.push(TaskState { free_threads: crew.copies, queue: VecDeque::new() });
        }
        for (place, crew) in program.tasks.iter().enumerate() {
            for _ in 0..crew.think.and(crew.copies).unwrap_or(0) {
                let thread = ThreadRecord { task: place as u32, request: NONE, ..ThreadRecord::default() };
                let thread = engine.threads.insert(thread);
                engine.start_think_time(thread);
            }
        }
        // Clients exist from the beginning.
        engine.max_records += engine.threads.count();
        for (place, entry) in program.entries.iter().enumerate() {
            if entry.arrivals > 0.0 {
                engine.arrival(place as u32);
            }
            let key = engine.streams.routes[place].fingerprint();
            let route = entry.routing.map(|routing| RoutingState::new(entry, program, routing, key));
            if let Some(age) = route.as_ref().map(|route| route.max_age).filter(|age| *age > 0.0) {
                engine.at(age, SimulationEvent::LoadRefresh(place as u32));
            }
            engine.routes.push(route);
        }
        engine
    }

    /// Runs until the total number of events is `until`.
    pub(super) fn run_events(&mut self, until: u64) -> Result<(), SimulationError> {
        while self.events < until {
            self.step()?;
        }
        Ok(())
    }

    /// Runs until this time.
    pub(super) fn run_time(&mut self, until: f64) -> Result<(), SimulationError> {
        while self.event_queue.has_event_by(until) {
            self.step()?;
        }
        self.now = until;
        Ok(())
    }

    /// Updates all time integrals to the present.
    pub(super) fn update_integrals(&mut self) {
        self.stations.iter_mut().for_each(|station| station.update_area(self.now));
        self.tally.update_integrals(self.now);
    }

    /// Returns the number of requests that wait or are served at a task; for clients, the number that do not
    /// think.
    pub(super) fn population(&self, task: usize) -> f64 {
        match self.program.tasks[task].think {
            Some(_) => self.tally.tasks[task].busy as f64,
            None => f64::from(self.loads[task]),
        }
    }

    fn step(&mut self) -> Result<(), SimulationError> {
        let Some((at, number, event)) = self.event_queue.pop() else {
            return Err(SimulationError::NoEvents(self.now));
        };
        self.now = at;
        self.events += 1;
        let mut next = match event {
            SimulationEvent::SliceEnd(branch) => self.complete_slice(branch, number),
            SimulationEvent::ActivityThinkEnd(branch) => self.begin_slice(branch),
            SimulationEvent::ClientThinkEnd(thread) => {
                self.last_cycle_starts =
                    (at, if at > self.last_cycle_starts.0 { 0 } else { self.last_cycle_starts.1 + 1 });
                if self.last_cycle_starts.1 > AT_ONCE {
                    return Err(SimulationError::NoProgress(at));
                }
                self.start_cycle(thread)
            }
            SimulationEvent::Arrival(entry) => {
                let request = RequestRecord {
                    entry,
                    caller: NONE,
                    arrived_at: at,
                    origin: entry,
                    entered_at: at,
                    failed: false,
                    rank: self.program.external_rank(),
                };
                let request = self.requests.insert(request);
                self.arrival(entry);
                self.arrive(request)
            }
            SimulationEvent::StationAlarm(station) => self.handle_alarm(station as usize, number),
            SimulationEvent::LoadRefresh(entry) => {
                if let Some(route) = &mut self.routes[entry as usize] {
                    route.refresh_loads(&self.loads);
                    let age = route.max_age;
                    self.at(at + age, event);
                }
                None
            }
            SimulationEvent::CallTimeout(branch) => self.handle_timeout(branch, number),
            SimulationEvent::CallRetry(branch) => self.make_call(branch),
        };
        let mut done = 0;
        while let Some(one) = next.or_else(|| self.actions.pop()) {
            next = match one {
                PendingAction::BeginActivity(branch) => self.begin_activity(branch),
                PendingAction::BeginSlice(branch) => self.begin_slice(branch),
                PendingAction::EndSlice(branch) => self.end_slice(branch),
                PendingAction::Arrive(request) => self.arrive(request),
                PendingAction::Continue(branch) => self.continue_after_activity(branch),
                PendingAction::MakeCall(branch) => self.make_call(branch),
                PendingAction::FailActivity(branch) => self.fail_activity(branch),
            };
            done += 1;
            if done > AT_ONCE {
                return Err(SimulationError::NoProgress(at));
            }
        }
        if self.requests.peak().max(self.threads.peak()).max(self.branches.peak()) > self.max_records {
            return Err(SimulationError::UnboundedGrowth(at));
        }
        Ok(())
    }

    fn at(&mut self, at: f64, event: SimulationEvent) -> u32 {
        self.event_queue.push(at, event)
    }

    fn perform_station_action(&mut self, station: usize, wish: StationAction) {
        match wish {
            StationAction::ScheduleEnd { who, at } => self.schedule_completion(who, at),
            StationAction::SetAlarm { at } => {
                self.alarms[station] = self.at(at, SimulationEvent::StationAlarm(station as u32))
            }
            StationAction::Nothing => {}
        }
    }

    /// Ends a slice of work of a branch, if the alarm is valid.
    fn complete_slice(&mut self, branch: u32, number: u32) -> NextAction {
        let own = &self.branches.values[branch as usize];
        if own.alarm != number {
            return None;
        }
        let place = self.program.activities[own.activity as usize].processor;
        let station = &mut self.stations[place];
        if station.is_plain {
            if let Some((who, at)) = station.leave_plain(self.now) {
                self.schedule_completion(who, at);
            }
        } else {
            let wish = station.complete(branch, self.now, &mut self.streams.stations[place]);
            self.perform_station_action(place, wish);
        }
        self.end_slice(branch)
    }

    /// Handles a station's alarm, if it is valid.
    fn handle_alarm(&mut self, station: usize, number: u32) -> NextAction {
        if self.alarms[station] != number {
            return None;
        }
        let (who, wish) = self.stations[station].handle_alarm(self.now);
        self.perform_station_action(station, wish);
        who.map(PendingAction::EndSlice)
    }

    fn schedule_completion(&mut self, who: u32, at: f64) {
        self.branches.values[who as usize].alarm = self.at(at, SimulationEvent::SliceEnd(who));
    }

    fn arrival(&mut self, entry: u32) {
        let gap = self.streams.arrivals[entry as usize].exponential()
            / self.program.entries[entry as usize].arrivals;
        self.at(self.now + gap, SimulationEvent::Arrival(entry));
    }

    /// Starts the think time of a client.
    fn start_think_time(&mut self, thread: u32) {
        let task = self.threads.values[thread as usize].task as usize;
        let think = self.program.tasks[task].think.unwrap_or(0.0);
        let time =
            if think > 0.0 { think * self.streams.clients[thread as usize].exponential() } else { 0.0 };
        self.at(self.now + time, SimulationEvent::ClientThinkEnd(thread));
    }

    /// Starts a cycle of a client.
    fn start_cycle(&mut self, thread: u32) -> NextAction {
        let task = self.threads.values[thread as usize].task;
        let entries = &self.program.tasks[task as usize].entries;
        let drawn = &mut self.streams.tasks[task as usize];
        let entry = entries[if entries.len() > 1 { drawn.uniform_below(entries.len()) } else { 0 }];
        let own = &mut self.threads.values[thread as usize];
        (own.entry, own.started_at, own.failed) = (entry as u32, self.now, false);
        self.tally.change_busy(task as usize, 1, self.now);
        let branch = self.branch(thread, self.program.entries[entry].start as u32, None);
        self.begin_activity(branch)
    }

    /// Creates a branch of a thread that starts with this activity.
    fn branch(&mut self, thread: u32, activity: u32, loops: Option<Box<LoopStack>>) -> u32 {
        self.threads.values[thread as usize].branches += 1;
        let branch = self.branches.allocate();
        let own = &mut self.branches.values[branch as usize];
        (own.thread, own.activity) = (thread, activity);
        // A reused branch has an empty list of loops.
        if loops.is_some() {
            own.loops = loops;
        }
        branch
    }

    fn arrive(&mut self, request: u32) -> NextAction {
        let entry = self.requests.values[request as usize].entry as usize;
        let task = self.program.entries[entry].task;
        self.tally.record_arrival(entry);
        match &mut self.tasks[task].free_threads {
            Some(0) => {
                if self.tasks[task].queue.len() >= self.program.tasks[task].queue_limit {
                    return self.refuse_request(request);
                }
                self.loads[task] += 1;
                self.tasks[task].queue.push_back(request);
                return None;
            }
            Some(free) => *free -= 1,
            None => {}
        }
        self.loads[task] += 1;
        self.start_thread(task, request)
    }

    /// Starts a request on a thread.
    fn start_thread(&mut self, task: usize, request: u32) -> NextAction {
        let RequestRecord { entry, arrived_at: came, .. } = self.requests.values[request as usize];
        self.tally.record_waiting(entry as usize, self.now - came);
        self.tally.change_busy(task, 1, self.now);
        let thread = self.threads.allocate();
        let own = &mut self.threads.values[thread as usize];
        (own.task, own.entry, own.request, own.started_at) = (task as u32, entry, request, self.now);
        own.failed = false;
        let start = self.program.entries[entry as usize].start as u32;
        let branch = self.branch(thread, start, None);
        self.begin_activity(branch)
    }
}
