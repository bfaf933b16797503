//! Fits a model to measurements: finds the demands, their confidence intervals, and those that the
//! measurements cannot determine.
//!
//! The method is weighted least squares over all measured numbers at all loads. The unknowns are the
//! logarithms of the demands, so that none is below 0; derivatives are differences of
//! [`solve`](crate::solve()). The weight of a number follows from its interval. Without intervals, all
//! numbers have the same relative error, which is estimated from the residuals. The module `confidence`
//! computes the intervals of the demands.
//!
//! The analytic solution is wrong by some percent, which would distort the demands as much. So each load can
//! be simulated at the solution, two or three times: the ratio of simulation and analytic solution becomes a
//! correction factor, and the search continues with it.
//!
//! No number counts as more accurate than 0.3 %, since the analytic solution is no more accurate.
//!
//! A combination of parameters that the measurements leave open is an [`UnidentifiedCombination`].

use serde::Serialize;

use crate::analysis::result_lines;
use crate::read::InputError;
use crate::{Model, ModelResults};
use confidence::ParameterUncertainty;
use levenberg_marquardt::{LeastSquaresProblem, SearchResult};

mod confidence;
mod free_parameters;
mod identifiability;
mod json;
mod levenberg_marquardt;
mod records;
mod rows;
mod svd;

pub use free_parameters::default_parameters;
pub use identifiability::{SuggestedMeasurement, UnidentifiedCombination};
pub use records::{MeasuredField, MeasurementRecord, parse_records};
pub use rows::{MeasuredValue, MeasurementRow, MeasurementRows, interpret_records};

/// Creates the model with these values of parameters (`clients`) and numbers (`client.threads`), by name, or
/// returns the reason why it cannot.
pub type ModelFactory<'m> = dyn Fn(&[(String, f64)]) -> Result<Model, String> + 'm;
/// Simulates a model; `None` if the simulation does not end. The number selects the random seed, a different
/// one for each row.
pub type SimulateFn<'s> = dyn Fn(&Model, usize) -> Option<ModelResults> + 's;

/// The result of a fit.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FitResult {
    /// The parameters, in the requested order.
    pub parameters: Vec<FittedParameter>,
    /// The combinations that the measurements leave open.
    pub doubts: Vec<UnidentifiedCombination>,
    /// The difference for each measured number.
    pub residuals: Vec<Residual>,
    /// The residual sum of squares, the sum of the squares of [`Residual::deviations`].
    pub left_over: f64,
    /// The degrees of freedom: the number of measured values minus that of determined parameters.
    pub freedom: usize,
    /// The estimated relative error of a measurement, from the residual sum of squares per degree of freedom.
    /// `None` without degrees of freedom, and if the measurements have intervals.
    pub error: Option<f64>,
    /// The factor by which residuals exceed the measurements' intervals, if it is above 1; else 1.
    pub excess: f64,
    /// Whether the search converged.
    pub converged: bool,
    /// The number of starting points.
    pub starts: usize,
    /// The number of rows that were simulated for correction factors.
    pub simulated: usize,
}

/// A fitted parameter.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FittedParameter {
    /// The name.
    pub name: String,
    /// The value in the model.
    pub before: f64,
    /// The best value.
    pub value: f64,
    /// The 95 % confidence interval; `None` if the measurements do not determine the parameter. It begins at
    /// 0 if they do not distinguish the parameter from 0.
    pub interval: Option<[f64; 2]>,
}

/// A measured number and its fitted value.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Residual {
    /// The line of its row.
    pub line: usize,
    /// The settings of the row.
    pub at: Vec<(String, f64)>,
    /// The kind, as in [`crate::analysis::ResultLine::kind`].
    pub kind: &'static str,
    /// The name of the object.
    pub name: String,
    /// The metric, as in [`crate::analysis::ResultLine::metric`].
    pub metric: &'static str,
    /// The measured value.
    pub measured: f64,
    /// The value of the fitted model.
    pub fitted: f64,
    /// The difference in standard deviations of the measurement.
    pub deviations: f64,
}

