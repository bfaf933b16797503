//! Resolves the names of a draft to indices, and checks that the model is consistent.

use std::collections::HashMap;

use super::InputError;
use super::draft::{self, ModelDraft, SourceName};
use crate::model::{
    Activity, ActivityId, Call, CallOrder, Entry, EntryBody, EntryId, Model, Multiplicity, Processor,
    ProcessorId, Task, TaskId, TaskRole,
};

mod graph;
mod replicas;

/// The largest number of objects of one kind.
const MAX_ITEMS: usize = 100_000;

/// Converts a draft to a model.
pub(super) fn resolve_draft(draft: ModelDraft) -> Result<Model, InputError> {
    let ModelDraft { comment, processors, tasks, entries, routes, fans, generated_names: names, .. } = draft;
    let mut model = Model { comment, generated_names: names.into_iter().collect(), ..Model::default() };
    let start = super::SourcePosition { line: 1, column: 1 };
    if tasks.is_empty() {
        return Err(start.error("the model has no task"));
    }
    if processors.len().max(tasks.len()).max(entries.len()) > MAX_ITEMS {
        return Err(start.error(format!("the model has more than {MAX_ITEMS} of something")));
    }
    let mut processor_indices = HashMap::new();
    for (index, processor_draft) in processors.into_iter().enumerate() {
        register_name(&mut processor_indices, &processor_draft.name, index, "processor")?;
        model.processors.push(Processor {
            name: processor_draft.name.text,
            scheduling: processor_draft.scheduling,
            copies: processor_draft.copies,
            speed: processor_draft.speed,
            replicas: processor_draft.replicas,
        });
    }
    let mut resolver = NameResolver { entries: HashMap::new(), model };
    let mut entry_tasks = HashMap::new();
    let mut task_indices = HashMap::new();
    for (index, task_draft) in tasks.iter().enumerate() {
        register_name(&mut task_indices, &task_draft.name, index, "task")?;
        let processor = *processor_indices.get(&task_draft.processor.text).ok_or_else(|| {
            task_draft.processor.at.error(format!("no processor `{}`", task_draft.processor.text))
        })?;
        if task_draft.entries.is_empty() {
            return Err(task_draft.name.at.error(format!("task `{}` has no entry", task_draft.name.text)));
        }
        for name in &task_draft.entries {
            register_name(&mut entry_tasks, name, index, "entry")?;
        }
        if task_draft.is_client && task_draft.copies == Multiplicity::Infinite {
            return Err(task_draft
                .name
                .at
                .error("clients are counted: a reference task needs a number (`m`)"));
        }
        let role = if task_draft.is_client {
            TaskRole::Client { think: task_draft.think }
        } else {
            TaskRole::Server { queue: task_draft.scheduling }
        };
        if !task_draft.think.is_finite() {
            return Err(task_draft.name.at.error("a time to think is a number"));
        }
        if let Some((_, position)) = task_draft.queue_limit {
            if task_draft.is_client {
                return Err(position
                    .error(format!("`{}` is a reference task: nobody waits for it", task_draft.name.text)));
            }
            if task_draft.copies == Multiplicity::Infinite {
                return Err(position.error(format!(
                    "nothing ever waits for a thread of `{}`, which has as many as are needed: give it a \
                    number",
                    task_draft.name.text
                )));
            }
        }
        resolver.model.tasks.push(Task {
            name: task_draft.name.text.clone(),
            role,
            processor: ProcessorId(processor),
            copies: task_draft.copies,
            replicas: task_draft.replicas,
            fan_out: Vec::new(),
            priority: task_draft.priority,
            queue_limit: task_draft.queue_limit.map(|(limit, _)| limit),
            entries: Vec::new(),
        });
    }
    let mut model = resolver.join(&tasks, entries, &entry_tasks)?;
    replicas::set_fan_outs(&mut model, &tasks, &fans)?;
    for (name, routing) in routes {
        let found_entry = model.entries.iter_mut().find(|entry| entry.name == name.text);
        let routed_entry = found_entry.ok_or_else(|| name.at.error(format!("no entry `{}`", name.text)))?;
        let share_sum: f64 = routed_entry.forwards.iter().map(|(_, share)| share).sum();
        if (share_sum - 1.0).abs() > 1e-3 {
            return Err(name.at.error(format!(
                "`{}` forwards {share_sum} of its requests: where it has a policy the shares, which are \
                 weights, add up to 1",
                name.text
            )));
        }
        routed_entry.routing = Some(routing);
    }
    Ok(model)
}

