//! Finds the largest load that meets goals such as `response < 0.5`, `client.p95 < 2` or
//! `cpu.utilization < 0.8`.

use super::metric::MetricSelector;
use super::{ResultLine, result_lines};
use crate::model::Entry;
use crate::simulate::EntryResults;
use crate::{Model, ModelResults, SimulationError};

/// A bound for a metric.
#[derive(Clone, Debug, PartialEq)]
pub struct PerformanceGoal {
    /// The goal as written.
    pub text: String,
    /// The metric; the goal applies to everything that has it.
    pub metric: MetricSelector,
    /// Whether the number is an upper bound; otherwise it is a lower bound.
    pub is_upper_bound: bool,
    /// Whether the bound itself meets the goal.
    pub is_inclusive: bool,
    /// The bound.
    pub bound: f64,
}

impl PerformanceGoal {
    /// Parses a goal such as `response<0.5` or `client.p95<=2`.
    ///
    /// # Errors
    /// Returns a description of the expected form.
    pub fn parse(text: &str) -> Result<Self, String> {
        let operator = ["<=", ">=", "<", ">"].into_iter().find(|symbol| text.contains(symbol));
        let sides = operator.and_then(|operator| Some((operator, text.split_once(operator)?)));
        let Some((operator, (left, right))) = sides else {
            return Err("expected a goal such as response<0.5 or client.p95<2".to_owned());
        };
        let bound = right.trim().parse().ok().filter(|bound: &f64| bound.is_finite());
        let bound = bound.ok_or_else(|| format!("`{}` is no number", right.trim()))?;
        Ok(Self {
            text: text.to_owned(),
            metric: MetricSelector::parse(left)?,
            is_upper_bound: operator.starts_with('<'),
            is_inclusive: operator.ends_with('='),
            bound,
        })
    }

    /// Returns `true` if a value meets the goal.
    pub fn is_met_by(&self, value: f64) -> bool {
        match (self.is_upper_bound, self.is_inclusive) {
            (true, true) => value <= self.bound,
            (true, false) => value < self.bound,
            (false, true) => value >= self.bound,
            (false, false) => value > self.bound,
        }
    }
}

/// The outcome of one load.
#[derive(Clone, Debug)]
pub struct LoadTrial {
    /// The load.
    pub load: f64,
    /// The model with this load and its results.
    pub outcome: Result<(Model, ModelResults), SimulationError>,
    /// The reason why the load is too high, if it is.
    pub failure: Option<MissedGoal>,
}

/// The reason why a load is too high.
#[derive(Clone, Debug, PartialEq)]
pub enum MissedGoal {
    /// The model cannot be solved with it.
    Unsolvable(SimulationError),
    /// The entry of this name receives more requests than it serves.
    QueueGrows(String),
    /// No request of these clients, or from outside to this entry, ended within the simulated time.
    NoneFinished(String),
    /// The goal with this index is not met by this result.
    Unmet(usize, ResultLine),
}

/// The share of the arrivals that an entry must serve; below it, its queue grows.
const TAKEN: f64 = 0.98;

/// The range of loads to search.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LoadRange {
    /// The least load.
    pub from: f64,
    /// The greatest load.
    pub to: f64,
    /// Whether loads are whole numbers; otherwise the result is accurate to 0.5 %.
    pub is_whole: bool,
}

/// Returns the largest load that meets every goal, if any, and the smallest tried load that does not. Doubles
/// the load until one fails, then bisects. This requires that a load below one that meets the goals meets
/// them too.
///
/// # Errors
/// Returns the errors of `try_load` that concern all loads.
pub fn find_capacity<E>(
    range: LoadRange,
    goals: &[PerformanceGoal],
    mut try_load: impl FnMut(f64) -> Result<(Model, Result<ModelResults, SimulationError>), E>,
) -> Result<(Option<LoadTrial>, Option<LoadTrial>), E> {
    let mut trial = |load: f64| -> Result<LoadTrial, E> {
        let (model, outcome) = try_load(load)?;
        Ok(match outcome {
            Err(error) => {
                LoadTrial { load, outcome: Err(error), failure: Some(MissedGoal::Unsolvable(error)) }
            }
            Ok(results) => {
                let unfinished = || results.unseen.first().cloned().map(MissedGoal::NoneFinished);
                let overload = || crate::solve::overloaded_entry(&model).map(MissedGoal::QueueGrows);
                let missed_load = growing_queue(&model, &results).or_else(overload).or_else(unfinished);
                let failure = missed_load.or_else(|| missed_goal(goals, &result_lines(&model, &results)));
                LoadTrial { load, outcome: Ok((model, results)), failure }
            }
        })
    };
    let first = trial(range.from)?;
    if first.failure.is_some() {
        return Ok((None, Some(first)));
    }
    let mut passed = first;
    let mut failed = None;
    while failed.is_none() && passed.load < range.to {
        let next_trial = trial((passed.load * 2.0).min(range.to))?;
        if next_trial.failure.is_some() { failed = Some(next_trial) } else { passed = next_trial }
    }
    while let Some(failed_trial) = &failed {
        let mut middle_load = passed.load + (failed_trial.load - passed.load) / 2.0;
        if range.is_whole {
            middle_load = middle_load.floor();
        }
        let is_near = if range.is_whole {
            failed_trial.load - passed.load <= 1.0
        } else {
            failed_trial.load <= 1.005 * passed.load
        };
        if is_near || middle_load <= passed.load {
            break;
        }
        let next_trial = trial(middle_load)?;
        if next_trial.failure.is_some() { failed = Some(next_trial) } else { passed = next_trial }
    }
    Ok((Some(passed), failed))
}

/// Finds an entry whose throughput from outside is below its arrivals by more than chance explains.
fn growing_queue(model: &Model, results: &ModelResults) -> Option<MissedGoal> {
    let mut entries = model.entries.iter().zip(&results.entries);
    let has_growing_queue = |(entry, entry_results): &(&Entry, &EntryResults)| {
        entry_results.throughput.mean + 2.0 * entry_results.throughput.half_width < TAKEN * entry.arrivals
    };
    entries.find(has_growing_queue).map(|(entry, _)| MissedGoal::QueueGrows(entry.name.clone()))
}

fn missed_goal(goals: &[PerformanceGoal], lines: &[ResultLine]) -> Option<MissedGoal> {
    goals.iter().enumerate().find_map(|(index, goal)| {
        let line = goal.metric.select(lines).into_iter().find(|line| !goal.is_met_by(line.value.mean))?;
        Some(MissedGoal::Unmet(index, line.clone()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn goals_are_read() {
        let goal = PerformanceGoal::parse("client.p95 <= 2").unwrap();
        assert_eq!((goal.metric.name.as_deref(), goal.metric.metric), (Some("client"), "p95"));
        assert!(goal.is_met_by(2.0) && !goal.is_met_by(2.1));
        let goal = PerformanceGoal::parse("throughput>3").unwrap();
        assert!(goal.is_met_by(3.1) && !goal.is_met_by(3.0) && goal.metric.name.is_none());
        for wrong in ["response", "speed<3", "response<x", "response<inf", ""] {
            assert!(PerformanceGoal::parse(wrong).is_err(), "{wrong}");
        }
    }
}
