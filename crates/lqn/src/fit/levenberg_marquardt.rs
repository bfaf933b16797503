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
pub(super) const STEP: f64 = 0.02;
/// The largest distance of a logarithm from its initial value.
const FAR: f64 = 9.3;
/// The largest number of steps.
const MOST: usize = 60;
/// The largest factor, relative to its present or initial value, of a parameter without any effect on the
/// measurements.
const CAP: f64 = 100.0;

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

pub(super) fn sum_of_squares(all: &[f64]) -> f64 {
    all.iter().map(|own| own * own).sum()
}

impl LeastSquaresProblem<'_> {
    pub(super) fn measured_values(&self) -> impl Iterator<Item = &MeasuredValue> {
        self.rows.iter().flat_map(|row| &row.measured)
    }

    /// Creates the model of a row with these logarithms of the parameters.
    pub(super) fn model(&self, row: &MeasurementRow, at: &[f64]) -> Result<Model, String> {
        let free = self.names.iter().zip(at).map(|(name, value)| (name.clone(), value.exp()));
        let set: Vec<(String, f64)> = row.settings.iter().cloned().chain(free).collect();
        (self.make)(&set)
    }

    /// Solves the model of a row and returns the measured numbers; `None` if it is overloaded.
    pub(super) fn solve_row(&self, row: &MeasurementRow, at: &[f64]) -> Result<Option<Vec<f64>>, InputError> {
        let model = self.model(row, at).map_err(|why| row_error(row.line, why))?;
        let (found, how) = solve(&model);
        if how.overloaded {
            return Ok(None);
        }
        let lines = result_lines(&model, &found);
        let value = |seen: &MeasuredValue| {
            let line = lines.iter().find(|line| seen.matches(line));
            line.map(|line| line.value.mean).filter(|mean| mean.is_finite())
        };
        Ok(row.measured.iter().map(value).collect())
    }

    /// Returns all numbers with these parameters: the analytic solution times the factors.
    pub(super) fn predict(&self, at: &[f64]) -> Result<Option<Vec<f64>>, InputError> {
        let mut all = Vec::with_capacity(self.factors.len());
        for row in self.rows {
            let Some(own) = self.solve_row(row, at)? else { return Ok(None) };
            all.extend(own);
        }
        all.iter_mut().zip(&self.factors).for_each(|(own, factor)| *own *= factor);
        Ok(Some(all))
    }

    fn off(&self, at: &[f64]) -> Result<Option<Vec<f64>>, InputError> {
        let predicted = self.predict(at)?;
        Ok(predicted.map(|predicted| {
            let each = predicted.iter().zip(self.measured_values()).zip(&self.deviations);
            each.map(|((own, seen), deviation)| (own - seen.value) / deviation).collect()
        }))
    }

    /// Returns the derivative of each number with respect to the logarithm of each parameter, in standard
    /// deviations.
    fn slopes(&self, at: &[f64], off: &[f64]) -> Result<Vec<Vec<f64>>, InputError> {
        let mut columns = Vec::with_capacity(at.len());
        for place in 0..at.len() {
            let moved = |by: f64| {
                let mut at = at.to_vec();
                at[place] += by;
                self.off(&at)
            };
            let (less, more) = (moved(-STEP)?, moved(STEP)?);
            let each = |one: &[f64], other: &[f64], step: f64| -> Vec<f64> {
                one.iter().zip(other).map(|(one, other)| (other - one) / step).collect()
            };
            columns.push(match (less, more) {
                (Some(less), Some(more)) => each(&less, &more, 2.0 * STEP),
                // The model is overloaded with a greater value.
                (Some(less), None) => each(&less, off, STEP),
                (None, Some(more)) => each(off, &more, STEP),
                (None, None) => vec![0.0; off.len()],
            });
        }
        Ok(columns)
    }

    /// Returns the derivative of each number with respect to a parameter itself, upwards from its value, in
    /// units that it also returns. A unit is the change whose effect, extrapolated, equals all measurements
    /// (of length `length`). It is at most [`CAP`] times the plausible value of the parameter.
    pub(super) fn linear_derivative(
        &self,
        found: &SearchResult,
        place: usize,
        length: f64,
    ) -> Result<(f64, Vec<f64>), InputError> {
        let value = found.point[place].exp();
        let most = CAP * value.max(self.start[place].exp());
        let moved = |by: f64| -> Result<Option<Vec<f64>>, InputError> {
            let mut at = found.point.clone();
            at[place] = (value + by).ln();
            let off = self.off(&at)?;
            Ok(off.map(|off| off.iter().zip(&found.residuals).map(|(one, other)| one - other).collect()))
        };
        let mut step = most;
        for _ in 0..MOST {
            // As far as the differences of logarithms go.
            let whole = moved(step)?.filter(|own| sum_of_squares(own).sqrt() <= 2.0 * STEP * length);
            let (Some(whole), Some(half)) = (whole, moved(step / 2.0)?) else {
                step /= 2.0;
                continue;
            };
            // Richardson extrapolation: as accurate as a central difference, which is impossible here.
            let slope: Vec<f64> =
                whole.iter().zip(&half).map(|(whole, half)| (4.0 * half - whole) / step).collect();
            let steep = sum_of_squares(&slope).sqrt();
            let unit = if steep > 0.0 { (length / steep).min(most) } else { most };
            return Ok((unit, slope.iter().map(|own| own * unit).collect()));
        }
        Ok((most, vec![0.0; found.residuals.len()]))
    }

    /// Searches from this point; `None` if the model is overloaded there.
    pub(super) fn search(&self, from: &[f64]) -> Result<Option<SearchResult>, InputError> {
        let mut at = from.to_vec();
        let Some(mut off) = self.off(&at)? else { return Ok(None) };
        let mut damping = 1e-3;
        let mut converged = false;
        let mut columns = self.slopes(&at, &off)?;
        for _ in 0..MOST {
            let svd = SingularValueDecomposition::of(columns.clone());
            let greatest = svd.values.first().copied().unwrap_or(0.0);
            if greatest <= 0.0 {
                converged = true;
                break;
            }
            let mut better = None;
            for _ in 0..12 {
                let mut step = svd.solve(&off, damping * greatest * greatest);
                let longest = step.iter().fold(0.0_f64, |most, own| most.max(own.abs()));
                let part = if longest > 1.0 { 1.0 / longest } else { 1.0 };
                step.iter_mut().for_each(|own| *own *= part);
                let next: Vec<f64> = at
                    .iter()
                    .zip(&step)
                    .zip(&self.start)
                    .map(|((own, step), begin)| (own - step).clamp(begin - FAR, begin + FAR))
                    .collect();
                let longest = next.iter().zip(&at).fold(0.0_f64, |most, (a, b)| most.max((a - b).abs()));
                if longest < 1e-6 {
                    converged = true;
                    break;
                }
                let found = self.off(&next)?.filter(|own| sum_of_squares(own) < sum_of_squares(&off));
                if let Some(own) = found {
                    damping = (damping / 10.0).max(1e-12);
                    better = Some((next, own));
                    break;
                }
                damping = (damping * 10.0).min(1e6);
            }
            let Some((next, own)) = better else {
                // No step reduces the sum of squares.
                converged = true;
                break;
            };
            let gained = 1.0 - sum_of_squares(&own) / sum_of_squares(&off);
            (at, off) = (next, own);
            columns = self.slopes(&at, &off)?;
            if gained < 1e-7 {
                converged = true;
                break;
            }
        }
        Ok(Some(SearchResult { point: at, residuals: off, jacobian: columns, converged }))
    }
}
