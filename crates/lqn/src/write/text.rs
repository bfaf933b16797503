//! The writer of the `.lqn` grammar, the inverse of `read/text.rs`.

use std::fmt::{Display, Write as _};

use super::WriteError;
use super::graph::{PredecessorKind, TaskGraph};
use crate::model::{
    Activity, CallOrder, Entry, EntryBody, EntryId, Model, Multiplicity, Processor, Scheduling, Successors,
    Task, TaskId, TaskRole,
};

pub(super) fn document(model: &Model) -> Result<String, WriteError> {
    // The solver settings are the default ones.
    let mut out = format!("G \"{}\" 1e-06 50 1 0.9 -1\n", model.comment.replace('"', "'"));
    for (entry, routing) in super::routes(model) {
        let _ = writeln!(out, "#pragma route.{}={routing}", checked_name(entry)?);
    }
    for (setting, value) in super::limits(model)? {
        let _ = writeln!(out, "#pragma {setting}={value}");
    }
    out += "P 0\n";
    for processor in &model.processors {
        let _ = writeln!(out, "  p {}", self::processor(processor)?);
    }
    out += "-1\nT 0\n";
    for task in &model.tasks {
        let _ = writeln!(out, "  t {}", self::task(model, task)?);
    }
    for (from, to) in super::replicated(model) {
        let pair = format!(
            "{} {}",
            checked_name(&model.tasks[from.0].name)?,
            checked_name(&model.tasks[to.0].name)?
        );
        let fans = [("O", model.fan_out(from, to)), ("I", model.fan_in(from, to))];
        for (letter, count) in fans.into_iter().filter(|(_, count)| *count != 1) {
            let _ = writeln!(out, "  {letter} {pair} {count}");
        }
    }
    out += "-1\nE 0\n";
    for entry in &model.entries {
        self::entry(&mut out, model, entry)?;
    }
    out += "-1\n";
    for index in 0..model.tasks.len() {
        activities(&mut out, model, TaskId(index))?;
    }
    Ok(out)
}

/// Returns a name, if the grammar allows it.
fn checked_name(name: &str) -> Result<&str, WriteError> {
    let is_word = name.chars().all(|c| c.is_alphanumeric() || c == '_') && name.chars().count() > 1;
    let starts_well = name.starts_with(|c: char| c.is_alphabetic() || c == '_');
    let is_number = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_digit());
    if is_word && starts_well || is_number { Ok(name) } else { Err(WriteError::InvalidName(name.to_owned())) }
}

fn number(value: f64) -> String {
    if value.is_infinite() { "@infinity".to_owned() } else { value.to_string() }
}

fn processor(processor_data: &Processor) -> Result<String, WriteError> {
    let mut out = checked_name(&processor_data.name)?.to_owned();
    let letter = match processor_data.scheduling {
        Scheduling::Fcfs if processor_data.copies == Multiplicity::Infinite => "i",
        Scheduling::Fcfs => "f",
        Scheduling::HeadOfLine => "h",
        Scheduling::Preemptive => "p",
        Scheduling::Random => "r",
        // A quantum of 0.
        Scheduling::ProcessorSharing => "s 0",
    };
    let _ = write!(out, " {letter}");
    match processor_data.copies {
        Multiplicity::Finite(1) => {}
        Multiplicity::Finite(count) => out += &format!(" m {count}"),
        Multiplicity::Infinite if letter == "i" => {}
        Multiplicity::Infinite => out += " i",
    }
    if processor_data.replicas > 1 {
        let _ = write!(out, " r {}", processor_data.replicas);
    }
    if processor_data.speed != 1.0 {
        let _ = write!(out, " R {}", number(processor_data.speed));
    }
    Ok(out)
}

