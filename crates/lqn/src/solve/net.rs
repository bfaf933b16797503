//! The model as the solver wants it: who is where on whose behalf, and how many can be.
//!
//! A *row* is an entry that works on behalf of an *origin*: a client, requests from outside, the phases of a task that
//! nobody waits for, or calls that nobody waits for; and for a *holder*, the task whose thread waits for the answer. Rows
//! call rows. A *station* is where there is waiting: for a thread of a task, or at a processor. A *slot* is an origin and a
//! holder at a station.

use std::collections::HashMap;

use super::relief::{self, Relief};
use super::visits::{self, Course};
use crate::model::{Activity, Body, Copies, Model, Role, Scheduling, Task};

/// Rows at most: beyond, what is left is not followed, and the solution says that it did not converge.
const MOST_ROWS: usize = 500_000;
/// Tasks at most for which phases that nobody waits for are told apart, and threads within threads are looked for.
pub(super) const TOLD_APART: usize = 400;

/// On whose behalf something is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Origin {
    /// Clients, by their task.
    Client(usize),
    /// Requests from outside, by their entry.
    Open(usize),
    /// What this task does after it has answered.
    After(usize),
    /// Calls to this entry that nobody waits for.
    Sent(usize),
}

/// No task.
pub(super) const NOBODY: usize = usize::MAX;

/// An entry on behalf of an origin, asked by a task.
pub(super) struct Row {
    pub(super) entry: usize,
    pub(super) task: usize,
    pub(super) origin: usize,
    /// The task whose thread or client waits for it; [`NOBODY`] where none does.
    pub(super) holder: usize,
    /// Slot in which it waits for a thread.
    pub(super) queue: usize,
    /// Successors before those they follow, as in its course.
    pub(super) steps: Vec<Step>,
    /// Who answers in its stead, with the probability.
    pub(super) forwards: Vec<(usize, f64)>,
}

/// An activity of a row.
#[derive(Clone, Default)]
pub(super) struct Step {
    pub(super) activity: usize,
    /// While the caller waits, and when it no longer does.
    pub(super) sides: [Side; 2],
}

/// What of an activity is done before or after the caller was answered.
#[derive(Clone, Default)]
pub(super) struct Side {
    /// How often per request.
    pub(super) times: f64,
    /// Slot at the processor.
    pub(super) work: usize,
    /// Rows that are called, how often, and whether the answer is waited for.
    pub(super) calls: Vec<(usize, f64, bool)>,
}

/// Who goes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rule {
    Fifo,
    Sharing,
    HeadOfLine,
    Preemptive,
}

/// Where there is waiting.
pub(super) struct Station {
    /// Threads or cores; infinite for as many as are needed.
    pub(super) servers: f64,
    pub(super) rule: Rule,
    /// Is it a task?
    pub(super) pool: bool,
    /// Does it hold a thread after the caller was answered?
    pub(super) after: bool,
    pub(super) slots: Vec<usize>,
    /// Tasks whose threads or clients bound how many can be here.
    pub(super) bounds: Vec<usize>,
    /// Requests that can be here at a time; infinite if nothing bounds them.
    pub(super) most: f64,
}

/// An origin at a station, by way of a task.
#[derive(Clone, Copy)]
pub(super) struct Slot {
    pub(super) origin: usize,
    /// The task whose threads or clients wait here.
    pub(super) holder: usize,
    pub(super) priority: i32,
}

/// The model, worked out.
pub(super) struct Net<'m> {
    pub(super) model: &'m Model,
    pub(super) origins: Vec<Origin>,
    pub(super) rows: Vec<Row>,
    /// Rows, callers before those they call.
    pub(super) order: Vec<usize>,
    /// Per entry what is done for it.
    pub(super) courses: Vec<Course>,
    /// Per entry with a graph, where each activity stands in its course.
    pub(super) places: Vec<HashMap<usize, usize>>,
    pub(super) stations: Vec<Station>,
    pub(super) slots: Vec<Slot>,
    /// Row of each origin's first entries, with the part of its requests that each gets.
    pub(super) starts: Vec<Vec<(usize, f64)>>,
    /// Threads of each task that can be active at a time.
    pub(super) active: Vec<f64>,
    /// Branches of each that can run at the same time.
    pub(super) wide: Vec<f64>,
    /// Tasks, callers before those they call.
    pub(super) tasks: Vec<usize>,
    /// Per station, what a balancer that looks at loads does for it.
    pub(super) reliefs: Vec<Option<Relief>>,
    /// Were there too many rows?
    pub(super) crowded: bool,
}

