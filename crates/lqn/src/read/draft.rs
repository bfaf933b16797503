//! A model before its names are resolved.

use std::collections::HashSet;

use super::SourcePosition;
use crate::model::{CallOrder, Multiplicity, RetryPolicy, Routing, Scheduling};

/// A name and its position.
#[derive(Clone, Debug, Default)]
pub(super) struct SourceName {
    pub(super) text: String,
    pub(super) at: SourcePosition,
}

#[derive(Debug, Default)]
pub(super) struct ModelDraft {
    pub(super) comment: String,
    pub(super) processors: Vec<DraftProcessor>,
    pub(super) tasks: Vec<DraftTask>,
    pub(super) entries: Vec<DraftEntry>,
    pub(super) notes: Vec<String>,
    /// The policies of entries that forward.
    pub(super) routes: Vec<(SourceName, Routing)>,
    /// The fan-ins and fan-outs of replicas.
    pub(super) fans: Vec<DraftFan>,
    /// The generated names, with descriptions of their objects.
    pub(super) generated_names: Vec<(String, String)>,
}

/// A fan-in or fan-out of two replicated tasks.
#[derive(Debug)]
pub(super) struct DraftFan {
    pub(super) from: SourceName,
    pub(super) to: SourceName,
    pub(super) direction: FanDirection,
    pub(super) count: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FanDirection {
    /// The number of replicas that call each replica of the other task.
    In,
    /// The number of replicas that each replica calls.
    Out,
}

#[derive(Debug)]
pub(super) struct DraftProcessor {
    pub(super) name: SourceName,
    pub(super) scheduling: Scheduling,
    pub(super) copies: Multiplicity,
    pub(super) speed: f64,
    pub(super) replicas: u32,
}

#[derive(Debug)]
pub(super) struct DraftTask {
    pub(super) name: SourceName,
    pub(super) is_client: bool,
    pub(super) scheduling: Scheduling,
    pub(super) copies: Multiplicity,
    pub(super) replicas: u32,
    pub(super) think: f64,
    pub(super) priority: i32,
    /// The queue limit and its position.
    pub(super) queue_limit: Option<(u32, SourcePosition)>,
    pub(super) processor: SourceName,
    pub(super) entries: Vec<SourceName>,
    pub(super) activities: Vec<DraftActivity>,
    pub(super) links: Vec<DraftLink>,
    /// The activities with the entries whose callers they reply to.
    pub(super) replies: Vec<(SourceName, Vec<SourceName>)>,
}

#[derive(Debug, Default)]
pub(super) struct DraftEntry {
    pub(super) name: SourceName,
    pub(super) arrivals: f64,
    pub(super) priority: i32,
    /// The phases, at most three.
    pub(super) phases: [DraftActivity; 3],
    pub(super) forwards: Vec<(SourceName, f64)>,
    /// The first activity of a graph.
    pub(super) start: Option<SourceName>,
}

#[derive(Clone, Debug)]
pub(super) struct DraftActivity {
    pub(super) name: SourceName,
    pub(super) demand: f64,
    pub(super) variation: f64,
    pub(super) think: f64,
    pub(super) order: CallOrder,
    pub(super) calls: Vec<DraftCall>,
}

#[derive(Clone, Debug)]
pub(super) struct DraftCall {
    pub(super) to: SourceName,
    pub(super) count: f64,
    pub(super) waits: bool,
    pub(super) retry_policy: Option<RetryPolicy>,
}

impl DraftTask {
    /// Creates a server with one thread and no entries.
    pub(super) fn new(name: SourceName, processor: SourceName) -> Self {
        Self {
            name,
            is_client: false,
            scheduling: Scheduling::Fcfs,
            copies: Multiplicity::Finite(1),
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

impl ModelDraft {
    /// Handles a SPEX setting whose value is a string: the model's comment, or one that no number depends on.
    pub(super) fn set_text(&mut self, name: &str, text: &str, position: SourcePosition) {
        if name == "model_comment" {
            self.comment = text.to_owned();
        } else {
            self.notes.push(format!("line {}: `${name}`, which is a text, is left aside", position.line));
        }
    }

    /// Returns notes on priorities without effect.
    pub(super) fn unused_priority_notes(&self) -> impl Iterator<Item = String> {
        let tasks =
            self.tasks.iter().filter(|task| task.scheduling == Scheduling::HeadOfLine && !task.is_client);
        let prioritized: HashSet<&str> =
            tasks.flat_map(|task| &task.entries).map(|name| name.text.as_str()).collect();
        let entries = self.entries.iter();
        let unused = entries
            .filter(move |entry| entry.priority != 0 && !prioritized.contains(entry.name.text.as_str()));
        unused.map(|entry| {
            format!(
                "the priority of entry `{}` is not used: its task serves in the order of requests",
                entry.name.text
            )
        })
    }
}

impl DraftCall {
    pub(super) fn new(to: SourceName, count: f64, waits: bool) -> Self {
        Self { to, count, waits, retry_policy: None }
    }
}

impl Default for DraftActivity {
    fn default() -> Self {
        Self {
            name: SourceName::default(),
            demand: 0.0,
            variation: 1.0,
            think: 0.0,
            order: CallOrder::Stochastic,
            calls: Vec::new(),
        }
    }
}

impl DraftActivity {
    /// Returns `true` if the activity has no work and no calls.
    pub(super) fn is_empty(&self) -> bool {
        self.demand == 0.0 && self.think == 0.0 && self.calls.is_empty()
    }
}

/// A connection between predecessors and successors.
#[derive(Debug)]
pub(super) struct DraftLink {
    pub(super) predecessors: DraftPredecessors,
    pub(super) successors: DraftSuccessors,
}

#[derive(Debug)]
pub(super) enum DraftPredecessors {
    One(SourceName),
    Or(Vec<SourceName>),
    /// All of these; or the given number of them, if there is one.
    And(Vec<SourceName>, Option<(u32, SourcePosition)>),
}

#[derive(Debug)]
pub(super) enum DraftSuccessors {
    End,
    One(SourceName),
    Or(Vec<(f64, SourceName)>),
    And(Vec<SourceName>),
    Loop(Vec<(f64, SourceName)>, Option<SourceName>),
}
