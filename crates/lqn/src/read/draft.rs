//! A model before its names are looked up.

use super::At;
use crate::model::{Copies, Order, Patience, Routing, Scheduling};

/// A name, and where it stands.
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
    /// How entries choose whom they forward to.
    pub(super) routes: Vec<(Name, Routing)>,
    /// Names that are not in the text, and what to call their bearers.
    pub(super) made: Vec<(String, String)>,
}

#[derive(Debug)]
pub(super) struct Processor {
    pub(super) name: Name,
    pub(super) scheduling: Scheduling,
    pub(super) copies: Copies,
    pub(super) speed: f64,
}

#[derive(Debug)]
pub(super) struct Task {
    pub(super) name: Name,
    pub(super) client: bool,
    pub(super) queue: Scheduling,
    pub(super) copies: Copies,
    pub(super) think: f64,
    pub(super) priority: i32,
    /// Requests that may wait, and where that stands.
    pub(super) queue_limit: Option<(u32, At)>,
    pub(super) processor: Name,
    pub(super) entries: Vec<Name>,
    pub(super) activities: Vec<Activity>,
    pub(super) links: Vec<Link>,
    /// Activity, and the entries whose callers it answers.
    pub(super) replies: Vec<(Name, Vec<Name>)>,
}

#[derive(Debug, Default)]
pub(super) struct Entry {
    pub(super) name: Name,
    pub(super) arrivals: f64,
    /// Up to three; the position is the phase.
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
    /// Is there anything to do?
    pub(super) fn is_empty(&self) -> bool {
        self.demand == 0.0 && self.think == 0.0 && self.calls.is_empty()
    }
}

/// What comes before and what after.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) before: Before,
    pub(super) after: After,
}

#[derive(Debug)]
pub(super) enum Before {
    One(Name),
    Any(Vec<Name>),
    /// With how many of them it goes on; all, if it does not say.
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
