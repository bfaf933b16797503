//! `plimsoll lab`: runs experiments unattended and reports which claims their results support.

mod progress;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use clap::Subcommand;
use plimsoll_bench::lab::claim::format_interval;
use plimsoll_bench::lab::experiment::{Experiment, RunLength};
use plimsoll_bench::lab::report::{self, RunReport};
use plimsoll_bench::lab::runner::{RunParameters, Runner};
use plimsoll_bench::lab::{LabError, ProcessLauncher, compare, library, plan};
use plimsoll_config::{ConfigDiagnostic, ConfigDiagnostics, SourceText};
use serde_json::json;

use super::demo::child_process;
use super::{CliError, CliExitCode, GlobalArgs};
use crate::control::format::{TableCell, TextStyle, sanitize, table};
use crate::lottery_picker;
use progress::{LabProgress, short};

/// Run experiments and report which claims they support
///
/// An experiment is a TOML file: servers, balancer, load, factors, faults, and the conditions that the
/// results must satisfy. Those of `lab list` are built in; any other is named by its path.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: LabCommand,
}

#[derive(Debug, Subcommand)]
enum LabCommand {
    /// List the built-in experiments
    List,
    /// Run an experiment and write its report; exit code 1 if a claim fails
    Run(LabRunArgs),
    /// Write the reports of earlier runs again from their data, without running anything
    Report(LabReportArgs),
    /// Show where two runs differ by more than their confidence intervals
    Compare(LabCompareArgs),
    /// Execute another program that exits when its parent does
    #[command(hide = true)]
    Tie(BoundProcessArgs),
}

#[derive(clap::Args, Debug)]
struct LabRunArgs {
    /// Built-in experiment of `lab list`, or the path of a file
    #[arg(value_name = "NAME")]
    name: String,

    /// Fewer levels and shorter points, in minutes (the default)
    #[arg(long, conflicts_with = "full")]
    quick: bool,

    /// All levels and long points
    #[arg(long)]
    full: bool,

    /// Keep the valid points of an earlier run of the same experiment with the same binary
    #[arg(long)]
    resume: bool,

    #[command(flatten)]
    out: LabOutputArgs,
}

#[derive(clap::Args, Debug)]
struct LabReportArgs {
    /// Experiments [default: all that have been run]
    #[arg(value_name = "NAME")]
    names: Vec<String>,

    #[command(flatten)]
    out: LabOutputArgs,
}

#[derive(clap::Args, Debug)]
struct LabCompareArgs {
    /// Folder of a run, such as plimsoll-lab/l3b-quick
    a: PathBuf,

    /// Folder of the other run
    b: PathBuf,
}

#[derive(clap::Args, Debug)]
struct LabOutputArgs {
    /// Folder of the runs, with one folder per experiment
    #[arg(long, value_name = "DIR", default_value = "plimsoll-lab")]
    out: PathBuf,
}

#[derive(clap::Args, Debug)]
struct BoundProcessArgs {
    /// Process id of the parent
    parent: String,
    /// Command line to execute
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<String>,
}

pub(super) fn run(args: &Args, globals: &GlobalArgs) -> Result<ExitCode, CliError> {
    match &args.command {
        LabCommand::List => list_experiments(globals),
        LabCommand::Run(args) => start_run(args, globals),
        LabCommand::Report(args) => rebuild_reports(args, globals),
        LabCommand::Compare(args) => compare_runs(args, globals),
        LabCommand::Tie(args) => match &args.command[..] {
            [program, arguments @ ..] => {
                Err(child_process::exec_program(&args.parent, program.as_ref(), arguments))
            }
            [] => Err(CliError::new(CliExitCode::Usage, "nothing to become")),
        },
    }
}

fn list_experiments(globals: &GlobalArgs) -> Result<ExitCode, CliError> {
    let mut rows = vec![header_row(&["NAME", "QUICK", "FULL", "WHAT"])];
    let mut values = Vec::new();
    for (name, text) in library::EXPERIMENTS {
        let experiment = parse_experiment(name, text)?;
        let cost = |mode| {
            let points = plan::points(&experiment, mode);
            (points.len(), plan::estimated_time(&experiment, mode, &points))
        };
        let ((quick, quick_time), (full, full_time)) = (cost(RunLength::Quick), cost(RunLength::Full));
        let cell_text = |points: usize, time| format!("{points} points, {}", short(time));
        rows.push(vec![
            TableCell::text(name),
            TableCell::text(&cell_text(quick, quick_time)),
            TableCell::text(&cell_text(full, full_time)),
            TableCell::text(&experiment.title),
        ]);
        values.push(json!({
            "name": name, "title": experiment.title,
            "paper": experiment.paper, "claims": experiment.claims.len(),
            "quick": { "points": quick, "seconds": quick_time.as_secs() },
            "full": { "points": full, "seconds": full_time.as_secs() },
        }));
    }
    globals.print_result(&values, || table(&rows, globals.stdout_has_color()))?;
    Ok(ExitCode::SUCCESS)
}

