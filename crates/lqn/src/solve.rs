//! The analytic solver: it computes the same numbers as a simulation without randomness, in about a
//! thousandth of the time. Its error is some percent, where that of a simulation is its interval.
//!
//! The solution is a fixed point over all stations at once, without layers, in the manner of approximate mean
//! value analysis (Schweitzer 1979; Chandy and Neuse, Linearizer, 1982). Each iteration consists of these
//! steps:
//!
//! 1. Throughputs determine the flows; `network` describes who calls whom on whose behalf.
//! 2. Flows and service times determine the numbers of requests at each station, and those the waiting times
//!    (`queue`).
//! 3. Waiting times determine the service times (`service_times`).
//! 4. The time of a client's cycle determines its throughput, by Little's law.
//!
//! Three corrections go beyond the basic method:
//!
//! - Each request is on behalf of a client (or of arrivals from outside, of second phases, or of calls
//!   without a reply), on whatever path it came. So a client does not meet itself on another path (interlock;
//!   Franks, Performance analysis of distributed server systems, 1999, chapter 5). And no more requests meet
//!   than there are threads to carry them.
//! - A task with several threads holds each for longer, the more of them are busy, as far as they meet
//!   again at lower stations. The waiting of its threads is divided by the origin of the work there.
//! - A task that continues after its reply makes its caller wait if that returns soon. The time until its
//!   return is followed through the caller's activities (`overtake`).
//!
//! Impossible results are removed at the end: if a processor or a task would be busier than possible,
//! throughputs are reduced.

use std::collections::{BTreeMap, BTreeSet};

use crate::Model;
use crate::model::{ActivityId, CallOrder, EntryId, RoutingPolicy, TaskId, TaskRole};
use crate::replicas::ExpandedModel;
use crate::simulate::{EntryResults, Estimate, ModelResults, ProcessorResults, TaskResults};
use network::{SolverNetwork, WorkOrigin};
use service_times::RowTimes;
use stations::StationUse;

mod bounds;
mod detail;
mod forks;
mod network;
mod non_exponential_server;
mod overtake;
mod phased;
mod policy_gain;
mod population_mix;
mod queue;
mod service_times;
mod split;
mod stations;
mod variance_correction;
mod visits;

/// The convergence of a solution.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct Convergence {
    /// Whether the numbers are consistent; if not, they are those of the last iteration.
    pub converged: bool,
    /// The number of iterations.
    pub iterations: u32,
    /// The greatest relative change of a throughput or of a waiting time in the last iteration.
    pub residual: f64,
    /// Whether the arrivals from outside exceed the capacity. Waiting times are then infinite and the results
    /// meaningless.
    pub overloaded: bool,
}

/// The largest number of iterations. Several hundred are needed if most requests wait for threads that
/// continue after their reply.
const MAX_ITERATIONS: u32 = 1_000;
/// The greatest relative change at convergence.
const TOLERANCE: f64 = 1e-5;

/// The state of the iteration.
struct SolverState {
    /// The throughput of each origin: cycles of its clients, requests from outside, or calls, per unit of
    /// time.
    throughputs: Vec<f64>,
    /// The rate of requests of each row.
    rates: Vec<f64>,
    /// The rate of requests of each entry.
    entries: Vec<f64>,
    times: Vec<RowTimes>,
    slots: Vec<SlotState>,
    memories: Vec<queue::StationMemory>,
    /// The memory of each slot whose source sees the station differently from others.
    slot_memories: Vec<queue::StationMemory>,
    /// The mean number of waiting threads of each task.
    waiting: Vec<f64>,
}

/// The state of an origin at a station.
#[derive(Clone, Copy, Debug, Default)]
struct SlotState {
    rate: f64,
    /// Per unit of time: the time for which servers are held, the sum of its squares, and the part before the
    /// reply.
    held: f64,
    squares: f64,
    first: f64,
    /// The waiting time, or on a shared processor the delay relative to the work.
    wait: f64,
    wait_variance: f64,
    stretch: f64,
    /// The requests that arrive while their thread's previous request is still in its second phase.
    overtaking: overtake::OvertakingShare,
}

