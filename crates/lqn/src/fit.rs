//! Fits a model to measurements: finds the demands, their confidence intervals, and those that the
//! measurements cannot determine.
//!
//! The method is weighted least squares over all measured numbers at all loads. The unknowns are the
//! logarithms of the demands, so that none is below 0; derivatives are differences of
//! [`solve`](crate::solve()). The weight of a number follows from its interval. Without intervals, all
//! numbers have the same relative error, which is estimated from the residuals. The module `certain` computes
//! the intervals of the demands.
//!
//! The analytic solution is wrong by some percent, which would distort the demands as much. So each load can
//! be simulated at the solution, two or three times: the ratio of simulation and analytic solution becomes a
//! correction factor, and the search continues with it.
//!
//! No number counts as more accurate than 0.3 %, since the analytic solution is no more accurate.
//!
//! A combination of parameters that the measurements leave open is a [`Doubt`].

use serde::Serialize;

use crate::ask::lines;
use crate::read::Trouble;
use crate::{Findings, Model};
use certain::Certain;
use squares::{Found, Problem};

mod certain;
mod doubt;
mod free;
mod json;
mod records;
mod rows;
mod squares;
mod svd;

pub use doubt::{Doubt, Hint};
pub use free::demands;
pub use records::{Field, Record, records};
pub use rows::{Observed, Row, Seen, observed};

/// Creates the model with these values of parameters (`clients`) and numbers (`client.threads`), by name, or
/// returns the reason why it cannot.
pub type Make<'m> = dyn Fn(&[(String, f64)]) -> Result<Model, String> + 'm;
/// Simulates a model; `None` if the simulation does not end. The number selects the random seed, a different
/// one for each row.
pub type Simulate<'s> = dyn Fn(&Model, usize) -> Option<Findings> + 's;

