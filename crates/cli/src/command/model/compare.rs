//! `plimsoll model compare`: the results of every method, and the measurements, side by side.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use plimsoll_config as config;
use plimsoll_lqn::analysis::{ResultLine, result_lines};
use plimsoll_lqn::read::{MeasuredResult, read_results};
use serde_json::{Value, json};

use super::solver::{ALL, SolveOptions};
use super::{ModelArgs, print, quoted, short, text};
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
    let measured = args.measured.as_deref().map(measurements).transpose()?;
    let mut columns: Vec<(&str, Vec<ResultLine>)> = Vec::new();
    let mut stuck: Vec<Value> = Vec::new();
    for method in ALL {
        match args.how.solve_by(method, &model) {
            Ok(found) => {
                print::print_unobserved(&found, globals);
                columns.push((method.name, result_lines(&model, &found)));
            }
            Err(why) => {
                globals.print_always(&format!("warning: {}: {why}\n", method.name));
                stuck.push(json!({ "column": method.name, "why": why.to_string() }));
            }
        }
    }
    let left_out = print::print_left_out(std::iter::once(&model), globals);
    if columns.is_empty() {
        return Err(CliError::failed("no method can solve the model"));
    }
    let (rows, unknown) = rows(&columns, measured.as_deref());
    if rows.is_empty() {
        return Err(CliError::failed("nothing that was measured is in the model"));
    }
    for own in unknown.iter().take(5) {
        globals.print_message(&format!(
            "measured, but not in the model: {} {} {}\n",
            own.kind, own.name, own.metric
        ));
    }
    let mut names: Vec<&str> = columns.iter().map(|(name, _)| *name).collect();
    if measured.is_some() {
        names.push("measured");
    }
    let truth = names.iter().position(|name| *name == "measured");
    let truth = truth.or_else(|| names.iter().position(|name| *name == "simulate")).unwrap_or(0);
    if globals.output == OutputFormat::Csv {
        write_stdout(&csv(&names, &rows))?;
    } else {
        let json = json!({ "schema": 1, "against": names[truth], "rows": document(&names, truth, &rows),
            "errors": summary(&names, truth, &rows), "stuck": stuck, "left_out": left_out });
        globals.print_result(&json, || render(&names, truth, &rows, globals.stdout_has_color()))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the rows, and the measurements of things that the model does not have.
fn rows<'m>(
    columns: &[(&str, Vec<ResultLine>)],
    measured: Option<&'m [MeasuredResult]>,
) -> (Vec<ComparisonRow>, Vec<&'m MeasuredResult>) {
    let mut rows = Vec::new();
    let mut known: Vec<(&str, &str, &str)> = Vec::new();
    for line in columns.iter().flat_map(|(_, lines)| lines) {
        let own = (line.kind, line.name.as_str(), line.metric);
        if known.contains(&own) {
            continue;
        }
        known.push(own);
        let mut values: Vec<Option<f64>> = Vec::new();
        for (_, lines) in columns {
            let same = |other: &&ResultLine| (other.kind, other.name.as_str(), other.metric) == own;
            values.push(lines.iter().find(same).map(|line| line.value.mean));
        }
        if let Some(measured) = measured {
            let same = |other: &&MeasuredResult| {
                (other.kind.as_str(), other.name.as_str(), other.metric.as_str()) == own
            };
            let Some(found) = measured.iter().find(same) else { continue };
            values.push(Some(found.mean));
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
    let absent =
        |own: &&MeasuredResult| !known.contains(&(own.kind.as_str(), own.name.as_str(), own.metric.as_str()));
    (rows, measured.unwrap_or_default().iter().filter(absent).collect())
}

/// Returns the relative error of a value.
fn relative_error(value: Option<f64>, truth: Option<f64>) -> Option<f64> {
    let (value, truth) = (value?, truth?);
    (truth != 0.0).then(|| value / truth - 1.0)
}

/// Returns for each column but the true one the mean and the greatest error by metric, without its sign.
fn summary(names: &[&str], truth: usize, rows: &[ComparisonRow]) -> Vec<Value> {
    let mut all = Vec::new();
    for (column, name) in names.iter().enumerate().filter(|(column, _)| *column != truth) {
        for metric in ["throughput", "response", "busy"] {
            let own = rows.iter().filter(|row| row.metric == metric);
            let errors: Vec<f64> = own
                .filter_map(|row| relative_error(row.values[column], row.values[truth]))
                .map(f64::abs)
                .collect();
            if !errors.is_empty() {
                let mean = errors.iter().sum::<f64>() / errors.len() as f64;
                let worst = errors.iter().copied().fold(0.0, f64::max);
                all.push(json!({
                    "column": name, "metric": metric, "count": errors.len(), "mean": mean, "worst": worst,
                }));
            }
        }
    }
    all
}

fn document(names: &[&str], truth: usize, rows: &[ComparisonRow]) -> Vec<Value> {
    let one = |row: &ComparisonRow| {
        let mut own = json!({ "kind": row.kind, "name": row.name, "metric": row.metric });
        for (column, name) in names.iter().enumerate() {
            own[*name] = json!(row.values[column]);
            if column != truth {
                own[format!("{name}_off")] = json!(relative_error(row.values[column], row.values[truth]));
            }
        }
        own
    };
    rows.iter().map(one).collect()
}

fn csv(names: &[&str], rows: &[ComparisonRow]) -> String {
    let mut out = format!("kind,name,metric,{}\n", names.join(","));
    for row in rows {
        let values = row.values.iter().map(|value| value.map_or_else(String::new, |value| value.to_string()));
        let values = values.collect::<Vec<_>>().join(",");
        let _ = writeln!(out, "{},{},{},{values}", row.kind, quoted(&row.name), row.metric);
    }
    out
}

fn render(names: &[&str], truth: usize, rows: &[ComparisonRow], color: bool) -> String {
    let strong = |text: &str| TableCell::text(text).tone(TextStyle::Strong);
    let number = |text: &str| TableCell::number(text).tone(TextStyle::Strong);
    let mut head = vec![strong("KIND"), strong("NAME"), strong("METRIC")];
    for (column, name) in names.iter().enumerate() {
        head.push(number(&name.to_uppercase()));
        if column != truth {
            head.push(number("OFF"));
        }
    }
    let mut shown = vec![head];
    for row in rows {
        let mut cells =
            vec![TableCell::text(&row.kind), TableCell::text(&row.name), TableCell::text(&row.metric)];
        for (column, value) in row.values.iter().enumerate() {
            cells.push(TableCell::number(value.map_or_else(|| "-".to_owned(), short)));
            if column != truth {
                let off = relative_error(*value, row.values[truth]);
                cells.push(TableCell::number(
                    off.map_or_else(|| "-".to_owned(), |off| format!("{:+.1} %", 100.0 * off)),
                ));
            }
        }
        shown.push(cells);
    }
    let mut out = table(&shown, color);
    for own in summary(names, truth, rows) {
        let percent = |key: &str| 100.0 * own[key].as_f64().unwrap_or_default();
        let _ = write!(
            out,
            "\n{} of {}: off by {:.1} % in the mean, {:.1} % at worst",
            own["metric"].as_str().unwrap_or_default(),
            own["column"].as_str().unwrap_or_default(),
            percent("mean"),
            percent("worst")
        );
    }
    out + if names.len() > 1 { "\n" } else { "" }
}

fn measurements(path: &Path) -> Result<Vec<MeasuredResult>, CliError> {
    let name = config::name_of(path);
    let source = text(path)
        .map_err(|error| CliError::new(CliExitCode::Usage, format_args!("cannot read {name}: {error}")))?;
    let found = if source.trim_start().starts_with(['<', '\u{feff}']) {
        read_results(&source).map_err(|trouble| trouble.to_string())
    } else {
        columns(&source)
    };
    found.map_err(|why| CliError::new(CliExitCode::Usage, format_args!("{name}:{why}")))
}

/// Reads CSV with a header; unknown columns are passed over.
fn columns(source: &str) -> Result<Vec<MeasuredResult>, String> {
    let mut lines = source.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let Some((_, head)) = lines.next() else { return Err("1:1: it is empty".to_owned()) };
    let head = fields(head);
    let place = |name: &str| head.iter().position(|own| own.trim() == name);
    let known = [place("kind"), place("name"), place("metric"), place("mean")];
    let [Some(kind), Some(name), Some(metric), Some(mean)] = known else {
        return Err(
            "1:1: expected a header with kind, name, metric and mean, as `simulate -o csv` writes it"
                .to_owned(),
        );
    };
    let mut all = Vec::new();
    for (at, line) in lines {
        let own = fields(line);
        let field = |place: usize| own.get(place).map(|text| text.trim().to_owned()).unwrap_or_default();
        let number = field(mean).parse().ok().filter(|number: &f64| number.is_finite());
        let column = 1 + own.iter().take(mean).map(|text| text.chars().count() + 1).sum::<usize>();
        let number = number.ok_or_else(|| format!("{}:{column}: `{}` is no number", at + 1, field(mean)))?;
        all.push(MeasuredResult {
            kind: field(kind),
            name: field(name),
            metric: field(metric),
            mean: number,
        });
    }
    Ok(all)
}

/// Returns the fields of a line of CSV (RFC 4180; without line breaks in quotes).
fn fields(line: &str) -> Vec<String> {
    let mut all = vec![String::new()];
    let mut quoted = false;
    let mut rest = line.chars().peekable();
    while let Some(c) = rest.next() {
        match c {
            '"' if quoted && rest.peek() == Some(&'"') => {
                rest.next();
                all.last_mut().into_iter().for_each(|own| own.push('"'));
            }
            '"' => quoted = !quoted,
            ',' if !quoted => all.push(String::new()),
            c => all.last_mut().into_iter().for_each(|own| own.push(c)),
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn measurements_are_read_by_the_names_of_their_columns() {
        let found =
            columns("mean,name,kind,metric\n2.5,\"a, \"\"b\"\"\",task,busy\n\n1e-3,c,processor,busy\n")
                .unwrap();
        assert_eq!((found[0].name.as_str(), found[0].mean), ("a, \"b\"", 2.5));
        assert_eq!((found[1].kind.as_str(), found[1].mean), ("processor", 0.001));
        assert!(columns("name,mean\n").unwrap_err().contains("expected a header"));
        assert_eq!(columns("kind,name,metric,mean\ntask,t,busy,x").unwrap_err(), "2:13: `x` is no number");
    }

    #[test]
    fn errors_are_parts_of_the_true_number() {
        assert_eq!(relative_error(Some(1.1), Some(1.0)).map(|off| (off * 1000.0).round()), Some(100.0));
        assert_eq!(relative_error(Some(1.0), Some(0.0)), None);
    }
}