fn start_run(args: &LabRunArgs, globals: &GlobalArgs) -> Result<ExitCode, CliError> {
    let (name, text) = read_experiment(&args.name)?;
    let experiment = parse_experiment(&args.name, &text)?;
    let mode = if args.full { RunLength::Full } else { RunLength::Quick };
    let program = std::env::current_exe().map_err(CliError::failed)?;
    let arguments = ["lab", "tie", &std::process::id().to_string()].map(Into::into).to_vec();
    let launcher = ProcessLauncher { program, arguments, open_picker: lottery_picker::open };
    // Processes have their folder as their working directory, so that its name must not depend on the current
    // one.
    let folder = std::path::absolute(&args.out.out).map_err(CliError::failed)?;
    let folder = folder.join(format!("{name}-{}", mode.name()));
    let parameters = RunParameters {
        name: name.clone(),
        text,
        experiment,
        mode,
        resume: args.resume,
        folder: folder.clone(),
        launcher,
        program_version: env!("CARGO_PKG_VERSION").to_owned(),
    };
    let runner = Runner::new(parameters).map_err(lab_failure)?;
    let budget = runner.budget();
    let skipped = if budget.done > 0 { format!(", {} of them done", budget.done) } else { String::new() };
    globals.print_message(&format!(
        "{name} ({}): {} points{skipped}, about {}; into {}\n",
        mode.name(),
        budget.points,
        short(budget.time),
        folder.display()
    ));
    let mut progress = LabProgress::new(globals)?;
    let outcome = runner.run(&mut progress);
    progress.end();
    outcome.map_err(lab_failure)?;
    let report = report::write(&folder).map_err(lab_failure)?;
    print_claims(&[report], globals)
}

fn rebuild_reports(args: &LabReportArgs, globals: &GlobalArgs) -> Result<ExitCode, CliError> {
    let mut folders = Vec::new();
    for entry in std::fs::read_dir(&args.out.out).into_iter().flatten() {
        let path = entry.map_err(CliError::failed)?.path();
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let stripped = name.strip_suffix("-quick").or_else(|| name.strip_suffix("-full"));
        let base = stripped.unwrap_or(&name);
        // A folder that was moved aside has a number at the end.
        let is_selected = (args.names.is_empty() && stripped.is_some())
            || args.names.iter().any(|requested| requested == base || *requested == name);
        if is_selected && path.join("run.json").exists() {
            folders.push(path);
        }
    }
    folders.sort();
    if folders.is_empty() {
        let out = args.out.out.display();
        return Err(CliError::new(
            CliExitCode::Usage,
            format_args!("no such run in {out}; name the folder with --out"),
        ));
    }
    // A damaged result does not keep the others from being reported.
    let mut reports = Vec::new();
    let mut damaged = false;
    for folder in &folders {
        match report::write(folder) {
            Ok(report) => reports.push(report),
            Err(error) => {
                damaged = true;
                globals.print_message(&format!(
                    "{}: {}\n",
                    sanitize(&folder.display().to_string()),
                    sanitize(&error.to_string())
                ));
            }
        }
    }
    let code = print_claims(&reports, globals)?;
    Ok(if damaged { ExitCode::FAILURE } else { code })
}

fn compare_runs(args: &LabCompareArgs, globals: &GlobalArgs) -> Result<ExitCode, CliError> {
    let pairs = compare::compare(&args.a, &args.b).map_err(lab_failure)?;
    let render = || {
        let row = |pair: &compare::ComparedNumber| {
            let style = if pair.apart { TextStyle::Fair } else { TextStyle::Plain };
            vec![
                TableCell::text(&pair.point),
                TableCell::text(pair.metric),
                TableCell::text(&format_interval(pair.a)),
                TableCell::text(&format_interval(pair.b)),
                TableCell::text(&format!("{:+.1} %", (pair.ratio - 1.0) * 100.0)).style(style),
                TableCell::text(if pair.apart { "differ" } else { "" }),
            ]
        };
        let header = header_row(&["POINT", "METRIC", "A", "B", "CHANGE", ""]);
        let rows: Vec<Vec<TableCell>> = std::iter::once(header).chain(pairs.iter().map(row)).collect();
        table(&rows, globals.stdout_has_color())
    };
    globals.print_result(&pairs, render)?;
    Ok(ExitCode::SUCCESS)
}