impl<'m> Net<'m> {
    pub(super) fn new(model: &'m Model) -> Self {
        let courses: Vec<Course> =
            (0..model.entries.len()).map(|entry| visits::course(model, entry)).collect();
        let place = |entry: usize| -> HashMap<usize, usize> {
            let all = if is_graph(model, entry) { courses[entry].as_slice() } else { &[] };
            all.iter().enumerate().map(|(place, part)| (part.activity, place)).collect()
        };
        let places = (0..model.entries.len()).map(place).collect();
        let mut net = Self {
            places,
            model,
            origins: Vec::new(),
            rows: Vec::new(),
            order: Vec::new(),
            courses,
            stations: stations(model),
            slots: Vec::new(),
            starts: Vec::new(),
            active: Vec::new(),
            wide: Vec::new(),
            tasks: in_order(model),
            reliefs: relief::reliefs(model),
            crowded: false,
        };
        Builder { net: &mut net, origins: HashMap::new(), rows: HashMap::new(), slots: HashMap::new() }
            .build();
        let mut ranks = vec![0; model.tasks.len()];
        for (rank, task) in net.tasks.iter().enumerate() {
            ranks[*task] = rank;
        }
        net.order = (0..net.rows.len()).collect();
        net.order.sort_by_key(|row| (ranks[net.rows[*row].task], *row));
        for entry in 0..model.entries.len() {
            let task = model.entries[entry].task.0;
            net.stations[task].after |= net.courses[entry].iter().any(|part| part.after > 0.0);
        }
        // Where all are alike, it is their order.
        for station in net.stations.iter_mut().filter(|own| own.pool) {
            let mut ranks = station.slots.iter().map(|slot| net.slots[*slot].priority);
            let first = ranks.next();
            if ranks.all(|own| Some(own) == first) {
                station.rule = Rule::Fifo;
            }
        }
        net.bounds();
        net
    }

    /// How many requests of a slot there can be.
    pub(super) fn population(&self, slot: usize) -> f64 {
        let Slot { origin, holder, .. } = self.slots[slot];
        let all = match self.origins[origin] {
            Origin::Client(task) | Origin::After(task) => self.active[task],
            Origin::Open(_) | Origin::Sent(_) => f64::INFINITY,
        };
        all.min(self.holds(holder))
    }

    /// How many requests there can be by way of a task.
    pub(super) fn holds(&self, holder: usize) -> f64 {
        if holder == NOBODY { f64::INFINITY } else { self.active[holder] * self.wide[holder] }
    }
}

/// How many, as a number.
pub(super) fn many(copies: Copies) -> f64 {
    match copies {
        Copies::Some(count) => f64::from(count),
        Copies::Infinite => f64::INFINITY,
    }
}

/// Does it serve by priority?
pub(super) fn is_ranked(task: &Task) -> bool {
    task.role == Role::Server { queue: Scheduling::HeadOfLine }
}

fn stations(model: &Model) -> Vec<Station> {
    let station = |servers, rule, pool| Station {
        servers,
        rule,
        pool,
        after: false,
        slots: Vec::new(),
        bounds: Vec::new(),
        most: f64::INFINITY,
    };
    let pools = model.tasks.iter().map(|task| {
        // A client is nobody's server.
        let threads = if task.is_client() { f64::INFINITY } else { many(task.copies) };
        station(threads, if is_ranked(task) { Rule::HeadOfLine } else { Rule::Fifo }, true)
    });
    let processors = model.processors.iter().map(|processor| {
        let rule = match processor.scheduling {
            Scheduling::Fcfs | Scheduling::Random => Rule::Fifo,
            Scheduling::HeadOfLine => Rule::HeadOfLine,
            Scheduling::Preemptive => Rule::Preemptive,
            Scheduling::Sharing => Rule::Sharing,
        };
        station(many(processor.copies), rule, false)
    });
    pools.chain(processors).collect()
}

/// Tasks, callers before those they call; those on a cycle, which a model that was read has none of, at the end.
fn in_order(model: &Model) -> Vec<usize> {
    let mut asks: Vec<Vec<usize>> = vec![Vec::new(); model.tasks.len()];
    for activity in &model.activities {
        for call in activity.calls.iter().filter(|call| call.waits) {
            asks[activity.task.0].push(model.entries[call.entry.0].task.0);
        }
    }
    for entry in &model.entries {
        for (to, _) in &entry.forwards {
            asks[entry.task.0].push(model.entries[to.0].task.0);
        }
    }
    let mut open = vec![0_usize; asks.len()];
    asks.iter().flatten().for_each(|to| open[*to] += 1);
    let mut order: Vec<usize> = (0..asks.len()).filter(|task| open[*task] == 0).collect();
    let mut at = 0;
    while at < order.len() {
        for to in &asks[order[at]] {
            open[*to] -= 1;
            if open[*to] == 0 {
                order.push(*to);
            }
        }
        at += 1;
    }
    order.extend((0..asks.len()).filter(|task| open[*task] > 0));
    order
}

struct Builder<'n, 'm> {
    net: &'n mut Net<'m>,
    origins: HashMap<Origin, usize>,
    rows: HashMap<(usize, usize, usize), usize>,
    slots: HashMap<(usize, usize, usize, i32), usize>,
}

