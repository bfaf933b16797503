//! The model, played: what happens is drawn event by event, and what is of interest is counted.
//!
//! A run begins with a warm-up that is not counted: clients set out all at once, and queues are empty. It is over when the rule
//! of `settle` finds nothing left of that. Then come batches
//! of equal time; the interval of a number follows from how the batches differ (Student's t over their means, which is
//! right when a batch is much longer than whatever the system remembers). Batches are made twice as long, by joining
//! neighbours, until the intervals are as narrow as was asked for or as much has happened as may.
//!
//! What is long is several such runs ([`Replication`]), each with its own chance, that are counted together. How many follows from
//! the effort alone, so they can be played on any number of cores and find the same to the bit.

use serde::Serialize;

use crate::Model;

mod counted;
mod dice;
mod engine;
mod percentiles;
mod program;
mod route;
mod runs;
mod settle;
mod station;
mod streams;
mod tally;

pub use runs::Replication;

/// How much is simulated.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Effort {
    /// The same seed gives the same numbers.
    pub seed: u64,
    /// Events at most, the warm-up included; at least 20,000 are simulated. For each million there is a run of its own.
    pub events: u64,
    /// Half of the 95 % interval of every throughput and response time, as a part of it, at which it ends before.
    pub precision: f64,
}

impl Default for Effort {
    fn default() -> Self {
        Self { seed: 1, events: 20_000_000, precision: 0.01 }
    }
}

/// A number with its interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Estimate {
    /// Mean over the batches.
    pub mean: f64,
    /// Half of the interval in which the true mean is 95 times of 100.
    pub half_width: f64,
}

/// What a simulation found.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Findings {
    /// In the order of the model.
    pub tasks: Vec<TaskFinding>,
    /// In the order of the model.
    pub entries: Vec<EntryFinding>,
    /// In the order of the model.
    pub processors: Vec<ProcessorFinding>,
    /// In the order of the model.
    pub activities: Vec<ActivityFinding>,
    /// First those of each activity, then those of each entry that forwards, in the order of the model; none if simulated,
    /// which does not count who waited where.
    pub calls: Vec<CallFinding>,
    /// Events that were simulated.
    pub events: u64,
    /// Time that was simulated after the warm-up, in the model's unit.
    pub time: f64,
    /// Batches the intervals are made of.
    pub batches: usize,
    /// Runs with chance of their own that these come from; 0 if it is not simulated.
    pub runs: usize,
    /// Time before that, of all runs, that is not counted.
    pub warm_up: f64,
    /// Was nothing of how it began left after that?
    pub settled: bool,
    /// Did it end because the intervals were narrow enough?
    pub precise: bool,
    /// Clients that finished no round, and entries of whose requests from outside none was answered, in all that time: by
    /// name. Nothing is known of how long those take, and no more of their throughput than that it is below 3 over
    /// [`Findings::time`].
    pub unseen: Vec<String>,
}

/// Of a task.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TaskFinding {
    /// Its name.
    pub name: String,
    /// Rounds of clients, or requests taken by threads, per unit of time.
    pub throughput: Estimate,
    /// Threads that are busy, or clients that do not think, in the mean.
    pub busy: Estimate,
    /// Of clients: from when one sets out until it is done, without the time to think; none if none was done
    /// ([`Findings::unseen`]).
    pub response: Option<Estimate>,
    /// The same, percentiles.
    pub percentiles: Option<Quantiles>,
    /// Of clients, rounds in which no call failed, per unit of time; only where calls can fail
    /// ([`Model::has_limits`]).
    pub goodput: Option<Estimate>,
}

/// Percentiles of a time, to within 1.6 %.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Quantiles {
    /// Median.
    pub p50: f64,
    /// 95th percentile.
    pub p95: f64,
    /// 99th percentile.
    pub p99: f64,
}

/// Of an entry.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct EntryFinding {
    /// Its name.
    pub name: String,
    /// Requests per unit of time.
    pub throughput: Estimate,
    /// From when a thread takes a request until it is answered or forwarded.
    pub service: Estimate,
    /// From when a request comes until a thread takes it.
    pub waiting: Estimate,
    /// Of requests from outside: from when one comes until it is answered, wherever it was forwarded; none if none was
    /// answered.
    pub response: Option<Estimate>,
    /// The same, percentiles.
    pub percentiles: Option<Quantiles>,
    /// Of requests from outside, those for which no call failed, per unit of time; only where calls can fail.
    pub goodput: Option<Estimate>,
    /// What was not answered; only where calls can fail.
    pub failures: Option<Failures>,
}

