//! Computes numbers with intervals from the sums of batches.

use std::ops::Range;

use super::engine::Engine;
use super::histogram::TimeHistogram;
use super::replications::Replication;
use super::statistics::{EntryStatistics, TaskStatistics};
use super::{
    ActivityResults, EntryResults, Estimate, FailureRates, ModelResults, ProcessorResults, TaskResults,
    TimeQuantiles,
};
use crate::Model;
use crate::model::EntryBody;
use crate::replicas::{ExpandedModel, ReplicaRanges};

/// The expected number of events for which none is observed with a probability of 5 %: -ln 0.05.
const SELDOM: f64 = 2.995_732;

/// All sums at one moment.
pub(super) struct SumSnapshot {
    pub(super) time: f64,
    tasks: Vec<[f64; 4]>,
    entries: Vec<[f64; 11]>,
    processors: Vec<[f64; 1]>,
    activities: Vec<[f64; 2]>,
}

pub(super) fn take_snapshot(engine: &Engine<'_>, flat: &ExpandedModel<'_>) -> SumSnapshot {
    let task = |own: &TaskStatistics| {
        [own.busy_integral, own.cycles as f64, own.total_response, own.successful as f64]
    };
    let entry = |own: &EntryStatistics| {
        let failures =
            [own.successful, own.arrived, own.refused, own.timed_out, own.retried].map(|count| count as f64);
        let [good, came, refused, timed_out, retried] = failures;
        let (taken, served, answered) = (own.started as f64, own.served as f64, own.answered as f64);
        [
            taken,
            own.total_waiting,
            served,
            own.total_service,
            answered,
            own.total_response,
            good,
            came,
            refused,
            timed_out,
            retried,
        ]
    };
    SumSnapshot {
        time: engine.now,
        tasks: of_one(&engine.tally.tasks, &flat.tasks, task),
        entries: of_one(&engine.tally.entries, &flat.entries, entry),
        processors: of_one(&engine.stations, &flat.processors, |station| [station.area]),
        activities: of_one(&engine.tally.activities, &flat.activities, |own| {
            [own.executions as f64, own.total_time]
        }),
    }
}

/// Averages the sums of replicas to those of one.
fn of_one<T, const N: usize>(
    all: &[T],
    places: &ReplicaRanges,
    sums: impl Fn(&T) -> [f64; N],
) -> Vec<[f64; N]> {
    let one = |those: Range<usize>| {
        let count = those.len() as f64;
        let mut mean = [0.0; N];
        for own in &all[those] {
            mean.iter_mut().zip(sums(own)).for_each(|(mean, sum)| *mean += sum / count);
        }
        mean
    };
    places.ranges().map(one).collect()
}

