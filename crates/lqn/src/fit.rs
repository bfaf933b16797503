//! A model from measurements: the demands with which it does what was measured, how certain they are, and which of them
//! the measurements cannot tell apart.
//!
//! Weighted least squares over all numbers that were measured at all loads, in the logarithms of the demands (so none is
//! below 0), with derivatives by differences of [`solve`](crate::solve()). Each number counts by its interval; without
//! intervals all have the same relative error, which is then estimated from what is left over. How certain that makes a
//! demand is in `certain`.
//!
//! Formulas are off by some percent, and would bend the demands by as much. So at what was found each load can be
//! simulated, once or twice: the factor between simulation and formula is kept, and the search goes on with it.
//!
//! No number counts as better than 0.3 %: what rests on less rests on the formulas.
//!
//! What the measurements leave open is a [`Doubt`].

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

/// The model with these values of parameters (`clients`) and numbers (`client.threads`), by name; or why there is none.
pub type Make<'m> = dyn Fn(&[(String, f64)]) -> Result<Model, String> + 'm;
/// What a simulation finds of a model; none if it comes to no end. The number makes chance another for each row.
pub type Simulate<'s> = dyn Fn(&Model, usize) -> Option<Findings> + 's;

/// What was found.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Fit {
    /// In the order in which they were asked for.
    pub parameters: Vec<Fitted>,
    /// What the measurements cannot tell.
    pub doubts: Vec<Doubt>,
    /// Number by number, how well it fits.
    pub residuals: Vec<Residual>,
    /// What is left over: the sum of the squares of [`Residual::deviations`].
    pub left_over: f64,
    /// Numbers that were measured, less parameters that they tell.
    pub freedom: usize,
    /// The relative error of a measurement: the root of what is left over for each degree of freedom. None where there are
    /// no more measurements than parameters, and where measurements say what theirs is.
    pub error: Option<f64>,
    /// Where measurements have intervals: how many times as far off they are as those say, if that is more than 1.
    pub excess: f64,
    /// Did the search end by itself?
    pub converged: bool,
    /// Searches from different beginnings.
    pub starts: usize,
    /// Rows that were simulated to correct the formulas.
    pub simulated: usize,
}

/// A parameter.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Fitted {
    /// Its name.
    pub name: String,
    /// What it was in the model.
    pub before: f64,
    /// What fits best.
    pub value: f64,
    /// Between what it is, 95 times of 100; none if the measurements do not tell. It begins at 0 where they do not tell the
    /// parameter from 0.
    pub interval: Option<[f64; 2]>,
}

/// A number that was measured, and what it is by what was found.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Residual {
    /// Where its row begins.
    pub line: usize,
    /// Settings of the row.
    pub at: Vec<(String, f64)>,
    /// As in [`crate::ask::Line::kind`].
    pub kind: &'static str,
    /// Of what.
    pub name: String,
    /// As in [`crate::ask::Line::metric`].
    pub metric: &'static str,
    /// As it was measured.
    pub measured: f64,
    /// As it is in the model that fits.
    pub fitted: f64,
    /// The difference, in standard deviations of the measurement.
    pub deviations: f64,
}

/// Of the normal distribution, half of the interval in which it is 95 times of 100.
const HALF: f64 = 1.959_964;
/// Relative error of measurements that say nothing of theirs, to begin with.
const ERROR: f64 = 0.01;
/// Least relative error of a number: formulas are no better, so that what rests on less is not told.
const LEAST: f64 = 0.003;
/// Times that formulas are corrected by simulations.
const CORRECTIONS: usize = 3;
/// Finds these parameters, each with the value from which the search begins.
///
/// # Errors
/// A parameter that begins at 0; fewer numbers than would tell anything; a model that cannot be made for a row, or serves
/// less than comes whatever the parameters are.
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
            "`{name}` is {value:e} in the model: a search begins between {:e} and {:e}; give it a better guess",
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

/// How a search came about.
struct Ends {
    known: bool,
    starts: usize,
    simulated: usize,
}

pub(crate) fn failed(line: usize, message: impl Into<String>) -> Trouble {
    Trouble { line, column: 1, message: message.into() }
}

/// The standard deviation of each number, and whether measurements say what it is. Those that do not have the typical
/// relative one of those that do.
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

/// From where the model begins, and where that leads to nothing good from elsewhere, too.
fn searched(problem: &Problem<'_>, known: bool) -> Result<(Found, usize), Trouble> {
    let count = problem.begin.len();
    let mut best: Option<Found> = None;
    let mut starts = 0;
    for turn in 0..12_usize {
        let shift = |place: usize| match turn {
            0 => 0.0,
            1 => -1.1,
            2 => 1.1,
            // Spread evenly over a factor of ten to either side (Halton, by the first primes).
            _ => 2.3 * (2.0 * halton(turn, place % PRIMES.len()) - 1.0),
        };
        let from: Vec<f64> = (0..count).map(|place| problem.begin[place] + shift(place)).collect();
        let Some(found) = descended(problem, from)? else { continue };
        starts += 1;
        if best.as_ref().is_none_or(|best| found.cost() < 0.999 * best.cost()) {
            best = Some(found);
        }
        // As good as measurements are, or as formulas: nothing better is to be looked for.
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
            "more comes than can be served, whatever the parameters are: are the settings of the loads right?",
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

/// A search from here, or from where all is so much less work that it can be served.
fn descended(problem: &Problem<'_>, mut from: Vec<f64>) -> Result<Option<Found>, Trouble> {
    for _ in 0..24 {
        if let Some(found) = problem.search(&from)? {
            return Ok(Some(found));
        }
        from.iter_mut().for_each(|own| *own -= 0.35);
    }
    Ok(None)
}

/// On from what was found, with other factors.
fn again(problem: &Problem<'_>, found: &Found) -> Result<Found, Trouble> {
    let line = problem.rows.first().map_or(1, |row| row.line);
    let found =
        descended(problem, found.at.clone())?.ok_or_else(|| failed(line, "more comes than can be served"))?;
    once_more(problem, found)
}

/// Where parameters slid towards 0, no slope leads up again: is there something better a bit above?
fn once_more(problem: &Problem<'_>, found: Found) -> Result<Found, Trouble> {
    let predicted = problem.predicted(&found.at)?.unwrap_or_default();
    let Some(from) = certain::lifted(problem, &found, &predicted)? else { return Ok(found) };
    let other = problem.search(&from)?.filter(|other| other.cost() < found.cost());
    Ok(other.unwrap_or(found))
}

/// Simulates all rows: by what each number differs from the formulas there. Says how many rows it were.
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

/// What all that means.
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

/// The 97.5th percentile of Student's t, from one degree of freedom on.
fn student(freedom: usize) -> f64 {
    const FIRST: [f64; 10] = [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228];
    FIRST.get(freedom - 1).copied().unwrap_or_else(|| {
        let n = freedom as f64;
        let z3 = HALF.powi(3);
        HALF + (z3 + HALF) / (4.0 * n) + (5.0 * HALF.powi(5) + 16.0 * z3 + 3.0 * HALF) / (96.0 * n * n)
    })
}
