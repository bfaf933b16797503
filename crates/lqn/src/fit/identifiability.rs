//! Finds what the measurements leave open: directions of the parameters in which no measured number changes,
//! and the numbers that would change.
//!
//! A direction belongs to a small singular value of the derivatives. Several directions are arbitrary
//! mixtures of one another; elimination reduces each to as few parameters as possible.

use std::collections::BTreeMap;

use serde::Serialize;

use super::levenberg_marquardt::LeastSquaresProblem;
use crate::analysis::{ACTIVITY, result_lines};
use crate::solve;

/// Parameters that can change together without changing a measured number.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct UnidentifiedCombination {
    /// The parameters with the factor of each: the combination that changes least if the first is 10 %
    /// greater.
    pub together: Vec<(String, f64)>,
    /// The measurements that would decide, the best first.
    pub measure: Vec<SuggestedMeasurement>,
}

/// A number that was not measured.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SuggestedMeasurement {
    /// The kind, as in [`crate::analysis::ResultLine::kind`].
    pub kind: &'static str,
    /// The name of the object.
    pub name: String,
    /// The metric, as in [`crate::analysis::ResultLine::metric`].
    pub metric: &'static str,
    /// The settings of the row at whose load it changes most.
    pub at: Vec<(String, f64)>,
    /// The relative change for the parameters of [`UnidentifiedCombination::together`].
    pub change: f64,
}

/// The share of a direction's greatest component below which another component is dropped.
const NEGLIGIBLE_PART: f64 = 0.08;
/// The largest number of rows that are tried.
const MAX_TRIED_ROWS: usize = 6;
/// The least change that is worth measuring.
const MIN_CHANGE: f64 = 0.01;

/// Converts directions to doubts.
pub(super) fn unidentified_combinations(
    problem: &LeastSquaresProblem<'_>,
    point: &[f64],
    directions: Vec<Vec<f64>>,
) -> Vec<UnidentifiedCombination> {
    eliminate(directions)
        .into_iter()
        .map(|mut direction| {
            let greatest =
                direction.iter().fold(0.0_f64, |max_so_far, component| max_so_far.max(component.abs()));
            let first =
                direction.iter().position(|component| component.abs() >= 0.999 * greatest).unwrap_or(0);
            let scale = 1.1_f64.ln() / direction[first];
            direction.iter_mut().for_each(|component| {
                *component =
                    if component.abs() < NEGLIGIBLE_PART * greatest { 0.0 } else { *component * scale };
            });
            let mut together: Vec<(String, f64)> = Vec::new();
            let order = std::iter::once(first).chain((0..direction.len()).filter(|index| *index != first));
            for index in order.filter(|index| direction[*index] != 0.0) {
                together.push((problem.names[index].clone(), direction[index].exp()));
            }
            UnidentifiedCombination { measure: hints(problem, point, &direction), together }
        })
        .collect()
}

/// Returns directions with few components that span the same space: the reduced row echelon form with the
/// greatest pivots.
fn eliminate(mut rows: Vec<Vec<f64>>) -> Vec<Vec<f64>> {
    let mut pivots: Vec<usize> = Vec::new();
    for pivot_index in 0..rows.len() {
        let columns = rows[pivot_index].len();
        let candidates =
            (pivot_index..rows.len()).flat_map(|row| (0..columns).map(move |column| (row, column)));
        let largest = candidates
            .filter(|(_, column)| !pivots.contains(column))
            .max_by(|left, right| rows[left.0][left.1].abs().total_cmp(&rows[right.0][right.1].abs()));
        let Some((row, column)) = largest.filter(|(row, column)| rows[*row][*column].abs() > 1e-9) else {
            break;
        };
        pivots.push(column);
        rows.swap(pivot_index, row);
        let divisor = rows[pivot_index][column];
        rows[pivot_index].iter_mut().for_each(|value| *value /= divisor);
        let pivot = rows[pivot_index].clone();
        for (index, other_row) in rows.iter_mut().enumerate().filter(|(index, _)| *index != pivot_index) {
            let _ = index;
            let factor = other_row[column];
            other_row.iter_mut().zip(&pivot).for_each(|(value, pivot_value)| *value -= factor * pivot_value);
        }
    }
    rows.truncate(pivots.len());
    rows
}

