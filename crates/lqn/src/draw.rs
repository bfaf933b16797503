//! A model as a picture: layers of tasks with their entries, processors, and who asks whom how often.
//!
//! A task stands below all that ask it, as deep as the longest way from whoever asks first. The notation is that of the
//! field (Woodside, Tutorial introduction to layered modeling of software performance; figures 2 and 3 of Petriu and others,
//! Using analytic models for predicting middleware performance, WOSP 2000): tasks are parallelograms with a slice for each
//! entry, processors circles, calls arrows with their mean numbers.

use serde::Serialize;

use crate::Model;
use crate::model::{ActivityId, Body, Copies, EntryId, Next, ProcessorId, Role, TaskId};

mod layout;
mod svg;
mod text;

/// A model to be drawn.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Picture {
    /// What its author says of it.
    pub title: String,
    /// From those who ask first down.
    pub layers: Vec<Vec<Task>>,
    /// In the order of the model.
    pub processors: Vec<Processor>,
}

/// A task.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Task {
    /// Its name.
    pub name: String,
    /// Is it a reference task?
    pub client: bool,
    /// Threads, or clients; none for as many as are needed.
    pub threads: Option<u32>,
    /// How many of it there are, each with a queue of its own.
    pub replicas: u32,
    /// Mean time for which clients think.
    pub think: Option<f64>,
    /// Place in [`Picture::processors`].
    pub processor: usize,
    /// What can be asked of it.
    pub entries: Vec<Entry>,
}

/// A processor.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Processor {
    /// Its name.
    pub name: String,
    /// None for as many as are needed.
    pub cores: Option<u32>,
    /// How many of it there are, each with a queue of its own.
    pub replicas: u32,
}

/// An entry.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Entry {
    /// Its name.
    pub name: String,
    /// Mean work: of each phase, or of each activity of its graph.
    pub demands: Vec<f64>,
    /// Requests from outside, per unit of time.
    pub arrivals: f64,
    /// How it chooses whom it forwards to, if not by chance: a policy, and in brackets how old loads become.
    pub policy: Option<String>,
    /// Whom it asks.
    pub arrows: Vec<Arrow>,
}

/// Calls of one entry by another.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Arrow {
    /// Name of the entry that is asked.
    pub to: String,
    /// Does whoever asks wait, or go on, or has it answered in its stead?
    pub kind: Kind,
    /// Mean number, of each phase; of activities, with their names.
    pub label: String,
}

/// How an entry asks another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// It waits for the answer.
    Waits,
    /// It goes on.
    Sends,
    /// The other answers in its stead.
    Forwards,
}

impl Picture {
    /// The picture of a model.
    pub fn of(model: &Model) -> Self {
        let mut layers: Vec<Vec<Task>> = Vec::new();
        for (place, layer) in depths(model).into_iter().enumerate() {
            if layers.len() <= layer {
                layers.resize(layer + 1, Vec::new());
            }
            layers[layer].push(task(model, TaskId(place)));
        }
        let processors = model
            .processors
            .iter()
            .map(|own| Processor {
                name: visible(&own.name),
                cores: count(own.copies),
                replicas: own.replicas,
            })
            .collect();
        Self { title: visible(&model.comment), layers, processors }
    }

    /// One `<svg>` element, for light and dark paper.
    pub fn svg(&self) -> String {
        svg::render(self)
    }

    /// Lines for a terminal.
    pub fn text(&self) -> String {
        text::render(self)
    }
}

fn count(copies: Copies) -> Option<u32> {
    match copies {
        Copies::Some(count) => Some(count),
        Copies::Infinite => None,
    }
}

