//! The model, played: what happens is drawn event by event, and what is of interest is counted.
//!
//! A run begins with a warm-up that is not counted: clients set out all at once, and queues are empty. Then come batches
//! of equal time; the interval of a number follows from how the batches differ (Student's t over their means, which is
//! right when a batch is much longer than whatever the system remembers). Batches are made twice as long, by joining
//! neighbours, until the intervals are as narrow as was asked for or as much has happened as may.

use std::ops::Range;

use serde::Serialize;

use crate::Model;
use crate::replicas::{Flat, Places};
use engine::Engine;
use percentiles::Percentiles;
use program::Program;

mod dice;
mod engine;
mod percentiles;
mod program;
mod route;
mod station;
mod streams;
mod tally;

/// How much is simulated.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Effort {
    /// The same seed gives the same numbers.
    pub seed: u64,
    /// Events at most, the warm-up included; at least 20,000 are simulated.
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

/// Why a model cannot be simulated to the end. Each says at what time of the model.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum Stuck {
    /// Nothing more will ever happen.
    #[error("at {0}: nothing more happens: everything waits for something else")]
    Nothing(f64),
    /// Something goes on and takes no time.
    #[error("at {0}: more and more is done and takes no time; give some work or some time to think")]
    Still(f64),
    /// It grows without end.
    #[error("at {0}: more than two million requests are under way: more comes than can be served")]
    Grows(f64),
}

/// Batches at first, and the number at which neighbours are joined.
const BATCHES: usize = 20;
/// Part of what may happen at most that is the warm-up of the shortest run.
const WARM_UP: f64 = 0.1;
/// Least events of a run.
const LEAST: u64 = 20_000;
/// What never happened would have, 95 times of 100, if so much of it were expected: -ln 0.05.
const SELDOM: f64 = 2.995_732;

/// Simulates a model.
///
/// # Errors
/// If it comes to a standstill, or never ends.
pub fn simulate(model: &Model, effort: &Effort) -> Result<Findings, Stuck> {
    // The shortest run is a tenth of the longest; if that will do, much time is saved.
    run(model, effort, effort.events / 10, &mut || true)
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
    run(model, effort, SHORT, goes_on)
}

/// Events of the shortest run whose end is not known before.
const SHORT: u64 = 50_000;

fn run(
    model: &Model,
    effort: &Effort,
    short: u64,
    goes_on: &mut dyn FnMut() -> bool,
) -> Result<Findings, Stuck> {
    let flat = Flat::of(model);
    let program = Program::new(&flat.model);
    let mut engine = Engine::new(&flat.model, &program, effort.seed);
    let most = effort.events.max(LEAST);
    let short = short.max(LEAST);
    let warm_up = (short as f64 * 2.0 * WARM_UP) as u64;
    engine.run_events(warm_up)?;
    let begun = engine.now;
    let each = begun / warm_up as f64 * (short - warm_up) as f64 / BATCHES as f64;
    if each <= 0.0 {
        return Err(Stuck::Still(begun));
    }
    engine.count();
    engine.tally.forget();
    let mut marks = vec![mark(&engine, &flat)];
    let mut length = each;
    loop {
        let mut stopped = false;
        for _ in 0..BATCHES {
            engine.run_time(engine.now + length)?;
            engine.count();
            marks.push(mark(&engine, &flat));
            if marks.len() > BATCHES / 2 && !goes_on() {
                stopped = true;
                break;
            }
        }
        let found = findings(model, &flat, &engine, &marks, begun);
        let precise = found.is_precise(effort.precision);
        // Another doubling would go beyond what may happen.
        if precise || stopped || engine.events * 2 > most + most / 4 {
            return Ok(Findings { precise, ..found });
        }
        if marks.len() > 2 * BATCHES {
            marks = marks.into_iter().step_by(2).collect();
            length *= 2.0;
        }
    }
}

/// All sums at a moment.
struct Mark {
    now: f64,
    tasks: Vec<[f64; 4]>,
    entries: Vec<[f64; 11]>,
    processors: Vec<[f64; 1]>,
    activities: Vec<[f64; 2]>,
}

