//! Selects the series of a page in Prometheus text format that make up a metric.

use std::fmt;

use plimsoll_wire::prometheus::{MetricSample, labels, split_series};

use crate::name;

/// A metric's name and the series that it is read from: `name`, `name=series`, `name=series{label="value"}`
/// or `name=rate(series)`. The values of several matching series are added.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScrapeMetric {
    /// The name in reports.
    pub(crate) name: String,
    series: String,
    labels: Vec<(String, String)>,
    /// Whether the series is a counter whose growth per second is reported.
    pub(crate) rate: bool,
}

impl ScrapeMetric {
    /// Returns `true` if a sample belongs to the metric.
    pub(crate) fn matches(&self, sample: &MetricSample<'_>) -> bool {
        let has_label = |(name, value): &(String, String)| {
            labels(sample.labels)
                .any(|(label_name, label_value)| label_name == name && label_value == value.as_str())
        };
        sample.name == self.series && self.labels.iter().all(has_label)
    }
}

impl fmt::Display for ScrapeMetric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.series)
    }
}

impl std::str::FromStr for ScrapeMetric {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let invalid_metric = || {
            format!(
                "`{text}` is no metric: expected a series of the page, such as `queue_depth`, or \
                 NAME=series{{label=\"value\"}} or NAME=rate(series)"
            )
        };
        let (given_name, selector) = match text.split_once('=') {
            Some((alias, rest)) if !alias.contains(['{', '(']) => (Some(alias.trim()), rest.trim()),
            _ => (None, text.trim()),
        };
        let rate_argument =
            selector.strip_prefix("rate(").map(|rest| rest.strip_suffix(')').ok_or_else(invalid_metric));
        let rate = rate_argument.is_some();
        let selector = rate_argument.transpose()?.unwrap_or(selector).trim();
        let (series, label_pairs, rest) = split_series(selector).ok_or_else(invalid_metric)?;
        if !rest.is_empty() || series.contains(['(', ')', '"', ',']) {
            return Err(invalid_metric());
        }
        let labels: Vec<_> =
            labels(label_pairs).map(|(name, value)| (name.to_owned(), value.into_owned())).collect();
        if labels.is_empty() && !label_pairs.trim().is_empty() {
            return Err(invalid_metric());
        }
        let name = given_name.unwrap_or(series);
        name::check(name)?;
        Ok(Self { name: name.to_owned(), series: series.to_owned(), labels, rate })
    }
}

#[cfg(test)]
mod tests {
    use plimsoll_wire::prometheus::samples;
    use proptest::prelude::*;

    use super::*;

    const PAGE: &str = r#"
http_requests_total{method="post",code="200"} 1027 1395066363000
http_requests_total{method="get",code="200"}    3
"#;

    #[test]
    fn metrics_choose_series() {
        let matching_sum = |text: &str| -> f64 {
            let metric: ScrapeMetric = text.parse().unwrap();
            samples(PAGE).filter(|sample| metric.matches(sample)).map(|sample| sample.value).sum()
        };
        assert_eq!(matching_sum("http_requests_total"), 1030.0);
        assert_eq!(matching_sum(r#"posts=http_requests_total{method="post"}"#), 1027.0);
        assert_eq!(matching_sum(r#"http_requests_total{code="200",method="get"}"#), 3.0);
        assert_eq!(matching_sum(r#"http_requests_total{code="500"}"#), 0.0);
        let metric: ScrapeMetric = "requests_per_second = rate(http_requests_total)".parse().unwrap();
        assert_eq!(
            (metric.name.as_str(), metric.to_string().as_str(), metric.rate),
            ("requests_per_second", "http_requests_total", true)
        );
        for wrong in
            ["", "=x", "a=", "a b=c", "a=rate(b", "a=b{c", "a=b{c}", "a=b c", "a=sum(b)", "1=b", "#a"]
        {
            assert!(wrong.parse::<ScrapeMetric>().is_err(), "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_not(text in "(a|b|\\{|\\}|=|\"|\\\\|,|#| |[0-9]|\\n|.){0,60}") {
            let _ = text.parse::<ScrapeMetric>();
        }
    }
}
