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
    found: Option<(&ModelResults, &ResultOrigin<'_>)>,
) -> Result<String, WriteError> {
    let mut writer = LqnxWriter {
        model,
        fans: fans(model),
        results: found.map(|(found, _)| LqnxResults::of(model, found)),
        out: "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n".to_owned(),
        depth: 0,
    };
    let ours = model.has_limits().then(|| ("xmlns:plimsoll", crate::read::NAMESPACE.to_owned()));
    writer.open("lqn-model", &ours.into_iter().collect::<Vec<_>>());
    let settings = [
        ("comment", model.comment.clone()),
        ("conv_val", "1e-06".to_owned()),
        ("it_limit", "50".to_owned()),
        ("print_int", "0".to_owned()),
        ("underrelax_coeff", "0.9".to_owned()),
    ];
    let routes = super::routes(model);
    match found {
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
    for place in 0..model.processors.len() {
        writer.processor(place)?;
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
    let mut say = |of: TaskId, name, whom, other: TaskId, count: u32| {
        if count != 1 {
            let fan = [(whom, model.tasks[other.0].name.clone()), ("value", count.to_string())];
            fans.entry(of).or_default().push((name, fan));
        }
    };
    for (from, to) in super::replicated(model) {
        say(from, "fan-out", "dest", to, model.fan_out(from, to));
        say(to, "fan-in", "source", from, model.fan_in(from, to));
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
    fn write_results(&mut self, name: &str, shown: impl FnOnce(&LqnxResults<'_>) -> ResultAttributes) {
        if let Some(shown) = self.results.as_ref().map(shown) {
            self.result(name, &shown);
        }
    }

    fn result(&mut self, name: &str, shown: &ResultAttributes) {
        if shown.means.is_empty() {
            return;
        }
        if shown.half_widths.is_empty() {
            return self.leaf(name, &shown.means);
        }
        self.open(name, &shown.means);
        self.leaf("result-conf-95", &shown.half_widths);
        self.close(name);
    }

    fn routes(&mut self, routes: BTreeMap<&str, Routing>) {
        for (entry, routing) in routes {
            self.leaf("pragma", &[("param", format!("route.{entry}")), ("value", routing.to_string())]);
        }
    }

    fn processor(&mut self, place: usize) -> Result<(), WriteError> {
        let own = &self.model.processors[place];
        let word = scheduling(own);
        let mut attributes = vec![("name", own.name.clone()), ("scheduling", word.to_owned())];
        attributes.extend(multiplicity(own.copies, word));
        attributes.extend(replication(own.replicas));
        if own.speed != 1.0 {
            attributes.push(("speed-factor", own.speed.to_string()));
        }
        self.open("processor", &attributes);
        self.write_results("result-processor", |results| results.processor(place));
        for task in 0..self.model.tasks.len() {
            if self.model.tasks[task].processor.0 == place {
                self.task(TaskId(task))?;
            }
        }
        self.close("processor");
        Ok(())
    }

    fn task(&mut self, id: TaskId) -> Result<(), WriteError> {
        let own = &self.model.tasks[id.0];
        let word = match own.role {
            TaskRole::Client { .. } => "ref",
            TaskRole::Server { queue: Scheduling::HeadOfLine } => "hol",
            TaskRole::Server { .. } if own.copies == Multiplicity::Infinite => "inf",
            TaskRole::Server { .. } => "fcfs",
        };
        let mut attributes = vec![("name", own.name.clone()), ("scheduling", word.to_owned())];
        attributes.extend(multiplicity(own.copies, word));
        attributes.extend(replication(own.replicas));
        if let TaskRole::Client { think } = own.role
            && think > 0.0
        {
            attributes.push(("think-time", think.to_string()));
        }
        if own.priority != 0 {
            attributes.push(("priority", own.priority.to_string()));
        }
        attributes.extend(own.queue_limit.map(|limit| ("plimsoll:queue-limit", limit.to_string())));
        self.open("task", &attributes);
        self.write_results("result-task", |results| results.task(id));
        for (name, fan) in self.fans.remove(&id).unwrap_or_default() {
            self.leaf(name, &fan);
        }
        for entry in &own.entries {
            self.entry(*entry);
        }
        self.activities(id)?;
        self.close("task");
        Ok(())
    }

    fn entry(&mut self, id: EntryId) {
        let own: &Entry = &self.model.entries[id.0];
        let kind = if matches!(own.body, EntryBody::Phases(_)) { "PH1PH2" } else { "NONE" };
        let mut attributes = vec![("name", own.name.clone()), ("type", kind.to_owned())];
        if own.arrivals > 0.0 {
            attributes.push(("open-arrival-rate", own.arrivals.to_string()));
        }
        if own.priority != 0 {
            attributes.push(("priority", own.priority.to_string()));
        }
        self.open("entry", &attributes);
        self.write_results("result-entry", |results| results.entry(id));
        for (number, (to, share)) in own.forwards.iter().enumerate() {
            let to = self.model.entries[to.0].name.clone();
            let attributes = [("dest", to), ("prob", share.to_string())];
            let shown = self.results.as_ref().and_then(|results| results.forward(id, number));
            self.call("forwarding", &attributes, shown);
        }
        if let EntryBody::Phases(phases) = &own.body {
            self.open("entry-phase-activities", &[]);
            for (number, phase) in phases.iter().enumerate() {
                self.activity(*phase, vec![("phase", (number + 1).to_string())]);
            }
            self.close("entry-phase-activities");
        }
        self.close("entry");
    }

    fn activity(&mut self, id: ActivityId, more: Vec<(&'static str, String)>) {
        let own: &Activity = &self.model.activities[id.0];
        let mut attributes = vec![("name", own.name.clone())];
        attributes.extend(more);
        attributes.push(("host-demand-mean", own.demand.to_string()));
        if own.variation != 1.0 {
            attributes.push(("host-demand-cvsq", own.variation.to_string()));
        }
        if own.think > 0.0 {
            attributes.push(("think-time", own.think.to_string()));
        }
        match own.order {
            CallOrder::Stochastic => {}
            CallOrder::Deterministic => attributes.push(("call-order", "DETERMINISTIC".to_owned())),
            CallOrder::List => attributes.push(("call-order", "LIST".to_owned())),
        }
        if own.calls.is_empty() && self.results.is_none() {
            return self.leaf("activity", &attributes);
        }
        self.open("activity", &attributes);
        self.write_results("result-activity", |results| results.activity(id));
        for (number, call) in own.calls.iter().enumerate() {
            let name = if call.waits { "synch-call" } else { "asynch-call" };
            let to = self.model.entries[call.entry.0].name.clone();
            let mut attributes = vec![("dest", to), ("calls-mean", call.count.to_string())];
            if let Some(patience) = call.retry_policy {
                attributes.extend(retry_attributes(patience));
            }
            let shown = self.results.as_ref().and_then(|results| results.call(id, number));
            self.call(name, &attributes, shown);
        }
        self.close("activity");
    }

    /// Writes a call or a forward, with its waiting time if known.
    fn call(&mut self, name: &str, attributes: &XmlAttributes, shown: Option<ResultAttributes>) {
        let Some(shown) = shown else { return self.leaf(name, attributes) };
        self.open(name, attributes);
        self.result("result-call", &shown);
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
            let mut begins = model.tasks[id.0]
                .entries
                .iter()
                .filter(|entry| model.entries[entry.0].body == EntryBody::Graph(*activity));
            let bound = begins.next().map(|entry| ("bound-to-entry", model.entries[entry.0].name.clone()));
            if begins.next().is_some() {
                return Err(WriteError::SharedStart(model.activities[activity.0].name.clone()));
            }
            self.activity(*activity, bound.into_iter().collect());
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
            for before in &link.predecessors {
                self.leaf("activity", &[name(before)]);
            }
            self.close(tag);
            self.write_successors(link.successors);
            self.close("precedence");
        }
        // The entries in the order of their first reply.
        let mut answered: Vec<EntryId> = Vec::new();
        for reply in activities.iter().flat_map(|id| &model.activities[id.0].replies) {
            if !answered.contains(reply) {
                answered.push(*reply);
            }
        }
        for entry in answered {
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

    fn write_successors(&mut self, next: &Successors) {
        let model = self.model;
        let name = |id: &ActivityId| ("name", model.activities[id.0].name.clone());
        let (tag, end, leaves): (_, _, Vec<_>) = match next {
            Successors::End | Successors::Join { .. } => return,
            Successors::Or(ways) if ways.len() == 1 => ("post", None, vec![vec![name(&ways[0].1)]]),
            Successors::Or(ways) => {
                let way = |(share, to): &(f64, ActivityId)| vec![name(to), ("prob", share.to_string())];
                ("post-OR", None, ways.iter().map(way).collect())
            }
            Successors::And(ways) => ("post-AND", None, ways.iter().map(|to| vec![name(to)]).collect()),
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

fn scheduling(own: &Processor) -> &'static str {
    match own.scheduling {
        Scheduling::Fcfs if own.copies == Multiplicity::Infinite => "inf",
        Scheduling::Fcfs => "fcfs",
        Scheduling::HeadOfLine => "hol",
        Scheduling::Preemptive => "pp",
        Scheduling::Random => "rand",
        Scheduling::ProcessorSharing => "ps",
    }
}

/// Returns the timeout and retries as attributes of this crate's namespace. Default values are omitted, but
/// at least one attribute is written.
fn retry_attributes(own: RetryPolicy) -> Vec<(&'static str, String)> {
    let mut all = Vec::new();
    if own.timeout.is_finite() {
        all.push(("plimsoll:timeout", own.timeout.to_string()));
    }
    if own.retries > 0 || all.is_empty() {
        all.push(("plimsoll:retries", own.retries.to_string()));
    }
    if own.backoff > 0.0 {
        all.push(("plimsoll:backoff", own.backoff.to_string()));
    }
    all
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