fn task(model: &Model, task_data: &Task) -> Result<String, WriteError> {
    let mut out = checked_name(&task_data.name)?.to_owned();
    let letter = match task_data.role {
        TaskRole::Client { .. } => "r",
        TaskRole::Server { queue: Scheduling::HeadOfLine } => "h",
        TaskRole::Server { .. } if task_data.copies == Multiplicity::Infinite => "i",
        TaskRole::Server { .. } => "n",
    };
    let _ = write!(out, " {letter}");
    for entry in &task_data.entries {
        let _ = write!(out, " {}", checked_name(&model.entries[entry.0].name)?);
    }
    let _ = write!(out, " -1 {}", checked_name(&model.processors[task_data.processor.0].name)?);
    if task_data.priority != 0 {
        let _ = write!(out, " {}", task_data.priority);
    }
    if let TaskRole::Client { think } = task_data.role
        && think > 0.0
    {
        let _ = write!(out, " z {}", number(think));
    }
    match task_data.copies {
        Multiplicity::Finite(1) => {}
        Multiplicity::Finite(count) => out += &format!(" m {count}"),
        Multiplicity::Infinite if letter == "i" => {}
        Multiplicity::Infinite => out += " i",
    }
    if task_data.replicas > 1 {
        let _ = write!(out, " r {}", task_data.replicas);
    }
    Ok(out)
}

fn entry(out: &mut String, model: &Model, entry_data: &Entry) -> Result<(), WriteError> {
    let name = checked_name(&entry_data.name)?;
    if entry_data.arrivals > 0.0 {
        let _ = writeln!(out, "  a {name} {}", number(entry_data.arrivals));
    }
    if entry_data.priority != 0 {
        let _ = writeln!(out, "  p {name} {}", entry_data.priority);
    }
    match &entry_data.body {
        EntryBody::Graph(start) => {
            let _ = writeln!(out, "  A {name} {}", checked_name(&model.activities[start.0].name)?);
        }
        EntryBody::Phases(ids) => {
            let phases: Vec<&Activity> = ids.iter().map(|id| &model.activities[id.0]).collect();
            list(out, "s", name, phases.iter().map(|phase| number(phase.demand)));
            if phases.iter().any(|phase| phase.variation != 1.0) {
                list(out, "c", name, phases.iter().map(|phase| number(phase.variation)));
            }
            if phases.iter().any(|phase| phase.think > 0.0) {
                list(out, "Z", name, phases.iter().map(|phase| number(phase.think)));
            }
            let orders = phases.iter().map(|phase| exact(phase)).collect::<Result<Vec<_>, _>>()?;
            if orders.contains(&1) {
                list(out, "f", name, orders);
            }
            for (to, waits, counts) in calls(&phases) {
                let letter = if waits { "y" } else { "z" };
                let to = checked_name(&model.entries[to.0].name)?;
                list(out, letter, &format!("{name} {to}"), counts.into_iter().map(number));
            }
        }
    }
    for (to, share) in &entry_data.forwards {
        list(out, "F", &format!("{name} {}", checked_name(&model.entries[to.0].name)?), [number(*share)]);
    }
    Ok(())
}

fn list<T: Display>(out: &mut String, letter: &str, subject: &str, values: impl IntoIterator<Item = T>) {
    let _ = write!(out, "  {letter} {subject}");
    for value in values {
        let _ = write!(out, " {value}");
    }
    *out += " -1\n";
}

/// Returns 1 if the numbers of calls are exact.
fn exact(activity: &Activity) -> Result<u8, WriteError> {
    match activity.order {
        CallOrder::Stochastic => Ok(0),
        CallOrder::Deterministic => Ok(1),
        CallOrder::List => Err(WriteError::ListOrder(activity.name.clone())),
    }
}

/// Returns the called entries with the number of calls in each phase. There is one line for all phases,
/// unless that would change the order of a phase's calls.
fn calls(phases: &[&Activity]) -> Vec<(EntryId, bool, Vec<f64>)> {
    let mut lines: Vec<(EntryId, bool, Vec<f64>)> = Vec::new();
    for (index, phase) in phases.iter().enumerate() {
        // The lines before this index are of earlier calls.
        let mut first_line = 0;
        for call in &phase.calls {
            let is_matching = |(to, waits, counts): &(EntryId, bool, Vec<f64>)| {
                *to == call.entry && *waits == call.waits && counts.len() <= index
            };
            let matching_line =
                lines.iter().skip(first_line).position(is_matching).map(|offset| offset + first_line);
            let line_index = matching_line.unwrap_or_else(|| {
                lines.push((call.entry, call.waits, Vec::new()));
                lines.len() - 1
            });
            lines[line_index].2.resize(index, 0.0);
            lines[line_index].2.push(call.count);
            first_line = line_index + 1;
        }
    }
    lines
}

