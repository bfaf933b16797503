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
        fans.binary_search_by_key(&to, |(own, _)| *own).map_or(1, |place| fans[place].1)
    }

    /// Returns the number of replicas of task `from` that call each replica of `to`.
    pub fn fan_in(&self, from: TaskId, to: TaskId) -> u32 {
        let (here, there) = (&self.tasks[from.0], &self.tasks[to.0]);
        here.replicas * self.fan_out(from, to) / there.replicas.max(1)
    }

    /// Returns each pair of tasks of which one calls the other, with or without waiting, or forwards to it.
    pub(crate) fn calling_pairs(&self) -> BTreeSet<(TaskId, TaskId)> {
        let calls =
            self.activities.iter().flat_map(|own| own.calls.iter().map(|call| (own.task, call.entry)));
        let forwards = self.entries.iter().flat_map(|own| own.forwards.iter().map(|(to, _)| (own.task, *to)));
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
        let mut places = vec![0];
        let mut sum = 0;
        for count in counts {
            sum += count.max(1) as usize;
            places.push(sum);
        }
        Self(places)
    }

    /// Returns the positions of the replicas of an object.
    pub(crate) fn range(&self, of: usize) -> Range<usize> {
        self.0[of]..self.0[of + 1]
    }

    /// Returns the positions of all objects, in their order.
    pub(crate) fn ranges(&self) -> impl Iterator<Item = Range<usize>> {
        self.0.windows(2).map(|pair| pair[0]..pair[1])
    }

    /// Returns the position of the replica with this number, modulo their count.
    fn replica_index(&self, of: usize, number: usize) -> usize {
        let those = self.range(of);
        those.start + number % those.len()
    }
}

impl<'m> ExpandedModel<'m> {
    pub(crate) fn of(model: &'m Model) -> Self {
        let of_task = |task: TaskId| model.tasks[task.0].replicas;
        let mut flat = Self {
            processors: ReplicaRanges::of(model.processors.iter().map(|own| own.replicas)),
            tasks: ReplicaRanges::of(model.tasks.iter().map(|own| own.replicas)),
            entries: ReplicaRanges::of(model.entries.iter().map(|own| of_task(own.task))),
            activities: ReplicaRanges::of(model.activities.iter().map(|own| of_task(own.task))),
            model: Cow::Borrowed(model),
        };
        let several = |replicas: u32| replicas > 1;
        if model.tasks.iter().any(|own| several(own.replicas))
            || model.processors.iter().any(|own| several(own.replicas))
        {
            flat.model = Cow::Owned(flat.expand());
        }
        flat
    }

    fn expand(&self) -> Model {
        let model = &*self.model;
        let mut all = Model {
            comment: model.comment.clone(),
            generated_names: model.generated_names.clone(),
            ..Model::default()
        };
        for (own, those) in model.processors.iter().zip(self.processors.ranges()) {
            for number in 0..those.len() {
                let mut one = own.clone();
                (one.name, one.replicas) = (replica_name(&own.name, number), 1);
                all.processors.push(one);
            }
        }
        for (own, those) in model.tasks.iter().zip(self.tasks.ranges()) {
            let processors = self.processors.range(own.processor.0);
            for number in 0..those.len() {
                let mut one = own.clone();
                (one.name, one.replicas, one.fan_out) = (replica_name(&own.name, number), 1, Vec::new());
                one.processor = ProcessorId(processors.start + number * processors.len() / those.len());
                one.entries.iter_mut().for_each(|entry| *entry = self.entry(*entry, number));
                all.tasks.push(one);
            }
        }
        for (own, those) in model.entries.iter().zip(self.entries.ranges()) {
            for number in 0..those.len() {
                let mut one = own.clone();
                (one.name, one.task) =
                    (replica_name(&own.name, number), TaskId(self.tasks.replica_index(own.task.0, number)));
                one.forwards.iter_mut().for_each(|(to, _)| *to = self.entry(*to, number));
                one.body = match &own.body {
                    EntryBody::Graph(start) => EntryBody::Graph(self.activity(*start, number)),
                    EntryBody::Phases(all) => {
                        EntryBody::Phases(all.iter().map(|phase| self.activity(*phase, number)).collect())
                    }
                };
                all.entries.push(one);
            }
        }
        for (own, those) in model.activities.iter().zip(self.activities.ranges()) {
            for number in 0..those.len() {
                all.activities.push(Activity {
                    name: replica_name(&own.name, number),
                    task: TaskId(self.tasks.replica_index(own.task.0, number)),
                    calls: self.calls(own, number),
                    replies: own.replies.iter().map(|entry| self.entry(*entry, number)).collect(),
                    successors: self.next(&own.successors, number),
                    ..own.clone()
                });
            }
        }
        all
    }