/// Solves a model. Always returns results; [`Convergence`] shows whether they are valid.
pub fn solve(model: &Model) -> (ModelResults, Convergence) {
    let expanded = ExpandedModel::of(model);
    let model = &*split::apply_policy_splits(&expanded.model);
    let net = SolverNetwork::new(model);
    let station_use = StationUse::new(&net);
    let mut state = SolverState::new(&net);
    let mut convergence =
        Convergence { converged: false, iterations: 0, residual: f64::INFINITY, overloaded: false };
    let mut step = 0.6;
    let mut converged_count = 0;
    while convergence.iterations < MAX_ITERATIONS {
        convergence.iterations += 1;
        service_times::update_service_times(&net, &mut state);
        let throughput_change = state.update_throughputs(&net, convergence.iterations == 1);
        state.update_flows(&net);
        if convergence.iterations == 1 {
            state.start(&net);
        }
        let waiting_change = stations::update_waiting(&net, &station_use, &mut state, step);
        let previous_residual = convergence.residual;
        convergence.residual = throughput_change.max(waiting_change);
        if !convergence.residual.is_finite() {
            break;
        }
        converged_count = if convergence.residual < TOLERANCE { converged_count + 1 } else { 0 };
        if converged_count >= 2 {
            convergence.converged = !net.is_truncated;
            break;
        }
        // If the iteration oscillates, the steps become smaller.
        let max_step = (40.0 / f64::from(convergence.iterations)).clamp(0.05, 0.8);
        if convergence.iterations > 8 {
            step = (if convergence.residual > previous_residual { step * 0.85 } else { step * 1.02 })
                .clamp(0.05, max_step);
        }
    }
    service_times::update_service_times(&net, &mut state);
    state.update_throughputs(&net, false);
    state.update_flows(&net);
    state.reduce_to_capacity(&net);
    convergence.overloaded = state.memories.iter().any(|memory| memory.overloaded) || state.is_above(&net);
    convergence.converged &= !convergence.overloaded;
    (expanded.average_replicas(findings(&net, &state, &convergence)), convergence)
}

/// Returns the name of an entry if the model is overloaded by requests from outside: of the first one with
/// arrivals. Returns `None` if there are queue limits, timeouts or retries, which limit the queues.
pub fn overloaded_entry(model: &Model) -> Option<String> {
    let entry = model.entries.iter().find(|entry| entry.arrivals > 0.0)?;
    (!model.has_limits() && solve(model).1.overloaded).then(|| entry.name.clone())
}

/// Returns the parts of a model that the solver ignores, one sentence each.
pub fn ignored_parts(model: &Model) -> Vec<String> {
    let mut ignored = Vec::new();
    for entry in model.entries.iter().filter(|entry| entry.forwards.len() > 1) {
        let (Some(routing), name) = (entry.routing, model.describe(&entry.name)) else { continue };
        // The solver covers the split among equal targets, and current loads.
        if routing.max_age > 0.0 {
            ignored.push(format!("that the loads by which {name} goes are {} old", routing.max_age));
        }
        if routing.policy.uses_loads() && !split::are_targets_alike(model, entry) {
            ignored.push(format!(
                "that what {name} sends to whom changes with the load, as those are not alike to whom it \
                forwards"
            ));
        }
        if routing.policy == RoutingPolicy::FirstAvailable && !split::is_first_unlimited(model, entry) {
            ignored.push(format!("that {name} fills one before it sends anything to the next"));
        }
        if matches!(routing.policy, RoutingPolicy::RoundRobin | RoutingPolicy::Weighted) {
            ignored.push(format!("that the turns of {name} come more evenly than chance"));
        }
    }
    for task in batched_priority_tasks(model) {
        let name = model.describe(&model.tasks[task.0].name);
        ignored.push(format!("that calls come in bunches to {name}, which serves by priority"));
    }
    for task in model.tasks.iter().filter(|task| task.queue_limit.is_some()) {
        ignored.push(format!("the limit of the queue of {}", model.describe(&task.name)));
    }
    for (index, activity) in model.activities.iter().enumerate() {
        for call in activity.calls.iter().filter(|call| call.retry_policy.is_some()) {
            let (from, to) = (
                model.describe_activity(ActivityId(index)),
                model.describe(&model.entries[call.entry.0].name),
            );
            // To the author, the balancer's entry that chooses a member of a group is that group.
            let to = if from == to { "its members".to_owned() } else { to };
            ignored.push(format!("the patience of the calls from {from} to {to}"));
        }
    }
    ignored
}

