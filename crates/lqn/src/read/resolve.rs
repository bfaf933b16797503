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
const MOST: usize = 100_000;

/// Converts a draft to a model.
pub(super) fn resolve_draft(draft: ModelDraft) -> Result<Model, InputError> {
    let ModelDraft { comment, processors, tasks, entries, routes, fans, generated_names: made, .. } = draft;
    let mut model = Model { comment, generated_names: made.into_iter().collect(), ..Model::default() };
    let nowhere = super::SourcePosition { line: 1, column: 1 };
    if tasks.is_empty() {
        return Err(nowhere.error("the model has no task"));
    }
    if processors.len().max(tasks.len()).max(entries.len()) > MOST {
        return Err(nowhere.error(format!("the model has more than {MOST} of something")));
    }
    let mut places = HashMap::new();
    for (place, own) in processors.into_iter().enumerate() {
        register_name(&mut places, &own.name, place, "processor")?;
        model.processors.push(Processor {
            name: own.name.text,
            scheduling: own.scheduling,
            copies: own.copies,
            speed: own.speed,
            replicas: own.replicas,
        });
    }
    let mut joiner = NameResolver { entries: HashMap::new(), model };
    let mut owners = HashMap::new();
    let mut known = HashMap::new();
    for (place, own) in tasks.iter().enumerate() {
        register_name(&mut known, &own.name, place, "task")?;
        let processor = *places
            .get(&own.processor.text)
            .ok_or_else(|| own.processor.at.error(format!("no processor `{}`", own.processor.text)))?;
        if own.entries.is_empty() {
            return Err(own.name.at.error(format!("task `{}` has no entry", own.name.text)));
        }
        for name in &own.entries {
            register_name(&mut owners, name, place, "entry")?;
        }
        if own.is_client && own.copies == Multiplicity::Infinite {
            return Err(own.name.at.error("clients are counted: a reference task needs a number (`m`)"));
        }
        let role = if own.is_client {
            TaskRole::Client { think: own.think }
        } else {
            TaskRole::Server { queue: own.scheduling }
        };
        if !own.think.is_finite() {
            return Err(own.name.at.error("a time to think is a number"));
        }
        if let Some((_, at)) = own.queue_limit {
            if own.is_client {
                return Err(at.error(format!("`{}` is a reference task: nobody waits for it", own.name.text)));
            }
            if own.copies == Multiplicity::Infinite {
                return Err(at.error(format!(
                    "nothing ever waits for a thread of `{}`, which has as many as are needed: give it a \
                    number",
                    own.name.text
                )));
            }
        }
        joiner.model.tasks.push(Task {
            name: own.name.text.clone(),
            role,
            processor: ProcessorId(processor),
            copies: own.copies,
            replicas: own.replicas,
            fan_out: Vec::new(),
            priority: own.priority,
            queue_limit: own.queue_limit.map(|(limit, _)| limit),
            entries: Vec::new(),
        });
    }
    let mut model = joiner.join(&tasks, entries, &owners)?;
    replicas::set_fan_outs(&mut model, &tasks, &fans)?;
    for (name, routing) in routes {
        let own = model.entries.iter_mut().find(|entry| entry.name == name.text);
        let own = own.ok_or_else(|| name.at.error(format!("no entry `{}`", name.text)))?;
        let all: f64 = own.forwards.iter().map(|(_, share)| share).sum();
        if (all - 1.0).abs() > 1e-3 {
            return Err(name.at.error(format!(
                "`{}` forwards {all} of its requests: where it has a policy the shares, which are weights, \
                add up to 1",
                name.text
            )));
        }
        own.routing = Some(routing);
    }
    Ok(model)
}

