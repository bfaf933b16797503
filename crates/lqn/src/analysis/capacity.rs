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
        let mark = ["<=", ">=", "<", ">"].into_iter().find(|mark| text.contains(mark));
        let parts = mark.and_then(|mark| Some((mark, text.split_once(mark)?)));
        let Some((mark, (left, right))) = parts else {
            return Err("expected a goal such as response<0.5 or client.p95<2".to_owned());
        };
        let bound = right.trim().parse().ok().filter(|bound: &f64| bound.is_finite());
        let bound = bound.ok_or_else(|| format!("`{}` is no number", right.trim()))?;
        Ok(Self {
            text: text.to_owned(),
            metric: MetricSelector::parse(left)?,
            is_upper_bound: mark.starts_with('<'),
            is_inclusive: mark.ends_with('='),
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
    let mut tried = |load: f64| -> Result<LoadTrial, E> {
        let (model, found) = try_load(load)?;
        Ok(match found {
            Err(stuck) => {
                LoadTrial { load, outcome: Err(stuck), failure: Some(MissedGoal::Unsolvable(stuck)) }
            }
            Ok(found) => {
                let unseen = || found.unseen.first().cloned().map(MissedGoal::NoneFinished);
                let overload = || crate::solve::overloaded_entry(&model).map(MissedGoal::QueueGrows);
                let missed = growing_queue(&model, &found).or_else(overload).or_else(unseen);
                let missed = missed.or_else(|| self::missed(goals, &result_lines(&model, &found)));
                LoadTrial { load, outcome: Ok((model, found)), failure: missed }
            }
        })
    };
    let first = tried(range.from)?;
    if first.failure.is_some() {
        return Ok((None, Some(first)));
    }
    let mut good = first;
    let mut bad = None;
    while bad.is_none() && good.load < range.to {
        let next = tried((good.load * 2.0).min(range.to))?;
        if next.failure.is_some() { bad = Some(next) } else { good = next }
    }
    while let Some(own) = &bad {
        let mut middle = good.load + (own.load - good.load) / 2.0;
        if range.is_whole {
            middle = middle.floor();
        }
        let near = if range.is_whole { own.load - good.load <= 1.0 } else { own.load <= 1.005 * good.load };
        if near || middle <= good.load {
            break;
        }
        let next = tried(middle)?;
        if next.failure.is_some() { bad = Some(next) } else { good = next }
    }
    Ok((Some(good), bad))
}

/// Finds an entry whose throughput from outside is below its arrivals by more than chance explains.
fn growing_queue(model: &Model, found: &ModelResults) -> Option<MissedGoal> {
    let mut entries = model.entries.iter().zip(&found.entries);
    let piles = |(entry, own): &(&Entry, &EntryResults)| {
        own.throughput.mean + 2.0 * own.throughput.half_width < TAKEN * entry.arrivals
    };
    entries.find(piles).map(|(entry, _)| MissedGoal::QueueGrows(entry.name.clone()))
}

fn missed(goals: &[PerformanceGoal], lines: &[ResultLine]) -> Option<MissedGoal> {
    goals.iter().enumerate().find_map(|(place, goal)| {
        let line = goal.metric.select(lines).into_iter().find(|line| !goal.is_met_by(line.value.mean))?;
        Some(MissedGoal::Unmet(place, line.clone()))
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
