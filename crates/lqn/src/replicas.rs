//! Replicas: a task or processor that is in the model once and exists several times, each with its own queue.
//!
//! A model has them as its author wrote it. It is simulated and solved with all replicas expanded ([`Flat`]).
//! Their results are averaged to those of one, because replicas are alike.
//!
//! The mapping is that of other tools. With fan-out `o`, replica `k` (from 0) calls the replicas `k o`,
//! `k o + 1`, …, `k o + o - 1`, modulo their number. Consecutive replicas share a replica of a processor.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::ops::Range;

use crate::model::{Activity, ActivityId, Body, Call, EntryId, Model, Next, ProcessorId, TaskId};
use crate::simulate::{ActivityFinding, EntryFinding, Estimate, Findings, ProcessorFinding, TaskFinding};

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
    pub(crate) fn pairs(&self) -> BTreeSet<(TaskId, TaskId)> {
        let calls =
            self.activities.iter().flat_map(|own| own.calls.iter().map(|call| (own.task, call.entry)));
        let forwards = self.entries.iter().flat_map(|own| own.forwards.iter().map(|(to, _)| (own.task, *to)));
        calls.chain(forwards).map(|(from, to)| (from, self.entries[to.0].task)).collect()
    }
}

/// A model with its replicas expanded; one without replicas is borrowed.
pub(crate) struct Flat<'m> {
    pub(crate) model: Cow<'m, Model>,
    pub(crate) processors: Places,
    pub(crate) tasks: Places,
    pub(crate) entries: Places,
    pub(crate) activities: Places,
}

/// The positions of replicas in the expanded model, where those of one object are consecutive.
pub(crate) struct Places(Vec<usize>);

impl Places {
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
    pub(crate) fn those(&self, of: usize) -> Range<usize> {
        self.0[of]..self.0[of + 1]
    }

    /// Returns the positions of all objects, in their order.
    pub(crate) fn all(&self) -> impl Iterator<Item = Range<usize>> {
        self.0.windows(2).map(|pair| pair[0]..pair[1])
    }

    /// Returns the position of the replica with this number, modulo their count.
    fn one(&self, of: usize, number: usize) -> usize {
        let those = self.those(of);
        those.start + number % those.len()
    }
}

impl<'m> Flat<'m> {
    pub(crate) fn of(model: &'m Model) -> Self {
        let of_task = |task: TaskId| model.tasks[task.0].replicas;
        let mut flat = Self {
            processors: Places::of(model.processors.iter().map(|own| own.replicas)),
            tasks: Places::of(model.tasks.iter().map(|own| own.replicas)),
            entries: Places::of(model.entries.iter().map(|own| of_task(own.task))),
            activities: Places::of(model.activities.iter().map(|own| of_task(own.task))),
            model: Cow::Borrowed(model),
        };
        let several = |replicas: u32| replicas > 1;
        if model.tasks.iter().any(|own| several(own.replicas))
            || model.processors.iter().any(|own| several(own.replicas))
        {
            flat.model = Cow::Owned(flat.written_out());
        }
        flat
    }

    fn written_out(&self) -> Model {
        let model = &*self.model;
        let mut all = Model { comment: model.comment.clone(), made: model.made.clone(), ..Model::default() };
        for (own, those) in model.processors.iter().zip(self.processors.all()) {
            for number in 0..those.len() {
                let mut one = own.clone();
                (one.name, one.replicas) = (named(&own.name, number), 1);
                all.processors.push(one);
            }
        }
        for (own, those) in model.tasks.iter().zip(self.tasks.all()) {
            let processors = self.processors.those(own.processor.0);
            for number in 0..those.len() {
                let mut one = own.clone();
                (one.name, one.replicas, one.fan_out) = (named(&own.name, number), 1, Vec::new());
                one.processor = ProcessorId(processors.start + number * processors.len() / those.len());
                one.entries.iter_mut().for_each(|entry| *entry = self.entry(*entry, number));
                all.tasks.push(one);
            }
        }
        for (own, those) in model.entries.iter().zip(self.entries.all()) {
            for number in 0..those.len() {
                let mut one = own.clone();
                (one.name, one.task) = (named(&own.name, number), TaskId(self.tasks.one(own.task.0, number)));
                one.forwards.iter_mut().for_each(|(to, _)| *to = self.entry(*to, number));
                one.body = match &own.body {
                    Body::Graph(start) => Body::Graph(self.activity(*start, number)),
                    Body::Phases(all) => {
                        Body::Phases(all.iter().map(|phase| self.activity(*phase, number)).collect())
                    }
                };
                all.entries.push(one);
            }
        }
        for (own, those) in model.activities.iter().zip(self.activities.all()) {
            for number in 0..those.len() {
                all.activities.push(Activity {
                    name: named(&own.name, number),
                    task: TaskId(self.tasks.one(own.task.0, number)),
                    calls: self.calls(own, number),
                    replies: own.replies.iter().map(|entry| self.entry(*entry, number)).collect(),
                    next: self.next(&own.next, number),
                    ..own.clone()
                });
            }
        }
        all
    }