fn mark(engine: &Engine<'_>, flat: &Flat<'_>) -> Mark {
    let task = |own: &tally::TaskTally| [own.area, own.cycles as f64, own.response, own.good as f64];
    let entry = |own: &tally::EntryTally| {
        let failures =
            [own.good, own.came, own.refused, own.timed_out, own.retried].map(|count| count as f64);
        let [good, came, refused, timed_out, retried] = failures;
        let (taken, served, answered) = (own.taken as f64, own.served as f64, own.answered as f64);
        [
            taken,
            own.waited,
            served,
            own.service,
            answered,
            own.response,
            good,
            came,
            refused,
            timed_out,
            retried,
        ]
    };
    Mark {
        now: engine.now,
        tasks: of_one(&engine.tally.tasks, &flat.tasks, task),
        entries: of_one(&engine.tally.entries, &flat.entries, entry),
        processors: of_one(&engine.stations, &flat.processors, |station| [station.area]),
        activities: of_one(&engine.tally.activities, &flat.activities, |own| [own.done as f64, own.took]),
    }
}

/// Sums of replicas as those of one, in the mean.
fn of_one<T, const N: usize>(all: &[T], places: &Places, sums: impl Fn(&T) -> [f64; N]) -> Vec<[f64; N]> {
    let one = |those: Range<usize>| {
        let count = those.len() as f64;
        let mut mean = [0.0; N];
        for own in &all[those] {
            mean.iter_mut().zip(sums(own)).for_each(|(mean, sum)| *mean += sum / count);
        }
        mean
    };
    places.all().map(one).collect()
}

fn findings(model: &Model, flat: &Flat<'_>, engine: &Engine<'_>, marks: &[Mark], begun: f64) -> Findings {
    let rate = |sum: &dyn Fn(&Mark) -> f64| {
        estimate(marks.windows(2).map(|pair| (sum(&pair[1]) - sum(&pair[0]), pair[1].now - pair[0].now)))
    };
    let mean = |sum: &dyn Fn(&Mark) -> f64, count: &dyn Fn(&Mark) -> f64| {
        estimate(
            marks.windows(2).map(|pair| (sum(&pair[1]) - sum(&pair[0]), count(&pair[1]) - count(&pair[0]))),
        )
    };
    let quantiles = |spread: &Percentiles| {
        Some(Quantiles { p50: spread.at(0.5)?, p95: spread.at(0.95)?, p99: spread.at(0.99)? })
    };
    let limits = model.has_limits();
    let time = engine.now - begun;
    let ever = |count: &dyn Fn(&Mark) -> f64| {
        marks.first().zip(marks.last()).is_some_and(|(first, last)| count(last) > count(first))
    };
    let round = |place: usize| move |mark: &Mark| mark.tasks[place][1];
    let answered = |place: usize| move |mark: &Mark| mark.entries[place][4];
    // Of what never happened in that time it is 95 times of 100 less than this.
    let seldom = Estimate { mean: 0.0, half_width: SELDOM / time };
    let tasks = model.tasks.iter().enumerate().map(|(place, task)| {
        let taken = |mark: &Mark| task.entries.iter().map(|entry| mark.entries[entry.0][0]).sum();
        let client = task.is_client();
        let seen = client && ever(&round(place));
        TaskFinding {
            name: task.name.clone(),
            throughput: match (client, seen) {
                (true, true) => rate(&round(place)),
                (true, false) => seldom,
                (false, _) => rate(&taken),
            },
            busy: rate(&|mark| mark.tasks[place][0]),
            response: seen.then(|| mean(&|mark| mark.tasks[place][2], &round(place))),
            percentiles: quantiles(&Percentiles::of(
                engine.tally.tasks[flat.tasks.those(place)].iter().map(|own| &own.spread),
            )),
            goodput: (client && limits).then(|| rate(&|mark| mark.tasks[place][3])),
        }
    });
    let entries = model.entries.iter().enumerate().map(|(place, entry)| {
        let sum = |which: usize| move |mark: &Mark| mark.entries[place][which];
        let open = entry.arrivals > 0.0;
        EntryFinding {
            name: entry.name.clone(),
            throughput: rate(&sum(0)),
            service: mean(&sum(3), &sum(2)),
            waiting: mean(&sum(1), &sum(0)),
            response: (open && ever(&answered(place))).then(|| mean(&sum(5), &sum(4))),
            percentiles: quantiles(&Percentiles::of(
                engine.tally.entries[flat.entries.those(place)].iter().map(|own| &own.spread),
            )),
            goodput: (open && limits).then(|| rate(&sum(6))),
            failures: limits.then(|| Failures {
                offered: rate(&sum(7)),
                refusals: rate(&sum(8)),
                timeouts: rate(&sum(9)),
                retries: rate(&sum(10)),
            }),
        }
    });
    let processors = model.processors.iter().enumerate().map(|(place, processor)| ProcessorFinding {
        name: processor.name.clone(),
        busy: rate(&|mark| mark.processors[place][0]),
    });
    let activities = model.activities.iter().enumerate().map(|(place, activity)| {
        let done = |mark: &Mark| mark.activities[place][0];
        ActivityFinding {
            name: activity.name.clone(),
            throughput: rate(&done),
            service: mean(&|mark| mark.activities[place][1], &done),
        }
    });
    let clients =
        model.tasks.iter().enumerate().filter(|(place, task)| task.is_client() && !ever(&round(*place)));
    let open = model.entries.iter().enumerate();
    let open = open.filter(|(place, entry)| entry.arrivals > 0.0 && !ever(&answered(*place)));
    let unseen = clients.map(|(_, task)| &task.name).chain(open.map(|(_, entry)| &entry.name));
    Findings {
        unseen: unseen.cloned().collect(),
        tasks: tasks.collect(),
        entries: entries.collect(),
        processors: processors.collect(),
        activities: activities.collect(),
        calls: Vec::new(),
        events: engine.events,
        time,
        batches: marks.len() - 1,
        precise: false,
    }
}