impl Builder<'_, '_> {
    fn build(&mut self) {
        let model = self.net.model;
        for (place, task) in model.tasks.iter().enumerate() {
            if task.is_client() {
                let origin = self.origin(Origin::Client(place));
                let part = 1.0 / task.entries.len().max(1) as f64;
                for entry in &task.entries {
                    let row = self.row(entry.0, origin, place);
                    self.net.starts[origin].push((row, part));
                }
            }
        }
        for (place, entry) in model.entries.iter().enumerate() {
            if entry.arrivals > 0.0 {
                let origin = self.origin(Origin::Open(place));
                let row = self.row(place, origin, NOBODY);
                self.net.starts[origin].push((row, 1.0));
            }
        }
        let mut at = 0;
        while at < self.net.rows.len() {
            if self.net.rows.len() > MOST_ROWS {
                self.net.crowded = true;
                break;
            }
            self.follow(at);
            at += 1;
        }
    }

    fn origin(&mut self, origin: Origin) -> usize {
        // Where there are very many tasks, what nobody waits for is one origin.
        let origin = match origin {
            Origin::After(_) if self.net.tasks.len() > TOLD_APART => Origin::After(0),
            other => other,
        };
        *self.origins.entry(origin).or_insert_with(|| {
            self.net.origins.push(origin);
            self.net.starts.push(Vec::new());
            self.net.origins.len() - 1
        })
    }

    fn slot(&mut self, station: usize, origin: usize, holder: usize, priority: i32) -> usize {
        let net = &mut *self.net;
        *self.slots.entry((station, origin, holder, priority)).or_insert_with(|| {
            net.slots.push(Slot { origin, holder, priority });
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
        let place = self.net.rows.len();
        self.net.rows.push(Row {
            entry,
            task,
            origin,
            holder,
            queue,
            steps: Vec::new(),
            forwards: Vec::new(),
        });
        self.rows.insert((entry, origin, holder), place);
        place
    }

    /// Whose turn it is at a task that goes by priority: by that of who asks and of what is asked for.
    fn rank(&self, entry: usize, origin: usize, holder: usize) -> i32 {
        let model = self.net.model;
        let own = &model.entries[entry];
        if self.net.stations[own.task.0].rule != Rule::HeadOfLine {
            return 0;
        }
        let asks = match self.net.origins[origin] {
            _ if holder != NOBODY => model.tasks[holder].priority,
            // Of several that do not wait, the one that comes first.
            Origin::Sent(to) => {
                let sends = |own: &&Activity| own.calls.iter().any(|call| !call.waits && call.entry.0 == to);
                let senders = model.activities.iter().filter(sends);
                senders.map(|own| model.tasks[own.task.0].priority).max().unwrap_or(0)
            }
            _ => 0,
        };
        asks.saturating_add(own.priority)
    }

    /// Works out what a row does.
    fn follow(&mut self, row: usize) {
        let model = self.net.model;
        let Row { entry, task, origin, holder, .. } = self.net.rows[row];
        let course = self.net.courses[entry].clone();
        let mut steps = Vec::with_capacity(course.len());
        for part in &course {
            let mut step = Step { activity: part.activity, ..Step::default() };
            for (side, times) in [part.before, part.after].into_iter().enumerate() {
                if times > 0.0 {
                    let origin = if side == 0 { origin } else { self.origin(Origin::After(task)) };
                    step.sides[side] = self.side(part.activity, origin, times);
                }
            }
            steps.push(step);
        }
        let own = &model.entries[entry];
        let forwards: Vec<(usize, f64)> = own
            .forwards
            .iter()
            .filter(|(_, share)| *share > 0.0)
            .map(|(to, share)| (self.row(to.0, origin, holder), *share))
            .collect();
        let own = &mut self.net.rows[row];
        (own.steps, own.forwards) = (steps, forwards);
    }

    fn side(&mut self, activity: usize, origin: usize, times: f64) -> Side {
        let model = self.net.model;
        let own = &model.activities[activity];
        let task = &model.tasks[own.task.0];
        let station = model.tasks.len() + task.processor.0;
        let ranked = matches!(self.net.stations[station].rule, Rule::HeadOfLine | Rule::Preemptive);
        let work = self.slot(station, origin, own.task.0, if ranked { task.priority } else { 0 });
        let mut calls = Vec::with_capacity(own.calls.len());
        for call in &own.calls {
            let to = call.entry.0;
            let row = if call.waits {
                self.row(to, origin, own.task.0)
            } else {
                let sent = self.origin(Origin::Sent(to));
                let row = self.row(to, sent, NOBODY);
                if self.net.starts[sent].is_empty() {
                    self.net.starts[sent].push((row, 1.0));
                }
                row
            };
            calls.push((row, call.count, call.waits));
        }
        Side { times, work, calls }
    }
}

/// Is there a graph of activities in it?
pub(super) fn is_graph(model: &Model, entry: usize) -> bool {
    matches!(model.entries[entry].body, Body::Graph(_))
}
