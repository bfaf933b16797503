//! The writer of LQNX, the inverse of `read/xml.rs`. Elements are in the order of the schema (Franks and
//! others, Layered queueing network solver and simulator user manual, chapter 3).

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::graph::{PredecessorKind, TaskGraph};
use super::results::{LqnxResults, ResultAttributes};
use super::{ResultOrigin, WriteError};
use crate::ModelResults;
use crate::markup::escaped;
use crate::model::{
    Activity, ActivityId, CallOrder, Entry, EntryBody, EntryId, Model, Multiplicity, Processor, RetryPolicy,
    Routing, Scheduling, Successors, TaskId, TaskRole,
};

pub(super) fn document(
    model: &Model,
    reported: Option<(&ModelResults, &ResultOrigin<'_>)>,
) -> Result<String, WriteError> {
    let mut writer = LqnxWriter {
        model,
        fans: fans(model),
        results: reported.map(|(results, _)| LqnxResults::of(model, results)),
        out: "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n".to_owned(),
        depth: 0,
    };
    let namespace = model.has_limits().then(|| ("xmlns:plimsoll", crate::read::NAMESPACE.to_owned()));
    writer.open("lqn-model", &namespace.into_iter().collect::<Vec<_>>());
    let settings = [
        ("comment", model.comment.clone()),
        ("conv_val", "1e-06".to_owned()),
        ("it_limit", "50".to_owned()),
        ("print_int", "0".to_owned()),
        ("underrelax_coeff", "0.9".to_owned()),
    ];
    let routes = super::routes(model);
    match reported {
        None if routes.is_empty() => writer.leaf("solver-params", &settings),
        None => {
            writer.open("solver-params", &settings);
            writer.routes(routes);
            writer.close("solver-params");
        }
        Some((_, origin)) => {
            writer.open("solver-params", &settings);
            writer.routes(routes);
            let general = [
                ("solver-info", origin.program.to_owned()),
                ("valid", if origin.is_accurate { "true" } else { "false" }.to_owned()),
                ("conv-val", origin.convergence.to_string()),
                ("iterations", origin.iterations.to_string()),
            ];
            writer.leaf("result-general", &general);
            writer.close("solver-params");
        }
    }
    for index in 0..model.processors.len() {
        writer.processor(index)?;
    }
    writer.close("lqn-model");
    Ok(writer.out)
}

struct LqnxWriter<'m> {
    model: &'m Model,
    /// The fan-out and fan-in elements of each task.
    fans: BTreeMap<TaskId, Vec<FanElement>>,
    results: Option<LqnxResults<'m>>,
    out: String,
    depth: usize,
}

/// A fan-out or fan-in element.
type FanElement = (&'static str, [(&'static str, String); 2]);

fn fans(model: &Model) -> BTreeMap<TaskId, Vec<FanElement>> {
    let mut fans: BTreeMap<TaskId, Vec<FanElement>> = BTreeMap::new();
    let mut add_fan = |subject: TaskId, name, attribute, peer: TaskId, count: u32| {
        if count != 1 {
            let fan = [(attribute, model.tasks[peer.0].name.clone()), ("value", count.to_string())];
            fans.entry(subject).or_default().push((name, fan));
        }
    };
    for (from, to) in super::replicated(model) {
        add_fan(from, "fan-out", "dest", to, model.fan_out(from, to));
        add_fan(to, "fan-in", "source", from, model.fan_in(from, to));
    }
    fans
}

