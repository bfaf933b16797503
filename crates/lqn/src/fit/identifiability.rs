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
const SLIGHT: f64 = 0.08;
/// The largest number of rows that are tried.
const TRIED: usize = 6;
/// The least change that is worth measuring.
const HELPS: f64 = 0.01;

/// Converts directions to doubts.
pub(super) fn unidentified_combinations(
    problem: &LeastSquaresProblem<'_>,
    at: &[f64],
    directions: Vec<Vec<f64>>,
) -> Vec<UnidentifiedCombination> {
    eliminated(directions)
        .into_iter()
        .map(|mut direction| {
            let greatest = direction.iter().fold(0.0_f64, |most, own| most.max(own.abs()));
            let first = direction.iter().position(|own| own.abs() >= 0.999 * greatest).unwrap_or(0);
            let scale = 1.1_f64.ln() / direction[first];
            direction.iter_mut().for_each(|own| {
                *own = if own.abs() < SLIGHT * greatest { 0.0 } else { *own * scale };
            });
            let mut together: Vec<(String, f64)> = Vec::new();
            let order = std::iter::once(first).chain((0..direction.len()).filter(|place| *place != first));
            for place in order.filter(|place| direction[*place] != 0.0) {
                together.push((problem.names[place].clone(), direction[place].exp()));
            }
            UnidentifiedCombination { measure: hints(problem, at, &direction), together }
        })
        .collect()
}

/// Returns directions with few components that span the same space: the reduced row echelon form with the
/// greatest pivots.
fn eliminated(mut rows: Vec<Vec<f64>>) -> Vec<Vec<f64>> {
    let mut pivots: Vec<usize> = Vec::new();
    for done in 0..rows.len() {
        let columns = rows[done].len();
        let open = (done..rows.len()).flat_map(|row| (0..columns).map(move |column| (row, column)));
        let best = open
            .filter(|(_, column)| !pivots.contains(column))
            .max_by(|one, other| rows[one.0][one.1].abs().total_cmp(&rows[other.0][other.1].abs()));
        let Some((row, column)) = best.filter(|(row, column)| rows[*row][*column].abs() > 1e-9) else {
            break;
        };
        pivots.push(column);
        rows.swap(done, row);
        let under = rows[done][column];
        rows[done].iter_mut().for_each(|own| *own /= under);
        let pivot = rows[done].clone();
        for (place, other) in rows.iter_mut().enumerate().filter(|(place, _)| *place != done) {
            let _ = place;
            let times = other[column];
            other.iter_mut().zip(&pivot).for_each(|(own, pivot)| *own -= times * pivot);
        }
    }
    rows.truncate(pivots.len());
    rows
}

/// Returns the numbers that change most along this direction, at the loads of the rows.
fn hints(problem: &LeastSquaresProblem<'_>, at: &[f64], direction: &[f64]) -> Vec<SuggestedMeasurement> {
    let mut best: BTreeMap<(&'static str, String, &'static str), (f64, usize)> = BTreeMap::new();
    let every = problem.rows.len().div_ceil(TRIED).max(1);
    for (place, row) in problem.rows.iter().enumerate().step_by(every) {
        let moved = |by: f64| {
            let at: Vec<f64> = at.iter().zip(direction).map(|(own, along)| own + by * along).collect();
            let model = problem.model(row, &at).ok()?;
            let (found, how) = solve(&model);
            how.converged.then(|| result_lines(&model, &found))
        };
        let (Some(less), Some(more)) = (moved(-0.5), moved(0.5)) else { continue };
        for (one, other) in less.into_iter().zip(more) {
            // `busy` is equivalent to `utilization`, where that exists; phases are not measured on their own.
            let (a, b) = (one.value.mean, other.value.mean);
            if one.kind == ACTIVITY {
                continue;
            }
            if row.measured.iter().any(|seen| seen.matches(&one))
                || one.metric == "busy"
                || !(a > 0.0 && b > 0.0)
            {
                continue;
            }
            let change = (b / a).ln().abs();
            let known = best.entry((one.kind, one.name, one.metric)).or_insert((0.0, place));
            if change > known.0 {
                *known = (change, place);
            }
        }
    }
    let mut all: Vec<SuggestedMeasurement> = best
        .into_iter()
        .filter(|(_, (change, _))| *change > HELPS)
        .map(|((kind, name, metric), (change, place))| {
            let at = problem.rows[place].settings.clone();
            SuggestedMeasurement { kind, name, metric, at, change: change.exp_m1() }
        })
        .collect();
    // Utilizations are easy to measure and do not depend on waiting.
    let rank = |own: &SuggestedMeasurement| {
        (own.change * if own.metric == "utilization" { 1.5 } else { 1.0 }, own.kind == "entry")
    };
    all.sort_by(|one, other| {
        let (one, other) = (rank(one), rank(other));
        other.0.total_cmp(&one.0).then(one.1.cmp(&other.1))
    });
    all.truncate(3);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directions_are_made_of_few_parts() {
        // A mixture of two pairs.
        let (one, other) = ([1.0, -1.0, 0.0, 0.0], [0.0, 0.0, 1.0, -0.5]);
        let mix =
            |a: f64, b: f64| -> Vec<f64> { one.iter().zip(&other).map(|(x, y)| a * x + b * y).collect() };
        let found = eliminated(vec![mix(0.7, 0.7), mix(0.6, -0.8)]);
        assert_eq!(found.len(), 2);
        for own in &found {
            assert_eq!(own.iter().filter(|part| part.abs() > 1e-9).count(), 2, "{found:?}");
        }
        assert_eq!(eliminated(vec![vec![1.0, 2.0], vec![2.0, 4.0]]).len(), 1);
    }
}
