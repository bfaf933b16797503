//! The claim that the error of a model is bounded, in the mean and at its maximum.
//!
//! The error at a point is
//!
//! ```text
//! model / measured mean - 1
//! ```
//!
//! and therefore below 0 where the model is too low, as in the papers. Means are of its absolute value.

use serde::Deserialize;

use super::{PointFilter, Verdict, format_estimate, format_number};
use crate::lab::metric::Metric;
use crate::lab::result_source::ResultSource;
use crate::lab::table::{EstimateTable, PointLevels, format_levels};

/// Bounds on the errors of a model.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelError {
    /// The metric.
    #[serde(default = "response")]
    pub metric: Metric,
    /// The column: formulas, or simulation.
    #[serde(default = "model")]
    pub by: ResultSource,
    /// The maximum mean of the absolute errors: 0.03 is 3 %.
    #[serde(default)]
    pub mean: Option<f64>,
    /// The maximum absolute error.
    #[serde(default)]
    pub worst: Option<f64>,
    /// The conditions on the points.
    #[serde(default)]
    pub only: Vec<PointFilter>,
}

const fn response() -> Metric {
    Metric::Response
}

const fn model() -> ResultSource {
    ResultSource::Model
}

impl ModelError {
    /// Returns the reason why the test is invalid for any measurement.
    pub fn error(&self) -> Option<&'static str> {
        if self.by == ResultSource::Measured {
            return Some("an error is of the columns `model` and `simulated`");
        }
        let bounds = [self.mean, self.worst];
        let are_positive = bounds.iter().flatten().all(|bound| bound.is_finite() && *bound > 0.0);
        (bounds == [None, None] || !are_positive)
            .then_some("an error needs `mean` or `worst`, numbers above 0")
    }

    /// Returns `true` if the test evaluates points with these levels.
    pub(super) fn uses_point(&self, levels: &PointLevels) -> bool {
        self.only.iter().all(|filter| filter.matches(levels))
    }

    pub(super) fn decide(&self, table: &EstimateTable) -> Verdict {
        let mut verdict = Verdict::new(true);
        let mut errors = Vec::new();
        let mut unmodelled = Vec::new();
        for row in table.modelled_pairs(self.metric, self.by, |levels| self.uses_point(levels)) {
            match row {
                (levels, Some(measured), Some(predicted)) if measured.mean != 0.0 => {
                    errors.push((levels, measured, predicted, predicted.mean / measured.mean - 1.0));
                }
                (levels, ..) => {
                    unmodelled.push(format!("not measured or not modelled: {}", format_levels(levels)))
                }
            }
        }
        let magnitude = |error: &f64| error.abs();
        let worst = errors.iter().max_by(|left, right| magnitude(&left.3).total_cmp(&magnitude(&right.3)));
        let Some((levels, measured, predicted, error)) = worst else {
            return Verdict::missing_points(&format!("no point with `{}` of both", self.metric.name()));
        };
        let mean = errors.iter().map(|(.., error)| error.abs()).sum::<f64>() / errors.len() as f64;
        let format_percent = |value: f64| format!("{} %", format_number(value * 100.0));
        let format_bound = |bound: Option<f64>| {
            bound.map_or_else(String::new, |bound| format!(", bound {}", format_percent(bound)))
        };
        verdict.numbers = vec![
            format!(
                "mean error {} over {} points{}",
                format_percent(mean),
                errors.len(),
                format_bound(self.mean)
            ),
            format!(
                "worst {} at {}: {} against {} measured{}",
                format_percent(*error),
                format_levels(levels),
                format_number(predicted.mean),
                format_estimate(measured),
                format_bound(self.worst)
            ),
        ];
        verdict.pass = self.mean.is_none_or(|bound| mean <= bound)
            && self.worst.is_none_or(|bound| error.abs() <= bound)
            && unmodelled.is_empty();
        verdict.numbers.extend(unmodelled.into_iter().take(5));
        verdict
    }
}

#[cfg(test)]
mod tests {
    use super::super::fixture::predicted;
    use super::*;

    fn test(mean: Option<f64>, worst: Option<f64>) -> ModelError {
        ModelError { metric: Metric::Response, by: ResultSource::Model, mean, worst, only: vec![] }
    }

    #[test]
    fn errors_are_against_what_was_measured() {
        // 2 % too low and 4 % too high.
        let table = predicted(ResultSource::Model, &[(10.0, 100.0, 98.0), (20.0, 50.0, 52.0)]);
        let decide = |mean, worst| test(mean, worst).decide(&table);
        assert!(decide(Some(0.031), Some(0.041)).pass);
        assert!(!decide(Some(0.029), None).pass && !decide(None, Some(0.039)).pass);
        let numbers = decide(Some(0.03), None).numbers;
        assert!(numbers[0].starts_with("mean error 3 % over 2 points, bound 3 %"), "{numbers:?}");
        assert!(numbers[1].starts_with("worst 4 % at concurrency=20: 52 against 50"), "{numbers:?}");
        let simulated_claim = ModelError { by: ResultSource::Simulated, ..test(Some(1.0), None) };
        assert!(!simulated_claim.decide(&table).pass, "nothing was simulated");
    }

    #[test]
    fn a_point_without_a_number_fails() {
        let mut table = predicted(ResultSource::Model, &[(10.0, 100.0, 100.0)]);
        table.push(PointLevels::new(), std::collections::BTreeMap::new());
        let verdict = test(Some(0.1), None).decide(&table);
        assert!(
            !verdict.pass && verdict.numbers[2].starts_with("not measured or not modelled"),
            "{verdict:?}"
        );
        assert!(test(None, None).error().is_some() && test(Some(-1.0), None).error().is_some());
    }
}