/// The result of a fit.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Fit {
    /// The parameters, in the requested order.
    pub parameters: Vec<Fitted>,
    /// The combinations that the measurements leave open.
    pub doubts: Vec<Doubt>,
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
pub struct Fitted {
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
    /// The kind, as in [`crate::ask::Line::kind`].
    pub kind: &'static str,
    /// The name of the object.
    pub name: String,
    /// The metric, as in [`crate::ask::Line::metric`].
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
    rows: &[Row],
    make: &Make<'_>,
    simulate: Option<&Simulate<'_>>,
) -> Result<Fit, Trouble> {
    let line = rows.first().map_or(1, |row| row.line);
    if free.is_empty() || rows.iter().all(|row| row.seen.is_empty()) {
        return Err(failed(line, "there is nothing to find, or nothing to find it by"));
    }
    if let Some((name, value)) = free.iter().find(|(_, value)| !(value.is_finite() && *value > 0.0)) {
        return Err(failed(
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
        return Err(failed(line, why));
    }
    let names: Vec<String> = free.iter().map(|(name, _)| name.clone()).collect();
    let (deviations, known) = deviations(rows);
    let mut problem = Problem {
        names: &names,
        rows,
        make,
        factors: vec![1.0; deviations.len()],
        deviations: deviations.clone(),
        begin: free.iter().map(|(_, value)| value.ln()).collect(),
    };
    let (found, starts) = searched(&problem, known)?;
    let mut found = once_more(&problem, found)?;
    let mut simulated = 0;
    if let Some(simulate) = simulate {
        for turn in 0..CORRECTIONS {
            let before = found.at.clone();
            simulated = correct(&mut problem, &found.at, simulate, known.then_some(&deviations))?;
            found = again(&problem, &found)?;
            let moved = found
                .at
                .iter()
                .zip(&before)
                .fold(0.0_f64, |most, (one, other)| most.max((one - other).abs()));
            if turn > 0 && moved < 1e-3 {
                break;
            }
        }
    }
    let predicted = problem.predicted(&found.at)?.unwrap_or_default();
    let certain = certain::certain(&problem, &found, &predicted, known)?;
    Ok(told(&problem, free, &found, &predicted, certain, Ends { known, starts, simulated }))
}

/// The circumstances of a search.
struct Ends {
    known: bool,
    starts: usize,
    simulated: usize,
}

pub(crate) fn failed(line: usize, message: impl Into<String>) -> Trouble {
    Trouble { line, column: 1, message: message.into() }
}

/// Returns the standard deviation of each number, and whether any measurement has an interval. Numbers
/// without one get the median relative deviation of the others.
fn deviations(rows: &[Row]) -> (Vec<f64>, bool) {
    let all = || rows.iter().flat_map(|row| row.seen.iter().map(move |seen| (seen, row.weight)));
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
fn searched(problem: &Problem<'_>, known: bool) -> Result<(Found, usize), Trouble> {
    let count = problem.begin.len();
    let mut best: Option<Found> = None;
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
        let from: Vec<f64> = (0..count).map(|place| problem.begin[place] + shift(place)).collect();
        let Some(found) = descended(problem, from)? else { continue };
        starts += 1;
        if best.as_ref().is_none_or(|best| found.cost() < 0.999 * best.cost()) {
            best = Some(found);
        }
        // The fit is as good as the measurements or the analytic solution: stop.
        let each = best.as_ref().map_or(f64::INFINITY, |best| best.cost() / best.off.len() as f64);
        let good = if known { each < 4.0 } else { each.sqrt() * ERROR < 0.03 };
        if good {
            break;
        }
    }
    let line = problem.rows.first().map_or(1, |row| row.line);
    let none = || {
        failed(
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
fn descended(problem: &Problem<'_>, mut from: Vec<f64>) -> Result<Option<Found>, Trouble> {
    for _ in 0..24 {
        if let Some(found) = problem.search(&from)? {
            return Ok(Some(found));
        }
        from.iter_mut().for_each(|own| *own -= 0.35);
    }
    Ok(None)
}

/// Continues the search with other factors.
fn again(problem: &Problem<'_>, found: &Found) -> Result<Found, Trouble> {
    let line = problem.rows.first().map_or(1, |row| row.line);
    let found =
        descended(problem, found.at.clone())?.ok_or_else(|| failed(line, "more comes than can be served"))?;
    once_more(problem, found)
}

/// Restarts with a larger value for parameters that went towards 0, where the slope vanishes, and returns the
/// better result.
fn once_more(problem: &Problem<'_>, found: Found) -> Result<Found, Trouble> {
    let predicted = problem.predicted(&found.at)?.unwrap_or_default();
    let Some(from) = certain::lifted(problem, &found, &predicted)? else { return Ok(found) };
    let other = problem.search(&from)?.filter(|other| other.cost() < found.cost());
    Ok(other.unwrap_or(found))
}

/// Simulates all rows and sets the factor of each number. Returns the number of simulated rows.
fn correct(
    problem: &mut Problem<'_>,
    at: &[f64],
    simulate: &Simulate<'_>,
    known: Option<&Vec<f64>>,
) -> Result<usize, Trouble> {
    let (mut place, mut simulated) = (0, 0);
    for (number, row) in problem.rows.iter().enumerate() {
        let solved = problem.solved(row, at)?;
        let model = problem.model(row, at).map_err(|why| failed(row.line, why))?;
        let run = simulate(&model, number).map(|found| lines(&model, &found));
        if let (Some(solved), Some(run)) = (solved, run) {
            simulated += 1;
            for (offset, (seen, own)) in row.seen.iter().zip(solved).enumerate() {
                let Some(line) = run.iter().find(|line| seen.is(line)) else { continue };
                let (mean, half) = (line.value.mean, line.value.half_width);
                if own > 0.0 && mean > 0.0 {
                    problem.factors[place + offset] = (mean / own).clamp(0.2, 5.0);
                    if let Some(known) = known {
                        problem.deviations[place + offset] = known[place + offset].hypot(half / HALF);
                    }
                }
            }
        }
        place += row.seen.len();
    }
    Ok(simulated)
}

/// Assembles the result.
fn told(
    problem: &Problem<'_>,
    free: &[(String, f64)],
    found: &Found,
    predicted: &[f64],
    certain: Certain,
    ends: Ends,
) -> Fit {
    let Certain { intervals, open, from, freedom, each } = certain;
    let parameters = free.iter().zip(&found.at).zip(intervals).map(|(((name, before), at), interval)| {
        Fitted { name: name.clone(), before: *before, value: at.exp(), interval }
    });
    let of = problem.rows.iter().flat_map(|row| row.seen.iter().map(move |seen| (row, seen)));
    let residuals = of.zip(predicted).zip(&found.off).map(|(((row, seen), fitted), off)| Residual {
        line: row.line,
        at: row.settings.clone(),
        kind: seen.kind,
        name: seen.name.clone(),
        metric: seen.metric,
        measured: seen.value,
        fitted: *fitted,
        deviations: if ends.known || each == 0.0 { *off } else { off / each },
    });
    Fit {
        parameters: parameters.collect(),
        residuals: residuals.collect(),
        doubts: doubt::doubts(problem, &from, open),
        left_over: found.cost(),
        freedom,
        error: (!ends.known && freedom > 0).then_some(each * ERROR),
        excess: if ends.known { each.max(1.0) } else { 1.0 },
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
