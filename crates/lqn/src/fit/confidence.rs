//! The 95 % confidence intervals of the parameters, and the directions that the measurements leave open.
//!
//! The covariance is `(JᵀJ)⁻¹`, computed from the singular values of the derivatives. It is multiplied by the
//! residual sum of squares per degree of freedom if that exceeds 1, the value that the measurements'
//! intervals imply. A direction with a singular value of 0 is left open.
//!
//! The search uses logarithms. A parameter that goes towards 0 has no end there, and its slope vanishes as if
//! it were known, and with it every parameter that depends on it. So the slope of such a parameter is taken
//! on the linear scale, upwards from its value, together with the others. Their intervals become as wide as
//! necessary; its own begins at 0. The interval of a parameter that is known to a factor of about two or
//! worse is on the linear scale, too.

use super::levenberg_marquardt::{LeastSquaresProblem, SearchResult, sum_of_squares};
use super::svd::SingularValueDecomposition;
use super::{ERROR, HALF, LEAST, student};
use crate::read::InputError;

/// The uncertainty of the parameters.
pub(super) struct ParameterUncertainty {
    /// The 95 % interval of each parameter; `None` if the measurements do not determine it.
    pub(super) intervals: Vec<Option<[f64; 2]>>,
    /// The directions of logarithms in which the measurements hardly change, and the point that they start
    /// from.
    pub(super) open_directions: Vec<Vec<f64>>,
    pub(super) start: Vec<f64>,
    /// The number of measured values minus that of determined parameters.
    pub(super) degrees_of_freedom: usize,
    /// The root mean square residual in standard deviations; 0 without degrees of freedom.
    pub(super) rms_residual: f64,
}

/// The ratio of a singular value to the length of all measurements below which it counts as 0. It is the
/// error of differences of solutions, which are accurate to 1e-5.
const NOTHING: f64 = 1e-3;
/// The half-width of an interval of a logarithm from which a direction counts as unknown: a factor of e.
const UNKNOWN: f64 = 1.0;
/// A parameter counts as near 0 if a factor of e changes all measurements by less than this share.
const SLIGHT: f64 = 0.02;
/// The half-width of an interval of a logarithm from which the interval is on the linear scale.
const VAGUE: f64 = 0.5;
/// The value that replaces a parameter near 0 for factors and for a new search, as a share of the one whose
/// effect equals all measurements.
const LIFTED: f64 = 0.02;

/// Computes the uncertainty. `predicted` are the numbers of the fitted model; `known` is whether measurements
/// have intervals.
pub(super) fn parameter_uncertainty(
    problem: &LeastSquaresProblem<'_>,
    found: &SearchResult,
    predicted: &[f64],
    known: bool,
) -> Result<ParameterUncertainty, InputError> {
    let count = found.residuals.len();
    let length = length(problem, predicted);
    let units = units(problem, found, length)?;
    let columns = found.jacobian.iter().zip(&units);
    let svd = SingularValueDecomposition::of(
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
    let values: Vec<f64> = found.point.iter().map(|at| at.exp()).collect();
    // The least value where a factor of a parameter near 0 is needed.
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
    Ok(ParameterUncertainty {
        intervals: variances.iter().enumerate().map(interval).collect(),
        start: values.iter().enumerate().map(|(place, value)| value.max(least(place)).ln()).collect(),
        open_directions: open,
        degrees_of_freedom: freedom,
        rms_residual: each,
    })
}

/// Returns the length of the vector of all measurements, in standard deviations.
fn length(problem: &LeastSquaresProblem<'_>, predicted: &[f64]) -> f64 {
    let each = predicted.iter().zip(&problem.deviations).map(|(own, deviation)| own / deviation);
    sum_of_squares(&each.collect::<Vec<f64>>()).sqrt()
}

/// The unit of a parameter near 0 on the linear scale, and the change of each number by one unit.
type LinearUnit = (f64, Vec<f64>);

/// Returns the unit of each parameter near 0.
fn units(
    problem: &LeastSquaresProblem<'_>,
    found: &SearchResult,
    length: f64,
) -> Result<Vec<Option<LinearUnit>>, InputError> {
    let one = |(place, column): (usize, &Vec<f64>)| {
        let near = sum_of_squares(column).sqrt() < SLIGHT * length;
        near.then(|| problem.linear_derivative(found, place, length)).transpose()
    };
    found.jacobian.iter().enumerate().map(one).collect()
}

/// Returns a point for a new search, with each parameter near 0 raised until it has an effect; `None` if
/// there is none.
pub(super) fn raised_start(
    problem: &LeastSquaresProblem<'_>,
    found: &SearchResult,
    predicted: &[f64],
) -> Result<Option<Vec<f64>>, InputError> {
    let units = units(problem, found, length(problem, predicted))?;
    if units.iter().all(Option::is_none) {
        return Ok(None);
    }
    let each = found
        .point
        .iter()
        .zip(&units)
        .map(|(at, unit)| unit.as_ref().map_or(*at, |(unit, _)| at.exp().max(LIFTED * unit).ln()));
    Ok(Some(each.collect()))
}
