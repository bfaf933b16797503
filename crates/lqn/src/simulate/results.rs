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
const RARE_EVENT_BOUND: f64 = 2.995_732;

/// All sums at one moment.
pub(super) struct SumSnapshot {
    pub(super) time: f64,
    tasks: Vec<[f64; 4]>,
    entries: Vec<[f64; 11]>,
    processors: Vec<[f64; 1]>,
    activities: Vec<[f64; 2]>,
}

pub(super) fn take_snapshot(engine: &Engine<'_>, expanded: &ExpandedModel<'_>) -> SumSnapshot {
    let task = |task_statistics: &TaskStatistics| {
        [
            task_statistics.busy_integral,
            task_statistics.cycles as f64,
            task_statistics.total_response,
            task_statistics.successful as f64,
        ]
    };
    let entry = |entry_statistics: &EntryStatistics| {
        let failures = [
            entry_statistics.successful,
            entry_statistics.arrived,
            entry_statistics.refused,
            entry_statistics.timed_out,
            entry_statistics.retried,
        ]
        .map(|count| count as f64);
        let [successful, arrived, refused, timed_out, retried] = failures;
        let (started, served, answered) = (
            entry_statistics.started as f64,
            entry_statistics.served as f64,
            entry_statistics.answered as f64,
        );
        [
            started,
            entry_statistics.total_waiting,
            served,
            entry_statistics.total_service,
            answered,
            entry_statistics.total_response,
            successful,
            arrived,
            refused,
            timed_out,
            retried,
        ]
    };
    SumSnapshot {
        time: engine.now,
        tasks: replica_means(&engine.statistics.tasks, &expanded.tasks, task),
        entries: replica_means(&engine.statistics.entries, &expanded.entries, entry),
        processors: replica_means(&engine.stations, &expanded.processors, |station| [station.area]),
        activities: replica_means(
            &engine.statistics.activities,
            &expanded.activities,
            |activity_statistics| [activity_statistics.executions as f64, activity_statistics.total_time],
        ),
    }
}

/// Averages the sums of replicas to those of one.
fn replica_means<T, const N: usize>(
    items: &[T],
    ranges: &ReplicaRanges,
    sums: impl Fn(&T) -> [f64; N],
) -> Vec<[f64; N]> {
    let mean_of_range = |range: Range<usize>| {
        let count = range.len() as f64;
        let mut mean = [0.0; N];
        for item in &items[range] {
            mean.iter_mut().zip(sums(item)).for_each(|(mean, sum)| *mean += sum / count);
        }
        mean
    };
    ranges.ranges().map(mean_of_range).collect()
}

