//! Durations as people write them: `250ms`, `2s`, `1m30s`, `1.5h`.
//!
//! A number without a unit is refused: the same `30` is seconds in one proxy and milliseconds in the next.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use super::text::{TextValue, text};

/// A duration, exact to the nanosecond, at most `LONGEST`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TimeSpan(pub Duration);

/// The longest duration: longer ones are rejected as mistakes, and would overflow timers.
const LONGEST: Duration = Duration::from_secs(366 * 24 * 3600);

/// The units, greatest first: units of one span must get smaller.
const UNITS: [(&str, u128); 7] = [
    ("d", 86_400_000_000_000),
    ("h", 3_600_000_000_000),
    ("m", 60_000_000_000),
    ("s", 1_000_000_000),
    ("ms", 1_000_000),
    ("us", 1_000),
    ("ns", 1),
];

/// The number of digits after the decimal point; more are refused rather than rounded.
const FRACTION_DIGITS: usize = 9;

text! {
    TimeSpan,
    format: "plimsoll-duration",
    what: "a duration",
    example: "2s",
    pattern: r"^([0-9]+(\.[0-9]+)?(ns|us|ms|s|m|h|d))+$",
}

impl TimeSpan {
    /// Returns that many milliseconds.
    pub const fn millis(millis: u64) -> Self {
        Self(Duration::from_millis(millis))
    }
}

impl FromStr for TimeSpan {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Err("is empty".into());
        }
        let mut total: u128 = 0;
        let mut rest = text;
        let mut previous_unit = u128::MAX;
        while !rest.is_empty() {
            let (billionths, remainder) = number(rest)?;
            let end = remainder.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(remainder.len());
            let (name, tail) = remainder.split_at(end);
            if name.is_empty() {
                return Err(format!("has no unit: write \"{text}s\" or \"{text}ms\""));
            }
            let Some((_, nanos)) = UNITS.iter().find(|(unit, _)| *unit == name) else {
                return Err(format!(
                    "has an unknown unit `{}`: there are ns, us, ms, s, m, h, d",
                    name.trim()
                ));
            };
            if *nanos >= previous_unit {
                return Err("has its units in the wrong order: the greatest comes first".into());
            }
            previous_unit = *nanos;
            let scaled = billionths.checked_mul(*nanos).ok_or_else(too_long)?;
            if !scaled.is_multiple_of(1_000_000_000) {
                return Err("is finer than a nanosecond".into());
            }
            total = total.saturating_add(scaled / 1_000_000_000);
            rest = tail;
        }
        if total > LONGEST.as_nanos() {
            return Err(too_long());
        }
        let seconds = u64::try_from(total / 1_000_000_000).map_err(|_| too_long())?;
        Ok(Self(Duration::new(seconds, (total % 1_000_000_000) as u32)))
    }
}

fn too_long() -> String {
    format!("is too long: at most {}", TimeSpan(LONGEST))
}

/// Returns the number at the start of `text` in billionths, and the text behind it.
fn number(text: &str) -> Result<(u128, &str), String> {
    let digits = |text: &str| text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (whole_digits, mut rest) = text.split_at(digits(text));
    if whole_digits.is_empty() {
        return Err("does not begin with a number".into());
    }
    let mut fraction = "";
    if let Some(rest_after) = rest.strip_prefix('.') {
        (fraction, rest) = rest_after.split_at(digits(rest_after));
        if fraction.is_empty() {
            return Err("has no digit after the decimal point".into());
        }
    }
    if whole_digits.len() > 18 {
        return Err(too_long());
    }
    if fraction.len() > FRACTION_DIGITS {
        return Err(format!("has more than {FRACTION_DIGITS} digits after the decimal point"));
    }
    let padded_fraction = format!("{fraction:0<FRACTION_DIGITS$}");
    let parse = |digits: &str| digits.parse::<u128>().map_err(|error| error.to_string());
    Ok((parse(whole_digits)? * 1_000_000_000 + parse(&padded_fraction)?, rest))
}

impl fmt::Display for TimeSpan {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut remaining = self.0.as_nanos();
        if remaining == 0 {
            return out.write_str("0s");
        }
        for (name, nanos) in UNITS {
            let count = remaining / nanos;
            remaining %= nanos;
            if count > 0 {
                write!(out, "{count}{name}")?;
            }
        }
        Ok(())
    }
}

/// Returns a duration in its two greatest units: `45s`, `3m 20s`, `4h 5m`, `12d 3h`.
pub fn short_duration(seconds: f64) -> String {
    let all = seconds.max(0.0) as u64;
    let (days, hours, minutes, seconds) = (all / 86_400, all / 3600 % 24, all / 60 % 60, all % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds}s"),
        (0, 0, _) => format!("{minutes}m {seconds}s"),
        (0, _, _) => format!("{hours}h {minutes}m"),
        _ => format!("{days}d {hours}h"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_exact() {
        for (text, nanos, displayed) in [
            ("0s", 0, "0s"),
            ("250ms", 250_000_000, "250ms"),
            ("1500ms", 1_500_000_000, "1s500ms"),
            ("2s", 2_000_000_000, "2s"),
            ("0.1s", 100_000_000, "100ms"),
            ("1.000000001s", 1_000_000_001, "1s1ns"),
            ("1m30s", 90_000_000_000, "1m30s"),
            ("1.5h", 5_400_000_000_000, "1h30m"),
            ("366d", 366 * 86_400_000_000_000, "366d"),
            ("7us", 7_000, "7us"),
        ] {
            let span: TimeSpan = text.parse().unwrap();
            assert_eq!(span.0.as_nanos(), nanos, "{text}");
            assert_eq!(span.to_string(), displayed, "{text}");
            assert_eq!(displayed.parse::<TimeSpan>().unwrap(), span, "{text}");
        }
    }

    #[test]
    fn what_is_no_span_says_why() {
        for (text, expected) in [
            ("", "empty"),
            ("30", "write \"30s\""),
            ("s", "begin with a number"),
            ("-1s", "begin with a number"),
            (" 2s", "begin with a number"),
            ("2 s", "unknown unit `s`"),
            ("2sec", "unknown unit `sec`"),
            ("1.s", "decimal point"),
            ("1.0000000001s", "more than 9 digits"),
            ("0.5ns", "finer than a nanosecond"),
            ("5s1m", "wrong order"),
            ("1s1s", "wrong order"),
            ("367d", "too long"),
            ("9999999999999999999999999999999999999s", "too long"),
            ("999999999999999999d", "too long"),
            ("1s5", "has no unit"),
        ] {
            let error = text.parse::<TimeSpan>().unwrap_err();
            assert!(error.contains(expected), "{text:?}: {error}");
        }
    }

    #[test]
    fn a_duration_is_shown_in_its_two_greatest_units() {
        let shown = [-1.0, 0.9, 59.9, 60.0, 3599.0, 3600.0, 90_061.0, 8e6].map(short_duration);
        assert_eq!(shown, ["0s", "0s", "59s", "1m 0s", "59m 59s", "1h 0m", "1d 1h", "92d 14h"]);
    }
}
