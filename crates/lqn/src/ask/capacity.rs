//! The largest load with which goals are kept: `response < 0.5`, `client.p95 < 2`, `cpu.utilization < 0.8`.

use super::metric::Metric;
use super::{Line, lines};
use crate::model::Entry;
use crate::simulate::EntryFinding;
use crate::{Findings, Model, Stuck};

/// Something that is to stay on one side of a number.
#[derive(Clone, Debug, PartialEq)]
pub struct Goal {
    /// As it was given.
    pub text: String,
    /// Of what; everything that has such a number keeps it.
    pub metric: Metric,
    /// Is the number the most that may be, or the least?
    pub most: bool,
    /// The number itself is allowed.
    pub including: bool,
    /// The number.
    pub bound: f64,
}

impl Goal {
    /// `response<0.5`, `client.p95<=2`
    ///
    /// # Errors
    /// What is expected.
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

    /// Does a number keep it?
    pub fn allows(&self, value: f64) -> bool {
        match (self.most, self.including) {
            (true, true) => value <= self.bound,
            (true, false) => value < self.bound,
            (false, true) => value >= self.bound,
            (false, false) => value > self.bound,
        }
    }
}

/// A load that was tried.
#[derive(Clone, Debug)]
pub struct Tried {
    /// The load.
    pub load: f64,
    /// What it does.
    pub found: Result<(Model, Findings), Stuck>,
    /// Why it is too much, if it is.
    pub missed: Option<Missed>,
}

/// Why a load is too much.
#[derive(Clone, Debug, PartialEq)]
pub enum Missed {
    /// The model cannot be solved with it.
    Stuck(Stuck),
    /// More comes to the entry of this name than is served.
    Grows(String),
    /// Of these clients, or requests from outside, none came to an end while it was simulated.
    Unseen(String),
    /// The goal at this place is missed by this number.
    Goal(usize, Line),
}

/// So much of what comes from outside has to be taken, or it piles up.
const TAKEN: f64 = 0.98;

/// Where loads are looked for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Range {
    /// The least.
    pub from: f64,
    /// The most.
    pub to: f64,
    /// Only whole numbers; otherwise to within half a percent.
    pub whole: bool,
}

/// The largest load that keeps every goal, if there is one, and the smallest that was tried and does not. Loads are
/// doubled until one fails, and then halved in between: right where what keeps a goal keeps it with less load, too.
///
/// # Errors
/// Those of `tried`, which are not about a load but about all of them.
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

/// Where more comes from outside than is served, beyond what chance can do.
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
