//! Parsers for monitors' responses: the JSON of an agent, or a page of Prometheus metrics.

use std::collections::BTreeMap;
use std::time::Duration;

use plimsoll_wire::prometheus::{self, CounterIncrease};
use serde_json::Value;

use crate::is_name;
use crate::load_tracker::PER_SECOND;
use crate::observations::{CounterGrowth, MAX_AGE, MAX_NAMES, MetricSample};
use crate::scrape::ScrapeResult;

/// Parses `{"values": {"cpu": {"value": 0.43, "age_seconds": 0.2}, "in_flight": 7}}`: each value with its
/// age, or alone. Values that are not numbers, or whose name is invalid for a figure, are skipped.
pub(crate) fn parse_agent(body: &[u8]) -> ScrapeResult {
    let document: Value =
        serde_json::from_slice(body).map_err(|error| format!("the answer is not JSON: {error}"))?;
    let Some(values) = document.get("values").and_then(Value::as_object) else {
        return Err("the answer has no `values`".into());
    };
    let mut samples = Vec::new();
    for (name, value) in values {
        let number = value.as_f64().or_else(|| value.get("value")?.as_f64());
        let age = value.get("age_seconds").and_then(Value::as_f64).unwrap_or(0.0);
        if let Some(number) = number.filter(|number| number.is_finite() && is_name(name)) {
            let age = Duration::from_secs_f64(age.clamp(0.0, MAX_AGE.as_secs_f64()));
            samples.push(MetricSample::new(name.clone(), number, age));
        }
        if samples.len() == MAX_NAMES {
            break;
        }
    }
    Ok(samples)
}

/// The state between pages: the previous value of each counter's series.
#[derive(Default)]
pub(crate) struct CounterHistory(BTreeMap<String, CounterIncrease>);

/// Returns the sum over all label sets for each of the names in `wanted` (sorted). If a name's rate is
/// wanted, too, the increase of its series since the previous page is added. A sum does not show which of
/// them restarted, or is new.
pub(crate) fn parse_metrics_page(
    body: &[u8],
    metric_names: &[String],
    history: &mut CounterHistory,
) -> ScrapeResult {
    let text = std::str::from_utf8(body).map_err(|_| "the page is not UTF-8 text".to_owned())?;
    let position = |name: &str| metric_names.binary_search_by(|candidate| candidate.as_str().cmp(name)).ok();
    let mut sums: Vec<Option<f64>> = vec![None; metric_names.len()];
    for sample in prometheus::samples(text).filter(|sample| sample.value.is_finite()) {
        if let Some(index) = position(sample.name) {
            *sums[index].get_or_insert(0.0) += sample.value;
        }
    }
    let is_counter = |name: &str| position(&format!("{name}{PER_SECOND}")).is_some();
    let max_series =
        prometheus::MAX_SERIES / metric_names.iter().filter(|name| is_counter(name)).count().max(1);
    let mut samples = Vec::new();
    for (name, sum) in metric_names.iter().zip(sums) {
        let Some(value) = sum.filter(|sum| sum.is_finite() && samples.len() < MAX_NAMES) else { continue };
        let mut metric_sample = MetricSample::new(name.clone(), value, Duration::ZERO);
        if is_counter(name) {
            let series = prometheus::samples(text).filter(|sample| sample.name == name.as_str());
            metric_sample.growth = CounterGrowth::Reported(
                history.0.entry(name.clone()).or_default().record(series, max_series),
            );
        }
        samples.push(metric_sample);
    }
    if samples.is_empty() {
        let is_reported_name = |name: &&String| !name.ends_with(PER_SECOND);
        let names: Vec<&str> = metric_names.iter().filter(is_reported_name).map(String::as_str).collect();
        return Err(format!("the page has no {}", names.join(", ")));
    }
    Ok(samples)
}

#[cfg(any(test, fuzzing))]
pub(crate) mod invariants;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agents_tell_values_with_or_without_age() {
        let samples = parse_agent(
            br#"{"host": "a", "values": {"cpu": {"value": 0.43, "age_seconds": 0.2}, "in_flight": 7,
            "old": {"value": 1, "age_seconds": 1e9}, "young": {"value": 2, "age_seconds": -5},
            "a b": 1, "text": "x", "none": null}}"#,
        );
        let said = samples.unwrap();
        let find = |wanted_name: &str| {
            said.iter()
                .find(|metric_sample| metric_sample.name == wanted_name)
                .map(|metric_sample| (metric_sample.value, metric_sample.age))
        };
        assert_eq!(find("cpu"), Some((0.43, Duration::from_millis(200))));
        assert_eq!(find("in_flight"), Some((7.0, Duration::ZERO)));
        assert_eq!(find("old"), Some((1.0, MAX_AGE)));
        assert_eq!(find("young"), Some((2.0, Duration::ZERO)));
        assert_eq!(said.len(), 4);
        for invalid in ["", "[]", "{}", "{\"values\": 3}", "<html>"] {
            assert!(parse_agent(invalid.as_bytes()).is_err(), "{invalid}");
        }
    }

    #[test]
    fn pages_give_sums_of_what_is_wanted() {
        let body =
            b"load 0.5\nother 3\nbusy{cpu=\"0\"} 1\nbusy{cpu=\"1\"} 2\nbusy{cpu=\"2\"} NaN\nlimit +Inf\n";
        let metric_names: Vec<String> = ["busy", "limit", "load", "missing"].map(str::to_owned).to_vec();
        let mut history = CounterHistory::default();
        let samples = parse_metrics_page(body, &metric_names, &mut history).unwrap();
        let values: Vec<_> =
            samples.iter().map(|metric_sample| (metric_sample.name.as_str(), metric_sample.value)).collect();
        assert_eq!(values, [("busy", 3.0), ("load", 0.5)]);
        assert_eq!(
            parse_metrics_page(b"a 1\n", &metric_names[3..], &mut history).unwrap_err(),
            "the page has no missing"
        );
        assert!(parse_metrics_page(b"\xff 1\n", &metric_names, &mut history).is_err());
        assert!(history.0.is_empty(), "nobody wants a rate");
    }

    #[test]
    fn a_counter_grows_series_by_series() {
        let metric_names: Vec<String> = ["done", "done_per_second", "queue"].map(str::to_owned).to_vec();
        let mut history = CounterHistory::default();
        let mut scrape = |body: String| {
            let samples = parse_metrics_page(body.as_bytes(), &metric_names, &mut history).unwrap();
            assert_eq!(samples[1], MetricSample::new("queue".into(), 3.0, Duration::ZERO), "a gauge");
            (samples[0].value, samples[0].growth)
        };
        let two_series = |one: f64, other: f64| {
            format!("done{{w=\"a\"}} {one}\ndone{{w=\"b\"}} {other}\nqueue 1\nqueue{{of=\"x\"}} 2\n")
        };
        assert_eq!(scrape(two_series(1e9, 5e8)), (1.5e9, CounterGrowth::Reported(None)));
        assert_eq!(
            scrape(two_series(1e9 + 40.0, 5e8 + 2.0)),
            (1.5e9 + 42.0, CounterGrowth::Reported(Some(42.0)))
        );
        // One worker restarts; another one is new.
        assert_eq!(scrape(two_series(1e9 + 80.0, 2.0)), (1e9 + 82.0, CounterGrowth::Reported(Some(42.0))));
        let three_series = two_series(1e9 + 80.0, 2.0) + "done{w=\"c\"} 9e9\n";
        assert_eq!(scrape(three_series), (1e10 + 82.0, CounterGrowth::Reported(Some(0.0))));
    }
}
