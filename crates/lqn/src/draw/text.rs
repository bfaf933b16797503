//! Renders a diagram for a terminal: layer by layer, a line for each task and each of its entries.

use std::fmt::Write as _;

use super::{CallKind, Diagram, DiagramTask, format_multiplicity, format_number};

pub(super) fn render(diagram: &Diagram) -> String {
    let mut out = String::new();
    if !diagram.title.trim().is_empty() {
        let _ = writeln!(out, "{}\n", diagram.title.trim());
    }
    let tasks = || diagram.layers.iter().flatten();
    let heads: Vec<String> = tasks().map(head).collect();
    let width = heads.iter().map(|head| head.chars().count()).max().unwrap_or(0);
    let names = tasks().flat_map(|task| &task.entries).map(|entry| entry.name.chars().count());
    let name = names.max().unwrap_or(0);
    let demands = tasks().flat_map(|task| &task.entries).map(|entry| demands(&entry.demands));
    let demand = demands.map(|text| text.chars().count()).max().unwrap_or(0);
    let mut heads = heads.into_iter();
    for (index, layer) in diagram.layers.iter().enumerate() {
        if index > 0 {
            out.push('\n');
        }
        for (task, head) in layer.iter().zip(&mut heads) {
            let processor = &diagram.processors[task.processor];
            let cores = format_multiplicity(processor.cores, processor.replicas);
            let _ = writeln!(out, "▱ {head:width$}   ○ {} {cores}", processor.name);
            for entry in &task.entries {
                let mut line = format!("    {:name$}  {:demand$}", entry.name, self::demands(&entry.demands));
                if entry.arrivals > 0.0 {
                    let _ = write!(line, "  from outside {}", format_number(entry.arrivals));
                }
                if let Some(policy) = &entry.policy {
                    let _ = write!(line, "  by {policy}");
                }
                for arrow in &entry.arrows {
                    let _ = write!(line, "  {} {} ({})", glyph(arrow.kind), arrow.to, arrow.label);
                }
                let _ = writeln!(out, "{}", line.trim_end());
            }
        }
    }
    out += "\n→ waits for the answer  ⇀ goes on  ⇢ is answered by the other instead; ( ) mean calls, [ ] \
        mean work, { } how many, < > replicas\n";
    out
}

fn head(task: &DiagramTask) -> String {
    let mut head = format!("{} {}", task.name, format_multiplicity(task.threads, task.replicas));
    if task.client {
        head += " clients";
    }
    if let Some(think) = task.think {
        let _ = write!(head, ", think {}", format_number(think));
    }
    head
}

fn demands(values: &[f64]) -> String {
    format!("[{}]", values.iter().map(|demand| format_number(*demand)).collect::<Vec<_>>().join(", "))
}

fn glyph(kind: CallKind) -> char {
    match kind {
        CallKind::Waits => '→',
        CallKind::Sends => '⇀',
        CallKind::Forwards => '⇢',
    }
}
