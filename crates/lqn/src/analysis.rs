//! Questions about a model, independent of the solution method, which the caller passes as a function
//! ([`SolveFn`]).
//!
//! Results are compared as lines ([`result_lines`]): one number each, with metric names that are the same for
//! all methods.

use serde::Serialize;

use crate::model::{EntryBody, Multiplicity};
use crate::{Estimate, Model, ModelResults, SimulationError};

pub mod bottleneck;
pub mod capacity;
pub mod improvement;
pub mod metric;
pub mod parameter;
pub mod sweep;

/// A method to solve a model.
pub type SolveFn<'s> = dyn Fn(&Model) -> Result<ModelResults, SimulationError> + Sync + 's;

/// One number of a result.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ResultLine {
    /// `task`, `entry` or `processor`; also `activity` for the phases of an entry with several, and for the
    /// activities of a graph.
    pub kind: &'static str,
    /// The name of the task, entry, processor or activity.
    pub name: String,
    /// `throughput`, `busy`, `utilization` (busy divided by the number of copies), `response`, `p50`, `p95`,
    /// `p99`, `waiting` or `service`. Where calls can fail also `goodput`, `refusals`, `timeouts` and
    /// `retries`, per unit of time.
    pub metric: &'static str,
    /// The number; percentiles have no confidence interval.
    pub value: Estimate,
}

/// The kind of a phase's or an activity's line.
pub const ACTIVITY: &str = "activity";

/// Returns all results of tasks, entries and processors. Includes those of phases, if an entry has several,
/// and of the activities of graphs. An entry's own results end with its reply.
pub fn result_lines(model: &Model, found: &ModelResults) -> Vec<ResultLine> {
    let mut lines = Vec::new();
    let mut line = |kind, name: &str, metric, value: Option<Estimate>| {
        lines.extend(value.map(|value| ResultLine { kind, name: name.to_owned(), metric, value }));
    };
    let part = |busy: Estimate, copies| match copies {
        Multiplicity::Finite(count) => {
            let count = f64::from(count);
            Some(Estimate { mean: busy.mean / count, half_width: busy.half_width / count })
        }
        Multiplicity::Infinite => None,
    };
    let sure = |mean| Some(Estimate { mean, half_width: 0.0 });
    for (task, own) in model.tasks.iter().zip(&found.tasks) {
        line("task", &own.name, "throughput", Some(own.throughput));
        line("task", &own.name, "busy", Some(own.busy));
        if !task.is_client() {
            line("task", &own.name, "utilization", part(own.busy, task.copies));
        }
        line("task", &own.name, "response", own.response);
        line("task", &own.name, "goodput", own.goodput);
        if let Some(quantiles) = own.percentiles {
            line("task", &own.name, "p50", sure(quantiles.p50));
            line("task", &own.name, "p95", sure(quantiles.p95));
            line("task", &own.name, "p99", sure(quantiles.p99));
        }
    }
    for own in &found.entries {
        line("entry", &own.name, "throughput", Some(own.throughput));
        line("entry", &own.name, "waiting", Some(own.waiting));
        line("entry", &own.name, "service", Some(own.service));
        line("entry", &own.name, "response", own.response);
        line("entry", &own.name, "goodput", own.goodput);
        // Only failures that occurred.
        if let Some(failures) = own.failures {
            let some = |estimate: Estimate| Some(estimate).filter(|estimate| estimate.mean > 0.0);
            line("entry", &own.name, "refusals", some(failures.refusals));
            line("entry", &own.name, "timeouts", some(failures.timeouts));
            line("entry", &own.name, "retries", some(failures.retries));
        }
        if let Some(quantiles) = own.percentiles {
            line("entry", &own.name, "p50", sure(quantiles.p50));
            line("entry", &own.name, "p95", sure(quantiles.p95));
            line("entry", &own.name, "p99", sure(quantiles.p99));
        }
    }
    for (processor, own) in model.processors.iter().zip(&found.processors) {
        line("processor", &own.name, "busy", Some(own.busy));
        line("processor", &own.name, "utilization", part(own.busy, processor.copies));
    }
    // The results of an entry's only phase are those of the entry.
    let mut alone = vec![false; model.activities.len()];
    for entry in &model.entries {
        if let EntryBody::Phases(phases) = &entry.body
            && let [only] = phases.as_slice()
        {
            alone[only.0] = true;
        }
    }
    for (own, _) in found.activities.iter().zip(alone).filter(|(_, alone)| !alone) {
        line(ACTIVITY, &own.name, "throughput", Some(own.throughput));
        line(ACTIVITY, &own.name, "service", Some(own.service));
    }
    lines
}

/// The overall results of the clients and the requests from outside.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct OverallResults {
    /// The rate of client cycles and of requests from outside, per unit of time.
    pub throughput: f64,
    /// The mean response time.
    pub response: f64,
}

impl OverallResults {
    /// Sets the response time to infinity if the model is overloaded: a simulation reports times that depend
    /// on its length.
    #[must_use]
    pub fn infinite_if_overloaded(self, model: &Model) -> Self {
        match crate::solve::overloaded_entry(model) {
            Some(_) => Self { response: f64::INFINITY, ..self },
            None => self,
        }
    }

    /// Computes the overall results of a model. The results of a replicated task are those of one replica and
    /// count once per replica.
    pub fn of(model: &Model, found: &ModelResults) -> Self {
        let clients = model.tasks.iter().zip(&found.tasks);
        let clients = clients.map(|(task, own)| (task.replicas, own.throughput, own.response));
        let open = model.entries.iter().zip(&found.entries);
        let open =
            open.map(|(entry, own)| (model.tasks[entry.task.0].replicas, own.throughput, own.response));
        let (mut throughput, mut time) = (0.0, 0.0);
        for (replicas, rate, response) in clients.chain(open) {
            if let Some(response) = response {
                let rate = f64::from(replicas.max(1)) * rate.mean;
                throughput += rate;
                time += rate * response.mean;
            }
        }
        Self { throughput, response: if throughput > 0.0 { time / throughput } else { 0.0 } }
    }
}
