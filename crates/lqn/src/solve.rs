//! The model, solved: the same numbers as a simulation's, without chance, in about a thousandth of the time, and off by
//! some percent where a simulation is off by its interval.
//!
//! A fixed point (in the manner of approximate mean value analysis: Schweitzer 1979; Chandy and Neuse, Linearizer, 1982)
//! over all stations at once, without layers. From throughputs follow flows (`net` says who calls whom on whose
//! behalf), from flows and the times that things take, how many of whom are at each station, from that how long each
//! waits there (`queue`), from waiting how long things take (`elapsed`), and from the time of a client's round its
//! throughput, by Little's law.
//!
//! - A request is on behalf of a client (or of arrivals from outside, of second phases, of calls that nobody waits for),
//!   whatever the way on which it came. So a client does not meet itself on another way (interlock; Franks, Performance
//!   analysis of distributed server systems, 1999, chapter 5), and no more can meet than there are threads to carry them.
//! - A task with several threads holds each the longer, the more of them are at work, as far as they meet one another
//!   further down: what its threads wait for is split by whose work is there.
//! - A task that goes on after it has answered makes its caller wait if that is soon back: how soon it is, is followed
//!   through what the caller does (`overtake`).
//!
//! What cannot be is taken away at the end: where a processor or a task would be busier than it can be, throughputs are
//! lowered until it is not.

use std::collections::{BTreeMap, BTreeSet};

use crate::Model;
use crate::model::{ActivityId, EntryId, Order, Policy, Role, TaskId};
use crate::replicas::Flat;
use crate::simulate::{EntryFinding, Estimate, Findings, ProcessorFinding, TaskFinding};
use elapsed::Times;
use net::{Net, Origin};
use stations::Reach;

mod bounds;
mod detail;
mod elapsed;
mod forks;
mod mix;
mod net;
mod overtake;
mod phased;
mod queue;
mod relief;
mod split;
mod spread;
mod stations;
mod uneven;
mod visits;

/// How a solution came about.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct Convergence {
    /// Do the numbers hold together? If not, they are the last ones that were tried.
    pub converged: bool,
    /// Rounds.
    pub iterations: u32,
    /// Greatest change of a throughput or of the time of a round in the last one, as a part of it.
    pub residual: f64,
    /// More comes from outside than can be served: its waiting has no end, and what is said of it means nothing.
    pub overloaded: bool,
}

/// Rounds at most. Where most wait for threads that go on after they have answered, several hundred are needed.
const MOST: u32 = 1_000;
/// It has converged when nothing changes by more than this part.
const CLOSE: f64 = 1e-5;

/// Where the solver is.
struct State {
    /// Of each origin: rounds of its clients, requests from outside, calls, per unit of time.
    throughputs: Vec<f64>,
    /// Requests of each row per unit of time.
    rates: Vec<f64>,
    /// Requests of each entry per unit of time.
    entries: Vec<f64>,
    times: Vec<Times>,
    slots: Vec<Place>,
    memories: Vec<queue::Memory>,
    /// What is remembered of each slot whose source sees the station otherwise than others do.
    own: Vec<queue::Memory>,
    /// Threads of each task that wait for somebody, in the mean.
    waiting: Vec<f64>,
}

/// An origin at a station.
#[derive(Clone, Copy, Debug, Default)]
struct Place {
    rate: f64,
    /// Per unit of time: time that servers are held, the sum of its squares, and of what is before the answer.
    held: f64,
    squares: f64,
    first: f64,
    /// Waiting, or on a shared processor by what part of its work each is held up.
    wait: f64,
    wait_variance: f64,
    stretch: f64,
    /// Of those that come while what their thread asked for before goes on.
    back: overtake::Back,
}