/// Evaluates replications of one model together; their batches have equal lengths. The caller sets `precise`,
/// `settled` and `warm_up`.
pub(super) fn evaluate_runs(
    model: &Model,
    flat: &ExpandedModel<'_>,
    runs: &[Replication<'_>],
) -> ModelResults {
    let batches = || runs.iter().flat_map(|run| run.snapshots.windows(2));
    let rate = |sum: &dyn Fn(&SumSnapshot) -> f64| {
        estimate(batches().map(|pair| (sum(&pair[1]) - sum(&pair[0]), pair[1].time - pair[0].time)))
    };
    let mean = |sum: &dyn Fn(&SumSnapshot) -> f64, count: &dyn Fn(&SumSnapshot) -> f64| {
        estimate(batches().map(|pair| (sum(&pair[1]) - sum(&pair[0]), count(&pair[1]) - count(&pair[0]))))
    };
    let quantiles = |spread: &TimeHistogram| {
        Some(TimeQuantiles {
            p50: spread.percentile(0.5)?,
            p95: spread.percentile(0.95)?,
            p99: spread.percentile(0.99)?,
        })
    };
    let limits = model.has_limits();
    let time = batches().map(|pair| pair[1].time - pair[0].time).sum();
    let ever = |count: &dyn Fn(&SumSnapshot) -> f64| batches().any(|pair| count(&pair[1]) > count(&pair[0]));
    let round = |place: usize| move |mark: &SumSnapshot| mark.tasks[place][1];
    let answered = |place: usize| move |mark: &SumSnapshot| mark.entries[place][4];
    // The upper 95 % bound of a rate without any event in that time.
    let seldom = Estimate { mean: 0.0, half_width: SELDOM / time };
    let tasks = model.tasks.iter().enumerate().map(|(place, task)| {
        let taken = |mark: &SumSnapshot| task.entries.iter().map(|entry| mark.entries[entry.0][0]).sum();
        let client = task.is_client();
        let seen = client && ever(&round(place));
        TaskResults {
            name: task.name.clone(),
            throughput: match (client, seen) {
                (true, true) => rate(&round(place)),
                (true, false) => seldom,
                (false, _) => rate(&taken),
            },
            busy: rate(&|mark| mark.tasks[place][0]),
            response: seen.then(|| mean(&|mark| mark.tasks[place][2], &round(place))),
            percentiles: quantiles(&TimeHistogram::merged(
                runs.iter()
                    .flat_map(|run| &run.engine.tally.tasks[flat.tasks.range(place)])
                    .map(|own| &own.response_times),
            )),
            goodput: (client && limits).then(|| rate(&|mark| mark.tasks[place][3])),
        }
    });
    let entries = model.entries.iter().enumerate().map(|(place, entry)| {
        let sum = |which: usize| move |mark: &SumSnapshot| mark.entries[place][which];
        let open = entry.arrivals > 0.0;
        // Clients take no requests: their rate is that of their first activity. The time is that until the
        // reply, where it is known.
        let client = model.tasks[entry.task.0].is_client();
        let (start, phases) = match &entry.body {
            EntryBody::Phases(phases) => (phases[0].0, true),
            EntryBody::Graph(start) => (start.0, false),
        };
        let begun = |mark: &SumSnapshot| mark.activities[start][0];
        EntryResults {
            name: entry.name.clone(),
            throughput: if client { rate(&begun) } else { rate(&sum(0)) },
            service: match (client, phases) {
                (true, true) => mean(&|mark| mark.activities[start][1], &begun),
                (true, false) if model.tasks[entry.task.0].entries.len() == 1 => {
                    mean(&|mark| mark.tasks[entry.task.0][2], &|mark| mark.tasks[entry.task.0][1])
                }
                _ => mean(&sum(3), &sum(2)),
            },
            waiting: mean(&sum(1), &sum(0)),
            response: (open && ever(&answered(place))).then(|| mean(&sum(5), &sum(4))),
            percentiles: quantiles(&TimeHistogram::merged(
                runs.iter()
                    .flat_map(|run| &run.engine.tally.entries[flat.entries.range(place)])
                    .map(|own| &own.response_times),
            )),
            goodput: (open && limits).then(|| rate(&sum(6))),
            failures: limits.then(|| FailureRates {
                offered: rate(&sum(7)),
                refusals: rate(&sum(8)),
                timeouts: rate(&sum(9)),
                retries: rate(&sum(10)),
            }),
        }
    });
    let processors = model.processors.iter().enumerate().map(|(place, processor)| ProcessorResults {
        name: processor.name.clone(),
        busy: rate(&|mark| mark.processors[place][0]),
    });
    let activities = model.activities.iter().enumerate().map(|(place, activity)| {
        let done = |mark: &SumSnapshot| mark.activities[place][0];
        ActivityResults {
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
    ModelResults {
        unseen: unseen.cloned().collect(),
        tasks: tasks.collect(),
        entries: entries.collect(),
        processors: processors.collect(),
        activities: activities.collect(),
        calls: Vec::new(),
        events: runs.iter().map(|run| run.engine.events).sum(),
        time,
        batches: batches().count(),
        runs: runs.len(),
        warm_up: 0.0,
        settled: false,
        precise: false,
    }
}

impl ModelResults {
    /// Returns `true` if the interval of every throughput and response time of clients, and of requests from
    /// outside, is narrow enough.
    pub(super) fn is_precise(&self, precision: f64) -> bool {
        let narrow = |estimate: &Estimate| estimate.half_width <= precision * estimate.mean;
        let clients = self.tasks.iter().filter(|task| task.response.is_some());
        self.unseen.is_empty()
            && clients.flat_map(|task| [Some(&task.throughput), task.response.as_ref()]).flatten().all(narrow)
            && self.entries.iter().filter_map(|entry| entry.response.as_ref()).all(narrow)
    }
}

/// Estimates a ratio of sums over batches (Law, Simulation modeling and analysis, section 9.5.3). The mean is
/// the ratio of the totals; the deviation is that of the residuals of the batches.
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

/// Returns the 97.5th percentile of Student's t distribution (Cornish-Fisher expansion; accurate to 0.2 %
/// from 10 degrees of freedom).
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
