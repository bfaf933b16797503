//! Weighted least squares in the logarithms of the parameters: Levenberg 1944, Marquardt 1963, in the form of
//! Moré (The Levenberg-Marquardt algorithm: implementation and theory, 1978) without his trust region.
//! Derivatives are central differences; their step is large compared with the accuracy of a solution.

use super::rows::{MeasuredValue, MeasurementRow};
use super::svd::SingularValueDecomposition;
use super::{ModelFactory, row_error};
use crate::analysis::result_lines;
use crate::read::InputError;
use crate::{Model, solve};

/// The step of a logarithm for differences.
pub(super) const DERIVATIVE_STEP: f64 = 0.02;
/// The largest distance of a logarithm from its initial value.
const MAX_DISTANCE: f64 = 9.3;
/// The largest number of steps.
const MAX_STEPS: usize = 60;
/// The largest factor, relative to its present or initial value, of a parameter without any effect on the
/// measurements.
const MAX_UNIT: f64 = 100.0;

/// A least squares problem.
pub(super) struct LeastSquaresProblem<'p> {
    pub(super) names: &'p [String],
    pub(super) rows: &'p [MeasurementRow],
    pub(super) make: &'p ModelFactory<'p>,
    /// The correction factor of each number of each row, consecutively: the ratio of simulation and analytic
    /// solution.
    pub(super) factors: Vec<f64>,
    /// The standard deviation of each number.
    pub(super) deviations: Vec<f64>,
    pub(super) start: Vec<f64>,
}

/// The end of a search.
pub(super) struct SearchResult {
    pub(super) point: Vec<f64>,
    /// The residual of each number, in standard deviations.
    pub(super) residuals: Vec<f64>,
    /// The derivative of each number with respect to the logarithm of each parameter, in standard deviations:
    /// a column per parameter.
    pub(super) jacobian: Vec<Vec<f64>>,
    pub(super) converged: bool,
}

impl SearchResult {
    pub(super) fn cost(&self) -> f64 {
        sum_of_squares(&self.residuals)
    }
}

pub(super) fn sum_of_squares(values: &[f64]) -> f64 {
    values.iter().map(|value| value * value).sum()
}