/// Solves a model. It always has an answer; whether that is one, [`Convergence`] says.
pub fn solve(model: &Model) -> (Findings, Convergence) {
    let flat = Flat::of(model);
    let model = &*split::split(&flat.model);
    let net = Net::new(model);
    let reach = Reach::new(&net);
    let mut state = State::new(&net);
    let mut found =
        Convergence { converged: false, iterations: 0, residual: f64::INFINITY, overloaded: false };
    let mut step = 0.6;
    let mut quiet = 0;
    while found.iterations < MOST {
        found.iterations += 1;
        elapsed::work_out(&net, &mut state);
        let moved = state.rounds(&net, found.iterations == 1);
        state.flow(&net);
        if found.iterations == 1 {
            state.start(&net);
        }
        let shifted = stations::wait(&net, &reach, &mut state, step);
        let before = found.residual;
        found.residual = moved.max(shifted);
        if !found.residual.is_finite() {
            break;
        }
        quiet = if found.residual < CLOSE { quiet + 1 } else { 0 };
        if quiet >= 2 {
            found.converged = !net.crowded;
            break;
        }
        // Where it swings, smaller steps.
        let most = (40.0 / f64::from(found.iterations)).clamp(0.05, 0.8);
        if found.iterations > 8 {
            step = (if found.residual > before { step * 0.85 } else { step * 1.02 }).clamp(0.05, most);
        }
    }
    elapsed::work_out(&net, &mut state);
    state.rounds(&net, false);
    state.flow(&net);
    state.lower(&net);
    found.overloaded = state.memories.iter().any(|memory| memory.overloaded) || state.is_above(&net);
    found.converged &= !found.overloaded;
    (flat.one_of_each(findings(&net, &state, &found)), found)
}

/// The entry to which more comes from outside than can be served, as far as formulas can tell; one of several. None where limits of
/// queues, or of patience, keep what is too much from piling up.
pub fn overload(model: &Model) -> Option<String> {
    let entry = model.entries.iter().find(|entry| entry.arrivals > 0.0)?;
    (!model.has_limits() && solve(model).1.overloaded).then(|| entry.name.clone())
}

/// What is in a model and not in the formulas, which go on as if it were not there: one sentence each.
pub fn left_out(model: &Model) -> Vec<String> {
    let mut all = Vec::new();
    for entry in model.entries.iter().filter(|entry| entry.forwards.len() > 1) {
        let (Some(routing), name) = (entry.routing, model.called(&entry.name)) else { continue };
        // Splits among alike targets are in the formulas, and loads of the moment.
        if routing.age > 0.0 {
            all.push(format!("that the loads by which {name} goes are {} old", routing.age));
        }
        if routing.policy.looks_at_loads() && !split::are_alike(model, entry) {
            all.push(format!(
                "that what {name} sends to whom changes with the load, as those are not alike to whom it forwards"
            ));
        }
        if routing.policy == Policy::FirstAvailable && !split::first_has_all(model, entry) {
            all.push(format!("that {name} fills one before it sends anything to the next"));
        }
        if matches!(routing.policy, Policy::RoundRobin | Policy::Weighted) {
            all.push(format!("that the turns of {name} come more evenly than chance"));
        }
    }
    for task in bunched(model) {
        let name = model.called(&model.tasks[task.0].name);
        all.push(format!("that calls come in bunches to {name}, which serves by priority"));
    }
    for task in model.tasks.iter().filter(|task| task.queue_limit.is_some()) {
        all.push(format!("the limit of the queue of {}", model.called(&task.name)));
    }
    for (place, activity) in model.activities.iter().enumerate() {
        for call in activity.calls.iter().filter(|call| call.patience.is_some()) {
            let (from, to) =
                (model.called_activity(ActivityId(place)), model.called(&model.entries[call.entry.0].name));
            // A balancer's own part, which chooses among the members of a group, is that group to its author.
            let to = if from == to { "its members".to_owned() } else { to };
            all.push(format!("the patience of the calls from {from} to {to}"));
        }
    }
    all
}

/// Tasks to which requests of more than one priority come, some of them a random number of times in a row.
fn bunched(model: &Model) -> Vec<TaskId> {
    // Of each task by priority: the priorities, and whether some come by chance.
    let mut come: BTreeMap<TaskId, (BTreeSet<i32>, bool)> = BTreeMap::new();
    let mut comes = |entry: EntryId, asks: i32, by_chance: bool| {
        let own = &model.entries[entry.0];
        if net::is_ranked(&model.tasks[own.task.0]) {
            let (ranks, chance) = come.entry(own.task).or_default();
            ranks.insert(asks.saturating_add(own.priority));
            *chance |= by_chance;
        }
    };
    for activity in &model.activities {
        let asks = model.tasks[activity.task.0].priority;
        activity.calls.iter().for_each(|call| comes(call.entry, asks, activity.order == Order::Stochastic));
    }
    // Who asks where something is forwarded may be anybody.
    let (least, most) = model
        .tasks
        .iter()
        .fold((0, 0), |(least, most): (i32, i32), task| (least.min(task.priority), most.max(task.priority)));
    for (place, entry) in model.entries.iter().enumerate() {
        if entry.arrivals > 0.0 {
            comes(EntryId(place), 0, false);
        }
        entry.forwards.iter().for_each(|(to, _)| {
            comes(*to, least, true);
            comes(*to, most, true);
        });
    }
    come.into_iter().filter(|(_, (ranks, chance))| *chance && ranks.len() > 1).map(|(task, _)| task).collect()
}

