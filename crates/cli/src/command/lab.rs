//! `plimsoll lab`: runs experiments unattended and reports which claims their results support.

mod progress;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use clap::Subcommand;
use plimsoll_bench::lab::claim::shown_pair;
use plimsoll_bench::lab::experiment::{Experiment, Mode};
use plimsoll_bench::lab::report::{self, Report};
use plimsoll_bench::lab::runner::{Order, Runner};
use plimsoll_bench::lab::{Tie, Trouble, compare, library, plan};
use serde_json::json;

use super::demo::children;
use super::{Exit, Failure, Globals};
use crate::config::{Problem, Problems, Source};
use crate::control::text::{Cell, Tone, plain, table};
use crate::picker;
use progress::{Progress, short};

/// Run experiments and report which claims they bear out
///
/// An experiment is a TOML file: servers, balancer, load, what is varied, what goes wrong, and what the results
/// must satisfy. Those of `lab list` come with the program; any other is named by its path.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show the experiments that come with the program
    List,
    /// Run an experiment and write its report; exit code 1 if a claim fails
    Run(Run),
    /// Write the reports of runs again from what they left, without running anything
    Report(Select),
    /// Show where two runs differ by more than their confidence intervals
    Compare(Compare),
    /// Become another program that ends when its parent does
    #[command(hide = true)]
    Tie(TieArgs),
}

#[derive(clap::Args, Debug)]
struct Run {
    /// An experiment of `lab list`, or the path of a file
    #[arg(value_name = "NAME")]
    name: String,

    /// Fewer levels and shorter points, for minutes; the default
    #[arg(long, conflicts_with = "full")]
    quick: bool,

    /// All levels, long points
    #[arg(long)]
    full: bool,

    /// Keep the valid points that an earlier run has finished with the same experiment and binary
    #[arg(long)]
    resume: bool,

    #[command(flatten)]
    out: Out,
}

#[derive(clap::Args, Debug)]
struct Select {
    /// Experiments [default: all that have been run]
    #[arg(value_name = "NAME")]
    names: Vec<String>,

    #[command(flatten)]
    out: Out,
}

#[derive(clap::Args, Debug)]
struct Compare {
    /// Folder of a run, such as plimsoll-lab/l3b-quick
    a: PathBuf,

    /// Folder of another
    b: PathBuf,
}

#[derive(clap::Args, Debug)]
struct Out {
    /// Where runs are kept, a folder for each experiment
    #[arg(long, value_name = "DIR", default_value = "plimsoll-lab")]
    out: PathBuf,
}

#[derive(clap::Args, Debug)]
struct TieArgs {
    /// Process id
    parent: String,
    /// What to become
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<String>,
}

pub(super) fn run(args: &Args, globals: &Globals) -> Result<ExitCode, Failure> {
    match &args.command {
        Command::List => list(globals),
        Command::Run(args) => start(args, globals),
        Command::Report(args) => again(args, globals),
        Command::Compare(args) => side_by_side(args, globals),
        Command::Tie(args) => match &args.command[..] {
            [program, arguments @ ..] => {
                Err(children::become_program(&args.parent, program.as_ref(), arguments))
            }
            [] => Err(Failure::new(Exit::Usage, "nothing to become")),
        },
    }
}

fn list(globals: &Globals) -> Result<ExitCode, Failure> {
    let mut rows = vec![head(&["NAME", "QUICK", "FULL", "WHAT"])];
    let mut values = Vec::new();
    for (name, text) in library::ALL {
        let experiment = parse(name, text)?;
        let time = |mode| {
            let points = plan::points(&experiment, mode);
            (points.len(), plan::budget(&experiment, mode, &points))
        };
        let ((quick, soon), (full, later)) = (time(Mode::Quick), time(Mode::Full));
        let part = |points: usize, time| format!("{points} points, {}", short(time));
        rows.push(vec![
            Cell::text(name),
            Cell::text(&part(quick, soon)),
            Cell::text(&part(full, later)),
            Cell::text(&experiment.title),
        ]);
        values.push(json!({
            "name": name, "title": experiment.title, "paper": experiment.paper, "claims": experiment.claims.len(),
            "quick": { "points": quick, "seconds": soon.as_secs() }, "full": { "points": full, "seconds": later.as_secs() },
        }));
    }
    globals.show(&values, || table(&rows, globals.color()))?;
    Ok(ExitCode::SUCCESS)
}

