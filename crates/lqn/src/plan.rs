//! The best answer in little time: what was simulated and what was solved, each trusted as far as it goes.
//!
//! A simulation is right in the mean and uncertain by its interval; the solver is certain and off by some percent. Each
//! number is the mean of both, weighed by the inverse of its variance: a short simulation leans on the solver, a long one
//! does without, and so does one that shows that the solver is further off than it should be. Over many points ([`anchored_sweep`]) few are simulated: the solver says how a number changes from point to
//! point, the simulation by what factor the solver is off.

use serde::Serialize;

use crate::simulate::{
    ActivityFinding, CallFinding, EntryFinding, Estimate, Failures, Findings, ProcessorFinding, Quantiles,
    TaskFinding,
};
use crate::{Convergence, Model, solve};

mod anchored;

pub use anchored::{Along, Solved, anchored_sweep, anchors, solved_lines};

/// How far the solver is typically off, as a part of a throughput or of what is busy, and of a time. The test of its
/// accuracy holds it to that.
const OFF: f64 = 0.025;
const OFF_IN_TIME: f64 = 0.04;
/// By so many times its variance a simulation is off by chance at the most, as far as it counts: three standard deviations.
const SURELY: f64 = 9.0;
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

/// Can what formulas say of a model be trusted? If they did not settle, or leave out what is in the model, they say nothing of
/// it.
pub fn is_sure(model: &Model, convergence: &Convergence) -> bool {
    convergence.converged && solve::left_out(model).is_empty()
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
    let sure = is_sure(model, &convergence);
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
    // Where both are further apart than chance has them, the solver is off by the rest, whatever it is elsewhere.
    let apart = (simulated.mean - solved.mean).powi(2) - SURELY * chance;
    let bias = (off * solved.mean).powi(2).max(apart);
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
        both.runs = all.runs + run.runs;
        both.warm_up = all.warm_up + run.warm_up;
        both.settled = all.settled && run.settled;
        both.precise = all.precise && run.precise;
        all = both;
    }
    Some(all)
}

impl Findings {
    /// Response times that it does not know it takes from the other, and who waits where.
    fn or_else(&mut self, other: &Self) {
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
    let activities = one.activities.iter().zip(&other.activities).map(|(own, other)| ActivityFinding {
        name: own.name.clone(),
        throughput: of(&own.throughput, &other.throughput, false),
        service: of(&own.service, &other.service, true),
    });
    let calls = one.calls.iter().enumerate().map(|(place, own)| match other.calls.get(place) {
        Some(other) => CallFinding {
            waiting: of(&own.waiting, &other.waiting, true),
            response: of(&own.response, &other.response, true),
            ..own.clone()
        },
        None => own.clone(),
    });
    Findings {
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
        let at = |half_width| weigh(&Estimate { mean: 110.0, half_width }, &solved, 0.04);
        assert!((at(0.0).mean - 110.0).abs() < 1e-9);
        assert!((at(4.0 * HALF).mean - 105.0).abs() < 1e-9);
        assert!(at(4.0 * HALF).half_width < 4.0 * HALF);
        assert!((at(1e6).mean - 100.0).abs() < 0.01);
    }
}