impl State {
    fn new(net: &Net<'_>) -> Self {
        let throughput = |origin: &Origin| match origin {
            Origin::Open(entry) => net.model.entries[*entry].arrivals,
            _ => 0.0,
        };
        Self {
            throughputs: net.origins.iter().map(throughput).collect(),
            rates: vec![0.0; net.rows.len()],
            entries: vec![0.0; net.model.entries.len()],
            times: vec![Times::default(); net.rows.len()],
            slots: vec![Place::default(); net.slots.len()],
            memories: vec![queue::Memory::default(); net.stations.len()],
            own: vec![queue::Memory::default(); net.slots.len()],
            waiting: vec![0.0; net.model.tasks.len()],
        }
    }

    /// Throughputs of clients by the times of their rounds; by what part the most changed one did.
    fn rounds(&mut self, net: &Net<'_>, first: bool) -> f64 {
        let mut most = 0.0_f64;
        for (place, origin) in net.origins.iter().enumerate() {
            let Origin::Client(task) = origin else { continue };
            let time = think(net.model, *task) + self.response(net, place);
            let clients = net.active[*task];
            let throughput = if time > 0.0 { clients / time } else { 0.0 };
            let old = self.throughputs[place];
            if !first && throughput > 0.0 {
                most = most.max((throughput - old).abs() / throughput);
            }
            self.throughputs[place] = throughput;
        }
        if first { 1.0 } else { most }
    }

    /// The time of a round without the time to think.
    fn response(&self, net: &Net<'_>, origin: usize) -> f64 {
        net.starts[origin].iter().map(|(row, part)| part * self.times[*row].first.mean).sum()
    }

    /// Flows from throughputs.
    fn flow(&mut self, net: &Net<'_>) {
        self.rates.iter_mut().chain(&mut self.entries).for_each(|rate| *rate = 0.0);
        for slot in &mut self.slots {
            (slot.rate, slot.held, slot.squares, slot.first) = (0.0, 0.0, 0.0, 0.0);
        }
        self.waiting.iter_mut().for_each(|waiting| *waiting = 0.0);
        let mut sent = vec![0.0; net.origins.len()];
        for (origin, starts) in net.starts.iter().enumerate() {
            for (row, part) in starts {
                self.rates[*row] += self.throughputs[origin] * part;
            }
        }
        for place in &net.order {
            let row = &net.rows[*place];
            let rate = self.rates[*place];
            if rate <= 0.0 {
                continue;
            }
            self.entries[row.entry] += rate;
            let Times { first, second, .. } = self.times[*place];
            let whole = first.and(second);
            let slot = &mut self.slots[row.queue];
            slot.rate += rate;
            slot.held += rate * whole.mean;
            slot.squares += rate * (whole.variance + whole.mean * whole.mean);
            slot.first += rate * first.mean;
            self.waiting[row.task] += rate * whole.waits;
            for step in &row.steps {
                let own = &net.model.activities[step.activity];
                for side in step.sides.iter().filter(|side| side.times > 0.0) {
                    let rate = rate * side.times;
                    let pieces = 1.0 + own.calls.iter().map(|call| call.count).sum::<f64>();
                    let processor = net.model.tasks[row.task].processor.0;
                    let slice = own.demand / net.model.processors[processor].speed / pieces;
                    if slice > 0.0 {
                        let slot = &mut self.slots[side.work];
                        slot.rate += rate * pieces;
                        slot.held += rate * pieces * slice;
                        slot.squares += rate * pieces * slice * slice * (1.0 + own.variation);
                        slot.first += rate * pieces * slice;
                    }
                    for (to, count, waits) in &side.calls {
                        if *waits {
                            self.rates[*to] += rate * count;
                        } else {
                            sent[net.rows[*to].origin] += rate * count;
                        }
                    }
                }
            }
            for (to, part) in &row.forwards {
                self.rates[*to] += rate * part;
            }
        }
        for (origin, rate) in sent.into_iter().enumerate() {
            if let Origin::Sent(_) = net.origins[origin] {
                self.throughputs[origin] = rate;
            }
        }
    }

    /// Servers held at a station, in the mean.
    fn held(&self, net: &Net<'_>, station: usize) -> f64 {
        net.stations[station].slots.iter().map(|slot| self.slots[*slot].held).sum()
    }

