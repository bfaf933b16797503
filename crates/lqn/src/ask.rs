//! What a user asks of a model, whichever way it is solved: whoever asks says how ([`Solve`]).
//!
//! Answers are compared as lines ([`lines`]): one number each, under the words that the results of all ways have.

use serde::Serialize;

use crate::model::{Body, Copies};
use crate::{Estimate, Findings, Model, Stuck};

pub mod bottleneck;
pub mod capacity;
pub mod knob;
pub mod metric;
pub mod remedy;
pub mod sweep;

/// A way to find out what a model does.
pub type Solve<'s> = dyn Fn(&Model) -> Result<Findings, Stuck> + Sync + 's;

/// One number of a result.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Line {
    /// `task`, `entry` or `processor`; of what has several phases, or a graph, `activity`, too.
    pub kind: &'static str,
    /// Which of them.
    pub name: String,
    /// `throughput`, `busy`, `utilization` (busy, as a part of all there are), `response`, `p50`, `p95`, `p99`,
    /// `waiting` or `service`; where calls can fail `goodput`, `refusals`, `timeouts` and `retries`, per unit of time.
    pub metric: &'static str,
    /// The number; percentiles have no interval.
    pub value: Estimate,
}

/// What a phase, or an activity of a graph, is as a line.
pub const ACTIVITY: &str = "activity";

/// Everything that was found of tasks, entries and processors, and of what has several phases or a graph of each of those,
/// too: an entry has the time until it answers only.
pub fn lines(model: &Model, found: &Findings) -> Vec<Line> {
    let mut lines = Vec::new();
    let mut line = |kind, name: &str, metric, value: Option<Estimate>| {
        lines.extend(value.map(|value| Line { kind, name: name.to_owned(), metric, value }));
    };
    let part = |busy: Estimate, copies| match copies {
        Copies::Some(count) => {
            let count = f64::from(count);
            Some(Estimate { mean: busy.mean / count, half_width: busy.half_width / count })
        }
        Copies::Infinite => None,
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
        // Only where there are any.
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
    // Of the only phase of an entry everything stands with the entry.
    let mut alone = vec![false; model.activities.len()];
    for entry in &model.entries {
        if let Body::Phases(phases) = &entry.body
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

/// What all who ask get, over clients and requests from outside.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Whole {
    /// Rounds and requests from outside, per unit of time.
    pub throughput: f64,
    /// Mean time of one of them.
    pub response: f64,
}

impl Whole {
    /// Where more comes than can be served times have no end: a simulation's are as long as it was.
    #[must_use]
    pub fn unless_overloaded(self, model: &Model) -> Self {
        match crate::solve::overload(model) {
            Some(_) => Self { response: f64::INFINITY, ..self },
            None => self,
        }
    }

    /// Of these results of a model. What stands there of something with replicas is of one of them, and counts as often as there
    /// are.
    pub fn of(model: &Model, found: &Findings) -> Self {
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
