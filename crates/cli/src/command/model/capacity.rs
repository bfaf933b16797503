//! `plimsoll model capacity`: the largest load at which goals are met.

use std::process::ExitCode;

use plimsoll_lqn::Model;
use plimsoll_lqn::analysis::capacity::{LoadRange, LoadTrial, MissedGoal, PerformanceGoal, find_capacity};
use plimsoll_lqn::analysis::{OverallResults, ResultLine, result_lines};
use serde_json::{Value, json};

use super::solver::SolveOptions;
use super::{ModelArgs, ModelText, format_short};
use crate::command::{CliError, CliExitCode, GlobalArgs};
use crate::control::format::{TableCell, TextStyle, table};
use crate::output::OutputFormat;

/// Find the maximum load at which performance goals are met
///
/// The load is the number of clients, or the rate of external requests; --load selects another number if the
/// model has several. It is doubled until a goal is missed, and then searched for in between. Exit code 1: no
/// load meets the goals.
#[derive(clap::Args, Debug)]
pub(super) struct Args {
    #[command(flatten)]
    which: ModelArgs,

    /// Performance goal: response<0.5, client.p95<2, cpu.utilization<0.8 or throughput>100; if repeated, all
    /// must hold
    #[arg(long, value_name = "GOAL", required = true, value_parser = PerformanceGoal::parse)]
    goal: Vec<PerformanceGoal>,

    /// Quantity that is varied as the load: a parameter, or a number such as client.threads or front.arrivals
    #[arg(long, value_name = "NAME")]
    load: Option<String>,

    /// Minimum load to try [default: 1 for counts, else a 64th of the model's load]
    #[arg(long, value_name = "NUMBER", value_parser = positive)]
    from: Option<f64>,

    /// Maximum load to try [default: 100000 for counts, else 1024 times the model's load]
    #[arg(long, value_name = "NUMBER", value_parser = positive)]
    to: Option<f64>,

    #[command(flatten)]
    how: SolveOptions,
}

pub(super) const OUTPUTS: &[OutputFormat] = &[OutputFormat::Table, OutputFormat::Json];

pub(super) fn run(args: &Args, globals: &GlobalArgs) -> Result<ExitCode, CliError> {
    let text = ModelText::open(&args.which.file)?;
    let parsed = text.read(&args.which.set)?;
    text.print_left_out(&parsed, globals);
    let load = match &args.load {
        Some(name) => name.strip_prefix('$').unwrap_or(name).to_owned(),
        None => default_load(&parsed.model)?,
    };
    let current_load = text.value(&parsed, &load)?;
    let is_count = current_load.fract() == 0.0 && current_load >= 1.0 && !load.ends_with(".arrivals");
    let range = LoadRange {
        from: args.from.unwrap_or(if is_count { 1.0 } else { current_load / 64.0 }),
        to: args.to.unwrap_or(if is_count { 100_000.0 } else { current_load * 1024.0 }),
        is_whole: is_count,
    };
    if !(range.from > 0.0 && range.from <= range.to) {
        return Err(CliError::new(
            CliExitCode::Usage,
            "the least load is above 0 and no more than the most: see --from, --to",
        ));
    }
    let solve = |value: f64| -> Result<_, CliError> {
        let mut set = args.which.set.clone();
        set.retain(|(name, _)| *name != load);
        set.push((load.clone(), value));
        let model = text.read(&set)?.model;
        let results = args.how.solve(&model);
        // A point at which no client finished has no numbers for a goal.
        if let Some(results) = results.as_ref().ok().filter(|results| results.unseen.is_empty()) {
            check_goals(&args.goal, &result_lines(&model, results))?;
        }
        Ok((model, results))
    };
    let left_out = args.how.print_left_out(std::iter::once(&parsed.model), globals);
    let (best, beyond) = find_capacity(range, &args.goal, solve)?;
    let Some(best) = best else {
        let reason = beyond.map(|trial| miss_reason(&args.goal, &trial)).unwrap_or_default();
        let load_text = format!("{load} = {}", range.from);
        return Err(CliError::failed(format_args!("no load keeps the goals: at {load_text} {reason}")));
    };
    let json = json!({
        "schema": 1,
        "method": args.how.method.name,
        "load": load,
        "goals": args.goal.iter().map(|goal| &goal.text).collect::<Vec<_>>(),
        "capacity": best.load,
        "at": trial_json(&args.goal, &best),
        "beyond": beyond.as_ref().map(|trial| trial_json(&args.goal, trial)),
        "left_out": left_out,
    });
    globals.print_result(&json, || {
        render(&load, &args.goal, &best, beyond.as_ref(), globals.stdout_has_color())
    })?;
    Ok(ExitCode::SUCCESS)
}