type XmlAttributes = [(&'static str, String)];

impl LqnxWriter<'_> {
    fn tag(&mut self, name: &str, attributes: &XmlAttributes, end: &str) {
        let _ = write!(self.out, "{:1$}<{name}", "", 2 * self.depth);
        for (name, value) in attributes {
            let _ = write!(self.out, " {name}=\"{}\"", escaped(value));
        }
        self.out += end;
    }

    fn open(&mut self, name: &str, attributes: &XmlAttributes) {
        self.tag(name, attributes, ">\n");
        self.depth += 1;
    }

    fn leaf(&mut self, name: &str, attributes: &XmlAttributes) {
        self.tag(name, attributes, "/>\n");
    }

    fn close(&mut self, name: &str) {
        self.depth -= 1;
        let _ = writeln!(self.out, "{:1$}</{name}>", "", 2 * self.depth);
    }

    /// Writes the results of an object, if any: the means, and the half-widths in an element of their own.
    fn write_results(&mut self, name: &str, select: impl FnOnce(&LqnxResults<'_>) -> ResultAttributes) {
        if let Some(attributes) = self.results.as_ref().map(select) {
            self.result(name, &attributes);
        }
    }

    fn result(&mut self, name: &str, attributes: &ResultAttributes) {
        if attributes.means.is_empty() {
            return;
        }
        if attributes.half_widths.is_empty() {
            return self.leaf(name, &attributes.means);
        }
        self.open(name, &attributes.means);
        self.leaf("result-conf-95", &attributes.half_widths);
        self.close(name);
    }

    fn routes(&mut self, routes: BTreeMap<&str, Routing>) {
        for (entry, routing) in routes {
            self.leaf("pragma", &[("param", format!("route.{entry}")), ("value", routing.to_string())]);
        }
    }

    fn processor(&mut self, index: usize) -> Result<(), WriteError> {
        let processor_data = &self.model.processors[index];
        let scheduling_name = scheduling(processor_data);
        let mut attributes =
            vec![("name", processor_data.name.clone()), ("scheduling", scheduling_name.to_owned())];
        attributes.extend(multiplicity(processor_data.copies, scheduling_name));
        attributes.extend(replication(processor_data.replicas));
        if processor_data.speed != 1.0 {
            attributes.push(("speed-factor", processor_data.speed.to_string()));
        }
        self.open("processor", &attributes);
        self.write_results("result-processor", |results| results.processor(index));
        for task in 0..self.model.tasks.len() {
            if self.model.tasks[task].processor.0 == index {
                self.task(TaskId(task))?;
            }
        }
        self.close("processor");
        Ok(())
    }

    fn task(&mut self, id: TaskId) -> Result<(), WriteError> {
        let task_data = &self.model.tasks[id.0];
        let scheduling_name = match task_data.role {
            TaskRole::Client { .. } => "ref",
            TaskRole::Server { queue: Scheduling::HeadOfLine } => "hol",
            TaskRole::Server { .. } if task_data.copies == Multiplicity::Infinite => "inf",
            TaskRole::Server { .. } => "fcfs",
        };
        let mut attributes =
            vec![("name", task_data.name.clone()), ("scheduling", scheduling_name.to_owned())];
        attributes.extend(multiplicity(task_data.copies, scheduling_name));
        attributes.extend(replication(task_data.replicas));
        if let TaskRole::Client { think } = task_data.role
            && think > 0.0
        {
            attributes.push(("think-time", think.to_string()));
        }
        if task_data.priority != 0 {
            attributes.push(("priority", task_data.priority.to_string()));
        }
        attributes.extend(task_data.queue_limit.map(|limit| ("plimsoll:queue-limit", limit.to_string())));
        self.open("task", &attributes);
        self.write_results("result-task", |results| results.task(id));
        for (name, fan) in self.fans.remove(&id).unwrap_or_default() {
            self.leaf(name, &fan);
        }
        for entry in &task_data.entries {
            self.entry(*entry);
        }
        self.activities(id)?;
        self.close("task");
        Ok(())
    }

    fn entry(&mut self, id: EntryId) {
        let entry_data: &Entry = &self.model.entries[id.0];
        let kind = if matches!(entry_data.body, EntryBody::Phases(_)) { "PH1PH2" } else { "NONE" };
        let mut attributes = vec![("name", entry_data.name.clone()), ("type", kind.to_owned())];
        if entry_data.arrivals > 0.0 {
            attributes.push(("open-arrival-rate", entry_data.arrivals.to_string()));
        }
        if entry_data.priority != 0 {
            attributes.push(("priority", entry_data.priority.to_string()));
        }
        self.open("entry", &attributes);
        self.write_results("result-entry", |results| results.entry(id));
        for (number, (to, share)) in entry_data.forwards.iter().enumerate() {
            let to = self.model.entries[to.0].name.clone();
            let attributes = [("dest", to), ("prob", share.to_string())];
            let result_attributes = self.results.as_ref().and_then(|results| results.forward(id, number));
            self.call("forwarding", &attributes, result_attributes);
        }
        if let EntryBody::Phases(phases) = &entry_data.body {
            self.open("entry-phase-activities", &[]);
            for (number, phase) in phases.iter().enumerate() {
                self.activity(*phase, vec![("phase", (number + 1).to_string())]);
            }
            self.close("entry-phase-activities");
        }
        self.close("entry");
    }

    fn activity(&mut self, id: ActivityId, leading_attributes: Vec<(&'static str, String)>) {
        let activity_data: &Activity = &self.model.activities[id.0];
        let mut attributes = vec![("name", activity_data.name.clone())];
        attributes.extend(leading_attributes);
        attributes.push(("host-demand-mean", activity_data.demand.to_string()));
        if activity_data.variation != 1.0 {
            attributes.push(("host-demand-cvsq", activity_data.variation.to_string()));
        }
        if activity_data.think > 0.0 {
            attributes.push(("think-time", activity_data.think.to_string()));
        }
        match activity_data.order {
            CallOrder::Stochastic => {}
            CallOrder::Deterministic => attributes.push(("call-order", "DETERMINISTIC".to_owned())),
            CallOrder::List => attributes.push(("call-order", "LIST".to_owned())),
        }
        if activity_data.calls.is_empty() && self.results.is_none() {
            return self.leaf("activity", &attributes);
        }
        self.open("activity", &attributes);
        self.write_results("result-activity", |results| results.activity(id));
        for (number, call) in activity_data.calls.iter().enumerate() {
            let name = if call.waits { "synch-call" } else { "asynch-call" };
            let to = self.model.entries[call.entry.0].name.clone();
            let mut attributes = vec![("dest", to), ("calls-mean", call.count.to_string())];
            if let Some(retry_policy) = call.retry_policy {
                attributes.extend(retry_attributes(retry_policy));
            }
            let result_attributes = self.results.as_ref().and_then(|results| results.call(id, number));
            self.call(name, &attributes, result_attributes);
        }
        self.close("activity");
    }

    /// Writes a call or a forward, with its waiting time if known.
    fn call(&mut self, name: &str, attributes: &XmlAttributes, result_attributes: Option<ResultAttributes>) {
        let Some(results) = result_attributes else { return self.leaf(name, attributes) };
        self.open(name, attributes);
        self.result("result-call", &results);
        self.close(name);
    }

    fn activities(&mut self, id: TaskId) -> Result<(), WriteError> {
        let model = self.model;
        let TaskGraph { activities, links } = TaskGraph::of(model, id);
        if activities.is_empty() {
            return Ok(());
        }
        let name = |id: &ActivityId| ("name", model.activities[id.0].name.clone());
        self.open("task-activities", &[]);
        for activity in &activities {
            let mut starting_entries = model.tasks[id.0]
                .entries
                .iter()
                .filter(|entry| model.entries[entry.0].body == EntryBody::Graph(*activity));
            let bound_attribute =
                starting_entries.next().map(|entry| ("bound-to-entry", model.entries[entry.0].name.clone()));
            if starting_entries.next().is_some() {
                return Err(WriteError::SharedStart(model.activities[activity.0].name.clone()));
            }
            self.activity(*activity, bound_attribute.into_iter().collect());
        }
        for link in &links {
            self.open("precedence", &[]);
            let (tag, quorum) = match link.kind {
                PredecessorKind::Or if link.predecessors.len() == 1 => ("pre", None),
                PredecessorKind::Or => ("pre-OR", None),
                PredecessorKind::Join { quorum, .. } => ("pre-AND", quorum),
            };
            let quorum: Vec<_> = quorum.map(|quorum| ("quorum", quorum.to_string())).into_iter().collect();
            self.open(tag, &quorum);
            for predecessor in &link.predecessors {
                self.leaf("activity", &[name(predecessor)]);
            }
            self.close(tag);
            self.write_successors(link.successors);
            self.close("precedence");
        }
        // The entries in the order of their first reply.
        let mut replied_entries: Vec<EntryId> = Vec::new();
        for reply in activities.iter().flat_map(|id| &model.activities[id.0].replies) {
            if !replied_entries.contains(reply) {
                replied_entries.push(*reply);
            }
        }
        for entry in replied_entries {
            self.open("reply-entry", &[("name", model.entries[entry.0].name.clone())]);
            for activity in &activities {
                if model.activities[activity.0].replies.contains(&entry) {
                    self.leaf("reply-activity", &[name(activity)]);
                }
            }
            self.close("reply-entry");
        }
        self.close("task-activities");
        Ok(())
    }

    fn write_successors(&mut self, successors: &Successors) {
        let model = self.model;
        let name = |id: &ActivityId| ("name", model.activities[id.0].name.clone());
        let (tag, end, leaves): (_, _, Vec<_>) = match successors {
            Successors::End | Successors::Join { .. } => return,
            Successors::Or(branches) if branches.len() == 1 => {
                ("post", None, vec![vec![name(&branches[0].1)]])
            }
            Successors::Or(branches) => {
                let branch = |(share, to): &(f64, ActivityId)| vec![name(to), ("prob", share.to_string())];
                ("post-OR", None, branches.iter().map(branch).collect())
            }
            Successors::And(branches) => {
                ("post-AND", None, branches.iter().map(|to| vec![name(to)]).collect())
            }
            Successors::Loop { bodies, exit } => {
                let body = |(count, to): &(f64, ActivityId)| vec![name(to), ("count", count.to_string())];
                ("post-LOOP", exit.as_ref(), bodies.iter().map(body).collect())
            }
        };
        let end: Vec<_> = end.map(|exit| ("end", name(exit).1)).into_iter().collect();
        self.open(tag, &end);
        leaves.iter().for_each(|leaf| self.leaf("activity", leaf));
        self.close(tag);
    }
}

fn scheduling(processor: &Processor) -> &'static str {
    match processor.scheduling {
        Scheduling::Fcfs if processor.copies == Multiplicity::Infinite => "inf",
        Scheduling::Fcfs => "fcfs",
        Scheduling::HeadOfLine => "hol",
        Scheduling::Preemptive => "pp",
        Scheduling::Random => "rand",
        Scheduling::ProcessorSharing => "ps",
    }
}

/// Returns the timeout and retries as attributes of this crate's namespace. Default values are omitted, but
/// at least one attribute is written.
fn retry_attributes(policy: RetryPolicy) -> Vec<(&'static str, String)> {
    let mut attributes = Vec::new();
    if policy.timeout.is_finite() {
        attributes.push(("plimsoll:timeout", policy.timeout.to_string()));
    }
    if policy.retries > 0 || attributes.is_empty() {
        attributes.push(("plimsoll:retries", policy.retries.to_string()));
    }
    if policy.backoff > 0.0 {
        attributes.push(("plimsoll:backoff", policy.backoff.to_string()));
    }
    attributes
}

fn replication(replicas: u32) -> Option<(&'static str, String)> {
    (replicas > 1).then(|| ("replication", replicas.to_string()))
}

/// Returns the multiplicity; scheduling `inf` implies an infinite one.
fn multiplicity(copies: Multiplicity, scheduling: &str) -> Option<(&'static str, String)> {
    match copies {
        Multiplicity::Finite(1) => None,
        Multiplicity::Finite(count) => Some(("multiplicity", count.to_string())),
        Multiplicity::Infinite if scheduling == "inf" => None,
        Multiplicity::Infinite => Some(("multiplicity", "inf".to_owned())),
    }
}
