//! A diagram of a model: layers of tasks with their entries, processors, and calls with their mean numbers.
//!
//! The layer of a task is the length of the longest path to it from a task without callers. The notation is
//! the usual one: tasks are parallelograms with a part for each entry, processors are circles, calls are
//! arrows with their mean numbers. See Woodside, Tutorial introduction to layered modeling of software
//! performance, and figures 2 and 3 of Petriu and others, Using analytic models for predicting middleware
//! performance, WOSP 2000.

use serde::Serialize;

use crate::Model;
use crate::model::{ActivityId, EntryBody, EntryId, Multiplicity, ProcessorId, Successors, TaskId, TaskRole};

mod layout;
mod svg;
mod text;

/// A diagram of a model.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Diagram {
    /// The comment of the model.
    pub title: String,
    /// The layers, from the tasks without callers downwards.
    pub layers: Vec<Vec<DiagramTask>>,
    /// The processors, in the order of the model.
    pub processors: Vec<DiagramProcessor>,
}

/// A task.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DiagramTask {
    /// The name.
    pub name: String,
    /// Whether it is a reference task.
    pub client: bool,
    /// The number of threads, or of clients; `None` if it is infinite.
    pub threads: Option<u32>,
    /// The number of replicas, each with its own queue.
    pub replicas: u32,
    /// The mean think time of clients.
    pub think: Option<f64>,
    /// The index in [`Diagram::processors`].
    pub processor: usize,
    /// The entries.
    pub entries: Vec<DiagramEntry>,
}

/// A processor.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DiagramProcessor {
    /// The name.
    pub name: String,
    /// The number of cores; `None` if it is infinite.
    pub cores: Option<u32>,
    /// The number of replicas, each with its own queue.
    pub replicas: u32,
}

/// An entry.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DiagramEntry {
    /// The name.
    pub name: String,
    /// The mean demand of each phase, or of each activity of its graph.
    pub demands: Vec<f64>,
    /// The rate of requests from outside, per unit of time.
    pub arrivals: f64,
    /// The policy by which it forwards, with the maximal age of loads in brackets; `None` if it forwards at
    /// random.
    pub policy: Option<String>,
    /// Its calls.
    pub arrows: Vec<CallArrow>,
}

/// The calls from one entry to another.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CallArrow {
    /// The name of the called entry.
    pub to: String,
    /// The kind of call.
    pub kind: CallKind,
    /// The mean number per phase, or per activity with the activities' names.
    pub label: String,
}

/// The kind of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CallKind {
    /// A rendezvous: the caller waits for the reply.
    Waits,
    /// A send: the caller does not wait.
    Sends,
    /// A forwarded request: the target replies to the caller.
    Forwards,
}

impl Diagram {
    /// Creates the diagram of a model.
    pub fn of(model: &Model) -> Self {
        let mut layers: Vec<Vec<DiagramTask>> = Vec::new();
        for (index, layer) in depths(model).into_iter().enumerate() {
            if layers.len() <= layer {
                layers.resize(layer + 1, Vec::new());
            }
            layers[layer].push(task(model, TaskId(index)));
        }
        let processors = model
            .processors
            .iter()
            .map(|processor| DiagramProcessor {
                name: visible(&processor.name),
                cores: count(processor.copies),
                replicas: processor.replicas,
            })
            .collect();
        Self { title: visible(&model.comment), layers, processors }
    }

    /// Renders an `<svg>` element for light and dark backgrounds.
    pub fn svg(&self) -> String {
        svg::render(self)
    }

    /// Renders lines for a terminal.
    pub fn text(&self) -> String {
        text::render(self)
    }
}

fn count(copies: Multiplicity) -> Option<u32> {
    match copies {
        Multiplicity::Finite(count) => Some(count),
        Multiplicity::Infinite => None,
    }
}

