//! `plimsoll model bottleneck`: the limits of a system, and their remedies.

use std::process::ExitCode;

use plimsoll_lqn::ask::Whole;
use plimsoll_lqn::ask::bottleneck::{Bottleneck, Kind, Resource, bottleneck, resources};
use plimsoll_lqn::ask::remedy::{Change, Remedy, remedies};
use plimsoll_lqn::model::{Copies, ProcessorId, TaskId};
use plimsoll_lqn::{Findings, Model};
use serde_json::{Value, json};

use super::method::How;
use super::{Which, short};
use crate::command::{Failure, Globals};
use crate::control::text::{Cell, Tone, table};
use crate::talk::Output;

/// Find what holds a system back: software or hardware, how strongly, and what helps
///
/// A task is a software bottleneck if its threads are busy while nothing below it is: more threads help. Its strength is its
/// utilization over the greatest below it. Each remedy is tried on the model; the one that saves most time comes first.
#[derive(clap::Args, Debug)]
pub(super) struct Args {
    #[command(flatten)]
    which: Which,

    #[command(flatten)]
    how: How,
}

pub(super) const OUTPUTS: &[Output] = &[Output::Table, Output::Json];

/// The number of resources that are shown.
const SHOWN: usize = 10;

pub(super) fn run(args: &Args, globals: &Globals) -> Result<ExitCode, Failure> {
    let model = args.which.read(globals)?.model;
    let left_out = args.how.left_out(std::iter::once(&model), globals);
    let solve = |model: &Model| args.how.solve(model);
    let found = solve(&model).map_err(Failure::failed)?;
    let own = bottleneck(&model, &found);
    let own = own.ok_or_else(|| Failure::failed("nothing there is only so much of is ever used"))?;
    globals.say("trying remedies\n");
    let remedies = remedies(&model, &own, &solve).map_err(Failure::failed)?;
    let now = Whole::of(&model, &found).unless_overloaded(&model);
    let json = json!({
        "schema": 1,
        "method": args.how.method.name,
        "bottleneck": document(&model, &own),
        "now": now,
        "resources": resources(&model, &found).iter().map(|(own, used)| json!({
            "kind": kind(*own), "name": own.name(&model), "utilization": used,
        })).collect::<Vec<_>>(),
        "next": next(&remedies).map(|next| document(&model, next)),
        "remedies": remedies.iter().map(|own| remedy(&model, now, own)).collect::<Vec<_>>(),
        "left_out": left_out,
    });
    globals.show(&json, || render(&model, &found, &own, now, &remedies, globals.color()))?;
    if now.response.is_finite() {
        return Ok(ExitCode::SUCCESS);
    }
    globals
        .insist("warning: more comes from outside than can be served: what waits there grows without end\n");
    Ok(ExitCode::FAILURE)
}

/// Returns the bottleneck that follows if the present one is unbounded.
fn next(remedies: &[Remedy]) -> Option<&Bottleneck> {
    let unbounded = remedies.iter().find(|own| matches!(own.change, Change::Unbounded(_)));
    unbounded.and_then(|own| own.then.as_ref())
}

fn kind(own: Resource) -> &'static str {
    match own {
        Resource::Task(_) => "task",
        Resource::Processor(_) => "processor",
    }
}

fn word(kind: Kind) -> &'static str {
    match kind {
        Kind::Software => "software",
        Kind::Hardware => "hardware",
    }
}

fn names(model: &Model, of: &[Resource]) -> String {
    of.iter().map(|own| own.name(model)).collect::<Vec<_>>().join(", ")
}

fn document(model: &Model, own: &Bottleneck) -> Value {
    json!({
        "kind": own.kind,
        "names": own.of.iter().map(|own| own.name(model)).collect::<Vec<_>>(),
        "utilization": own.utilization,
        "strength": own.strength.is_finite().then_some(own.strength),
        "against": own.against.map(|own| own.name(model)),
        "limits": own.limits,
    })
}

fn remedy(model: &Model, now: Whole, own: &Remedy) -> Value {
    let (kind, names, threads) = match &own.change {
        Change::Threads(tasks, count) => ("threads", tasks_of(model, tasks), Some(*count)),
        Change::Core(processors) => ("core", processors_of(model, processors), None),
        Change::Half(tasks) => ("half_demand", tasks_of(model, tasks), None),
        Change::Unbounded(of) => ("unbounded", names(model, of), None),
    };
    json!({
        "change": kind,
        "of": names.split(", ").collect::<Vec<_>>(),
        "threads": threads,
        "what": said(model, &own.change),
        "whole": own.whole,
        "response_change": change(own.whole.response, now.response),
        "throughput_change": change(own.whole.throughput, now.throughput),
        "then": own.then.as_ref().map(|own| document(model, own)),
    })
}