/// Records a name; refuses a second object with it.
fn register_name(
    indices: &mut HashMap<String, usize>,
    name: &SourceName,
    index: usize,
    kind: &str,
) -> Result<(), InputError> {
    if indices.insert(name.text.clone(), index).is_some() {
        return Err(name.at.error(format!("there are two of {kind} `{}`", name.text)));
    }
    Ok(())
}

struct NameResolver {
    entries: HashMap<String, EntryId>,
    model: Model,
}

impl NameResolver {
    fn join(
        mut self,
        tasks: &[draft::DraftTask],
        entries: Vec<draft::DraftEntry>,
        entry_tasks: &HashMap<String, usize>,
    ) -> Result<Model, InputError> {
        let mut drafts: HashMap<&str, &draft::DraftEntry> = HashMap::new();
        for entry in &entries {
            let Some(task) = entry_tasks.get(&entry.name.text) else {
                return Err(entry.name.at.error(format!("entry `{}` belongs to no task", entry.name.text)));
            };
            if let (true, Some(_)) = (entry.arrivals > 0.0, Some(()).filter(|()| tasks[*task].is_client)) {
                return Err(entry.name.at.error("clients take no requests from outside"));
            }
            if !entry.arrivals.is_finite() {
                return Err(entry
                    .name
                    .at
                    .error(format!("the arrivals of `{}` are a number", entry.name.text)));
            }
            drafts.insert(&entry.name.text, entry);
        }
        // Entries are in the order of the tasks, so that indices do not depend on where an entry is
        // described.
        for (index, task) in tasks.iter().enumerate() {
            for name in &task.entries {
                let id = EntryId(self.model.entries.len());
                self.entries.insert(name.text.clone(), id);
                self.model.tasks[index].entries.push(id);
                self.model.entries.push(Entry {
                    name: name.text.clone(),
                    task: TaskId(index),
                    arrivals: drafts.get(name.text.as_str()).map_or(0.0, |entry| entry.arrivals),
                    priority: drafts.get(name.text.as_str()).map_or(0, |entry| entry.priority),
                    forwards: Vec::new(),
                    routing: None,
                    body: EntryBody::Phases(Vec::new()),
                });
            }
        }
        for (index, task) in tasks.iter().enumerate() {
            let task_id = TaskId(index);
            let graph = graph::ActivityIndex::new(&mut self, task_id, task)?;
            for name in &task.entries {
                let id = self.entries[&name.text];
                let Some(entry) = drafts.get(name.text.as_str()) else {
                    return Err(name
                        .at
                        .error(format!("nothing is said of entry `{}`: what does it do?", name.text)));
                };
                self.forwards(id, entry)?;
                let body = match &entry.start {
                    Some(start) => EntryBody::Graph(graph.find(start)?),
                    None => EntryBody::Phases(self.phases(task_id, entry)?),
                };
                self.model.entries[id.0].body = body;
            }
        }
        self.check(tasks)?;
        Ok(self.model)
    }

    fn entry(&self, name: &SourceName) -> Result<EntryId, InputError> {
        let id = self.entries.get(&name.text).copied();
        id.ok_or_else(|| name.at.error(format!("no entry `{}`", name.text)))
    }

    /// Returns the called entry; refuses one of a reference task, which cannot be called.
    fn find_called_entry(&self, name: &SourceName) -> Result<EntryId, InputError> {
        let entry = self.entry(name)?;
        let task = self.model.task_of(entry);
        if task.is_client() {
            return Err(name.at.error(format!("`{}` is a reference task and is called", task.name)));
        }
        Ok(entry)
    }

    fn forwards(&mut self, id: EntryId, entry: &draft::DraftEntry) -> Result<(), InputError> {
        let mut share_sum = 0.0;
        for (to, share) in &entry.forwards {
            let target = self.find_called_entry(to)?;
            share_sum += share;
            if share_sum > 1.0 + 1e-6 {
                return Err(to
                    .at
                    .error(format!("entry `{}` forwards more than all: {share_sum}", entry.name.text)));
            }
            self.model.entries[id.0].forwards.push((target, *share));
        }
        Ok(())
    }

