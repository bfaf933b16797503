//! `plimsoll model fit`: the demands of a model, from measurements.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::ValueEnum;
use plimsoll_config as config;
use plimsoll_lqn::fit::{
    FitResult, MeasurementRecord, ModelFactory, UnidentifiedCombination, default_parameters, fit,
    interpret_records, parse_records,
};
use plimsoll_lqn::read::read_results;
use plimsoll_lqn::write::{ResultOrigin, lqn, lqnx, lqxo};
use plimsoll_lqn::{InputError, Model, ModelResults, SimulationEffort, simulate, solve};
use serde_json::json;

use super::{ModelArgs, ModelText, format_short, print, read_text};
use crate::command::{CliError, CliExitCode, GlobalArgs};
use crate::control::format::{TableCell, TextStyle, table};
use crate::output::{self, OutputFormat};

/// Estimate the demands of a model from measurements, with 95 % intervals and a warning about demands that
/// the measurements do not determine
///
/// Measurements are rows of settings (clients, client.threads, web.arrivals ...) and of the values measured
/// there (client.response, web.throughput, core.utilization ...), as CSV, also that of `simulate` and
/// `sweep`, or as JSON; half-widths of 95 % intervals are in NAME.half_width, the weight of a row in weight.
#[derive(clap::Args, Debug)]
pub(super) struct Args {
    #[command(flatten)]
    which: ModelArgs,

    /// File with measurements; - for standard input
    #[arg(long, value_name = "FILE")]
    measured: PathBuf,

    /// Numbers to estimate: parameters of the model ($NAME) and numbers such as get.demand or client.think
    /// [default: all demands]
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    free: Vec<String>,

    /// Solution method during the search
    #[arg(long, value_name = "METHOD", default_value = "plan")]
    method: FitMethod,

    /// Seed of the simulations; the same seed gives the same results
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    seed: u64,

    /// Number of events of each simulation of a row
    #[arg(long, value_name = "NUMBER", default_value_t = 300_000)]
    events: u64,