fn activities(out: &mut String, model: &Model, task: TaskId) -> Result<(), WriteError> {
    let graph = TaskGraph::of(model, task);
    if graph.activities.is_empty() {
        return Ok(());
    }
    let _ = writeln!(out, "A {}", checked_name(&model.tasks[task.0].name)?);
    for id in &graph.activities {
        let activity = &model.activities[id.0];
        let name = checked_name(&activity.name)?;
        let _ = writeln!(out, "  s {name} {}", number(activity.demand));
        if activity.variation != 1.0 {
            let _ = writeln!(out, "  c {name} {}", number(activity.variation));
        }
        if activity.think > 0.0 {
            let _ = writeln!(out, "  Z {name} {}", number(activity.think));
        }
        if exact(activity)? == 1 {
            let _ = writeln!(out, "  f {name} 1");
        }
        for call in &activity.calls {
            let letter = if call.waits { "y" } else { "z" };
            let to = checked_name(&model.entries[call.entry.0].name)?;
            let _ = writeln!(out, "  {letter} {name} {to} {}", number(call.count));
        }
    }
    let mut lines = Vec::new();
    // Formats an activity with its replies, as before an arrow.
    let predecessor_text = |index: usize| -> Result<String, WriteError> {
        let activity = &model.activities[index];
        let mut text = checked_name(&activity.name)?.to_owned();
        let names = activity.replies.iter().map(|entry| checked_name(&model.entries[entry.0].name));
        let names = names.collect::<Result<Vec<_>, _>>()?;
        if !names.is_empty() {
            let _ = write!(text, "[{}]", names.join(", "));
        }
        Ok(text)
    };
    for link in &graph.links {
        let names =
            link.predecessors.iter().map(|id| predecessor_text(id.0)).collect::<Result<Vec<_>, _>>()?;
        let mut line = match link.kind {
            PredecessorKind::Or => names.join(" + "),
            PredecessorKind::Join { quorum: None, .. } => names.join(" & "),
            PredecessorKind::Join { quorum: Some(quorum), .. } => format!("{} ({quorum})", names.join(" & ")),
        };
        line += &format_successors(model, link.successors)?;
        lines.push(line);
    }
    for id in &graph.activities {
        let activity = &model.activities[id.0];
        if activity.successors == Successors::End && !activity.replies.is_empty() {
            lines.push(predecessor_text(id.0)?);
        }
    }
    if !lines.is_empty() {
        let _ = writeln!(out, "  :\n  {}", lines.join(";\n  "));
    }
    *out += "-1\n";
    Ok(())
}

/// Formats the successors with the arrow.
fn format_successors(model: &Model, successors: &Successors) -> Result<String, WriteError> {
    let name = |index: usize| checked_name(&model.activities[index].name);
    let joined = |targets: Vec<String>, separator: &str| format!(" -> {}", targets.join(separator));
    Ok(match successors {
        Successors::End | Successors::Join { .. } => String::new(),
        Successors::Or(branches) if branches.len() == 1 => format!(" -> {}", name(branches[0].1.0)?),
        Successors::Or(branches) => {
            let branch_texts =
                branches.iter().map(|(share, to)| Ok(format!("({}) {}", number(*share), name(to.0)?)));
            joined(branch_texts.collect::<Result<_, WriteError>>()?, " + ")
        }
        Successors::And(branches) => {
            let target_names = branches.iter().map(|to| Ok(name(to.0)?.to_owned()));
            joined(target_names.collect::<Result<_, WriteError>>()?, " & ")
        }
        Successors::Loop { bodies, exit } => {
            let bodies = bodies.iter().map(|(count, to)| Ok(format!("{} * {}", number(*count), name(to.0)?)));
            let mut targets = bodies.collect::<Result<Vec<String>, WriteError>>()?;
            if let Some(exit) = exit {
                targets.push(name(exit.0)?.to_owned());
            }
            joined(targets, ", ")
        }
    })
}
