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

use super::{ModelArgs, ModelText, print, short, text};
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
    let own = ModelText::open(&args.which.file)?;
    let fixed = &args.which.set;
    let base = own.read(fixed)?;
    own.print_left_out(&base, globals);
    let make = |set: &[(String, f64)]| -> Result<Model, String> {
        let all: Vec<(String, f64)> = fixed.iter().chain(set).cloned().collect();
        own.read(&all).map(|read| read.model).map_err(|why| why.one_line().to_owned())
    };
    let free = free_parameters(args, &own, &make)?;
    let names: Vec<String> = free.iter().map(|(name, _)| name.clone()).collect();
    let file = config::name_of(&args.measured);
    let wrong = |trouble: InputError| CliError::new(CliExitCode::Usage, format_args!("{file}:{trouble}"));
    let measured = interpret_records(&measurements(&args.measured)?, &make, &names).map_err(wrong)?;
    let left_out = match args.method {
        FitMethod::Solve => print::print_left_out(std::iter::once(&base.model), globals),
        FitMethod::Plan => Vec::new(),
    };
    for note in &measured.notes {
        globals.print_message(&format!("{file}: {note}\n"));
    }
    let by_chance = |model: &Model, row: usize| -> Option<ModelResults> {
        let effort = SimulationEffort {
            seed: args.seed.wrapping_add(row as u64),
            events: args.events,
            precision: 1e-3,
        };
        simulate(model, &effort).ok()
    };
    let found = match args.method {
        FitMethod::Plan => fit(&free, &measured.rows, &make, Some(&by_chance)),
        FitMethod::Solve => fit(&free, &measured.rows, &make, None),
    };
    let found = found.map_err(wrong)?;
    let values: Vec<(String, f64)> =
        found.parameters.iter().map(|own| (own.name.clone(), own.value)).collect();
    let model = make(&values).map_err(|why| CliError::new(CliExitCode::Usage, why))?;
    if let Some(path) = &args.write {
        let is_text = path.extension().is_some_and(|extension| extension == "lqn");
        let text = if is_text { lqn(&model) } else { lqnx(&model) };
        let text = text.map_err(|why| CliError::new(CliExitCode::Usage, why))?;
        let name = config::name_of(path);
        fs::write(path, text)
            .map_err(|error| CliError::failed(format_args!("cannot write {name}: {error}")))?;
        globals.print_message(&format!("{name}: the model with what was found\n"));
    }
    let unwritable = |why| CliError::new(CliExitCode::Usage, why);
    match globals.output {
        OutputFormat::Lqn => output::write_stdout(&lqn(&model).map_err(unwritable)?)?,
        OutputFormat::Lqnx => output::write_stdout(&lqnx(&model).map_err(unwritable)?)?,
        OutputFormat::Lqxo => {
            let (results, how) = solve(&model);
            let origin = ResultOrigin {
                program: "plimsoll model fit",
                is_accurate: how.converged,
                convergence: how.residual,
                iterations: u64::from(how.iterations),
            };
            output::write_stdout(&lqxo(&model, &results, &origin).map_err(unwritable)?)?;
        }
        _ => {
            let json = json!({ "schema": 1, "fit": found, "left_out": left_out });
            globals.print_result(&json, || render(&found, globals.stdout_has_color()))?;
        }
    }
    warn(&found, globals);
    Ok(ExitCode::SUCCESS)
}

/// Returns the names to fit, and the values from which the search begins.
fn free_parameters(
    args: &Args,
    own: &ModelText,
    make: &ModelFactory<'_>,
) -> Result<Vec<(String, f64)>, CliError> {
    let base = own.read(&args.which.set)?;
    let mut names: Vec<String> = Vec::new();
    for name in &args.free {
        let name = name.trim().trim_start_matches('$').to_owned();
        if !names.contains(&name) {
            names.push(name);
        }
    }
    if names.is_empty() {
        let fixed = |name: &String| args.which.set.iter().any(|(own, _)| own == name);
        let all = default_parameters(&base.parameters, make)
            .map_err(|why| CliError::new(CliExitCode::Usage, why))?;
        names = all.into_iter().filter(|name| !fixed(name)).collect();
        if names.is_empty() {
            return Err(CliError::new(
                CliExitCode::Usage,
                "the model has no demand above 0: name what is to be found, --free NAME",
            ));
        }
    }
    let value = |name: String| -> Result<(String, f64), CliError> {
        let set = args.which.set.iter().rev().find(|(own, _)| *own == name).map(|(_, value)| *value);
        let value = set.map_or_else(|| own.value(&base, &name), Ok)?;
        Ok((name, value))
    };
    names.into_iter().map(value).collect()
}

fn measurements(path: &Path) -> Result<Vec<MeasurementRecord>, CliError> {
    let name = config::name_of(path);
    let source = text(path)
        .map_err(|error| CliError::new(CliExitCode::Usage, format_args!("cannot read {name}: {error}")))?;
    let found = if source.trim_start_matches('\u{feff}').trim_start().starts_with('<') {
        let field = |own: plimsoll_lqn::read::MeasuredResult| plimsoll_lqn::fit::MeasuredField {
            name: format!("{}.{}.{}", own.kind, own.name, own.metric),
            value: own.mean,
            line: 1,
            column: 1,
        };
        read_results(&source).map(|all| vec![all.into_iter().map(field).collect()])
    } else {
        parse_records(&source)
    };
    found.map_err(|trouble| CliError::new(CliExitCode::Usage, format_args!("{name}:{trouble}")))
}

