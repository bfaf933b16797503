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
const OFF: f64 = 0.025;
const OFF_IN_TIME: f64 = 0.04;
/// The ratio of squared error and variance that chance can explain: three standard deviations.
const SURELY: f64 = 9.0;
/// The 97.5th percentile of the standard normal distribution: half the width of the 95 % interval.
const HALF: f64 = 1.959_964;

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
    let sure = is_reliable(model, &convergence);
    let mut findings = combine_pairwise(&simulated, &solved, &|one, other, time| {
        if sure { weighted_mean(one, other, if time { OFF_IN_TIME } else { OFF }) } else { *one }
    });
    if sure {
        // Results missing in the simulation come from the solution.
        findings.fill_missing_from(&solved);
        findings.unseen.clear();
    }
    let part = |task: &TaskResults, other: &TaskResults| {
        if !sure {
            return 1.0;
        }
        match (&task.response, &other.response) {
            (Some(own), Some(other)) => weight(own, other, OFF_IN_TIME),
            _ => weight(&task.throughput, &other.throughput, OFF),
        }
    };
    let simulated_parts =
        simulated.tasks.iter().zip(&solved.tasks).map(|(own, other)| part(own, other)).collect();
    CombinedEstimate { findings, simulated: Some(simulated), solved, convergence, simulated_parts }
}

/// Returns the weight of the simulated result.
fn weight(simulated: &Estimate, solved: &Estimate, off: f64) -> f64 {
    let chance = (simulated.half_width / HALF).powi(2);
    // If the difference exceeds what chance explains, the excess is the solver's bias here.
    let apart = (simulated.mean - solved.mean).powi(2) - SURELY * chance;
    let bias = (off * solved.mean).powi(2).max(apart);
    if bias > 0.0 { bias / (bias + chance) } else { 1.0 }
}

fn weighted_mean(simulated: &Estimate, solved: &Estimate, off: f64) -> Estimate {
    let part = weight(simulated, solved, off);
    Estimate {
        mean: part * simulated.mean + (1.0 - part) * solved.mean,
        half_width: part.sqrt() * simulated.half_width,
    }
}

/// Combines several runs, weighted by their length.
fn combine_runs(runs: &[ModelResults]) -> Option<ModelResults> {
    let (first, others) = runs.split_first()?;
    let mut all = first.clone();
    for run in others {
        let (one, other) = (all.events as f64, run.events as f64);
        let part = if one + other > 0.0 { one / (one + other) } else { 0.5 };
        let blend = |own: f64, other: f64| part * own + (1.0 - part) * other;
        let mix = |own: Option<TimeQuantiles>, other: Option<TimeQuantiles>| {
            let (Some(own), Some(other)) = (own, other) else { return own.or(other) };
            Some(TimeQuantiles {
                p50: blend(own.p50, other.p50),
                p95: blend(own.p95, other.p95),
                p99: blend(own.p99, other.p99),
            })
        };
        let mut both = combine_pairwise(&all, run, &|one, other, _| Estimate {
            mean: part * one.mean + (1.0 - part) * other.mean,
            half_width: (part * one.half_width).hypot((1.0 - part) * other.half_width),
        });
        for (own, other) in both.tasks.iter_mut().zip(&run.tasks) {
            own.percentiles = mix(own.percentiles, other.percentiles);
        }
        for (own, other) in both.entries.iter_mut().zip(&run.entries) {
            own.percentiles = mix(own.percentiles, other.percentiles);
        }
        both.fill_missing_from(run);
        both.unseen = all.unseen.iter().filter(|own| run.unseen.contains(own)).cloned().collect();
        both.events = all.events + run.events;
        both.time = all.time + run.time;
        both.batches = all.batches + run.batches;
        both.runs = all.runs + run.runs;
        both.warm_up = all.warm_up + run.warm_up;
        both.settled = all.settled && run.settled;
        both.precise = all.precise && run.precise;
        all = both;
    }
    Some(all)
}