    /// Output file for the model with the estimates: .lqn, or else LQNX
    #[arg(long, value_name = "FILE")]
    write: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
enum FitMethod {
    /// Formulas, corrected by simulations
    Plan,
    /// Formulas only
    Solve,
}

pub(super) const OUTPUTS: &[OutputFormat] =
    &[OutputFormat::Table, OutputFormat::Json, OutputFormat::Lqxo, OutputFormat::Lqnx, OutputFormat::Lqn];

pub(super) fn run(args: &Args, globals: &GlobalArgs) -> Result<ExitCode, CliError> {
    let model_text = ModelText::open(&args.which.file)?;
    let fixed = &args.which.set;
    let base = model_text.read(fixed)?;
    model_text.print_left_out(&base, globals);
    let build_model = |set: &[(String, f64)]| -> Result<Model, String> {
        let settings: Vec<(String, f64)> = fixed.iter().chain(set).cloned().collect();
        model_text.read(&settings).map(|parsed| parsed.model).map_err(|error| error.one_line().to_owned())
    };
    let free = free_parameters(args, &model_text, &build_model)?;
    let names: Vec<String> = free.iter().map(|(name, _)| name.clone()).collect();
    let file = config::name_of(&args.measured);
    let input_error = |error: InputError| CliError::new(CliExitCode::Usage, format_args!("{file}:{error}"));
    let measured =
        interpret_records(&read_measurements(&args.measured)?, &build_model, &names).map_err(input_error)?;
    let left_out = match args.method {
        FitMethod::Solve => print::print_left_out(std::iter::once(&base.model), globals),
        FitMethod::Plan => Vec::new(),
    };
    for note in &measured.notes {
        globals.print_message(&format!("{file}: {note}\n"));
    }
    let simulate_row = |model: &Model, row: usize| -> Option<ModelResults> {
        let effort = SimulationEffort {
            seed: args.seed.wrapping_add(row as u64),
            events: args.events,
            precision: 1e-3,
        };
        simulate(model, &effort).ok()
    };
    let fit_result = match args.method {
        FitMethod::Plan => fit(&free, &measured.rows, &build_model, Some(&simulate_row)),
        FitMethod::Solve => fit(&free, &measured.rows, &build_model, None),
    };
    let fit_result = fit_result.map_err(input_error)?;
    let values: Vec<(String, f64)> =
        fit_result.parameters.iter().map(|parameter| (parameter.name.clone(), parameter.value)).collect();
    let model = build_model(&values).map_err(|error| CliError::new(CliExitCode::Usage, error))?;
    if let Some(path) = &args.write {
        let is_text = path.extension().is_some_and(|extension| extension == "lqn");
        let text = if is_text { lqn(&model) } else { lqnx(&model) };
        let text = text.map_err(|error| CliError::new(CliExitCode::Usage, error))?;
        let name = config::name_of(path);
        fs::write(path, text)
            .map_err(|error| CliError::failed(format_args!("cannot write {name}: {error}")))?;
        globals.print_message(&format!("{name}: the model with what was found\n"));
    }
    let unwritable = |error| CliError::new(CliExitCode::Usage, error);
    match globals.output {
        OutputFormat::Lqn => output::write_stdout(&lqn(&model).map_err(unwritable)?)?,
        OutputFormat::Lqnx => output::write_stdout(&lqnx(&model).map_err(unwritable)?)?,
        OutputFormat::Lqxo => {
            let (results, convergence) = solve(&model);
            let origin = ResultOrigin {
                program: "plimsoll model fit",
                is_accurate: convergence.converged,
                convergence: convergence.residual,
                iterations: u64::from(convergence.iterations),
            };
            output::write_stdout(&lqxo(&model, &results, &origin).map_err(unwritable)?)?;
        }
        _ => {
            let json = json!({ "schema": 1, "fit": fit_result, "left_out": left_out });
            globals.print_result(&json, || render(&fit_result, globals.stdout_has_color()))?;
        }
    }
    print_warnings(&fit_result, globals);
    Ok(ExitCode::SUCCESS)
}

/// Returns the names to fit, and the values from which the search begins.
fn free_parameters(
    args: &Args,
    model_text: &ModelText,
    build_model: &ModelFactory<'_>,
) -> Result<Vec<(String, f64)>, CliError> {
    let base = model_text.read(&args.which.set)?;
    let mut names: Vec<String> = Vec::new();
    for name in &args.free {
        let name = name.trim().trim_start_matches('$').to_owned();
        if !names.contains(&name) {
            names.push(name);
        }
    }
    if names.is_empty() {
        let is_fixed = |name: &String| args.which.set.iter().any(|(parameter, _)| parameter == name);
        let defaults = default_parameters(&base.parameters, build_model)
            .map_err(|error| CliError::new(CliExitCode::Usage, error))?;
        names = defaults.into_iter().filter(|name| !is_fixed(name)).collect();
        if names.is_empty() {
            return Err(CliError::new(
                CliExitCode::Usage,
                "the model has no demand above 0: name what is to be found, --free NAME",
            ));
        }
    }
    let value = |name: String| -> Result<(String, f64), CliError> {
        let fixed_value = args
            .which
            .set
            .iter()
            .rev()
            .find(|(parameter_name, _)| *parameter_name == name)
            .map(|(_, value)| *value);
        let value = fixed_value.map_or_else(|| model_text.value(&base, &name), Ok)?;
        Ok((name, value))
    };
    names.into_iter().map(value).collect()
}

fn read_measurements(path: &Path) -> Result<Vec<MeasurementRecord>, CliError> {
    let name = config::name_of(path);
    let source = read_text(path)
        .map_err(|error| CliError::new(CliExitCode::Usage, format_args!("cannot read {name}: {error}")))?;
    let records = if source.trim_start_matches('\u{feff}').trim_start().starts_with('<') {
        let field = |result: plimsoll_lqn::read::MeasuredResult| plimsoll_lqn::fit::MeasuredField {
            name: format!("{}.{}.{}", result.kind, result.name, result.metric),
            value: result.mean,
            line: 1,
            column: 1,
        };
        read_results(&source).map(|results| vec![results.into_iter().map(field).collect()])
    } else {
        parse_records(&source)
    };
    records.map_err(|error| CliError::new(CliExitCode::Usage, format_args!("{name}:{error}")))
}

/// Returns the changes in words: `get.demand (+10 %), put.demand (-7 %)`
fn describe_combination(combination: &UnidentifiedCombination) -> String {
    let changes =
        combination.together.iter().map(|(name, factor)| format!("{name} {:+.0} %", 100.0 * (factor - 1.0)));
    changes.collect::<Vec<_>>().join(", ")
}

fn print_warnings(fit_result: &FitResult, globals: &GlobalArgs) {
    for combination in &fit_result.doubts {
        let message = match combination.together.as_slice() {
            [(name, _)] => format!("`{name}` makes hardly a difference to what was measured"),
            _ => format!(
                "the measurements hardly change with these together: {}",
                describe_combination(combination)
            ),
        };
        let suggestions = combination.measure.iter().map(|hint| {
            let conditions: Vec<String> =
                hint.at.iter().map(|(name, value)| format!("{name} = {value}")).collect();
            let conditions =
                if conditions.is_empty() { String::new() } else { format!(" at {}", conditions.join(", ")) };
            format!(
                "{} of {} {}{conditions} ({:.0} %)",
                hint.metric,
                hint.kind,
                hint.name,
                100.0 * hint.change
            )
        });
        let suggestions = suggestions.collect::<Vec<_>>().join("; ");
        let advice = if suggestions.is_empty() {
            "nothing that the model can say at these loads tells more: leave one out of --free".to_owned()
        } else {
            format!("what would tell, and by how much it changes: {suggestions}")
        };
        globals.print_always(&format!("warning: {message}; {advice}\n"));
    }
    for parameter in &fit_result.parameters {
        if let Some([from, to]) = parameter.interval
            && from <= 0.0
        {
            let (name, upper_bound) = (&parameter.name, format_short(to));
            globals.print_always(&format!(
                "warning: the measurements do not tell `{name}` from 0: it is {upper_bound} at most\n"
            ));
        }
    }
    if fit_result.excess > 1.7 {
        globals.print_always(&format!(
            "warning: measurements are {:.1} times as far from the model as their intervals allow: it is \
             another system, or \
             they are correlated; intervals are wider for it\n",
            fit_result.excess
        ));
    }
    if fit_result.error.is_some_and(|error| error > 0.1) {
        globals.print_always(&format!(
            "warning: the model fits badly: it is {:.0} % off what was measured\n",
            100.0 * fit_result.error.unwrap_or_default()
        ));
    }
    if fit_result.freedom == 0 && fit_result.parameters.iter().all(|parameter| parameter.interval.is_none()) {
        globals.print_always(
            "warning: no intervals: there are no more measurements than parameters, and \
            they have none of their own\n",
        );
    }
    if !fit_result.converged {
        globals.print_always("warning: the search came to no end: give it better guesses with --set\n");
    }
}

fn render(fit_result: &FitResult, color: bool) -> String {
    let strong = |text: &str| TableCell::text(text).style(TextStyle::Strong);
    let number = |text: &str| TableCell::number(text).style(TextStyle::Strong);
    let mut rows = vec![vec![
        strong("PARAMETER"),
        number("BEFORE"),
        number("FITTED"),
        number("95 % FROM"),
        number("TO"),
        strong(""),
    ]];
    for parameter in &fit_result.parameters {
        let interval = parameter
            .interval
            .map_or_else(|| ["-".to_owned(), "-".to_owned()], |interval| interval.map(format_short));
        let [from, to] = interval;
        let is_dubious = fit_result
            .doubts
            .iter()
            .any(|combination| combination.together.iter().any(|(name, _)| *name == parameter.name));
        rows.push(vec![
            TableCell::text(&parameter.name),
            TableCell::number(format_short(parameter.before)),
            TableCell::number(format_short(parameter.value)),
            TableCell::number(from),
            TableCell::number(to),
            match parameter.interval {
                _ if is_dubious => TableCell::text("not told").style(TextStyle::Bad),
                Some([from, _]) if from <= 0.0 => TableCell::text("may be 0").style(TextStyle::Fair),
                _ => TableCell::text(""),
            },
        ]);
    }
    let mut out = table(&rows, color);
    let mut rows = vec![vec![
        strong("MEASURED"),
        strong("OF"),
        strong("AT"),
        number("MEASURED"),
        number("FITTED"),
        number("OFF"),
        number("DEVIATIONS"),
    ]];
    let mut residuals: Vec<_> = fit_result.residuals.iter().collect();
    residuals.sort_by(|one, other| other.deviations.abs().total_cmp(&one.deviations.abs()));
    for residual in residuals.iter().take(MAX_SHOWN) {
        let conditions: Vec<String> =
            residual.at.iter().map(|(name, value)| format!("{name} = {value}")).collect();
        let error_percent =
            if residual.measured > 0.0 { 100.0 * (residual.fitted / residual.measured - 1.0) } else { 0.0 };
        rows.push(vec![
            TableCell::text(residual.metric),
            TableCell::text(&residual.name),
            TableCell::text(&conditions.join(", ")),
            TableCell::number(format_short(residual.measured)),
            TableCell::number(format_short(residual.fitted)),
            TableCell::number(format!("{error_percent:+.1} %")),
            TableCell::number(format!("{:+.1}", residual.deviations)),
        ]);
    }
    let _ = write!(out, "\n{}", table(&rows, color));
    if residuals.len() > MAX_SHOWN {
        let _ = writeln!(out, "and {} that fit better", residuals.len() - MAX_SHOWN);
    }
    let _ = write!(
        out,
        "\n{} numbers, {} more than parameters they tell",
        fit_result.residuals.len(),
        fit_result.freedom
    );
    if let Some(error) = fit_result.error {
        let _ = write!(out, "; each is {:.2} % off in the mean", 100.0 * error);
    }
    out + "\n"
}

/// The number of values that are shown, those first that fit worst.
const MAX_SHOWN: usize = 12;