/// The 97.5th percentile of the standard normal distribution: half the width of the 95 % interval.
const NORMAL_QUANTILE: f64 = 1.959_964;
/// The initial relative error of measurements without an interval.
const ASSUMED_ERROR: f64 = 0.01;
/// The least relative error of a number: the analytic solution is no more accurate.
const MIN_DEVIATION: f64 = 0.003;
/// The largest number of corrections by simulation.
const MAX_CORRECTIONS: usize = 3;
/// Finds the parameters in `free`, each given with its initial value.
///
/// # Errors
/// Returns an error if a parameter begins at 0 or outside the searched range, or if there are no
/// measurements. Also if no model can be created for a row, or if the model is overloaded with all
/// parameters.
pub fn fit(
    free: &[(String, f64)],
    rows: &[MeasurementRow],
    make: &ModelFactory<'_>,
    simulate: Option<&SimulateFn<'_>>,
) -> Result<FitResult, InputError> {
    let line = rows.first().map_or(1, |row| row.line);
    if free.is_empty() || rows.iter().all(|row| row.measured.is_empty()) {
        return Err(row_error(line, "there is nothing to find, or nothing to find it by"));
    }
    if let Some((name, value)) = free.iter().find(|(_, value)| !(value.is_finite() && *value > 0.0)) {
        return Err(row_error(
            line,
            format!("`{name}` is {value} in the model: a search begins above 0; give it a guess"),
        ));
    }
    let search_range = rows::MIN_VALUE..=rows::MAX_VALUE;
    if let Some((name, value)) = free.iter().find(|(_, value)| !search_range.contains(value)) {
        let error = format!(
            "`{name}` is {value:e} in the model: a search begins between {:e} and {:e}; give it a better \
            guess",
            rows::MIN_VALUE,
            rows::MAX_VALUE
        );
        return Err(row_error(line, error));
    }
    let names: Vec<String> = free.iter().map(|(name, _)| name.clone()).collect();
    let (deviations, has_intervals) = deviations(rows);
    let mut problem = LeastSquaresProblem {
        names: &names,
        rows,
        make,
        factors: vec![1.0; deviations.len()],
        deviations: deviations.clone(),
        start: free.iter().map(|(_, value)| value.ln()).collect(),
    };
    let (best, starts) = search_from_starts(&problem, has_intervals)?;
    let mut fitted = restart_near_zero(&problem, best)?;
    let mut simulated = 0;
    if let Some(simulate) = simulate {
        for round in 0..MAX_CORRECTIONS {
            let previous_point = fitted.point.clone();
            simulated = correct(&mut problem, &fitted.point, simulate, has_intervals.then_some(&deviations))?;
            fitted = continue_search(&problem, &fitted)?;
            let max_change = fitted
                .point
                .iter()
                .zip(&previous_point)
                .fold(0.0_f64, |max_so_far, (new, old)| max_so_far.max((new - old).abs()));
            if round > 0 && max_change < 1e-3 {
                break;
            }
        }
    }
    let predicted = problem.predict(&fitted.point)?.unwrap_or_default();
    let uncertainty = confidence::parameter_uncertainty(&problem, &fitted, &predicted, has_intervals)?;
    Ok(assemble_result(
        &problem,
        free,
        &fitted,
        &predicted,
        uncertainty,
        SearchSummary { has_intervals, starts, simulated },
    ))
}

/// The circumstances of a search.
struct SearchSummary {
    has_intervals: bool,
    starts: usize,
    simulated: usize,
}

pub(crate) fn row_error(line: usize, message: impl Into<String>) -> InputError {
    InputError { line, column: 1, message: message.into() }
}