fn change(then: f64, now: f64) -> f64 {
    if now > 0.0 { then / now - 1.0 } else { 0.0 }
}

fn tasks_of(model: &Model, tasks: &[TaskId]) -> String {
    names(model, &tasks.iter().map(|own| Resource::Task(*own)).collect::<Vec<_>>())
}

fn processors_of(model: &Model, processors: &[ProcessorId]) -> String {
    names(model, &processors.iter().map(|own| Resource::Processor(*own)).collect::<Vec<_>>())
}

fn said(model: &Model, change: &Change) -> String {
    match change {
        Change::Threads(tasks, count) => format!("{count} threads of {}", tasks_of(model, tasks)),
        Change::Core(processors) => format!("a core more of {}", processors_of(model, processors)),
        Change::Half(tasks) => format!("half the work of {}", tasks_of(model, tasks)),
        Change::Unbounded(of) => format!("no end of {}", names(model, of)),
    }
}

/// Returns a resource with its kind and utilization: `CPUag (hardware)`
fn who(model: &Model, own: &Bottleneck) -> String {
    format!("{} ({}, {:.1} %)", names(model, &own.of), word(own.kind), 100.0 * own.utilization)
}

fn render(
    model: &Model,
    found: &Findings,
    own: &Bottleneck,
    now: Whole,
    remedies: &[Remedy],
    color: bool,
) -> String {
    let mut out = format!(
        "{} bottleneck: {}, {:.1} % in use",
        if own.kind == Kind::Software { "Software" } else { "Hardware" },
        names(model, &own.of),
        100.0 * own.utilization
    );
    if let Some(against) = own.against {
        let place =
            if own.kind == Kind::Software { "the busiest below it" } else { "the busiest other processor" };
        let used = own.utilization / own.strength;
        out += &format!(
            "\nstrength {:.2}: {place}, {}, is at {:.1} %",
            own.strength,
            against.name(model),
            100.0 * used
        );
    }
    if !own.limits {
        out += "\nit does not limit anything yet: what is not in use is still room";
    }
    if let Some(next) = next(remedies) {
        out += &format!("\nnext: {}", who(model, next));
    }
    out += &format!("\nnow: response {}, throughput {}\n\n", short(now.response), short(now.throughput));
    let strong = |text: &str| Cell::text(text).tone(Tone::Strong);
    let number = |text: &str| Cell::number(text).tone(Tone::Strong);
    let mut rows = vec![vec![
        strong("IF THERE WERE"),
        number("RESPONSE"),
        number(""),
        number("THROUGHPUT"),
        number(""),
        strong("THEN IT IS"),
    ]];
    for remedy in remedies {
        let percent = |then, now| match 100.0 * change(then, now) {
            // Both values are infinite.
            change if change.is_nan() => Cell::number("-"),
            change => Cell::number(format!("{change:+.1} %")),
        };
        rows.push(vec![
            Cell::text(&said(model, &remedy.change)),
            Cell::number(short(remedy.whole.response)),
            percent(remedy.whole.response, now.response),
            Cell::number(short(remedy.whole.throughput)),
            percent(remedy.whole.throughput, now.throughput),
            Cell::text(&remedy.then.as_ref().map_or_else(|| "-".to_owned(), |then| who(model, then))),
        ]);
    }
    out += &table(&rows, color);
    let mut rows = vec![vec![strong("IN USE"), strong("KIND"), number("OF"), number("UTILIZATION")]];
    for (own, used) in resources(model, found).into_iter().take(SHOWN) {
        let copies = match own {
            Resource::Task(TaskId(own)) => model.tasks[own].copies,
            Resource::Processor(ProcessorId(own)) => model.processors[own].copies,
        };
        let copies = if let Copies::Some(count) = copies { count } else { 0 };
        rows.push(vec![
            Cell::text(own.name(model)),
            Cell::text(kind(own)),
            Cell::number(copies),
            Cell::number(format!("{:.1} %", 100.0 * used)),
        ]);
    }
    out + "\n" + &table(&rows, color)
}
