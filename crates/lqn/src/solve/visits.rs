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
    let own = &model.entries[entry];
    let client = model.tasks[own.task.0].is_client();
    match &own.body {
        EntryBody::Phases(phases) => {
            let part = |(place, phase): (usize, &ActivityId)| {
                let before = if client || place == 0 { 1.0 } else { 0.0 };
                ActivityVisits { activity: phase.0, before, after: 1.0 - before }
            };
            phases.iter().enumerate().map(part).rev().collect()
        }
        EntryBody::Graph(start) => graph(model, entry, *start, client),
    }
}

fn graph(model: &Model, entry: usize, start: ActivityId, client: bool) -> EntryVisits {
    let order = successors_first(model, start.0);
    let mut masses: HashMap<usize, [f64; 2]> = HashMap::new();
    masses.insert(start.0, [1.0, 0.0]);
    // A graph without a reply replies at its end.
    let answers = !client
        && order.iter().any(|place| model.activities[*place].replies.iter().any(|own| own.0 == entry));
    for place in order.iter().rev() {
        let own = &model.activities[*place];
        let [before, after] = masses.get(place).copied().unwrap_or_default();
        let replies = answers && own.replies.iter().any(|own| own.0 == entry);
        let goes_on = if replies { [0.0, before + after] } else { [before, after] };
        add_visits(&own.successors, goes_on, &mut masses);
    }
    let part = |place: &usize| {
        let [before, after] = masses.get(place).copied().unwrap_or_default();
        ActivityVisits { activity: *place, before, after }
    };
    order.iter().map(part).collect()
}

fn add_visits(next: &Successors, mass: [f64; 2], masses: &mut HashMap<usize, [f64; 2]>) {
    let mut give = |to: &ActivityId, part: f64| {
        let own = masses.entry(to.0).or_default();
        *own = [own[0] + mass[0] * part, own[1] + mass[1] * part];
    };
    match next {
        Successors::End => {}
        Successors::Or(ways) => ways.iter().for_each(|(part, to)| give(to, *part)),
        Successors::And(ways) => ways.iter().for_each(|to| give(to, 1.0)),
        Successors::Join { branches, then, .. } => {
            let part = 1.0 / f64::from((*branches).max(1));
            add_visits(then, [mass[0] * part, mass[1] * part], masses);
        }
        Successors::Loop { bodies, exit } => {
            bodies.iter().for_each(|(count, to)| give(to, *count));
            exit.iter().for_each(|to| give(to, 1.0));
        }
    }
}

/// Adds the activities that can follow directly.
fn followers(next: &Successors, out: &mut Vec<usize>) {
    match next {
        Successors::End => {}
        Successors::Or(ways) => out.extend(ways.iter().map(|(_, to)| to.0)),
        Successors::And(ways) => out.extend(ways.iter().map(|to| to.0)),
        Successors::Join { then, .. } => followers(then, out),
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
    while let Some((place, done)) = stack.pop() {
        if done {
            order.push(place);
            continue;
        }
        if seen.insert(place, ()).is_some() {
            continue;
        }
        stack.push((place, true));
        let mut next = Vec::new();
        followers(&model.activities[place].successors, &mut next);
        stack.extend(next.into_iter().filter(|to| !seen.contains_key(to)).map(|to| (to, false)));
    }
    order
}