    fn entry(&self, entry: EntryId, number: usize) -> EntryId {
        EntryId(self.entries.one(entry.0, number))
    }

    fn activity(&self, activity: ActivityId, number: usize) -> ActivityId {
        ActivityId(self.activities.one(activity.0, number))
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

    fn next(&self, next: &Next, number: usize) -> Next {
        let to = |activity: &ActivityId| self.activity(*activity, number);
        let ways = |ways: &[(f64, ActivityId)]| ways.iter().map(|(part, way)| (*part, to(way))).collect();
        match next {
            Next::End => Next::End,
            Next::Or(all) => Next::Or(ways(all)),
            Next::And(all) => Next::And(all.iter().map(to).collect()),
            Next::Join { join, wanted, branches, then } => Next::Join {
                join: *join,
                wanted: *wanted,
                branches: *branches,
                then: Box::new(self.next(then, number)),
            },
            Next::Loop { bodies, exit } => Next::Loop { bodies: ways(bodies), exit: exit.as_ref().map(to) },
        }
    }

    /// Averages the results of all replicas to those of one, without intervals.
    pub(crate) fn one_of_each(&self, found: Findings) -> Findings {
        if let Cow::Borrowed(_) = self.model {
            return found;
        }
        let tasks = self.tasks.all().map(|those| task(&found.tasks[those]));
        let entries = self.entries.all().map(|those| entry(&found.entries[those]));
        let processors = self.processors.all().map(|those| {
            let those = &found.processors[those];
            ProcessorFinding { busy: mean(those.iter().map(|own| own.busy)), ..those[0].clone() }
        });
        // Some solution methods provide no results of activities.
        let known = if found.activities.is_empty() { None } else { Some(self.activities.all()) };
        let activities = known.into_iter().flatten().map(|those| {
            let those = &found.activities[those];
            ActivityFinding {
                throughput: mean(those.iter().map(|own| own.throughput)),
                service: mean(those.iter().map(|own| own.service)),
                ..those[0].clone()
            }
        });
        Findings {
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
fn named(name: &str, number: usize) -> String {
    if number == 0 { name.to_owned() } else { format!("{name}#{}", number + 1) }
}

fn task(those: &[TaskFinding]) -> TaskFinding {
    TaskFinding {
        throughput: mean(those.iter().map(|own| own.throughput)),
        busy: mean(those.iter().map(|own| own.busy)),
        response: some(those.iter().map(|own| own.response)),
        ..those[0].clone()
    }
}

fn entry(those: &[EntryFinding]) -> EntryFinding {
    EntryFinding {
        throughput: mean(those.iter().map(|own| own.throughput)),
        service: mean(those.iter().map(|own| own.service)),
        waiting: mean(those.iter().map(|own| own.waiting)),
        response: some(those.iter().map(|own| own.response)),
        ..those[0].clone()
    }
}

fn mean(those: impl Iterator<Item = Estimate>) -> Estimate {
    let (sum, count) = those.fold((0.0, 0.0), |(sum, count), own| (sum + own.mean, count + 1.0));
    Estimate { mean: sum / count, half_width: 0.0 }
}

fn some(those: impl Iterator<Item = Option<Estimate>>) -> Option<Estimate> {
    those.collect::<Option<Vec<_>>>().map(|all| mean(all.into_iter()))
}
