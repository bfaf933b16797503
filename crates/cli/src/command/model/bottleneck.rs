//! `plimsoll model bottleneck`: the limits of a system, and their remedies.

use std::process::ExitCode;

use plimsoll_lqn::analysis::OverallResults;
use plimsoll_lqn::analysis::bottleneck::{
    Bottleneck, BottleneckKind, LimitedResource, busiest_resources, find_bottleneck,
};
use plimsoll_lqn::analysis::improvement::{Improvement, ModelChange, find_improvements};
use plimsoll_lqn::model::{Multiplicity, ProcessorId, TaskId};
use plimsoll_lqn::{Model, ModelResults};
use serde_json::{Value, json};

use super::solver::SolveOptions;
use super::{ModelArgs, short};
use crate::command::{CliError, GlobalArgs};
use crate::control::format::{TableCell, TextStyle, table};
use crate::output::OutputFormat;

/// Find the bottleneck of a system: software or hardware, its strength, and remedies
///
/// A task is a software bottleneck if its threads are busy while nothing below it is: more threads help. Its
/// strength is its utilization divided by the greatest below it. Each remedy is tried on the model; the one
/// that saves the most time comes first.
#[derive(clap::Args, Debug)]
pub(super) struct Args {
    #[command(flatten)]
    which: ModelArgs,

    #[command(flatten)]
    how: SolveOptions,
}

pub(super) const OUTPUTS: &[OutputFormat] = &[OutputFormat::Table, OutputFormat::Json];

/// The number of resources that are shown.
const SHOWN: usize = 10;

pub(super) fn run(args: &Args, globals: &GlobalArgs) -> Result<ExitCode, CliError> {
    let model = args.which.read(globals)?.model;
    let left_out = args.how.print_left_out(std::iter::once(&model), globals);
    let solve = |model: &Model| args.how.solve(model);
    let found = solve(&model).map_err(CliError::failed)?;
    let own = find_bottleneck(&model, &found);
    let own = own.ok_or_else(|| CliError::failed("nothing there is only so much of is ever used"))?;
    globals.print_message("trying remedies\n");
    let remedies = find_improvements(&model, &own, &solve).map_err(CliError::failed)?;
    let now = OverallResults::of(&model, &found).infinite_if_overloaded(&model);
    let json = json!({
        "schema": 1,
        "method": args.how.method.name,
        "bottleneck": document(&model, &own),
        "now": now,
        "resources": busiest_resources(&model, &found).iter().map(|(own, used)| json!({
            "kind": kind(*own), "name": own.name(&model), "utilization": used,
        })).collect::<Vec<_>>(),
        "next": next(&remedies).map(|next| document(&model, next)),
        "remedies": remedies.iter().map(|own| remedy(&model, now, own)).collect::<Vec<_>>(),
        "left_out": left_out,
    });
    globals
        .print_result(&json, || render(&model, &found, &own, now, &remedies, globals.stdout_has_color()))?;
    if now.response.is_finite() {
        return Ok(ExitCode::SUCCESS);
    }
    globals.print_always(
        "warning: more comes from outside than can be served: what waits there grows without end\n",
    );
    Ok(ExitCode::FAILURE)
}

/// Returns the bottleneck that follows if the present one is unbounded.
fn next(remedies: &[Improvement]) -> Option<&Bottleneck> {
    let unbounded = remedies.iter().find(|own| matches!(own.change, ModelChange::Unlimited(_)));
    unbounded.and_then(|own| own.next_bottleneck.as_ref())
}

fn kind(own: LimitedResource) -> &'static str {
    match own {
        LimitedResource::Task(_) => "task",
        LimitedResource::Processor(_) => "processor",
    }
}

fn word(kind: BottleneckKind) -> &'static str {
    match kind {
        BottleneckKind::Software => "software",
        BottleneckKind::Hardware => "hardware",
    }
}

fn names(model: &Model, of: &[LimitedResource]) -> String {
    of.iter().map(|own| own.name(model)).collect::<Vec<_>>().join(", ")
}

fn document(model: &Model, own: &Bottleneck) -> Value {
    json!({
        "kind": own.kind,
        "names": own.resources.iter().map(|own| own.name(model)).collect::<Vec<_>>(),
        "utilization": own.utilization,
        "strength": own.strength.is_finite().then_some(own.strength),
        "against": own.next_busiest.map(|own| own.name(model)),
        "limits": own.is_saturated,
    })
}

