//! The claim that a metric changes by a given part from one level to another, within a tolerance: a cut of 47
//! % is a change by -0.47.
//!
//! The mean decides. If it misses the tolerance, but its interval is wider than the tolerance and reaches
//! into it, the claim is undecided.

use serde::Deserialize;

use super::{PointFilter, Verdict, format_estimate, format_number};
use crate::lab::experiment::{Factor, FactorLevel};
use crate::lab::metric::Metric;
use crate::lab::table::{EstimateTable, PointLevels, format_levels};

/// A change of known size, at all points that have both levels.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChangeClaim {
    /// The metric.
    pub metric: Metric,
    /// The factor that differs.
    pub factor: Factor,
    /// The level before the change.
    pub from: FactorLevel,
    /// The level after the change.
    pub to: FactorLevel,
    /// The change as a part of the first value; below 0 for a decrease.
    pub by: f64,
    /// The tolerance of the change.
    pub within: f64,
    /// The conditions on the points.
    #[serde(default)]
    pub only: Vec<PointFilter>,
}

impl ChangeClaim {
    /// Returns `true` if the test evaluates points with these levels.
    pub(super) fn uses_point(&self, levels: &PointLevels) -> bool {
        let level = levels.get(&self.factor);
        level.is_some_and(|level| *level == self.from || *level == self.to)
            && self.only.iter().all(|filter| filter.matches(levels))
    }

    pub(super) fn decide(&self, table: &EstimateTable) -> Verdict {
        let rows: Vec<_> = table.values(self.metric, |levels| self.uses_point(levels)).collect();
        let other_levels = |levels: &PointLevels| {
            let mut other_levels = levels.clone();
            other_levels.remove(&self.factor);
            other_levels
        };
        let is_at_level = |levels: &PointLevels, level: &FactorLevel| levels.get(&self.factor) == Some(level);
        let mut verdict = Verdict::new(true);
        let mut refuted = false;
        for (levels, first) in rows.iter().filter(|(levels, _)| is_at_level(levels, &self.from)) {
            let shared_levels = other_levels(levels);
            let Some((_, last)) = rows
                .iter()
                .find(|(levels, _)| is_at_level(levels, &self.to) && other_levels(levels) == shared_levels)
            else {
                return Verdict::missing_points(&format!(
                    "no {} at {}",
                    self.to,
                    format_levels(&shared_levels)
                ));
            };
            let ratio = last.ratio_to(first);
            let deviation = (ratio.mean - 1.0 - self.by).abs();
            let (holds, is_inconclusive) = (
                deviation <= self.within,
                ratio.half_width > self.within && deviation <= self.within + ratio.half_width,
            );
            verdict.pass &= holds;
            refuted |= !holds && !is_inconclusive;
            verdict.numbers.push(format!(
                "{}{}: from {} to {}, by {} ± {} %, expected {} ± {} %",
                match (holds, is_inconclusive) {
                    (true, _) => "",
                    (false, true) => "too vague at ",
                    (false, false) => "not at ",
                },
                format_levels(&shared_levels),
                format_estimate(first),
                format_estimate(last),
                format_number((ratio.mean - 1.0) * 100.0),
                format_number(ratio.half_width * 100.0),
                format_number(self.by * 100.0),
                format_number(self.within * 100.0),
            ));
        }
        if verdict.numbers.is_empty() {
            return Verdict::missing_points(&format!(
                "no point of {} with `{}`",
                self.from,
                self.metric.name()
            ));
        }
        verdict.decided = verdict.pass || refuted;
        verdict
    }
}

#[cfg(test)]
mod tests {
    use super::super::fixture::curves;
    use super::*;

    #[test]
    fn a_cut_is_a_change_below_zero() {
        let table = curves(Metric::Response, 0.1, &[(1.0, &[(24.0, 100.0)]), (8.0, &[(24.0, 53.0)])]);
        let test = |by, within| ChangeClaim {
            metric: Metric::Response,
            factor: Factor::Endpoints,
            from: FactorLevel::Number(1.0),
            to: FactorLevel::Number(8.0),
            by,
            within,
            only: vec![],
        };
        let verdict = test(-0.48, 0.02).decide(&table);
        assert!(verdict.pass && verdict.numbers[0].contains("by -47 ± "), "{verdict:?}");
        assert!(!test(-0.5, 0.02).decide(&table).pass && !test(0.47, 0.02).decide(&table).pass);
        let other_claim = ChangeClaim { to: FactorLevel::Number(4.0), ..test(-0.47, 0.1) };
        assert!(!other_claim.decide(&table).pass && !test(0.0, 1.0).decide(&EstimateTable::default()).pass);
    }

    #[test]
    fn what_is_too_vague_to_tell_is_not_decided() {
        let test = ChangeClaim {
            metric: Metric::Response,
            factor: Factor::Endpoints,
            from: FactorLevel::Number(1.0),
            to: FactorLevel::Number(2.0),
            by: 1.0,
            within: 0.02,
            only: vec![],
        };
        let verdict = |half_width, last_mean| {
            let table =
                curves(Metric::Response, half_width, &[(1.0, &[(1.0, 100.0)]), (2.0, &[(1.0, last_mean)])]);
            test.decide(&table)
        };
        let vague_verdict = verdict(3.0, 196.0);
        assert!(
            !vague_verdict.pass
                && !vague_verdict.decided
                && vague_verdict.numbers[0].starts_with("too vague at "),
            "{vague_verdict:?}"
        );
        // The mean is within the tolerance; far away; known precisely enough.
        let decided_verdicts = [verdict(3.0, 199.0), verdict(3.0, 160.0), verdict(0.1, 196.0)];
        assert_eq!(
            decided_verdicts.map(|verdict| (verdict.pass, verdict.decided)),
            [(true, true), (false, true), (false, true)]
        );
    }
}
