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
use super::{ModelArgs, part, quoted, short};
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
    let found =
        simulate_on(&model, &effort, &|all| continue_replications(all, threads)).map_err(CliError::failed)?;
    let origin = ResultOrigin {
        program: "plimsoll model simulate",
        is_accurate: found.precise,
        convergence: args.precision,
        iterations: found.batches as u64,
    };
    let json = json!({ "schema": 1, "seed": args.seed, "findings": found });
    print(&model, &found, &origin, &json, String::new, globals)?;
    let doubt =
        if found.precise { "" } else { "; intervals are wider than was asked for: give more --events" };
    let overload = overloaded_entry(&model);
    if let Some(entry) = &overload {
        globals.print_always(&format!(
            "warning: more comes to `{entry}` from outside than can be served: what waits there grows \
             without end, and times are as long as the \
             simulation\n"
        ));
    } else if !found.settled {
        globals.print_always(
            "warning: what it began with is not over: numbers still changed when they were first counted; \
             give more --events, \
             and look whether more comes than can be served\n",
        );
    }
    globals.print_message(&format!(
        "{} events in {} batches of {} runs, {} of the model's time after {}{doubt}\n",
        found.events,
        found.batches,
        found.runs,
        short(found.time),
        short(found.warm_up)
    ));
    let unseen = print_unobserved(&found, globals);
    Ok(if unseen || overload.is_some() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Continues each replication: any free thread of so many takes the next.
fn continue_replications(all: &mut [Replication<'_>], threads: usize) {
    let threads = threads.min(all.len());
    let next = Mutex::new(all.iter_mut());
    let work = || {
        loop {
            // A thread that panicked had released it before.
            let one = next.lock().unwrap_or_else(std::sync::PoisonError::into_inner).next();
            let Some(one) = one else { return };
            one.run_step();
        }
    };
    thread::scope(|scope| {
        (1..threads).for_each(|_| drop(scope.spawn(work)));
        work();
    });
}

pub(super) fn render(model: &Model, found: &ModelResults, color: bool) -> String {
    let heading = |text: &str| TableCell::text(text).tone(TextStyle::Strong);
    let number = |text: &str| TableCell::number(text).tone(TextStyle::Strong);
    let many = |copies: Multiplicity| match copies {
        Multiplicity::Finite(count) => TableCell::number(count),
        Multiplicity::Infinite => TableCell::number("∞"),
    };
    let quantiles = |own: Option<TimeQuantiles>| {
        let own = own.map(|own| [own.p50, own.p95, own.p99]);
        own.map_or_else(
            || [(); 3].map(|()| TableCell::number("-")),
            |own| own.map(|one| TableCell::number(short(one))),
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
    for (task, own) in model.tasks.iter().zip(&found.tasks) {
        let mut row = vec![
            TableCell::text(&own.name),
            many(task.copies),
            TableCell::number(format_estimate(&own.throughput)),
            TableCell::number(format_estimate(&own.busy)),
            TableCell::number(own.response.as_ref().map_or_else(|| "-".to_owned(), format_estimate)),
        ];
        row.extend(quantiles(own.percentiles));
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
    for (entry, own) in model.entries.iter().zip(&found.entries) {
        let task = &model.tasks[entry.task.0];
        if task.is_client() {
            continue;
        }
        let mut row = vec![
            TableCell::text(&own.name),
            TableCell::text(&task.name),
            TableCell::number(format_estimate(&own.throughput)),
            TableCell::number(format_estimate(&own.waiting)),
            TableCell::number(format_estimate(&own.service)),
            TableCell::number(own.response.as_ref().map_or_else(|| "-".to_owned(), format_estimate)),
        ];
        row.extend(quantiles(own.percentiles));
        entries.push(row);
    }
    let mut processors =
        vec![vec![heading("PROCESSOR"), number("CORES"), number("BUSY"), number("UTILISATION")]];
    for (processor, own) in model.processors.iter().zip(&found.processors) {
        let used = match processor.copies {
            Multiplicity::Finite(cores) => format!("{:.1} %", 100.0 * own.busy.mean / f64::from(cores)),
            Multiplicity::Infinite => "-".to_owned(),
        };
        processors.push(vec![
            TableCell::text(&own.name),
            many(processor.copies),
            TableCell::number(format_estimate(&own.busy)),
            TableCell::number(used),
        ]);
    }
    let mut parts = vec![tasks, entries, processors];
    parts.extend(failures(model, found));
    parts.iter().map(|rows| table(rows, color)).collect::<Vec<_>>().join("\n")
}

/// Returns a table of failures, if calls can fail: the shares of requests without an answer, and the good
/// answers.
fn failures(model: &Model, found: &ModelResults) -> Option<Vec<Vec<TableCell>>> {
    let heading = |text: &str| TableCell::text(text).tone(TextStyle::Strong);
    let number = |text: &str| TableCell::number(text).tone(TextStyle::Strong);
    let mut rows = vec![vec![
        heading("FAILURES OF"),
        number("OFFERED"),
        number("REFUSED"),
        number("GIVEN UP"),
        number("AGAIN"),
        number("GOODPUT"),
    ]];
    let or_none = |estimate: Option<Estimate>| {
        TableCell::number(estimate.as_ref().map_or_else(|| "-".to_owned(), format_estimate))
    };
    for own in found.tasks.iter().filter(|own| own.goodput.is_some()) {
        let none = || TableCell::number("-");
        rows.push(vec![TableCell::text(&own.name), none(), none(), none(), none(), or_none(own.goodput)]);
    }
    for (entry, own) in model.entries.iter().zip(&found.entries) {
        let Some(failures) = own.failures else { continue };
        let (offered, parts) = (
            failures.offered.mean,
            [failures.refusals, failures.timeouts, failures.retries].map(|own| own.mean),
        );
        if model.tasks[entry.task.0].is_client() || parts == [0.0; 3] && own.goodput.is_none() {
            continue;
        }
        let mut row = vec![TableCell::text(&own.name), TableCell::number(format_estimate(&failures.offered))];
        row.extend(parts.map(|part| {
            let part = if offered > 0.0 { 100.0 * part / offered } else { 0.0 };
            TableCell::number(format!("{} %", short(part)))
        }));
        row.push(or_none(own.goodput));
        rows.push(row);
    }
    model.has_limits().then_some(rows)
}

/// Returns one number a line: kind, name, metric, mean, half of the interval.
pub(super) fn csv(model: &Model, found: &ModelResults) -> String {
    let mut out = "kind,name,metric,mean,half_width\n".to_owned();
    for line in result_lines(model, found) {
        let (name, own) = (quoted(&line.name), line.value);
        let _ = writeln!(out, "{},{name},{},{},{}", line.kind, line.metric, own.mean, own.half_width);
    }
    out
}

pub(super) fn format_estimate(estimate: &Estimate) -> String {
    // A constant has an interval of rounding errors.
    if estimate.half_width <= 1e-9 * estimate.mean.abs() {
        return short(estimate.mean);
    }
    format!("{} ± {}", short(estimate.mean), short(estimate.half_width))
}
