//! The report format: sent by this agent to a balancer's `/v1/report`, and by programs to this agent's.
//!
//! ```text
//! {"group": "web", "member": "10.0.0.1:80", "values": {"cpu": 0.43, "in_flight": 7}}
//! {"name": "cpu", "value": 0.43}
//! name=cpu&value=0.43
//! cpu=0.43&in_flight=7
//! ```
//!
//! `group` and `member` are optional where the receiver knows them. `age_seconds` is the age of the values.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::metric_store::MetricValue;

/// The greatest age; a greater one is reduced to it.
pub(crate) const MAX_AGE: Duration = Duration::from_secs(60);

/// A report.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct LoadReport {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) group: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) member: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) age_seconds: Option<f64>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) values: BTreeMap<String, f64>,
    #[serde(default, skip_serializing)]
    name: Option<String>,
    #[serde(default, skip_serializing)]
    value: Option<f64>,
}

impl LoadReport {
    /// Creates a report of these values. It states the age of the oldest one unless all are fresh.
    pub(crate) fn from_values(group: Option<&str>, member: Option<&str>, values: &[MetricValue]) -> Self {
        let age = values.iter().map(|value| value.age).max().unwrap_or_default();
        Self {
            group: group.map(str::to_owned),
            member: member.map(str::to_owned),
            age_seconds: (age >= FRESH_AGE).then(|| round_significant(age.as_secs_f64())),
            values: values.iter().map(|value| (value.name.clone(), round_significant(value.value))).collect(),
            ..Self::default()
        }
    }

    /// Parses the body of a request: JSON if it begins with a brace, else a form.
    ///
    /// # Errors
    /// Returns one sentence with the error and the expected form.
    pub(crate) fn parse(body: &[u8]) -> Result<Self, String> {
        let text = std::str::from_utf8(body).map_err(|_| format!("the body is not text; {EXPECTED}"))?.trim();
        let mut report = if text.starts_with('{') {
            serde_json::from_str(text).map_err(|error| format!("the body: {error}; {EXPECTED}"))?
        } else {
            Self::parse_form(text)?
        };
        match (report.name.take(), report.value.take()) {
            (Some(name), Some(value)) => drop(report.values.insert(name, value)),
            (None, None) => {}
            _ => return Err(format!("a name needs a value and a value a name; {EXPECTED}")),
        }
        if report.values.is_empty() {
            return Err(format!("the body has no values; {EXPECTED}"));
        }
        if let Some(age) = report.age_seconds.filter(|age| *age < 0.0) {
            return Err(format!("age_seconds is {age}, not how many seconds ago that was; {EXPECTED}"));
        }
        Ok(report)
    }

    /// Returns the age of the values, within 0 to [`MAX_AGE`]; an age that is not finite counts as 0.
    pub(crate) fn age(&self) -> Duration {
        let seconds = self.age_seconds.filter(|age| age.is_finite()).unwrap_or(0.0);
        Duration::from_secs_f64(seconds.clamp(0.0, MAX_AGE.as_secs_f64()))
    }

    fn parse_form(text: &str) -> Result<Self, String> {
        let mut report = Self::default();
        for pair in text.split('&').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            let invalid_escape = || format!("`{}` has a broken %; {EXPECTED}", truncated(pair));
            let (key, value) = (
                percent_decoded(key).ok_or_else(invalid_escape)?,
                percent_decoded(value).ok_or_else(invalid_escape)?,
            );
            let parse_number = || {
                let number = value.trim().parse().ok().filter(|number: &f64| number.is_finite());
                number.ok_or_else(|| {
                    format!("{}: `{}` is no number; {EXPECTED}", truncated(&key), truncated(&value))
                })
            };
            match &*key {
                "group" => report.group = Some(value),
                "member" => report.member = Some(value),
                "name" => report.name = Some(value),
                "value" => report.value = Some(parse_number()?),
                "age_seconds" => report.age_seconds = Some(parse_number()?),
                _ => {
                    let number = parse_number()?;
                    report.values.insert(key, number);
                }
            }
        }
        Ok(report)
    }
}

/// The age below which values count as current.
pub(crate) const FRESH_AGE: Duration = Duration::from_millis(500);

const EXPECTED: &str = "give name=NAME&value=NUMBER or {\"values\": {NAME: NUMBER}}";

/// Rounds to six significant digits: load values are no more precise, and reports stay short.
pub(crate) fn round_significant(value: f64) -> f64 {
    if value == 0.0 || !value.is_finite() {
        return value;
    }
    format!("{value:.5e}").parse().unwrap_or(value)
}

