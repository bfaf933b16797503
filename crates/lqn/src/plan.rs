//! The best answer in little time: what was simulated and what was solved, each trusted as far as it goes.
//!
//! A simulation is right in the mean and uncertain by its interval; the solver is certain and off by some percent. Each
//! number is the mean of both, weighed by the inverse of its variance: a short simulation leans on the solver, a long one
//! does without. Over many points ([`anchored_sweep`]) only few are simulated: the solver says how a number changes from
//! point to point, the simulation by what factor the solver is off there.

use serde::Serialize;

use crate::model::{Copies, Role};
use crate::simulate::{EntryFinding, Estimate, Failures, Findings, ProcessorFinding, Quantiles, TaskFinding};
use crate::{Convergence, Model, solve};

/// How far the solver is typically off, as a part of a throughput or of what is busy, and of a time. The test of its
/// accuracy holds it to that.
const OFF: f64 = 0.025;
const OFF_IN_TIME: f64 = 0.04;
/// The same at a point that was not simulated, after the factor of those that were.
const ANCHORED: f64 = 0.02;
/// Of the normal distribution, half of the interval in which it is 95 times of 100.
const HALF: f64 = 1.959_964;

/// What is known of a model.
#[derive(Clone, Debug, Serialize)]
pub struct Plan {
    /// Both, weighed.
    pub findings: Findings,
    /// As it was simulated, all runs together; none if it cannot be.
    pub simulated: Option<Findings>,
    /// As it was solved.
    pub solved: Findings,
    /// How that came about.
    pub convergence: Convergence,
    /// What part of each task's throughput and response time comes from the simulation, by the weights; the rest is
    /// solved.
    pub simulated_parts: Vec<f64>,
}

