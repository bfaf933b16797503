//! The methods to solve a model. A method is a line here.

use std::time::Duration;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use plimsoll_lqn::{
    Model, ModelResults, SimulationEffort, SimulationError, combine_estimates, simulate, solve,
};

use super::plan::{PRECISION, UNLIMITED_EVENTS, budget, simulate_on_cores};
use super::{part, print};
use crate::command::GlobalArgs;

/// A method.
#[derive(Debug)]
pub(super) struct SolveMethod {
    /// The name, which is also that of its command.
    pub(super) name: &'static str,
    description: &'static str,
    /// Whether it uses formulas, which leave some things out.
    uses_formulas: bool,
    solve: fn(&Model, &SolveOptions) -> Result<ModelResults, SimulationError>,
}

/// All methods; the first is the default.
pub(super) const ALL: &[SolveMethod] = &[
    SolveMethod {
        name: PLAN,
        description: "Simulated for --budget on each core and solved, each number weighed from both",
        uses_formulas: false,
        solve: solve_by_plan,
    },
    SolveMethod {
        name: "simulate",
        description: "Events are drawn; numbers have intervals",
        uses_formulas: false,
        solve: |model, options| simulate(model, &options.effort(0.01, 2_000_000)),
    },
    SolveMethod {
        name: "solve",
        description: "By formulas, at once; no intervals",
        uses_formulas: true,
        solve: |model, _| Ok(solve(model).0),
    },
];

const PLAN: &str = "plan";

/// The options of the solution of a model.
#[derive(clap::Args, Debug)]
pub(super) struct SolveOptions {
    /// Solution method
    #[arg(long, value_name = "METHOD", default_value = ALL[0].name, value_parser = parser())]
    pub(super) method: &'static SolveMethod,

    /// Seed of simulations; the same seed gives the same results, and all models that are compared use the
    /// same random numbers
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    seed: u64,

    /// Relative half-width of the interval of every throughput and response time at which a simulation ends
    /// [default: 0.01, of a plan 0.001]
    #[arg(long, value_name = "PART", value_parser = part)]
    precision: Option<f64>,

    /// Approximate maximum number of events of a simulation [default: 2000000, of a plan as many as its
    /// budget allows]
    #[arg(long, value_name = "NUMBER")]
    events: Option<u64>,

    /// Simulation time of a plan on each core
    #[arg(long, value_name = "TIME", default_value = "50ms", value_parser = budget)]
    budget: Duration,
}

impl SolveOptions {
    /// Solves a model by the method that was named.
    pub(super) fn solve(&self, model: &Model) -> Result<ModelResults, SimulationError> {
        self.solve_by(self.method, model)
    }

    /// Returns `true` if simulation and formulas are used together.
    pub(super) fn is_plan(&self) -> bool {
        self.method.name == PLAN
    }

    /// Returns and prints what it leaves out of these models, each once.
    pub(super) fn print_left_out<'m>(
        &self,
        models: impl Iterator<Item = &'m Model>,
        globals: &GlobalArgs,
    ) -> Vec<String> {
        if self.method.uses_formulas { print::print_left_out(models, globals) } else { Vec::new() }
    }

    /// Solves a model by this method.
    pub(super) fn solve_by(
        &self,
        method: &SolveMethod,
        model: &Model,
    ) -> Result<ModelResults, SimulationError> {
        (method.solve)(model, self)
    }

    fn effort(&self, precision: f64, events: u64) -> SimulationEffort {
        SimulationEffort {
            seed: self.seed,
            events: self.events.unwrap_or(events),
            precision: self.precision.unwrap_or(precision),
        }
    }
}

fn solve_by_plan(model: &Model, options: &SolveOptions) -> Result<ModelResults, SimulationError> {
    let (runs, failure) =
        simulate_on_cores(model, &options.effort(PRECISION, UNLIMITED_EVENTS), options.budget);
    // A model that cannot be simulated has no better result by formulas.
    failure.map_or_else(|| Ok(combine_estimates(model, &runs).findings), Err)
}

fn parser() -> impl TypedValueParser<Value = &'static SolveMethod> {
    let names = ALL.iter().map(|method| PossibleValue::new(method.name).help(method.description));
    PossibleValuesParser::new(names)
        .map(|name| ALL.iter().find(|method| method.name == name).unwrap_or(&ALL[0]))
}
