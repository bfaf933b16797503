//! The model compiled for the simulation: everything that is drawn or looked up at each step is precomputed.

use super::rng::WorkDistribution;
use crate::model::{
    ActivityId, Call, CallOrder, EntryBody, EntryId, Model, Multiplicity, RetryPolicy, Routing, Scheduling,
    Successors, TaskRole,
};

/// The compiled model.
pub(super) struct CompiledModel {
    pub(super) activities: Vec<CompiledActivity>,
    pub(super) entries: Vec<CompiledEntry>,
    pub(super) tasks: Vec<CompiledTask>,
    pub(super) loops: Vec<CompiledLoop>,
    /// The timeouts and retries of calls; [`CompiledCall::retry_policy`] is an index of it.
    pub(super) retry_policies: Vec<RetryPolicy>,
    /// The distinct priorities of tasks in ascending order; [`CompiledTask::rank`] is an index of it.
    pub(super) ranks: Vec<i32>,
    /// Whether calls can fail.
    pub(super) can_fail: bool,
}

/// The successors of an activity; see [`Successors`].
pub(super) enum CompiledSuccessors {
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
pub(super) struct CompiledLoop {
    /// The bodies, each with the cumulative probability of another run; the rest up to 1 is the exit.
    pub(super) bodies: Vec<(f64, usize)>,
    pub(super) exit: Option<usize>,
}

/// An activity.
pub(super) struct CompiledActivity {
    pub(super) processor: usize,
    pub(super) priority: i32,
    pub(super) think: f64,
    /// The slice of work between two calls.
    pub(super) slice: WorkDistribution,
    pub(super) calls: CallPlan,
    pub(super) replies: ReplyTargets,
    pub(super) successors: CompiledSuccessors,
}

pub(super) enum CallPlan {
    None,
    /// A random number of calls: after each slice the activity ends with probability `ends`, or calls a
    /// target, each with the cumulative probability including `ends`.
    Stochastic {
        ends: f64,
        targets: Vec<(f64, CompiledCall)>,
    },
    /// Exact numbers of calls, in list order or in random order.
    Exact {
        targets: Vec<(u32, CompiledCall)>,
        ordered: bool,
    },
}

/// A call.
#[derive(Clone, Copy)]
pub(super) struct CompiledCall {
    pub(super) entry: u32,
    pub(super) waits: bool,
    /// The index in [`CompiledModel::retry_policies`]; [`NO_RETRY_POLICY`] for none.
    pub(super) retry_policy: u32,
    /// The rank of the calling task's priority.
    pub(super) rank: u16,
}

/// The absence of a timeout and retries.
pub(super) const NO_RETRY_POLICY: u32 = u32::MAX;

/// The callers that get their reply when an activity ends.
pub(super) enum ReplyTargets {
    NoCaller,
    /// The thread's own caller, because the activity is the first phase.
    OwnCaller,
    /// The caller, if it called one of these entries.
    CallersOf(Vec<usize>),
}

/// An entry.
pub(super) struct CompiledEntry {
    pub(super) task: usize,
    pub(super) start: usize,
    pub(super) arrivals: f64,
    pub(super) priority: i32,
    /// The targets of forwarding, each with the cumulative probability.
    pub(super) forwards: Vec<(f64, usize)>,
    pub(super) routing: Option<Routing>,
}

/// A task.
pub(super) struct CompiledTask {
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

impl CompiledModel {
    pub(super) fn new(model: &Model) -> Self {
        let (mut loops, mut retry_policies) = (Vec::new(), Vec::new());
        // Requests from outside have priority 0.
        let mut ranks: Vec<i32> = model.tasks.iter().map(|task| task.priority).chain([0]).collect();
        ranks.sort_unstable();
        ranks.dedup();
        let indices = 0..model.activities.len();
        let mut activities: Vec<CompiledActivity> = indices
            .map(|index| compile_activity(model, ActivityId(index), &ranks, &mut loops, &mut retry_policies))
            .collect();
        let mut entries = Vec::new();
        for entry in &model.entries {
            let start = match &entry.body {
                EntryBody::Graph(start) => *start,
                EntryBody::Phases(phases) => {
                    for (phase, next_phase) in phases.iter().zip(phases.iter().skip(1)) {
                        activities[phase.0].successors = CompiledSuccessors::Or(vec![(1.0, next_phase.0)]);
                    }
                    activities[phases[0].0].replies = ReplyTargets::OwnCaller;
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
            entries.push(CompiledEntry {
                task: entry.task.0,
                start: start.0,
                arrivals,
                priority,
                forwards,
                routing,
            });
        }
        let tasks = model.tasks.iter().map(|task| CompiledTask {
            copies: match task.copies {
                Multiplicity::Finite(count) => Some(count),
                Multiplicity::Infinite => None,
            },
            think: match task.role {
                TaskRole::Client { think } => Some(think),
                TaskRole::Server { .. } => None,
            },
            entries: task.entries.iter().map(|entry| entry.0).collect(),
            by_priority: task.role == TaskRole::Server { queue: Scheduling::HeadOfLine },
            rank: rank(&ranks, task.priority),
            queue_limit: task.queue_limit.map_or(usize::MAX, |limit| limit as usize),
        });
        let tasks = tasks.collect();
        Self { activities, entries, tasks, loops, retry_policies, ranks, can_fail: model.has_limits() }
    }

    /// Returns the rank of requests from outside.
    pub(super) fn external_rank(&self) -> u16 {
        rank(&self.ranks, 0)
    }
}

/// Returns the index of a priority; the highest ones share one if there are more than 65,535.
fn rank(ranks: &[i32], priority: i32) -> u16 {
    u16::try_from(ranks.partition_point(|candidate| *candidate < priority)).unwrap_or(u16::MAX)
}

fn compile_activity(
    model: &Model,
    id: ActivityId,
    ranks: &[i32],
    loops: &mut Vec<CompiledLoop>,
    retry_policies: &mut Vec<RetryPolicy>,
) -> CompiledActivity {
    let activity = &model.activities[id.0];
    let task = &model.tasks[activity.task.0];
    let total: f64 = activity.calls.iter().map(|call| call.count).sum();
    let mean = activity.demand / model.processors[task.processor.0].speed / (total + 1.0);
    let mut compile_call = |call: &Call| {
        let policy_index = call.retry_policy.filter(|_| call.waits).map(|policy| {
            retry_policies.push(policy);
            retry_policies.len() as u32 - 1
        });
        let rank = rank(ranks, task.priority);
        CompiledCall {
            entry: call.entry.0 as u32,
            waits: call.waits,
            retry_policy: policy_index.unwrap_or(NO_RETRY_POLICY),
            rank,
        }
    };
    let calls = if activity.calls.is_empty() {
        CallPlan::None
    } else if activity.order == CallOrder::Stochastic {
        let ends = 1.0 / (total + 1.0);
        let mut sum = 0.0;
        let targets = activity.calls.iter().map(|call| {
            sum += call.count / total;
            (ends + (1.0 - ends) * sum, compile_call(call))
        });
        CallPlan::Stochastic { targets: targets.collect(), ends }
    } else {
        let targets = activity.calls.iter().map(|call| (call.count as u32, compile_call(call)));
        CallPlan::Exact { targets: targets.collect(), ordered: activity.order == CallOrder::List }
    };
    let replies = if activity.replies.is_empty() {
        ReplyTargets::NoCaller
    } else {
        ReplyTargets::CallersOf(activity.replies.iter().map(|entry| entry.0).collect())
    };
    CompiledActivity {
        processor: task.processor.0,
        priority: task.priority,
        think: activity.think,
        slice: WorkDistribution::new(mean, activity.variation),
        calls,
        replies,
        successors: compile_successors(&activity.successors, loops),
    }
}

fn compile_successors(successors: &Successors, loops: &mut Vec<CompiledLoop>) -> CompiledSuccessors {
    let cumulative = |branches: &[(f64, ActivityId)], total: f64| {
        let mut sum = 0.0;
        let cumulative_shares = branches.iter().map(|(share, to)| {
            sum += share / total;
            (sum, to.0)
        });
        cumulative_shares.collect()
    };
    match successors {
        Successors::End => CompiledSuccessors::End,
        Successors::Or(branches) => CompiledSuccessors::Or(cumulative(branches, 1.0)),
        Successors::And(branches) => CompiledSuccessors::And(branches.iter().map(|to| to.0).collect()),
        Successors::Join { join, wanted, branches, then: next_successors } => CompiledSuccessors::Join {
            join: *join,
            wanted: *wanted,
            branches: *branches,
            then: Box::new(compile_successors(next_successors, loops)),
        },
        Successors::Loop { bodies, exit } => {
            let total_count: f64 = bodies.iter().map(|(count, _)| count).sum();
            loops.push(CompiledLoop {
                bodies: cumulative(bodies, total_count + 1.0),
                exit: exit.map(|exit| exit.0),
            });
            CompiledSuccessors::Loop(loops.len() - 1)
        }
    }
}
