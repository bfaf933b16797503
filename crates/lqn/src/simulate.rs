//! The discrete-event simulation of a model.
//!
//! A run begins with a warm-up that is not counted, because clients start all at once and queues are empty.
//! It ends when the rule of `warmup` finds no initial bias left. Then come batches of equal time. The
//! interval of a number follows from the variance between batches (Student's t for their means, which is
//! valid if a batch is much longer than the system's memory). Batches are doubled, by joining neighbours,
//! until the intervals are as narrow as requested or the number of events is reached.
//!
//! A long simulation consists of several such runs ([`Replication`]), each with its own random numbers, that
//! are evaluated together. Their number depends on the effort alone. So they may run on any number of cores
//! with results that are equal to the bit.

use serde::Serialize;

use crate::Model;

mod compiled;
mod engine;
mod histogram;
mod replications;
mod results;
mod rng;
mod routing;
mod station;
mod statistics;
mod streams;
mod warmup;

pub use replications::Replication;

/// The extent of a simulation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SimulationEffort {
    /// The random seed; equal seeds give equal results.
    pub seed: u64,
    /// The largest number of events, including the warm-up; at least 20,000 are simulated. There is one run
    /// per million.
    pub events: u64,
    /// The relative half-width of the 95 % intervals of all throughputs and response times at which the
    /// simulation ends early.
    pub precision: f64,
}

impl Default for SimulationEffort {
    fn default() -> Self {
        Self { seed: 1, events: 20_000_000, precision: 0.01 }
    }
}

/// A number with its confidence interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Estimate {
    /// The mean over the batches.
    pub mean: f64,
    /// Half the width of the 95 % interval.
    pub half_width: f64,
}

/// The results of a simulation.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ModelResults {
    /// The tasks, in the order of the model.
    pub tasks: Vec<TaskResults>,
    /// The entries, in the order of the model.
    pub entries: Vec<EntryResults>,
    /// The processors, in the order of the model.
    pub processors: Vec<ProcessorResults>,
    /// The activities, in the order of the model.
    pub activities: Vec<ActivityResults>,
    /// The calls: first those of each activity, then those of each entry that forwards, in the order of the
    /// model. A simulation, which does not record waiting per call, returns none.
    pub calls: Vec<CallResults>,
    /// The number of simulated events.
    pub events: u64,
    /// The simulated time after the warm-up, in the model's unit.
    pub time: f64,
    /// The number of batches.
    pub batches: usize,
    /// The number of independent runs; 0 without simulation.
    pub runs: usize,
    /// The time of all warm-ups, which is not counted.
    pub warm_up: f64,
    /// Whether no initial bias was left after the warm-up.
    pub settled: bool,
    /// Whether the simulation ended because the intervals were narrow enough.
    pub precise: bool,
    /// The names of clients that finished no cycle, and of entries that replied to no request from outside,
    /// in all that time. Their response times are unknown, and their throughput is only known to be below
    /// `3 / time` ([`ModelResults::time`]).
    pub unseen: Vec<String>,
}

/// The results of a task.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TaskResults {
    /// The name.
    pub name: String,
    /// The rate of client cycles, or of requests taken by threads, per unit of time.
    pub throughput: Estimate,
    /// The mean number of busy threads, or of clients that do not think.
    pub busy: Estimate,
    /// The mean response time of clients, from the start of a cycle to its end, without the think time;
    /// `None` if no cycle ended ([`ModelResults::unseen`]).
    pub response: Option<Estimate>,
    /// The percentiles of the response time.
    pub percentiles: Option<TimeQuantiles>,
    /// The rate of client cycles without a failed call, per unit of time; only where calls can fail
    /// ([`Model::has_limits`]).
    pub goodput: Option<Estimate>,
}

/// The percentiles of a time, accurate to 1.6 %.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct TimeQuantiles {
    /// The median.
    pub p50: f64,
    /// The 95th percentile.
    pub p95: f64,
    /// The 99th percentile.
    pub p99: f64,
}

/// The results of an entry.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct EntryResults {
    /// The name.
    pub name: String,
    /// The rate of requests, per unit of time.
    pub throughput: Estimate,
    /// The mean service time: from the start on a thread until the reply or the forwarding.
    pub service: Estimate,
    /// The mean waiting time: from the arrival until a thread takes the request.
    pub waiting: Estimate,
    /// The mean response time of requests from outside, from the arrival until the reply, including
    /// forwarding; `None` if there was no reply.
    pub response: Option<Estimate>,
    /// The percentiles of the response time.
    pub percentiles: Option<TimeQuantiles>,
    /// The rate of requests from outside without a failed call, per unit of time; only where calls can fail.
    pub goodput: Option<Estimate>,
    /// The failures; only where calls can fail.
    pub failures: Option<FailureRates>,
}

