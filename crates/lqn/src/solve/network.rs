//! The model in the form of the solver: the work at each station by its origin, and its bounds.
//!
//! A *row* is an entry that works on behalf of an *origin* and for a *holder*, the task whose thread waits
//! for the reply. An origin is a client, requests from outside, the later phases of a task, or calls without
//! a reply. Rows call rows. A *station* is a place of waiting: for a thread of a task, or for a processor. A
//! *slot* is an origin and a holder at a station.

use std::collections::HashMap;

use super::policy_gain::{self, PolicyGain};
use super::visits::{self, EntryVisits};
use crate::model::{Activity, EntryBody, Model, Multiplicity, Scheduling, Task, TaskRole};

/// The largest number of rows: the rest is ignored, and the solution does not count as converged.
const MAX_ROWS: usize = 500_000;
/// The largest number of tasks for which later phases have separate origins, and for which nested threads are
/// examined.
pub(super) const MAX_SEPARATE_TASKS: usize = 400;

/// The origin of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum WorkOrigin {
    /// The clients of this task.
    Client(usize),
    /// The requests from outside to this entry.
    External(usize),
    /// The work of this task after its replies.
    SecondPhase(usize),
    /// The calls without a reply to this entry.
    AsyncCalls(usize),
}

/// The absence of a task.
pub(super) const NO_HOLDER: usize = usize::MAX;

/// An entry on behalf of an origin, called by a task.
pub(super) struct WorkRow {
    pub(super) entry: usize,
    pub(super) task: usize,
    pub(super) origin: usize,
    /// The task whose thread or client waits for it; [`NO_HOLDER`] if none does.
    pub(super) holder: usize,
    /// The slot in which it waits for a thread.
    pub(super) queue: usize,
    /// The activities, successors first, as in its course.
    pub(super) activities: Vec<RowActivity>,
    /// The targets of forwarding with their probabilities.
    pub(super) forwards: Vec<(usize, f64)>,
}

/// An activity of a row.
#[derive(Clone, Default)]
pub(super) struct RowActivity {
    pub(super) activity: usize,
    /// The parts while the caller waits and after that.
    pub(super) sides: [ActivitySide; 2],
}

/// The part of an activity before or after the reply.
#[derive(Clone, Default)]
pub(super) struct ActivitySide {
    /// The number of executions per request.
    pub(super) executions: f64,
    /// The slot at the processor.
    pub(super) work: usize,
    /// The called rows, the number of calls, and whether the caller waits for the reply.
    pub(super) calls: Vec<(usize, f64, bool)>,
}

/// The queueing discipline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum QueueDiscipline {
    Fifo,
    ProcessorSharing,
    HeadOfLine,
    Preemptive,
}

/// A place of waiting.
pub(super) struct QueueStation {
    /// The number of threads or cores; may be infinite.
    pub(super) servers: f64,
    pub(super) discipline: QueueDiscipline,
    /// Whether the station is a task.
    pub(super) is_task: bool,
    /// Whether threads continue after the reply.
    pub(super) has_second_phase: bool,
    pub(super) slots: Vec<usize>,
    /// The tasks whose threads or clients bound the number of requests here.
    pub(super) bounds: Vec<usize>,
    /// The largest number of requests at a time; may be infinite.
    pub(super) max_requests: f64,
}

/// An origin and a holder at a station.
#[derive(Clone, Copy)]
pub(super) struct StationSlot {
    pub(super) origin: usize,
    /// The task whose threads or clients wait here.
    pub(super) holder: usize,
    pub(super) priority: i32,
}

/// The model in the form of the solver.
pub(super) struct SolverNetwork<'m> {
    pub(super) model: &'m Model,
    pub(super) origins: Vec<WorkOrigin>,
    pub(super) rows: Vec<WorkRow>,
    /// The indices of rows, callers first.
    pub(super) order: Vec<usize>,
    /// The course of each entry.
    pub(super) visits: Vec<EntryVisits>,
    /// The position of each activity in its course, for entries with a graph.
    pub(super) graph_positions: Vec<HashMap<usize, usize>>,
    pub(super) stations: Vec<QueueStation>,
    pub(super) slots: Vec<StationSlot>,
    /// The rows of each origin's first entries, with their shares of its requests.
    pub(super) first_rows: Vec<Vec<(usize, f64)>>,
    /// The number of threads of each task that can be active at a time.
    pub(super) active_threads: Vec<f64>,
    /// The number of parallel branches of each task.
    pub(super) parallel_branches: Vec<f64>,
    /// The tasks, callers first.
    pub(super) tasks: Vec<usize>,
    /// The relief of each station by a balancer that uses loads.
    pub(super) policy_gains: Vec<Option<PolicyGain>>,
    /// Whether there were too many rows.
    pub(super) is_truncated: bool,
}