    fn entry(&self, entry: EntryId, number: usize) -> EntryId {
        EntryId(self.entries.replica_index(entry.0, number))
    }

    fn activity(&self, activity: ActivityId, number: usize) -> ActivityId {
        ActivityId(self.activities.replica_index(activity.0, number))
    }

    /// Returns the calls of one replica, each to as many replicas as the fan-out.
    fn calls(&self, own: &Activity, number: usize) -> Vec<Call> {
        let mut all = Vec::with_capacity(own.calls.len());
        for call in &own.calls {
            let fan = self.model.fan_out(own.task, self.model.entries[call.entry.0].task) as usize;
            for turn in 0..fan {
                all.push(Call { entry: self.entry(call.entry, number * fan + turn), ..*call });
            }
        }
        all
    }

    fn next(&self, next: &Successors, number: usize) -> Successors {
        let to = |activity: &ActivityId| self.activity(*activity, number);
        let ways = |ways: &[(f64, ActivityId)]| ways.iter().map(|(part, way)| (*part, to(way))).collect();
        match next {
            Successors::End => Successors::End,
            Successors::Or(all) => Successors::Or(ways(all)),
            Successors::And(all) => Successors::And(all.iter().map(to).collect()),
            Successors::Join { join, wanted, branches, then } => Successors::Join {
                join: *join,
                wanted: *wanted,
                branches: *branches,
                then: Box::new(self.next(then, number)),
            },
            Successors::Loop { bodies, exit } => {
                Successors::Loop { bodies: ways(bodies), exit: exit.as_ref().map(to) }
            }
        }
    }

    /// Averages the results of all replicas to those of one, without intervals.
    pub(crate) fn average_replicas(&self, found: ModelResults) -> ModelResults {
        if let Cow::Borrowed(_) = self.model {
            return found;
        }
        let tasks = self.tasks.ranges().map(|those| task(&found.tasks[those]));
        let entries = self.entries.ranges().map(|those| entry(&found.entries[those]));
        let processors = self.processors.ranges().map(|those| {
            let those = &found.processors[those];
            ProcessorResults { busy: mean(those.iter().map(|own| own.busy)), ..those[0].clone() }
        });
        // Some solution methods provide no results of activities.
        let known = if found.activities.is_empty() { None } else { Some(self.activities.ranges()) };
        let activities = known.into_iter().flatten().map(|those| {
            let those = &found.activities[those];
            ActivityResults {
                throughput: mean(those.iter().map(|own| own.throughput)),
                service: mean(those.iter().map(|own| own.service)),
                ..those[0].clone()
            }
        });
        ModelResults {
            tasks: tasks.collect(),
            entries: entries.collect(),
            processors: processors.collect(),
            activities: activities.collect(),
            ..found
        }
    }
}

/// Returns the name of a replica. The first one keeps the object's name, so that its results are found under
/// it.
fn replica_name(name: &str, number: usize) -> String {
    if number == 0 { name.to_owned() } else { format!("{name}#{}", number + 1) }
}

fn task(those: &[TaskResults]) -> TaskResults {
    TaskResults {
        throughput: mean(those.iter().map(|own| own.throughput)),
        busy: mean(those.iter().map(|own| own.busy)),
        response: optional_mean(those.iter().map(|own| own.response)),
        ..those[0].clone()
    }
}

fn entry(those: &[EntryResults]) -> EntryResults {
    EntryResults {
        throughput: mean(those.iter().map(|own| own.throughput)),
        service: mean(those.iter().map(|own| own.service)),
        waiting: mean(those.iter().map(|own| own.waiting)),
        response: optional_mean(those.iter().map(|own| own.response)),
        ..those[0].clone()
    }
}

fn mean(those: impl Iterator<Item = Estimate>) -> Estimate {
    let (sum, count) = those.fold((0.0, 0.0), |(sum, count), own| (sum + own.mean, count + 1.0));
    Estimate { mean: sum / count, half_width: 0.0 }
}

fn optional_mean(those: impl Iterator<Item = Option<Estimate>>) -> Option<Estimate> {
    those.collect::<Option<Vec<_>>>().map(|all| mean(all.into_iter()))
}
