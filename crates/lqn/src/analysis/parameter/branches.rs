//! Probabilities as parameters: of random forwarding, of the branches after an activity, and the mean runs of
//! loop bodies. If one of several probabilities changes, the others share the rest of the unchanged sum in
//! their previous ratios.

use super::{ModelParameter, is_named, unknown_name};
use crate::Model;
use crate::model::{ActivityId, Entry, EntryId, Successors};

/// Finds `FROM.TO` of an entry that forwards at random, or of an activity with several branches.
pub(super) fn probability(model: &Model, name: &str) -> Result<ModelParameter, String> {
    let mut names = Vec::new();
    for (index, entry) in model.entries.iter().enumerate() {
        for (number, (to, _)) in entry.forwards.iter().enumerate() {
            let to = &model.entries[to.0].name;
            if is_pair_name(name, to, |from| is_named(model, entry, from)) {
                let error = || format!("`{}` forwards by a policy: set `{name}.weight`", entry.name);
                let parameter = ModelParameter::ForwardProbability(EntryId(index), number);
                return if entry.routing.is_some() { Err(error()) } else { Ok(parameter) };
            }
            if entry.routing.is_none() {
                names.push(format!("{}.{to}", entry.name));
            }
        }
    }
    for (index, number, from, to) in all_branches(model, branches) {
        if is_pair_name(name, to, |source| source == from) {
            return Ok(ModelParameter::BranchProbability(index, number));
        }
        names.push(format!("{from}.{to}"));
    }
    Err(unknown_name("FROM.TO that is a matter of chance:", name, names))
}

/// Finds `FROM.TO` of an activity that a loop follows.
pub(super) fn loop_count(model: &Model, name: &str) -> Result<ModelParameter, String> {
    let mut loops = all_branches(model, bodies).into_iter();
    let matching = loops.find(|(_, _, from, to)| is_pair_name(name, to, |source| source == *from));
    let names =
        || all_branches(model, bodies).into_iter().map(|(_, _, from, to)| format!("{from}.{to}")).collect();
    matching
        .map(|(index, number, ..)| ModelParameter::LoopCount(index, number))
        .ok_or_else(|| unknown_name("FROM.TO of a loop", name, names()))
}

/// Selects the successors of one kind.
type BranchSelector = fn(&Successors) -> Option<&[(f64, ActivityId)]>;

/// Returns `true` if a name is `FROM.TO`.
fn is_pair_name(name: &str, to: &str, from: impl Fn(&str) -> bool) -> bool {
    name.strip_suffix(to).and_then(|prefix| prefix.strip_suffix('.')).is_some_and(from)
}

/// Returns the successors of one kind of all activities: the activity, the index, and the names of both ends.
fn all_branches(model: &Model, select: BranchSelector) -> Vec<(ActivityId, usize, &str, &str)> {
    let mut found = Vec::new();
    for (index, activity) in model.activities.iter().enumerate() {
        for (number, (_, to)) in select(after_joins(&activity.successors)).into_iter().flatten().enumerate() {
            found.push((
                ActivityId(index),
                number,
                activity.name.as_str(),
                model.activities[to.0].name.as_str(),
            ));
        }
    }
    found
}

fn branches(successors: &Successors) -> Option<&[(f64, ActivityId)]> {
    match successors {
        // A single branch is certain.
        Successors::Or(branches) if branches.len() > 1 => Some(branches),
        _ => None,
    }
}

fn bodies(successors: &Successors) -> Option<&[(f64, ActivityId)]> {
    match successors {
        Successors::Loop { bodies, .. } => Some(bodies),
        _ => None,
    }
}

/// Returns the successor after all joins.
fn after_joins(successors: &Successors) -> &Successors {
    let mut current = successors;
    while let Successors::Join { then, .. } = current {
        current = then;
    }
    current
}

/// Returns the branches after an activity, or the bodies of a loop.
fn branches_mut(model: &mut Model, from: ActivityId) -> &mut [(f64, ActivityId)] {
    let mut next = &mut model.activities[from.0].successors;
    while let Successors::Join { then, .. } = next {
        next = then;
    }
    match next {
        Successors::Or(branches) => branches,
        Successors::Loop { bodies, .. } => bodies,
        _ => &mut [],
    }
}

/// Returns the probability of a branch, or the mean runs of a loop body.
pub(super) fn branch_value(model: &Model, from: ActivityId, index: usize) -> f64 {
    let successors = after_joins(&model.activities[from.0].successors);
    let branch = branches(successors).or_else(|| bodies(successors)).and_then(|siblings| siblings.get(index));
    branch.map_or(0.0, |(share, _)| *share)
}

/// Sets the probability of forwarding to one target. The probability that the entry replies itself is
/// unchanged, as far as possible.
pub(super) fn set_forward(entry: &mut Entry, index: usize, value: f64) -> Result<(), String> {
    let shares = entry.forwards.iter_mut().map(|(_, share)| share);
    set_and_rescale(shares.collect(), index, value)
}

/// Sets the probability of one branch after an activity.
pub(super) fn set_branch(
    model: &mut Model,
    from: ActivityId,
    index: usize,
    value: f64,
) -> Result<(), String> {
    set_and_rescale(branches_mut(model, from).iter_mut().map(|(share, _)| share).collect(), index, value)
}

/// Sets the mean runs of one loop body.
pub(super) fn set_loop_count(
    model: &mut Model,
    from: ActivityId,
    index: usize,
    value: f64,
) -> Result<(), String> {
    if value > 1e6 {
        return Err(format!("there cannot be {value} turns: at most 1000000"));
    }
    if let Some((count, _)) = branches_mut(model, from).get_mut(index) {
        *count = value;
    }
    Ok(())
}

/// Sets one probability; the others share the rest of the sum in their previous ratios.
fn set_and_rescale(mut shares: Vec<&mut f64>, index: usize, value: f64) -> Result<(), String> {
    if value > 1.0 {
        return Err(format!("it cannot be {value}: a probability is from 0 to 1"));
    }
    let total: f64 = shares.iter().map(|share| **share).sum();
    let others_total = total - shares.get(index).map_or(0.0, |share| **share);
    let remaining = (total - value).max(0.0);
    let count = shares.len().saturating_sub(1).max(1) as f64;
    for (number, share) in shares.iter_mut().enumerate() {
        if number == index {
            **share = value;
        } else {
            **share = if others_total > 0.0 { **share * remaining / others_total } else { remaining / count };
        }
    }
    Ok(())
}
