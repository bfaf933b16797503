//! The law for any text that is read as a model: writing it in either format and reading it again gives the
//! same model.
//!
//! `tests/write.rs` applies it to models, the fuzz target `model` (`fuzz/`) to generated texts.

use std::collections::{BTreeMap, BTreeSet};

use plimsoll_lqn::model::{ActivityId, Call, EntryBody, Successors};
use plimsoll_lqn::{Model, read, write};

/// Reads a text; if it is a model, writes and reads it again. Panics if the models differ.
#[allow(dead_code, reason = "only the fuzz target calls it")]
pub(crate) fn check(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    if let Ok(read) = read(text, &BTreeMap::new()) {
        written(&read.model);
    }
}

/// Writes and reads a model and panics if the result differs. Returns the number of formats that can express
/// it.
#[allow(dead_code, reason = "not all tests that share this file call it")]
pub(crate) fn written(model: &Model) -> usize {
    let own = described(model);
    let mut formats = 0;
    for (format, text) in [("lqnx", write::lqnx(model)), ("lqn", write::lqn(model))] {
        let Ok(text) = text else { continue };
        formats += 1;
        let again = read(&text, &BTreeMap::new()).unwrap_or_else(|why| panic!("{format}:{why}\n{text}"));
        let again = again.model;
        assert_eq!(own, described(&again), "{format}\n{text}");
        // Writing again gives the same text.
        let twice = if format == "lqn" { write::lqn(&again) } else { write::lqnx(&again) };
        assert!(twice.as_ref() == Ok(&text), "{format}: not twice the same\n{text}");
    }
    formats
}

/// Describes a model except for its comment by names, without an order where none matters.
pub(crate) fn described(model: &Model) -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    for own in &model.processors {
        all.insert(format!("processor {own:?}"));
    }
    for own in &model.tasks {
        let entries: Vec<&str> = own.entries.iter().map(|id| model.entries[id.0].name.as_str()).collect();
        let fans = own.fan_out.iter().map(|(to, count)| (&model.tasks[to.0].name, count));
        let fans: BTreeSet<_> = fans.collect();
        all.insert(format!(
            "task {} {:?} on {} {:?} {} {fans:?} {} {:?} {entries:?}",
            own.name,
            own.role,
            model.processors[own.processor.0].name,
            own.copies,
            own.replicas,
            own.priority,
            own.queue_limit
        ));
    }
    for own in &model.entries {
        let forwards: Vec<_> =
            own.forwards.iter().map(|(to, share)| (&model.entries[to.0].name, share)).collect();
        let body = match &own.body {
            EntryBody::Phases(phases) => {
                phases.iter().map(|id| activity(model, *id)).collect::<Vec<_>>().join("; ")
            }
            EntryBody::Graph(start) => format!("graph from {}", model.activities[start.0].name),
        };
        all.insert(format!(
            "entry {} {:?} {} {forwards:?} {:?} {body}",
            own.name, own.arrivals, own.priority, own.routing
        ));
    }
    for place in 0..model.activities.len() {
        all.insert(activity(model, ActivityId(place)));
    }
    all
}

fn activity(model: &Model, id: ActivityId) -> String {
    let own = &model.activities[id.0];
    let name = |call: &Call| model.entries[call.entry.0].name.clone();
    let calls: Vec<_> =
        own.calls.iter().map(|call| (name(call), call.count, call.waits, call.retry_policy)).collect();
    let replies: BTreeSet<_> = own.replies.iter().map(|id| &model.entries[id.0].name).collect();
    format!(
        "activity {} of {} {:?} {:?} {:?} {:?} {calls:?} {replies:?} {}",
        own.name,
        model.tasks[own.task.0].name,
        own.demand,
        own.variation,
        own.think,
        own.order,
        next(model, id, &own.successors)
    )
}

fn next(model: &Model, from: ActivityId, own: &Successors) -> String {
    let name = |id: &ActivityId| model.activities[id.0].name.clone();
    match own {
        Successors::End => "end".to_owned(),
        Successors::Or(ways) => {
            format!("or {:?}", ways.iter().map(|(share, to)| (share, name(to))).collect::<Vec<_>>())
        }
        Successors::And(ways) => format!("and {:?}", ways.iter().map(name).collect::<Vec<_>>()),
        Successors::Loop { bodies, exit } => {
            let bodies: Vec<_> = bodies.iter().map(|(count, to)| (count, name(to))).collect();
            format!("loop {bodies:?} {:?}", exit.as_ref().map(name))
        }
        Successors::Join { join, wanted, branches, then } => {
            // The activities of a join identify it, since numbers may differ.
            let task = model.activities[from.0].task;
            let same = |id: &ActivityId| {
                let other = &model.activities[id.0];
                other.task == task
                    && matches!(&other.successors, Successors::Join { join: own, .. } if own == join)
            };
            let all = (0..model.activities.len()).map(ActivityId).filter(same);
            let all: BTreeSet<String> = all.map(|id| name(&id)).collect();
            format!("join {wanted} of {branches} {all:?} {}", next(model, from, then))
        }
    }
}