fn remedy(model: &Model, now: OverallResults, own: &Improvement) -> Value {
    let (kind, names, threads) = match &own.change {
        ModelChange::Threads(tasks, count) => ("threads", tasks_of(model, tasks), Some(*count)),
        ModelChange::ExtraCore(processors) => ("core", processors_of(model, processors), None),
        ModelChange::HalfDemand(tasks) => ("half_demand", tasks_of(model, tasks), None),
        ModelChange::Unlimited(of) => ("unbounded", names(model, of), None),
    };
    json!({
        "change": kind,
        "of": names.split(", ").collect::<Vec<_>>(),
        "threads": threads,
        "what": describe_change(model, &own.change),
        "whole": own.results,
        "response_change": change(own.results.response, now.response),
        "throughput_change": change(own.results.throughput, now.throughput),
        "then": own.next_bottleneck.as_ref().map(|own| document(model, own)),
    })
}

fn change(then: f64, now: f64) -> f64 {
    if now > 0.0 { then / now - 1.0 } else { 0.0 }
}

fn tasks_of(model: &Model, tasks: &[TaskId]) -> String {
    names(model, &tasks.iter().map(|own| LimitedResource::Task(*own)).collect::<Vec<_>>())
}

fn processors_of(model: &Model, processors: &[ProcessorId]) -> String {
    names(model, &processors.iter().map(|own| LimitedResource::Processor(*own)).collect::<Vec<_>>())
}

fn describe_change(model: &Model, change: &ModelChange) -> String {
    match change {
        ModelChange::Threads(tasks, count) => format!("{count} threads of {}", tasks_of(model, tasks)),
        ModelChange::ExtraCore(processors) => format!("a core more of {}", processors_of(model, processors)),
        ModelChange::HalfDemand(tasks) => format!("half the work of {}", tasks_of(model, tasks)),
        ModelChange::Unlimited(of) => format!("no end of {}", names(model, of)),
    }
}

/// Returns a resource with its kind and utilization: `CPUag (hardware)`
fn resource_label(model: &Model, own: &Bottleneck) -> String {
    format!("{} ({}, {:.1} %)", names(model, &own.resources), word(own.kind), 100.0 * own.utilization)
}

fn render(
    model: &Model,
    found: &ModelResults,
    own: &Bottleneck,
    now: OverallResults,
    remedies: &[Improvement],
    color: bool,
) -> String {
    let mut out = format!(
        "{} bottleneck: {}, {:.1} % in use",
        if own.kind == BottleneckKind::Software { "Software" } else { "Hardware" },
        names(model, &own.resources),
        100.0 * own.utilization
    );
    if let Some(against) = own.next_busiest {
        let place = if own.kind == BottleneckKind::Software {
            "the busiest below it"
        } else {
            "the busiest other processor"
        };
        let used = own.utilization / own.strength;
        out += &format!(
            "\nstrength {:.2}: {place}, {}, is at {:.1} %",
            own.strength,
            against.name(model),
            100.0 * used
        );
    }
    if !own.is_saturated {
        out += "\nit does not limit anything yet: what is not in use is still room";
    }
    if let Some(next) = next(remedies) {
        out += &format!("\nnext: {}", resource_label(model, next));
    }
    out += &format!("\nnow: response {}, throughput {}\n\n", short(now.response), short(now.throughput));
    let strong = |text: &str| TableCell::text(text).tone(TextStyle::Strong);
    let number = |text: &str| TableCell::number(text).tone(TextStyle::Strong);
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
            change if change.is_nan() => TableCell::number("-"),
            change => TableCell::number(format!("{change:+.1} %")),
        };
        rows.push(vec![
            TableCell::text(&describe_change(model, &remedy.change)),
            TableCell::number(short(remedy.results.response)),
            percent(remedy.results.response, now.response),
            TableCell::number(short(remedy.results.throughput)),
            percent(remedy.results.throughput, now.throughput),
            TableCell::text(
                &remedy
                    .next_bottleneck
                    .as_ref()
                    .map_or_else(|| "-".to_owned(), |then| resource_label(model, then)),
            ),
        ]);
    }
    out += &table(&rows, color);
    let mut rows = vec![vec![strong("IN USE"), strong("KIND"), number("OF"), number("UTILIZATION")]];
    for (own, used) in busiest_resources(model, found).into_iter().take(SHOWN) {
        let copies = match own {
            LimitedResource::Task(TaskId(own)) => model.tasks[own].copies,
            LimitedResource::Processor(ProcessorId(own)) => model.processors[own].copies,
        };
        let copies = if let Multiplicity::Finite(count) = copies { count } else { 0 };
        rows.push(vec![
            TableCell::text(own.name(model)),
            TableCell::text(kind(own)),
            TableCell::number(copies),
            TableCell::number(format!("{:.1} %", 100.0 * used)),
        ]);
    }
    out + "\n" + &table(&rows, color)
}
