//! The claim that each curve lies lower than the one before, by its mean over all levels or by its maximum.
//!
//! No step may rise beyond the intervals, and the last curve must lie below the first by more than the
//! intervals.

use serde::Deserialize;

use super::{Verdict, format_estimate};
use crate::lab::experiment::{Factor, FactorLevel};
use crate::lab::metric::Metric;
use crate::lab::statistics::Estimate;
use crate::lab::table::EstimateTable;

/// The fall of `metric` from one level of `by` to the next.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FallsWith {
    /// The metric.
    pub metric: Metric,
    /// The factor with one curve per level.
    pub by: Factor,
    /// The factor over which each curve is reduced to one number.
    pub along: Factor,
    /// The reduction.
    #[serde(default)]
    pub take: CurveReduction,
    /// The levels of `by` that the claim excludes.
    #[serde(default)]
    pub except: Vec<FactorLevel>,
}

/// The reduction of a curve to one number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CurveReduction {
    /// The mean of all its points.
    #[default]
    Mean,
    /// The maximum.
    Most,
}

impl FallsWith {
    pub(super) fn decide(&self, table: &EstimateTable) -> Verdict {
        let mut values = Vec::new();
        let mut numbers = Vec::new();
        for level in table.levels(self.by).iter().filter(|level| !self.except.contains(level)) {
            let curve = table.curve(self.metric, self.along, &[(self.by, level)]);
            let Some((value, description)) = self.reduce(&curve) else {
                return Verdict::missing_points(&format!("no point has {} = {level}", self.by.name()));
            };
            values.push(value);
            numbers.push(format!("{} = {level}: {}{description}", self.by.name(), format_estimate(&value)));
        }
        let never_rises = values.windows(2).all(|pair| !pair[0].is_below(&pair[1]));
        let falls = values.first().zip(values.last()).is_some_and(|(first, last)| last.is_below(first));
        if values.is_empty() {
            return Verdict::missing_points("no curve");
        }
        Verdict { pass: never_rises && falls, decided: true, numbers }
    }

    /// Returns the number, and a note on its origin.
    fn reduce(&self, curve: &[(f64, Estimate)]) -> Option<(Estimate, String)> {
        match self.take {
            CurveReduction::Most => {
                let (x, estimate) = curve.iter().max_by(|a, b| a.1.mean.total_cmp(&b.1.mean))?;
                Some((*estimate, format!(" at {} = {x}, its greatest", self.along.name())))
            }
            CurveReduction::Mean => {
                let count = curve.len() as f64;
                let samples = curve.iter().map(|(_, estimate)| estimate.samples).min()?;
                let mean = curve.iter().map(|(_, estimate)| estimate.mean).sum::<f64>() / count;
                // Independent points: the squares of their errors add.
                let squares = curve.iter().map(|(_, estimate)| estimate.half_width.powi(2)).sum::<f64>();
                let half_width = squares.sqrt() / count;
                Some((
                    Estimate { mean, half_width, samples },
                    format!(", the mean of {} points", curve.len()),
                ))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::fixture::curves;
    use super::*;

    fn verdict(take: CurveReduction, half_width: f64, third: &[(f64, f64)]) -> Verdict {
        let (first, second): (&[_], &[_]) = (&[(25.0, 1.5), (50.0, 1.4)], &[(25.0, 1.0), (50.0, 1.45)]);
        let table = curves(Metric::Efficiency, half_width, &[(1.0, first), (2.0, second), (3.0, third)]);
        FallsWith {
            metric: Metric::Efficiency,
            by: Factor::Endpoints,
            along: Factor::Concurrency,
            take,
            except: vec![],
        }
        .decide(&table)
    }

    #[test]
    fn by_the_mean_and_by_the_greatest() {
        assert!(verdict(CurveReduction::Mean, 0.02, &[(25.0, 0.7), (50.0, 1.2)]).pass);
        let verdict = verdict(CurveReduction::Most, 0.02, &[(25.0, 0.7), (50.0, 1.2)]);
        assert!(verdict.pass);
        assert_eq!(verdict.numbers[2], "endpoints = 3: 1.2 ± 0.02 at concurrency = 50, its greatest");
    }

    #[test]
    fn one_curve_cannot_fall() {
        let table = curves(Metric::Efficiency, 0.01, &[(1.0, &[(25.0, 1.5)])]);
        let (by, along) = (Factor::Endpoints, Factor::Concurrency);
        let test =
            FallsWith { metric: Metric::Efficiency, by, along, take: CurveReduction::Mean, except: vec![] };
        assert!(!test.decide(&table).pass && !test.decide(&EstimateTable::default()).pass);
    }

    #[test]
    fn a_rise_or_a_fall_within_the_intervals_fails() {
        assert!(!verdict(CurveReduction::Mean, 0.02, &[(25.0, 1.3), (50.0, 1.5)]).pass);
        assert!(!verdict(CurveReduction::Most, 0.02, &[(25.0, 1.6)]).pass);
        assert!(!verdict(CurveReduction::Mean, 0.9, &[(25.0, 0.7), (50.0, 1.2)]).pass);
    }
}