/// The rates of requests without a reply, or without one in time, per unit of time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct FailureRates {
    /// The requests that arrived at the entry, including retries.
    pub offered: Estimate,
    /// The requests that were refused because the queue was at its limit.
    pub refusals: Estimate,
    /// The calls to it that timed out; if it forwards, they count here.
    pub timeouts: Estimate,
    /// The calls to it that were retried.
    pub retries: Estimate,
}

/// The results of a processor.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ProcessorResults {
    /// The name.
    pub name: String,
    /// The mean number of busy cores.
    pub busy: Estimate,
}

/// The results of a phase or an activity.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ActivityResults {
    /// The name.
    pub name: String,
    /// The rate of executions, per unit of time.
    pub throughput: Estimate,
    /// The mean time of an execution: demand, waiting for the processor, calls and think time.
    pub service: Estimate,
}

/// The results of a call, or of a request that an entry forwards.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CallResults {
    /// The activity that calls, or the entry that forwards.
    pub from: String,
    /// The called entry.
    pub to: String,
    /// The mean waiting time, from the arrival there until a thread takes the request.
    pub waiting: Estimate,
    /// The mean response time, from the arrival there until the reply, including forwarding.
    pub response: Estimate,
}

/// The reason why a simulation cannot end, with the model's time if known.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum SimulationError {
    /// No event is left.
    #[error("at {0}: nothing more happens: everything waits for something else")]
    NoEvents(f64),
    /// The model goes on without time passing.
    #[error("at {0}: more and more is done and takes no time; give some work or some time to think")]
    NoProgress(f64),
    /// The number of requests grows without limit.
    #[error("at {0}: more and more requests are under way: more comes than can be served")]
    UnboundedGrowth(f64),
    /// The queue would grow without limit according to the analytic solution; the simulation was too short to
    /// show it.
    #[error("more comes from outside than can be served: what waits there grows without end")]
    Overload,
}

/// The initial number of batches, also that at which neighbours are joined.
const BATCHES: usize = 20;
/// The least number of events of a simulation.
const MIN_EVENTS: u64 = 20_000;

/// Simulates a model.
///
/// # Errors
/// Returns an error if the simulation cannot continue or never ends.
pub fn simulate(model: &Model, effort: &SimulationEffort) -> Result<ModelResults, SimulationError> {
    simulate_on(model, effort, &|replications| replications.iter_mut().for_each(Replication::run_step))
}

/// Simulates a model on several cores. `cores` gets replications and calls
/// [`run_step`](Replication::run_step) of each once, in any order, also in parallel.
///
/// # Errors
/// Returns an error if the simulation cannot continue or never ends.
pub fn simulate_on(
    model: &Model,
    effort: &SimulationEffort,
    run_all: &dyn Fn(&mut [Replication<'_>]),
) -> Result<ModelResults, SimulationError> {
    // The shortest run is a tenth of the longest, which saves time if it suffices.
    let (warm_up_events, count) =
        ([effort.events / 10, effort.events.max(MIN_EVENTS) / 2], effort.run_count());
    replications::run_replications(model, effort, warm_up_events, count, run_all, &mut || true)
}

/// Simulates a model until `goes_on`, called between batches, returns `false`, but at least about 25,000
/// events.
///
/// # Errors
/// Returns an error if the simulation cannot continue or never ends.
pub fn simulate_while(
    model: &Model,
    effort: &SimulationEffort,
    should_continue: &mut dyn FnMut() -> bool,
) -> Result<ModelResults, SimulationError> {
    let run_in_turn =
        |replications: &mut [Replication<'_>]| replications.iter_mut().for_each(Replication::run_step);
    replications::run_replications(
        model,
        effort,
        [SHORT_EVENTS, LONG_EVENTS],
        1,
        &run_in_turn,
        should_continue,
    )
}

/// The number of events of the shortest run without a given end.
const SHORT_EVENTS: u64 = 50_000;
/// The largest number of events of its warm-up, if the initial bias does not vanish before.
const LONG_EVENTS: u64 = 160_000;
/// The number of events per run, and the largest number of runs.
const EVENTS_PER_RUN: u64 = 1_000_000;
const MAX_RUNS: u64 = 64;

impl SimulationEffort {
    /// Returns the number of runs for this effort.
    pub fn run_count(&self) -> usize {
        (self.events / EVENTS_PER_RUN).clamp(1, MAX_RUNS) as usize
    }
}
