//! `plimsoll model sweep`: the results of a model while numbers of it change.

use std::collections::HashSet;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use plimsoll_bench::plot::{self, Chart, ChartSeries};
use plimsoll_lqn::analysis::bottleneck::busiest_resources;
use plimsoll_lqn::analysis::metric::MetricSelector;
use plimsoll_lqn::analysis::sweep::{MAX_POINTS, SweepAxis, parse_values, sweep_points};
use plimsoll_lqn::analysis::{ResultLine, result_lines};
use plimsoll_lqn::solve::overloaded_entry;
use plimsoll_lqn::{Model, ModelResults, SimulationError};
use serde_json::{Map, Value, json};

use super::solver::SolveOptions;
use super::sweep_grid::{GridFindings, SweepGrid, solve_all};
use super::{ModelText, quoted, short};
use crate::command::{CliError, CliExitCode, GlobalArgs};
use crate::control::format::{TableCell, TextStyle, table};
use crate::output::{OutputFormat, write_stdout};

/// Solve a model for many values of its numbers
///
/// Every combination of values is a point; all points use the same seed, so that their differences are those
/// of the models. Without --set, the values listed in the model are used ($n = [1, 2, 4]). With up to 20
/// points each has a plan; with more, five are simulated and correct the formulas at all others, which then
/// have no percentiles.
#[derive(clap::Args, Debug)]
pub(super) struct Args {
    /// Model file, LQNX or .lqn; - for standard input
    #[arg(value_name = "MODEL")]
    file: PathBuf,

    /// Parameter, or number such as client.threads or cpu.cores, and its values: 4, 1,2,4, 1..50, 0.1..1:0.1
    /// (in steps of 0.1), 1..64*2 (each twice the last); repeat for every combination
    #[arg(long, value_name = "NAME=VALUES", value_parser = axis)]
    set: Vec<SweepAxis>,

    /// Metric of the plot (-o svg): response, throughput, utilization, p95 ..., or that of one element
    /// (client.p95)
    #[arg(long, value_name = "METRIC", default_value = "response", value_parser = MetricSelector::parse)]
    metric: MetricSelector,

    #[command(flatten)]
    how: SolveOptions,
}

pub(super) const OUTPUTS: &[OutputFormat] =
    &[OutputFormat::Table, OutputFormat::Json, OutputFormat::Csv, OutputFormat::Svg];

/// A combination and its result.
struct SweepPoint {
    values: Vec<f64>,
    outcome: Result<(Model, ModelResults), SimulationError>,
}