fn truncated(text: &str) -> String {
    text.chars().take(64).flat_map(char::escape_default).collect()
}

/// Decodes a percent-encoded name or value of a form.
fn percent_decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        rest = tail;
        match first {
            b'+' => bytes.push(b' '),
            b'%' => {
                let (digits, tail) = rest.split_at_checked(2)?;
                let digits = std::str::from_utf8(digits).ok().filter(|digits| !digits.starts_with('+'))?;
                bytes.push(u8::from_str_radix(digits, 16).ok()?);
                rest = tail;
            }
            byte => bytes.push(*byte),
        }
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::metric_store::ValueSource;

    #[test]
    fn every_form_is_read() {
        let parse = |body: &str| LoadReport::parse(body.as_bytes()).unwrap();
        let report =
            parse(r#"{"group": "web", "member": "10.0.0.1:80", "values": {"cpu": 0.43, "in_flight": 7}}"#);
        assert_eq!((report.group.as_deref(), report.member.as_deref()), (Some("web"), Some("10.0.0.1:80")));
        assert_eq!(report.values, BTreeMap::from([("cpu".into(), 0.43), ("in_flight".into(), 7.0)]));
        let single = BTreeMap::from([("cpu".to_owned(), 0.4)]);
        assert_eq!(parse(r#"{"name": "cpu", "value": 0.4}"#).values, single);
        let form = parse("member=10.0.0.1%3A80&name=cpu&value=0.4&age_seconds=2.5\n");
        assert_eq!((form.member.as_deref(), form.age()), (Some("10.0.0.1:80"), Duration::from_millis(2500)));
        assert_eq!(form.values, single);
        let pairs = parse("cpu=0.43&in_flight=7&group=web");
        assert_eq!((pairs.values, pairs.group.as_deref()), (report.values, Some("web")));
        for (age, seconds) in [("-0", 0), ("1e9", 60), ("3", 3)] {
            let report = parse(&format!("name=a&value=1&age_seconds={age}"));
            assert_eq!(report.age(), Duration::from_secs(seconds));
        }
    }

    #[test]
    fn what_is_wrong_is_said_in_a_sentence() {
        for (body, expected_error) in [
            ("", "no values"),
            ("name=cpu", "needs a value"),
            ("value=1", "needs a value"),
            ("name=cpu&value=nan", "no number"),
            ("name=cpu&value=inf", "no number"),
            ("name=%zz&value=1", "broken %"),
            ("n%+1=1", "broken %"),
            ("name=cpu&value=1&age_seconds=-5", "age_seconds is -5"),
            ("nmae=cpu&value=1", "nmae: `cpu` is no number"),
            ("{", "the body: EOF"),
            ("{}", "no values"),
            (r#"{"values": {"cpu": 1e999}}"#, "out of range"),
            (r#"{"values": {"cpu": null}}"#, "invalid type"),
            (r#"{"valeus": {}}"#, "unknown field"),
        ] {
            let error = LoadReport::parse(body.as_bytes()).unwrap_err();
            assert!(error.contains(expected_error) && error.contains("give name=NAME"), "{body}: {error}");
        }
        assert!(LoadReport::parse(b"\xff").is_err());
    }

    #[test]
    fn what_is_sent_is_short() {
        let value = |name: &str, value, age| MetricValue {
            name: name.into(),
            value,
            age: Duration::from_millis(age),
            source: ValueSource::Sensor,
        };
        let json = |values: &[MetricValue]| {
            serde_json::to_string(&LoadReport::from_values(None, Some("a:1"), values)).unwrap()
        };
        assert_eq!(json(&[value("cpu", 1.0 / 3.0, 10)]), r#"{"member":"a:1","values":{"cpu":0.333333}}"#);
        let old_values = [value("b", 123_456_789.0, 1500), value("a", 0.0, 900)];
        assert_eq!(
            json(&old_values),
            r#"{"member":"a:1","age_seconds":1.5,"values":{"a":0.0,"b":123457000.0}}"#
        );
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in "(name=|value=|&|%[0-9a-f]{2}|%|\\{|\"values\":|[0-9]|.)\
            {0,40}") {
            if let Ok(report) = LoadReport::parse(bytes.as_bytes()) {
                prop_assert!(report.values.values().all(|value| value.is_finite()));
            }
        }
    }
}
