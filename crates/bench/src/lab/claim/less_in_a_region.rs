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
        let (low, high) = (curve(&self.of), curve(&self.than));
        let mut pairs = Vec::new();
        for (x, of) in &low {
            if let Some((_, than)) = high.iter().find(|(other, _)| other == x) {
                pairs.push((*x, *of, *than));
            }
        }
        if pairs.is_empty() {
            return Verdict::missing_points("the two curves have no point in common");
        }
        let region: Vec<_> = pairs.iter().filter(|(_, of, than)| of.is_below(than)).collect();
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
        let gap = |(_, of, than): &&(f64, _, _)| ratio(of, than);
        if let Some(best) = pairs.iter().min_by(|a, b| gap(a).total_cmp(&gap(b))) {
            let (x, of, than) = best;
            numbers.push(format!("at {x}: {} against {}", format_estimate(of), format_estimate(than)));
        }
        // A single point of many may be a chance result.
        let pass = pairs.windows(2).any(|next| next.iter().all(|(_, of, than)| of.is_below(than)));
        if !pass && !region.is_empty() {
            numbers.push("but not at two neighbouring points, which make a region".to_owned());
        }
        Verdict { pass, decided: true, numbers }
    }
}

fn ratio(of: &crate::lab::statistics::Estimate, than: &crate::lab::statistics::Estimate) -> f64 {
    of.mean / than.mean
}

#[cfg(test)]
mod tests {
    use super::super::fixture::curves;
    use super::*;

    fn verdict(half: f64, one: &[(f64, f64)]) -> Verdict {
        let table =
            curves(Metric::Response, half, &[(0.0, &[(25.0, 3.0), (50.0, 4.0), (75.0, 9.0)]), (1.0, one)]);
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
        let one = verdict(0.1, &[(25.0, 3.5), (50.0, 3.0), (75.0, 12.0)]);
        assert!(!one.pass);
        assert_eq!(one.numbers[0], "less at 1 of 3 points, from concurrency = 50 to 50");
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
