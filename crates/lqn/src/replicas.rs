//! Replicas: a task or processor that is in the model once and exists several times, each with its own queue.
//!
//! A model has them as its author wrote it. It is simulated and solved with all replicas expanded
//! ([`ExpandedModel`]). Their results are averaged to those of one, because replicas are alike.
//!
//! The mapping is that of other tools. With fan-out `o`, replica `k` (from 0) calls the replicas `k o`,
//! `k o + 1`, …, `k o + o - 1`, modulo their number. Consecutive replicas share a replica of a processor.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::ops::Range;

use crate::model::{Activity, ActivityId, Call, EntryBody, EntryId, Model, ProcessorId, Successors, TaskId};
use crate::simulate::{ActivityResults, EntryResults, Estimate, ModelResults, ProcessorResults, TaskResults};

impl Model {
    /// Returns the number of replicas of task `to` that each replica of `from` calls.
    pub fn fan_out(&self, from: TaskId, to: TaskId) -> u32 {
        let fans = &self.tasks[from.0].fan_out;
        fans.binary_search_by_key(&to, |(target, _)| *target).map_or(1, |index| fans[index].1)
    }

    /// Returns the number of replicas of task `from` that call each replica of `to`.
    pub fn fan_in(&self, from: TaskId, to: TaskId) -> u32 {
        let (caller, target) = (&self.tasks[from.0], &self.tasks[to.0]);
        caller.replicas * self.fan_out(from, to) / target.replicas.max(1)
    }

    /// Returns each pair of tasks of which one calls the other, with or without waiting, or forwards to it.
    pub(crate) fn calling_pairs(&self) -> BTreeSet<(TaskId, TaskId)> {
        let calls = self
            .activities
            .iter()
            .flat_map(|activity| activity.calls.iter().map(|call| (activity.task, call.entry)));
        let forwards =
            self.entries.iter().flat_map(|entry| entry.forwards.iter().map(|(to, _)| (entry.task, *to)));
        calls.chain(forwards).map(|(from, to)| (from, self.entries[to.0].task)).collect()
    }
}

/// A model with its replicas expanded; one without replicas is borrowed.
pub(crate) struct ExpandedModel<'m> {
    pub(crate) model: Cow<'m, Model>,
    pub(crate) processors: ReplicaRanges,
    pub(crate) tasks: ReplicaRanges,
    pub(crate) entries: ReplicaRanges,
    pub(crate) activities: ReplicaRanges,
}

/// The positions of replicas in the expanded model, where those of one object are consecutive.
pub(crate) struct ReplicaRanges(Vec<usize>);

impl ReplicaRanges {
    fn of(counts: impl Iterator<Item = u32>) -> Self {
        let mut starts = vec![0];
        let mut sum = 0;
        for count in counts {
            sum += count.max(1) as usize;
            starts.push(sum);
        }
        Self(starts)
    }

    /// Returns the positions of the replicas of an object.
    pub(crate) fn range(&self, item: usize) -> Range<usize> {
        self.0[item]..self.0[item + 1]
    }

    /// Returns the positions of all objects, in their order.
    pub(crate) fn ranges(&self) -> impl Iterator<Item = Range<usize>> {
        self.0.windows(2).map(|pair| pair[0]..pair[1])
    }

    /// Returns the position of the replica with this number, modulo their count.
    fn replica_index(&self, item: usize, number: usize) -> usize {
        let replicas = self.range(item);
        replicas.start + number % replicas.len()
    }
}

impl<'m> ExpandedModel<'m> {
    pub(crate) fn of(model: &'m Model) -> Self {
        let task_replicas = |task: TaskId| model.tasks[task.0].replicas;
        let mut expanded = Self {
            processors: ReplicaRanges::of(model.processors.iter().map(|processor| processor.replicas)),
            tasks: ReplicaRanges::of(model.tasks.iter().map(|task| task.replicas)),
            entries: ReplicaRanges::of(model.entries.iter().map(|entry| task_replicas(entry.task))),
            activities: ReplicaRanges::of(
                model.activities.iter().map(|activity| task_replicas(activity.task)),
            ),
            model: Cow::Borrowed(model),
        };
        let is_replicated = |replicas: u32| replicas > 1;
        if model.tasks.iter().any(|task| is_replicated(task.replicas))
            || model.processors.iter().any(|processor| is_replicated(processor.replicas))
        {
            expanded.model = Cow::Owned(expanded.expand());
        }
        expanded
    }

    fn expand(&self) -> Model {
        let model = &*self.model;
        let mut expanded = Model {
            comment: model.comment.clone(),
            generated_names: model.generated_names.clone(),
            ..Model::default()
        };
        for (processor, replicas) in model.processors.iter().zip(self.processors.ranges()) {
            for number in 0..replicas.len() {
                let mut replica = processor.clone();
                (replica.name, replica.replicas) = (replica_name(&processor.name, number), 1);
                expanded.processors.push(replica);
            }
        }
        for (task, replicas) in model.tasks.iter().zip(self.tasks.ranges()) {
            let processors = self.processors.range(task.processor.0);
            for number in 0..replicas.len() {
                let mut replica = task.clone();
                (replica.name, replica.replicas, replica.fan_out) =
                    (replica_name(&task.name, number), 1, Vec::new());
                replica.processor =
                    ProcessorId(processors.start + number * processors.len() / replicas.len());
                replica.entries.iter_mut().for_each(|entry| *entry = self.entry(*entry, number));
                expanded.tasks.push(replica);
            }
        }
        for (entry, replicas) in model.entries.iter().zip(self.entries.ranges()) {
            for number in 0..replicas.len() {
                let mut replica = entry.clone();
                (replica.name, replica.task) = (
                    replica_name(&entry.name, number),
                    TaskId(self.tasks.replica_index(entry.task.0, number)),
                );
                replica.forwards.iter_mut().for_each(|(to, _)| *to = self.entry(*to, number));
                replica.body = match &entry.body {
                    EntryBody::Graph(start) => EntryBody::Graph(self.activity(*start, number)),
                    EntryBody::Phases(phases) => {
                        EntryBody::Phases(phases.iter().map(|phase| self.activity(*phase, number)).collect())
                    }
                };
                expanded.entries.push(replica);
            }
        }
        for (activity, replicas) in model.activities.iter().zip(self.activities.ranges()) {
            for number in 0..replicas.len() {
                expanded.activities.push(Activity {
                    name: replica_name(&activity.name, number),
                    task: TaskId(self.tasks.replica_index(activity.task.0, number)),
                    calls: self.calls(activity, number),
                    replies: activity.replies.iter().map(|entry| self.entry(*entry, number)).collect(),
                    successors: self.next(&activity.successors, number),
                    ..activity.clone()
                });
            }
        }
        expanded
    }