/// Records a name; refuses a second object with it.
fn register_name(
    places: &mut HashMap<String, usize>,
    name: &SourceName,
    place: usize,
    what: &str,
) -> Result<(), InputError> {
    if places.insert(name.text.clone(), place).is_some() {
        return Err(name.at.error(format!("there are two of {what} `{}`", name.text)));
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
        owners: &HashMap<String, usize>,
    ) -> Result<Model, InputError> {
        let mut spoken: HashMap<&str, &draft::DraftEntry> = HashMap::new();
        for entry in &entries {
            let Some(task) = owners.get(&entry.name.text) else {
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
            spoken.insert(&entry.name.text, entry);
        }
        // Entries are in the order of the tasks, so that indices do not depend on where an entry is
        // described.
        for (place, task) in tasks.iter().enumerate() {
            for name in &task.entries {
                let id = EntryId(self.model.entries.len());
                self.entries.insert(name.text.clone(), id);
                self.model.tasks[place].entries.push(id);
                self.model.entries.push(Entry {
                    name: name.text.clone(),
                    task: TaskId(place),
                    arrivals: spoken.get(name.text.as_str()).map_or(0.0, |entry| entry.arrivals),
                    priority: spoken.get(name.text.as_str()).map_or(0, |entry| entry.priority),
                    forwards: Vec::new(),
                    routing: None,
                    body: EntryBody::Phases(Vec::new()),
                });
            }
        }
        for (place, task) in tasks.iter().enumerate() {
            let task_id = TaskId(place);
            let graph = graph::ActivityIndex::new(&mut self, task_id, task)?;
            for name in &task.entries {
                let id = self.entries[&name.text];
                let Some(entry) = spoken.get(name.text.as_str()) else {
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
        let found = self.entries.get(&name.text).copied();
        found.ok_or_else(|| name.at.error(format!("no entry `{}`", name.text)))
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
        let mut all = 0.0;
        for (to, share) in &entry.forwards {
            let target = self.find_called_entry(to)?;
            all += share;
            if all > 1.0 + 1e-6 {
                return Err(to
                    .at
                    .error(format!("entry `{}` forwards more than all: {all}", entry.name.text)));
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
            let mut named = phase.clone();
            named.name.text = format!("{}_{}", entry.name.text, number + 1);
            named.name.at = entry.name.at;
            ids.push(self.activity(task, &named)?);
        }
        Ok(ids)
    }

    /// Adds a phase or an activity, without its successors.
    fn activity(&mut self, task: TaskId, own: &draft::DraftActivity) -> Result<ActivityId, InputError> {
        for (value, what) in
            [(own.demand, "a demand"), (own.variation, "a variation"), (own.think, "a time to think")]
        {
            if !value.is_finite() {
                return Err(own.name.at.error(format!("{what} of `{}` is a number", own.name.text)));
            }
        }
        let mut calls = Vec::new();
        for draft::DraftCall { to, count, waits, retry_policy: patience } in &own.calls {
            let entry = self.entry(to)?;
            if own.order != CallOrder::Stochastic && count.fract() != 0.0 {
                return Err(to.at.error(format!(
                    "`{}` calls `{}` exactly {count} times: that is no whole number; let the order be \
                    stochastic, or change it",
                    own.name.text, to.text
                )));
            }
            if !(0.0..=1e6).contains(count) {
                return Err(to.at.error(format!("`{}` is called {count} times; at most a million", to.text)));
            }
            if *count > 0.0 {
                self.find_called_entry(to)?;
                calls.push(Call { entry, count: *count, waits: *waits, retry_policy: *patience });
            }
        }
        if self.model.activities.len() >= MOST {
            return Err(own.name.at.error(format!("the model has more than {MOST} activities")));
        }
        self.model.activities.push(Activity {
            name: own.name.text.clone(),
            task,
            demand: own.demand,
            variation: own.variation,
            think: own.think,
            order: own.order,
            calls,
            replies: Vec::new(),
            successors: crate::model::Successors::End,
        });
        Ok(ActivityId(self.model.activities.len() - 1))
    }

    /// Refuses calls and forwards that lead back to the same task, which would wait for itself.
    fn check(&self, tasks: &[draft::DraftTask]) -> Result<(), InputError> {
        let model = &self.model;
        let mut asks: Vec<Vec<usize>> = vec![Vec::new(); model.tasks.len()];
        for activity in &model.activities {
            for call in activity.calls.iter().filter(|call| call.waits) {
                asks[activity.task.0].push(model.entries[call.entry.0].task.0);
            }
        }
        for entry in &model.entries {
            for (to, _) in &entry.forwards {
                asks[entry.task.0].push(model.entries[to.0].task.0);
            }
        }
        let idle = !model.tasks.iter().any(Task::is_client)
            && model.entries.iter().all(|entry| entry.arrivals == 0.0);
        if idle {
            return Err(tasks[0]
                .name
                .at
                .error("nothing ever happens: there are no clients (`r`) and no arrivals (`a`)"));
        }
        match cycle(&asks) {
            Some(task) => {
                let name = &tasks[task].name;
                Err(name.at.error(format!("`{}` waits for itself: its calls lead back to it", name.text)))
            }
            None => Ok(()),
        }
    }
}

/// Returns a node on a cycle, if there is one.
fn cycle(asks: &[Vec<usize>]) -> Option<usize> {
    let mut open: Vec<usize> = vec![0; asks.len()];
    for target in asks.iter().flatten() {
        open[*target] += 1;
    }
    let mut free: Vec<usize> = (0..asks.len()).filter(|task| open[*task] == 0).collect();
    let mut left = asks.len();
    while let Some(task) = free.pop() {
        left -= 1;
        for target in &asks[task] {
            open[*target] -= 1;
            if open[*target] == 0 {
                free.push(*target);
            }
        }
    }
    if left == 0 { None } else { open.iter().position(|count| *count > 0) }
}