fn start(args: &Run, globals: &Globals) -> Result<ExitCode, Failure> {
    let (name, text) = read(&args.name)?;
    let experiment = parse(&args.name, &text)?;
    let mode = if args.full { Mode::Full } else { Mode::Quick };
    let program = std::env::current_exe().map_err(Failure::failed)?;
    let arguments = ["lab", "tie", &std::process::id().to_string()].map(Into::into).to_vec();
    let tie = Tie { program, arguments, picker: picker::open };
    // Processes have their folder as their working directory, so that its name must not depend on the current
    // one.
    let folder = std::path::absolute(&args.out.out).map_err(Failure::failed)?;
    let folder = folder.join(format!("{name}-{}", mode.name()));
    let order = Order {
        name: name.clone(),
        text,
        experiment,
        mode,
        resume: args.resume,
        folder: folder.clone(),
        tie,
        program: env!("CARGO_PKG_VERSION").to_owned(),
    };
    let runner = Runner::new(order).map_err(failure)?;
    let budget = runner.budget();
    let skipped = if budget.done > 0 { format!(", {} of them done", budget.done) } else { String::new() };
    globals.say(&format!(
        "{name} ({}): {} points{skipped}, about {}; into {}\n",
        mode.name(),
        budget.points,
        short(budget.time),
        folder.display()
    ));
    let mut progress = Progress::new(globals)?;
    let outcome = runner.run(&mut progress);
    progress.end();
    outcome.map_err(failure)?;
    let report = report::write(&folder).map_err(failure)?;
    tell(&[report], globals)
}

fn again(args: &Select, globals: &Globals) -> Result<ExitCode, Failure> {
    let mut folders = Vec::new();
    for entry in std::fs::read_dir(&args.out.out).into_iter().flatten() {
        let path = entry.map_err(Failure::failed)?.path();
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let length = name.strip_suffix("-quick").or_else(|| name.strip_suffix("-full"));
        let base = length.unwrap_or(&name);
        // A folder that was moved aside has a number at the end.
        let wanted = (args.names.is_empty() && length.is_some())
            || args.names.iter().any(|asked| asked == base || *asked == name);
        if wanted && path.join("run.json").exists() {
            folders.push(path);
        }
    }
    folders.sort();
    if folders.is_empty() {
        let out = args.out.out.display();
        return Err(Failure::new(
            Exit::Usage,
            format_args!("no such run in {out}; name the folder with --out"),
        ));
    }
    // A damaged result does not keep the others from being reported.
    let mut reports = Vec::new();
    let mut damaged = false;
    for folder in &folders {
        match report::write(folder) {
            Ok(report) => reports.push(report),
            Err(trouble) => {
                damaged = true;
                globals.say(&format!(
                    "{}: {}\n",
                    plain(&folder.display().to_string()),
                    plain(&trouble.to_string())
                ));
            }
        }
    }
    let code = tell(&reports, globals)?;
    Ok(if damaged { ExitCode::FAILURE } else { code })
}

fn side_by_side(args: &Compare, globals: &Globals) -> Result<ExitCode, Failure> {
    let pairs = compare::compare(&args.a, &args.b).map_err(failure)?;
    let rows = || {
        let row = |pair: &compare::Pair| {
            let tone = if pair.apart { Tone::Fair } else { Tone::Plain };
            vec![
                Cell::text(&pair.point),
                Cell::text(pair.metric),
                Cell::text(&shown_pair(pair.a)),
                Cell::text(&shown_pair(pair.b)),
                Cell::text(&format!("{:+.1} %", (pair.ratio - 1.0) * 100.0)).tone(tone),
                Cell::text(if pair.apart { "differ" } else { "" }),
            ]
        };
        let first = head(&["POINT", "METRIC", "A", "B", "CHANGE", ""]);
        let rows: Vec<Vec<Cell>> = std::iter::once(first).chain(pairs.iter().map(row)).collect();
        table(&rows, globals.color())
    };
    globals.show(&pairs, rows)?;
    Ok(ExitCode::SUCCESS)
}

