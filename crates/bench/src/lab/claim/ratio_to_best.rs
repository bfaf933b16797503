//! The claim that the ratio of one level to the best of others is bounded, at every point of comparison.
//!
//! The best is chosen anew at every point, which makes it hard to beat: no single rival is that good
//! everywhere. The mean of the ratio decides. If the bound claims that a level is better, and not only that
//! it is no worse, chance could meet it. The interval of the ratio must then exclude 1, too.

use serde::Deserialize;

use super::{PointFilter, Verdict, format_estimate, format_number};
use crate::lab::experiment::{Factor, FactorLevel};
use crate::lab::metric::Metric;
use crate::lab::statistics::Estimate;
use crate::lab::table::{EstimateTable, PointLevels, format_levels};

/// The ratio of level `of` to the best of `among`, with an upper or a lower bound.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RatioToBest {
    /// The metric.
    pub metric: Metric,
    /// The factor that distinguishes the two sides.
    pub series: Factor,
    /// The level under test.
    pub of: FactorLevel,
    /// The rival levels.
    pub among: Vec<FactorLevel>,
    /// The maximum ratio, for a metric that is better when it is less: the best rival has the minimum.
    #[serde(default)]
    pub at_most: Option<f64>,
    /// The minimum ratio, for a metric that is better when it is more: the best rival has the maximum.
    #[serde(default)]
    pub at_least: Option<f64>,
    /// Whether a mean that misses the bound by less than the ratio's interval leaves the claim undecided.
    /// More or longer repetitions, or an idle machine, would decide it.
    #[serde(default)]
    pub clear: bool,
    /// The conditions on the points.
    #[serde(default)]
    pub only: Vec<PointFilter>,
}

impl RatioToBest {
    /// Returns the reason why the test is invalid for any measurement.
    pub fn error(&self) -> Option<&'static str> {
        if self.at_most.is_some() == self.at_least.is_some() {
            return Some("a ratio needs either `at_most` or `at_least`");
        }
        let bound = self.bound();
        if !(bound.is_finite() && bound > 0.0) {
            return Some("the bound of a ratio is a number above 0");
        }
        (self.among.is_empty() || self.among.contains(&self.of))
            .then_some("a ratio needs levels to compare with in `among`, others than `of`")
    }

    /// Returns `true` if the test evaluates points with these levels.
    pub(super) fn uses_point(&self, levels: &PointLevels) -> bool {
        let level = levels.get(&self.series);
        let is_compared = level.is_some_and(|level| *level == self.of || self.among.contains(level));
        is_compared && self.only.iter().all(|filter| filter.matches(levels))
    }

    fn bound(&self) -> f64 {
        self.at_most.or(self.at_least).unwrap_or(f64::NAN)
    }

    /// Returns `true` if the mean of `one` is better than that of `other`.
    fn better(&self, estimate: &Estimate, other: &Estimate) -> bool {
        if self.at_most.is_some() { estimate.mean < other.mean } else { estimate.mean > other.mean }
    }

    fn meets_bound(&self, ratio: &Estimate) -> bool {
        let bound = self.bound();
        if self.at_most.is_some() {
            ratio.mean <= bound && (bound >= 1.0 || ratio.high() < 1.0)
        } else {
            ratio.mean >= bound && (bound <= 1.0 || ratio.low() > 1.0)
        }
    }

    /// Returns `true` if the ratio misses the bound by so little that it may be chance.
    fn is_inconclusive(&self, ratio: &Estimate) -> bool {
        let bound = self.bound();
        let may_reach = if self.at_most.is_some() { ratio.low() <= bound } else { ratio.high() >= bound };
        self.clear && may_reach && !self.meets_bound(ratio)
    }

    pub(super) fn decide(&self, table: &EstimateTable) -> Verdict {
        let other_levels = |levels: &PointLevels| {
            let mut other_levels = levels.clone();
            other_levels.remove(&self.series);
            other_levels
        };
        let rows: Vec<_> = table.values(self.metric, |levels| self.uses_point(levels)).collect();
        let (tested, competitors): (Vec<_>, Vec<_>) =
            rows.into_iter().partition(|(levels, _)| levels.get(&self.series) == Some(&self.of));
        if tested.is_empty() {
            return Verdict::missing_points(&format!(
                "no point of {} with `{}`",
                self.of,
                self.metric.name()
            ));
        }
        let mut verdict = Verdict::new(true);
        let mut refuted = false;
        for (levels, value) in tested {
            let shared_levels = other_levels(levels);
            let same_rivals = competitors.iter().filter(|(levels, _)| other_levels(levels) == shared_levels);
            let best_rival =
                same_rivals.reduce(
                    |current, candidate| {
                        if self.better(&candidate.1, &current.1) { candidate } else { current }
                    },
                );
            let Some((rival, best)) = best_rival else {
                return Verdict::missing_points(&format!(
                    "nothing to compare with at {}",
                    format_levels(&shared_levels)
                ));
            };
            let ratio = value.ratio_to(best);
            let (holds, is_inconclusive) = (self.meets_bound(&ratio), self.is_inconclusive(&ratio));
            verdict.pass &= holds;
            refuted |= !holds && !is_inconclusive;
            let rival_level = rival.get(&self.series).map_or_else(String::new, FactorLevel::to_string);
            verdict.numbers.push(format!(
                "{}{}: {} against {} of {rival_level}: a ratio of {}, bound {}",
                match (holds, is_inconclusive) {
                    (true, _) => "",
                    (false, true) => "not clear at ",
                    (false, false) => "not at ",
                },
                format_levels(&shared_levels),
                format_estimate(&value),
                format_estimate(best),
                format_estimate(&ratio),
                format_number(self.bound()),
            ));
        }
        let unmeasured = table.points_without(self.metric, |levels| self.uses_point(levels));
        verdict.pass &= unmeasured.is_empty();
        verdict.decided = verdict.pass || refuted || !unmeasured.is_empty();
        verdict.numbers.extend(
            unmeasured.iter().take(5).map(|levels| format!("not measured: {}", format_levels(levels))),
        );
        verdict
    }
}

