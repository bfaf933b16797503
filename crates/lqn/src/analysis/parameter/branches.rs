//! Probabilities as parameters: of random forwarding, of the branches after an activity, and the mean runs of
//! loop bodies. If one of several probabilities changes, the others share the rest of the unchanged sum in
//! their previous ratios.

use super::{ModelParameter, is_named, unknown_name};
use crate::Model;
use crate::model::{ActivityId, Entry, EntryId, Successors};

/// Finds `FROM.TO` of an entry that forwards at random, or of an activity with several branches.
pub(super) fn probability(model: &Model, whose: &str) -> Result<ModelParameter, String> {
    let mut names = Vec::new();
    for (place, own) in model.entries.iter().enumerate() {
        for (number, (to, _)) in own.forwards.iter().enumerate() {
            let to = &model.entries[to.0].name;
            if is_pair_name(whose, to, |from| is_named(model, own, from)) {
                let why = || format!("`{}` forwards by a policy: set `{whose}.weight`", own.name);
                let found = ModelParameter::ForwardProbability(EntryId(place), number);
                return if own.routing.is_some() { Err(why()) } else { Ok(found) };
            }
            if own.routing.is_none() {
                names.push(format!("{}.{to}", own.name));
            }
        }
    }
    for (place, number, from, to) in all_branches(model, branches) {
        if is_pair_name(whose, to, |name| name == from) {
            return Ok(ModelParameter::BranchProbability(place, number));
        }
        names.push(format!("{from}.{to}"));
    }
    Err(unknown_name("FROM.TO that is a matter of chance:", whose, names))
}

/// Finds `FROM.TO` of an activity that a loop follows.
pub(super) fn loop_count(model: &Model, whose: &str) -> Result<ModelParameter, String> {
    let mut all = all_branches(model, bodies).into_iter();
    let found = all.find(|(_, _, from, to)| is_pair_name(whose, to, |name| name == *from));
    let names =
        || all_branches(model, bodies).into_iter().map(|(_, _, from, to)| format!("{from}.{to}")).collect();
    found
        .map(|(place, number, ..)| ModelParameter::LoopCount(place, number))
        .ok_or_else(|| unknown_name("FROM.TO of a loop", whose, names()))
}

/// Selects the successors of one kind.
type BranchSelector = fn(&Successors) -> Option<&[(f64, ActivityId)]>;

/// Returns `true` if a name is `FROM.TO`.
fn is_pair_name(whose: &str, to: &str, from: impl Fn(&str) -> bool) -> bool {
    whose.strip_suffix(to).and_then(|whose| whose.strip_suffix('.')).is_some_and(from)
}

/// Returns the successors of one kind of all activities: the activity, the index, and the names of both ends.
fn all_branches(model: &Model, kind: BranchSelector) -> Vec<(ActivityId, usize, &str, &str)> {
    let mut all = Vec::new();
    for (place, own) in model.activities.iter().enumerate() {
        for (number, (_, to)) in kind(after_joins(&own.successors)).into_iter().flatten().enumerate() {
            all.push((ActivityId(place), number, own.name.as_str(), model.activities[to.0].name.as_str()));
        }
    }
    all
}

fn branches(next: &Successors) -> Option<&[(f64, ActivityId)]> {
    match next {
        // A single branch is certain.
        Successors::Or(ways) if ways.len() > 1 => Some(ways),
        _ => None,
    }
}

fn bodies(next: &Successors) -> Option<&[(f64, ActivityId)]> {
    match next {
        Successors::Loop { bodies, .. } => Some(bodies),
        _ => None,
    }
}

/// Returns the successor after all joins.
fn after_joins(next: &Successors) -> &Successors {
    let mut next = next;
    while let Successors::Join { then, .. } = next {
        next = then;
    }
    next
}

/// Returns the branches after an activity, or the bodies of a loop.
fn branches_mut(model: &mut Model, from: ActivityId) -> &mut [(f64, ActivityId)] {
    let mut next = &mut model.activities[from.0].successors;
    while let Successors::Join { then, .. } = next {
        next = then;
    }
    match next {
        Successors::Or(ways) => ways,
        Successors::Loop { bodies, .. } => bodies,
        _ => &mut [],
    }
}

/// Returns the probability of a branch, or the mean runs of a loop body.
pub(super) fn branch_value(model: &Model, from: ActivityId, place: usize) -> f64 {
    let next = after_joins(&model.activities[from.0].successors);
    let found = branches(next).or_else(|| bodies(next)).and_then(|all| all.get(place));
    found.map_or(0.0, |(share, _)| *share)
}

/// Sets the probability of forwarding to one target. The probability that the entry replies itself is
/// unchanged, as far as possible.
pub(super) fn set_forward(entry: &mut Entry, place: usize, value: f64) -> Result<(), String> {
    let shares = entry.forwards.iter_mut().map(|(_, share)| share);
    set_and_rescale(shares.collect(), place, value)
}

/// Sets the probability of one branch after an activity.
pub(super) fn set_branch(
    model: &mut Model,
    from: ActivityId,
    place: usize,
    value: f64,
) -> Result<(), String> {
    set_and_rescale(branches_mut(model, from).iter_mut().map(|(share, _)| share).collect(), place, value)
}

/// Sets the mean runs of one loop body.
pub(super) fn set_loop_count(
    model: &mut Model,
    from: ActivityId,
    place: usize,
    value: f64,
) -> Result<(), String> {
    if value > 1e6 {
        return Err(format!("there cannot be {value} turns: at most 1000000"));
    }
    if let Some((count, _)) = branches_mut(model, from).get_mut(place) {
        *count = value;
    }
    Ok(())
}

/// Sets one probability; the others share the rest of the sum in their previous ratios.
fn set_and_rescale(mut all: Vec<&mut f64>, place: usize, value: f64) -> Result<(), String> {
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