/// Returns the tasks that receive requests of several priorities, some of them in random batches.
fn batched_priority_tasks(model: &Model) -> Vec<TaskId> {
    // For each task that serves by priority: the priorities, and whether some requests are random.
    let mut callers: BTreeMap<TaskId, (BTreeSet<i32>, bool)> = BTreeMap::new();
    let mut record_caller = |entry: EntryId, caller_priority: i32, is_random: bool| {
        let entry_data = &model.entries[entry.0];
        if network::is_ranked(&model.tasks[entry_data.task.0]) {
            let (ranks, is_batched) = callers.entry(entry_data.task).or_default();
            ranks.insert(caller_priority.saturating_add(entry_data.priority));
            *is_batched |= is_random;
        }
    };
    for activity in &model.activities {
        let caller_priority = model.tasks[activity.task.0].priority;
        activity.calls.iter().for_each(|call| {
            record_caller(call.entry, caller_priority, activity.order == CallOrder::Stochastic)
        });
    }
    // A forwarded request may come from any task.
    let (min_priority, max_priority) =
        model.tasks.iter().fold((0, 0), |(lowest, highest): (i32, i32), task| {
            (lowest.min(task.priority), highest.max(task.priority))
        });
    for (index, entry) in model.entries.iter().enumerate() {
        if entry.arrivals > 0.0 {
            record_caller(EntryId(index), 0, false);
        }
        entry.forwards.iter().for_each(|(to, _)| {
            record_caller(*to, min_priority, true);
            record_caller(*to, max_priority, true);
        });
    }
    callers
        .into_iter()
        .filter(|(_, (ranks, is_batched))| *is_batched && ranks.len() > 1)
        .map(|(task, _)| task)
        .collect()
}

impl SolverState {
    fn new(net: &SolverNetwork<'_>) -> Self {
        let throughput = |origin: &WorkOrigin| match origin {
            WorkOrigin::External(entry) => net.model.entries[*entry].arrivals,
            _ => 0.0,
        };
        Self {
            throughputs: net.origins.iter().map(throughput).collect(),
            rates: vec![0.0; net.rows.len()],
            entries: vec![0.0; net.model.entries.len()],
            times: vec![RowTimes::default(); net.rows.len()],
            slots: vec![SlotState::default(); net.slots.len()],
            memories: vec![queue::StationMemory::default(); net.stations.len()],
            slot_memories: vec![queue::StationMemory::default(); net.slots.len()],
            waiting: vec![0.0; net.model.tasks.len()],
        }
    }

    /// Computes the throughputs of clients from their cycle times; returns the greatest relative change.
    fn update_throughputs(&mut self, net: &SolverNetwork<'_>, first: bool) -> f64 {
        let mut max_change = 0.0_f64;
        for (index, origin) in net.origins.iter().enumerate() {
            let WorkOrigin::Client(task) = origin else { continue };
            let time = think(net.model, *task) + self.response(net, index);
            let clients = net.active_threads[*task];
            let throughput = if time > 0.0 { clients / time } else { 0.0 };
            let previous = self.throughputs[index];
            if !first && throughput > 0.0 {
                max_change = max_change.max((throughput - previous).abs() / throughput);
            }
            self.throughputs[index] = throughput;
        }
        if first { 1.0 } else { max_change }
    }