impl ModelResults {
    /// Takes missing response times and the results of calls from `other`.
    fn fill_missing_from(&mut self, other: &Self) {
        for (own, other) in self.tasks.iter_mut().zip(&other.tasks) {
            own.response = own.response.or(other.response);
        }
        for (own, other) in self.entries.iter_mut().zip(&other.entries) {
            own.response = own.response.or(other.response);
        }
        if self.calls.is_empty() {
            self.calls.clone_from(&other.calls);
        }
    }
}

/// Combines two results of the same structure number by number; the last argument of `of` is `true` for
/// times. Everything else is taken from the first.
fn combine_pairwise(
    one: &ModelResults,
    other: &ModelResults,
    of: &dyn Fn(&Estimate, &Estimate, bool) -> Estimate,
) -> ModelResults {
    let both = |own: &Option<Estimate>, other: &Option<Estimate>| match (own, other) {
        (Some(own), Some(other)) => Some(of(own, other, true)),
        (own, _) => *own,
    };
    let rates = |own: &Option<Estimate>, other: &Option<Estimate>| match (own, other) {
        (Some(own), Some(other)) => Some(of(own, other, false)),
        (own, _) => *own,
    };
    let tasks = one.tasks.iter().zip(&other.tasks).map(|(own, other)| TaskResults {
        name: own.name.clone(),
        throughput: of(&own.throughput, &other.throughput, false),
        busy: of(&own.busy, &other.busy, false),
        response: both(&own.response, &other.response),
        percentiles: own.percentiles,
        goodput: rates(&own.goodput, &other.goodput),
    });
    let entries = one.entries.iter().zip(&other.entries).map(|(own, other)| EntryResults {
        name: own.name.clone(),
        throughput: of(&own.throughput, &other.throughput, false),
        service: of(&own.service, &other.service, true),
        waiting: of(&own.waiting, &other.waiting, true),
        response: both(&own.response, &other.response),
        percentiles: own.percentiles,
        goodput: rates(&own.goodput, &other.goodput),
        failures: match (&own.failures, &other.failures) {
            (Some(own), Some(other)) => Some(FailureRates {
                offered: of(&own.offered, &other.offered, false),
                refusals: of(&own.refusals, &other.refusals, false),
                timeouts: of(&own.timeouts, &other.timeouts, false),
                retries: of(&own.retries, &other.retries, false),
            }),
            (own, _) => *own,
        },
    });
    let processors = one.processors.iter().zip(&other.processors).map(|(own, other)| ProcessorResults {
        name: own.name.clone(),
        busy: of(&own.busy, &other.busy, false),
    });
    let activities = one.activities.iter().zip(&other.activities).map(|(own, other)| ActivityResults {
        name: own.name.clone(),
        throughput: of(&own.throughput, &other.throughput, false),
        service: of(&own.service, &other.service, true),
    });
    let calls = one.calls.iter().enumerate().map(|(place, own)| match other.calls.get(place) {
        Some(other) => CallResults {
            waiting: of(&own.waiting, &other.waiting, true),
            response: of(&own.response, &other.response, true),
            ..own.clone()
        },
        None => own.clone(),
    });
    ModelResults {
        tasks: tasks.collect(),
        entries: entries.collect(),
        processors: processors.collect(),
        activities: activities.collect(),
        calls: calls.collect(),
        ..one.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_more_certain_counts_more() {
        let solved = Estimate { mean: 100.0, half_width: 0.0 };
        let at = |half_width| weighted_mean(&Estimate { mean: 110.0, half_width }, &solved, 0.04);
        assert!((at(0.0).mean - 110.0).abs() < 1e-9);
        assert!((at(4.0 * HALF).mean - 105.0).abs() < 1e-9);
        assert!(at(4.0 * HALF).half_width < 4.0 * HALF);
        assert!((at(1e6).mean - 100.0).abs() < 0.01);
    }
}