pub(super) fn run(args: &Args, globals: &GlobalArgs) -> Result<ExitCode, CliError> {
    let text = ModelText::open(&args.file)?;
    let mut axes = args.set.clone();
    let fixed: Vec<(String, f64)> = axes.iter().map(|axis| (axis.name.clone(), axis.values[0])).collect();
    let first = text.read(&fixed)?;
    text.print_left_out(&first, globals);
    // The model's own arrays come first, as in other tools.
    let own = first
        .parameters
        .iter()
        .filter(|(name, values)| values.len() > 1 && !args.set.iter().any(|axis| axis.name == *name));
    axes.splice(0..0, own.map(|(name, values)| SweepAxis { name: name.clone(), values: values.clone() }));
    if axes.iter().all(|axis| axis.values.len() == 1) {
        let what = "nothing changes: give a number several values, such as --set client.threads=1..50";
        return Err(CliError::new(CliExitCode::Usage, what));
    }
    let all = sweep_points(&axes);
    let all = all.ok_or_else(|| {
        CliError::new(CliExitCode::Usage, format_args!("these are more than {MAX_POINTS} points"))
    })?;
    let (points, anchors) = solve(&text, &axes, all, args, globals)?;
    let stuck: Vec<&SweepPoint> = points.iter().filter(|point| point.outcome.is_err()).collect();
    if let Some(SweepPoint { values, outcome: Err(why) }) = stuck.first() {
        let at = point_label(&axes, values);
        if stuck.len() == points.len() {
            return Err(CliError::failed(format_args!("no point can be solved; {at}: {why}")));
        }
        globals.print_message(&format!(
            "{} of {} points cannot be solved; the first, {at}: {why}\n",
            stuck.len(),
            points.len()
        ));
    }
    if !anchors.is_empty() {
        let places: Vec<String> =
            anchors.iter().map(|place| point_label(&axes, &points[*place].values)).collect();
        globals.print_message(&format!(
            "simulated at {}, which corrects the formulas at the others; percentiles: --method simulate\n",
            places.join("; ")
        ));
    }
    let models = points.iter().filter_map(|point| Some(&point.outcome.as_ref().ok()?.0));
    let left_out = args.how.print_left_out(models, globals);
    let unseen =
        points.iter().filter(|point| point.outcome.as_ref().is_ok_and(|(_, own)| !own.unseen.is_empty()));
    let mut unseen = unseen.peekable();
    if let Some(SweepPoint { values, outcome: Ok((_, found)) }) = unseen.peek().copied() {
        globals.print_always(&format!(
            "warning: at {} of {} points nothing came to an end in what was simulated of some (give more \
             --events, a plan a longer --budget); the first, \
             {}: {}\n",
            unseen.count(),
            points.len(),
            point_label(&axes, values),
            found.unseen.join(", ")
        ));
    }
    match globals.output {
        OutputFormat::Csv => write_stdout(&csv(&axes, &points))?,
        OutputFormat::Svg => write_stdout(&chart(&axes, &points, &args.metric, &text.name).svg())?,
        _ => {
            let shown: Vec<Value> = points.iter().map(|point| document(&axes, point)).collect();
            let json = json!({
                "schema": 1,
                "method": args.how.method.name,
                "anchors": anchors
                    .iter()
                    .map(|place| named(&axes, &points[*place].values))
                    .collect::<Vec<_>>(),
                "points": shown,
                "left_out": left_out,
            });
            globals.print_result(&json, || render(&axes, &points, globals.stdout_has_color()))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Parses an axis: `n=3`, `$n=1,2,4`
fn axis(text: &str) -> Result<SweepAxis, String> {
    let (name, list) = text.split_once('=').ok_or("expected a name and values, such as n=1..50")?;
    let name = name.strip_prefix('$').unwrap_or(name).trim();
    if name.is_empty() {
        return Err("expected a name and values, such as n=1..50".to_owned());
    }
    Ok(SweepAxis { name: name.to_owned(), values: parse_values(list)? })
}

/// Returns the values of a point: `n = 3, cpu.cores = 2`
fn point_label(axes: &[SweepAxis], values: &[f64]) -> String {
    let each = axes.iter().zip(values).map(|(axis, value)| format!("{} = {value}", axis.name));
    each.collect::<Vec<_>>().join(", ")
}

/// Solves all points; returns the places of those that correct the others. A text that is not a valid model
/// with some values ends the sweep.
fn solve(
    text: &ModelText,
    axes: &[SweepAxis],
    all: Vec<Vec<f64>>,
    args: &Args,
    globals: &GlobalArgs,
) -> Result<(Vec<SweepPoint>, Vec<usize>), CliError> {
    let models = all.iter().map(|values| {
        let set: Vec<_> = axes.iter().map(|axis| axis.name.clone()).zip(values.iter().copied()).collect();
        text.read(&set).map(|read| read.model)
    });
    let models = models.collect::<Result<Vec<Model>, CliError>>()?;
    let smooth = axes.iter().all(|axis| axis.values.is_sorted() || axis.values.iter().rev().is_sorted());
    let course = SweepGrid::for_axes(&axes.iter().map(|axis| axis.values.len()).collect::<Vec<_>>(), smooth);
    // A picture may be of a number that formulas do not have.
    let each = globals.output == OutputFormat::Svg && args.metric.needs_simulation();
    let GridFindings { findings: of, anchors } =
        solve_all(&models, &args.how, (!each).then_some(&course), globals);
    let points = all.into_iter().zip(models).zip(of);
    let points = points.map(|((values, model), found)| {
        let found = found.and_then(|found| match overloaded_entry(&model) {
            // Times there are infinite, and those of a simulation only reflect its length.
            Some(_) => Err(SimulationError::Overload),
            None => Ok((model, found)),
        });
        SweepPoint { values, outcome: found }
    });
    Ok((points.collect(), anchors))
}

/// Returns the table of the points: each client and requests from outside, and the busiest resource.
fn render(axes: &[SweepAxis], points: &[SweepPoint], color: bool) -> String {
    let heading = |text: &str| TableCell::number(text).tone(TextStyle::Strong);
    let asked = |lines: &[ResultLine]| -> Vec<ResultLine> {
        let with = |metric| MetricSelector { name: None, metric }.select(lines).into_iter().cloned();
        let mut all: Vec<ResultLine> =
            with("throughput").chain(with("response")).chain(with("p95")).collect();
        // Numbers of one name stand together.
        let mut names: Vec<(&str, String)> = Vec::new();
        for line in &all {
            if !names.contains(&(line.kind, line.name.clone())) {
                names.push((line.kind, line.name.clone()));
            }
        }
        all.sort_by_key(|line| names.iter().position(|own| own.0 == line.kind && own.1 == line.name));
        all
    };
    let solved = points.iter().find_map(|point| point.outcome.as_ref().ok());
    let columns = solved.map(|(model, found)| asked(&result_lines(model, found))).unwrap_or_default();
    let mut head: Vec<TableCell> = axes.iter().map(|axis| heading(&axis.name)).collect();
    head.extend(columns.iter().map(|line| heading(&format!("{}.{}", line.name, line.metric))));
    head.extend([TableCell::text("BUSIEST").tone(TextStyle::Strong), heading("UTILIZATION")]);
    let mut rows = vec![head];
    for point in points {
        let mut row: Vec<TableCell> = point.values.iter().map(TableCell::number).collect();
        match &point.outcome {
            Ok((model, found)) => {
                // A number may be missing at a point, if its event never happens there.
                let all = result_lines(model, found);
                row.extend(columns.iter().map(|column| {
                    let same = |line: &&ResultLine| {
                        (line.kind, &line.name, line.metric) == (column.kind, &column.name, column.metric)
                    };
                    let line = all.iter().find(same);
                    TableCell::number(line.map_or_else(|| "-".to_owned(), |line| short(line.value.mean)))
                }));
                if let Some((busiest, part)) = busiest_resources(model, found).first() {
                    row.extend([
                        TableCell::text(busiest.name(model)),
                        TableCell::number(format!("{:.1} %", 100.0 * part)),
                    ]);
                }
            }
            Err(_) => row.extend(columns.iter().map(|_| TableCell::number("-"))),
        }
        rows.push(row);
    }
    table(&rows, color)
}

fn named(axes: &[SweepAxis], values: &[f64]) -> Map<String, Value> {
    axes.iter().zip(values).map(|(axis, value)| (axis.name.clone(), json!(value))).collect()
}

fn document(axes: &[SweepAxis], point: &SweepPoint) -> Value {
    let values = named(axes, &point.values);
    match &point.outcome {
        Ok((model, found)) => {
            json!({ "values": values, "lines": result_lines(model, found), "unseen": found.unseen })
        }
        Err(why) => json!({ "values": values, "error": why.to_string() }),
    }
}

/// Returns a row for each point: its values, and every number; for all but percentiles half of the interval,
/// too.
fn csv(axes: &[SweepAxis], points: &[SweepPoint]) -> String {
    let cells = |point: &SweepPoint| -> Vec<(String, f64)> {
        let Ok((model, found)) = &point.outcome else { return Vec::new() };
        let each = result_lines(model, found).into_iter().flat_map(|line| {
            let name = format!("{}.{}.{}", line.kind, line.name, line.metric);
            let half = !matches!(line.metric, "p50" | "p95" | "p99");
            let half = half.then(|| (format!("{name}.half_width"), line.value.half_width));
            std::iter::once((name, line.value.mean)).chain(half)
        });
        each.collect()
    };
    // A number may be missing at a point, if its event never happens there.
    let rows: Vec<Vec<(String, f64)>> = points.iter().map(cells).collect();
    let mut known = HashSet::new();
    let names = rows.iter().flatten().map(|(name, _)| name).filter(|name| known.insert(name.as_str()));
    let names: Vec<String> = names.cloned().collect();
    let head = axes.iter().map(|axis| axis.name.clone()).chain(names.iter().cloned());
    let mut out = head.map(|name| quoted(&name)).collect::<Vec<_>>().join(",") + "\n";
    for (point, row) in points.iter().zip(&rows) {
        let values = point.values.iter().map(f64::to_string);
        let found = names.iter().map(|name| {
            let found = row.iter().find(|(own, _)| own == name);
            found.map_or_else(String::new, |(_, value)| value.to_string())
        });
        let _ = writeln!(out, "{}", values.chain(found).collect::<Vec<_>>().join(","));
    }
    out
}

/// Returns a line for each number of this metric and each combination of all axes but the first that changes.
fn chart(axes: &[SweepAxis], points: &[SweepPoint], metric: &MetricSelector, title: &str) -> Chart {
    let across = axes.iter().position(|axis| axis.values.len() > 1).unwrap_or(0);
    let mut series: Vec<ChartSeries> = Vec::new();
    for point in points {
        let Ok((model, found)) = &point.outcome else { continue };
        let others = axes.iter().zip(&point.values).enumerate();
        let others = others.filter(|(place, (axis, _))| *place != across && axis.values.len() > 1);
        let others = others.map(|(_, (axis, value))| format!("{} = {value}", axis.name));
        let others = others.collect::<Vec<_>>().join(", ");
        for line in metric.select(&result_lines(model, found)) {
            let name = if others.is_empty() { line.name.clone() } else { format!("{}, {others}", line.name) };
            let (mean, half) = (line.value.mean, line.value.half_width);
            let range = (half > 0.0).then_some((mean - half, mean + half));
            let own = plot::ChartPoint { x: point.values[across], y: mean, range };
            match series.iter_mut().find(|series| series.name == name) {
                Some(series) => series.points.push(own),
                None => series.push(ChartSeries { name, points: vec![own], ..ChartSeries::default() }),
            }
        }
    }
    Chart {
        title: title.to_owned(),
        x: plot::ChartAxis { label: axes[across].name.clone(), ..plot::ChartAxis::default() },
        y: plot::ChartAxis { label: metric.metric.to_owned(), zero: true, ..plot::ChartAxis::default() },
        series,
        notes: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_and_its_values() {
        let own = axis("$n=1..3").unwrap();
        assert_eq!((own.name.as_str(), own.values), ("n", vec![1.0, 2.0, 3.0]));
        for wrong in ["n", "=1", "n=", "n=x"] {
            assert!(axis(wrong).is_err(), "{wrong}");
        }
    }
}
