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
const HALF: f64 = 1.959_964;
/// The initial relative error of measurements without an interval.
const ERROR: f64 = 0.01;
/// The least relative error of a number: the analytic solution is no more accurate.
const LEAST: f64 = 0.003;
/// The largest number of corrections by simulation.
const CORRECTIONS: usize = 3;
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
    let sound = rows::SMALLEST..=rows::LARGEST;
    if let Some((name, value)) = free.iter().find(|(_, value)| !sound.contains(value)) {
        let why = format!(
            "`{name}` is {value:e} in the model: a search begins between {:e} and {:e}; give it a better \
            guess",
            rows::SMALLEST,
            rows::LARGEST
        );
        return Err(row_error(line, why));
    }
    let names: Vec<String> = free.iter().map(|(name, _)| name.clone()).collect();
    let (deviations, known) = deviations(rows);
    let mut problem = LeastSquaresProblem {
        names: &names,
        rows,
        make,
        factors: vec![1.0; deviations.len()],
        deviations: deviations.clone(),
        start: free.iter().map(|(_, value)| value.ln()).collect(),
    };
    let (found, starts) = search_from_starts(&problem, known)?;
    let mut found = restart_near_zero(&problem, found)?;
    let mut simulated = 0;
    if let Some(simulate) = simulate {
        for turn in 0..CORRECTIONS {
            let before = found.point.clone();
            simulated = correct(&mut problem, &found.point, simulate, known.then_some(&deviations))?;
            found = continue_search(&problem, &found)?;
            let moved = found
                .point
                .iter()
                .zip(&before)
                .fold(0.0_f64, |most, (one, other)| most.max((one - other).abs()));
            if turn > 0 && moved < 1e-3 {
                break;
            }
        }
    }
    let predicted = problem.predict(&found.point)?.unwrap_or_default();
    let certain = confidence::parameter_uncertainty(&problem, &found, &predicted, known)?;
    Ok(assemble_result(
        &problem,
        free,
        &found,
        &predicted,
        certain,
        SearchSummary { has_intervals: known, starts, simulated },
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
    let all = || rows.iter().flat_map(|row| row.measured.iter().map(move |seen| (seen, row.weight)));
    let mut parts: Vec<f64> = all()
        .filter_map(|(seen, _)| Some(seen.half_width? / HALF / seen.value).filter(|part| part.is_finite()))
        .collect();
    parts.sort_by(f64::total_cmp);
    let known = all().any(|(seen, _)| seen.half_width.is_some());
    let typical = parts.get(parts.len() / 2).copied().unwrap_or(ERROR);
    let each = all().map(|(seen, weight)| {
        let own = seen.half_width.map_or(typical * seen.value, |half| half / HALF);
        (own / weight.sqrt()).max(LEAST * seen.value)
    });
    (each.collect(), known)
}

/// Searches from the model's values, and from other points if the result is poor.
fn search_from_starts(
    problem: &LeastSquaresProblem<'_>,
    known: bool,
) -> Result<(SearchResult, usize), InputError> {
    let count = problem.start.len();
    let mut best: Option<SearchResult> = None;
    let mut starts = 0;
    for turn in 0..12_usize {
        let shift = |place: usize| match turn {
            0 => 0.0,
            1 => -1.1,
            2 => 1.1,
            // Points distributed evenly over a factor of ten in both directions (a Halton sequence of the
            // first primes).
            _ => 2.3 * (2.0 * halton(turn, place % PRIMES.len()) - 1.0),
        };
        let from: Vec<f64> = (0..count).map(|place| problem.start[place] + shift(place)).collect();
        let Some(found) = search_from(problem, from)? else { continue };
        starts += 1;
        if best.as_ref().is_none_or(|best| found.cost() < 0.999 * best.cost()) {
            best = Some(found);
        }
        // The fit is as good as the measurements or the analytic solution: stop.
        let each = best.as_ref().map_or(f64::INFINITY, |best| best.cost() / best.residuals.len() as f64);
        let good = if known { each < 4.0 } else { each.sqrt() * ERROR < 0.03 };
        if good {
            break;
        }
    }
    let line = problem.rows.first().map_or(1, |row| row.line);
    let none = || {
        row_error(
            line,
            "more comes than can be served, whatever the parameters are: are the settings of the loads \
            right?",
        )
    };
    best.map(|best| (best, starts)).ok_or_else(none)
}

const PRIMES: [usize; 8] = [2, 3, 5, 7, 11, 13, 17, 19];

fn halton(turn: usize, which: usize) -> f64 {
    let (mut rest, mut part, mut sum) = (turn, 1.0, 0.0);
    while rest > 0 {
        part /= PRIMES[which] as f64;
        sum += part * (rest % PRIMES[which]) as f64;
        rest /= PRIMES[which];
    }
    sum
}

/// Searches from this point, or from one with less demand, at which the model is not overloaded.
fn search_from(
    problem: &LeastSquaresProblem<'_>,
    mut from: Vec<f64>,
) -> Result<Option<SearchResult>, InputError> {
    for _ in 0..24 {
        if let Some(found) = problem.search(&from)? {
            return Ok(Some(found));
        }
        from.iter_mut().for_each(|own| *own -= 0.35);
    }
    Ok(None)
}

/// Continues the search with other factors.
fn continue_search(
    problem: &LeastSquaresProblem<'_>,
    found: &SearchResult,
) -> Result<SearchResult, InputError> {
    let line = problem.rows.first().map_or(1, |row| row.line);
    let found = search_from(problem, found.point.clone())?
        .ok_or_else(|| row_error(line, "more comes than can be served"))?;
    restart_near_zero(problem, found)
}

/// Restarts with a larger value for parameters that went towards 0, where the slope vanishes, and returns the
/// better result.
fn restart_near_zero(
    problem: &LeastSquaresProblem<'_>,
    found: SearchResult,
) -> Result<SearchResult, InputError> {
    let predicted = problem.predict(&found.point)?.unwrap_or_default();
    let Some(from) = confidence::raised_start(problem, &found, &predicted)? else { return Ok(found) };
    let other = problem.search(&from)?.filter(|other| other.cost() < found.cost());
    Ok(other.unwrap_or(found))
}

/// Simulates all rows and sets the factor of each number. Returns the number of simulated rows.
fn correct(
    problem: &mut LeastSquaresProblem<'_>,
    at: &[f64],
    simulate: &SimulateFn<'_>,
    known: Option<&Vec<f64>>,
) -> Result<usize, InputError> {
    let (mut place, mut simulated) = (0, 0);
    for (number, row) in problem.rows.iter().enumerate() {
        let solved = problem.solve_row(row, at)?;
        let model = problem.model(row, at).map_err(|why| row_error(row.line, why))?;
        let run = simulate(&model, number).map(|found| result_lines(&model, &found));
        if let (Some(solved), Some(run)) = (solved, run) {
            simulated += 1;
            for (offset, (seen, own)) in row.measured.iter().zip(solved).enumerate() {
                let Some(line) = run.iter().find(|line| seen.matches(line)) else { continue };
                let (mean, half) = (line.value.mean, line.value.half_width);
                if own > 0.0 && mean > 0.0 {
                    problem.factors[place + offset] = (mean / own).clamp(0.2, 5.0);
                    if let Some(known) = known {
                        problem.deviations[place + offset] = known[place + offset].hypot(half / HALF);
                    }
                }
            }
        }
        place += row.measured.len();
    }
    Ok(simulated)
}

/// Assembles the result.
fn assemble_result(
    problem: &LeastSquaresProblem<'_>,
    free: &[(String, f64)],
    found: &SearchResult,
    predicted: &[f64],
    certain: ParameterUncertainty,
    ends: SearchSummary,
) -> FitResult {
    let ParameterUncertainty {
        intervals,
        open_directions: open,
        start: from,
        degrees_of_freedom: freedom,
        rms_residual: each,
    } = certain;
    let parameters = free.iter().zip(&found.point).zip(intervals).map(|(((name, before), at), interval)| {
        FittedParameter { name: name.clone(), before: *before, value: at.exp(), interval }
    });
    let of = problem.rows.iter().flat_map(|row| row.measured.iter().map(move |seen| (row, seen)));
    let residuals = of.zip(predicted).zip(&found.residuals).map(|(((row, seen), fitted), off)| Residual {
        line: row.line,
        at: row.settings.clone(),
        kind: seen.kind,
        name: seen.name.clone(),
        metric: seen.metric,
        measured: seen.value,
        fitted: *fitted,
        deviations: if ends.has_intervals || each == 0.0 { *off } else { off / each },
    });
    FitResult {
        parameters: parameters.collect(),
        residuals: residuals.collect(),
        doubts: identifiability::unidentified_combinations(problem, &from, open),
        left_over: found.cost(),
        freedom,
        error: (!ends.has_intervals && freedom > 0).then_some(each * ERROR),
        excess: if ends.has_intervals { each.max(1.0) } else { 1.0 },
        converged: found.converged,
        starts: ends.starts,
        simulated: ends.simulated,
    }
}

/// Returns the 97.5th percentile of Student's t distribution for `freedom` degrees, at least 1.
fn student(freedom: usize) -> f64 {
    const FIRST: [f64; 10] = [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228];
    FIRST.get(freedom - 1).copied().unwrap_or_else(|| {
        let n = freedom as f64;
        let z3 = HALF.powi(3);
        HALF + (z3 + HALF) / (4.0 * n) + (5.0 * HALF.powi(5) + 16.0 * z3 + 3.0 * HALF) / (96.0 * n * n)
    })
}
