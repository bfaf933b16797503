//! Claims: statements that the results must support, each decided by a named test. One file per test.
//!
//! A test decides on estimates and lists the numbers that decided it. The confidence intervals of two
//! compared curves must not overlap. A claim fails if points are missing, because nothing was shown. If they
//! are missing because this machine lacks something, the claim is undecided.

use serde::{Deserialize, Serialize};

mod bottleneck;
mod bound;
mod changes;
mod exceeds_somewhere;
mod falls_with;
mod less_in_a_region;
mod model_error;
mod ratio_to_best;
mod refuses_no_more;
mod top_moves_right;

#[cfg(test)]
mod fixture;

pub use bottleneck::BottleneckClaim;
pub use bound::{BoundClaim, PointFilter};
pub use changes::ChangeClaim;
pub use exceeds_somewhere::ExceedsSomewhere;
pub use falls_with::{CurveReduction, FallsWith};
pub use less_in_a_region::LessInARegion;
pub use model_error::ModelError;
pub use ratio_to_best::RatioToBest;
pub use refuses_no_more::RefusesNoMore;
pub use top_moves_right::TopMovesRight;

use super::experiment::{Factor, FactorLevel};
use super::metric::Metric;
use super::table::{EstimateTable, PointLevels, format_levels};

/// The test of a claim.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum ClaimTest {
    /// One curve lies below another in a region.
    LessInARegion(LessInARegion),
    /// Every curve lies above a bound in a region.
    ExceedsSomewhere(ExceedsSomewhere),
    /// The top of each curve lies further right than that of the one before.
    TopMovesRight(TopMovesRight),
    /// Each curve lies lower than the one before.
    FallsWith(FallsWith),
    /// One level has a bounded ratio to the best of others, at every point.
    RatioToBest(RatioToBest),
    /// Every point is at or above a value.
    AtLeast(BoundClaim),
    /// Every point is at or below a value.
    AtMost(BoundClaim),
    /// A metric changes by a given part from one level to another.
    Changes(ChangeClaim),
    /// The balancer rejects hardly more than it must.
    RefusesNoMore(RefusesNoMore),
    /// The error of the model against the measurement is bounded.
    ModelError(ModelError),
    /// The bottleneck of the model is the given one.
    Bottleneck(BottleneckClaim),
}

/// The result of a test.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Verdict {
    /// Whether the results support the claim.
    pub pass: bool,
    /// Whether the claim is decided; an undecided claim does not pass either.
    pub decided: bool,
    /// The numbers that decided it, one fact per line.
    pub numbers: Vec<String>,
}

/// The beginning of the only fact of an empty verdict.
const NOTHING: &str = "nothing was measured";

impl Verdict {
    /// Creates a decided verdict, without numbers yet.
    fn new(pass: bool) -> Self {
        Self { pass, decided: true, numbers: Vec::new() }
    }

    /// Creates the verdict of a claim that fails because points are missing.
    fn missing_points(points: &str) -> Self {
        Self { pass: false, decided: true, numbers: vec![format!("{NOTHING}: {points}")] }
    }

    /// Creates the verdict of a claim that cannot be decided.
    pub(super) fn undecided(reason: &str) -> Self {
        Self { pass: false, decided: false, numbers: vec![reason.to_owned()] }
    }

    /// Returns `true` if there were points to evaluate.
    fn has_points(&self) -> bool {
        self.numbers.first().is_some_and(|number| !number.starts_with(NOTHING))
    }
}

impl ClaimTest {
    /// Decides the claim. If points were skipped because this machine lacks something, a claim about them is
    /// undecided, unless the existing points refute it.
    pub fn decide(&self, table: &EstimateTable) -> Verdict {
        let mut verdict = self.decide_measured(table);
        let skipped = table.skipped(|levels| self.uses_point(levels));
        // A single point can break a bound; a shape needs all its points.
        let is_pointwise = self.is_pointwise();
        let refuted = is_pointwise && verdict.has_points() && !verdict.pass && verdict.decided;
        if !skipped.is_empty() && !refuted {
            (verdict.pass, verdict.decided) = (false, false);
        }
        verdict.numbers.extend(
            skipped
                .iter()
                .take(5)
                .map(|(levels, reason)| format!("left out: {}: {reason}", format_levels(levels))),
        );
        verdict
    }

    /// Returns `true` if the test evaluates every point by itself, or compares only points that differ in the
    /// factor it names.
    pub fn is_pointwise(&self) -> bool {
        matches!(
            self,
            Self::AtLeast(_)
                | Self::AtMost(_)
                | Self::RatioToBest(_)
                | Self::Changes(_)
                | Self::RefusesNoMore(_)
                | Self::ModelError(_)
                | Self::Bottleneck(_)
        )
    }

    /// Returns `true` if the test is about the model in any column of the claim.
    pub fn is_about_model(&self) -> bool {
        matches!(self, Self::ModelError(_) | Self::Bottleneck(_))
    }

