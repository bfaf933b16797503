//! Finds the largest load that meets goals such as `response < 0.5`, `client.p95 < 2` or
//! `cpu.utilization < 0.8`.

use super::metric::Metric;
use super::{Line, lines};
use crate::model::Entry;
use crate::simulate::EntryFinding;
use crate::{Findings, Model, Stuck};

/// A bound for a metric.
#[derive(Clone, Debug, PartialEq)]
pub struct Goal {
    /// The goal as written.
    pub text: String,
    /// The metric; the goal applies to everything that has it.
    pub metric: Metric,
    /// Whether the number is an upper bound; otherwise it is a lower bound.
    pub most: bool,
    /// Whether the bound itself meets the goal.
    pub including: bool,
    /// The bound.
    pub bound: f64,
}

impl Goal {
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
            metric: Metric::parse(left)?,
            most: mark.starts_with('<'),
            including: mark.ends_with('='),
            bound,
        })
    }

    /// Returns `true` if a value meets the goal.
    pub fn allows(&self, value: f64) -> bool {
        match (self.most, self.including) {
            (true, true) => value <= self.bound,
            (true, false) => value < self.bound,
            (false, true) => value >= self.bound,
            (false, false) => value > self.bound,
        }
    }
}

/// The outcome of one load.
#[derive(Clone, Debug)]
pub struct Tried {
    /// The load.
    pub load: f64,
    /// The model with this load and its results.
    pub found: Result<(Model, Findings), Stuck>,
    /// The reason why the load is too high, if it is.
    pub missed: Option<Missed>,
}

/// The reason why a load is too high.
#[derive(Clone, Debug, PartialEq)]
pub enum Missed {
    /// The model cannot be solved with it.
    Stuck(Stuck),
    /// The entry of this name receives more requests than it serves.
    Grows(String),
    /// No request of these clients, or from outside to this entry, ended within the simulated time.
    Unseen(String),
    /// The goal with this index is not met by this result.
    Goal(usize, Line),
}

/// The share of the arrivals that an entry must serve; below it, its queue grows.
const TAKEN: f64 = 0.98;

/// The range of loads to search.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Range {
    /// The least load.
    pub from: f64,
    /// The greatest load.
    pub to: f64,
    /// Whether loads are whole numbers; otherwise the result is accurate to 0.5 %.
    pub whole: bool,
}

/// Returns the largest load that meets every goal, if any, and the smallest tried load that does not. Doubles
/// the load until one fails, then bisects. This requires that a load below one that meets the goals meets
/// them too.
///
/// # Errors
/// Returns the errors of `try_load` that concern all loads.
pub fn capacity<E>(
    range: Range,
    goals: &[Goal],
    mut try_load: impl FnMut(f64) -> Result<(Model, Result<Findings, Stuck>), E>,
) -> Result<(Option<Tried>, Option<Tried>), E> {
    let mut tried = |load: f64| -> Result<Tried, E> {
        let (model, found) = try_load(load)?;
        Ok(match found {
            Err(stuck) => Tried { load, found: Err(stuck), missed: Some(Missed::Stuck(stuck)) },
            Ok(found) => {
                let unseen = || found.unseen.first().cloned().map(Missed::Unseen);
                let overload = || crate::solve::overload(&model).map(Missed::Grows);
                let missed = grows(&model, &found).or_else(overload).or_else(unseen);
                let missed = missed.or_else(|| self::missed(goals, &lines(&model, &found)));
                Tried { load, found: Ok((model, found)), missed }
            }
        })
    };
    let first = tried(range.from)?;
    if first.missed.is_some() {
        return Ok((None, Some(first)));
    }
    let mut good = first;
    let mut bad = None;
    while bad.is_none() && good.load < range.to {
        let next = tried((good.load * 2.0).min(range.to))?;
        if next.missed.is_some() { bad = Some(next) } else { good = next }
    }
    while let Some(own) = &bad {
        let mut middle = good.load + (own.load - good.load) / 2.0;
        if range.whole {
            middle = middle.floor();
        }
        let near = if range.whole { own.load - good.load <= 1.0 } else { own.load <= 1.005 * good.load };
        if near || middle <= good.load {
            break;
        }
        let next = tried(middle)?;
        if next.missed.is_some() { bad = Some(next) } else { good = next }
    }
    Ok((Some(good), bad))
}

/// Finds an entry whose throughput from outside is below its arrivals by more than chance explains.
fn grows(model: &Model, found: &Findings) -> Option<Missed> {
    let mut entries = model.entries.iter().zip(&found.entries);
    let piles = |(entry, own): &(&Entry, &EntryFinding)| {
        own.throughput.mean + 2.0 * own.throughput.half_width < TAKEN * entry.arrivals
    };
    entries.find(piles).map(|(entry, _)| Missed::Grows(entry.name.clone()))
}

fn missed(goals: &[Goal], lines: &[Line]) -> Option<Missed> {
    goals.iter().enumerate().find_map(|(place, goal)| {
        let line = goal.metric.of(lines).into_iter().find(|line| !goal.allows(line.value.mean))?;
        Some(Missed::Goal(place, line.clone()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn goals_are_read() {
        let goal = Goal::parse("client.p95 <= 2").unwrap();
        assert_eq!((goal.metric.name.as_deref(), goal.metric.metric), (Some("client"), "p95"));
        assert!(goal.allows(2.0) && !goal.allows(2.1));
        let goal = Goal::parse("throughput>3").unwrap();
        assert!(goal.allows(3.1) && !goal.allows(3.0) && goal.metric.name.is_none());
        for wrong in ["response", "speed<3", "response<x", "response<inf", ""] {
            assert!(Goal::parse(wrong).is_err(), "{wrong}");
        }
    }
}
