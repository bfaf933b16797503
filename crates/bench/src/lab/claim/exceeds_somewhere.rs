//! The claim that every curve lies above a bound in a region: the whole intervals of at least two
//! neighbouring points do.

use serde::Deserialize;

use super::{Verdict, format_estimate, format_number};
use crate::lab::experiment::{Factor, FactorLevel};
use crate::lab::metric::Metric;
use crate::lab::table::EstimateTable;

/// The curve of each level exceeds its bound at some levels of `along`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExceedsSomewhere {
    /// The metric.
    pub metric: Metric,
    /// The factor along which the region lies.
    pub along: Factor,
    /// The factor with one curve per level.
    pub series: Factor,
    /// The bound; by default the curve's own level: a speed-up above the number of servers is super-linear.
    #[serde(default)]
    pub bound: Option<f64>,
    /// The levels of `series` that the claim excludes.
    #[serde(default)]
    pub except: Vec<FactorLevel>,
}

impl ExceedsSomewhere {
    pub(super) fn decide(&self, table: &EstimateTable) -> Verdict {
        let mut pass = true;
        let mut numbers = Vec::new();
        for level in table.levels(self.series).iter().filter(|level| !self.except.contains(level)) {
            let curve = table.curve(self.metric, self.along, &[(self.series, level)]);
            let bound = self.bound.or_else(|| level.number()).unwrap_or(f64::INFINITY);
            let Some((x, best)) = curve.iter().max_by(|a, b| a.1.low().total_cmp(&b.1.low())) else {
                return Verdict::missing_points(&format!("no point has {} = {level}", self.series.name()));
            };
            let above: Vec<_> = curve.iter().filter(|(_, estimate)| estimate.low() > bound).collect();
            // A single point of many may be a chance result.
            let has_region = curve
                .windows(2)
                .any(|neighbours| neighbours.iter().all(|(_, estimate)| estimate.low() > bound));
            pass &= has_region;
            numbers.push(format!(
                "{} = {level}: {} at {} = {x}, {} {}; above at {} of {} points",
                self.series.name(),
                format_estimate(best),
                self.along.name(),
                if has_region { "above" } else { "not above" },
                format_number(bound),
                above.len(),
                curve.len(),
            ));
        }
        if numbers.is_empty() {
            return Verdict::missing_points("no curve");
        }
        Verdict { pass, decided: true, numbers }
    }
}

#[cfg(test)]
mod tests {
    use super::super::fixture::curves;
    use super::*;

    fn test(bound: Option<f64>) -> ExceedsSomewhere {
        ExceedsSomewhere {
            metric: Metric::Speedup,
            along: Factor::Concurrency,
            series: Factor::Endpoints,
            bound,
            except: vec![FactorLevel::Number(0.0)],
        }
    }

    #[test]
    fn every_curve_must_get_above_its_own_bound() {
        let rising =
            [(1.0, &[(25.0, 1.2), (50.0, 1.4)][..]), (2.0, &[(25.0, 1.1), (50.0, 2.9), (75.0, 2.5)])];
        assert!(test(None).decide(&curves(Metric::Speedup, 0.1, &rising)).pass);
        let flat = [(1.0, &[(25.0, 1.4), (50.0, 1.4)][..]), (2.0, &[(25.0, 1.5), (50.0, 1.9)])];
        let verdict = test(None).decide(&curves(Metric::Speedup, 0.1, &flat));
        assert!(!verdict.pass);
        assert!(verdict.numbers[1].contains("1.9 ± 0.1") && verdict.numbers[1].contains("not above 2"));
        assert!(test(Some(1.2)).decide(&curves(Metric::Speedup, 0.1, &flat)).pass);
        let alternating = [(1.0, &[(25.0, 0.9), (50.0, 1.4), (75.0, 0.9), (100.0, 1.4)][..])];
        assert!(!test(None).decide(&curves(Metric::Speedup, 0.1, &alternating)).pass);
    }

    #[test]
    fn an_interval_that_reaches_below_does_not_exceed() {
        let close_to_bound = [(1.0, &[(25.0, 1.05), (50.0, 1.05)][..])];
        assert!(!test(None).decide(&curves(Metric::Speedup, 0.1, &close_to_bound)).pass);
        assert!(test(None).decide(&curves(Metric::Speedup, 0.01, &close_to_bound)).pass);
        assert!(!test(None).decide(&curves(Metric::Speedup, 0.1, &[])).pass);
    }
}
