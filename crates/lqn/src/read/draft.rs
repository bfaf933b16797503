//! A model before its names are resolved.

use std::collections::HashSet;

use super::At;
use crate::model::{Copies, Order, Patience, Routing, Scheduling};

/// A name and its position.
#[derive(Clone, Debug, Default)]
pub(super) struct Name {
    pub(super) text: String,
    pub(super) at: At,
}

#[derive(Debug, Default)]
pub(super) struct Draft {
    pub(super) comment: String,
    pub(super) processors: Vec<Processor>,
    pub(super) tasks: Vec<Task>,
    pub(super) entries: Vec<Entry>,
    pub(super) notes: Vec<String>,
    /// The policies of entries that forward.
    pub(super) routes: Vec<(Name, Routing)>,
    /// The fan-ins and fan-outs of replicas.
    pub(super) fans: Vec<Fan>,
    /// The generated names, with descriptions of their objects.
    pub(super) made: Vec<(String, String)>,
}

/// A fan-in or fan-out of two replicated tasks.
#[derive(Debug)]
pub(super) struct Fan {
    pub(super) from: Name,
    pub(super) to: Name,
    pub(super) which: Which,
    pub(super) count: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Which {
    /// The number of replicas that call each replica of the other task.
    In,
    /// The number of replicas that each replica calls.
    Out,
}

#[derive(Debug)]
pub(super) struct Processor {
    pub(super) name: Name,
    pub(super) scheduling: Scheduling,
    pub(super) copies: Copies,
    pub(super) speed: f64,
    pub(super) replicas: u32,
}

#[derive(Debug)]
pub(super) struct Task {
    pub(super) name: Name,
    pub(super) client: bool,
    pub(super) queue: Scheduling,
    pub(super) copies: Copies,
    pub(super) replicas: u32,
    pub(super) think: f64,
    pub(super) priority: i32,
    /// The queue limit and its position.
    pub(super) queue_limit: Option<(u32, At)>,
    pub(super) processor: Name,
    pub(super) entries: Vec<Name>,
    pub(super) activities: Vec<Activity>,
    pub(super) links: Vec<Link>,
    /// The activities with the entries whose callers they reply to.
    pub(super) replies: Vec<(Name, Vec<Name>)>,
}

#[derive(Debug, Default)]
pub(super) struct Entry {
    pub(super) name: Name,
    pub(super) arrivals: f64,
    pub(super) priority: i32,
    /// The phases, at most three.
    pub(super) phases: [Activity; 3],
    pub(super) forwards: Vec<(Name, f64)>,
    /// The first activity of a graph.
    pub(super) start: Option<Name>,
}

#[derive(Clone, Debug)]
pub(super) struct Activity {
    pub(super) name: Name,
    pub(super) demand: f64,
    pub(super) variation: f64,
    pub(super) think: f64,
    pub(super) order: Order,
    pub(super) calls: Vec<Call>,
}

#[derive(Clone, Debug)]
pub(super) struct Call {
    pub(super) to: Name,
    pub(super) count: f64,
    pub(super) waits: bool,
    pub(super) patience: Option<Patience>,
}

impl Task {
    /// Creates a server with one thread and no entries.
    pub(super) fn new(name: Name, processor: Name) -> Self {
        Self {
            name,
            client: false,
            queue: Scheduling::Fcfs,
            copies: Copies::Some(1),
            replicas: 1,
            think: 0.0,
            priority: 0,
            queue_limit: None,
            processor,
            entries: Vec::new(),
            activities: Vec::new(),
            links: Vec::new(),
            replies: Vec::new(),
        }
    }
}

impl Draft {
    /// Handles a SPEX setting whose value is a string: the model's comment, or one that no number depends on.
    pub(super) fn say(&mut self, name: &str, text: &str, at: At) {
        if name == "model_comment" {
            self.comment = text.to_owned();
        } else {
            self.notes.push(format!("line {}: `${name}`, which is a text, is left aside", at.line));
        }
    }

    /// Returns notes on priorities without effect.
    pub(super) fn idle_priorities(&self) -> impl Iterator<Item = String> {
        let tasks = self.tasks.iter().filter(|task| task.queue == Scheduling::HeadOfLine && !task.client);
        let used: HashSet<&str> =
            tasks.flat_map(|task| &task.entries).map(|name| name.text.as_str()).collect();
        let idle = self.entries.iter();
        let idle = idle.filter(move |own| own.priority != 0 && !used.contains(own.name.text.as_str()));
        idle.map(|own| {
            format!(
                "the priority of entry `{}` is not used: its task serves in the order of requests",
                own.name.text
            )
        })
    }
}

impl Call {
    pub(super) fn new(to: Name, count: f64, waits: bool) -> Self {
        Self { to, count, waits, patience: None }
    }
}

impl Default for Activity {
    fn default() -> Self {
        Self {
            name: Name::default(),
            demand: 0.0,
            variation: 1.0,
            think: 0.0,
            order: Order::Stochastic,
            calls: Vec::new(),
        }
    }
}

impl Activity {
    /// Returns `true` if the activity has no work and no calls.
    pub(super) fn is_empty(&self) -> bool {
        self.demand == 0.0 && self.think == 0.0 && self.calls.is_empty()
    }
}

/// A connection between predecessors and successors.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) before: Before,
    pub(super) after: After,
}

#[derive(Debug)]
pub(super) enum Before {
    One(Name),
    Any(Vec<Name>),
    /// All of these; or the given number of them, if there is one.
    All(Vec<Name>, Option<(u32, At)>),
}

#[derive(Debug)]
pub(super) enum After {
    Nothing,
    One(Name),
    Any(Vec<(f64, Name)>),
    All(Vec<Name>),
    Loop(Vec<(f64, Name)>, Option<Name>),
}