    /// Returns the cycle time without the think time.
    fn response(&self, net: &SolverNetwork<'_>, origin: usize) -> f64 {
        net.first_rows[origin].iter().map(|(row, share)| share * self.times[*row].first.mean).sum()
    }

    /// Computes the flows from the throughputs.
    fn update_flows(&mut self, net: &SolverNetwork<'_>) {
        self.rates.iter_mut().chain(&mut self.entries).for_each(|rate| *rate = 0.0);
        for slot in &mut self.slots {
            (slot.rate, slot.held, slot.squares, slot.first) = (0.0, 0.0, 0.0, 0.0);
        }
        self.waiting.iter_mut().for_each(|waiting| *waiting = 0.0);
        let mut async_rates = vec![0.0; net.origins.len()];
        for (origin, starts) in net.first_rows.iter().enumerate() {
            for (row, share) in starts {
                self.rates[*row] += self.throughputs[origin] * share;
            }
        }
        for row_index in &net.order {
            let row = &net.rows[*row_index];
            let rate = self.rates[*row_index];
            if rate <= 0.0 {
                continue;
            }
            self.entries[row.entry] += rate;
            let RowTimes { first, second, .. } = self.times[*row_index];
            let total = first.plus(second);
            let slot = &mut self.slots[row.queue];
            slot.rate += rate;
            slot.held += rate * total.mean;
            slot.squares += rate * (total.variance + total.mean * total.mean);
            slot.first += rate * first.mean;
            self.waiting[row.task] += rate * total.waiting;
            for step in &row.activities {
                let activity = &net.model.activities[step.activity];
                for side in step.sides.iter().filter(|side| side.executions > 0.0) {
                    let rate = rate * side.executions;
                    let slice_count = 1.0 + activity.calls.iter().map(|call| call.count).sum::<f64>();
                    let processor = net.model.tasks[row.task].processor.0;
                    let slice = activity.demand / net.model.processors[processor].speed / slice_count;
                    if slice > 0.0 {
                        let slot = &mut self.slots[side.work];
                        slot.rate += rate * slice_count;
                        slot.held += rate * slice_count * slice;
                        slot.squares += rate * slice_count * slice * slice * (1.0 + activity.variation);
                        slot.first += rate * slice_count * slice;
                    }
                    for (to, count, waits) in &side.calls {
                        if *waits {
                            self.rates[*to] += rate * count;
                        } else {
                            async_rates[net.rows[*to].origin] += rate * count;
                        }
                    }
                }
            }
            for (to, share) in &row.forwards {
                self.rates[*to] += rate * share;
            }
        }
        for (origin, rate) in async_rates.into_iter().enumerate() {
            if let WorkOrigin::AsyncCalls(_) = net.origins[origin] {
                self.throughputs[origin] = rate;
            }
        }
    }

    /// Returns the mean number of busy servers at a station.
    fn busy_servers(&self, net: &SolverNetwork<'_>, station: usize) -> f64 {
        net.stations[station].slots.iter().map(|slot| self.slots[*slot].held).sum()
    }

    /// Limits the initial throughput of clients to the capacity of the narrowest station.
    fn start(&mut self, net: &SolverNetwork<'_>) {
        let highest = (0..net.stations.len())
            .map(|station| self.busy_servers(net, station) / net.stations[station].servers)
            .fold(0.0, f64::max);
        if highest > 0.95 {
            self.scale_throughputs(net, 0.95 / highest);
        }
    }

    fn scale_throughputs(&mut self, net: &SolverNetwork<'_>, factor: f64) {
        for (origin, throughput) in net.origins.iter().zip(&mut self.throughputs) {
            if let WorkOrigin::Client(_) | WorkOrigin::AsyncCalls(_) = origin {
                *throughput *= factor;
            }
        }
        self.update_flows(net);
    }

