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
const MAX_ACTIONS: u64 = 10_000_000;

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
    pub(super) statistics: RunStatistics,
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
    pub(super) fn new(model: &Model, program: &'p CompiledModel, seed: u64, max_records: usize) -> Self {
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
            statistics: RunStatistics::new(model),
            max_records,
        };
        for task in &program.tasks {
            engine.tasks.push(TaskState { free_threads: task.copies, queue: VecDeque::new() });
        }
        for (index, task) in program.tasks.iter().enumerate() {
            for _ in 0..task.think.and(task.copies).unwrap_or(0) {
                let thread = ThreadRecord { task: index as u32, request: NONE, ..ThreadRecord::default() };
                let thread = engine.threads.insert(thread);
                engine.start_think_time(thread);
            }
        }
        // Clients exist from the beginning.
        engine.max_records += engine.threads.count();
        for (index, entry) in program.entries.iter().enumerate() {
            if entry.arrivals > 0.0 {
                engine.schedule_arrival(index as u32);
            }
            let routing_key = engine.streams.routes[index].fingerprint();
            let route = entry.routing.map(|routing| RoutingState::new(entry, program, routing, routing_key));
            if let Some(age) = route.as_ref().map(|route| route.max_age).filter(|age| *age > 0.0) {
                engine.schedule(age, SimulationEvent::LoadRefresh(index as u32));
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
        self.statistics.update_integrals(self.now);
    }

    /// Returns the number of requests that wait or are served at a task; for clients, the number that do not
    /// think.
    pub(super) fn population(&self, task: usize) -> f64 {
        match self.program.tasks[task].think {
            Some(_) => self.statistics.tasks[task].busy as f64,
            None => f64::from(self.loads[task]),
        }
    }

    fn step(&mut self) -> Result<(), SimulationError> {
        let Some((time, number, event)) = self.event_queue.pop() else {
            return Err(SimulationError::NoEvents(self.now));
        };
        self.now = time;
        self.events += 1;
        let mut next = match event {
            SimulationEvent::SliceEnd(branch) => self.complete_slice(branch, number),
            SimulationEvent::ActivityThinkEnd(branch) => self.begin_slice(branch),
            SimulationEvent::ClientThinkEnd(thread) => {
                self.last_cycle_starts =
                    (time, if time > self.last_cycle_starts.0 { 0 } else { self.last_cycle_starts.1 + 1 });
                if self.last_cycle_starts.1 > MAX_ACTIONS {
                    return Err(SimulationError::NoProgress(time));
                }
                self.start_cycle(thread)
            }
            SimulationEvent::Arrival(entry) => {
                let request = RequestRecord {
                    entry,
                    caller: NONE,
                    arrived_at: time,
                    origin: entry,
                    entered_at: time,
                    failed: false,
                    rank: self.program.external_rank(),
                };
                let request = self.requests.insert(request);
                self.schedule_arrival(entry);
                self.arrive(request)
            }
            SimulationEvent::StationAlarm(station) => self.handle_alarm(station as usize, number),
            SimulationEvent::LoadRefresh(entry) => {
                if let Some(route) = &mut self.routes[entry as usize] {
                    route.refresh_loads(&self.loads);
                    let age = route.max_age;
                    self.schedule(time + age, event);
                }
                None
            }
            SimulationEvent::CallTimeout(branch) => self.handle_timeout(branch, number),
            SimulationEvent::CallRetry(branch) => self.make_call(branch),
        };
        let mut action_count = 0;
        while let Some(action) = next.or_else(|| self.actions.pop()) {
            next = match action {
                PendingAction::BeginActivity(branch) => self.begin_activity(branch),
                PendingAction::BeginSlice(branch) => self.begin_slice(branch),
                PendingAction::EndSlice(branch) => self.end_slice(branch),
                PendingAction::Arrive(request) => self.arrive(request),
                PendingAction::Continue(branch) => self.continue_after_activity(branch),
                PendingAction::MakeCall(branch) => self.make_call(branch),
                PendingAction::FailActivity(branch) => self.fail_activity(branch),
            };
            action_count += 1;
            if action_count > MAX_ACTIONS {
                return Err(SimulationError::NoProgress(time));
            }
        }
        if self.requests.peak().max(self.threads.peak()).max(self.branches.peak()) > self.max_records {
            return Err(SimulationError::UnboundedGrowth(time));
        }
        Ok(())
    }

    fn schedule(&mut self, time: f64, event: SimulationEvent) -> u32 {
        self.event_queue.push(time, event)
    }

    fn perform_station_action(&mut self, station: usize, action: StationAction) {
        match action {
            StationAction::ScheduleEnd { who: branch, at: time } => self.schedule_completion(branch, time),
            StationAction::SetAlarm { at: time } => {
                self.alarms[station] = self.schedule(time, SimulationEvent::StationAlarm(station as u32))
            }
            StationAction::Nothing => {}
        }
    }

    /// Ends a slice of work of a branch, if the alarm is valid.
    fn complete_slice(&mut self, branch: u32, number: u32) -> NextAction {
        let branch_record = &self.branches.values[branch as usize];
        if branch_record.alarm != number {
            return None;
        }
        let index = self.program.activities[branch_record.activity as usize].processor;
        let station = &mut self.stations[index];
        if station.is_plain {
            if let Some((next_branch, end_time)) = station.leave_plain(self.now) {
                self.schedule_completion(next_branch, end_time);
            }
        } else {
            let action = station.complete(branch, self.now, &mut self.streams.stations[index]);
            self.perform_station_action(index, action);
        }
        self.end_slice(branch)
    }

    /// Handles a station's alarm, if it is valid.
    fn handle_alarm(&mut self, station: usize, number: u32) -> NextAction {
        if self.alarms[station] != number {
            return None;
        }
        let (branch, action) = self.stations[station].handle_alarm(self.now);
        self.perform_station_action(station, action);
        branch.map(PendingAction::EndSlice)
    }

    fn schedule_completion(&mut self, branch: u32, time: f64) {
        self.branches.values[branch as usize].alarm = self.schedule(time, SimulationEvent::SliceEnd(branch));
    }

    fn schedule_arrival(&mut self, entry: u32) {
        let gap = self.streams.arrivals[entry as usize].exponential()
            / self.program.entries[entry as usize].arrivals;
        self.schedule(self.now + gap, SimulationEvent::Arrival(entry));
    }

    /// Starts the think time of a client.
    fn start_think_time(&mut self, thread: u32) {
        let task = self.threads.values[thread as usize].task as usize;
        let think = self.program.tasks[task].think.unwrap_or(0.0);
        let time =
            if think > 0.0 { think * self.streams.clients[thread as usize].exponential() } else { 0.0 };
        self.schedule(self.now + time, SimulationEvent::ClientThinkEnd(thread));
    }

    /// Starts a cycle of a client.
    fn start_cycle(&mut self, thread: u32) -> NextAction {
        let task = self.threads.values[thread as usize].task;
        let entries = &self.program.tasks[task as usize].entries;
        let stream = &mut self.streams.tasks[task as usize];
        let entry = entries[if entries.len() > 1 { stream.uniform_below(entries.len()) } else { 0 }];
        let thread_record = &mut self.threads.values[thread as usize];
        (thread_record.entry, thread_record.started_at, thread_record.failed) =
            (entry as u32, self.now, false);
        self.statistics.change_busy(task as usize, 1, self.now);
        let branch = self.start_branch(thread, self.program.entries[entry].start as u32, None);
        self.begin_activity(branch)
    }

    /// Creates a branch of a thread that starts with this activity.
    fn start_branch(&mut self, thread: u32, activity: u32, loops: Option<Box<LoopStack>>) -> u32 {
        self.threads.values[thread as usize].branches += 1;
        let branch = self.branches.allocate();
        let branch_record = &mut self.branches.values[branch as usize];
        (branch_record.thread, branch_record.activity) = (thread, activity);
        // A reused branch has an empty list of loops.
        if loops.is_some() {
            branch_record.loops = loops;
        }
        branch
    }

    fn arrive(&mut self, request: u32) -> NextAction {
        let entry = self.requests.values[request as usize].entry as usize;
        let task = self.program.entries[entry].task;
        self.statistics.record_arrival(entry);
        match &mut self.tasks[task].free_threads {
            Some(0) => {
                if self.tasks[task].queue.len() >= self.program.tasks[task].queue_limit {
                    return self.refuse_request(request);
                }
                self.loads[task] += 1;
                self.tasks[task].queue.push_back(request);
                return None;
            }
            Some(free_count) => *free_count -= 1,
            None => {}
        }
        self.loads[task] += 1;
        self.start_thread(task, request)
    }

    /// Starts a request on a thread.
    fn start_thread(&mut self, task: usize, request: u32) -> NextAction {
        let RequestRecord { entry, arrived_at, .. } = self.requests.values[request as usize];
        self.statistics.record_waiting(entry as usize, self.now - arrived_at);
        self.statistics.change_busy(task, 1, self.now);
        let thread = self.threads.allocate();
        let thread_record = &mut self.threads.values[thread as usize];
        (thread_record.task, thread_record.entry, thread_record.request, thread_record.started_at) =
            (task as u32, entry, request, self.now);
        thread_record.failed = false;
        let start = self.program.entries[entry as usize].start as u32;
        let branch = self.start_branch(thread, start, None);
        self.begin_activity(branch)
    }
}