/// Returns the standard deviation of each number, and whether any measurement has an interval. Numbers
/// without one get the median relative deviation of the others.
fn deviations(rows: &[MeasurementRow]) -> (Vec<f64>, bool) {
    let all_measured =
        || rows.iter().flat_map(|row| row.measured.iter().map(move |measured| (measured, row.weight)));
    let mut relative_errors: Vec<f64> = all_measured()
        .filter_map(|(measured, _)| {
            Some(measured.half_width? / NORMAL_QUANTILE / measured.value).filter(|error| error.is_finite())
        })
        .collect();
    relative_errors.sort_by(f64::total_cmp);
    let has_intervals = all_measured().any(|(measured, _)| measured.half_width.is_some());
    let median_error = relative_errors.get(relative_errors.len() / 2).copied().unwrap_or(ASSUMED_ERROR);
    let adjusted = all_measured().map(|(measured, weight)| {
        let deviation = measured
            .half_width
            .map_or(median_error * measured.value, |half_width| half_width / NORMAL_QUANTILE);
        (deviation / weight.sqrt()).max(MIN_DEVIATION * measured.value)
    });
    (adjusted.collect(), has_intervals)
}

/// Searches from the model's values, and from other points if the result is poor.
fn search_from_starts(
    problem: &LeastSquaresProblem<'_>,
    has_intervals: bool,
) -> Result<(SearchResult, usize), InputError> {
    let count = problem.start.len();
    let mut best: Option<SearchResult> = None;
    let mut starts = 0;
    for attempt in 0..12_usize {
        let start_shift = |index: usize| match attempt {
            0 => 0.0,
            1 => -1.1,
            2 => 1.1,
            // Points distributed evenly over a factor of ten in both directions (a Halton sequence of the
            // first primes).
            _ => 2.3 * (2.0 * halton(attempt, index % PRIMES.len()) - 1.0),
        };
        let start: Vec<f64> = (0..count).map(|index| problem.start[index] + start_shift(index)).collect();
        let Some(result) = search_from(problem, start)? else { continue };
        starts += 1;
        if best.as_ref().is_none_or(|best| result.cost() < 0.999 * best.cost()) {
            best = Some(result);
        }
        // The fit is as good as the measurements or the analytic solution: stop.
        let mean_cost = best.as_ref().map_or(f64::INFINITY, |best| best.cost() / best.residuals.len() as f64);
        let is_good_fit =
            if has_intervals { mean_cost < 4.0 } else { mean_cost.sqrt() * ASSUMED_ERROR < 0.03 };
        if is_good_fit {
            break;
        }
    }
    let line = problem.rows.first().map_or(1, |row| row.line);
    let no_start = || {
        row_error(
            line,
            "more comes than can be served, whatever the parameters are: are the settings of the loads \
            right?",
        )
    };
    best.map(|result| (result, starts)).ok_or_else(no_start)
}

const PRIMES: [usize; 8] = [2, 3, 5, 7, 11, 13, 17, 19];

fn halton(number: usize, prime_index: usize) -> f64 {
    let (mut rest, mut fraction, mut sum) = (number, 1.0, 0.0);
    while rest > 0 {
        fraction /= PRIMES[prime_index] as f64;
        sum += fraction * (rest % PRIMES[prime_index]) as f64;
        rest /= PRIMES[prime_index];
    }
    sum
}

/// Searches from this point, or from one with less demand, at which the model is not overloaded.
fn search_from(
    problem: &LeastSquaresProblem<'_>,
    mut start: Vec<f64>,
) -> Result<Option<SearchResult>, InputError> {
    for _ in 0..24 {
        if let Some(result) = problem.search(&start)? {
            return Ok(Some(result));
        }
        start.iter_mut().for_each(|parameter| *parameter -= 0.35);
    }
    Ok(None)
}

/// Continues the search with other factors.
fn continue_search(
    problem: &LeastSquaresProblem<'_>,
    previous: &SearchResult,
) -> Result<SearchResult, InputError> {
    let line = problem.rows.first().map_or(1, |row| row.line);
    let restarted = search_from(problem, previous.point.clone())?
        .ok_or_else(|| row_error(line, "more comes than can be served"))?;
    restart_near_zero(problem, restarted)
}

/// Restarts with a larger value for parameters that went towards 0, where the slope vanishes, and returns the
/// better result.
fn restart_near_zero(
    problem: &LeastSquaresProblem<'_>,
    result: SearchResult,
) -> Result<SearchResult, InputError> {
    let predicted = problem.predict(&result.point)?.unwrap_or_default();
    let Some(raised_start) = confidence::raised_start(problem, &result, &predicted)? else {
        return Ok(result);
    };
    let better = problem.search(&raised_start)?.filter(|candidate| candidate.cost() < result.cost());
    Ok(better.unwrap_or(result))
}