    /// Clients begin no faster than the narrowest place allows.
    fn start(&mut self, net: &Net<'_>) {
        let busiest = (0..net.stations.len())
            .map(|station| self.held(net, station) / net.stations[station].servers)
            .fold(0.0, f64::max);
        if busiest > 0.95 {
            self.slow(net, 0.95 / busiest);
        }
    }

    fn slow(&mut self, net: &Net<'_>, by: f64) {
        for (origin, throughput) in net.origins.iter().zip(&mut self.throughputs) {
            if let Origin::Client(_) | Origin::Sent(_) = origin {
                *throughput *= by;
            }
        }
        self.flow(net);
    }

    /// Nothing is busier than it can be, as far as that is up to clients.
    fn lower(&mut self, net: &Net<'_>) {
        // Each time one place at least is no longer too busy; calls that nobody waits for follow a round later.
        for _ in 0..4 {
            let above =
                |state: &Self, station: usize| state.held(net, station) / net.stations[station].servers;
            let worst = (0..net.stations.len()).map(|station| above(self, station)).fold(0.0, f64::max);
            if worst <= 1.0 || worst.is_nan() {
                return;
            }
            self.slow(net, 1.0 / worst);
        }
    }

    fn is_above(&self, net: &Net<'_>) -> bool {
        (0..net.stations.len())
            .any(|station| self.held(net, station) > net.stations[station].servers * (1.0 + 1e-9))
    }
}

fn think(model: &Model, task: usize) -> f64 {
    match model.tasks[task].role {
        Role::Client { think } => think,
        Role::Server { .. } => 0.0,
    }
}

fn findings(net: &Net<'_>, state: &State, convergence: &Convergence) -> Findings {
    let model = net.model;
    // The sum of nothing is a negative zero.
    let sure =
        |mean: f64| Estimate { mean: if mean.is_finite() { mean + 0.0 } else { 0.0 }, half_width: 0.0 };
    let mut rates = vec![0.0; model.entries.len()];
    let mut waits = vec![0.0; model.entries.len()];
    let mut services = vec![0.0; model.entries.len()];
    let mut responses = vec![None; model.entries.len()];
    for (row, (rate, times)) in net.rows.iter().zip(state.rates.iter().zip(&state.times)) {
        rates[row.entry] += rate;
        waits[row.entry] += rate * state.slots[row.queue].wait;
        services[row.entry] += rate * times.first.mean;
        if net.origins[row.origin] == Origin::Open(row.entry) {
            responses[row.entry] = Some(times.response.mean);
        }
    }
    let mut clients: Vec<Option<usize>> = vec![None; model.tasks.len()];
    for (place, origin) in net.origins.iter().enumerate() {
        if let Origin::Client(task) = origin {
            clients[*task] = Some(place);
        }
    }
    let tasks = model.tasks.iter().enumerate().map(|(place, task)| {
        let client = clients[place].map(|origin| state.throughputs[origin]);
        let taken = || -> f64 { task.entries.iter().map(|entry| rates[entry.0]).sum() };
        let throughput = client.unwrap_or_else(taken);
        let response = client.map(|throughput| {
            // As it is after throughputs were lowered.
            if throughput > 0.0 { net.active[place] / throughput - think(model, place) } else { 0.0 }
        });
        let busy = match response {
            Some(response) => throughput * response,
            None => state.held(net, place).min(net.stations[place].servers),
        };
        TaskFinding {
            name: task.name.clone(),
            throughput: sure(throughput),
            busy: sure(busy),
            response: response.map(sure),
            percentiles: None,
            goodput: None,
        }
    });
    let entries = model.entries.iter().enumerate().map(|(place, entry)| {
        let each = |sum: f64| sure(if rates[place] > 0.0 { sum / rates[place] } else { 0.0 });
        EntryFinding {
            name: entry.name.clone(),
            throughput: sure(rates[place]),
            service: each(services[place]),
            waiting: each(waits[place]),
            response: responses[place].map(sure),
            percentiles: None,
            goodput: None,
            failures: None,
        }
    });
    let processors = model.processors.iter().enumerate().map(|(place, processor)| {
        let station = model.tasks.len() + place;
        let busy = state.held(net, station).min(net.stations[station].servers);
        ProcessorFinding { name: processor.name.clone(), busy: sure(busy) }
    });
    let (activities, calls) = detail::details(net, state);
    Findings {
        tasks: tasks.collect(),
        entries: entries.collect(),
        processors: processors.collect(),
        activities,
        calls,
        events: 0,
        time: 0.0,
        batches: 0,
        runs: 0,
        warm_up: 0.0,
        settled: true,
        precise: convergence.converged,
        unseen: Vec::new(),
    }
}
