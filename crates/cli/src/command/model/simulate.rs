//! `plimsoll model simulate`: a model, simulated.

use std::fmt::Write as _;
use std::process::ExitCode;
use std::sync::Mutex;
use std::thread;

use plimsoll_lqn::analysis::result_lines;
use plimsoll_lqn::model::Multiplicity;
use plimsoll_lqn::simulate::TimeQuantiles;
use plimsoll_lqn::solve::overloaded_entry;
use plimsoll_lqn::write::ResultOrigin;
use plimsoll_lqn::{Estimate, Model, ModelResults, Replication, SimulationEffort, simulate_on};
use serde_json::json;

use super::plan::cores;
use super::print::{print, print_unobserved};
use super::{ModelArgs, format_short, part, quote_csv};
use crate::command::{CliError, GlobalArgs};
use crate::control::format::{TableCell, TextStyle, table};

/// Simulate a model: throughputs, response times and utilization, each with its 95 % interval
///
/// Times are in the unit of the model's demands, throughputs in requests per that unit. "Busy" is a mean: of
/// a task its threads in use, of clients those that do not think, of a processor its cores in use.
#[derive(clap::Args, Debug)]
pub(super) struct Args {
    #[command(flatten)]
    which: ModelArgs,

    /// Seed of the simulation; the same seed gives the same results
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    seed: u64,

    /// Relative half-width of the interval of every throughput and response time at which the simulation ends
    #[arg(long, value_name = "PART", default_value_t = 0.01, value_parser = part)]
    precision: f64,

    /// Approximate maximum number of events
    #[arg(long, value_name = "NUMBER", default_value_t = 20_000_000)]
    events: u64,

    /// Number of cores to simulate on; the results do not depend on it [default: all]
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..=1024))]
    threads: Option<u32>,
}