/// Simulates all rows and sets the factor of each number. Returns the number of simulated rows.
fn correct(
    problem: &mut LeastSquaresProblem<'_>,
    point: &[f64],
    simulate: &SimulateFn<'_>,
    deviations: Option<&Vec<f64>>,
) -> Result<usize, InputError> {
    let (mut index, mut simulated) = (0, 0);
    for (number, row) in problem.rows.iter().enumerate() {
        let solved = problem.solve_row(row, point)?;
        let model = problem.model(row, point).map_err(|error| row_error(row.line, error))?;
        let run = simulate(&model, number).map(|results| result_lines(&model, &results));
        if let (Some(solved), Some(run)) = (solved, run) {
            simulated += 1;
            for (offset, (measured, solved_value)) in row.measured.iter().zip(solved).enumerate() {
                let Some(line) = run.iter().find(|line| measured.matches(line)) else { continue };
                let (mean, half_width) = (line.value.mean, line.value.half_width);
                if solved_value > 0.0 && mean > 0.0 {
                    problem.factors[index + offset] = (mean / solved_value).clamp(0.2, 5.0);
                    if let Some(base_deviations) = deviations {
                        problem.deviations[index + offset] =
                            base_deviations[index + offset].hypot(half_width / NORMAL_QUANTILE);
                    }
                }
            }
        }
        index += row.measured.len();
    }
    Ok(simulated)
}

/// Assembles the result.
fn assemble_result(
    problem: &LeastSquaresProblem<'_>,
    free: &[(String, f64)],
    best: &SearchResult,
    predicted: &[f64],
    uncertainty: ParameterUncertainty,
    summary: SearchSummary,
) -> FitResult {
    let ParameterUncertainty {
        intervals,
        open_directions,
        start: open_start,
        degrees_of_freedom: freedom,
        rms_residual,
    } = uncertainty;
    let parameters =
        free.iter().zip(&best.point).zip(intervals).map(|(((name, before), log_value), interval)| {
            FittedParameter { name: name.clone(), before: *before, value: log_value.exp(), interval }
        });
    let measured_rows =
        problem.rows.iter().flat_map(|row| row.measured.iter().map(move |measured| (row, measured)));
    let residuals =
        measured_rows.zip(predicted).zip(&best.residuals).map(|(((row, measured), fitted), residual)| {
            Residual {
                line: row.line,
                at: row.settings.clone(),
                kind: measured.kind,
                name: measured.name.clone(),
                metric: measured.metric,
                measured: measured.value,
                fitted: *fitted,
                deviations: if summary.has_intervals || rms_residual == 0.0 {
                    *residual
                } else {
                    residual / rms_residual
                },
            }
        });
    FitResult {
        parameters: parameters.collect(),
        residuals: residuals.collect(),
        doubts: identifiability::unidentified_combinations(problem, &open_start, open_directions),
        left_over: best.cost(),
        freedom,
        error: (!summary.has_intervals && freedom > 0).then_some(rms_residual * ASSUMED_ERROR),
        excess: if summary.has_intervals { rms_residual.max(1.0) } else { 1.0 },
        converged: best.converged,
        starts: summary.starts,
        simulated: summary.simulated,
    }
}

/// Returns the 97.5th percentile of Student's t distribution for `freedom` degrees, at least 1.
fn student(freedom: usize) -> f64 {
    const FIRST: [f64; 10] = [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228];
    FIRST.get(freedom - 1).copied().unwrap_or_else(|| {
        let n = freedom as f64;
        let z3 = NORMAL_QUANTILE.powi(3);
        NORMAL_QUANTILE
            + (z3 + NORMAL_QUANTILE) / (4.0 * n)
            + (5.0 * NORMAL_QUANTILE.powi(5) + 16.0 * z3 + 3.0 * NORMAL_QUANTILE) / (96.0 * n * n)
    })
}