/// Shows every claim and the paths of the pages; exit code 1 if one fails.
fn tell(reports: &[Report], globals: &Globals) -> Result<ExitCode, Failure> {
    globals.show(&reports, || {
        let mut rows = vec![head(&["", "EXPERIMENT", "CLAIM"])];
        for report in reports {
            for claim in &report.claims {
                let (word, tone) = match (claim.pass, claim.decided, claim.required) {
                    (true, ..) => ("pass", Tone::Good),
                    (false, false, _) => ("not decided", Tone::Fair),
                    (false, true, true) => ("FAIL", Tone::Bad),
                    (false, true, false) => ("differs", Tone::Fair),
                };
                rows.push(vec![
                    Cell::text(word).tone(tone),
                    Cell::text(&format!("{} ({})", report.name, report.mode)),
                    Cell::text(&claim.says),
                ]);
            }
        }
        table(&rows, globals.color())
    })?;
    for report in reports {
        if let Some(why) = &report.skipped {
            let (name, why) = (plain(&report.name), plain(why));
            globals.insist(&format!("{name}: SKIPPED, nothing was run and no claim is decided: {why}\n"));
        }
        for claim in report.claims.iter().filter(|claim| claim.decided && !claim.pass) {
            let numbers: Vec<String> = claim.numbers.iter().map(|number| plain(number)).collect();
            let (name, says) = (plain(&report.name), plain(&claim.says));
            globals.say(&format!("{name}: {says}:\n    {}\n", numbers.join("\n    ")));
        }
        for (balancer, why) in &report.missing {
            let (name, balancer, why) = (plain(&report.name), plain(balancer), plain(why));
            globals.insist(&format!("{name}: SKIPPED: {balancer}: {why}\n"));
        }
        for point in &report.invalid {
            globals.say(&format!("{}: INVALID: {point}: the load generator was late\n", report.name));
        }
        if report.skipped.is_none() && report.points.0 < report.points.1 {
            let (have, all) = report.points;
            globals.say(&format!("{}: {have} of {all} points measured; --resume goes on\n", report.name));
        }
        globals.say(&format!("report: {}\n", report.page.display()));
    }
    let good = |report: &Report| report.pass || report.skipped.is_some();
    Ok(if reports.iter().all(good) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Returns the first row of a table.
fn head(words: &[&str]) -> Vec<Cell> {
    words.iter().map(|word| Cell::text(word).tone(Tone::Strong)).collect()
}

/// Returns the name and the text of an experiment.
fn read(name: &str) -> Result<(String, String), Failure> {
    if let Some(text) = library::find(name) {
        return Ok((name.to_owned(), text.to_owned()));
    }
    let path = Path::new(name);
    let text = std::fs::read_to_string(path).map_err(|error| {
        let known: Vec<&str> = library::ALL.iter().map(|(name, _)| *name).collect();
        let known = known.join(", ");
        Failure::new(Exit::Usage, format_args!("cannot read {name}: {error}; name a file, or one of {known}"))
    })?;
    let stem =
        path.file_stem().map_or_else(|| "experiment".to_owned(), |stem| stem.to_string_lossy().into_owned());
    Ok((stem, text))
}

fn parse(name: &str, text: &str) -> Result<Experiment, Failure> {
    Experiment::parse(text).map_err(|wrong| {
        let source = Arc::new(Source::new(name, text));
        let list = wrong.into_iter().map(|wrong| Problem::error(wrong.at, wrong.message)).collect();
        Failure::rendered(Exit::Usage, Problems::new(source, list))
    })
}

fn failure(trouble: Trouble) -> Failure {
    match trouble {
        // The message may end with the last output of a child.
        Trouble::Failed(why) => Failure::failed(plain(&why)),
        Trouble::Refused(why) => Failure::new(Exit::Usage, plain(&why)),
        Trouble::Interrupted => Failure::new(Exit::Interrupted, trouble),
    }
}
