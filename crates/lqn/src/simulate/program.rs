//! The model compiled for the simulation: everything that is drawn or looked up at each step is precomputed.

use super::dice::Length;
use crate::model::{
    ActivityId, Body, Call, Copies, EntryId, Model, Next, Order, Patience, Role, Routing, Scheduling,
};

/// The compiled model.
pub(super) struct Program {
    pub(super) activities: Vec<Step>,
    pub(super) entries: Vec<Way>,
    pub(super) tasks: Vec<Crew>,
    pub(super) loops: Vec<Turns>,
    /// The timeouts and retries of calls; [`Ask::patience`] is an index of it.
    pub(super) patience: Vec<Patience>,
    /// The distinct priorities of tasks in ascending order; [`Crew::rank`] is an index of it.
    pub(super) ranks: Vec<i32>,
    /// Whether calls can fail.
    pub(super) limited: bool,
}

/// The successors of an activity; see [`Next`].
pub(super) enum Then {
    End,
    /// One of these, each with the cumulative probability.
    Or(Vec<(f64, usize)>),
    And(Vec<usize>),
    Join {
        join: usize,
        wanted: u32,
        branches: u32,
        then: Box<Self>,
    },
    /// The loop with this index.
    Loop(usize),
}

/// A loop.
pub(super) struct Turns {
    /// The bodies, each with the cumulative probability of another run; the rest up to 1 is the exit.
    pub(super) bodies: Vec<(f64, usize)>,
    pub(super) exit: Option<usize>,
}

/// An activity.
pub(super) struct Step {
    pub(super) processor: usize,
    pub(super) priority: i32,
    pub(super) think: f64,
    /// The slice of work between two calls.
    pub(super) piece: Length,
    pub(super) calls: Calls,
    pub(super) answers: Answers,
    pub(super) then: Then,
}

pub(super) enum Calls {
    None,
    /// A random number of calls: after each slice the activity ends with probability `ends`, or calls a
    /// target, each with the cumulative probability including `ends`.
    Stochastic {
        ends: f64,
        targets: Vec<(f64, Ask)>,
    },
    /// Exact numbers of calls, in list order or in random order.
    Exact {
        targets: Vec<(u32, Ask)>,
        ordered: bool,
    },
}

/// A call.
#[derive(Clone, Copy)]
pub(super) struct Ask {
    pub(super) entry: u32,
    pub(super) waits: bool,
    /// The index in [`Program::patience`]; [`ENDLESS`] for none.
    pub(super) patience: u32,
    /// The rank of the calling task's priority.
    pub(super) rank: u16,
}

/// The absence of a timeout and retries.
pub(super) const ENDLESS: u32 = u32::MAX;

/// The callers that get their reply when an activity ends.
pub(super) enum Answers {
    Nobody,
    /// The thread's own caller, because the activity is the first phase.
    Own,
    /// The caller, if it called one of these entries.
    Some(Vec<usize>),
}

/// An entry.
pub(super) struct Way {
    pub(super) task: usize,
    pub(super) start: usize,
    pub(super) arrivals: f64,
    pub(super) priority: i32,
    /// The targets of forwarding, each with the cumulative probability.
    pub(super) forwards: Vec<(f64, usize)>,
    pub(super) routing: Option<Routing>,
}

/// A task.
pub(super) struct Crew {
    /// The number of threads or clients; `None` if it is infinite.
    pub(super) copies: Option<u32>,
    /// The mean think time of clients.
    pub(super) think: Option<f64>,
    pub(super) entries: Vec<usize>,
    pub(super) by_priority: bool,
    /// The rank of its priority among those of all tasks.
    pub(super) rank: u16,
    /// The queue limit.
    pub(super) queue_limit: usize,
}

