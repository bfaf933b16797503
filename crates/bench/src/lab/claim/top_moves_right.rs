//! The claim that the top of each curve lies further right than that of the one before.
//!
//! Where a curve flattens out, the position of its maximum is noise. The top therefore begins at the first
//! level with a value within a share of the maximum, and that level must move. It may never move left from
//! one curve to the next, and must move right from the first to the last.

use serde::Deserialize;

use super::{Verdict, format_number};
use crate::lab::experiment::{Factor, FactorLevel};
use crate::lab::metric::Metric;
use crate::lab::table::EstimateTable;

/// The top of `metric` over `along` moves right from one level of `series` to the next.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TopMovesRight {
    /// The metric.
    pub metric: Metric,
    /// The factor of the horizontal axis.
    pub along: Factor,
    /// The factor with one curve per level, in the order of the levels.
    pub series: Factor,
    /// The distance from the maximum at which the top begins, as a share of the maximum.
    #[serde(default = "twentieth")]
    pub within: f64,
    /// The levels of `series` that the claim excludes.
    #[serde(default)]
    pub except: Vec<FactorLevel>,
}

const fn twentieth() -> f64 {
    0.05
}

impl TopMovesRight {
    pub(super) fn decide(&self, table: &EstimateTable) -> Verdict {
        let mut tops = Vec::new();
        let mut numbers = Vec::new();
        for level in table.levels(self.series).iter().filter(|level| !self.except.contains(level)) {
            let curve = table.curve(self.metric, self.along, &[(self.series, level)]);
            let maximum = curve.iter().map(|(_, estimate)| estimate.mean).fold(f64::NEG_INFINITY, f64::max);
            let Some((x, _)) =
                curve.iter().find(|(_, estimate)| estimate.mean >= (1.0 - self.within) * maximum)
            else {
                return Verdict::missing_points(&format!("no point has {} = {level}", self.series.name()));
            };
            tops.push(*x);
            numbers.push(format!(
                "{} = {level}: the top of {} begins at {} = {x}",
                self.series.name(),
                format_number(maximum),
                self.along.name()
            ));
        }
        let never_moves_left = tops.windows(2).all(|pair| pair[0] <= pair[1]);
        let moves_right = tops.len() > 1 && tops.first() < tops.last();
        if tops.is_empty() {
            return Verdict::missing_points("no curve");
        }
        Verdict { pass: never_moves_left && moves_right, decided: true, numbers }
    }
}

#[cfg(test)]
mod tests {
    use super::super::fixture::curves;
    use super::*;

    fn verdict(second: &[(f64, f64)]) -> Verdict {
        let first: &[(f64, f64)] = &[(25.0, 90.0), (50.0, 99.0), (75.0, 100.0), (100.0, 80.0)];
        let table = curves(Metric::Speed, 1.0, &[(1.0, first), (2.0, second)]);
        TopMovesRight {
            metric: Metric::Speed,
            along: Factor::Concurrency,
            series: Factor::Endpoints,
            within: 0.05,
            except: vec![],
        }
        .decide(&table)
    }

    #[test]
    fn the_beginning_of_the_top_counts_not_the_noise_on_it() {
        let verdict = verdict(&[(25.0, 90.0), (50.0, 150.0), (75.0, 195.0), (100.0, 200.0)]);
        assert!(verdict.pass);
        assert_eq!(verdict.numbers[0], "endpoints = 1: the top of 100 begins at concurrency = 50");
        assert_eq!(verdict.numbers[1], "endpoints = 2: the top of 200 begins at concurrency = 75");
    }

    #[test]
    fn a_top_that_stays_or_moves_left_fails() {
        assert!(!verdict(&[(25.0, 90.0), (50.0, 199.0), (75.0, 200.0)]).pass);
        assert!(!verdict(&[(25.0, 200.0), (50.0, 150.0)]).pass);
        assert!(!verdict(&[]).pass);
    }
}