    /// Adds the phases up to the last one with any work, at least one.
    fn phases(&mut self, task: TaskId, entry: &draft::DraftEntry) -> Result<Vec<ActivityId>, InputError> {
        let last = entry.phases.iter().rposition(|phase| !phase.is_empty()).unwrap_or(0);
        let mut ids = Vec::new();
        for (number, phase) in entry.phases.iter().enumerate().take(last + 1) {
            let mut named_phase = phase.clone();
            named_phase.name.text = format!("{}_{}", entry.name.text, number + 1);
            named_phase.name.at = entry.name.at;
            ids.push(self.activity(task, &named_phase)?);
        }
        Ok(ids)
    }

    /// Adds a phase or an activity, without its successors.
    fn activity(
        &mut self,
        task: TaskId,
        activity_draft: &draft::DraftActivity,
    ) -> Result<ActivityId, InputError> {
        for (value, quantity) in [
            (activity_draft.demand, "a demand"),
            (activity_draft.variation, "a variation"),
            (activity_draft.think, "a time to think"),
        ] {
            if !value.is_finite() {
                return Err(activity_draft
                    .name
                    .at
                    .error(format!("{quantity} of `{}` is a number", activity_draft.name.text)));
            }
        }
        let mut calls = Vec::new();
        for draft::DraftCall { to, count, waits, retry_policy } in &activity_draft.calls {
            let entry = self.entry(to)?;
            if activity_draft.order != CallOrder::Stochastic && count.fract() != 0.0 {
                return Err(to.at.error(format!(
                    "`{}` calls `{}` exactly {count} times: that is no whole number; let the order be \
                    stochastic, or change it",
                    activity_draft.name.text, to.text
                )));
            }
            if !(0.0..=1e6).contains(count) {
                return Err(to.at.error(format!("`{}` is called {count} times; at most a million", to.text)));
            }
            if *count > 0.0 {
                self.find_called_entry(to)?;
                calls.push(Call { entry, count: *count, waits: *waits, retry_policy: *retry_policy });
            }
        }
        if self.model.activities.len() >= MAX_ITEMS {
            return Err(activity_draft
                .name
                .at
                .error(format!("the model has more than {MAX_ITEMS} activities")));
        }
        self.model.activities.push(Activity {
            name: activity_draft.name.text.clone(),
            task,
            demand: activity_draft.demand,
            variation: activity_draft.variation,
            think: activity_draft.think,
            order: activity_draft.order,
            calls,
            replies: Vec::new(),
            successors: crate::model::Successors::End,
        });
        Ok(ActivityId(self.model.activities.len() - 1))
    }

    /// Refuses calls and forwards that lead back to the same task, which would wait for itself.
    fn check(&self, tasks: &[draft::DraftTask]) -> Result<(), InputError> {
        let model = &self.model;
        let mut waits_for: Vec<Vec<usize>> = vec![Vec::new(); model.tasks.len()];
        for activity in &model.activities {
            for call in activity.calls.iter().filter(|call| call.waits) {
                waits_for[activity.task.0].push(model.entries[call.entry.0].task.0);
            }
        }
        for entry in &model.entries {
            for (to, _) in &entry.forwards {
                waits_for[entry.task.0].push(model.entries[to.0].task.0);
            }
        }
        let has_no_load = !model.tasks.iter().any(Task::is_client)
            && model.entries.iter().all(|entry| entry.arrivals == 0.0);
        if has_no_load {
            return Err(tasks[0]
                .name
                .at
                .error("nothing ever happens: there are no clients (`r`) and no arrivals (`a`)"));
        }
        match cycle(&waits_for) {
            Some(task) => {
                let name = &tasks[task].name;
                Err(name.at.error(format!("`{}` waits for itself: its calls lead back to it", name.text)))
            }
            None => Ok(()),
        }
    }
}

/// Returns a node on a cycle, if there is one.
fn cycle(waits_for: &[Vec<usize>]) -> Option<usize> {
    let mut pending_counts: Vec<usize> = vec![0; waits_for.len()];
    for target in waits_for.iter().flatten() {
        pending_counts[*target] += 1;
    }
    let mut ready: Vec<usize> = (0..waits_for.len()).filter(|task| pending_counts[*task] == 0).collect();
    let mut remaining = waits_for.len();
    while let Some(task) = ready.pop() {
        remaining -= 1;
        for target in &waits_for[task] {
            pending_counts[*target] -= 1;
            if pending_counts[*target] == 0 {
                ready.push(*target);
            }
        }
    }
    if remaining == 0 { None } else { pending_counts.iter().position(|count| *count > 0) }
}