pub(super) fn run(args: &Args, globals: &GlobalArgs) -> Result<ExitCode, CliError> {
    let model = args.which.read(globals)?.model;
    let effort = SimulationEffort { seed: args.seed, events: args.events, precision: args.precision };
    let threads = args.threads.map_or_else(cores, |threads| threads as usize);
    let results = simulate_on(&model, &effort, &|replications| continue_replications(replications, threads))
        .map_err(CliError::failed)?;
    let origin = ResultOrigin {
        program: "plimsoll model simulate",
        is_accurate: results.precise,
        convergence: args.precision,
        iterations: results.batches as u64,
    };
    let json = json!({ "schema": 1, "seed": args.seed, "findings": results });
    print(&model, &results, &origin, &json, String::new, globals)?;
    let precision_note =
        if results.precise { "" } else { "; intervals are wider than was asked for: give more --events" };
    let overload = overloaded_entry(&model);
    if let Some(entry) = &overload {
        globals.print_always(&format!(
            "warning: more comes to `{entry}` from outside than can be served: what waits there grows \
             without end, and times are as long as the \
             simulation\n"
        ));
    } else if !results.settled {
        globals.print_always(
            "warning: what it began with is not over: numbers still changed when they were first counted; \
             give more --events, \
             and look whether more comes than can be served\n",
        );
    }
    globals.print_message(&format!(
        "{} events in {} batches of {} runs, {} of the model's time after {}{precision_note}\n",
        results.events,
        results.batches,
        results.runs,
        format_short(results.time),
        format_short(results.warm_up)
    ));
    let has_unobserved = print_unobserved(&results, globals);
    Ok(if has_unobserved || overload.is_some() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Continues each replication: any free thread of so many takes the next.
fn continue_replications(replications: &mut [Replication<'_>], threads: usize) {
    let threads = threads.min(replications.len());
    let queue = Mutex::new(replications.iter_mut());
    let work = || {
        loop {
            // A thread that panicked had released it before.
            let replication = queue.lock().unwrap_or_else(std::sync::PoisonError::into_inner).next();
            let Some(replication) = replication else { return };
            replication.run_step();
        }
    };
    thread::scope(|scope| {
        (1..threads).for_each(|_| drop(scope.spawn(work)));
        work();
    });
}

pub(super) fn render(model: &Model, results: &ModelResults, color: bool) -> String {
    let heading = |text: &str| TableCell::text(text).style(TextStyle::Strong);
    let number = |text: &str| TableCell::number(text).style(TextStyle::Strong);
    let multiplicity_cell = |copies: Multiplicity| match copies {
        Multiplicity::Finite(count) => TableCell::number(count),
        Multiplicity::Infinite => TableCell::number("∞"),
    };
    let quantiles = |percentiles: Option<TimeQuantiles>| {
        let values = percentiles.map(|percentiles| [percentiles.p50, percentiles.p95, percentiles.p99]);
        values.map_or_else(
            || [(); 3].map(|()| TableCell::number("-")),
            |values| values.map(|value| TableCell::number(format_short(value))),
        )
    };
    let mut tasks = vec![vec![
        heading("TASK"),
        number("THREADS"),
        number("THROUGHPUT"),
        number("BUSY"),
        number("RESPONSE"),
        number("P50"),
        number("P95"),
        number("P99"),
    ]];
    for (task, result) in model.tasks.iter().zip(&results.tasks) {
        let mut row = vec![
            TableCell::text(&result.name),
            multiplicity_cell(task.copies),
            TableCell::number(format_estimate(&result.throughput)),
            TableCell::number(format_estimate(&result.busy)),
            TableCell::number(result.response.as_ref().map_or_else(|| "-".to_owned(), format_estimate)),
        ];
        row.extend(quantiles(result.percentiles));
        tasks.push(row);
    }
    let mut entries = vec![vec![
        heading("ENTRY"),
        heading("OF"),
        number("THROUGHPUT"),
        number("WAITING"),
        number("SERVICE"),
        number("RESPONSE"),
        number("P50"),
        number("P95"),
        number("P99"),
    ]];
    for (entry, result) in model.entries.iter().zip(&results.entries) {
        let task = &model.tasks[entry.task.0];
        if task.is_client() {
            continue;
        }
        let mut row = vec![
            TableCell::text(&result.name),
            TableCell::text(&task.name),
            TableCell::number(format_estimate(&result.throughput)),
            TableCell::number(format_estimate(&result.waiting)),
            TableCell::number(format_estimate(&result.service)),
            TableCell::number(result.response.as_ref().map_or_else(|| "-".to_owned(), format_estimate)),
        ];
        row.extend(quantiles(result.percentiles));
        entries.push(row);
    }
    let mut processors =
        vec![vec![heading("PROCESSOR"), number("CORES"), number("BUSY"), number("UTILISATION")]];
    for (processor, result) in model.processors.iter().zip(&results.processors) {
        let utilization = match processor.copies {
            Multiplicity::Finite(cores) => format!("{:.1} %", 100.0 * result.busy.mean / f64::from(cores)),
            Multiplicity::Infinite => "-".to_owned(),
        };
        processors.push(vec![
            TableCell::text(&result.name),
            multiplicity_cell(processor.copies),
            TableCell::number(format_estimate(&result.busy)),
            TableCell::number(utilization),
        ]);
    }
    let mut sections = vec![tasks, entries, processors];
    sections.extend(failure_rows(model, results));
    sections.iter().map(|rows| table(rows, color)).collect::<Vec<_>>().join("\n")
}

/// Returns a table of failures, if calls can fail: the shares of requests without an answer, and the good
/// answers.
fn failure_rows(model: &Model, results: &ModelResults) -> Option<Vec<Vec<TableCell>>> {
    let heading = |text: &str| TableCell::text(text).style(TextStyle::Strong);
    let number = |text: &str| TableCell::number(text).style(TextStyle::Strong);
    let mut rows = vec![vec![
        heading("FAILURES OF"),
        number("OFFERED"),
        number("REFUSED"),
        number("GIVEN UP"),
        number("AGAIN"),
        number("GOODPUT"),
    ]];
    let estimate_cell = |estimate: Option<Estimate>| {
        TableCell::number(estimate.as_ref().map_or_else(|| "-".to_owned(), format_estimate))
    };
    for result in results.tasks.iter().filter(|result| result.goodput.is_some()) {
        let dash = || TableCell::number("-");
        rows.push(vec![
            TableCell::text(&result.name),
            dash(),
            dash(),
            dash(),
            dash(),
            estimate_cell(result.goodput),
        ]);
    }
    for (entry, result) in model.entries.iter().zip(&results.entries) {
        let Some(failures) = result.failures else { continue };
        let (offered, failure_rates) = (
            failures.offered.mean,
            [failures.refusals, failures.timeouts, failures.retries].map(|estimate| estimate.mean),
        );
        if model.tasks[entry.task.0].is_client() || failure_rates == [0.0; 3] && result.goodput.is_none() {
            continue;
        }
        let mut row =
            vec![TableCell::text(&result.name), TableCell::number(format_estimate(&failures.offered))];
        row.extend(failure_rates.map(|rate| {
            let percent = if offered > 0.0 { 100.0 * rate / offered } else { 0.0 };
            TableCell::number(format!("{} %", format_short(percent)))
        }));
        row.push(estimate_cell(result.goodput));
        rows.push(row);
    }
    model.has_limits().then_some(rows)
}

/// Returns one number a line: kind, name, metric, mean, half of the interval.
pub(super) fn csv(model: &Model, results: &ModelResults) -> String {
    let mut out = "kind,name,metric,mean,half_width\n".to_owned();
    for line in result_lines(model, results) {
        let (name, estimate) = (quote_csv(&line.name), line.value);
        let _ =
            writeln!(out, "{},{name},{},{},{}", line.kind, line.metric, estimate.mean, estimate.half_width);
    }
    out
}

pub(super) fn format_estimate(estimate: &Estimate) -> String {
    // A constant has an interval of rounding errors.
    if estimate.half_width <= 1e-9 * estimate.mean.abs() {
        return format_short(estimate.mean);
    }
    format!("{} ± {}", format_short(estimate.mean), format_short(estimate.half_width))
}
