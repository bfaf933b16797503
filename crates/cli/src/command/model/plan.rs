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

use super::{ModelArgs, format_short, part, print, simulate};
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
    let (runs, failure) = simulate_on_cores(&model, &effort, args.budget);
    let estimate = combine_estimates(&model, &runs);
    let json = json!({
        "schema": 1,
        "seed": args.seed,
        "cores": cores,
        "findings": estimate.findings,
        "simulated": estimate.simulated,
        "solved": estimate.solved,
        "simulated_parts": estimate.simulated_parts,
        "convergence": estimate.convergence,
        "stuck": failure.as_ref().map(ToString::to_string),
        "left_out": plimsoll_lqn::solve::ignored_parts(&model),
    });
    let origin = ResultOrigin {
        program: "plimsoll model plan",
        is_accurate: estimate.convergence.converged,
        convergence: estimate.convergence.residual,
        iterations: u64::from(estimate.convergence.iterations),
    };
    print::print(
        &model,
        &estimate.findings,
        &origin,
        &json,
        || sources_table(&estimate, globals.stdout_has_color()),
        globals,
    )?;
    let left_out = print::print_left_out(std::iter::once(&model), globals);
    let has_unobserved = print::print_unobserved(&estimate.findings, globals);
    if !estimate.convergence.converged {
        globals.print_always("warning: the solver did not converge; what is said is the simulation's\n");
    }
    let events = estimate.simulated.as_ref().map_or(0, |simulated| simulated.events);
    globals.print_message(&format!(
        "{events} events on {} cores, and solved in {} rounds\n",
        runs.len(),
        estimate.convergence.iterations
    ));
    match failure {
        Some(error) if !estimate.convergence.converged => {
            Err(CliError::failed(format_args!("this model can neither be simulated nor solved: {error}")))
        }
        Some(error) => Err(CliError::failed(format_args!(
            "it cannot be simulated to its end, and what is said is the formulas' alone: {error}"
        ))),
        // Limits, which formulas do not have, keep other queues from growing.
        None if estimate.convergence.overloaded && left_out.is_empty() => Err(CliError::failed(
            "more comes from outside than can be served: what waits there grows without end",
        )),
        None if runs.is_empty() && !estimate.convergence.converged => {
            Err(CliError::failed("this model can neither be simulated nor solved"))
        }
        None => Ok(if has_unobserved { ExitCode::FAILURE } else { ExitCode::SUCCESS }),
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
    let deadline = Instant::now() + budget;
    let run_core = |core: usize| {
        let effort = SimulationEffort { seed: effort.seed.wrapping_add(core as u64), ..*effort };
        simulate_while(model, &effort, &mut || Instant::now() < deadline)
    };
    let results: Vec<Result<ModelResults, SimulationError>> = thread::scope(|scope| {
        let handles: Vec<_> = (1..cores()).map(|core| scope.spawn(move || run_core(core))).collect();
        let first_result = run_core(0);
        // A thread that cannot be joined has no numbers.
        std::iter::once(first_result)
            .chain(handles.into_iter().filter_map(|handle| handle.join().ok()))
            .collect()
    });
    let mut failure = None;
    let mut runs = Vec::new();
    for result in results {
        match result {
            Ok(run) => runs.push(run),
            Err(error) => failure = Some(error),
        }
    }
    if failure.is_some() {
        // If one queue grows without end, the other runs only had not come so far.
        runs.clear();
    }
    (runs, failure)
}

/// Returns the sources of the numbers of each task.
fn sources_table(estimate: &CombinedEstimate, color: bool) -> String {
    let Some(simulated) = &estimate.simulated else { return String::new() };
    let heading = |text: &str| TableCell::text(text).style(TextStyle::Strong);
    let number = |text: &str| TableCell::number(text).style(TextStyle::Strong);
    let mut rows = vec![vec![
        heading("SOURCES"),
        number("SIMULATED"),
        number("SOLVED"),
        number("DIFFERENCE"),
        number("OF THE SIMULATION"),
    ]];
    let headline = |task: &TaskResults| task.response.unwrap_or(task.throughput);
    for ((simulated_task, solved_task), simulated_part) in
        simulated.tasks.iter().zip(&estimate.solved.tasks).zip(&estimate.simulated_parts)
    {
        let metric = if simulated_task.response.is_some() { "response" } else { "throughput" };
        let (run_estimate, solved_estimate) = (headline(simulated_task), headline(solved_task));
        let difference = if run_estimate.mean > 0.0 {
            100.0 * (solved_estimate.mean / run_estimate.mean - 1.0)
        } else {
            0.0
        };
        rows.push(vec![
            TableCell::text(&format!("{} {metric}", simulated_task.name)),
            TableCell::number(simulate::format_estimate(&run_estimate)),
            TableCell::number(format_short(solved_estimate.mean)),
            TableCell::number(format!("{difference:+.1} %")),
            TableCell::number(format!("{:.0} %", 100.0 * simulated_part)),
        ]);
    }
    format!("\n{}", table(&rows, color))
}
