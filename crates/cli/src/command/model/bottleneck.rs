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
use super::{ModelArgs, format_short};
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
const MAX_SHOWN: usize = 10;

pub(super) fn run(args: &Args, globals: &GlobalArgs) -> Result<ExitCode, CliError> {
    let model = args.which.read(globals)?.model;
    let left_out = args.how.print_left_out(std::iter::once(&model), globals);
    let solve = |model: &Model| args.how.solve(model);
    let results = solve(&model).map_err(CliError::failed)?;
    let bottleneck = find_bottleneck(&model, &results);
    let bottleneck =
        bottleneck.ok_or_else(|| CliError::failed("nothing there is only so much of is ever used"))?;
    globals.print_message("trying remedies\n");
    let improvements = find_improvements(&model, &bottleneck, &solve).map_err(CliError::failed)?;
    let current = OverallResults::of(&model, &results).infinite_if_overloaded(&model);
    let json = json!({
        "schema": 1,
        "method": args.how.method.name,
        "bottleneck": bottleneck_json(&model, &bottleneck),
        "now": current,
        "resources": busiest_resources(&model, &results).iter().map(|(resource, utilization)| json!({
            "kind": resource_kind(*resource), "name": resource.name(&model), "utilization": utilization,
        })).collect::<Vec<_>>(),
        "next": next_bottleneck(&improvements).map(|next| bottleneck_json(&model, next)),
        "remedies": improvements
            .iter()
            .map(|improvement| improvement_json(&model, current, improvement))
            .collect::<Vec<_>>(),
        "left_out": left_out,
    });
    globals.print_result(&json, || {
        render(&model, &results, &bottleneck, current, &improvements, globals.stdout_has_color())
    })?;
    if current.response.is_finite() {
        return Ok(ExitCode::SUCCESS);
    }
    globals.print_always(
        "warning: more comes from outside than can be served: what waits there grows without end\n",
    );
    Ok(ExitCode::FAILURE)
}

/// Returns the bottleneck that follows if the present one is unbounded.
fn next_bottleneck(improvements: &[Improvement]) -> Option<&Bottleneck> {
    let unbounded =
        improvements.iter().find(|improvement| matches!(improvement.change, ModelChange::Unlimited(_)));
    unbounded.and_then(|improvement| improvement.next_bottleneck.as_ref())
}

fn resource_kind(resource: LimitedResource) -> &'static str {
    match resource {
        LimitedResource::Task(_) => "task",
        LimitedResource::Processor(_) => "processor",
    }
}

fn kind_name(kind: BottleneckKind) -> &'static str {
    match kind {
        BottleneckKind::Software => "software",
        BottleneckKind::Hardware => "hardware",
    }
}

fn resource_names(model: &Model, resources: &[LimitedResource]) -> String {
    resources.iter().map(|resource| resource.name(model)).collect::<Vec<_>>().join(", ")
}

fn bottleneck_json(model: &Model, bottleneck: &Bottleneck) -> Value {
    json!({
        "kind": bottleneck.kind,
        "names": bottleneck.resources.iter().map(|resource| resource.name(model)).collect::<Vec<_>>(),
        "utilization": bottleneck.utilization,
        "strength": bottleneck.strength.is_finite().then_some(bottleneck.strength),
        "against": bottleneck.next_busiest.map(|resource| resource.name(model)),
        "limits": bottleneck.is_saturated,
    })
}

fn improvement_json(model: &Model, current: OverallResults, improvement: &Improvement) -> Value {
    let (kind, names, threads) = match &improvement.change {
        ModelChange::Threads(tasks, count) => ("threads", task_names(model, tasks), Some(*count)),
        ModelChange::ExtraCore(processors) => ("core", processor_names(model, processors), None),
        ModelChange::HalfDemand(tasks) => ("half_demand", task_names(model, tasks), None),
        ModelChange::Unlimited(resources) => ("unbounded", resource_names(model, resources), None),
    };
    json!({
        "change": kind,
        "of": names.split(", ").collect::<Vec<_>>(),
        "threads": threads,
        "what": describe_change(model, &improvement.change),
        "whole": improvement.results,
        "response_change": relative_change(improvement.results.response, current.response),
        "throughput_change": relative_change(improvement.results.throughput, current.throughput),
        "then": improvement.next_bottleneck.as_ref().map(|bottleneck| bottleneck_json(model, bottleneck)),
    })
}

fn relative_change(changed: f64, current: f64) -> f64 {
    if current > 0.0 { changed / current - 1.0 } else { 0.0 }
}

