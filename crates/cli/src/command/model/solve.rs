//! `plimsoll model solve`: a model, solved by formulas.

use std::process::ExitCode;

use plimsoll_lqn::solve;
use plimsoll_lqn::write::ResultOrigin;
use serde_json::json;

use super::{ModelArgs, print};
use crate::command::{CliError, GlobalArgs};

/// Solve a model by formulas: the results of a simulation in a thousandth of the time, typically within 3 %
///
/// Times are in the unit of the model's demands, throughputs in requests per that unit. Results have no
/// intervals and no percentiles: those come from `simulate`. `plan` shows which results are off, and by how
/// much.
#[derive(clap::Args, Debug)]
pub(super) struct Args {
    #[command(flatten)]
    which: ModelArgs,
}

pub(super) fn run(args: &Args, globals: &GlobalArgs) -> Result<ExitCode, CliError> {
    let model = args.which.read(globals)?.model;
    let (results, convergence) = solve(&model);
    let left_out = solve::ignored_parts(&model);
    let json = json!({ "schema": 1, "convergence": convergence, "findings": results, "left_out": left_out });
    let origin = ResultOrigin {
        program: "plimsoll model solve",
        is_accurate: convergence.converged,
        convergence: convergence.residual,
        iterations: u64::from(convergence.iterations),
    };
    print::print(&model, &results, &origin, &json, String::new, globals)?;
    print::print_left_out(std::iter::once(&model), globals);
    if convergence.overloaded {
        globals.print_always(
            "warning: more comes from outside than can be served: what waits there grows without end\n",
        );
        return Ok(ExitCode::FAILURE);
    }
    if !convergence.converged {
        globals.print_always(&format!(
            "warning: not converged: after {} rounds numbers still change by {:.2e} of themselves; simulate \
             it instead\n",
            convergence.iterations, convergence.residual
        ));
        return Ok(ExitCode::FAILURE);
    }
    globals.print_message(&format!("converged in {} rounds\n", convergence.iterations));
    Ok(ExitCode::SUCCESS)
}