impl LeastSquaresProblem<'_> {
    pub(super) fn measured_values(&self) -> impl Iterator<Item = &MeasuredValue> {
        self.rows.iter().flat_map(|row| &row.measured)
    }

    /// Creates the model of a row with these logarithms of the parameters.
    pub(super) fn model(&self, row: &MeasurementRow, point: &[f64]) -> Result<Model, String> {
        let free_values = self.names.iter().zip(point).map(|(name, value)| (name.clone(), value.exp()));
        let settings: Vec<(String, f64)> = row.settings.iter().cloned().chain(free_values).collect();
        (self.make)(&settings)
    }

    /// Solves the model of a row and returns the measured numbers; `None` if it is overloaded.
    pub(super) fn solve_row(
        &self,
        row: &MeasurementRow,
        point: &[f64],
    ) -> Result<Option<Vec<f64>>, InputError> {
        let model = self.model(row, point).map_err(|error| row_error(row.line, error))?;
        let (results, convergence) = solve(&model);
        if convergence.overloaded {
            return Ok(None);
        }
        let lines = result_lines(&model, &results);
        let value = |measured: &MeasuredValue| {
            let line = lines.iter().find(|line| measured.matches(line));
            line.map(|line| line.value.mean).filter(|mean| mean.is_finite())
        };
        Ok(row.measured.iter().map(value).collect())
    }

    /// Returns all numbers with these parameters: the analytic solution times the factors.
    pub(super) fn predict(&self, point: &[f64]) -> Result<Option<Vec<f64>>, InputError> {
        let mut predictions = Vec::with_capacity(self.factors.len());
        for row in self.rows {
            let Some(row_values) = self.solve_row(row, point)? else { return Ok(None) };
            predictions.extend(row_values);
        }
        predictions.iter_mut().zip(&self.factors).for_each(|(prediction, factor)| *prediction *= factor);
        Ok(Some(predictions))
    }

    fn residuals(&self, point: &[f64]) -> Result<Option<Vec<f64>>, InputError> {
        let predicted = self.predict(point)?;
        Ok(predicted.map(|predicted| {
            let compared = predicted.iter().zip(self.measured_values()).zip(&self.deviations);
            compared
                .map(|((prediction, measured), deviation)| (prediction - measured.value) / deviation)
                .collect()
        }))
    }

    /// Returns the derivative of each number with respect to the logarithm of each parameter, in standard
    /// deviations.
    fn jacobian(&self, point: &[f64], residuals: &[f64]) -> Result<Vec<Vec<f64>>, InputError> {
        let mut columns = Vec::with_capacity(point.len());
        for index in 0..point.len() {
            let moved_residuals = |step: f64| {
                let mut moved_point = point.to_vec();
                moved_point[index] += step;
                self.residuals(&moved_point)
            };
            let (lower, upper) = (moved_residuals(-DERIVATIVE_STEP)?, moved_residuals(DERIVATIVE_STEP)?);
            let difference_quotient = |start: &[f64], end: &[f64], step: f64| -> Vec<f64> {
                start
                    .iter()
                    .zip(end)
                    .map(|(start_value, end_value)| (end_value - start_value) / step)
                    .collect()
            };
            columns.push(match (lower, upper) {
                (Some(lower_residuals), Some(upper_residuals)) => {
                    difference_quotient(&lower_residuals, &upper_residuals, 2.0 * DERIVATIVE_STEP)
                }
                // The model is overloaded with a greater value.
                (Some(lower_residuals), None) => {
                    difference_quotient(&lower_residuals, residuals, DERIVATIVE_STEP)
                }
                (None, Some(upper_residuals)) => {
                    difference_quotient(residuals, &upper_residuals, DERIVATIVE_STEP)
                }
                (None, None) => vec![0.0; residuals.len()],
            });
        }
        Ok(columns)
    }

    /// Returns the derivative of each number with respect to a parameter itself, upwards from its value, in
    /// units that it also returns. A unit is the change whose effect, extrapolated, equals all measurements
    /// (of length `length`). It is at most [`CAP`] times the plausible value of the parameter.
    pub(super) fn linear_derivative(
        &self,
        best: &SearchResult,
        index: usize,
        length: f64,
    ) -> Result<(f64, Vec<f64>), InputError> {
        let value = best.point[index].exp();
        let max_unit = MAX_UNIT * value.max(self.start[index].exp());
        let moved_difference = |step: f64| -> Result<Option<Vec<f64>>, InputError> {
            let mut moved_point = best.point.clone();
            moved_point[index] = (value + step).ln();
            let residuals = self.residuals(&moved_point)?;
            Ok(residuals.map(|moved_residuals| {
                moved_residuals
                    .iter()
                    .zip(&best.residuals)
                    .map(|(moved_value, base_value)| moved_value - base_value)
                    .collect()
            }))
        };
        let mut step = max_unit;
        for _ in 0..MAX_STEPS {
            // As far as the differences of logarithms go.
            let full_step = moved_difference(step)?
                .filter(|difference| sum_of_squares(difference).sqrt() <= 2.0 * DERIVATIVE_STEP * length);
            let (Some(full_difference), Some(half_difference)) = (full_step, moved_difference(step / 2.0)?)
            else {
                step /= 2.0;
                continue;
            };
            // Richardson extrapolation: as accurate as a central difference, which is impossible here.
            let slope: Vec<f64> = full_difference
                .iter()
                .zip(&half_difference)
                .map(|(full_value, half_value)| (4.0 * half_value - full_value) / step)
                .collect();
            let slope_norm = sum_of_squares(&slope).sqrt();
            let unit = if slope_norm > 0.0 { (length / slope_norm).min(max_unit) } else { max_unit };
            return Ok((unit, slope.iter().map(|component| component * unit).collect()));
        }
        Ok((max_unit, vec![0.0; best.residuals.len()]))
    }

    /// Searches from this point; `None` if the model is overloaded there.
    pub(super) fn search(&self, start: &[f64]) -> Result<Option<SearchResult>, InputError> {
        let mut point = start.to_vec();
        let Some(mut residuals) = self.residuals(&point)? else { return Ok(None) };
        let mut damping = 1e-3;
        let mut converged = false;
        let mut columns = self.jacobian(&point, &residuals)?;
        for _ in 0..MAX_STEPS {
            let svd = SingularValueDecomposition::of(columns.clone());
            let greatest = svd.values.first().copied().unwrap_or(0.0);
            if greatest <= 0.0 {
                converged = true;
                break;
            }
            let mut improvement = None;
            for _ in 0..12 {
                let mut step = svd.solve(&residuals, damping * greatest * greatest);
                let longest =
                    step.iter().fold(0.0_f64, |max_so_far, component| max_so_far.max(component.abs()));
                let step_scale = if longest > 1.0 { 1.0 / longest } else { 1.0 };
                step.iter_mut().for_each(|component| *component *= step_scale);
                let next_point: Vec<f64> = point
                    .iter()
                    .zip(&step)
                    .zip(&self.start)
                    .map(|((coordinate, step), start)| {
                        (coordinate - step).clamp(start - MAX_DISTANCE, start + MAX_DISTANCE)
                    })
                    .collect();
                let longest_move = next_point
                    .iter()
                    .zip(&point)
                    .fold(0.0_f64, |max_so_far, (a, b)| max_so_far.max((a - b).abs()));
                if longest_move < 1e-6 {
                    converged = true;
                    break;
                }
                let improved = self
                    .residuals(&next_point)?
                    .filter(|candidate| sum_of_squares(candidate) < sum_of_squares(&residuals));
                if let Some(better_residuals) = improved {
                    damping = (damping / 10.0).max(1e-12);
                    improvement = Some((next_point, better_residuals));
                    break;
                }
                damping = (damping * 10.0).min(1e6);
            }
            let Some((next_point, better_residuals)) = improvement else {
                // No step reduces the sum of squares.
                converged = true;
                break;
            };
            let relative_gain = 1.0 - sum_of_squares(&better_residuals) / sum_of_squares(&residuals);
            (point, residuals) = (next_point, better_residuals);
            columns = self.jacobian(&point, &residuals)?;
            if relative_gain < 1e-7 {
                converged = true;
                break;
            }
        }
        Ok(Some(SearchResult { point, residuals, jacobian: columns, converged }))
    }
}
