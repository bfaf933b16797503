//! How certain parameters are: their 95 % intervals, and what the measurements leave open.
//!
//! The covariance is `(JᵀJ)⁻¹`, from the singular values of the derivatives; it is multiplied by what is left over for each
//! degree of freedom where that is more than the intervals of the measurements allow. A direction with a singular value of
//! nothing is left open.
//!
//! The search goes by logarithms. A parameter that slides towards 0 has no end there, and no slope: whatever it is, nothing
//! changes, as if it were known, and with it all that depends on it. So the slope of such a one is taken on the linear scale,
//! upwards from where it is, together with the others, whose intervals are then as wide as they have to be; its own begins
//! at 0. The interval of whatever is known to no better than a factor of two or so is on the linear scale, too.

use super::squares::{Found, Problem, squares};
use super::svd::Svd;
use super::{ERROR, HALF, LEAST, student};
use crate::read::Trouble;

/// What is known of the parameters.
pub(super) struct Certain {
    /// Between what each is, 95 times of 100; none if the measurements do not tell.
    pub(super) intervals: Vec<Option<[f64; 2]>>,
    /// Directions of logarithms in which hardly anything changes, and from where they lead.
    pub(super) open: Vec<Vec<f64>>,
    pub(super) from: Vec<f64>,
    /// Numbers that were measured, less parameters that they tell.
    pub(super) freedom: usize,
    /// How many deviations a number is off, in the mean; 0 without freedom.
    pub(super) each: f64,
}

/// Singular values below this part of the length of all measurements are errors of differences of solutions, which are
/// good to 1e-5.
const NOTHING: f64 = 1e-3;
/// A direction in which something is known to no better than a factor of e is not known.
const UNKNOWN: f64 = 1.0;
/// A parameter is near 0 that changes all that was measured by less than this part when it is e times as much.
const SLIGHT: f64 = 0.02;
/// Half of an interval of a logarithm from which on it is one of the number itself.
const VAGUE: f64 = 0.5;
/// Of what would be as much as all that was measured: a parameter near 0 is taken for so much where a factor of it is meant,
/// and searched for from there once more.
const LIFTED: f64 = 0.02;

/// Works it out. `predicted` are the numbers as they are by what was found; `known` says whether measurements say how exact they
/// are.
pub(super) fn certain(
    problem: &Problem<'_>,
    found: &Found,
    predicted: &[f64],
    known: bool,
) -> Result<Certain, Trouble> {
    let count = found.off.len();
    let length = length(problem, predicted);
    let units = units(problem, found, length)?;
    let columns = found.columns.iter().zip(&units);
    let svd = Svd::of(
        columns
            .map(|(column, unit)| unit.as_ref().map_or_else(|| column.clone(), |own| own.1.clone()))
            .collect(),
    );
    let is_nothing = |value: f64| value <= NOTHING * length;
    let rank = svd.values.iter().take(count).filter(|value| !is_nothing(**value)).count();
    let freedom = count - rank.min(count);
    let each = if freedom > 0 { (found.cost() / freedom as f64).sqrt() } else { 0.0 };
    // Half of a 95 % interval along a direction with a singular value of 1.
    let half = match (known, freedom) {
        (true, 0) => Some(HALF),
        (true, _) => Some(HALF * each.max(1.0)),
        (false, 0) => None,
        (false, _) => Some(student(freedom) * each.max(LEAST / ERROR)),
    };
    let along = |value: f64| half.map(|half| half / value);
    let values: Vec<f64> = found.at.iter().map(|at| at.exp()).collect();
    // Where a factor is meant of something that may be nothing.
    let least = |place: usize| units[place].as_ref().map_or(0.0, |(unit, _)| LIFTED * unit);
    let mut open = Vec::new();
    let mut variances = vec![Some(0.0); values.len()];
    for (place, direction) in svd.directions.iter().enumerate() {
        let value = if place < count { svd.values[place] } else { 0.0 };
        let nothing = is_nothing(value);
        if nothing || along(value).is_some_and(|half| half > UNKNOWN) {
            let parts = direction.iter().enumerate().map(|(place, part)| {
                units[place].as_ref().map_or(*part, |(unit, _)| part * unit / values[place].max(least(place)))
            });
            open.push(parts.collect());
        }
        for (variance, part) in variances.iter_mut().zip(direction) {
            if nothing && part.abs() > 0.05 {
                *variance = None;
            } else if !nothing {
                *variance = variance.and_then(|sum| Some(sum + (part * along(value)?).powi(2)));
            }
        }
    }
    let interval = |(place, variance): (usize, &Option<f64>)| {
        let (half, value) = (variance.as_ref()?.sqrt(), values[place]);
        Some(match &units[place] {
            Some((unit, _)) => [(value - half * unit).max(0.0), value + half * unit],
            None if half > VAGUE => [(value * (1.0 - half)).max(0.0), value * (1.0 + half)],
            None => [value * (-half).exp(), value * half.exp()],
        })
    };
    Ok(Certain {
        intervals: variances.iter().enumerate().map(interval).collect(),
        from: values.iter().enumerate().map(|(place, value)| value.max(least(place)).ln()).collect(),
        open,
        freedom,
        each,
    })
}

/// The length of all that was measured, in deviations.
fn length(problem: &Problem<'_>, predicted: &[f64]) -> f64 {
    let each = predicted.iter().zip(&problem.deviations).map(|(own, deviation)| own / deviation);
    squares(&each.collect::<Vec<f64>>()).sqrt()
}

/// Of a parameter near 0 the unit on the linear scale, and how each number changes by one.
type Unit = (f64, Vec<f64>);

/// That of each parameter near 0.
fn units(problem: &Problem<'_>, found: &Found, length: f64) -> Result<Vec<Option<Unit>>, Trouble> {
    let one = |(place, column): (usize, &Vec<f64>)| {
        let near = squares(column).sqrt() < SLIGHT * length;
        near.then(|| problem.upwards(found, place, length)).transpose()
    };
    found.columns.iter().enumerate().map(one).collect()
}

/// Where to begin once more: with every parameter near 0 at something that is seen. `None` if none is.
pub(super) fn lifted(
    problem: &Problem<'_>,
    found: &Found,
    predicted: &[f64],
) -> Result<Option<Vec<f64>>, Trouble> {
    let units = units(problem, found, length(problem, predicted))?;
    if units.iter().all(Option::is_none) {
        return Ok(None);
    }
    let each = found
        .at
        .iter()
        .zip(&units)
        .map(|(at, unit)| unit.as_ref().map_or(*at, |(unit, _)| at.exp().max(LIFTED * unit).ln()));
    Ok(Some(each.collect()))
}
