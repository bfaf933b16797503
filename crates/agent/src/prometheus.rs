//! Prometheus' text format, read: lines of `name{label="value",…} number [timestamp]`.
//!
//! A page is somebody else's and may be anything: lines that are not in the form are passed over, comments and types
//! with them, and so is what OpenMetrics puts behind a value.

use std::borrow::Cow;
use std::fmt;

use crate::name;

/// A line of a page.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Sample<'a> {
    /// Of the series, not empty.
    pub(crate) name: &'a str,
    /// What stands between the braces; empty without any.
    pub(crate) labels: &'a str,
    /// May be infinite or not a number.
    pub(crate) value: f64,
}

/// The samples of a page, in order.
pub(crate) fn samples(page: &str) -> impl Iterator<Item = Sample<'_>> {
    page.lines().filter_map(sample)
}

fn sample(line: &str) -> Option<Sample<'_>> {
    let (name, labels, rest) = series(line.trim_start())?;
    let value = rest.split_ascii_whitespace().next()?.parse().ok()?;
    Some(Sample { name, labels, value })
}

/// Name, labels and what follows them.
fn series(text: &str) -> Option<(&str, &str, &str)> {
    let end = text.find(|c: char| c == '{' || c.is_ascii_whitespace()).unwrap_or(text.len());
    let (name, rest) = text.split_at(end);
    if name.is_empty() || name.starts_with('#') {
        return None;
    }
    let Some(inner) = rest.trim_start().strip_prefix('{') else { return Some((name, "", rest)) };
    let (mut quoted, mut escaped) = (false, false);
    for (at, byte) in inner.bytes().enumerate() {
        match byte {
            b'}' if !quoted => return Some((name, &inner[..at], &inner[at + 1..])),
            b'"' if !escaped => quoted = !quoted,
            _ => {}
        }
        escaped = byte == b'\\' && !escaped;
    }
    None
}

/// Labels by name, up to the first that is not in the form. In values `\\`, `\"` and `\n` are undone.
fn labels(mut text: &str) -> impl Iterator<Item = (&str, Cow<'_, str>)> {
    std::iter::from_fn(move || {
        let (name, rest) = text.split_once('=')?;
        let value = rest.trim_start().strip_prefix('"')?;
        let mut escaped = false;
        let end = value.bytes().position(|byte| {
            let end = byte == b'"' && !escaped;
            escaped = byte == b'\\' && !escaped;
            end
        })?;
        text = value[end + 1..].trim_start().trim_start_matches(',');
        Some((name.trim(), unescaped(&value[..end])))
    })
}

fn unescaped(value: &str) -> Cow<'_, str> {
    if !value.contains('\\') {
        return value.into();
    }
    let mut plain = String::with_capacity(value.len());
    let mut chars = value.chars();
    while let Some(c) = chars.next() {
        plain.push(match c {
            '\\' => match chars.next() {
                Some('n') => '\n',
                Some(c) => c,
                None => break,
            },
            c => c,
        });
    }
    plain.into()
}

/// Which series of a page make a number, and its name: `name`, `name=series`, `name=series{label="value"}`,
/// `name=rate(series)`. Several series that fit are added up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Metric {
    /// As it is reported.
    pub(crate) name: String,
    series: String,
    labels: Vec<(String, String)>,
    /// Is it a counter, and its growth per second what is wanted?
    pub(crate) rate: bool,
}

impl Metric {
    /// Does it belong to the number?
    pub(crate) fn fits(&self, sample: &Sample<'_>) -> bool {
        let has = |(name, value): &(String, String)| {
            labels(sample.labels).any(|(found, given)| found == name && given == value.as_str())
        };
        sample.name == self.series && self.labels.iter().all(has)
    }
}

impl fmt::Display for Metric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.series)
    }
}

