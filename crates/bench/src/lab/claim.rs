//! Claims: sentences that the results must bear out, each decided by a named test. One file per test.
//!
//! A test decides on estimates and says which numbers decided it. Where two curves are compared their
//! confidence intervals must not overlap; where points are missing the claim fails, because nothing was shown.

use serde::{Deserialize, Serialize};

mod bound;
mod exceeds_somewhere;
mod falls_with;
mod less_in_a_region;
mod top_moves_right;

#[cfg(test)]
mod fixture;

pub use bound::{Bound, Only};
pub use exceeds_somewhere::ExceedsSomewhere;
pub use falls_with::{FallsWith, Take};
pub use less_in_a_region::LessInARegion;
pub use top_moves_right::TopMovesRight;

use super::experiment::Factor;
use super::metric::Metric;
use super::table::Table;

/// How a claim is decided.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Test {
    /// One curve lies below another somewhere.
    LessInARegion(LessInARegion),
    /// Every curve lies above a bound somewhere.
    ExceedsSomewhere(ExceedsSomewhere),
    /// Each curve has its top further to the right than the one before.
    TopMovesRight(TopMovesRight),
    /// Each curve lies lower than the one before.
    FallsWith(FallsWith),
    /// Every point is at or above a value.
    AtLeast(Bound),
    /// Every point is at or below a value.
    AtMost(Bound),
}

/// What a test found.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Verdict {
    /// Do the results bear the claim out?
    pub pass: bool,
    /// The numbers that decided it, one fact a line.
    pub numbers: Vec<String>,
}

impl Verdict {
    /// Fails for want of points.
    fn nothing(what: &str) -> Self {
        Self { pass: false, numbers: vec![format!("nothing was measured: {what}")] }
    }
}

impl Test {
    /// Decides.
    pub fn decide(&self, table: &Table) -> Verdict {
        match self {
            Self::LessInARegion(test) => test.decide(table),
            Self::ExceedsSomewhere(test) => test.decide(table),
            Self::TopMovesRight(test) => test.decide(table),
            Self::FallsWith(test) => test.decide(table),
            Self::AtLeast(bound) => bound.decide(table, true),
            Self::AtMost(bound) => bound.decide(table, false),
        }
    }

    /// The factors that must be varied for it.
    pub fn factors(&self) -> Vec<Factor> {
        match self {
            Self::LessInARegion(test) => vec![test.along, test.series],
            Self::ExceedsSomewhere(test) => vec![test.along, test.series],
            Self::TopMovesRight(test) => vec![test.along, test.series],
            Self::FallsWith(test) => vec![test.along, test.by],
            Self::AtLeast(bound) | Self::AtMost(bound) => bound.only.iter().map(|only| only.factor).collect(),
        }
    }

    /// What it looks at.
    pub fn metric(&self) -> Metric {
        match self {
            Self::LessInARegion(test) => test.metric,
            Self::ExceedsSomewhere(test) => test.metric,
            Self::TopMovesRight(test) => test.metric,
            Self::FallsWith(test) => test.metric,
            Self::AtLeast(bound) | Self::AtMost(bound) => bound.metric,
        }
    }
}

/// Four significant digits, for people.
fn digits(value: f64) -> String {
    if value == 0.0 || !value.is_finite() {
        return format!("{value}");
    }
    let places = 3 - value.abs().log10().floor() as i32;
    let text = format!("{value:.*}", usize::try_from(places).unwrap_or(0).min(12));
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

/// `1.52 ± 0.03`.
pub(super) fn shown(estimate: &super::statistics::Estimate) -> String {
    shown_pair((estimate.mean, estimate.half))
}

/// The same, of a mean and a half width.
pub fn shown_pair((mean, half): (f64, f64)) -> String {
    format!("{} ± {}", digits(mean), digits(half))
}
