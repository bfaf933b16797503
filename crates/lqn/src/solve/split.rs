//! Who gets what part of the requests where an entry forwards by a policy: what formulas need, which know no state.
//!
//! Chance, weights and sessions give each its share; turns give all the same. These are exact as rates. Who goes by loads
//! gives each what it can do: the least loaded in proportion to how fast targets are (its threads or its cores, whichever are
//! fewer, times its speed over its demand), of any two the less loaded its share, by which two are drawn. Who fills one before the
//! next gives all to the first that has as many threads as are needed. That waiting is then
//! less than by chance, is up to [`relief`](super::relief).
//!
//! Of targets that are alike that is exact. Of others it is where all are busy; with less to do each gets the closer to its
//! weight the more often several are idle. That formulas leave out ([`are_alike`]).

use std::borrow::Cow;

use super::visits;
use crate::model::{Copies, Entry, EntryId, Model, Policy};

/// The model with those parts as the shares of forwarding entries.
pub(super) fn split(model: &Model) -> Cow<'_, Model> {
    let mut own = Cow::Borrowed(model);
    for (place, entry) in model.entries.iter().enumerate() {
        let Some(routing) = entry.routing else { continue };
        let parts: Vec<f64> = match routing.policy {
            Policy::Random | Policy::Weighted | Policy::Sticky | Policy::PowerOfTwo => continue,
            Policy::RoundRobin => vec![1.0; entry.forwards.len()],
            Policy::LeastLoaded => entry.forwards.iter().map(|(to, _)| speed(model, *to)).collect(),
            Policy::FirstAvailable => filled(model, entry),
        };
        let all: f64 = parts.iter().sum();
        if !(all > 0.0 && all.is_finite()) {
            continue;
        }
        let same =
            entry.forwards.iter().zip(&parts).all(|((_, share), part)| (share - part / all).abs() < 1e-12);
        if same {
            continue;
        }
        for ((_, share), part) in own.to_mut().entries[place].forwards.iter_mut().zip(parts) {
            *share = part / all;
        }
    }
    own
}

/// Who is filled one after the other: whoever stands first, up to the first with as many threads as are needed. How much of it
/// the first ones leave to the next depends on the load; of those each counts by how fast it is, which is right while all are busy.
fn filled(model: &Model, entry: &Entry) -> Vec<f64> {
    let endless = |to: &EntryId| model.task_of(*to).copies == Copies::Infinite;
    let last = entry.forwards.iter().position(|(to, _)| endless(to));
    let part = |place: usize, to: EntryId| match last {
        Some(last) if place > last => 0.0,
        _ => speed(model, to),
    };
    entry.forwards.iter().enumerate().map(|(place, (to, _))| part(place, *to)).collect()
}

/// Does the first of them have as many threads as are needed, so that none of the others is ever asked?
pub(super) fn first_has_all(model: &Model, entry: &Entry) -> bool {
    entry.forwards.first().is_some_and(|(to, _)| model.task_of(*to).copies == Copies::Infinite)
}

/// Requests per unit of time that an entry could do at most, by its threads and its processor; 1 where nothing bounds it.
fn speed(model: &Model, entry: EntryId) -> f64 {
    let Target { servers, service } = Target::of(model, entry);
    let rate = servers / service;
    if rate.is_finite() && rate > 0.0 { rate } else { 1.0 }
}

/// Whom an entry forwards to.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Target {
    /// Requests that it can work on at once: its threads or its cores, whichever are fewer.
    servers: f64,
    /// Time that the work of one takes, of all its phases.
    service: f64,
}

impl Target {
    fn of(model: &Model, entry: EntryId) -> Self {
        let task = model.task_of(entry);
        let processor = &model.processors[task.processor.0];
        let course = visits::course(model, entry.0);
        let work: f64 = course
            .iter()
            .map(|part| (part.before + part.after) * model.activities[part.activity].demand)
            .sum();
        let servers = super::net::many(task.copies).min(super::net::many(processor.copies));
        Self { servers, service: work / processor.speed }
    }
}

/// Are all alike to whom this entry forwards, and is each to get as much as any other?
pub(super) fn are_alike(model: &Model, entry: &Entry) -> bool {
    let mut targets = entry.forwards.iter().map(|(to, share)| (Target::of(model, *to), *share));
    let Some((first, part)) = targets.next() else { return true };
    let same =
        |one: f64, other: f64| one == other || (one - other).abs() <= 1e-9 * one.abs().max(other.abs());
    targets.all(|(own, share)| {
        same(own.servers, first.servers) && same(own.service, first.service) && same(share, part)
    })
}