impl<'m> SolverNetwork<'m> {
    pub(super) fn new(model: &'m Model) -> Self {
        let entry_visits: Vec<EntryVisits> =
            (0..model.entries.len()).map(|entry| visits::entry_visits(model, entry)).collect();
        let visit_positions = |entry: usize| -> HashMap<usize, usize> {
            let graph_visits = if is_graph(model, entry) { entry_visits[entry].as_slice() } else { &[] };
            graph_visits.iter().enumerate().map(|(index, visit)| (visit.activity, index)).collect()
        };
        let graph_positions = (0..model.entries.len()).map(visit_positions).collect();
        let mut net = Self {
            graph_positions,
            model,
            origins: Vec::new(),
            rows: Vec::new(),
            order: Vec::new(),
            visits: entry_visits,
            stations: stations(model),
            slots: Vec::new(),
            first_rows: Vec::new(),
            active_threads: Vec::new(),
            parallel_branches: Vec::new(),
            tasks: callers_first(model),
            policy_gains: policy_gain::policy_gains(model),
            is_truncated: false,
        };
        NetworkBuilder {
            net: &mut net,
            origins: HashMap::new(),
            rows: HashMap::new(),
            slots: HashMap::new(),
        }
        .build();
        let mut ranks = vec![0; model.tasks.len()];
        for (rank, task) in net.tasks.iter().enumerate() {
            ranks[*task] = rank;
        }
        net.order = (0..net.rows.len()).collect();
        net.order.sort_by_key(|row| (ranks[net.rows[*row].task], *row));
        for entry in 0..model.entries.len() {
            let task = model.entries[entry].task.0;
            net.stations[task].has_second_phase |= net.visits[entry].iter().any(|visit| visit.after > 0.0);
        }
        // With equal priorities, requests are served in order of arrival.
        for station in net.stations.iter_mut().filter(|station| station.is_task) {
            let mut ranks = station.slots.iter().map(|slot| net.slots[*slot].priority);
            let first = ranks.next();
            if ranks.all(|priority| Some(priority) == first) {
                station.discipline = QueueDiscipline::Fifo;
            }
        }
        net.set_bounds();
        net
    }

    /// Returns the largest number of requests of a slot.
    pub(super) fn population(&self, slot: usize) -> f64 {
        let StationSlot { origin, holder, .. } = self.slots[slot];
        let threads = match self.origins[origin] {
            WorkOrigin::Client(task) | WorkOrigin::SecondPhase(task) => self.active_threads[task],
            WorkOrigin::External(_) | WorkOrigin::AsyncCalls(_) => f64::INFINITY,
        };
        threads.min(self.max_requests_by(holder))
    }

    /// Returns the largest number of requests by the threads of a task.
    pub(super) fn max_requests_by(&self, holder: usize) -> f64 {
        if holder == NO_HOLDER {
            f64::INFINITY
        } else {
            self.active_threads[holder] * self.parallel_branches[holder]
        }
    }
}

/// Converts a multiplicity to a number.
pub(super) fn server_count(copies: Multiplicity) -> f64 {
    match copies {
        Multiplicity::Finite(count) => f64::from(count),
        Multiplicity::Infinite => f64::INFINITY,
    }
}

/// Returns `true` if the task serves by priority.
pub(super) fn is_ranked(task: &Task) -> bool {
    task.role == TaskRole::Server { queue: Scheduling::HeadOfLine }
}

