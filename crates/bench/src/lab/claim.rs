//! Claims: sentences that the results must bear out, each decided by a named test. One file per test.
//!
//! A test decides on estimates and says which numbers decided it. Where two curves are compared their
//! confidence intervals must not overlap; where points are missing the claim fails, because nothing was shown. Where
//! they are missing because something is not on this machine the claim is not decided.

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

pub use bottleneck::Bottleneck;
pub use bound::{Bound, Only};
pub use changes::Changes;
pub use exceeds_somewhere::ExceedsSomewhere;
pub use falls_with::{FallsWith, Take};
pub use less_in_a_region::LessInARegion;
pub use model_error::ModelError;
pub use ratio_to_best::RatioToBest;
pub use refuses_no_more::RefusesNoMore;
pub use top_moves_right::TopMovesRight;

use super::experiment::{Factor, Level};
use super::metric::Metric;
use super::table::{Levels, Table, name};

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
    /// One level in a bounded ratio to the best of others, at every point.
    RatioToBest(RatioToBest),
    /// Every point is at or above a value.
    AtLeast(Bound),
    /// Every point is at or below a value.
    AtMost(Bound),
    /// From one level to another something changes by so much.
    Changes(Changes),
    /// Hardly more is refused than must be.
    RefusesNoMore(RefusesNoMore),
    /// The model is off what was measured by so much at most.
    ModelError(ModelError),
    /// What holds the model back is what is said.
    Bottleneck(Bottleneck),
}

/// What a test found.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Verdict {
    /// Do the results bear the claim out?
    pub pass: bool,
    /// Is there an answer at all? If not it does not pass either.
    pub decided: bool,
    /// The numbers that decided it, one fact a line.
    pub numbers: Vec<String>,
}

/// How the only fact of an empty verdict begins.
const NOTHING: &str = "nothing was measured";

impl Verdict {
    /// Decided, without numbers yet.
    fn new(pass: bool) -> Self {
        Self { pass, decided: true, numbers: Vec::new() }
    }

    /// Fails for want of points.
    fn nothing(what: &str) -> Self {
        Self { pass: false, decided: true, numbers: vec![format!("{NOTHING}: {what}")] }
    }

    /// Of a claim that nobody can decide.
    pub(super) fn open(why: &str) -> Self {
        Self { pass: false, decided: false, numbers: vec![why.to_owned()] }
    }

    /// Was there something to look at?
    fn saw(&self) -> bool {
        self.numbers.first().is_some_and(|number| !number.starts_with(NOTHING))
    }
}

impl Test {
    /// Decides. Where points were left out because something is not here, a claim about them is not decided, unless
    /// those that are there are enough to refute it.
    pub fn decide(&self, table: &Table) -> Verdict {
        let mut verdict = self.of_those_there(table);
        let absent = table.absent(|levels| self.looks_at(levels));
        // A point that breaks a bound breaks it whatever the others would be; a shape needs all its points.
        let by_points = self.by_points();
        let refuted = by_points && verdict.saw() && !verdict.pass && verdict.decided;
        if !absent.is_empty() && !refuted {
            (verdict.pass, verdict.decided) = (false, false);
        }
        verdict
            .numbers
            .extend(absent.iter().take(5).map(|(levels, why)| format!("left out: {}: {why}", name(levels))));
        verdict
    }

    /// Does it look at every point by itself, or at those that differ in what it names alone?
    pub fn by_points(&self) -> bool {
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

    /// Does it look at the model whichever column the claim is of?
    pub fn of_model(&self) -> bool {
        matches!(self, Self::ModelError(_) | Self::Bottleneck(_))
    }

    /// Why it cannot be decided whatever is measured.
    pub(super) fn wrong(&self) -> Option<&'static str> {
        match self {
            Self::RatioToBest(test) => test.wrong(),
            Self::ModelError(test) => test.wrong(),
            Self::RefusesNoMore(test) => test.wrong(),
            _ => None,
        }
    }

    /// Does it need points with these levels?
    fn looks_at(&self, levels: &Levels) -> bool {
        let among = |factor: Factor, holds: &dyn Fn(&Level) -> bool| levels.get(&factor).is_some_and(holds);
        match self {
            Self::LessInARegion(test) => {
                among(test.series, &|level| *level == test.of || *level == test.than)
            }
            Self::ExceedsSomewhere(test) => among(test.series, &|level| !test.except.contains(level)),
            Self::TopMovesRight(test) => among(test.series, &|level| !test.except.contains(level)),
            Self::FallsWith(test) => among(test.by, &|level| !test.except.contains(level)),
            Self::RatioToBest(test) => test.looks_at(levels),
            Self::AtLeast(bound) | Self::AtMost(bound) => bound.looks_at(levels),
            Self::Changes(test) => test.looks_at(levels),
            Self::RefusesNoMore(test) => test.looks_at(levels),
            Self::ModelError(test) => test.looks_at(levels),
            Self::Bottleneck(test) => test.looks_at(levels),
        }
    }

    /// Can points that have these levels decide it at all? A short form of an experiment may have too few of them.
    pub fn is_asked(&self, points: &[&Levels]) -> bool {
        let points: Vec<&Levels> = points.iter().copied().filter(|levels| self.looks_at(levels)).collect();
        let has =
            |factor: Factor, level: &Level| points.iter().any(|levels| levels.get(&factor) == Some(level));
        let several =
            |factor: Factor| points.iter().any(|levels| levels.get(&factor) != points[0].get(&factor));
        match self {
            Self::LessInARegion(test) => has(test.series, &test.of) && has(test.series, &test.than),
            Self::RatioToBest(test) => {
                has(test.series, &test.of) && test.among.iter().any(|other| has(test.series, other))
            }
            Self::Changes(test) => has(test.factor, &test.from) && has(test.factor, &test.to),
            Self::RefusesNoMore(test) => {
                [test.share, test.full].iter().all(|share| has(Factor::Share, &Level::Number(*share)))
            }
            Self::TopMovesRight(test) => several(test.series),
            Self::FallsWith(test) => several(test.by),
            Self::ExceedsSomewhere(_)
            | Self::AtLeast(_)
            | Self::AtMost(_)
            | Self::ModelError(_)
            | Self::Bottleneck(_) => !points.is_empty(),
        }
    }

    fn of_those_there(&self, table: &Table) -> Verdict {
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

    /// The factors that must be varied for it.
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

    /// What it looks at.
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
            // It looks at all of them.
            Self::Bottleneck(_) => Metric::Response,
        }
    }
}

fn factors(only: &[Only]) -> impl Iterator<Item = Factor> {
    only.iter().map(|only| only.factor)
}

/// Four significant digits, for people.
pub(super) fn digits(value: f64) -> String {
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