    fn entry(&self, entry: EntryId, number: usize) -> EntryId {
        EntryId(self.entries.replica_index(entry.0, number))
    }

    fn activity(&self, activity: ActivityId, number: usize) -> ActivityId {
        ActivityId(self.activities.replica_index(activity.0, number))
    }

    /// Returns the calls of one replica, each to as many replicas as the fan-out.
    fn calls(&self, activity: &Activity, number: usize) -> Vec<Call> {
        let mut replica_calls = Vec::with_capacity(activity.calls.len());
        for call in &activity.calls {
            let fan_out = self.model.fan_out(activity.task, self.model.entries[call.entry.0].task) as usize;
            for replica in 0..fan_out {
                replica_calls
                    .push(Call { entry: self.entry(call.entry, number * fan_out + replica), ..*call });
            }
        }
        replica_calls
    }

    fn next(&self, successors: &Successors, number: usize) -> Successors {
        let replica_of = |activity: &ActivityId| self.activity(*activity, number);
        let replica_branches = |branches: &[(f64, ActivityId)]| {
            branches.iter().map(|(share, target)| (*share, replica_of(target))).collect()
        };
        match successors {
            Successors::End => Successors::End,
            Successors::Or(branches) => Successors::Or(replica_branches(branches)),
            Successors::And(branches) => Successors::And(branches.iter().map(replica_of).collect()),
            Successors::Join { join, wanted, branches, then } => Successors::Join {
                join: *join,
                wanted: *wanted,
                branches: *branches,
                then: Box::new(self.next(then, number)),
            },
            Successors::Loop { bodies, exit } => {
                Successors::Loop { bodies: replica_branches(bodies), exit: exit.as_ref().map(replica_of) }
            }
        }
    }

    /// Averages the results of all replicas to those of one, without intervals.
    pub(crate) fn average_replicas(&self, results: ModelResults) -> ModelResults {
        if let Cow::Borrowed(_) = self.model {
            return results;
        }
        let tasks = self.tasks.ranges().map(|range| task(&results.tasks[range]));
        let entries = self.entries.ranges().map(|range| entry(&results.entries[range]));
        let processors = self.processors.ranges().map(|range| {
            let replicas = &results.processors[range];
            ProcessorResults {
                busy: mean(replicas.iter().map(|replica| replica.busy)),
                ..replicas[0].clone()
            }
        });
        // Some solution methods provide no results of activities.
        let activity_ranges =
            if results.activities.is_empty() { None } else { Some(self.activities.ranges()) };
        let activities = activity_ranges.into_iter().flatten().map(|range| {
            let replicas = &results.activities[range];
            ActivityResults {
                throughput: mean(replicas.iter().map(|replica| replica.throughput)),
                service: mean(replicas.iter().map(|replica| replica.service)),
                ..replicas[0].clone()
            }
        });
        ModelResults {
            tasks: tasks.collect(),
            entries: entries.collect(),
            processors: processors.collect(),
            activities: activities.collect(),
            ..results
        }
    }
}

/// Returns the name of a replica. The first one keeps the object's name, so that its results are found under
/// it.
fn replica_name(name: &str, number: usize) -> String {
    if number == 0 { name.to_owned() } else { format!("{name}#{}", number + 1) }
}

fn task(replicas: &[TaskResults]) -> TaskResults {
    TaskResults {
        throughput: mean(replicas.iter().map(|replica| replica.throughput)),
        busy: mean(replicas.iter().map(|replica| replica.busy)),
        response: optional_mean(replicas.iter().map(|replica| replica.response)),
        ..replicas[0].clone()
    }
}

fn entry(replicas: &[EntryResults]) -> EntryResults {
    EntryResults {
        throughput: mean(replicas.iter().map(|replica| replica.throughput)),
        service: mean(replicas.iter().map(|replica| replica.service)),
        waiting: mean(replicas.iter().map(|replica| replica.waiting)),
        response: optional_mean(replicas.iter().map(|replica| replica.response)),
        ..replicas[0].clone()
    }
}

fn mean(estimates: impl Iterator<Item = Estimate>) -> Estimate {
    let (sum, count) =
        estimates.fold((0.0, 0.0), |(sum, count), estimate| (sum + estimate.mean, count + 1.0));
    Estimate { mean: sum / count, half_width: 0.0 }
}

fn optional_mean(estimates: impl Iterator<Item = Option<Estimate>>) -> Option<Estimate> {
    estimates.collect::<Option<Vec<_>>>().map(|known_estimates| mean(known_estimates.into_iter()))
}