/// The plan of a model from runs with different seeds.
pub fn plan(model: &Model, runs: &[Findings]) -> Plan {
    let (solved, convergence) = solve(model);
    let Some(simulated) = together(runs) else {
        return Plan {
            findings: solved.clone(),
            simulated: None,
            simulated_parts: vec![0.0; model.tasks.len()],
            solved,
            convergence,
        };
    };
    // Formulas that leave out what is in the model say nothing of it.
    let sure = convergence.converged && solve::left_out(model).is_empty();
    let mut findings = pairs(&simulated, &solved, &|one, other, time| {
        if sure { weigh(one, other, if time { OFF_IN_TIME } else { OFF }) } else { *one }
    });
    if sure {
        // What was never seen in the simulation is known by the formulas alone.
        findings.or_else(&solved);
        findings.unseen.clear();
    }
    let part = |task: &TaskFinding, other: &TaskFinding| {
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
    Plan { findings, simulated: Some(simulated), solved, convergence, simulated_parts }
}

/// The part of the simulated one.
fn weight(simulated: &Estimate, solved: &Estimate, off: f64) -> f64 {
    let chance = (simulated.half_width / HALF).powi(2);
    let bias = (off * solved.mean).powi(2);
    if bias > 0.0 { bias / (bias + chance) } else { 1.0 }
}

fn weigh(simulated: &Estimate, solved: &Estimate, off: f64) -> Estimate {
    let part = weight(simulated, solved, off);
    Estimate {
        mean: part * simulated.mean + (1.0 - part) * solved.mean,
        half_width: part.sqrt() * simulated.half_width,
    }
}

/// Several runs as one, each weighed by its length.
fn together(runs: &[Findings]) -> Option<Findings> {
    let (first, others) = runs.split_first()?;
    let mut all = first.clone();
    for run in others {
        let (one, other) = (all.events as f64, run.events as f64);
        let part = if one + other > 0.0 { one / (one + other) } else { 0.5 };
        let blend = |own: f64, other: f64| part * own + (1.0 - part) * other;
        let mix = |own: Option<Quantiles>, other: Option<Quantiles>| {
            let (Some(own), Some(other)) = (own, other) else { return own.or(other) };
            Some(Quantiles {
                p50: blend(own.p50, other.p50),
                p95: blend(own.p95, other.p95),
                p99: blend(own.p99, other.p99),
            })
        };
        let mut both = pairs(&all, run, &|one, other, _| Estimate {
            mean: part * one.mean + (1.0 - part) * other.mean,
            half_width: (part * one.half_width).hypot((1.0 - part) * other.half_width),
        });
        for (own, other) in both.tasks.iter_mut().zip(&run.tasks) {
            own.percentiles = mix(own.percentiles, other.percentiles);
        }
        for (own, other) in both.entries.iter_mut().zip(&run.entries) {
            own.percentiles = mix(own.percentiles, other.percentiles);
        }
        both.or_else(run);
        both.unseen = all.unseen.iter().filter(|own| run.unseen.contains(own)).cloned().collect();
        both.events = all.events + run.events;
        both.time = all.time + run.time;
        both.batches = all.batches + run.batches;
        both.precise = all.precise && run.precise;
        all = both;
    }
    Some(all)
}

impl Findings {
    /// Response times that it does not know it takes from the other.
    fn or_else(&mut self, other: &Self) {
        for (own, other) in self.tasks.iter_mut().zip(&other.tasks) {
            own.response = own.response.or(other.response);
        }
        for (own, other) in self.entries.iter_mut().zip(&other.entries) {
            own.response = own.response.or(other.response);
        }
    }
}

/// Number by number out of two findings of models of one shape; the last argument says whether it is a time. The rest is
/// that of the first.
fn pairs(one: &Findings, other: &Findings, of: &dyn Fn(&Estimate, &Estimate, bool) -> Estimate) -> Findings {
    let both = |own: &Option<Estimate>, other: &Option<Estimate>| match (own, other) {
        (Some(own), Some(other)) => Some(of(own, other, true)),
        (own, _) => *own,
    };
    let rates = |own: &Option<Estimate>, other: &Option<Estimate>| match (own, other) {
        (Some(own), Some(other)) => Some(of(own, other, false)),
        (own, _) => *own,
    };
    let tasks = one.tasks.iter().zip(&other.tasks).map(|(own, other)| TaskFinding {
        name: own.name.clone(),
        throughput: of(&own.throughput, &other.throughput, false),
        busy: of(&own.busy, &other.busy, false),
        response: both(&own.response, &other.response),
        percentiles: own.percentiles,
        goodput: rates(&own.goodput, &other.goodput),
    });
    let entries = one.entries.iter().zip(&other.entries).map(|(own, other)| EntryFinding {
        name: own.name.clone(),
        throughput: of(&own.throughput, &other.throughput, false),
        service: of(&own.service, &other.service, true),
        waiting: of(&own.waiting, &other.waiting, true),
        response: both(&own.response, &other.response),
        percentiles: own.percentiles,
        goodput: rates(&own.goodput, &other.goodput),
        failures: match (&own.failures, &other.failures) {
            (Some(own), Some(other)) => Some(Failures {
                offered: of(&own.offered, &other.offered, false),
                refusals: of(&own.refusals, &other.refusals, false),
                timeouts: of(&own.timeouts, &other.timeouts, false),
                retries: of(&own.retries, &other.retries, false),
            }),
            (own, _) => *own,
        },
    });
    let processors = one.processors.iter().zip(&other.processors).map(|(own, other)| ProcessorFinding {
        name: own.name.clone(),
        busy: of(&own.busy, &other.busy, false),
    });
    Findings {
        tasks: tasks.collect(),
        entries: entries.collect(),
        processors: processors.collect(),
        ..one.clone()
    }
}

/// Solves all points of a sweep and corrects them by those that were simulated, given by their places in it.
///
/// Between two simulated points the factor goes from the one's to the other's evenly; beyond the outermost it stays.
/// Throughputs of clients follow from their response times. All points have the same tasks, entries and processors.
pub fn anchored_sweep(points: &[Model], simulated: &[(usize, Findings)]) -> Vec<(Findings, Convergence)> {
    let solved: Vec<(Findings, Convergence)> = points.iter().map(solve).collect();
    let mut anchors: Vec<(usize, Findings)> = simulated
        .iter()
        .filter_map(|(place, run)| Some((*place, factors(run, &solved.get(*place)?.0))))
        .collect();
    anchors.sort_by_key(|(place, _)| *place);
    let corrected = solved.iter().enumerate().map(|(place, (found, how))| {
        let Some(factor) = factor_at(&anchors, place) else { return (found.clone(), *how) };
        let mut own = pairs(found, &factor, &|own, factor, _| {
            let mean = own.mean * factor.mean;
            Estimate { mean, half_width: mean * factor.half_width.hypot(HALF * ANCHORED) }
        });
        hold_together(&points[place], &mut own);
        (own, *how)
    });
    corrected.collect()
}

/// By what a simulation differs from the solver: the factor, and its half interval.
fn factors(simulated: &Findings, solved: &Findings) -> Findings {
    pairs(simulated, solved, &|run, own, _| {
        if own.mean > 0.0 && run.mean > 0.0 {
            // What hardly ever waits has no factor that means something.
            let mean = (run.mean / own.mean).clamp(0.25, 4.0);
            Estimate { mean, half_width: (run.half_width / run.mean).min(1.0) }
        } else {
            Estimate { mean: 1.0, half_width: 0.0 }
        }
    })
}

fn factor_at(anchors: &[(usize, Findings)], place: usize) -> Option<Findings> {
    let after = anchors.iter().position(|(at, _)| *at >= place);
    let (one, other) = match after {
        Some(0) => return Some(anchors[0].1.clone()),
        None => return anchors.last().map(|(_, factor)| factor.clone()),
        Some(after) => (&anchors[after - 1], &anchors[after]),
    };
    let part = (place - one.0) as f64 / (other.0 - one.0).max(1) as f64;
    Some(pairs(&one.1, &other.1, &|one, other, _| Estimate {
        mean: one.mean.powf(1.0 - part) * other.mean.powf(part),
        half_width: (1.0 - part) * one.half_width + part * other.half_width,
    }))
}

/// Little's law for clients, and nothing busier than it can be.
fn hold_together(model: &Model, found: &mut Findings) {
    let many = |copies: Copies| match copies {
        Copies::Some(count) => f64::from(count),
        Copies::Infinite => f64::INFINITY,
    };
    for (task, own) in model.tasks.iter().zip(&mut found.tasks) {
        match (task.role, &own.response) {
            (Role::Client { think }, Some(response)) if think + response.mean > 0.0 => {
                let round = think + response.mean;
                own.throughput.mean = many(task.copies) / round;
                own.throughput.half_width = own.throughput.mean * response.half_width / round;
                own.busy = Estimate {
                    mean: own.throughput.mean * response.mean,
                    half_width: own.throughput.mean * think * response.half_width / round,
                };
            }
            _ => own.busy.mean = own.busy.mean.min(many(task.copies)),
        }
    }
    for (processor, own) in model.processors.iter().zip(&mut found.processors) {
        own.busy.mean = own.busy.mean.min(many(processor.copies));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_more_certain_counts_more() {
        let solved = Estimate { mean: 100.0, half_width: 0.0 };
        let at = |half_width| weigh(&Estimate { mean: 110.0, half_width }, &solved, 0.04);
        assert!((at(0.0).mean - 110.0).abs() < 1e-9);
        assert!((at(4.0 * HALF).mean - 105.0).abs() < 1e-9);
        assert!(at(4.0 * HALF).half_width < 4.0 * HALF);
        assert!((at(1e6).mean - 100.0).abs() < 0.01);
    }
}