impl Program {
    pub(super) fn new(model: &Model) -> Self {
        let (mut loops, mut patience) = (Vec::new(), Vec::new());
        // Requests from outside have priority 0.
        let mut ranks: Vec<i32> = model.tasks.iter().map(|task| task.priority).chain([0]).collect();
        ranks.sort_unstable();
        ranks.dedup();
        let places = 0..model.activities.len();
        let mut activities: Vec<Step> =
            places.map(|place| step(model, ActivityId(place), &ranks, &mut loops, &mut patience)).collect();
        let mut entries = Vec::new();
        for entry in &model.entries {
            let start = match &entry.body {
                Body::Graph(start) => *start,
                Body::Phases(phases) => {
                    for (phase, following) in phases.iter().zip(phases.iter().skip(1)) {
                        activities[phase.0].then = Then::Or(vec![(1.0, following.0)]);
                    }
                    activities[phases[0].0].answers = Answers::Own;
                    phases[0]
                }
            };
            let mut sum = 0.0;
            let forwards = entry.forwards.iter().map(|(EntryId(to), share)| {
                sum += share;
                (sum, *to)
            });
            let forwards = forwards.collect();
            let (arrivals, priority, routing) = (entry.arrivals, entry.priority, entry.routing);
            entries.push(Way { task: entry.task.0, start: start.0, arrivals, priority, forwards, routing });
        }
        let tasks = model.tasks.iter().map(|task| Crew {
            copies: match task.copies {
                Copies::Some(count) => Some(count),
                Copies::Infinite => None,
            },
            think: match task.role {
                Role::Client { think } => Some(think),
                Role::Server { .. } => None,
            },
            entries: task.entries.iter().map(|entry| entry.0).collect(),
            by_priority: task.role == Role::Server { queue: Scheduling::HeadOfLine },
            rank: rank(&ranks, task.priority),
            queue_limit: task.queue_limit.map_or(usize::MAX, |limit| limit as usize),
        });
        let tasks = tasks.collect();
        Self { activities, entries, tasks, loops, patience, ranks, limited: model.has_limits() }
    }

    /// Returns the rank of requests from outside.
    pub(super) fn outside(&self) -> u16 {
        rank(&self.ranks, 0)
    }
}

/// Returns the index of a priority; the highest ones share one if there are more than 65,535.
fn rank(ranks: &[i32], priority: i32) -> u16 {
    u16::try_from(ranks.partition_point(|own| *own < priority)).unwrap_or(u16::MAX)
}

fn step(
    model: &Model,
    id: ActivityId,
    ranks: &[i32],
    loops: &mut Vec<Turns>,
    patience: &mut Vec<Patience>,
) -> Step {
    let activity = &model.activities[id.0];
    let task = &model.tasks[activity.task.0];
    let total: f64 = activity.calls.iter().map(|call| call.count).sum();
    let mean = activity.demand / model.processors[task.processor.0].speed / (total + 1.0);
    let mut ask = |call: &Call| {
        let own = call.patience.filter(|_| call.waits).map(|own| {
            patience.push(own);
            patience.len() as u32 - 1
        });
        let rank = rank(ranks, task.priority);
        Ask { entry: call.entry.0 as u32, waits: call.waits, patience: own.unwrap_or(ENDLESS), rank }
    };
    let calls = if activity.calls.is_empty() {
        Calls::None
    } else if activity.order == Order::Stochastic {
        let ends = 1.0 / (total + 1.0);
        let mut sum = 0.0;
        let targets = activity.calls.iter().map(|call| {
            sum += call.count / total;
            (ends + (1.0 - ends) * sum, ask(call))
        });
        Calls::Stochastic { targets: targets.collect(), ends }
    } else {
        let targets = activity.calls.iter().map(|call| (call.count as u32, ask(call)));
        Calls::Exact { targets: targets.collect(), ordered: activity.order == Order::List }
    };
    let answers = if activity.replies.is_empty() {
        Answers::Nobody
    } else {
        Answers::Some(activity.replies.iter().map(|entry| entry.0).collect())
    };
    Step {
        processor: task.processor.0,
        priority: task.priority,
        think: activity.think,
        piece: Length::new(mean, activity.variation),
        calls,
        answers,
        then: then(&activity.next, loops),
    }
}

fn then(next: &Next, loops: &mut Vec<Turns>) -> Then {
    let summed = |ways: &[(f64, ActivityId)], all: f64| {
        let mut sum = 0.0;
        let ways = ways.iter().map(|(share, to)| {
            sum += share / all;
            (sum, to.0)
        });
        ways.collect()
    };
    match next {
        Next::End => Then::End,
        Next::Or(ways) => Then::Or(summed(ways, 1.0)),
        Next::And(ways) => Then::And(ways.iter().map(|to| to.0).collect()),
        Next::Join { join, wanted, branches, then: after } => Then::Join {
            join: *join,
            wanted: *wanted,
            branches: *branches,
            then: Box::new(then(after, loops)),
        },
        Next::Loop { bodies, exit } => {
            let turns: f64 = bodies.iter().map(|(count, _)| count).sum();
            loops.push(Turns { bodies: summed(bodies, turns + 1.0), exit: exit.map(|exit| exit.0) });
            Then::Loop(loops.len() - 1)
        }
    }
}