    /// Reduces the throughputs of clients until no station is above its capacity, as far as that depends on
    /// clients.
    fn reduce_to_capacity(&mut self, net: &SolverNetwork<'_>) {
        // Each iteration relieves at least one station; calls without a reply follow one iteration later.
        for _ in 0..4 {
            let load_ratio = |state: &Self, station: usize| {
                state.busy_servers(net, station) / net.stations[station].servers
            };
            let highest =
                (0..net.stations.len()).map(|station| load_ratio(self, station)).fold(0.0, f64::max);
            if highest <= 1.0 || highest.is_nan() {
                return;
            }
            self.scale_throughputs(net, 1.0 / highest);
        }
    }

    fn is_above(&self, net: &SolverNetwork<'_>) -> bool {
        (0..net.stations.len())
            .any(|station| self.busy_servers(net, station) > net.stations[station].servers * (1.0 + 1e-9))
    }
}

fn think(model: &Model, task: usize) -> f64 {
    match model.tasks[task].role {
        TaskRole::Client { think } => think,
        TaskRole::Server { .. } => 0.0,
    }
}

fn findings(net: &SolverNetwork<'_>, state: &SolverState, convergence: &Convergence) -> ModelResults {
    let model = net.model;
    // The sum of an empty list is a negative zero.
    let exact =
        |mean: f64| Estimate { mean: if mean.is_finite() { mean + 0.0 } else { 0.0 }, half_width: 0.0 };
    let mut rates = vec![0.0; model.entries.len()];
    let mut waits = vec![0.0; model.entries.len()];
    let mut services = vec![0.0; model.entries.len()];
    let mut responses = vec![None; model.entries.len()];
    for (row, (rate, times)) in net.rows.iter().zip(state.rates.iter().zip(&state.times)) {
        rates[row.entry] += rate;
        waits[row.entry] += rate * state.slots[row.queue].wait;
        services[row.entry] += rate * times.first.mean;
        if net.origins[row.origin] == WorkOrigin::External(row.entry) {
            responses[row.entry] = Some(times.response.mean);
        }
    }
    let mut clients: Vec<Option<usize>> = vec![None; model.tasks.len()];
    for (index, origin) in net.origins.iter().enumerate() {
        if let WorkOrigin::Client(task) = origin {
            clients[*task] = Some(index);
        }
    }
    let tasks = model.tasks.iter().enumerate().map(|(index, task)| {
        let client = clients[index].map(|origin| state.throughputs[origin]);
        let entry_throughput = || -> f64 { task.entries.iter().map(|entry| rates[entry.0]).sum() };
        let throughput = client.unwrap_or_else(entry_throughput);
        let response = client.map(|throughput| {
            // The time after throughputs were reduced.
            if throughput > 0.0 { net.active_threads[index] / throughput - think(model, index) } else { 0.0 }
        });
        let busy = match response {
            Some(response) => throughput * response,
            None => state.busy_servers(net, index).min(net.stations[index].servers),
        };
        TaskResults {
            name: task.name.clone(),
            throughput: exact(throughput),
            busy: exact(busy),
            response: response.map(exact),
            percentiles: None,
            goodput: None,
        }
    });
    let entries = model.entries.iter().enumerate().map(|(index, entry)| {
        let per_request = |sum: f64| exact(if rates[index] > 0.0 { sum / rates[index] } else { 0.0 });
        EntryResults {
            name: entry.name.clone(),
            throughput: exact(rates[index]),
            service: per_request(services[index]),
            waiting: per_request(waits[index]),
            response: responses[index].map(exact),
            percentiles: None,
            goodput: None,
            failures: None,
        }
    });
    let processors = model.processors.iter().enumerate().map(|(index, processor)| {
        let station = model.tasks.len() + index;
        let busy = state.busy_servers(net, station).min(net.stations[station].servers);
        ProcessorResults { name: processor.name.clone(), busy: exact(busy) }
    });
    let (activities, calls) = detail::activity_results(net, state);
    ModelResults {
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