#[cfg(test)]
mod tests {
    use super::super::fixture::curves;
    use super::super::{ClaimTest, Verdict};
    use super::*;

    fn test(at_most: Option<f64>, at_least: Option<f64>) -> RatioToBest {
        RatioToBest {
            metric: Metric::P99,
            series: Factor::Endpoints,
            of: FactorLevel::Number(1.0),
            among: vec![FactorLevel::Number(2.0), FactorLevel::Number(3.0)],
            at_most,
            at_least,
            clear: false,
            only: vec![],
        }
    }

    /// Level 1 against 2 and 3 at two loads; neither rival is the best at both.
    fn table(half_width: f64, mean: f64) -> EstimateTable {
        let (two, three): (&[_], &[_]) = (&[(50.0, 10.0), (75.0, 30.0)], &[(50.0, 12.0), (75.0, 20.0)]);
        curves(
            Metric::P99,
            half_width,
            &[(1.0, &[(50.0, mean), (75.0, 2.0 * mean)]), (2.0, two), (3.0, three)],
        )
    }

    #[test]
    fn what_may_be_chance_is_left_open() {
        let decide_clear = |half_width, mean| {
            RatioToBest { clear: true, ..test(Some(0.8), None) }.decide(&table(half_width, mean))
        };
        // 9 against 10, and 18 against 20.
        let outcome = |verdict: &Verdict| (verdict.pass, verdict.decided);
        assert_eq!(outcome(&decide_clear(0.1, 9.0)), (false, true));
        let open_verdict = decide_clear(3.0, 9.0);
        assert_eq!(outcome(&open_verdict), (false, false));
        assert!(open_verdict.numbers[0].starts_with("not clear at "), "{open_verdict:?}");
        assert_eq!(outcome(&decide_clear(0.1, 7.0)), (true, true));
        // One clear point is enough to refute it: 9.5 against 10 is not clear, 19 against 20 is.
        assert_eq!(outcome(&decide_clear(1.2, 9.5)), (false, true));
    }

    #[test]
    fn the_best_is_chosen_at_every_point() {
        let verdict = test(Some(0.8), None).decide(&table(0.1, 8.0));
        assert!(verdict.pass, "{verdict:?}");
        assert!(verdict.numbers[0].contains("8 ± 0.1 against 10 ± 0.1 of 2: a ratio of 0.8"), "{verdict:?}");
        assert!(verdict.numbers[1].contains("20 ± 0.1 of 3"), "{verdict:?}");
        let verdict = test(Some(0.8), None).decide(&table(0.1, 9.0));
        assert!(!verdict.pass && verdict.numbers[0].starts_with("not at concurrency=50"), "{verdict:?}");
        let at_least = test(None, Some(0.25)).decide(&table(0.1, 8.0));
        assert!(at_least.pass && at_least.numbers[0].contains("of 3"), "{at_least:?}");
    }

    #[test]
    fn what_may_be_chance_is_not_better() {
        assert!(!test(Some(0.8), None).decide(&table(2.0, 8.0)).pass);
        // A claim to be no worse needs no such distance.
        assert!(test(Some(1.1), None).decide(&table(2.0, 10.0)).pass);
    }

    #[test]
    fn a_side_that_is_missing_shows_nothing() {
        let only_tested = curves(Metric::P99, 0.1, &[(1.0, &[(50.0, 1.0)])]);
        let only_rivals = curves(Metric::P99, 0.1, &[(2.0, &[(50.0, 1.0)])]);
        for table in [only_tested, only_rivals, EstimateTable::default()] {
            assert!(!test(Some(0.8), None).decide(&table).pass);
        }
        assert!(test(None, None).error().is_some() && test(Some(1.0), Some(1.0)).error().is_some());
        assert!(test(Some(0.0), None).error().is_some() && test(Some(0.8), None).error().is_none());
    }

    #[test]
    fn it_is_not_asked_of_points_that_lack_a_side() {
        let levels_of = |level| PointLevels::from([(Factor::Endpoints, FactorLevel::Number(level))]);
        let is_decidable = |levels: &[f64]| {
            let levels: Vec<PointLevels> = levels.iter().map(|level| levels_of(*level)).collect();
            ClaimTest::RatioToBest(test(Some(0.8), None)).is_decidable_by(&levels.iter().collect::<Vec<_>>())
        };
        assert!(is_decidable(&[1.0, 3.0]) && is_decidable(&[0.0, 2.0, 1.0]));
        assert!(
            !is_decidable(&[1.0])
                && !is_decidable(&[2.0, 3.0])
                && !is_decidable(&[1.0, 4.0])
                && !is_decidable(&[])
        );
    }

    #[test]
    fn what_is_left_out_leaves_a_win_open_but_not_a_loss() {
        let decide = |mean: f64| {
            let mut table = table(0.1, mean);
            let levels = PointLevels::from([
                (Factor::Endpoints, FactorLevel::Number(3.0)),
                (Factor::Concurrency, FactorLevel::Number(90.0)),
            ]);
            table.push_skipped(levels, "it is not installed");
            ClaimTest::RatioToBest(test(Some(0.8), None)).decide(&table)
        };
        let Verdict { pass, decided, numbers } = decide(8.0);
        assert!(!pass && !decided && numbers.last().unwrap().contains("it is not installed"), "{numbers:?}");
        let refuted = decide(9.5);
        assert!(!refuted.pass && refuted.decided, "{refuted:?}");
    }
}
