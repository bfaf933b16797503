//! The best estimate in limited time: combines simulation and analytic solution by their accuracy.
//!
//! A simulation is unbiased, and uncertain by its interval; the analytic solution has no variance, and a bias
//! of some percent. Each number is the mean of both, weighted by the inverse of the variance. So a short
//! simulation relies on the solution and a long one does not. Nor does one that shows that the solution's
//! bias is greater than usual.
//!
//! In a sweep of many points ([`anchored_sweep`]) few are simulated. The solution provides the change of a
//! number from point to point, the simulation the factor that corrects its bias.

use serde::Serialize;

use crate::simulate::{
    ActivityResults, CallResults, EntryResults, Estimate, FailureRates, ModelResults, ProcessorResults,
    TaskResults, TimeQuantiles,
};
use crate::{Convergence, Model, solve};

mod anchored;

pub use anchored::{AxisPosition, SolvedPoint, anchored_sweep, anchors, solved_lines};

/// The typical relative error of the solver for throughputs and utilizations (`OFF`) and for times
/// (`OFF_IN_TIME`). The accuracy test checks these bounds.
const MODEL_ERROR: f64 = 0.025;
const TIME_MODEL_ERROR: f64 = 0.04;
/// The ratio of squared error and variance that chance can explain: three standard deviations.
const CERTAIN_VARIANCE: f64 = 9.0;
/// The 97.5th percentile of the standard normal distribution: half the width of the 95 % interval.
const NORMAL_QUANTILE: f64 = 1.959_964;

/// The estimate of a model's results.
#[derive(Clone, Debug, Serialize)]
pub struct CombinedEstimate {
    /// The weighted results.
    pub findings: ModelResults,
    /// The simulated results of all runs combined; `None` if the model cannot be simulated.
    pub simulated: Option<ModelResults>,
    /// The analytic results.
    pub solved: ModelResults,
    /// The convergence of the solver.
    pub convergence: Convergence,
    /// The weight of the simulation in each task's throughput and response time; the rest is analytic.
    pub simulated_parts: Vec<f64>,
}

/// Returns `true` if the analytic solution is reliable: it converged and covers everything in the model.
pub fn is_reliable(model: &Model, convergence: &Convergence) -> bool {
    convergence.converged && solve::ignored_parts(model).is_empty()
}

/// Combines the analytic solution with runs with different seeds.
pub fn combine_estimates(model: &Model, runs: &[ModelResults]) -> CombinedEstimate {
    let (solved, convergence) = solve(model);
    let Some(simulated) = combine_runs(runs) else {
        return CombinedEstimate {
            findings: solved.clone(),
            simulated: None,
            simulated_parts: vec![0.0; model.tasks.len()],
            solved,
            convergence,
        };
    };
    let is_sure = is_reliable(model, &convergence);
    let mut findings = combine_pairwise(&simulated, &solved, &|from_runs, from_formulas, is_time| {
        if is_sure {
            weighted_mean(from_runs, from_formulas, if is_time { TIME_MODEL_ERROR } else { MODEL_ERROR })
        } else {
            *from_runs
        }
    });
    if is_sure {
        // Results missing in the simulation come from the solution.
        findings.fill_missing_from(&solved);
        findings.unseen.clear();
    }
    let simulated_weight = |task: &TaskResults, solved_task: &TaskResults| {
        if !is_sure {
            return 1.0;
        }
        match (&task.response, &solved_task.response) {
            (Some(simulated_response), Some(solved_response)) => {
                weight(simulated_response, solved_response, TIME_MODEL_ERROR)
            }
            _ => weight(&task.throughput, &solved_task.throughput, MODEL_ERROR),
        }
    };
    let simulated_parts = simulated
        .tasks
        .iter()
        .zip(&solved.tasks)
        .map(|(simulated_task, solved_task)| simulated_weight(simulated_task, solved_task))
        .collect();
    CombinedEstimate { findings, simulated: Some(simulated), solved, convergence, simulated_parts }
}

