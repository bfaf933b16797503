//! Probabilities as numbers that can be changed: where an entry forwards by chance, which way is gone after an activity, and how
//! often a loop does what is in it. Where one of several probabilities changes, the others keep their parts to one another and have
//! what is left to what all had.

use super::{Knob, absent, goes_by};
use crate::Model;
use crate::model::{ActivityId, Entry, EntryId, Next};

/// `FROM.TO`, of an entry that forwards by chance, or of an activity that one of several ways follows.
pub(super) fn probability(model: &Model, whose: &str) -> Result<Knob, String> {
    let mut names = Vec::new();
    for (place, own) in model.entries.iter().enumerate() {
        for (number, (to, _)) in own.forwards.iter().enumerate() {
            let to = &model.entries[to.0].name;
            if is(whose, to, |from| goes_by(model, own, from)) {
                let why = || format!("`{}` forwards by a policy: set `{whose}.weight`", own.name);
                let found = Knob::Forward(EntryId(place), number);
                return if own.routing.is_some() { Err(why()) } else { Ok(found) };
            }
            if own.routing.is_none() {
                names.push(format!("{}.{to}", own.name));
            }
        }
    }
    for (place, number, from, to) in places(model, branches) {
        if is(whose, to, |name| name == from) {
            return Ok(Knob::Branch(place, number));
        }
        names.push(format!("{from}.{to}"));
    }
    Err(absent("FROM.TO that is a matter of chance:", whose, names))
}

/// `FROM.TO`, of an activity that a loop follows.
pub(super) fn turns(model: &Model, whose: &str) -> Result<Knob, String> {
    let mut all = places(model, bodies).into_iter();
    let found = all.find(|(_, _, from, to)| is(whose, to, |name| name == *from));
    let names = || places(model, bodies).into_iter().map(|(_, _, from, to)| format!("{from}.{to}")).collect();
    found
        .map(|(place, number, ..)| Knob::Turns(place, number))
        .ok_or_else(|| absent("FROM.TO of a loop", whose, names()))
}

/// What of that kind follows.
type Kind = fn(&Next) -> Option<&[(f64, ActivityId)]>;

/// Is it `FROM.TO`?
fn is(whose: &str, to: &str, from: impl Fn(&str) -> bool) -> bool {
    whose.strip_suffix(to).and_then(|whose| whose.strip_suffix('.')).is_some_and(from)
}

/// What follows activities, if it is of that kind: which activity, the place in it, and the names of both ends.
fn places(model: &Model, kind: Kind) -> Vec<(ActivityId, usize, &str, &str)> {
    let mut all = Vec::new();
    for (place, own) in model.activities.iter().enumerate() {
        for (number, (_, to)) in kind(last(&own.next)).into_iter().flatten().enumerate() {
            all.push((ActivityId(place), number, own.name.as_str(), model.activities[to.0].name.as_str()));
        }
    }
    all
}

fn branches(next: &Next) -> Option<&[(f64, ActivityId)]> {
    match next {
        // Of a single one it is certain.
        Next::Or(ways) if ways.len() > 1 => Some(ways),
        _ => None,
    }
}

fn bodies(next: &Next) -> Option<&[(f64, ActivityId)]> {
    match next {
        Next::Loop { bodies, .. } => Some(bodies),
        _ => None,
    }
}

/// What follows after all joins.
fn last(next: &Next) -> &Next {
    let mut next = next;
    while let Next::Join { then, .. } = next {
        next = then;
    }
    next
}

/// The ways after an activity, or what a loop does.
fn those(model: &mut Model, from: ActivityId) -> &mut [(f64, ActivityId)] {
    let mut next = &mut model.activities[from.0].next;
    while let Next::Join { then, .. } = next {
        next = then;
    }
    match next {
        Next::Or(ways) => ways,
        Next::Loop { bodies, .. } => bodies,
        _ => &mut [],
    }
}

/// How probable a way is, or how often a loop does that.
pub(super) fn share(model: &Model, from: ActivityId, place: usize) -> f64 {
    let next = last(&model.activities[from.0].next);
    let found = branches(next).or_else(|| bodies(next)).and_then(|all| all.get(place));
    found.map_or(0.0, |(share, _)| *share)
}

/// Forwards to one target with that probability. What was answered by the entry itself stays as probable, as far as there is
/// room.
pub(super) fn forward(entry: &mut Entry, place: usize, value: f64) -> Result<(), String> {
    let shares = entry.forwards.iter_mut().map(|(_, share)| share);
    spread(shares.collect(), place, value)
}

/// One of the ways after an activity has that probability.
pub(super) fn branch(model: &mut Model, from: ActivityId, place: usize, value: f64) -> Result<(), String> {
    spread(those(model, from).iter_mut().map(|(share, _)| share).collect(), place, value)
}

/// A loop does one of the things in it so often.
pub(super) fn turn(model: &mut Model, from: ActivityId, place: usize, value: f64) -> Result<(), String> {
    if value > 1e6 {
        return Err(format!("there cannot be {value} turns: at most 1000000"));
    }
    if let Some((count, _)) = those(model, from).get_mut(place) {
        *count = value;
    }
    Ok(())
}

/// One of these probabilities is that; the others have what is left to what all had.
fn spread(mut all: Vec<&mut f64>, place: usize, value: f64) -> Result<(), String> {
    if value > 1.0 {
        return Err(format!("it cannot be {value}: a probability is from 0 to 1"));
    }
    let whole: f64 = all.iter().map(|share| **share).sum();
    let others = whole - all.get(place).map_or(0.0, |share| **share);
    let left = (whole - value).max(0.0);
    let count = all.len().saturating_sub(1).max(1) as f64;
    for (number, share) in all.iter_mut().enumerate() {
        if number == place {
            **share = value;
        } else {
            **share = if others > 0.0 { **share * left / others } else { left / count };
        }
    }
    Ok(())
}