/// Returns the changes in words: `get.demand (+10 %), put.demand (-7 %)`
fn parts(doubt: &UnidentifiedCombination) -> String {
    let each = doubt.together.iter().map(|(name, factor)| format!("{name} {:+.0} %", 100.0 * (factor - 1.0)));
    each.collect::<Vec<_>>().join(", ")
}

fn warn(found: &FitResult, globals: &GlobalArgs) {
    for doubt in &found.doubts {
        let what = match doubt.together.as_slice() {
            [(name, _)] => format!("`{name}` makes hardly a difference to what was measured"),
            _ => format!("the measurements hardly change with these together: {}", parts(doubt)),
        };
        let measure = doubt.measure.iter().map(|hint| {
            let at: Vec<String> = hint.at.iter().map(|(name, value)| format!("{name} = {value}")).collect();
            let at = if at.is_empty() { String::new() } else { format!(" at {}", at.join(", ")) };
            format!("{} of {} {}{at} ({:.0} %)", hint.metric, hint.kind, hint.name, 100.0 * hint.change)
        });
        let measure = measure.collect::<Vec<_>>().join("; ");
        let advice = if measure.is_empty() {
            "nothing that the model can say at these loads tells more: leave one out of --free".to_owned()
        } else {
            format!("what would tell, and by how much it changes: {measure}")
        };
        globals.print_always(&format!("warning: {what}; {advice}\n"));
    }
    for own in &found.parameters {
        if let Some([from, to]) = own.interval
            && from <= 0.0
        {
            let (name, most) = (&own.name, short(to));
            globals.print_always(&format!(
                "warning: the measurements do not tell `{name}` from 0: it is {most} at most\n"
            ));
        }
    }
    if found.excess > 1.7 {
        globals.print_always(&format!(
            "warning: measurements are {:.1} times as far from the model as their intervals allow: it is \
             another system, or \
             they are correlated; intervals are wider for it\n",
            found.excess
        ));
    }
    if found.error.is_some_and(|error| error > 0.1) {
        globals.print_always(&format!(
            "warning: the model fits badly: it is {:.0} % off what was measured\n",
            100.0 * found.error.unwrap_or_default()
        ));
    }
    if found.freedom == 0 && found.parameters.iter().all(|own| own.interval.is_none()) {
        globals.print_always(
            "warning: no intervals: there are no more measurements than parameters, and \
            they have none of their own\n",
        );
    }
    if !found.converged {
        globals.print_always("warning: the search came to no end: give it better guesses with --set\n");
    }
}

fn render(found: &FitResult, color: bool) -> String {
    let strong = |text: &str| TableCell::text(text).tone(TextStyle::Strong);
    let number = |text: &str| TableCell::number(text).tone(TextStyle::Strong);
    let mut rows = vec![vec![
        strong("PARAMETER"),
        number("BEFORE"),
        number("FITTED"),
        number("95 % FROM"),
        number("TO"),
        strong(""),
    ]];
    for own in &found.parameters {
        let interval =
            own.interval.map_or_else(|| ["-".to_owned(), "-".to_owned()], |interval| interval.map(short));
        let [from, to] = interval;
        let dubious =
            found.doubts.iter().any(|doubt| doubt.together.iter().any(|(name, _)| *name == own.name));
        rows.push(vec![
            TableCell::text(&own.name),
            TableCell::number(short(own.before)),
            TableCell::number(short(own.value)),
            TableCell::number(from),
            TableCell::number(to),
            match own.interval {
                _ if dubious => TableCell::text("not told").tone(TextStyle::Bad),
                Some([from, _]) if from <= 0.0 => TableCell::text("may be 0").tone(TextStyle::Fair),
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
    let mut worst: Vec<_> = found.residuals.iter().collect();
    worst.sort_by(|one, other| other.deviations.abs().total_cmp(&one.deviations.abs()));
    for own in worst.iter().take(SHOWN) {
        let at: Vec<String> = own.at.iter().map(|(name, value)| format!("{name} = {value}")).collect();
        let off = if own.measured > 0.0 { 100.0 * (own.fitted / own.measured - 1.0) } else { 0.0 };
        rows.push(vec![
            TableCell::text(own.metric),
            TableCell::text(&own.name),
            TableCell::text(&at.join(", ")),
            TableCell::number(short(own.measured)),
            TableCell::number(short(own.fitted)),
            TableCell::number(format!("{off:+.1} %")),
            TableCell::number(format!("{:+.1}", own.deviations)),
        ]);
    }
    let _ = write!(out, "\n{}", table(&rows, color));
    if worst.len() > SHOWN {
        let _ = writeln!(out, "and {} that fit better", worst.len() - SHOWN);
    }
    let _ =
        write!(out, "\n{} numbers, {} more than parameters they tell", found.residuals.len(), found.freedom);
    if let Some(error) = found.error {
        let _ = write!(out, "; each is {:.2} % off in the mean", 100.0 * error);
    }
    out + "\n"
}

/// The number of values that are shown, those first that fit worst.
const SHOWN: usize = 12;
