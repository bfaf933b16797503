//! `plimsoll model compare`: the results of every method, and the measurements, side by side.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use plimsoll_config as config;
use plimsoll_lqn::analysis::{ResultLine, result_lines};
use plimsoll_lqn::read::{MeasuredResult, read_results};
use serde_json::{Value, json};

use super::solver::{ALL, SolveOptions};
use super::{ModelArgs, format_short, print, quote_csv, read_text};
use crate::command::{CliError, CliExitCode, GlobalArgs};
use crate::control::format::{TableCell, TextStyle, table};
use crate::output::{OutputFormat, write_stdout};

/// Compare the results of all methods, and measurements
///
/// Differences are relative to the measurements, or to the simulation. Measurements are CSV with the columns
/// kind, name, metric and mean (the format of `simulate -o csv`), or a file of results in LQNX (.lqxo).
#[derive(clap::Args, Debug)]
pub(super) struct Args {
    #[command(flatten)]
    which: ModelArgs,

    /// File with measurements, or with the results of another tool
    #[arg(long, value_name = "FILE")]
    measured: Option<PathBuf>,

    #[command(flatten)]
    how: SolveOptions,
}

pub(super) const OUTPUTS: &[OutputFormat] = &[OutputFormat::Table, OutputFormat::Json, OutputFormat::Csv];

/// One number by each method.
struct ComparisonRow {
    kind: String,
    name: String,
    metric: String,
    /// The values in the order of the columns.
    values: Vec<Option<f64>>,
}

