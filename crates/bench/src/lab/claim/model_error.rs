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

use super::{Only, Verdict, digits, shown};
use crate::lab::column::Column;
use crate::lab::metric::Metric;
use crate::lab::table::{Levels, Table, name};

/// Bounds on the errors of a model.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelError {
    /// The metric.
    #[serde(default = "response")]
    pub metric: Metric,
    /// The column: formulas, or simulation.
    #[serde(default = "model")]
    pub by: Column,
    /// The maximum mean of the absolute errors: 0.03 is 3 %.
    #[serde(default)]
    pub mean: Option<f64>,
    /// The maximum absolute error.
    #[serde(default)]
    pub worst: Option<f64>,
    /// The conditions on the points.
    #[serde(default)]
    pub only: Vec<Only>,
}

const fn response() -> Metric {
    Metric::Response
}

const fn model() -> Column {
    Column::Model
}

impl ModelError {
    /// Returns the reason why the test is invalid for any measurement.
    pub fn wrong(&self) -> Option<&'static str> {
        if self.by == Column::Measured {
            return Some("an error is of the columns `model` and `simulated`");
        }
        let bounds = [self.mean, self.worst];
        let fine = bounds.iter().flatten().all(|bound| bound.is_finite() && *bound > 0.0);
        (bounds == [None, None] || !fine).then_some("an error needs `mean` or `worst`, numbers above 0")
    }

    /// Returns `true` if the test evaluates points with these levels.
    pub(super) fn looks_at(&self, levels: &Levels) -> bool {
        self.only.iter().all(|only| only.keeps(levels))
    }

    pub(super) fn decide(&self, table: &Table) -> Verdict {
        let mut verdict = Verdict::new(true);
        let mut errors = Vec::new();
        let mut lacking = Vec::new();
        for row in table.pairs(self.metric, self.by, |levels| self.looks_at(levels)) {
            match row {
                (levels, Some(measured), Some(said)) if measured.mean != 0.0 => {
                    errors.push((levels, measured, said, said.mean / measured.mean - 1.0));
                }
                (levels, ..) => lacking.push(format!("not measured or not modelled: {}", name(levels))),
            }
        }
        let order = |error: &f64| error.abs();
        let worst = errors.iter().max_by(|one, other| order(&one.3).total_cmp(&order(&other.3)));
        let Some((levels, measured, said, error)) = worst else {
            return Verdict::nothing(&format!("no point with `{}` of both", self.metric.name()));
        };
        let mean = errors.iter().map(|(.., error)| error.abs()).sum::<f64>() / errors.len() as f64;
        let percent = |value: f64| format!("{} %", digits(value * 100.0));
        let bound = |bound: Option<f64>| {
            bound.map_or_else(String::new, |bound| format!(", bound {}", percent(bound)))
        };
        verdict.numbers = vec![
            format!("mean error {} over {} points{}", percent(mean), errors.len(), bound(self.mean)),
            format!(
                "worst {} at {}: {} against {} measured{}",
                percent(*error),
                name(levels),
                digits(said.mean),
                shown(measured),
                bound(self.worst)
            ),
        ];
        verdict.pass = self.mean.is_none_or(|bound| mean <= bound)
            && self.worst.is_none_or(|bound| error.abs() <= bound)
            && lacking.is_empty();
        verdict.numbers.extend(lacking.into_iter().take(5));
        verdict
    }
}

#[cfg(test)]
mod tests {
    use super::super::fixture::predicted;
    use super::*;

    fn test(mean: Option<f64>, worst: Option<f64>) -> ModelError {
        ModelError { metric: Metric::Response, by: Column::Model, mean, worst, only: vec![] }
    }

    #[test]
    fn errors_are_against_what_was_measured() {
        // 2 % too low and 4 % too high.
        let table = predicted(Column::Model, &[(10.0, 100.0, 98.0), (20.0, 50.0, 52.0)]);
        let decide = |mean, worst| test(mean, worst).decide(&table);
        assert!(decide(Some(0.031), Some(0.041)).pass);
        assert!(!decide(Some(0.029), None).pass && !decide(None, Some(0.039)).pass);
        let said = decide(Some(0.03), None).numbers;
        assert!(said[0].starts_with("mean error 3 % over 2 points, bound 3 %"), "{said:?}");
        assert!(said[1].starts_with("worst 4 % at concurrency=20: 52 against 50"), "{said:?}");
        let others = ModelError { by: Column::Simulated, ..test(Some(1.0), None) };
        assert!(!others.decide(&table).pass, "nothing was simulated");
    }

    #[test]
    fn a_point_without_a_number_fails() {
        let mut table = predicted(Column::Model, &[(10.0, 100.0, 100.0)]);
        table.push(Levels::new(), std::collections::BTreeMap::new());
        let verdict = test(Some(0.1), None).decide(&table);
        assert!(
            !verdict.pass && verdict.numbers[2].starts_with("not measured or not modelled"),
            "{verdict:?}"
        );
        assert!(test(None, None).wrong().is_some() && test(Some(-1.0), None).wrong().is_some());
    }
}
