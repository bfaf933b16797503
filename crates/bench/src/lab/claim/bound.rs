//! The claim that every point, or every point of a subset, is at or above a value, or at or below it. The
//! mean decides.
//!
//! Counts over a short time are imprecise: one move of eight sessions in twenty seconds is 0.4 per minute.
//! With `clear`, a point whose mean misses the bound while its interval reaches it leaves the claim
//! undecided.

use serde::Deserialize;

use super::{Verdict, format_estimate, format_number};
use crate::lab::experiment::{Factor, FactorLevel};
use crate::lab::metric::Metric;
use crate::lab::statistics::Estimate;
use crate::lab::table::{EstimateTable, PointLevels, format_levels};

/// A bound on all points with certain levels.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BoundClaim {
    /// The bounded metric.
    pub metric: Metric,
    /// The bound.
    pub value: f64,
    /// Whether a point breaks the bound only if its whole interval does.
    #[serde(default)]
    pub clear: bool,
    /// Whether the mean of all points is bounded, instead of each of them.
    #[serde(default)]
    pub mean: bool,
    /// The conditions on the points.
    #[serde(default)]
    pub only: Vec<PointFilter>,
}

/// A condition on the levels of a factor.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PointFilter {
    /// The factor.
    pub factor: Factor,
    /// The minimum number.
    #[serde(default)]
    pub from: Option<f64>,
    /// The maximum number.
    #[serde(default)]
    pub to: Option<f64>,
    /// The allowed levels.
    #[serde(default)]
    pub among: Option<Vec<FactorLevel>>,
}

impl PointFilter {
    /// Returns `true` if the condition allows one level only.
    pub fn is_single_level(&self) -> bool {
        self.among.as_ref().is_some_and(|among| among.len() == 1)
    }

    /// Returns `true` if the condition allows these levels.
    pub fn matches(&self, levels: &PointLevels) -> bool {
        let Some(level) = levels.get(&self.factor) else { return false };
        let meets = |bound: Option<f64>, compare: fn(f64, f64) -> bool| {
            bound.is_none_or(|bound| level.number().is_some_and(|number| compare(number, bound)))
        };
        meets(self.from, |number, bound| number >= bound)
            && meets(self.to, |number, bound| number <= bound)
            && self.among.as_ref().is_none_or(|among| among.contains(level))
    }
}

impl BoundClaim {
    /// Returns `true` if the test evaluates points with these levels.
    pub(super) fn uses_point(&self, levels: &PointLevels) -> bool {
        self.only.iter().all(|filter| filter.matches(levels))
    }

    pub(super) fn decide(&self, table: &EstimateTable, is_lower_bound: bool) -> Verdict {
        let is_used = |levels: &PointLevels| self.uses_point(levels);
        let mut points: Vec<_> = table.values(self.metric, is_used).collect();
        let overall = mean(points.iter().map(|(_, estimate)| estimate));
        let no_levels = PointLevels::new();
        if let Some(overall) = overall.filter(|_| self.mean) {
            points = vec![(&no_levels, overall)];
        }
        let holds = |mean: f64| if is_lower_bound { mean >= self.value } else { mean <= self.value };
        let sort_key = |mean: f64| if is_lower_bound { mean } else { -mean };
        let is_inconclusive = |estimate: &Estimate| {
            self.clear && holds(if is_lower_bound { estimate.high() } else { estimate.low() })
        };
        let Some((worst_levels, worst)) =
            points.iter().min_by(|a, b| sort_key(a.1.mean).total_cmp(&sort_key(b.1.mean)))
        else {
            return Verdict::missing_points(&format!("no point with `{}`", self.metric.name()));
        };
        let failed: Vec<_> = points.iter().filter(|(_, estimate)| !holds(estimate.mean)).collect();
        let mut numbers = vec![format!(
            "{} of {} points {} {}; the {} is {} ({})",
            points.len() - failed.len(),
            points.len(),
            if is_lower_bound { "at or above" } else { "at or below" },
            format_number(self.value),
            if is_lower_bound { "least" } else { "greatest" },
            format_estimate(worst),
            format_levels(worst_levels)
        )];
        numbers.extend(failed.iter().take(5).map(|(levels, value)| {
            format!(
                "{} {}: {}",
                if is_inconclusive(value) { "not clear at" } else { "not" },
                format_levels(levels),
                format_estimate(value)
            )
        }));
        let refuted = failed.iter().any(|(_, estimate)| !is_inconclusive(estimate));
        let unmeasured = table.points_without(self.metric, is_used);
        let describe_unmeasured = |levels: &&PointLevels| format!("not measured: {}", format_levels(levels));
        numbers.extend(unmeasured.iter().take(5).map(describe_unmeasured));
        let decided = failed.is_empty() || refuted || !unmeasured.is_empty();
        Verdict { pass: failed.is_empty() && unmeasured.is_empty(), decided, numbers }
    }
}