pub(super) fn run(args: &Args, globals: &GlobalArgs) -> Result<ExitCode, CliError> {
    let model = args.which.read(globals)?.model;
    let measured = args.measured.as_deref().map(read_measurements).transpose()?;
    let mut columns: Vec<(&str, Vec<ResultLine>)> = Vec::new();
    let mut unsolved: Vec<Value> = Vec::new();
    for method in ALL {
        match args.how.solve_by(method, &model) {
            Ok(results) => {
                print::print_unobserved(&results, globals);
                columns.push((method.name, result_lines(&model, &results)));
            }
            Err(error) => {
                globals.print_always(&format!("warning: {}: {error}\n", method.name));
                unsolved.push(json!({ "column": method.name, "why": error.to_string() }));
            }
        }
    }
    let left_out = print::print_left_out(std::iter::once(&model), globals);
    if columns.is_empty() {
        return Err(CliError::failed("no method can solve the model"));
    }
    let (rows, unmatched) = comparison_rows(&columns, measured.as_deref());
    if rows.is_empty() {
        return Err(CliError::failed("nothing that was measured is in the model"));
    }
    for result in unmatched.iter().take(5) {
        globals.print_message(&format!(
            "measured, but not in the model: {} {} {}\n",
            result.kind, result.name, result.metric
        ));
    }
    let mut names: Vec<&str> = columns.iter().map(|(name, _)| *name).collect();
    if measured.is_some() {
        names.push("measured");
    }
    let reference = names.iter().position(|name| *name == "measured");
    let reference = reference.or_else(|| names.iter().position(|name| *name == "simulate")).unwrap_or(0);
    if globals.output == OutputFormat::Csv {
        write_stdout(&csv(&names, &rows))?;
    } else {
        let json = json!({ "schema": 1, "against": names[reference],
            "rows": rows_json(&names, reference, &rows),
            "errors": error_summaries(&names, reference, &rows), "stuck": unsolved, "left_out": left_out });
        globals.print_result(&json, || render(&names, reference, &rows, globals.stdout_has_color()))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the rows, and the measurements of things that the model does not have.
fn comparison_rows<'m>(
    columns: &[(&str, Vec<ResultLine>)],
    measured: Option<&'m [MeasuredResult]>,
) -> (Vec<ComparisonRow>, Vec<&'m MeasuredResult>) {
    let mut rows = Vec::new();
    let mut keys: Vec<(&str, &str, &str)> = Vec::new();
    for line in columns.iter().flat_map(|(_, lines)| lines) {
        let key = (line.kind, line.name.as_str(), line.metric);
        if keys.contains(&key) {
            continue;
        }
        keys.push(key);
        let mut values: Vec<Option<f64>> = Vec::new();
        for (_, lines) in columns {
            let matches_key = |other: &&ResultLine| (other.kind, other.name.as_str(), other.metric) == key;
            values.push(lines.iter().find(matches_key).map(|line| line.value.mean));
        }
        if let Some(measured) = measured {
            let matches_key = |other: &&MeasuredResult| {
                (other.kind.as_str(), other.name.as_str(), other.metric.as_str()) == key
            };
            let Some(measurement) = measured.iter().find(matches_key) else { continue };
            values.push(Some(measurement.mean));
        } else if !matches!(line.metric, "throughput" | "response" | "busy") {
            continue;
        }
        rows.push(ComparisonRow {
            kind: line.kind.to_owned(),
            name: line.name.clone(),
            metric: line.metric.to_owned(),
            values,
        });
    }
    let is_absent = |result: &&MeasuredResult| {
        !keys.contains(&(result.kind.as_str(), result.name.as_str(), result.metric.as_str()))
    };
    (rows, measured.unwrap_or_default().iter().filter(is_absent).collect())
}

/// Returns the relative error of a value.
fn relative_error(value: Option<f64>, reference: Option<f64>) -> Option<f64> {
    let (value, reference) = (value?, reference?);
    (reference != 0.0).then(|| value / reference - 1.0)
}

/// Returns for each column but the true one the mean and the greatest error by metric, without its sign.
fn error_summaries(names: &[&str], reference: usize, rows: &[ComparisonRow]) -> Vec<Value> {
    let mut summaries = Vec::new();
    for (column, name) in names.iter().enumerate().filter(|(column, _)| *column != reference) {
        for metric in ["throughput", "response", "busy"] {
            let metric_rows = rows.iter().filter(|row| row.metric == metric);
            let errors: Vec<f64> = metric_rows
                .filter_map(|row| relative_error(row.values[column], row.values[reference]))
                .map(f64::abs)
                .collect();
            if !errors.is_empty() {
                let mean = errors.iter().sum::<f64>() / errors.len() as f64;
                let worst = errors.iter().copied().fold(0.0, f64::max);
                summaries.push(json!({
                    "column": name, "metric": metric, "count": errors.len(), "mean": mean, "worst": worst,
                }));
            }
        }
    }
    summaries
}

fn rows_json(names: &[&str], reference: usize, rows: &[ComparisonRow]) -> Vec<Value> {
    let row_json = |row: &ComparisonRow| {
        let mut object = json!({ "kind": row.kind, "name": row.name, "metric": row.metric });
        for (column, name) in names.iter().enumerate() {
            object[*name] = json!(row.values[column]);
            if column != reference {
                object[format!("{name}_off")] =
                    json!(relative_error(row.values[column], row.values[reference]));
            }
        }
        object
    };
    rows.iter().map(row_json).collect()
}

fn csv(names: &[&str], rows: &[ComparisonRow]) -> String {
    let mut out = format!("kind,name,metric,{}\n", names.join(","));
    for row in rows {
        let values = row.values.iter().map(|value| value.map_or_else(String::new, |value| value.to_string()));
        let values = values.collect::<Vec<_>>().join(",");
        let _ = writeln!(out, "{},{},{},{values}", row.kind, quote_csv(&row.name), row.metric);
    }
    out
}

fn render(names: &[&str], reference: usize, rows: &[ComparisonRow], color: bool) -> String {
    let strong = |text: &str| TableCell::text(text).style(TextStyle::Strong);
    let number = |text: &str| TableCell::number(text).style(TextStyle::Strong);
    let mut header = vec![strong("KIND"), strong("NAME"), strong("METRIC")];
    for (column, name) in names.iter().enumerate() {
        header.push(number(&name.to_uppercase()));
        if column != reference {
            header.push(number("OFF"));
        }
    }
    let mut table_rows = vec![header];
    for row in rows {
        let mut cells =
            vec![TableCell::text(&row.kind), TableCell::text(&row.name), TableCell::text(&row.metric)];
        for (column, value) in row.values.iter().enumerate() {
            cells.push(TableCell::number(value.map_or_else(|| "-".to_owned(), format_short)));
            if column != reference {
                let error = relative_error(*value, row.values[reference]);
                cells.push(TableCell::number(
                    error.map_or_else(|| "-".to_owned(), |error| format!("{:+.1} %", 100.0 * error)),
                ));
            }
        }
        table_rows.push(cells);
    }
    let mut out = table(&table_rows, color);
    for entry in error_summaries(names, reference, rows) {
        let percent = |key: &str| 100.0 * entry[key].as_f64().unwrap_or_default();
        let _ = write!(
            out,
            "\n{} of {}: off by {:.1} % in the mean, {:.1} % at worst",
            entry["metric"].as_str().unwrap_or_default(),
            entry["column"].as_str().unwrap_or_default(),
            percent("mean"),
            percent("worst")
        );
    }
    out + if names.len() > 1 { "\n" } else { "" }
}

fn read_measurements(path: &Path) -> Result<Vec<MeasuredResult>, CliError> {
    let name = config::name_of(path);
    let source = read_text(path)
        .map_err(|error| CliError::new(CliExitCode::Usage, format_args!("cannot read {name}: {error}")))?;
    let results = if source.trim_start().starts_with(['<', '\u{feff}']) {
        read_results(&source).map_err(|error| error.to_string())
    } else {
        parse_columns(&source)
    };
    results.map_err(|error| CliError::new(CliExitCode::Usage, format_args!("{name}:{error}")))
}

/// Reads CSV with a header; unknown columns are passed over.
fn parse_columns(source: &str) -> Result<Vec<MeasuredResult>, String> {
    let mut lines = source.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let Some((_, header)) = lines.next() else { return Err("1:1: it is empty".to_owned()) };
    let header = split_fields(header);
    let column_index = |name: &str| header.iter().position(|field| field.trim() == name);
    let columns = [column_index("kind"), column_index("name"), column_index("metric"), column_index("mean")];
    let [Some(kind), Some(name), Some(metric), Some(mean)] = columns else {
        return Err(
            "1:1: expected a header with kind, name, metric and mean, as `simulate -o csv` writes it"
                .to_owned(),
        );
    };
    let mut results = Vec::new();
    for (index, line) in lines {
        let cells = split_fields(line);
        let field = |column: usize| cells.get(column).map(|text| text.trim().to_owned()).unwrap_or_default();
        let number = field(mean).parse().ok().filter(|number: &f64| number.is_finite());
        let column = 1 + cells.iter().take(mean).map(|text| text.chars().count() + 1).sum::<usize>();
        let number =
            number.ok_or_else(|| format!("{}:{column}: `{}` is no number", index + 1, field(mean)))?;
        results.push(MeasuredResult {
            kind: field(kind),
            name: field(name),
            metric: field(metric),
            mean: number,
        });
    }
    Ok(results)
}

/// Returns the fields of a line of CSV (RFC 4180; without line breaks in quotes).
fn split_fields(line: &str) -> Vec<String> {
    let mut cells = vec![String::new()];
    let mut quoted = false;
    let mut chars = line.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '"' if quoted && chars.peek() == Some(&'"') => {
                chars.next();
                cells.last_mut().into_iter().for_each(|cell| cell.push('"'));
            }
            '"' => quoted = !quoted,
            ',' if !quoted => cells.push(String::new()),
            c => cells.last_mut().into_iter().for_each(|cell| cell.push(c)),
        }
    }
    cells
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn measurements_are_read_by_the_names_of_their_columns() {
        let results =
            parse_columns("mean,name,kind,metric\n2.5,\"a, \"\"b\"\"\",task,busy\n\n1e-3,c,processor,busy\n")
                .unwrap();
        assert_eq!((results[0].name.as_str(), results[0].mean), ("a, \"b\"", 2.5));
        assert_eq!((results[1].kind.as_str(), results[1].mean), ("processor", 0.001));
        assert!(parse_columns("name,mean\n").unwrap_err().contains("expected a header"));
        assert_eq!(
            parse_columns("kind,name,metric,mean\ntask,t,busy,x").unwrap_err(),
            "2:13: `x` is no number"
        );
    }

    #[test]
    fn errors_are_parts_of_the_true_number() {
        assert_eq!(relative_error(Some(1.1), Some(1.0)).map(|error| (error * 1000.0).round()), Some(100.0));
        assert_eq!(relative_error(Some(1.0), Some(0.0)), None);
    }
}
