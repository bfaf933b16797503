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
pub fn result_lines(model: &Model, results: &ModelResults) -> Vec<ResultLine> {
    let mut lines = Vec::new();
    let mut line = |kind, name: &str, metric, value: Option<Estimate>| {
        lines.extend(value.map(|value| ResultLine { kind, name: name.to_owned(), metric, value }));
    };
    let per_copy = |mean_busy: Estimate, copies| match copies {
        Multiplicity::Finite(count) => {
            let count = f64::from(count);
            Some(Estimate { mean: mean_busy.mean / count, half_width: mean_busy.half_width / count })
        }
        Multiplicity::Infinite => None,
    };
    let exact = |mean| Some(Estimate { mean, half_width: 0.0 });
    for (task, task_results) in model.tasks.iter().zip(&results.tasks) {
        line("task", &task_results.name, "throughput", Some(task_results.throughput));
        line("task", &task_results.name, "busy", Some(task_results.busy));
        if !task.is_client() {
            line("task", &task_results.name, "utilization", per_copy(task_results.busy, task.copies));
        }
        line("task", &task_results.name, "response", task_results.response);
        line("task", &task_results.name, "goodput", task_results.goodput);
        if let Some(quantiles) = task_results.percentiles {
            line("task", &task_results.name, "p50", exact(quantiles.p50));
            line("task", &task_results.name, "p95", exact(quantiles.p95));
            line("task", &task_results.name, "p99", exact(quantiles.p99));
        }
    }
    for entry_results in &results.entries {
        line("entry", &entry_results.name, "throughput", Some(entry_results.throughput));
        line("entry", &entry_results.name, "waiting", Some(entry_results.waiting));
        line("entry", &entry_results.name, "service", Some(entry_results.service));
        line("entry", &entry_results.name, "response", entry_results.response);
        line("entry", &entry_results.name, "goodput", entry_results.goodput);
        // Only failures that occurred.
        if let Some(failures) = entry_results.failures {
            let if_positive = |estimate: Estimate| Some(estimate).filter(|estimate| estimate.mean > 0.0);
            line("entry", &entry_results.name, "refusals", if_positive(failures.refusals));
            line("entry", &entry_results.name, "timeouts", if_positive(failures.timeouts));
            line("entry", &entry_results.name, "retries", if_positive(failures.retries));
        }
        if let Some(quantiles) = entry_results.percentiles {
            line("entry", &entry_results.name, "p50", exact(quantiles.p50));
            line("entry", &entry_results.name, "p95", exact(quantiles.p95));
            line("entry", &entry_results.name, "p99", exact(quantiles.p99));
        }
    }
    for (processor, processor_results) in model.processors.iter().zip(&results.processors) {
        line("processor", &processor_results.name, "busy", Some(processor_results.busy));
        line(
            "processor",
            &processor_results.name,
            "utilization",
            per_copy(processor_results.busy, processor.copies),
        );
    }
    // The results of an entry's only phase are those of the entry.
    let mut is_only_phase = vec![false; model.activities.len()];
    for entry in &model.entries {
        if let EntryBody::Phases(phases) = &entry.body
            && let [only_phase] = phases.as_slice()
        {
            is_only_phase[only_phase.0] = true;
        }
    }
    for (activity, _) in results.activities.iter().zip(is_only_phase).filter(|(_, is_only)| !is_only) {
        line(ACTIVITY, &activity.name, "throughput", Some(activity.throughput));
        line(ACTIVITY, &activity.name, "service", Some(activity.service));
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
    pub fn of(model: &Model, results: &ModelResults) -> Self {
        let clients = model.tasks.iter().zip(&results.tasks);
        let clients = clients
            .map(|(task, task_results)| (task.replicas, task_results.throughput, task_results.response));
        let open_entries = model.entries.iter().zip(&results.entries);
        let open_responses = open_entries.map(|(entry, entry_results)| {
            (model.tasks[entry.task.0].replicas, entry_results.throughput, entry_results.response)
        });
        let (mut throughput, mut total_time) = (0.0, 0.0);
        for (replicas, rate, response) in clients.chain(open_responses) {
            if let Some(response) = response {
                let rate = f64::from(replicas.max(1)) * rate.mean;
                throughput += rate;
                total_time += rate * response.mean;
            }
        }
        Self { throughput, response: if throughput > 0.0 { total_time / throughput } else { 0.0 } }
    }
}