impl Findings {
    /// Is every throughput and response time of clients, and of requests from outside, as narrow as that?
    fn is_precise(&self, precision: f64) -> bool {
        let narrow = |estimate: &Estimate| estimate.half_width <= precision * estimate.mean;
        let clients = self.tasks.iter().filter(|task| task.response.is_some());
        self.unseen.is_empty()
            && clients.flat_map(|task| [Some(&task.throughput), task.response.as_ref()]).flatten().all(narrow)
            && self.entries.iter().filter_map(|entry| entry.response.as_ref()).all(narrow)
    }
}

/// A ratio of sums over batches (Law, Simulation modeling and analysis, section 9.5.3): its mean is that of all, its
/// deviation that of what each batch is off.
fn estimate(batches: impl Iterator<Item = (f64, f64)>) -> Estimate {
    let batches: Vec<(f64, f64)> = batches.collect();
    let count = batches.len() as f64;
    let (over, under) = batches.iter().fold((0.0, 0.0), |sums, batch| (sums.0 + batch.0, sums.1 + batch.1));
    if under <= 0.0 {
        return Estimate::default();
    }
    let mean = over / under;
    let square: f64 = batches.iter().map(|(over, under)| (over - mean * under).powi(2)).sum();
    let deviation = (square / (count - 1.0).max(1.0)).sqrt() / (under / count) / count.sqrt();
    Estimate { mean, half_width: student(count - 1.0) * deviation }
}

/// The 97.5th percentile of Student's t (Cornish and Fisher's expansion; within 0.2 % from 10 degrees of freedom on).
fn student(degrees: f64) -> f64 {
    let z = 1.959_963_985_f64;
    let (z3, z5) = (z.powi(3), z.powi(5));
    z + (z3 + z) / (4.0 * degrees) + (5.0 * z5 + 16.0 * z3 + 3.0 * z) / (96.0 * degrees * degrees)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn student_is_as_in_the_tables() {
        for (degrees, value) in [(10.0, 2.2281), (19.0, 2.0930), (39.0, 2.0227), (1e9, 1.9600)] {
            assert!((student(degrees) / value - 1.0_f64).abs() < 0.002, "{degrees}");
        }
    }
}
