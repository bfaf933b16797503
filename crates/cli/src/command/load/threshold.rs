//! Conditions that fail a run: `p99>50ms`, `failed>0.1%`, `completed<4900`.

use std::str::FromStr;

use plimsoll_bench::units;

use super::result::LoadResult;

/// A condition as it was given.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Threshold {
    text: String,
    metric: ThresholdMetric,
    above: bool,
    equal: bool,
    bound: f64,
}

#[derive(Clone, Debug, PartialEq)]
enum ThresholdMetric {
    /// A percentile of the latency, in seconds, like `Mean` and `Max`.
    Quantile(f64),
    Mean,
    Max,
    /// The share of the requests that were due.
    Failed,
    /// Requests per second, like `Offered`.
    Completed,
    Offered,
}

/// A condition and the value that was compared with it.
#[derive(Clone, Debug)]
pub(super) struct ThresholdVerdict {
    /// The condition as it was given.
    pub(super) text: String,
    /// The value: seconds, a share or requests per second.
    pub(super) value: f64,
    /// The `value` for people.
    pub(super) display_value: String,
    /// Whether the condition is false, so that the run passes.
    pub(super) passed: bool,
}

impl Threshold {
    pub(super) fn judge(&self, outcome: &LoadResult) -> ThresholdVerdict {
        let (latency, record) = (&outcome.record.latency, &outcome.record);
        let value = match self.metric {
            ThresholdMetric::Quantile(q) => latency.quantile(q).as_secs_f64(),
            ThresholdMetric::Mean => latency.mean().as_secs_f64(),
            ThresholdMetric::Max => latency.max().as_secs_f64(),
            ThresholdMetric::Failed => record.failures() as f64 / record.due.max(1) as f64,
            ThresholdMetric::Completed => outcome.completed_rate(),
            ThresholdMetric::Offered => outcome.offered_rate(),
        };
        let is_beyond = if self.above { value > self.bound } else { value < self.bound };
        let display_value = match self.metric {
            ThresholdMetric::Quantile(_) | ThresholdMetric::Mean | ThresholdMetric::Max => {
                units::format_duration(std::time::Duration::from_secs_f64(value))
            }
            ThresholdMetric::Failed => format!("{:.3} %", value * 100.0),
            ThresholdMetric::Completed | ThresholdMetric::Offered => format!("{value:.1}/s"),
        };
        ThresholdVerdict {
            text: self.text.clone(),
            value,
            display_value,
            passed: !(is_beyond || self.equal && value == self.bound),
        }
    }
}

impl FromStr for Threshold {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let expected = "expected METRIC, > or <, and a value: p99>50ms (any percentile, mean or max), \
                        failed>0.1%, completed<4900 or offered<4900 (per second)";
        let index = text.find(['>', '<']).ok_or_else(|| format!("`{text}`: {expected}"))?;
        let (name, rest) = (text[..index].trim(), &text[index + 1..]);
        let above = text[index..].starts_with('>');
        let (equal, value) = match rest.strip_prefix('=') {
            Some(value) => (true, value.trim()),
            None => (false, rest.trim()),
        };
        let percentile = || name.strip_prefix('p')?.parse().ok().filter(|p| (0.0..=100.0).contains(p));
        let metric = match name {
            "mean" => ThresholdMetric::Mean,
            "max" => ThresholdMetric::Max,
            "failed" => ThresholdMetric::Failed,
            "completed" => ThresholdMetric::Completed,
            "offered" => ThresholdMetric::Offered,
            _ => {
                let percentile: f64 = percentile().ok_or_else(|| format!("`{name}`: {expected}"))?;
                ThresholdMetric::Quantile(percentile / 100.0)
            }
        };
        let bound = match metric {
            ThresholdMetric::Quantile(_) | ThresholdMetric::Mean | ThresholdMetric::Max => {
                units::parse_duration(value)?.as_secs_f64()
            }
            ThresholdMetric::Failed => parse_share(value)?,
            ThresholdMetric::Completed | ThresholdMetric::Offered => {
                parse_number(value).ok_or_else(|| format!("`{value}` is no number per second"))?
            }
        };
        Ok(Self { text: text.to_owned(), metric, above, equal, bound })
    }
}

/// Parses a share: `0.1%` or `0.001`.
fn parse_share(text: &str) -> Result<f64, String> {
    let share = match text.strip_suffix('%') {
        Some(percent) => parse_number(percent.trim_end()).map(|percent| percent / 100.0),
        None => parse_number(text),
    };
    share.filter(|share| *share <= 1.0).ok_or_else(|| format!("`{text}` is no share: expected 0.1% or 0.001"))
}

fn parse_number(text: &str) -> Option<f64> {
    text.parse().ok().filter(|number: &f64| number.is_finite() && *number >= 0.0)
}

#[cfg(test)]
mod tests {
    use super::super::result::sample;
    use super::*;

    fn passes(text: &str) -> bool {
        text.parse::<Threshold>().unwrap().judge(&sample::outcome()).passed
    }

    #[test]
    fn conditions_hold_or_not() {
        // The sample: 100 due in 10 s, 98 answered in 1 to 98 ms, 2 timed out at 5 s.
        for text in [
            "p50>60ms",
            "p50 < 40ms",
            "p99.9>6s",
            "failed>2%",
            "failed > 0.02",
            "max>=6s",
            "completed<9",
            "mean>1s",
        ] {
            assert!(passes(text), "{text}");
        }
        for text in ["p50>40ms", "p99>4s", "failed>1%", "failed>=2%", "completed<10", "offered>9", "max>4s"] {
            assert!(!passes(text), "{text}");
        }
    }

    #[test]
    fn what_is_no_condition_is_refused() {
        for text in [
            "",
            "p99",
            "p101>1s",
            "p99>50",
            "px>1s",
            ">1s",
            "failed>2",
            "failed>x%",
            "rate>1",
            "completed<-1",
        ] {
            assert!(text.parse::<Threshold>().is_err(), "{text}");
        }
    }
}
