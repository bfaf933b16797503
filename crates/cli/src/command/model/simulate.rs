//! `plimsoll model simulate`: a model, played.

use std::fmt::Write as _;
use std::process::ExitCode;

use plimsoll_lqn::model::Copies;
use plimsoll_lqn::simulate::Quantiles;
use plimsoll_lqn::{Effort, Estimate, Findings, Model, simulate};
use serde_json::json;

use super::Which;
use crate::command::{Failure, Globals};
use crate::control::text::{Cell, Tone, table};
use crate::talk::{Output, write};

/// Simulate a model: throughputs, response times and what is busy, each with its 95 % interval
///
/// Times are in the unit of the model's demands, throughputs in requests per that unit. "Busy" of a task is its threads
/// in use, of clients those that do not think, of a processor its cores in use, in the mean.
#[derive(clap::Args, Debug)]
pub(super) struct Args {
    #[command(flatten)]
    which: Which,

    /// Same seed, same numbers
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    seed: u64,

    /// End when every throughput and response time has an interval of no more than this part of it to either side
    #[arg(long, value_name = "PART", default_value_t = 0.01, value_parser = part)]
    precision: f64,

    /// End after about so many events at the latest
    #[arg(long, value_name = "NUMBER", default_value_t = 20_000_000)]
    events: u64,
}

pub(super) fn run(args: &Args, globals: &Globals) -> Result<ExitCode, Failure> {
    let model = args.which.read(globals)?.model;
    let effort = Effort { seed: args.seed, events: args.events, precision: args.precision };
    let found = simulate(&model, &effort).map_err(Failure::failed)?;
    if globals.output == Output::Csv {
        write(&csv(&found))?;
    } else {
        let json = json!({ "schema": 1, "seed": args.seed, "findings": found });
        globals.show(&json, || render(&model, &found, globals.color()))?;
    }
    let doubt =
        if found.precise { "" } else { "; intervals are wider than was asked for: give more --events" };
    globals.say(&format!(
        "{} events in {} batches, {} of the model's time{doubt}\n",
        found.events,
        found.batches,
        short(found.time)
    ));
    Ok(ExitCode::SUCCESS)
}

pub(super) fn part(text: &str) -> Result<f64, String> {
    let part: f64 = text.parse().map_err(|_| "expected a number such as 0.01".to_owned())?;
    if part > 0.0 && part < 1.0 { Ok(part) } else { Err("expected a number above 0 and below 1".to_owned()) }
}

pub(super) fn render(model: &Model, found: &Findings, color: bool) -> String {
    let heading = |text: &str| Cell::text(text).tone(Tone::Strong);
    let number = |text: &str| Cell::number(text).tone(Tone::Strong);
    let many = |copies: Copies| match copies {
        Copies::Some(count) => Cell::number(count),
        Copies::Infinite => Cell::number("∞"),
    };
    let quantiles = |own: Option<Quantiles>| {
        let own = own.map(|own| [own.p50, own.p95, own.p99]);
        own.map_or_else(|| [(); 3].map(|()| Cell::number("-")), |own| own.map(|one| Cell::number(short(one))))
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
            Cell::text(&own.name),
            many(task.copies),
            Cell::number(shown(&own.throughput)),
            Cell::number(shown(&own.busy)),
            Cell::number(own.response.as_ref().map_or_else(|| "-".to_owned(), shown)),
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
            Cell::text(&own.name),
            Cell::text(&task.name),
            Cell::number(shown(&own.throughput)),
            Cell::number(shown(&own.waiting)),
            Cell::number(shown(&own.service)),
            Cell::number(own.response.as_ref().map_or_else(|| "-".to_owned(), shown)),
        ];
        row.extend(quantiles(own.percentiles));
        entries.push(row);
    }
    let mut processors =
        vec![vec![heading("PROCESSOR"), number("CORES"), number("BUSY"), number("UTILISATION")]];
    for (processor, own) in model.processors.iter().zip(&found.processors) {
        let used = match processor.copies {
            Copies::Some(cores) => format!("{:.1} %", 100.0 * own.busy.mean / f64::from(cores)),
            Copies::Infinite => "-".to_owned(),
        };
        processors.push(vec![
            Cell::text(&own.name),
            many(processor.copies),
            Cell::number(shown(&own.busy)),
            Cell::number(used),
        ]);
    }
    [tasks, entries, processors].map(|rows| table(&rows, color)).join("\n")
}

/// One number a line: what of, its name, which number, the mean, half of the interval.
pub(super) fn csv(found: &Findings) -> String {
    let mut out = "kind,name,metric,mean,half_width\n".to_owned();
    let mut line = |kind: &str, name: &str, metric: &str, own: &Estimate| {
        let _ = writeln!(out, "{kind},{},{metric},{},{}", quoted(name), own.mean, own.half_width);
    };
    for own in &found.tasks {
        line("task", &own.name, "throughput", &own.throughput);
        line("task", &own.name, "busy", &own.busy);
        own.response.iter().for_each(|response| line("task", &own.name, "response", response));
    }
    for own in &found.entries {
        line("entry", &own.name, "throughput", &own.throughput);
        line("entry", &own.name, "waiting", &own.waiting);
        line("entry", &own.name, "service", &own.service);
        own.response.iter().for_each(|response| line("entry", &own.name, "response", response));
    }
    for own in &found.processors {
        line("processor", &own.name, "busy", &own.busy);
    }
    out
}

/// A field of CSV (RFC 4180).
fn quoted(text: &str) -> String {
    if text.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}

pub(super) fn shown(estimate: &Estimate) -> String {
    // What never varies has an interval of rounding errors.
    if estimate.half_width <= 1e-9 * estimate.mean.abs() {
        return short(estimate.mean);
    }
    format!("{} ± {}", short(estimate.mean), short(estimate.half_width))
}

/// Four digits that mean something.
pub(super) fn short(number: f64) -> String {
    if number == 0.0 || !number.is_finite() {
        return number.to_string();
    }
    let digits = (3 - number.abs().log10().floor() as i32).clamp(0, 12) as usize;
    let text = format!("{number:.digits$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        for (number, text) in
            [(0.0, "0"), (572.84, "572.8"), (0.012_345_6, "0.01235"), (20.0, "20"), (123_456.7, "123457")]
        {
            assert_eq!(short(number), text);
        }
    }

    #[test]
    fn fields_are_quoted_where_they_must_be() {
        assert_eq!((quoted("a b"), quoted("a,\"b")), ("a b".to_owned(), "\"a,\"\"b\"".to_owned()));
    }
}