/// Returns the weight of the simulated result.
fn weight(simulated: &Estimate, solved: &Estimate, model_error: f64) -> f64 {
    let variance = (simulated.half_width / NORMAL_QUANTILE).powi(2);
    // If the difference exceeds what chance explains, the excess is the solver's bias here.
    let excess = (simulated.mean - solved.mean).powi(2) - CERTAIN_VARIANCE * variance;
    let bias = (model_error * solved.mean).powi(2).max(excess);
    if bias > 0.0 { bias / (bias + variance) } else { 1.0 }
}

fn weighted_mean(simulated: &Estimate, solved: &Estimate, model_error: f64) -> Estimate {
    let simulated_weight = weight(simulated, solved, model_error);
    Estimate {
        mean: simulated_weight * simulated.mean + (1.0 - simulated_weight) * solved.mean,
        half_width: simulated_weight.sqrt() * simulated.half_width,
    }
}

/// Combines several runs, weighted by their length.
fn combine_runs(runs: &[ModelResults]) -> Option<ModelResults> {
    let (first, others) = runs.split_first()?;
    let mut combined = first.clone();
    for run in others {
        let (combined_events, run_events) = (combined.events as f64, run.events as f64);
        let combined_weight = if combined_events + run_events > 0.0 {
            combined_events / (combined_events + run_events)
        } else {
            0.5
        };
        let blend = |combined_value: f64, run_value: f64| {
            combined_weight * combined_value + (1.0 - combined_weight) * run_value
        };
        let mix_quantiles = |combined_quantiles: Option<TimeQuantiles>,
                             run_quantiles: Option<TimeQuantiles>| {
            let (Some(combined_times), Some(run_times)) = (combined_quantiles, run_quantiles) else {
                return combined_quantiles.or(run_quantiles);
            };
            Some(TimeQuantiles {
                p50: blend(combined_times.p50, run_times.p50),
                p95: blend(combined_times.p95, run_times.p95),
                p99: blend(combined_times.p99, run_times.p99),
            })
        };
        let mut blended = combine_pairwise(&combined, run, &|combined_estimate, run_estimate, _| Estimate {
            mean: combined_weight * combined_estimate.mean + (1.0 - combined_weight) * run_estimate.mean,
            half_width: (combined_weight * combined_estimate.half_width)
                .hypot((1.0 - combined_weight) * run_estimate.half_width),
        });
        for (blended_task, run_task) in blended.tasks.iter_mut().zip(&run.tasks) {
            blended_task.percentiles = mix_quantiles(blended_task.percentiles, run_task.percentiles);
        }
        for (blended_entry, run_entry) in blended.entries.iter_mut().zip(&run.entries) {
            blended_entry.percentiles = mix_quantiles(blended_entry.percentiles, run_entry.percentiles);
        }
        blended.fill_missing_from(run);
        blended.unseen = combined.unseen.iter().filter(|name| run.unseen.contains(name)).cloned().collect();
        blended.events = combined.events + run.events;
        blended.time = combined.time + run.time;
        blended.batches = combined.batches + run.batches;
        blended.runs = combined.runs + run.runs;
        blended.warm_up = combined.warm_up + run.warm_up;
        blended.settled = combined.settled && run.settled;
        blended.precise = combined.precise && run.precise;
        combined = blended;
    }
    Some(combined)
}

impl ModelResults {
    /// Takes missing response times and the results of calls from `other`.
    fn fill_missing_from(&mut self, other: &Self) {
        for (task, other_task) in self.tasks.iter_mut().zip(&other.tasks) {
            task.response = task.response.or(other_task.response);
        }
        for (entry, other_entry) in self.entries.iter_mut().zip(&other.entries) {
            entry.response = entry.response.or(other_entry.response);
        }
        if self.calls.is_empty() {
            self.calls.clone_from(&other.calls);
        }
    }
}