/// Replaces control characters in a name by spaces.
fn visible(name: &str) -> String {
    name.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

fn task(model: &Model, id: TaskId) -> DiagramTask {
    let task_data = &model.tasks[id.0];
    let ProcessorId(processor) = task_data.processor;
    let think = match task_data.role {
        TaskRole::Client { think } if think > 0.0 => Some(think),
        _ => None,
    };
    DiagramTask {
        name: visible(&task_data.name),
        client: task_data.is_client(),
        threads: count(task_data.copies),
        replicas: task_data.replicas,
        think,
        processor,
        entries: task_data.entries.iter().map(|id| entry(model, *id)).collect(),
    }
}

fn entry(model: &Model, id: EntryId) -> DiagramEntry {
    let entry_data = &model.entries[id.0];
    let (activities, has_phases) = match &entry_data.body {
        EntryBody::Phases(phases) => (phases.clone(), true),
        EntryBody::Graph(start) => (reachable(model, *start), false),
    };
    // The called entries, in the order of their first call.
    let mut targets: Vec<(EntryId, bool)> = Vec::new();
    for call in activities.iter().flat_map(|id| &model.activities[id.0].calls) {
        if !targets.contains(&(call.entry, call.waits)) {
            targets.push((call.entry, call.waits));
        }
    }
    let mut arrows = Vec::new();
    for (to, waits) in targets {
        let mean = |id: &ActivityId| -> f64 {
            let calls = model.activities[id.0].calls.iter();
            calls.filter(|call| call.entry == to && call.waits == waits).map(|call| call.count).sum()
        };
        let mut means: Vec<(ActivityId, f64)> = activities.iter().map(|id| (*id, mean(id))).collect();
        let label = if has_phases {
            let last = means.iter().rposition(|(_, mean)| *mean > 0.0).unwrap_or(0);
            means.truncate(last + 1);
            means.iter().map(|(_, mean)| format_number(*mean)).collect::<Vec<_>>().join(", ")
        } else {
            means.retain(|(_, mean)| *mean > 0.0);
            let labelled_mean = |(id, mean): &(ActivityId, f64)| {
                format!("{} {}", visible(&model.activities[id.0].name), format_number(*mean))
            };
            means.iter().map(labelled_mean).collect::<Vec<_>>().join(", ")
        };
        let kind = if waits { CallKind::Waits } else { CallKind::Sends };
        arrows.push(CallArrow { to: visible(&model.entries[to.0].name), kind, label });
    }
    for (to, share) in &entry_data.forwards {
        let to = visible(&model.entries[to.0].name);
        arrows.push(CallArrow { to, kind: CallKind::Forwards, label: format_number(*share) });
    }
    let demands = activities.iter().map(|id| model.activities[id.0].demand).collect();
    let policy = entry_data.routing.map(|routing| routing.to_string());
    DiagramEntry { name: visible(&entry_data.name), demands, arrivals: entry_data.arrivals, policy, arrows }
}

/// Returns an activity and all that can follow it.
fn reachable(model: &Model, start: ActivityId) -> Vec<ActivityId> {
    fn following(successors: &Successors) -> Vec<ActivityId> {
        match successors {
            Successors::End => Vec::new(),
            Successors::Or(branches) => branches.iter().map(|(_, to)| *to).collect(),
            Successors::And(branches) => branches.clone(),
            Successors::Join { then, .. } => following(then),
            Successors::Loop { bodies, exit } => bodies.iter().map(|(_, to)| *to).chain(*exit).collect(),
        }
    }
    let mut reached = vec![start];
    let mut next_index = 0;
    while let Some(id) = reached.get(next_index) {
        for successor in following(&model.activities[id.0].successors) {
            if !reached.contains(&successor) {
                reached.push(successor);
            }
        }
        next_index += 1;
    }
    reached
}

/// Returns the layer of each task. If there is a cycle, calls without a reply are ignored.
fn depths(model: &Model) -> Vec<usize> {
    let arcs = |includes_sends: bool| {
        let calls = model.activities.iter().flat_map(move |activity| {
            let calls = activity.calls.iter().filter(move |call| includes_sends || call.waits);
            calls.map(|call| (activity.task.0, model.entries[call.entry.0].task.0))
        });
        let forwards = model.entries.iter().flat_map(|entry| {
            entry.forwards.iter().map(|(to, _)| (entry.task.0, model.entries[to.0].task.0))
        });
        calls.chain(forwards).filter(|(from, to)| from != to).collect::<Vec<_>>()
    };
    let count = model.tasks.len();
    longest(count, &arcs(true)).or_else(|| longest(count, &arcs(false))).unwrap_or_else(|| vec![0; count])
}

/// Returns the length of the longest path to each node; `None` if there is a cycle.
fn longest(count: usize, arcs: &[(usize, usize)]) -> Option<Vec<usize>> {
    let mut successors = vec![Vec::new(); count];
    let mut pending_predecessors = vec![0; count];
    for (from, to) in arcs {
        successors[*from].push(*to);
        pending_predecessors[*to] += 1;
    }
    let mut depths = vec![0; count];
    let mut ready: Vec<usize> = (0..count).filter(|task| pending_predecessors[*task] == 0).collect();
    let mut done_count = 0;
    while let Some(task) = ready.pop() {
        done_count += 1;
        for to in &successors[task] {
            depths[*to] = depths[*to].max(depths[task] + 1);
            pending_predecessors[*to] -= 1;
            if pending_predecessors[*to] == 0 {
                ready.push(*to);
            }
        }
    }
    (done_count == count).then_some(depths)
}

/// Formats a number with four significant digits.
fn format_number(number: f64) -> String {
    if number == 0.0 || !number.is_finite() {
        return number.to_string();
    }
    let digits = (3 - number.abs().log10().floor() as i32).clamp(0, 12) as usize;
    let text = format!("{number:.digits$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

/// Formats a multiplicity, `{∞}` or `{2}`, and the number of replicas, `<4>`, if there are several.
fn format_multiplicity(count: Option<u32>, replicas: u32) -> String {
    let multiplicity = count.map_or_else(|| "{∞}".to_owned(), |count| format!("{{{count}}}"));
    if replicas > 1 { format!("{multiplicity} <{replicas}>") } else { multiplicity }
}