fn task_names(model: &Model, tasks: &[TaskId]) -> String {
    resource_names(model, &tasks.iter().map(|task| LimitedResource::Task(*task)).collect::<Vec<_>>())
}

fn processor_names(model: &Model, processors: &[ProcessorId]) -> String {
    resource_names(
        model,
        &processors.iter().map(|processor| LimitedResource::Processor(*processor)).collect::<Vec<_>>(),
    )
}

fn describe_change(model: &Model, change: &ModelChange) -> String {
    match change {
        ModelChange::Threads(tasks, count) => format!("{count} threads of {}", task_names(model, tasks)),
        ModelChange::ExtraCore(processors) => {
            format!("a core more of {}", processor_names(model, processors))
        }
        ModelChange::HalfDemand(tasks) => format!("half the work of {}", task_names(model, tasks)),
        ModelChange::Unlimited(resources) => format!("no end of {}", resource_names(model, resources)),
    }
}

/// Returns a resource with its kind and utilization: `CPUag (hardware)`
fn resource_label(model: &Model, bottleneck: &Bottleneck) -> String {
    format!(
        "{} ({}, {:.1} %)",
        resource_names(model, &bottleneck.resources),
        kind_name(bottleneck.kind),
        100.0 * bottleneck.utilization
    )
}

fn render(
    model: &Model,
    results: &ModelResults,
    bottleneck: &Bottleneck,
    current: OverallResults,
    improvements: &[Improvement],
    color: bool,
) -> String {
    let mut out = format!(
        "{} bottleneck: {}, {:.1} % in use",
        if bottleneck.kind == BottleneckKind::Software { "Software" } else { "Hardware" },
        resource_names(model, &bottleneck.resources),
        100.0 * bottleneck.utilization
    );
    if let Some(against) = bottleneck.next_busiest {
        let description = if bottleneck.kind == BottleneckKind::Software {
            "the busiest below it"
        } else {
            "the busiest other processor"
        };
        let next_utilization = bottleneck.utilization / bottleneck.strength;
        out += &format!(
            "\nstrength {:.2}: {description}, {}, is at {:.1} %",
            bottleneck.strength,
            against.name(model),
            100.0 * next_utilization
        );
    }
    if !bottleneck.is_saturated {
        out += "\nit does not limit anything yet: what is not in use is still room";
    }
    if let Some(following) = next_bottleneck(improvements) {
        out += &format!("\nnext: {}", resource_label(model, following));
    }
    out += &format!(
        "\nnow: response {}, throughput {}\n\n",
        format_short(current.response),
        format_short(current.throughput)
    );
    let strong = |text: &str| TableCell::text(text).style(TextStyle::Strong);
    let number = |text: &str| TableCell::number(text).style(TextStyle::Strong);
    let mut rows = vec![vec![
        strong("IF THERE WERE"),
        number("RESPONSE"),
        number(""),
        number("THROUGHPUT"),
        number(""),
        strong("THEN IT IS"),
    ]];
    for improvement in improvements {
        let percent = |value, baseline| match 100.0 * relative_change(value, baseline) {
            // Both values are infinite.
            difference if difference.is_nan() => TableCell::number("-"),
            difference => TableCell::number(format!("{difference:+.1} %")),
        };
        rows.push(vec![
            TableCell::text(&describe_change(model, &improvement.change)),
            TableCell::number(format_short(improvement.results.response)),
            percent(improvement.results.response, current.response),
            TableCell::number(format_short(improvement.results.throughput)),
            percent(improvement.results.throughput, current.throughput),
            TableCell::text(
                &improvement
                    .next_bottleneck
                    .as_ref()
                    .map_or_else(|| "-".to_owned(), |follow_up| resource_label(model, follow_up)),
            ),
        ]);
    }
    out += &table(&rows, color);
    let mut rows = vec![vec![strong("IN USE"), strong("KIND"), number("OF"), number("UTILIZATION")]];
    for (resource, utilization) in busiest_resources(model, results).into_iter().take(MAX_SHOWN) {
        let copies = match resource {
            LimitedResource::Task(TaskId(index)) => model.tasks[index].copies,
            LimitedResource::Processor(ProcessorId(index)) => model.processors[index].copies,
        };
        let copies = if let Multiplicity::Finite(count) = copies { count } else { 0 };
        rows.push(vec![
            TableCell::text(resource.name(model)),
            TableCell::text(resource_kind(resource)),
            TableCell::number(copies),
            TableCell::number(format!("{:.1} %", 100.0 * utilization)),
        ]);
    }
    out + "\n" + &table(&rows, color)
}