/// A name on one line, without what would steer a terminal.
fn visible(name: &str) -> String {
    name.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

fn task(model: &Model, id: TaskId) -> Task {
    let own = &model.tasks[id.0];
    let ProcessorId(processor) = own.processor;
    let think = match own.role {
        Role::Client { think } if think > 0.0 => Some(think),
        _ => None,
    };
    Task {
        name: visible(&own.name),
        client: own.is_client(),
        threads: count(own.copies),
        replicas: own.replicas,
        think,
        processor,
        entries: own.entries.iter().map(|id| entry(model, *id)).collect(),
    }
}

fn entry(model: &Model, id: EntryId) -> Entry {
    let own = &model.entries[id.0];
    let (activities, phases) = match &own.body {
        Body::Phases(phases) => (phases.clone(), true),
        Body::Graph(start) => (reachable(model, *start), false),
    };
    // In the order of the first call of each.
    let mut asked: Vec<(EntryId, bool)> = Vec::new();
    for call in activities.iter().flat_map(|id| &model.activities[id.0].calls) {
        if !asked.contains(&(call.entry, call.waits)) {
            asked.push((call.entry, call.waits));
        }
    }
    let mut arrows = Vec::new();
    for (to, waits) in asked {
        let mean = |id: &ActivityId| -> f64 {
            let calls = model.activities[id.0].calls.iter();
            calls.filter(|call| call.entry == to && call.waits == waits).map(|call| call.count).sum()
        };
        let mut means: Vec<(ActivityId, f64)> = activities.iter().map(|id| (*id, mean(id))).collect();
        let label = if phases {
            let last = means.iter().rposition(|(_, mean)| *mean > 0.0).unwrap_or(0);
            means.truncate(last + 1);
            means.iter().map(|(_, mean)| short(*mean)).collect::<Vec<_>>().join(", ")
        } else {
            means.retain(|(_, mean)| *mean > 0.0);
            let one = |(id, mean): &(ActivityId, f64)| {
                format!("{} {}", visible(&model.activities[id.0].name), short(*mean))
            };
            means.iter().map(one).collect::<Vec<_>>().join(", ")
        };
        let kind = if waits { Kind::Waits } else { Kind::Sends };
        arrows.push(Arrow { to: visible(&model.entries[to.0].name), kind, label });
    }
    for (to, share) in &own.forwards {
        let to = visible(&model.entries[to.0].name);
        arrows.push(Arrow { to, kind: Kind::Forwards, label: short(*share) });
    }
    let demands = activities.iter().map(|id| model.activities[id.0].demand).collect();
    let policy = own.routing.map(|routing| routing.to_string());
    Entry { name: visible(&own.name), demands, arrivals: own.arrivals, policy, arrows }
}

/// An activity and all that can follow it.
fn reachable(model: &Model, start: ActivityId) -> Vec<ActivityId> {
    fn following(next: &Next) -> Vec<ActivityId> {
        match next {
            Next::End => Vec::new(),
            Next::Or(ways) => ways.iter().map(|(_, to)| *to).collect(),
            Next::And(ways) => ways.clone(),
            Next::Join { then, .. } => following(then),
            Next::Loop { bodies, exit } => bodies.iter().map(|(_, to)| *to).chain(*exit).collect(),
        }
    }
    let mut found = vec![start];
    let mut open = 0;
    while let Some(id) = found.get(open) {
        for next in following(&model.activities[id.0].next) {
            if !found.contains(&next) {
                found.push(next);
            }
        }
        open += 1;
    }
    found
}

/// The layer of each task. Calls that nobody waits for may lead back; then they do not count.
fn depths(model: &Model) -> Vec<usize> {
    let arcs = |all: bool| {
        let calls = model.activities.iter().flat_map(move |own| {
            let calls = own.calls.iter().filter(move |call| all || call.waits);
            calls.map(|call| (own.task.0, model.entries[call.entry.0].task.0))
        });
        let forwards = model
            .entries
            .iter()
            .flat_map(|own| own.forwards.iter().map(|(to, _)| (own.task.0, model.entries[to.0].task.0)));
        calls.chain(forwards).filter(|(from, to)| from != to).collect::<Vec<_>>()
    };
    let count = model.tasks.len();
    longest(count, &arcs(true)).or_else(|| longest(count, &arcs(false))).unwrap_or_else(|| vec![0; count])
}

/// The longest way to each; `None` if there is a cycle.
fn longest(count: usize, arcs: &[(usize, usize)]) -> Option<Vec<usize>> {
    let mut ahead = vec![Vec::new(); count];
    let mut open = vec![0; count];
    for (from, to) in arcs {
        ahead[*from].push(*to);
        open[*to] += 1;
    }
    let mut depth = vec![0; count];
    let mut free: Vec<usize> = (0..count).filter(|own| open[*own] == 0).collect();
    let mut done = 0;
    while let Some(own) = free.pop() {
        done += 1;
        for to in &ahead[own] {
            depth[*to] = depth[*to].max(depth[own] + 1);
            open[*to] -= 1;
            if open[*to] == 0 {
                free.push(*to);
            }
        }
    }
    (done == count).then_some(depth)
}

/// Four digits that mean something.
fn short(number: f64) -> String {
    if number == 0.0 || !number.is_finite() {
        return number.to_string();
    }
    let digits = (3 - number.abs().log10().floor() as i32).clamp(0, 12) as usize;
    let text = format!("{number:.digits$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

/// How many share a queue, `{∞}` or `{2}`, and of how many of those there are several, `<4>`.
fn many(count: Option<u32>, replicas: u32) -> String {
    let own = count.map_or_else(|| "{∞}".to_owned(), |count| format!("{{{count}}}"));
    if replicas > 1 { format!("{own} <{replicas}>") } else { own }
}