/// Shows every claim and the paths of the pages; exit code 1 if one fails.
fn print_claims(reports: &[RunReport], globals: &GlobalArgs) -> Result<ExitCode, CliError> {
    globals.print_result(&reports, || {
        let mut rows = vec![header_row(&["", "EXPERIMENT", "CLAIM"])];
        for report in reports {
            for claim in &report.claims {
                let (label, style) = match (claim.pass, claim.decided, claim.required) {
                    (true, ..) => ("pass", TextStyle::Good),
                    (false, false, _) => ("not decided", TextStyle::Fair),
                    (false, true, true) => ("FAIL", TextStyle::Bad),
                    (false, true, false) => ("differs", TextStyle::Fair),
                };
                rows.push(vec![
                    TableCell::text(label).style(style),
                    TableCell::text(&format!("{} ({})", report.name, report.mode)),
                    TableCell::text(&claim.says),
                ]);
            }
        }
        table(&rows, globals.stdout_has_color())
    })?;
    for report in reports {
        if let Some(reason) = &report.skipped {
            let (name, reason) = (sanitize(&report.name), sanitize(reason));
            globals.print_always(&format!(
                "{name}: SKIPPED, nothing was run and no claim is decided: {reason}\n"
            ));
        }
        for claim in report.claims.iter().filter(|claim| claim.decided && !claim.pass) {
            let numbers: Vec<String> = claim.numbers.iter().map(|number| sanitize(number)).collect();
            let (name, claim_text) = (sanitize(&report.name), sanitize(&claim.says));
            globals.print_message(&format!("{name}: {claim_text}:\n    {}\n", numbers.join("\n    ")));
        }
        for (balancer, reason) in &report.missing {
            let (name, balancer, reason) = (sanitize(&report.name), sanitize(balancer), sanitize(reason));
            globals.print_always(&format!("{name}: SKIPPED: {balancer}: {reason}\n"));
        }
        for point in &report.invalid {
            globals
                .print_message(&format!("{}: INVALID: {point}: the load generator was late\n", report.name));
        }
        if report.skipped.is_none() && report.points.0 < report.points.1 {
            let (measured, total) = report.points;
            globals.print_message(&format!(
                "{}: {measured} of {total} points measured; --resume goes on\n",
                report.name
            ));
        }
        globals.print_message(&format!("report: {}\n", report.page.display()));
    }
    let is_accepted = |report: &RunReport| report.pass || report.skipped.is_some();
    Ok(if reports.iter().all(is_accepted) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Returns the first row of a table.
fn header_row(names: &[&str]) -> Vec<TableCell> {
    names.iter().map(|name| TableCell::text(name).style(TextStyle::Strong)).collect()
}

/// Returns the name and the text of an experiment.
fn read_experiment(name: &str) -> Result<(String, String), CliError> {
    if let Some(text) = library::find_experiment(name) {
        return Ok((name.to_owned(), text.to_owned()));
    }
    let path = Path::new(name);
    let text = std::fs::read_to_string(path).map_err(|error| {
        let names: Vec<&str> = library::EXPERIMENTS.iter().map(|(name, _)| *name).collect();
        let names = names.join(", ");
        CliError::new(
            CliExitCode::Usage,
            format_args!("cannot read {name}: {error}; name a file, or one of {names}"),
        )
    })?;
    let stem =
        path.file_stem().map_or_else(|| "experiment".to_owned(), |stem| stem.to_string_lossy().into_owned());
    Ok((stem, text))
}

fn parse_experiment(name: &str, text: &str) -> Result<Experiment, CliError> {
    Experiment::parse(text).map_err(|errors| {
        let source = Arc::new(SourceText::new(name, text));
        let diagnostics =
            errors.into_iter().map(|error| ConfigDiagnostic::error(error.span, error.message)).collect();
        CliError::rendered(CliExitCode::Usage, ConfigDiagnostics::new(source, diagnostics))
    })
}

fn lab_failure(error: LabError) -> CliError {
    match error {
        // The message may end with the last output of a child.
        LabError::Failed(reason) => CliError::failed(sanitize(&reason)),
        LabError::Refused(reason) => CliError::new(CliExitCode::Usage, sanitize(&reason)),
        LabError::Interrupted => CliError::new(CliExitCode::Interrupted, error),
    }
}
