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
    for (of, value) in super::limits(model)? {
        let _ = writeln!(out, "#pragma {of}={value}");
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
    for place in 0..model.tasks.len() {
        activities(&mut out, model, TaskId(place))?;
    }
    Ok(out)
}

/// Returns a name, if the grammar allows it.
fn checked_name(name: &str) -> Result<&str, WriteError> {
    let letters = name.chars().all(|c| c.is_alphanumeric() || c == '_') && name.chars().count() > 1;
    let begins = name.starts_with(|c: char| c.is_alphabetic() || c == '_');
    let whole = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_digit());
    if letters && begins || whole { Ok(name) } else { Err(WriteError::InvalidName(name.to_owned())) }
}

fn number(value: f64) -> String {
    if value.is_infinite() { "@infinity".to_owned() } else { value.to_string() }
}

fn processor(own: &Processor) -> Result<String, WriteError> {
    let mut out = checked_name(&own.name)?.to_owned();
    let letter = match own.scheduling {
        Scheduling::Fcfs if own.copies == Multiplicity::Infinite => "i",
        Scheduling::Fcfs => "f",
        Scheduling::HeadOfLine => "h",
        Scheduling::Preemptive => "p",
        Scheduling::Random => "r",
        // A quantum of 0.
        Scheduling::ProcessorSharing => "s 0",
    };
    let _ = write!(out, " {letter}");
    match own.copies {
        Multiplicity::Finite(1) => {}
        Multiplicity::Finite(count) => out += &format!(" m {count}"),
        Multiplicity::Infinite if letter == "i" => {}
        Multiplicity::Infinite => out += " i",
    }
    if own.replicas > 1 {
        let _ = write!(out, " r {}", own.replicas);
    }
    if own.speed != 1.0 {
        let _ = write!(out, " R {}", number(own.speed));
    }
    Ok(out)
}

fn task(model: &Model, own: &Task) -> Result<String, WriteError> {
    let mut out = checked_name(&own.name)?.to_owned();
    let letter = match own.role {
        TaskRole::Client { .. } => "r",
        TaskRole::Server { queue: Scheduling::HeadOfLine } => "h",
        TaskRole::Server { .. } if own.copies == Multiplicity::Infinite => "i",
        TaskRole::Server { .. } => "n",
    };
    let _ = write!(out, " {letter}");
    for entry in &own.entries {
        let _ = write!(out, " {}", checked_name(&model.entries[entry.0].name)?);
    }
    let _ = write!(out, " -1 {}", checked_name(&model.processors[own.processor.0].name)?);
    if own.priority != 0 {
        let _ = write!(out, " {}", own.priority);
    }
    if let TaskRole::Client { think } = own.role
        && think > 0.0
    {
        let _ = write!(out, " z {}", number(think));
    }
    match own.copies {
        Multiplicity::Finite(1) => {}
        Multiplicity::Finite(count) => out += &format!(" m {count}"),
        Multiplicity::Infinite if letter == "i" => {}
        Multiplicity::Infinite => out += " i",
    }
    if own.replicas > 1 {
        let _ = write!(out, " r {}", own.replicas);
    }
    Ok(out)
}