/// Combines two results of the same structure number by number; the last argument of `of` is `true` for
/// times. Everything else is taken from the first.
fn combine_pairwise(
    base: &ModelResults,
    other: &ModelResults,
    combine: &dyn Fn(&Estimate, &Estimate, bool) -> Estimate,
) -> ModelResults {
    let combine_times =
        |base_time: &Option<Estimate>, other_time: &Option<Estimate>| match (base_time, other_time) {
            (Some(base_time), Some(other_time)) => Some(combine(base_time, other_time, true)),
            (base_only, _) => *base_only,
        };
    let combine_rates =
        |base_rate: &Option<Estimate>, other_rate: &Option<Estimate>| match (base_rate, other_rate) {
            (Some(base_rate), Some(other_rate)) => Some(combine(base_rate, other_rate, false)),
            (base_only, _) => *base_only,
        };
    let tasks = base.tasks.iter().zip(&other.tasks).map(|(task, other_task)| TaskResults {
        name: task.name.clone(),
        throughput: combine(&task.throughput, &other_task.throughput, false),
        busy: combine(&task.busy, &other_task.busy, false),
        response: combine_times(&task.response, &other_task.response),
        percentiles: task.percentiles,
        goodput: combine_rates(&task.goodput, &other_task.goodput),
    });
    let entries = base.entries.iter().zip(&other.entries).map(|(entry, other_entry)| EntryResults {
        name: entry.name.clone(),
        throughput: combine(&entry.throughput, &other_entry.throughput, false),
        service: combine(&entry.service, &other_entry.service, true),
        waiting: combine(&entry.waiting, &other_entry.waiting, true),
        response: combine_times(&entry.response, &other_entry.response),
        percentiles: entry.percentiles,
        goodput: combine_rates(&entry.goodput, &other_entry.goodput),
        failures: match (&entry.failures, &other_entry.failures) {
            (Some(base_failures), Some(other_failures)) => Some(FailureRates {
                offered: combine(&base_failures.offered, &other_failures.offered, false),
                refusals: combine(&base_failures.refusals, &other_failures.refusals, false),
                timeouts: combine(&base_failures.timeouts, &other_failures.timeouts, false),
                retries: combine(&base_failures.retries, &other_failures.retries, false),
            }),
            (base_only, _) => *base_only,
        },
    });
    let processors =
        base.processors.iter().zip(&other.processors).map(|(processor, other_processor)| ProcessorResults {
            name: processor.name.clone(),
            busy: combine(&processor.busy, &other_processor.busy, false),
        });
    let activities =
        base.activities.iter().zip(&other.activities).map(|(activity, other_activity)| ActivityResults {
            name: activity.name.clone(),
            throughput: combine(&activity.throughput, &other_activity.throughput, false),
            service: combine(&activity.service, &other_activity.service, true),
        });
    let calls = base.calls.iter().enumerate().map(|(index, call)| match other.calls.get(index) {
        Some(other_call) => CallResults {
            waiting: combine(&call.waiting, &other_call.waiting, true),
            response: combine(&call.response, &other_call.response, true),
            ..call.clone()
        },
        None => call.clone(),
    });
    ModelResults {
        tasks: tasks.collect(),
        entries: entries.collect(),
        processors: processors.collect(),
        activities: activities.collect(),
        calls: calls.collect(),
        ..base.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_more_certain_counts_more() {
        let solved = Estimate { mean: 100.0, half_width: 0.0 };
        let mean_at = |half_width| weighted_mean(&Estimate { mean: 110.0, half_width }, &solved, 0.04);
        assert!((mean_at(0.0).mean - 110.0).abs() < 1e-9);
        assert!((mean_at(4.0 * NORMAL_QUANTILE).mean - 105.0).abs() < 1e-9);
        assert!(mean_at(4.0 * NORMAL_QUANTILE).half_width < 4.0 * NORMAL_QUANTILE);
        assert!((mean_at(1e6).mean - 100.0).abs() < 0.01);
    }
}
