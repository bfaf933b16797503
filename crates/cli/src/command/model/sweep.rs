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
use super::{ModelText, format_short, quote_csv};
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
    let parsed = text.read(&fixed)?;
    text.print_left_out(&parsed, globals);
    // The model's own arrays come first, as in other tools.
    let model_axes = parsed
        .parameters
        .iter()
        .filter(|(name, values)| values.len() > 1 && !args.set.iter().any(|axis| axis.name == *name));
    axes.splice(
        0..0,
        model_axes.map(|(name, values)| SweepAxis { name: name.clone(), values: values.clone() }),
    );
    if axes.iter().all(|axis| axis.values.len() == 1) {
        let message = "nothing changes: give a number several values, such as --set client.threads=1..50";
        return Err(CliError::new(CliExitCode::Usage, message));
    }
    let point_values = sweep_points(&axes);
    let point_values = point_values.ok_or_else(|| {
        CliError::new(CliExitCode::Usage, format_args!("these are more than {MAX_POINTS} points"))
    })?;
    let (points, anchors) = solve(&text, &axes, point_values, args, globals)?;
    let failed_points: Vec<&SweepPoint> = points.iter().filter(|point| point.outcome.is_err()).collect();
    if let Some(SweepPoint { values, outcome: Err(error) }) = failed_points.first() {
        let label = point_label(&axes, values);
        if failed_points.len() == points.len() {
            return Err(CliError::failed(format_args!("no point can be solved; {label}: {error}")));
        }
        globals.print_message(&format!(
            "{} of {} points cannot be solved; the first, {label}: {error}\n",
            failed_points.len(),
            points.len()
        ));
    }
    if !anchors.is_empty() {
        let labels: Vec<String> =
            anchors.iter().map(|index| point_label(&axes, &points[*index].values)).collect();
        globals.print_message(&format!(
            "simulated at {}, which corrects the formulas at the others; percentiles: --method simulate\n",
            labels.join("; ")
        ));
    }
    let models = points.iter().filter_map(|point| Some(&point.outcome.as_ref().ok()?.0));
    let left_out = args.how.print_left_out(models, globals);
    let unobserved = points
        .iter()
        .filter(|point| point.outcome.as_ref().is_ok_and(|(_, results)| !results.unseen.is_empty()));
    let mut unobserved = unobserved.peekable();
    if let Some(SweepPoint { values, outcome: Ok((_, results)) }) = unobserved.peek().copied() {
        globals.print_always(&format!(
            "warning: at {} of {} points nothing came to an end in what was simulated of some (give more \
             --events, a plan a longer --budget); the first, \
             {}: {}\n",
            unobserved.count(),
            points.len(),
            point_label(&axes, values),
            results.unseen.join(", ")
        ));
    }
    match globals.output {
        OutputFormat::Csv => write_stdout(&csv(&axes, &points))?,
        OutputFormat::Svg => write_stdout(&chart(&axes, &points, &args.metric, &text.name).svg())?,
        _ => {
            let points_json: Vec<Value> = points.iter().map(|point| point_json(&axes, point)).collect();
            let json = json!({
                "schema": 1,
                "method": args.how.method.name,
                "anchors": anchors
                    .iter()
                    .map(|place| named_values(&axes, &points[*place].values))
                    .collect::<Vec<_>>(),
                "points": points_json,
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
    let assignments = axes.iter().zip(values).map(|(axis, value)| format!("{} = {value}", axis.name));
    assignments.collect::<Vec<_>>().join(", ")
}

/// Solves all points; returns the places of those that correct the others. A text that is not a valid model
/// with some values ends the sweep.
fn solve(
    text: &ModelText,
    axes: &[SweepAxis],
    point_values: Vec<Vec<f64>>,
    args: &Args,
    globals: &GlobalArgs,
) -> Result<(Vec<SweepPoint>, Vec<usize>), CliError> {
    let models = point_values.iter().map(|values| {
        let settings: Vec<_> =
            axes.iter().map(|axis| axis.name.clone()).zip(values.iter().copied()).collect();
        text.read(&settings).map(|parsed| parsed.model)
    });
    let models = models.collect::<Result<Vec<Model>, CliError>>()?;
    let is_smooth = axes.iter().all(|axis| axis.values.is_sorted() || axis.values.iter().rev().is_sorted());
    let grid = SweepGrid::for_axes(&axes.iter().map(|axis| axis.values.len()).collect::<Vec<_>>(), is_smooth);
    // A picture may be of a number that formulas do not have.
    let solves_each = globals.output == OutputFormat::Svg && args.metric.needs_simulation();
    let GridFindings { findings, anchors } =
        solve_all(&models, &args.how, (!solves_each).then_some(&grid), globals);
    let points = point_values.into_iter().zip(models).zip(findings);
    let points = points.map(|((values, model), result)| {
        let outcome = result.and_then(|results| match overloaded_entry(&model) {
            // Times there are infinite, and those of a simulation only reflect its length.
            Some(_) => Err(SimulationError::Overload),
            None => Ok((model, results)),
        });
        SweepPoint { values, outcome }
    });
    Ok((points.collect(), anchors))
}

/// Returns the table of the points: each client and requests from outside, and the busiest resource.
fn render(axes: &[SweepAxis], points: &[SweepPoint], color: bool) -> String {
    let heading = |text: &str| TableCell::number(text).style(TextStyle::Strong);
    let select_columns = |lines: &[ResultLine]| -> Vec<ResultLine> {
        let select_metric = |metric| MetricSelector { name: None, metric }.select(lines).into_iter().cloned();
        let mut selected: Vec<ResultLine> = select_metric("throughput")
            .chain(select_metric("response"))
            .chain(select_metric("p95"))
            .collect();
        // Numbers of one name stand together.
        let mut names: Vec<(&str, String)> = Vec::new();
        for line in &selected {
            if !names.contains(&(line.kind, line.name.clone())) {
                names.push((line.kind, line.name.clone()));
            }
        }
        selected.sort_by_key(|line| names.iter().position(|key| key.0 == line.kind && key.1 == line.name));
        selected
    };
    let first_solved = points.iter().find_map(|point| point.outcome.as_ref().ok());
    let columns = first_solved
        .map(|(model, results)| select_columns(&result_lines(model, results)))
        .unwrap_or_default();
    let mut header: Vec<TableCell> = axes.iter().map(|axis| heading(&axis.name)).collect();
    header.extend(columns.iter().map(|line| heading(&format!("{}.{}", line.name, line.metric))));
    header.extend([TableCell::text("BUSIEST").style(TextStyle::Strong), heading("UTILIZATION")]);
    let mut rows = vec![header];
    for point in points {
        let mut row: Vec<TableCell> = point.values.iter().map(TableCell::number).collect();
        match &point.outcome {
            Ok((model, results)) => {
                // A number may be missing at a point, if its event never happens there.
                let lines = result_lines(model, results);
                row.extend(columns.iter().map(|column| {
                    let matches_column = |line: &&ResultLine| {
                        (line.kind, &line.name, line.metric) == (column.kind, &column.name, column.metric)
                    };
                    let line = lines.iter().find(matches_column);
                    TableCell::number(
                        line.map_or_else(|| "-".to_owned(), |line| format_short(line.value.mean)),
                    )
                }));
                if let Some((busiest, utilization)) = busiest_resources(model, results).first() {
                    row.extend([
                        TableCell::text(busiest.name(model)),
                        TableCell::number(format!("{:.1} %", 100.0 * utilization)),
                    ]);
                }
            }
            Err(_) => row.extend(columns.iter().map(|_| TableCell::number("-"))),
        }
        rows.push(row);
    }
    table(&rows, color)
}

fn named_values(axes: &[SweepAxis], values: &[f64]) -> Map<String, Value> {
    axes.iter().zip(values).map(|(axis, value)| (axis.name.clone(), json!(value))).collect()
}

fn point_json(axes: &[SweepAxis], point: &SweepPoint) -> Value {
    let values = named_values(axes, &point.values);
    match &point.outcome {
        Ok((model, results)) => {
            json!({ "values": values, "lines": result_lines(model, results), "unseen": results.unseen })
        }
        Err(error) => json!({ "values": values, "error": error.to_string() }),
    }
}

/// Returns a row for each point: its values, and every number; for all but percentiles half of the interval,
/// too.
fn csv(axes: &[SweepAxis], points: &[SweepPoint]) -> String {
    let cells = |point: &SweepPoint| -> Vec<(String, f64)> {
        let Ok((model, results)) = &point.outcome else { return Vec::new() };
        let fields = result_lines(model, results).into_iter().flat_map(|line| {
            let name = format!("{}.{}.{}", line.kind, line.name, line.metric);
            let has_interval = !matches!(line.metric, "p50" | "p95" | "p99");
            let half_width = has_interval.then(|| (format!("{name}.half_width"), line.value.half_width));
            std::iter::once((name, line.value.mean)).chain(half_width)
        });
        fields.collect()
    };
    // A number may be missing at a point, if its event never happens there.
    let rows: Vec<Vec<(String, f64)>> = points.iter().map(cells).collect();
    let mut seen = HashSet::new();
    let names = rows.iter().flatten().map(|(name, _)| name).filter(|name| seen.insert(name.as_str()));
    let names: Vec<String> = names.cloned().collect();
    let header = axes.iter().map(|axis| axis.name.clone()).chain(names.iter().cloned());
    let mut out = header.map(|name| quote_csv(&name)).collect::<Vec<_>>().join(",") + "\n";
    for (point, row) in points.iter().zip(&rows) {
        let values = point.values.iter().map(f64::to_string);
        let values_text = names.iter().map(|name| {
            let cell = row.iter().find(|(cell_name, _)| cell_name == name);
            cell.map_or_else(String::new, |(_, value)| value.to_string())
        });
        let _ = writeln!(out, "{}", values.chain(values_text).collect::<Vec<_>>().join(","));
    }
    out
}

/// Returns a line for each number of this metric and each combination of all axes but the first that changes.
fn chart(axes: &[SweepAxis], points: &[SweepPoint], metric: &MetricSelector, title: &str) -> Chart {
    let axis_index = axes.iter().position(|axis| axis.values.len() > 1).unwrap_or(0);
    let mut series: Vec<ChartSeries> = Vec::new();
    for point in points {
        let Ok((model, results)) = &point.outcome else { continue };
        let other_axes = axes.iter().zip(&point.values).enumerate();
        let other_axes =
            other_axes.filter(|(index, (axis, _))| *index != axis_index && axis.values.len() > 1);
        let other_axes = other_axes.map(|(_, (axis, value))| format!("{} = {value}", axis.name));
        let suffix = other_axes.collect::<Vec<_>>().join(", ");
        for line in metric.select(&result_lines(model, results)) {
            let name = if suffix.is_empty() { line.name.clone() } else { format!("{}, {suffix}", line.name) };
            let (mean, half_width) = (line.value.mean, line.value.half_width);
            let range = (half_width > 0.0).then_some((mean - half_width, mean + half_width));
            let chart_point = plot::ChartPoint { x: point.values[axis_index], y: mean, range };
            match series.iter_mut().find(|series| series.name == name) {
                Some(series) => series.points.push(chart_point),
                None => {
                    series.push(ChartSeries { name, points: vec![chart_point], ..ChartSeries::default() })
                }
            }
        }
    }
    Chart {
        title: title.to_owned(),
        x: plot::ChartAxis { label: axes[axis_index].name.clone(), ..plot::ChartAxis::default() },
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
        let parsed_axis = axis("$n=1..3").unwrap();
        assert_eq!((parsed_axis.name.as_str(), parsed_axis.values), ("n", vec![1.0, 2.0, 3.0]));
        for invalid in ["n", "=1", "n=", "n=x"] {
            assert!(axis(invalid).is_err(), "{invalid}");
        }
    }
}