fn entry(out: &mut String, model: &Model, own: &Entry) -> Result<(), WriteError> {
    let name = checked_name(&own.name)?;
    if own.arrivals > 0.0 {
        let _ = writeln!(out, "  a {name} {}", number(own.arrivals));
    }
    if own.priority != 0 {
        let _ = writeln!(out, "  p {name} {}", own.priority);
    }
    match &own.body {
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
    for (to, share) in &own.forwards {
        list(out, "F", &format!("{name} {}", checked_name(&model.entries[to.0].name)?), [number(*share)]);
    }
    Ok(())
}

fn list<T: Display>(out: &mut String, letter: &str, of: &str, values: impl IntoIterator<Item = T>) {
    let _ = write!(out, "  {letter} {of}");
    for value in values {
        let _ = write!(out, " {value}");
    }
    *out += " -1\n";
}

/// Returns 1 if the numbers of calls are exact.
fn exact(own: &Activity) -> Result<u8, WriteError> {
    match own.order {
        CallOrder::Stochastic => Ok(0),
        CallOrder::Deterministic => Ok(1),
        CallOrder::List => Err(WriteError::ListOrder(own.name.clone())),
    }
}

/// Returns the called entries with the number of calls in each phase. There is one line for all phases,
/// unless that would change the order of a phase's calls.
fn calls(phases: &[&Activity]) -> Vec<(EntryId, bool, Vec<f64>)> {
    let mut lines: Vec<(EntryId, bool, Vec<f64>)> = Vec::new();
    for (place, phase) in phases.iter().enumerate() {
        // The lines before this index are of earlier calls.
        let mut from = 0;
        for call in &phase.calls {
            let fits = |(to, waits, counts): &(EntryId, bool, Vec<f64>)| {
                *to == call.entry && *waits == call.waits && counts.len() <= place
            };
            let line = lines.iter().skip(from).position(fits).map(|line| line + from);
            let line = line.unwrap_or_else(|| {
                lines.push((call.entry, call.waits, Vec::new()));
                lines.len() - 1
            });
            lines[line].2.resize(place, 0.0);
            lines[line].2.push(call.count);
            from = line + 1;
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
        let own = &model.activities[id.0];
        let name = checked_name(&own.name)?;
        let _ = writeln!(out, "  s {name} {}", number(own.demand));
        if own.variation != 1.0 {
            let _ = writeln!(out, "  c {name} {}", number(own.variation));
        }
        if own.think > 0.0 {
            let _ = writeln!(out, "  Z {name} {}", number(own.think));
        }
        if exact(own)? == 1 {
            let _ = writeln!(out, "  f {name} 1");
        }
        for call in &own.calls {
            let letter = if call.waits { "y" } else { "z" };
            let to = checked_name(&model.entries[call.entry.0].name)?;
            let _ = writeln!(out, "  {letter} {name} {to} {}", number(call.count));
        }
    }
    let mut lines = Vec::new();
    // Formats an activity with its replies, as before an arrow.
    let before = |place: usize| -> Result<String, WriteError> {
        let own = &model.activities[place];
        let mut text = checked_name(&own.name)?.to_owned();
        let names = own.replies.iter().map(|entry| checked_name(&model.entries[entry.0].name));
        let names = names.collect::<Result<Vec<_>, _>>()?;
        if !names.is_empty() {
            let _ = write!(text, "[{}]", names.join(", "));
        }
        Ok(text)
    };
    for link in &graph.links {
        let names = link.predecessors.iter().map(|id| before(id.0)).collect::<Result<Vec<_>, _>>()?;
        let mut line = match link.kind {
            PredecessorKind::Or => names.join(" + "),
            PredecessorKind::Join { quorum: None, .. } => names.join(" & "),
            PredecessorKind::Join { quorum: Some(quorum), .. } => format!("{} ({quorum})", names.join(" & ")),
        };
        line += &format_successors(model, link.successors)?;
        lines.push(line);
    }
    for id in &graph.activities {
        let own = &model.activities[id.0];
        if own.successors == Successors::End && !own.replies.is_empty() {
            lines.push(before(id.0)?);
        }
    }
    if !lines.is_empty() {
        let _ = writeln!(out, "  :\n  {}", lines.join(";\n  "));
    }
    *out += "-1\n";
    Ok(())
}

/// Formats the successors with the arrow.
fn format_successors(model: &Model, next: &Successors) -> Result<String, WriteError> {
    let name = |place: usize| checked_name(&model.activities[place].name);
    let joined = |parts: Vec<String>, mark: &str| format!(" -> {}", parts.join(mark));
    Ok(match next {
        Successors::End | Successors::Join { .. } => String::new(),
        Successors::Or(ways) if ways.len() == 1 => format!(" -> {}", name(ways[0].1.0)?),
        Successors::Or(ways) => {
            let ways = ways.iter().map(|(share, to)| Ok(format!("({}) {}", number(*share), name(to.0)?)));
            joined(ways.collect::<Result<_, WriteError>>()?, " + ")
        }
        Successors::And(ways) => {
            let ways = ways.iter().map(|to| Ok(name(to.0)?.to_owned()));
            joined(ways.collect::<Result<_, WriteError>>()?, " & ")
        }
        Successors::Loop { bodies, exit } => {
            let bodies = bodies.iter().map(|(count, to)| Ok(format!("{} * {}", number(*count), name(to.0)?)));
            let mut parts = bodies.collect::<Result<Vec<String>, WriteError>>()?;
            if let Some(exit) = exit {
                parts.push(name(exit.0)?.to_owned());
            }
            joined(parts, ", ")
        }
    })
}