/// Evaluates replications of one model together; their batches have equal lengths. The caller sets `precise`,
/// `settled` and `warm_up`.
pub(super) fn evaluate_runs(
    model: &Model,
    expanded: &ExpandedModel<'_>,
    runs: &[Replication<'_>],
) -> ModelResults {
    let batches = || runs.iter().flat_map(|run| run.snapshots.windows(2));
    let rate = |sum: &dyn Fn(&SumSnapshot) -> f64| {
        estimate(batches().map(|pair| (sum(&pair[1]) - sum(&pair[0]), pair[1].time - pair[0].time)))
    };
    let mean = |sum: &dyn Fn(&SumSnapshot) -> f64, count: &dyn Fn(&SumSnapshot) -> f64| {
        estimate(batches().map(|pair| (sum(&pair[1]) - sum(&pair[0]), count(&pair[1]) - count(&pair[0]))))
    };
    let quantiles = |histogram: &TimeHistogram| {
        Some(TimeQuantiles {
            p50: histogram.percentile(0.5)?,
            p95: histogram.percentile(0.95)?,
            p99: histogram.percentile(0.99)?,
        })
    };
    let limits = model.has_limits();
    let time = batches().map(|pair| pair[1].time - pair[0].time).sum();
    let has_grown =
        |count: &dyn Fn(&SumSnapshot) -> f64| batches().any(|pair| count(&pair[1]) > count(&pair[0]));
    let cycle_count = |index: usize| move |snapshot: &SumSnapshot| snapshot.tasks[index][1];
    let answered_count = |index: usize| move |snapshot: &SumSnapshot| snapshot.entries[index][4];
    // The upper 95 % bound of a rate without any event in that time.
    let rare_rate = Estimate { mean: 0.0, half_width: RARE_EVENT_BOUND / time };
    let tasks = model.tasks.iter().enumerate().map(|(index, task)| {
        let started_count =
            |snapshot: &SumSnapshot| task.entries.iter().map(|entry| snapshot.entries[entry.0][0]).sum();
        let is_client = task.is_client();
        let has_cycles = is_client && has_grown(&cycle_count(index));
        TaskResults {
            name: task.name.clone(),
            throughput: match (is_client, has_cycles) {
                (true, true) => rate(&cycle_count(index)),
                (true, false) => rare_rate,
                (false, _) => rate(&started_count),
            },
            busy: rate(&|snapshot| snapshot.tasks[index][0]),
            response: has_cycles.then(|| mean(&|snapshot| snapshot.tasks[index][2], &cycle_count(index))),
            percentiles: quantiles(&TimeHistogram::merged(
                runs.iter()
                    .flat_map(|run| &run.engine.statistics.tasks[expanded.tasks.range(index)])
                    .map(|task_statistics| &task_statistics.response_times),
            )),
            goodput: (is_client && limits).then(|| rate(&|snapshot| snapshot.tasks[index][3])),
        }
    });
    let entries = model.entries.iter().enumerate().map(|(index, entry)| {
        let entry_sum = |sum_index: usize| move |snapshot: &SumSnapshot| snapshot.entries[index][sum_index];
        let is_open = entry.arrivals > 0.0;
        // Clients take no requests: their rate is that of their first activity. The time is that until the
        // reply, where it is known.
        let is_client = model.tasks[entry.task.0].is_client();
        let (start, has_phases) = match &entry.body {
            EntryBody::Phases(phases) => (phases[0].0, true),
            EntryBody::Graph(start) => (start.0, false),
        };
        let started_count = |snapshot: &SumSnapshot| snapshot.activities[start][0];
        EntryResults {
            name: entry.name.clone(),
            throughput: if is_client { rate(&started_count) } else { rate(&entry_sum(0)) },
            service: match (is_client, has_phases) {
                (true, true) => mean(&|snapshot| snapshot.activities[start][1], &started_count),
                (true, false) if model.tasks[entry.task.0].entries.len() == 1 => {
                    mean(&|snapshot| snapshot.tasks[entry.task.0][2], &|snapshot| {
                        snapshot.tasks[entry.task.0][1]
                    })
                }
                _ => mean(&entry_sum(3), &entry_sum(2)),
            },
            waiting: mean(&entry_sum(1), &entry_sum(0)),
            response: (is_open && has_grown(&answered_count(index)))
                .then(|| mean(&entry_sum(5), &entry_sum(4))),
            percentiles: quantiles(&TimeHistogram::merged(
                runs.iter()
                    .flat_map(|run| &run.engine.statistics.entries[expanded.entries.range(index)])
                    .map(|entry_statistics| &entry_statistics.response_times),
            )),
            goodput: (is_open && limits).then(|| rate(&entry_sum(6))),
            failures: limits.then(|| FailureRates {
                offered: rate(&entry_sum(7)),
                refusals: rate(&entry_sum(8)),
                timeouts: rate(&entry_sum(9)),
                retries: rate(&entry_sum(10)),
            }),
        }
    });
    let processors = model.processors.iter().enumerate().map(|(index, processor)| ProcessorResults {
        name: processor.name.clone(),
        busy: rate(&|snapshot| snapshot.processors[index][0]),
    });
    let activities = model.activities.iter().enumerate().map(|(index, activity)| {
        let completed_count = |snapshot: &SumSnapshot| snapshot.activities[index][0];
        ActivityResults {
            name: activity.name.clone(),
            throughput: rate(&completed_count),
            service: mean(&|snapshot| snapshot.activities[index][1], &completed_count),
        }
    });
    let clients = model
        .tasks
        .iter()
        .enumerate()
        .filter(|(index, task)| task.is_client() && !has_grown(&cycle_count(*index)));
    let open_entries = model.entries.iter().enumerate();
    let unanswered =
        open_entries.filter(|(index, entry)| entry.arrivals > 0.0 && !has_grown(&answered_count(*index)));
    let unseen = clients.map(|(_, task)| &task.name).chain(unanswered.map(|(_, entry)| &entry.name));
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
        let is_narrow = |estimate: &Estimate| estimate.half_width <= precision * estimate.mean;
        let clients = self.tasks.iter().filter(|task| task.response.is_some());
        self.unseen.is_empty()
            && clients
                .flat_map(|task| [Some(&task.throughput), task.response.as_ref()])
                .flatten()
                .all(is_narrow)
            && self.entries.iter().filter_map(|entry| entry.response.as_ref()).all(is_narrow)
    }
}

/// Estimates a ratio of sums over batches (Law, Simulation modeling and analysis, section 9.5.3). The mean is
/// the ratio of the totals; the deviation is that of the residuals of the batches.
fn estimate(batches: impl Iterator<Item = (f64, f64)>) -> Estimate {
    let batches: Vec<(f64, f64)> = batches.collect();
    let count = batches.len() as f64;
    let (numerator, denominator) =
        batches.iter().fold((0.0, 0.0), |sums, batch| (sums.0 + batch.0, sums.1 + batch.1));
    if denominator <= 0.0 {
        return Estimate::default();
    }
    let mean = numerator / denominator;
    let squared_error: f64 = batches
        .iter()
        .map(|(batch_numerator, batch_denominator)| (batch_numerator - mean * batch_denominator).powi(2))
        .sum();
    let deviation = (squared_error / (count - 1.0).max(1.0)).sqrt() / (denominator / count) / count.sqrt();
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