    /// Returns the reason why the test is invalid for any measurement.
    pub(super) fn error(&self) -> Option<&'static str> {
        match self {
            Self::RatioToBest(test) => test.error(),
            Self::ModelError(test) => test.error(),
            Self::RefusesNoMore(test) => test.error(),
            _ => None,
        }
    }

    /// Returns `true` if the test needs points with these levels.
    fn uses_point(&self, levels: &PointLevels) -> bool {
        let level_matches =
            |factor: Factor, holds: &dyn Fn(&FactorLevel) -> bool| levels.get(&factor).is_some_and(holds);
        match self {
            Self::LessInARegion(test) => {
                level_matches(test.series, &|level| *level == test.of || *level == test.than)
            }
            Self::ExceedsSomewhere(test) => level_matches(test.series, &|level| !test.except.contains(level)),
            Self::TopMovesRight(test) => level_matches(test.series, &|level| !test.except.contains(level)),
            Self::FallsWith(test) => level_matches(test.by, &|level| !test.except.contains(level)),
            Self::RatioToBest(test) => test.uses_point(levels),
            Self::AtLeast(bound) | Self::AtMost(bound) => bound.uses_point(levels),
            Self::Changes(test) => test.uses_point(levels),
            Self::RefusesNoMore(test) => test.uses_point(levels),
            Self::ModelError(test) => test.uses_point(levels),
            Self::Bottleneck(test) => test.uses_point(levels),
        }
    }

    /// Returns `true` if points with these levels can decide the test. The quick form of an experiment may
    /// have too few.
    pub fn is_decidable_by(&self, points: &[&PointLevels]) -> bool {
        let points: Vec<&PointLevels> =
            points.iter().copied().filter(|levels| self.uses_point(levels)).collect();
        let has_level = |factor: Factor, level: &FactorLevel| {
            points.iter().any(|levels| levels.get(&factor) == Some(level))
        };
        let has_several_levels =
            |factor: Factor| points.iter().any(|levels| levels.get(&factor) != points[0].get(&factor));
        match self {
            Self::LessInARegion(test) => {
                has_level(test.series, &test.of) && has_level(test.series, &test.than)
            }
            Self::RatioToBest(test) => {
                has_level(test.series, &test.of)
                    && test.among.iter().any(|rival| has_level(test.series, rival))
            }
            Self::Changes(test) => has_level(test.factor, &test.from) && has_level(test.factor, &test.to),
            Self::RefusesNoMore(test) => [test.share, test.full]
                .iter()
                .all(|share| has_level(Factor::Share, &FactorLevel::Number(*share))),
            Self::TopMovesRight(test) => has_several_levels(test.series),
            Self::FallsWith(test) => has_several_levels(test.by),
            Self::ExceedsSomewhere(_)
            | Self::AtLeast(_)
            | Self::AtMost(_)
            | Self::ModelError(_)
            | Self::Bottleneck(_) => !points.is_empty(),
        }
    }

    fn decide_measured(&self, table: &EstimateTable) -> Verdict {
        match self {
            Self::LessInARegion(test) => test.decide(table),
            Self::ExceedsSomewhere(test) => test.decide(table),
            Self::TopMovesRight(test) => test.decide(table),
            Self::FallsWith(test) => test.decide(table),
            Self::RatioToBest(test) => test.decide(table),
            Self::AtLeast(bound) => bound.decide(table, true),
            Self::AtMost(bound) => bound.decide(table, false),
            Self::Changes(test) => test.decide(table),
            Self::RefusesNoMore(test) => test.decide(table),
            Self::ModelError(test) => test.decide(table),
            Self::Bottleneck(test) => test.decide(table),
        }
    }

    /// Returns the factors that must be varied for the test.
    pub fn factors(&self) -> Vec<Factor> {
        match self {
            Self::LessInARegion(test) => vec![test.along, test.series],
            Self::ExceedsSomewhere(test) => vec![test.along, test.series],
            Self::TopMovesRight(test) => vec![test.along, test.series],
            Self::FallsWith(test) => vec![test.along, test.by],
            Self::RatioToBest(test) => std::iter::once(test.series).chain(factors(&test.only)).collect(),
            Self::AtLeast(bound) | Self::AtMost(bound) => factors(&bound.only).collect(),
            Self::Changes(test) => std::iter::once(test.factor).chain(factors(&test.only)).collect(),
            Self::RefusesNoMore(_) => vec![Factor::Share, Factor::Balancer],
            Self::ModelError(test) => factors(&test.only).collect(),
            Self::Bottleneck(test) => factors(&test.only).collect(),
        }
    }

    /// Returns the metric of the test.
    pub fn metric(&self) -> Metric {
        match self {
            Self::LessInARegion(test) => test.metric,
            Self::ExceedsSomewhere(test) => test.metric,
            Self::TopMovesRight(test) => test.metric,
            Self::FallsWith(test) => test.metric,
            Self::RatioToBest(test) => test.metric,
            Self::AtLeast(bound) | Self::AtMost(bound) => bound.metric,
            Self::Changes(test) => test.metric,
            Self::RefusesNoMore(_) => Metric::Refused,
            Self::ModelError(test) => test.metric,
            // The test covers all metrics.
            Self::Bottleneck(_) => Metric::Response,
        }
    }
}

fn factors(filters: &[PointFilter]) -> impl Iterator<Item = Factor> {
    filters.iter().map(|filter| filter.factor)
}

/// Formats a number with four significant digits.
pub(super) fn format_number(value: f64) -> String {
    if value == 0.0 || !value.is_finite() {
        return format!("{value}");
    }
    let decimals = 3 - value.abs().log10().floor() as i32;
    let text = format!("{value:.*}", usize::try_from(decimals).unwrap_or(0).min(12));
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

/// Formats an estimate like `1.52 ± 0.03`.
pub(super) fn format_estimate(estimate: &super::statistics::Estimate) -> String {
    format_interval((estimate.mean, estimate.half_width))
}

/// Formats a mean and a half width in the same way.
pub fn format_interval((mean, half_width): (f64, f64)) -> String {
    format!("{} ± {}", format_number(mean), format_number(half_width))
}
