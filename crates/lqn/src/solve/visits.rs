//! The number of executions of each activity per request, before and after the reply.

use std::collections::HashMap;

use crate::model::{ActivityId, EntryBody, Model, Successors};

/// An activity of an entry.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct ActivityVisits {
    pub(super) activity: usize,
    /// The number of executions while the caller waits.
    pub(super) before: f64,
    /// The number of executions after the reply.
    pub(super) after: f64,
}

/// The activities of a request, successors first.
pub(super) type EntryVisits = Vec<ActivityVisits>;

/// Returns the course of an entry. Clients wait for all of their own activities.
pub(super) fn entry_visits(model: &Model, entry: usize) -> EntryVisits {
    let entry_data = &model.entries[entry];
    let is_client = model.tasks[entry_data.task.0].is_client();
    match &entry_data.body {
        EntryBody::Phases(phases) => {
            let phase_visits = |(index, phase): (usize, &ActivityId)| {
                let before = if is_client || index == 0 { 1.0 } else { 0.0 };
                ActivityVisits { activity: phase.0, before, after: 1.0 - before }
            };
            phases.iter().enumerate().map(phase_visits).rev().collect()
        }
        EntryBody::Graph(start) => graph(model, entry, *start, is_client),
    }
}

fn graph(model: &Model, entry: usize, start: ActivityId, is_client: bool) -> EntryVisits {
    let order = successors_first(model, start.0);
    let mut masses: HashMap<usize, [f64; 2]> = HashMap::new();
    masses.insert(start.0, [1.0, 0.0]);
    // A graph without a reply replies at its end.
    let has_replies = !is_client
        && order.iter().any(|activity| {
            model.activities[*activity].replies.iter().any(|replied_entry| replied_entry.0 == entry)
        });
    for activity in order.iter().rev() {
        let activity_data = &model.activities[*activity];
        let [before, after] = masses.get(activity).copied().unwrap_or_default();
        let replies =
            has_replies && activity_data.replies.iter().any(|replied_entry| replied_entry.0 == entry);
        let mass = if replies { [0.0, before + after] } else { [before, after] };
        add_visits(&activity_data.successors, mass, &mut masses);
    }
    let activity_visits = |activity: &usize| {
        let [before, after] = masses.get(activity).copied().unwrap_or_default();
        ActivityVisits { activity: *activity, before, after }
    };
    order.iter().map(activity_visits).collect()
}

fn add_visits(successors: &Successors, mass: [f64; 2], masses: &mut HashMap<usize, [f64; 2]>) {
    let mut add_mass = |to: &ActivityId, share: f64| {
        let target_mass = masses.entry(to.0).or_default();
        *target_mass = [target_mass[0] + mass[0] * share, target_mass[1] + mass[1] * share];
    };
    match successors {
        Successors::End => {}
        Successors::Or(branches) => branches.iter().for_each(|(share, to)| add_mass(to, *share)),
        Successors::And(branches) => branches.iter().for_each(|to| add_mass(to, 1.0)),
        Successors::Join { branches, then, .. } => {
            let share = 1.0 / f64::from((*branches).max(1));
            add_visits(then, [mass[0] * share, mass[1] * share], masses);
        }
        Successors::Loop { bodies, exit } => {
            bodies.iter().for_each(|(count, to)| add_mass(to, *count));
            exit.iter().for_each(|to| add_mass(to, 1.0));
        }
    }
}

/// Adds the activities that can follow directly.
fn append_followers(successors: &Successors, out: &mut Vec<usize>) {
    match successors {
        Successors::End => {}
        Successors::Or(branches) => out.extend(branches.iter().map(|(_, to)| to.0)),
        Successors::And(branches) => out.extend(branches.iter().map(|to| to.0)),
        Successors::Join { then, .. } => append_followers(then, out),
        Successors::Loop { bodies, exit } => {
            out.extend(bodies.iter().map(|(_, to)| to.0));
            out.extend(exit.iter().map(|to| to.0));
        }
    }
}

/// Returns the reachable activities, each after its successors (unless they lead back to it).
fn successors_first(model: &Model, start: usize) -> Vec<usize> {
    let mut seen = HashMap::new();
    let mut order = Vec::new();
    let mut stack = vec![(start, false)];
    while let Some((activity, is_done)) = stack.pop() {
        if is_done {
            order.push(activity);
            continue;
        }
        if seen.insert(activity, ()).is_some() {
            continue;
        }
        stack.push((activity, true));
        let mut pending = Vec::new();
        append_followers(&model.activities[activity].successors, &mut pending);
        stack.extend(pending.into_iter().filter(|to| !seen.contains_key(to)).map(|to| (to, false)));
    }
    order
}