fn positive(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number: &f64| number.is_finite() && *number > 0.0);
    number.ok_or_else(|| "expected a number above 0".to_owned())
}

/// Returns the default load: the only clients, or the only requests from outside.
fn default_load(model: &Model) -> Result<String, CliError> {
    let clients =
        model.tasks.iter().filter(|task| task.is_client()).map(|task| format!("{}.threads", task.name));
    let open_arrivals = model
        .entries
        .iter()
        .filter(|entry| entry.arrivals > 0.0)
        .map(|entry| format!("{}.arrivals", entry.name));
    let mut loads: Vec<String> = clients.chain(open_arrivals).collect();
    if loads.len() > 1 {
        let names = loads.join(", ");
        return Err(CliError::new(
            CliExitCode::Usage,
            format_args!("the model has several loads; say which with --load: {names}"),
        ));
    }
    loads.pop().ok_or_else(|| CliError::new(CliExitCode::Usage, "the model has neither clients nor arrivals"))
}

/// Checks that every goal is about an existing number.
fn check_goals(goals: &[PerformanceGoal], lines: &[ResultLine]) -> Result<(), CliError> {
    for goal in goals {
        if goal.metric.select(lines).is_empty() {
            let metric = goal.metric.metric;
            let names = lines.iter().filter(|line| line.metric == metric).map(|line| line.name.as_str());
            let names = names.collect::<Vec<_>>().join(", ");
            let message = format!("goal `{}` is about nothing: there is {metric} of {names}", goal.text);
            return Err(CliError::new(CliExitCode::Usage, message));
        }
    }
    Ok(())
}

fn miss_reason(goals: &[PerformanceGoal], trial: &LoadTrial) -> String {
    match &trial.failure {
        Some(MissedGoal::Unsolvable(error)) => error.to_string(),
        Some(MissedGoal::QueueGrows(entry)) => format!("more comes to {entry} than can be served"),
        Some(MissedGoal::NoneFinished(name)) => {
            format!("nothing of {name} came to an end in what was simulated (--budget, --events)")
        }
        Some(MissedGoal::Unmet(goal_index, line)) => {
            let (metric, name, value) = (line.metric, &line.name, format_short(line.value.mean));
            format!("{metric} of {name} is {value}, which misses {}", goals[*goal_index].text)
        }
        None => "every goal is kept".to_owned(),
    }
}

fn trial_json(goals: &[PerformanceGoal], trial: &LoadTrial) -> Value {
    let Ok((model, results)) = &trial.outcome else {
        return json!({ "load": trial.load, "why": miss_reason(goals, trial) });
    };
    let lines = result_lines(model, results);
    json!({
        "load": trial.load,
        "whole": OverallResults::of(model, results),
        "goals": goals.iter().map(|goal| json!({
            "goal": goal.text,
            "kept": goal.metric.select(&lines).iter().all(|line| goal.is_met_by(line.value.mean)),
            "lines": goal.metric.select(&lines),
        })).collect::<Vec<_>>(),
        "why": trial.failure.as_ref().map(|_| miss_reason(goals, trial)),
    })
}

fn render(
    load: &str,
    goals: &[PerformanceGoal],
    best: &LoadTrial,
    beyond: Option<&LoadTrial>,
    color: bool,
) -> String {
    let mut out = format!("{load} = {}\n", format_short(best.load));
    out += &match beyond {
        Some(trial) => format!("at {} {}\n\n", format_short(trial.load), miss_reason(goals, trial)),
        None => "that is the most that was tried (--to); every goal is kept\n\n".to_owned(),
    };
    let strong = |text: &str| TableCell::text(text).style(TextStyle::Strong);
    let number = |text: &str| TableCell::number(text).style(TextStyle::Strong);
    let mut rows = vec![vec![strong("GOAL"), strong("OF"), number("IS"), number("±")]];
    if let Ok((model, results)) = &best.outcome {
        let lines = result_lines(model, results);
        for goal in goals {
            for line in goal.metric.select(&lines) {
                rows.push(vec![
                    TableCell::text(&goal.text),
                    TableCell::text(&line.name),
                    TableCell::number(format_short(line.value.mean)),
                    TableCell::number(format_short(line.value.half_width)),
                ]);
            }
        }
        let overall = OverallResults::of(model, results);
        out += &table(&rows, color);
        out += &format!(
            "\nresponse {}, throughput {}\n",
            format_short(overall.response),
            format_short(overall.throughput)
        );
    }
    out
}