/// Returns the mean over points with equal weights; `None` if there are none.
fn mean<'a>(points: impl Iterator<Item = &'a Estimate>) -> Option<Estimate> {
    let points: Vec<&Estimate> = points.collect();
    let count = points.len() as f64;
    let mean = points.iter().map(|point| point.mean).sum::<f64>() / count;
    let half_width =
        points.iter().map(|point| point.half_width * point.half_width).sum::<f64>().sqrt() / count;
    let samples = points.iter().map(|point| point.samples).sum();
    (!points.is_empty()).then_some(Estimate { mean, half_width, samples })
}

#[cfg(test)]
mod tests {
    use super::super::fixture::curves;
    use super::*;

    fn bound(value: f64, only: Vec<PointFilter>) -> BoundClaim {
        BoundClaim { metric: Metric::Success, value, clear: false, mean: false, only }
    }

    #[test]
    fn every_point_counts_unless_it_is_left_out() {
        let table =
            curves(Metric::Success, 0.001, &[(1.0, &[(25.0, 1.0), (50.0, 0.9)]), (2.0, &[(25.0, 0.995)])]);
        assert!(bound(0.9, vec![]).decide(&table, true).pass);
        let verdict = bound(0.99, vec![]).decide(&table, true);
        assert!(!verdict.pass);
        assert!(verdict.numbers[0].starts_with("2 of 3 points at or above 0.99; the least is 0.9 ± 0.001"));
        let filter = PointFilter { factor: Factor::Concurrency, from: None, to: Some(40.0), among: None };
        assert!(bound(0.99, vec![filter]).decide(&table, true).pass);
        let two_endpoints = PointFilter {
            factor: Factor::Endpoints,
            from: None,
            to: None,
            among: Some(vec![FactorLevel::Number(2.0)]),
        };
        assert!(bound(0.999, vec![two_endpoints.clone()]).decide(&table, false).pass);
        assert!(!bound(0.99, vec![two_endpoints]).decide(&table, false).pass);
    }

    #[test]
    fn what_may_be_chance_is_left_open() {
        let decide = |half_width, is_lower_bound| {
            let table = curves(Metric::Success, half_width, &[(1.0, &[(25.0, 1.0), (50.0, 0.8)])]);
            let verdict = BoundClaim { clear: true, ..bound(0.9, vec![]) }.decide(&table, is_lower_bound);
            assert!(!verdict.pass);
            (verdict.decided, verdict.numbers[1].starts_with("not clear at "))
        };
        // One of the two is a tenth out of the bound, on either side of it.
        for is_lower_bound in [true, false] {
            assert_eq!(decide(0.2, is_lower_bound), (false, true));
            assert_eq!(decide(0.05, is_lower_bound), (true, false));
        }
    }

    #[test]
    fn the_mean_of_all_may_be_bounded() {
        let table = curves(Metric::Success, 0.3, &[(1.0, &[(25.0, 1.0), (50.0, 0.8)])]);
        let bound = |value| BoundClaim { mean: true, ..bound(value, vec![]) };
        let verdict = bound(0.89).decide(&table, true);
        assert!(verdict.pass, "{verdict:?}");
        assert!(verdict.numbers[0].contains("the least is 0.9 ± 0.2121 (all)"), "{verdict:?}");
        let verdict = bound(0.91).decide(&table, true);
        assert!(!verdict.pass && verdict.decided, "{verdict:?}");
    }

    #[test]
    fn a_point_without_the_metric_fails() {
        let mut table = curves(Metric::Success, 0.0, &[(1.0, &[(25.0, 1.0)])]);
        assert!(bound(0.5, vec![]).decide(&table, true).pass);
        let levels = PointLevels::from([(Factor::Endpoints, FactorLevel::Number(2.0))]);
        table.push(levels, std::collections::BTreeMap::new());
        let verdict = bound(0.5, vec![]).decide(&table, true);
        assert!(!verdict.pass && verdict.numbers[1] == "not measured: endpoints=2", "{verdict:?}");
    }

    #[test]
    fn no_point_shows_nothing() {
        assert!(!bound(0.0, vec![]).decide(&EstimateTable::default(), true).pass);
        let no_match = PointFilter { factor: Factor::Share, from: Some(1.0), to: None, among: None };
        let table = curves(Metric::Success, 0.0, &[(1.0, &[(25.0, 1.0)])]);
        assert!(!bound(0.0, vec![no_match]).decide(&table, true).pass);
    }
}