fn stations(model: &Model) -> Vec<QueueStation> {
    let station = |servers, discipline, is_task| QueueStation {
        servers,
        discipline,
        is_task,
        has_second_phase: false,
        slots: Vec::new(),
        bounds: Vec::new(),
        max_requests: f64::INFINITY,
    };
    let task_stations = model.tasks.iter().map(|task| {
        // Clients serve no requests.
        let threads = if task.is_client() { f64::INFINITY } else { server_count(task.copies) };
        station(
            threads,
            if is_ranked(task) { QueueDiscipline::HeadOfLine } else { QueueDiscipline::Fifo },
            true,
        )
    });
    let processors = model.processors.iter().map(|processor| {
        let discipline = match processor.scheduling {
            Scheduling::Fcfs | Scheduling::Random => QueueDiscipline::Fifo,
            Scheduling::HeadOfLine => QueueDiscipline::HeadOfLine,
            Scheduling::Preemptive => QueueDiscipline::Preemptive,
            Scheduling::ProcessorSharing => QueueDiscipline::ProcessorSharing,
        };
        station(server_count(processor.copies), discipline, false)
    });
    task_stations.chain(processors).collect()
}

/// Returns the tasks, callers first. Those on a cycle, which a model that was read cannot have, are at the
/// end.
fn callers_first(model: &Model) -> Vec<usize> {
    let mut called_tasks: Vec<Vec<usize>> = vec![Vec::new(); model.tasks.len()];
    for activity in &model.activities {
        for call in activity.calls.iter().filter(|call| call.waits) {
            called_tasks[activity.task.0].push(model.entries[call.entry.0].task.0);
        }
    }
    for entry in &model.entries {
        for (to, _) in &entry.forwards {
            called_tasks[entry.task.0].push(model.entries[to.0].task.0);
        }
    }
    let mut pending_callers = vec![0_usize; called_tasks.len()];
    called_tasks.iter().flatten().for_each(|to| pending_callers[*to] += 1);
    let mut order: Vec<usize> = (0..called_tasks.len()).filter(|task| pending_callers[*task] == 0).collect();
    let mut next = 0;
    while next < order.len() {
        for to in &called_tasks[order[next]] {
            pending_callers[*to] -= 1;
            if pending_callers[*to] == 0 {
                order.push(*to);
            }
        }
        next += 1;
    }
    order.extend((0..called_tasks.len()).filter(|task| pending_callers[*task] > 0));
    order
}

struct NetworkBuilder<'n, 'm> {
    net: &'n mut SolverNetwork<'m>,
    origins: HashMap<WorkOrigin, usize>,
    rows: HashMap<(usize, usize, usize), usize>,
    slots: HashMap<(usize, usize, usize, i32), usize>,
}

impl NetworkBuilder<'_, '_> {
    fn build(&mut self) {
        let model = self.net.model;
        for (index, task) in model.tasks.iter().enumerate() {
            if task.is_client() {
                let origin = self.origin(WorkOrigin::Client(index));
                let share = 1.0 / task.entries.len().max(1) as f64;
                for entry in &task.entries {
                    let row = self.row(entry.0, origin, index);
                    self.net.first_rows[origin].push((row, share));
                }
            }
        }
        for (index, entry) in model.entries.iter().enumerate() {
            if entry.arrivals > 0.0 {
                let origin = self.origin(WorkOrigin::External(index));
                let row = self.row(index, origin, NO_HOLDER);
                self.net.first_rows[origin].push((row, 1.0));
            }
        }
        let mut next_row = 0;
        while next_row < self.net.rows.len() {
            if self.net.rows.len() > MAX_ROWS {
                self.net.is_truncated = true;
                break;
            }
            self.follow(next_row);
            next_row += 1;
        }
    }

    fn origin(&mut self, origin: WorkOrigin) -> usize {
        // With very many tasks, all later phases have one origin.
        let origin = match origin {
            WorkOrigin::SecondPhase(_) if self.net.tasks.len() > MAX_SEPARATE_TASKS => {
                WorkOrigin::SecondPhase(0)
            }
            specific => specific,
        };
        *self.origins.entry(origin).or_insert_with(|| {
            self.net.origins.push(origin);
            self.net.first_rows.push(Vec::new());
            self.net.origins.len() - 1
        })
    }

    fn slot(&mut self, station: usize, origin: usize, holder: usize, priority: i32) -> usize {
        let net = &mut *self.net;
        *self.slots.entry((station, origin, holder, priority)).or_insert_with(|| {
            net.slots.push(StationSlot { origin, holder, priority });
            net.stations[station].slots.push(net.slots.len() - 1);
            net.slots.len() - 1
        })
    }

