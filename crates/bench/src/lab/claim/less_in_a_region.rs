//! The claim that one curve lies below another in a region: the whole intervals of at least two neighbouring
//! points do.

use serde::Deserialize;

use super::{Verdict, format_estimate};
use crate::lab::experiment::{Factor, FactorLevel};
use crate::lab::metric::Metric;
use crate::lab::table::EstimateTable;

/// The metric at level `of` is below that at `than` for some levels of `along`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LessInARegion {
    /// The metric.
    pub metric: Metric,
    /// The factor along which the region lies.
    pub along: Factor,
    /// The factor that distinguishes the two curves.
    pub series: Factor,
    /// The level of the lower curve.
    pub of: FactorLevel,
    /// The level of the higher curve.
    pub than: FactorLevel,
}

impl LessInARegion {
    pub(super) fn decide(&self, table: &EstimateTable) -> Verdict {
        let curve = |level| table.curve(self.metric, self.along, &[(self.series, level)]);
        let (lower_curve, higher_curve) = (curve(&self.of), curve(&self.than));
        let mut pairs = Vec::new();
        for (x, lower) in &lower_curve {
            if let Some((_, higher)) = higher_curve.iter().find(|(other_x, _)| other_x == x) {
                pairs.push((*x, *lower, *higher));
            }
        }
        if pairs.is_empty() {
            return Verdict::missing_points("the two curves have no point in common");
        }
        let region: Vec<_> = pairs.iter().filter(|(_, lower, higher)| lower.is_below(higher)).collect();
        let mut numbers = Vec::new();
        if let (Some(first), Some(last)) = (region.first(), region.last()) {
            numbers.push(format!(
                "less at {} of {} points, from {} = {} to {}",
                region.len(),
                pairs.len(),
                self.along.name(),
                first.0,
                last.0
            ));
        } else {
            numbers.push(format!("less at none of {} points", pairs.len()));
        }
        let ratio_of = |(_, lower, higher): &&(f64, _, _)| ratio(lower, higher);
        if let Some(best) = pairs.iter().min_by(|a, b| ratio_of(a).total_cmp(&ratio_of(b))) {
            let (x, lower, higher) = best;
            numbers.push(format!("at {x}: {} against {}", format_estimate(lower), format_estimate(higher)));
        }
        // A single point of many may be a chance result.
        let pass = pairs
            .windows(2)
            .any(|neighbours| neighbours.iter().all(|(_, lower, higher)| lower.is_below(higher)));
        if !pass && !region.is_empty() {
            numbers.push("but not at two neighbouring points, which make a region".to_owned());
        }
        Verdict { pass, decided: true, numbers }
    }
}

fn ratio(lower: &crate::lab::statistics::Estimate, higher: &crate::lab::statistics::Estimate) -> f64 {
    lower.mean / higher.mean
}

#[cfg(test)]
mod tests {
    use super::super::fixture::curves;
    use super::*;

    fn verdict(half_width: f64, curve: &[(f64, f64)]) -> Verdict {
        let table = curves(
            Metric::Response,
            half_width,
            &[(0.0, &[(25.0, 3.0), (50.0, 4.0), (75.0, 9.0)]), (1.0, curve)],
        );
        LessInARegion {
            metric: Metric::Response,
            along: Factor::Concurrency,
            series: Factor::Endpoints,
            of: FactorLevel::Number(1.0),
            than: FactorLevel::Number(0.0),
        }
        .decide(&table)
    }

    #[test]
    fn two_neighbouring_points_are_a_region_and_one_is_not() {
        let single_point = verdict(0.1, &[(25.0, 3.5), (50.0, 3.0), (75.0, 12.0)]);
        assert!(!single_point.pass);
        assert_eq!(single_point.numbers[0], "less at 1 of 3 points, from concurrency = 50 to 50");
        assert!(!verdict(0.1, &[(25.0, 2.0), (50.0, 5.0), (75.0, 3.0)]).pass);
        assert!(verdict(0.1, &[(25.0, 3.5), (50.0, 3.0), (75.0, 3.0)]).pass);
    }

    #[test]
    fn curves_that_touch_within_their_intervals_or_do_not_meet_prove_nothing() {
        assert!(!verdict(0.6, &[(25.0, 3.5), (50.0, 3.0), (75.0, 12.0)]).pass);
        assert!(!verdict(0.1, &[(25.0, 3.5), (50.0, 5.0)]).pass);
        assert!(!verdict(0.1, &[(30.0, 1.0)]).pass);
        assert!(!verdict(0.1, &[]).pass);
    }
}