/// Returns the numbers that change most along this direction, at the loads of the rows.
fn hints(problem: &LeastSquaresProblem<'_>, point: &[f64], direction: &[f64]) -> Vec<SuggestedMeasurement> {
    let mut best_changes: BTreeMap<(&'static str, String, &'static str), (f64, usize)> = BTreeMap::new();
    let row_stride = problem.rows.len().div_ceil(MAX_TRIED_ROWS).max(1);
    for (index, row) in problem.rows.iter().enumerate().step_by(row_stride) {
        let moved_results = |step: f64| {
            let moved_point: Vec<f64> = point
                .iter()
                .zip(direction)
                .map(|(coordinate, component)| coordinate + step * component)
                .collect();
            let model = problem.model(row, &moved_point).ok()?;
            let (results, convergence) = solve(&model);
            convergence.converged.then(|| result_lines(&model, &results))
        };
        let (Some(lower), Some(upper)) = (moved_results(-0.5), moved_results(0.5)) else { continue };
        for (lower_line, upper_line) in lower.into_iter().zip(upper) {
            // `busy` is equivalent to `utilization`, where that exists; phases are not measured on their own.
            let (lower_mean, upper_mean) = (lower_line.value.mean, upper_line.value.mean);
            if lower_line.kind == ACTIVITY {
                continue;
            }
            if row.measured.iter().any(|measured| measured.matches(&lower_line))
                || lower_line.metric == "busy"
                || !(lower_mean > 0.0 && upper_mean > 0.0)
            {
                continue;
            }
            let change = (upper_mean / lower_mean).ln().abs();
            let best_change = best_changes
                .entry((lower_line.kind, lower_line.name, lower_line.metric))
                .or_insert((0.0, index));
            if change > best_change.0 {
                *best_change = (change, index);
            }
        }
    }
    let mut suggestions: Vec<SuggestedMeasurement> = best_changes
        .into_iter()
        .filter(|(_, (change, _))| *change > MIN_CHANGE)
        .map(|((kind, name, metric), (change, index))| {
            let settings = problem.rows[index].settings.clone();
            SuggestedMeasurement { kind, name, metric, at: settings, change: change.exp_m1() }
        })
        .collect();
    // Utilizations are easy to measure and do not depend on waiting.
    let rank = |suggestion: &SuggestedMeasurement| {
        (
            suggestion.change * if suggestion.metric == "utilization" { 1.5 } else { 1.0 },
            suggestion.kind == "entry",
        )
    };
    suggestions.sort_by(|left, right| {
        let (left_rank, right_rank) = (rank(left), rank(right));
        right_rank.0.total_cmp(&left_rank.0).then(left_rank.1.cmp(&right_rank.1))
    });
    suggestions.truncate(3);
    suggestions
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directions_are_made_of_few_parts() {
        // A mixture of two pairs.
        let (first, second) = ([1.0, -1.0, 0.0, 0.0], [0.0, 0.0, 1.0, -0.5]);
        let mix =
            |a: f64, b: f64| -> Vec<f64> { first.iter().zip(&second).map(|(x, y)| a * x + b * y).collect() };
        let reduced = eliminate(vec![mix(0.7, 0.7), mix(0.6, -0.8)]);
        assert_eq!(reduced.len(), 2);
        for direction in &reduced {
            assert_eq!(direction.iter().filter(|part| part.abs() > 1e-9).count(), 2, "{reduced:?}");
        }
        assert_eq!(eliminate(vec![vec![1.0, 2.0], vec![2.0, 4.0]]).len(), 1);
    }
}