    fn row(&mut self, entry: usize, origin: usize, holder: usize) -> usize {
        if let Some(row) = self.rows.get(&(entry, origin, holder)) {
            return *row;
        }
        let task = self.net.model.entries[entry].task.0;
        let queue = self.slot(task, origin, holder, self.rank(entry, origin, holder));
        let index = self.net.rows.len();
        self.net.rows.push(WorkRow {
            entry,
            task,
            origin,
            holder,
            queue,
            activities: Vec::new(),
            forwards: Vec::new(),
        });
        self.rows.insert((entry, origin, holder), index);
        index
    }

    /// Returns the priority of a request at a task that serves by priority: the sum of the caller's and the
    /// entry's.
    fn rank(&self, entry: usize, origin: usize, holder: usize) -> i32 {
        let model = self.net.model;
        let entry_data = &model.entries[entry];
        if self.net.stations[entry_data.task.0].discipline != QueueDiscipline::HeadOfLine {
            return 0;
        }
        let caller_priority = match self.net.origins[origin] {
            _ if holder != NO_HOLDER => model.tasks[holder].priority,
            // Of several senders the highest priority counts.
            WorkOrigin::AsyncCalls(to) => {
                let is_sender = |activity: &&Activity| {
                    activity.calls.iter().any(|call| !call.waits && call.entry.0 == to)
                };
                let senders = model.activities.iter().filter(is_sender);
                senders.map(|activity| model.tasks[activity.task.0].priority).max().unwrap_or(0)
            }
            _ => 0,
        };
        caller_priority.saturating_add(entry_data.priority)
    }

    /// Determines the activities and calls of a row.
    fn follow(&mut self, row: usize) {
        let model = self.net.model;
        let WorkRow { entry, task, origin, holder, .. } = self.net.rows[row];
        let entry_visits = self.net.visits[entry].clone();
        let mut steps = Vec::with_capacity(entry_visits.len());
        for visit in &entry_visits {
            let mut step = RowActivity { activity: visit.activity, ..RowActivity::default() };
            for (side, executions) in [visit.before, visit.after].into_iter().enumerate() {
                if executions > 0.0 {
                    let origin = if side == 0 { origin } else { self.origin(WorkOrigin::SecondPhase(task)) };
                    step.sides[side] = self.side(visit.activity, origin, executions);
                }
            }
            steps.push(step);
        }
        let entry_data = &model.entries[entry];
        let forwards: Vec<(usize, f64)> = entry_data
            .forwards
            .iter()
            .filter(|(_, share)| *share > 0.0)
            .map(|(to, share)| (self.row(to.0, origin, holder), *share))
            .collect();
        let work_row = &mut self.net.rows[row];
        (work_row.activities, work_row.forwards) = (steps, forwards);
    }

    fn side(&mut self, activity: usize, origin: usize, executions: f64) -> ActivitySide {
        let model = self.net.model;
        let activity_data = &model.activities[activity];
        let task = &model.tasks[activity_data.task.0];
        let station = model.tasks.len() + task.processor.0;
        let is_prioritized = matches!(
            self.net.stations[station].discipline,
            QueueDiscipline::HeadOfLine | QueueDiscipline::Preemptive
        );
        let work =
            self.slot(station, origin, activity_data.task.0, if is_prioritized { task.priority } else { 0 });
        let mut calls = Vec::with_capacity(activity_data.calls.len());
        for call in &activity_data.calls {
            let to = call.entry.0;
            let row = if call.waits {
                self.row(to, origin, activity_data.task.0)
            } else {
                let async_origin = self.origin(WorkOrigin::AsyncCalls(to));
                let row = self.row(to, async_origin, NO_HOLDER);
                if self.net.first_rows[async_origin].is_empty() {
                    self.net.first_rows[async_origin].push((row, 1.0));
                }
                row
            };
            calls.push((row, call.count, call.waits));
        }
        ActivitySide { executions, work, calls }
    }
}

/// Returns `true` if the entry has a graph of activities.
pub(super) fn is_graph(model: &Model, entry: usize) -> bool {
    matches!(model.entries[entry].body, EntryBody::Graph(_))
}
