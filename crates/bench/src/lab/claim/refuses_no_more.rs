//! The claim that a balancer rejects hardly more than it must. The necessary rejections follow from the work
//! that the same balancer completed at far too high a load, not from the members' cores and speeds:
//!
//! ```text
//! necessary = max(0, 1 - utilisation at `full` / `share`)
//! ```
//!
//! Antagonists come and go, and requests that arrive during their activity cannot be deferred until it ends.
//! A fleet that is always full therefore completes less than the mean of its capacity, and a small fleet less
//! of it than a large one.
//!
//! The necessary part is measured, too, in runs of its own. If both numbers are so imprecise that the excess
//! may be chance, the claim is undecided.

use serde::Deserialize;

use super::{Verdict, format_estimate, format_number};
use crate::lab::experiment::{Factor, FactorLevel};
use crate::lab::metric::Metric;
use crate::lab::table::{EstimateTable, PointLevels};

/// A bound on the rejections of balancers at a `share` of the capacity: the part they cannot complete at the
/// share `full`, plus `within`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RefusesNoMore {
    /// The level of `share` at which the rejections are measured.
    pub share: f64,
    /// The greater level of `share` at which the completed work is measured.
    pub full: f64,
    /// The tolerance as a part of the requests: 0.015 is 1.5 %.
    pub within: f64,
    /// The balancers.
    pub of: Vec<FactorLevel>,
}

impl RefusesNoMore {
    /// Returns the reason why the test is invalid for any measurement.
    pub fn error(&self) -> Option<&'static str> {
        let is_positive = |number: f64| number.is_finite() && number > 0.0;
        if !(is_positive(self.share) && is_positive(self.full) && self.share < self.full) {
            return Some(
                "`refuses_no_more` needs a `full` that is greater than its `share`, and both above 0",
            );
        }
        if !is_positive(self.within) {
            return Some("`within` of `refuses_no_more` is a number above 0");
        }
        self.of.is_empty().then_some("`refuses_no_more` needs balancers in `of`")
    }

    /// Returns `true` if the test evaluates points with these levels.
    pub(super) fn uses_point(&self, levels: &PointLevels) -> bool {
        let share = levels.get(&Factor::Share).and_then(FactorLevel::number);
        levels.get(&Factor::Balancer).is_some_and(|level| self.of.contains(level))
            && share.is_some_and(|share| share == self.share || share == self.full)
    }

    pub(super) fn decide(&self, table: &EstimateTable) -> Verdict {
        let (mut verdict, mut refuted) = (Verdict::new(true), false);
        for balancer in &self.of {
            let estimate_at = |metric: Metric, share: f64| {
                let curve = table.curve(metric, Factor::Share, &[(Factor::Balancer, balancer)]);
                curve.into_iter().find(|(x, _)| *x == share).map(|(_, estimate)| estimate)
            };
            let (Some(refused), Some(utilisation)) =
                (estimate_at(Metric::Refused, self.share), estimate_at(Metric::Utilisation, self.full))
            else {
                return Verdict::missing_points(&format!(
                    "what {balancer} refuses at {}, or gets done at {}",
                    self.share, self.full
                ));
            };
            let required = (1.0 - utilisation.mean / self.share).max(0.0);
            let bound = required + self.within;
            let holds = refused.mean <= bound;
            let clearly_fails =
                refused.mean - refused.half_width.hypot(utilisation.half_width / self.share) > bound;
            verdict.pass &= holds;
            refuted |= clearly_fails;
            verdict.numbers.push(format!(
                "{}{balancer}: {} refused; {} must be, as {} of the capacity is got done at {}",
                match (holds, clearly_fails) {
                    (true, _) => "",
                    (false, true) => "not ",
                    (false, false) => "not clear, ",
                },
                format_estimate(&refused),
                format_number(required),
                format_estimate(&utilisation),
                self.full
            ));
        }
        verdict.decided = verdict.pass || refuted;
        verdict
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::lab::statistics::Estimate;

    fn verdict(refused: f64, utilisation: f64) -> Verdict {
        let balancer = FactorLevel::Text("plimsoll".to_owned());
        let mut table = EstimateTable::default();
        for (share, refused, utilisation) in [(1.05, refused, 0.97), (1.3, 0.3, utilisation)] {
            let levels = PointLevels::from([
                (Factor::Share, FactorLevel::Number(share)),
                (Factor::Balancer, balancer.clone()),
            ]);
            let estimate = |mean| Estimate { mean, half_width: 0.01, samples: 5 };
            let values = BTreeMap::from([
                (Metric::Refused, estimate(refused)),
                (Metric::Utilisation, estimate(utilisation)),
            ]);
            table.push(levels, values);
        }
        RefusesNoMore { share: 1.05, full: 1.3, within: 0.015, of: vec![balancer] }.decide(&table)
    }

    #[test]
    fn what_must_be_refused_is_what_the_same_balancer_cannot_get_done() {
        // The whole capacity can be used: 1 of 1.05, so 4.8 % must be rejected.
        assert!(verdict(0.06, 1.0).pass);
        let outcome = |verdict: Verdict| (verdict.pass, verdict.decided);
        // An excess of half a point is within the error of both numbers.
        assert_eq!(outcome(verdict(0.064, 1.0)), (false, false));
        assert_eq!(outcome(verdict(0.08, 1.0)), (false, true));
        // 0.95 of the capacity: 9.5 %.
        let passing = verdict(0.1, 0.95);
        assert!(passing.pass, "{passing:?}");
        let failing = verdict(0.125, 0.95);
        assert!(!failing.pass);
        assert_eq!(
            failing.numbers,
            ["not plimsoll: 0.125 ± 0.01 refused; 0.09524 must be, as 0.95 ± 0.01 of the capacity is got \
                 done at 1.3"]
        );
    }

    #[test]
    fn nothing_is_decided_by_points_that_are_not_there() {
        let test = RefusesNoMore { share: 1.0, full: 1.2, within: 0.01, of: vec![FactorLevel::Number(1.0)] };
        let verdict = test.decide(&EstimateTable::default());
        assert!(!verdict.pass && !verdict.has_points());
    }
}