/// Requests that were not answered, or not in time, per unit of time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Failures {
    /// That came to the entry, also again.
    pub offered: Estimate,
    /// That were refused because the queue was at its limit.
    pub refusals: Estimate,
    /// Calls of it that were given up; where it forwards, those count here.
    pub timeouts: Estimate,
    /// Calls of it that were made again.
    pub retries: Estimate,
}

/// Of a processor.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ProcessorFinding {
    /// Its name.
    pub name: String,
    /// Cores in use, in the mean.
    pub busy: Estimate,
}

/// Of a phase or an activity.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ActivityFinding {
    /// Its name.
    pub name: String,
    /// How often it is done, per unit of time.
    pub throughput: Estimate,
    /// How long it takes: work, waiting for the processor, calls and time to think.
    pub service: Estimate,
}

/// Of a call, or of a request that an entry forwards.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CallFinding {
    /// The activity that calls, or the entry that forwards.
    pub from: String,
    /// The entry that is asked.
    pub to: String,
    /// From when the request comes there until a thread takes it.
    pub waiting: Estimate,
    /// From when it comes there until it is answered, wherever it was forwarded.
    pub response: Estimate,
}

/// Why a model cannot be simulated to the end; where that shows, at what time of the model.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum Stuck {
    /// Nothing more will ever happen.
    #[error("at {0}: nothing more happens: everything waits for something else")]
    Nothing(f64),
    /// Something goes on and takes no time.
    #[error("at {0}: more and more is done and takes no time; give some work or some time to think")]
    Still(f64),
    /// It grows without end.
    #[error("at {0}: more and more requests are under way: more comes than can be served")]
    Grows(f64),
    /// It would, as formulas know; it was not simulated for that long.
    #[error("more comes from outside than can be served: what waits there grows without end")]
    Overload,
}

/// Batches at first, and the number at which neighbours are joined.
const BATCHES: usize = 20;
/// Least events of a run.
const LEAST: u64 = 20_000;

/// Simulates a model.
///
/// # Errors
/// If it comes to a standstill, or never ends.
pub fn simulate(model: &Model, effort: &Effort) -> Result<Findings, Stuck> {
    simulate_on(model, effort, &|all| all.iter_mut().for_each(Replication::go_on))
}

/// The same, on other cores: whoever is given replications lets [go on](Replication::go_on) each of them once, in any order, at
/// the same time if it likes.
///
/// # Errors
/// If it comes to a standstill, or never ends.
pub fn simulate_on(
    model: &Model,
    effort: &Effort,
    cores: &dyn Fn(&mut [Replication<'_>]),
) -> Result<Findings, Stuck> {
    // The shortest run is a tenth of the longest; if that will do, much time is saved.
    let (lengths, count) = ([effort.events / 10, effort.events.max(LEAST) / 2], effort.replications());
    runs::play(model, effort, lengths, count, cores, &mut || true)
}

/// Simulates a model for as long as `goes_on` says so, but at least about 25,000 events; it is asked between batches.
///
/// # Errors
/// If it comes to a standstill, or never ends.
pub fn simulate_while(
    model: &Model,
    effort: &Effort,
    goes_on: &mut dyn FnMut() -> bool,
) -> Result<Findings, Stuck> {
    let one = |all: &mut [Replication<'_>]| all.iter_mut().for_each(Replication::go_on);
    runs::play(model, effort, [SHORT, LONG], 1, &one, goes_on)
}

/// Events of the shortest run whose end is not known before.
const SHORT: u64 = 50_000;
/// And of its warm-up, where what it began with is not over before.
const LONG: u64 = 160_000;
/// Events for which it is worth to begin once more, and runs at most.
const EACH: u64 = 1_000_000;
const RUNS: u64 = 64;

impl Effort {
    /// Runs that so many events are made of.
    pub fn replications(&self) -> usize {
        (self.events / EACH).clamp(1, RUNS) as usize
    }
}