impl std::str::FromStr for Metric {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "`{text}` is no metric: expected a series of the page, such as `queue_depth`, or \
                 NAME=series{{label=\"value\"}} or NAME=rate(series)"
            )
        };
        let (given, selector) = match text.split_once('=') {
            Some((given, rest)) if !given.contains(['{', '(']) => (Some(given.trim()), rest.trim()),
            _ => (None, text.trim()),
        };
        let inner = selector.strip_prefix("rate(").map(|rest| rest.strip_suffix(')').ok_or_else(wrong));
        let rate = inner.is_some();
        let selector = inner.transpose()?.unwrap_or(selector).trim();
        let (series, pairs, rest) = series(selector).ok_or_else(wrong)?;
        if !rest.is_empty() || series.contains(['(', ')', '"', ',']) {
            return Err(wrong());
        }
        let labels: Vec<_> =
            labels(pairs).map(|(name, value)| (name.to_owned(), value.into_owned())).collect();
        if labels.is_empty() && !pairs.trim().is_empty() {
            return Err(wrong());
        }
        let name = given.unwrap_or(series);
        name::check(name)?;
        Ok(Self { name: name.to_owned(), series: series.to_owned(), labels, rate })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PAGE: &str = r#"
# HELP http_requests_total Requests.
# TYPE http_requests_total counter
http_requests_total{method="post",code="200"} 1027 1395066363000
http_requests_total{method="get",code="200"}    3
  msdos_file_access_time_seconds{path="C:\\DIR\\FILE.TXT",error="Cannot find file:\n\"FILE.TXT\" {0}"} 1.458255915e9
metric_without_timestamp_and_labels 12.47
something_weird{problem="division by zero"} +Inf -3982045
nothing NaN
open{le="0.5"} 7 # {trace_id="x"} 0.3 1.5
no_value
unclosed{a="b
{"quoted.name"} 3
word x
"#;

    #[test]
    fn a_page_of_the_documentation() {
        let all: Vec<_> = samples(PAGE).map(|sample| (sample.name, sample.value)).collect();
        assert_eq!(all.len(), 7, "{all:?}");
        assert_eq!(all[0], ("http_requests_total", 1027.0));
        assert_eq!(all[3], ("metric_without_timestamp_and_labels", 12.47));
        assert_eq!(all[4], ("something_weird", f64::INFINITY));
        assert!(all[5].1.is_nan());
        assert_eq!(all[6], ("open", 7.0));
        let file = samples(PAGE).nth(2).unwrap();
        let found: Vec<_> = labels(file.labels).collect();
        assert_eq!(found[0], ("path", "C:\\DIR\\FILE.TXT".into()));
        assert_eq!(found[1], ("error", "Cannot find file:\n\"FILE.TXT\" {0}".into()));
    }

    #[test]
    fn metrics_choose_series() {
        let sum = |text: &str| -> f64 {
            let metric: Metric = text.parse().unwrap();
            samples(PAGE).filter(|sample| metric.fits(sample)).map(|sample| sample.value).sum()
        };
        assert_eq!(sum("http_requests_total"), 1030.0);
        assert_eq!(sum(r#"posts=http_requests_total{method="post"}"#), 1027.0);
        assert_eq!(sum(r#"http_requests_total{code="200",method="get"}"#), 3.0);
        assert_eq!(sum(r#"http_requests_total{code="500"}"#), 0.0);
        let metric: Metric = "requests_per_second = rate(http_requests_total)".parse().unwrap();
        assert_eq!(
            (metric.name.as_str(), metric.to_string().as_str(), metric.rate),
            ("requests_per_second", "http_requests_total", true)
        );
        for wrong in
            ["", "=x", "a=", "a b=c", "a=rate(b", "a=b{c", "a=b{c}", "a=b c", "a=sum(b)", "1=b", "#a"]
        {
            assert!(wrong.parse::<Metric>().is_err(), "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_not(text in "(a|b|\\{|\\}|=|\"|\\\\|,|#| |[0-9]|\\n|.){0,60}") {
            for sample in samples(&text) {
                prop_assert!(!sample.name.is_empty());
                labels(sample.labels).for_each(drop);
            }
            let _ = text.parse::<Metric>();
        }
    }
}
