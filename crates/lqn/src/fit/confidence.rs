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
use super::{ASSUMED_ERROR, MIN_DEVIATION, NORMAL_QUANTILE, student};
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
const NEGLIGIBLE: f64 = 1e-3;
/// The half-width of an interval of a logarithm from which a direction counts as unknown: a factor of e.
const MAX_HALF_WIDTH: f64 = 1.0;
/// A parameter counts as near 0 if a factor of e changes all measurements by less than this share.
const WEAK_EFFECT: f64 = 0.02;
/// The half-width of an interval of a logarithm from which the interval is on the linear scale.
const WIDE_INTERVAL: f64 = 0.5;
/// The value that replaces a parameter near 0 for factors and for a new search, as a share of the one whose
/// effect equals all measurements.
const RAISED_SHARE: f64 = 0.02;

/// Computes the uncertainty. `predicted` are the numbers of the fitted model; `known` is whether measurements
/// have intervals.
pub(super) fn parameter_uncertainty(
    problem: &LeastSquaresProblem<'_>,
    best: &SearchResult,
    predicted: &[f64],
    has_intervals: bool,
) -> Result<ParameterUncertainty, InputError> {
    let count = best.residuals.len();
    let length = length(problem, predicted);
    let units = units(problem, best, length)?;
    let columns = best.jacobian.iter().zip(&units);
    let svd = SingularValueDecomposition::of(
        columns
            .map(|(column, unit)| {
                unit.as_ref().map_or_else(|| column.clone(), |linear_unit| linear_unit.1.clone())
            })
            .collect(),
    );
    let is_negligible = |value: f64| value <= NEGLIGIBLE * length;
    let rank = svd.values.iter().take(count).filter(|value| !is_negligible(**value)).count();
    let freedom = count - rank.min(count);
    let rms_residual = if freedom > 0 { (best.cost() / freedom as f64).sqrt() } else { 0.0 };
    // Half of a 95 % interval along a direction with a singular value of 1.
    let half_factor = match (has_intervals, freedom) {
        (true, 0) => Some(NORMAL_QUANTILE),
        (true, _) => Some(NORMAL_QUANTILE * rms_residual.max(1.0)),
        (false, 0) => None,
        (false, _) => Some(student(freedom) * rms_residual.max(MIN_DEVIATION / ASSUMED_ERROR)),
    };
    let half_width_along = |value: f64| half_factor.map(|factor| factor / value);
    let values: Vec<f64> = best.point.iter().map(|log_value| log_value.exp()).collect();
    // The least value where a factor of a parameter near 0 is needed.
    let min_value = |index: usize| units[index].as_ref().map_or(0.0, |(unit, _)| RAISED_SHARE * unit);
    let mut open_directions = Vec::new();
    let mut variances = vec![Some(0.0); values.len()];
    for (index, direction) in svd.directions.iter().enumerate() {
        let value = if index < count { svd.values[index] } else { 0.0 };
        let negligible = is_negligible(value);
        if negligible || half_width_along(value).is_some_and(|half_width| half_width > MAX_HALF_WIDTH) {
            let relative_parts = direction.iter().enumerate().map(|(index, component)| {
                units[index]
                    .as_ref()
                    .map_or(*component, |(unit, _)| component * unit / values[index].max(min_value(index)))
            });
            open_directions.push(relative_parts.collect());
        }
        for (variance, component) in variances.iter_mut().zip(direction) {
            if negligible && component.abs() > 0.05 {
                *variance = None;
            } else if !negligible {
                *variance =
                    variance.and_then(|sum| Some(sum + (component * half_width_along(value)?).powi(2)));
            }
        }
    }
    let interval = |(index, variance): (usize, &Option<f64>)| {
        let (half_width, value) = (variance.as_ref()?.sqrt(), values[index]);
        Some(match &units[index] {
            Some((unit, _)) => [(value - half_width * unit).max(0.0), value + half_width * unit],
            None if half_width > WIDE_INTERVAL => {
                [(value * (1.0 - half_width)).max(0.0), value * (1.0 + half_width)]
            }
            None => [value * (-half_width).exp(), value * half_width.exp()],
        })
    };
    Ok(ParameterUncertainty {
        intervals: variances.iter().enumerate().map(interval).collect(),
        start: values.iter().enumerate().map(|(index, value)| value.max(min_value(index)).ln()).collect(),
        open_directions,
        degrees_of_freedom: freedom,
        rms_residual,
    })
}

/// Returns the length of the vector of all measurements, in standard deviations.
fn length(problem: &LeastSquaresProblem<'_>, predicted: &[f64]) -> f64 {
    let scaled =
        predicted.iter().zip(&problem.deviations).map(|(prediction, deviation)| prediction / deviation);
    sum_of_squares(&scaled.collect::<Vec<f64>>()).sqrt()
}

/// The unit of a parameter near 0 on the linear scale, and the change of each number by one unit.
type LinearUnit = (f64, Vec<f64>);

/// Returns the unit of each parameter near 0.
fn units(
    problem: &LeastSquaresProblem<'_>,
    best: &SearchResult,
    length: f64,
) -> Result<Vec<Option<LinearUnit>>, InputError> {
    let linear_unit = |(index, column): (usize, &Vec<f64>)| {
        let is_weak = sum_of_squares(column).sqrt() < WEAK_EFFECT * length;
        is_weak.then(|| problem.linear_derivative(best, index, length)).transpose()
    };
    best.jacobian.iter().enumerate().map(linear_unit).collect()
}

/// Returns a point for a new search, with each parameter near 0 raised until it has an effect; `None` if
/// there is none.
pub(super) fn raised_start(
    problem: &LeastSquaresProblem<'_>,
    best: &SearchResult,
    predicted: &[f64],
) -> Result<Option<Vec<f64>>, InputError> {
    let units = units(problem, best, length(problem, predicted))?;
    if units.iter().all(Option::is_none) {
        return Ok(None);
    }
    let raised = best.point.iter().zip(&units).map(|(log_value, unit)| {
        unit.as_ref().map_or(*log_value, |(unit, _)| log_value.exp().max(RAISED_SHARE * unit).ln())
    });
    Ok(Some(raised.collect()))
}
