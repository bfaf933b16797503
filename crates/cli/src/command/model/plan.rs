//! `plimsoll model plan`: the best answer in little time.

use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use plimsoll_config::TimeSpan;
use plimsoll_lqn::simulate::TaskResults;
use plimsoll_lqn::write::ResultOrigin;
use plimsoll_lqn::{
    CombinedEstimate, Model, ModelResults, SimulationEffort, SimulationError, combine_estimates,
    simulate_while,
};
use serde_json::json;

use super::{ModelArgs, part, print, short, simulate};
use crate::command::{CliError, GlobalArgs};
use crate::control::format::{TableCell, TextStyle, table};

/// Estimate results quickly: solve a model and simulate it on all cores, and combine both by weight
///
/// Each number is shown with the half-width of its 95 % interval. The second table shows for each task the
/// simulated and the solved value, and the weight of the simulation in the result: the narrower its interval,
/// the greater.
#[derive(clap::Args, Debug)]
pub(super) struct Args {
    #[command(flatten)]
    which: ModelArgs,

    /// Simulation time on each core
    #[arg(long, value_name = "TIME", default_value = "50ms", value_parser = budget)]
    budget: Duration,

    /// Relative half-width of the interval of every throughput and response time at which the simulation ends
    /// early
    #[arg(long, value_name = "PART", default_value_t = PRECISION, value_parser = part)]
    precision: f64,

    /// Seed of the first core's simulation; the other cores use the numbers after it
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    seed: u64,
}

/// The number of events of a plan's simulations, which end by time.
pub(super) const UNLIMITED_EVENTS: u64 = u64::MAX / 4;
/// The precision at which they end before.
pub(super) const PRECISION: f64 = 0.001;

pub(super) fn run(args: &Args, globals: &GlobalArgs) -> Result<ExitCode, CliError> {
    let model = args.which.read(globals)?.model;
    let effort = SimulationEffort { seed: args.seed, events: UNLIMITED_EVENTS, precision: args.precision };
    let cores = cores();
    let (runs, stuck) = simulate_on_cores(&model, &effort, args.budget);
    let found = combine_estimates(&model, &runs);
    let json = json!({
        "schema": 1,
        "seed": args.seed,
        "cores": cores,
        "findings": found.findings,
        "simulated": found.simulated,
        "solved": found.solved,
        "simulated_parts": found.simulated_parts,
        "convergence": found.convergence,
        "stuck": stuck.as_ref().map(ToString::to_string),
        "left_out": plimsoll_lqn::solve::ignored_parts(&model),
    });
    let origin = ResultOrigin {
        program: "plimsoll model plan",
        is_accurate: found.convergence.converged,
        convergence: found.convergence.residual,
        iterations: u64::from(found.convergence.iterations),
    };
    print::print(
        &model,
        &found.findings,
        &origin,
        &json,
        || sources(&found, globals.stdout_has_color()),
        globals,
    )?;
    let left_out = print::print_left_out(std::iter::once(&model), globals);
    let unseen = print::print_unobserved(&found.findings, globals);
    if !found.convergence.converged {
        globals.print_always("warning: the solver did not converge; what is said is the simulation's\n");
    }
    let events = found.simulated.as_ref().map_or(0, |simulated| simulated.events);
    globals.print_message(&format!(
        "{events} events on {} cores, and solved in {} rounds\n",
        runs.len(),
        found.convergence.iterations
    ));
    match stuck {
        Some(why) if !found.convergence.converged => {
            Err(CliError::failed(format_args!("this model can neither be simulated nor solved: {why}")))
        }
        Some(why) => Err(CliError::failed(format_args!(
            "it cannot be simulated to its end, and what is said is the formulas' alone: {why}"
        ))),
        // Limits, which formulas do not have, keep other queues from growing.
        None if found.convergence.overloaded && left_out.is_empty() => Err(CliError::failed(
            "more comes from outside than can be served: what waits there grows without end",
        )),
        None if runs.is_empty() && !found.convergence.converged => {
            Err(CliError::failed("this model can neither be simulated nor solved"))
        }
        None => Ok(if unseen { ExitCode::FAILURE } else { ExitCode::SUCCESS }),
    }
}

/// Parses a duration: `50ms`
pub(super) fn budget(text: &str) -> Result<Duration, String> {
    text.parse::<TimeSpan>().map(|span| span.0)
}

/// Returns the number of available cores.
pub(super) fn cores() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

/// Simulates on each core, for `budget`; returns the findings, and the reason why a run did not end. The
/// effort's seed is that of the first.
pub(super) fn simulate_on_cores(
    model: &Model,
    effort: &SimulationEffort,
    budget: Duration,
) -> (Vec<ModelResults>, Option<SimulationError>) {
    let until = Instant::now() + budget;
    let one = |core: usize| {
        let effort = SimulationEffort { seed: effort.seed.wrapping_add(core as u64), ..*effort };
        simulate_while(model, &effort, &mut || Instant::now() < until)
    };
    let results: Vec<Result<ModelResults, SimulationError>> = thread::scope(|scope| {
        let others: Vec<_> = (1..cores()).map(|core| scope.spawn(move || one(core))).collect();
        let first = one(0);
        // A thread that cannot be joined has no numbers.
        std::iter::once(first).chain(others.into_iter().filter_map(|other| other.join().ok())).collect()
    });
    let mut stuck = None;
    let mut runs = Vec::new();
    for result in results {
        match result {
            Ok(run) => runs.push(run),
            Err(why) => stuck = Some(why),
        }
    }
    if stuck.is_some() {
        // If one queue grows without end, the other runs only had not come so far.
        runs.clear();
    }
    (runs, stuck)
}

/// Returns the sources of the numbers of each task.
fn sources(plan: &CombinedEstimate, color: bool) -> String {
    let Some(simulated) = &plan.simulated else { return String::new() };
    let heading = |text: &str| TableCell::text(text).tone(TextStyle::Strong);
    let number = |text: &str| TableCell::number(text).tone(TextStyle::Strong);
    let mut rows = vec![vec![
        heading("SOURCES"),
        number("SIMULATED"),
        number("SOLVED"),
        number("DIFFERENCE"),
        number("OF THE SIMULATION"),
    ]];
    let of = |task: &TaskResults| task.response.unwrap_or(task.throughput);
    for ((own, other), part) in simulated.tasks.iter().zip(&plan.solved.tasks).zip(&plan.simulated_parts) {
        let what = if own.response.is_some() { "response" } else { "throughput" };
        let (run, solved) = (of(own), of(other));
        let off = if run.mean > 0.0 { 100.0 * (solved.mean / run.mean - 1.0) } else { 0.0 };
        rows.push(vec![
            TableCell::text(&format!("{} {what}", own.name)),
            TableCell::number(simulate::format_estimate(&run)),
            TableCell::number(short(solved.mean)),
            TableCell::number(format!("{off:+.1} %")),
            TableCell::number(format!("{:.0} %", 100.0 * part)),
        ]);
    }
    format!("\n{}", table(&rows, color))
}
