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
    let said: Value =
        serde_json::from_slice(body).map_err(|error| format!("the answer is not JSON: {error}"))?;
    let Some(values) = said.get("values").and_then(Value::as_object) else {
        return Err("the answer has no `values`".into());
    };
    let mut found = Vec::new();
    for (name, value) in values {
        let number = value.as_f64().or_else(|| value.get("value")?.as_f64());
        let age = value.get("age_seconds").and_then(Value::as_f64).unwrap_or(0.0);
        if let Some(number) = number.filter(|number| number.is_finite() && is_name(name)) {
            let age = Duration::from_secs_f64(age.clamp(0.0, MAX_AGE.as_secs_f64()));
            found.push(MetricSample::new(name.clone(), number, age));
        }
        if found.len() == MAX_NAMES {
            break;
        }
    }
    Ok(found)
}

/// The state between pages: the previous value of each counter's series.
#[derive(Default)]
pub(crate) struct CounterHistory(BTreeMap<String, CounterIncrease>);

/// Returns the sum over all label sets for each of the names in `wanted` (sorted). If a name's rate is
/// wanted, too, the increase of its series since the previous page is added. A sum does not show which of
/// them restarted, or is new.
pub(crate) fn parse_metrics_page(body: &[u8], wanted: &[String], seen: &mut CounterHistory) -> ScrapeResult {
    let text = std::str::from_utf8(body).map_err(|_| "the page is not UTF-8 text".to_owned())?;
    let place = |name: &str| wanted.binary_search_by(|one| one.as_str().cmp(name)).ok();
    let mut sums: Vec<Option<f64>> = vec![None; wanted.len()];
    for sample in prometheus::samples(text).filter(|sample| sample.value.is_finite()) {
        if let Some(place) = place(sample.name) {
            *sums[place].get_or_insert(0.0) += sample.value;
        }
    }
    let counts = |name: &str| place(&format!("{name}{PER_SECOND}")).is_some();
    let most = prometheus::MAX_SERIES / wanted.iter().filter(|name| counts(name)).count().max(1);
    let mut found = Vec::new();
    for (name, sum) in wanted.iter().zip(sums) {
        let Some(value) = sum.filter(|sum| sum.is_finite() && found.len() < MAX_NAMES) else { continue };
        let mut figure = MetricSample::new(name.clone(), value, Duration::ZERO);
        if counts(name) {
            let series = prometheus::samples(text).filter(|sample| sample.name == name.as_str());
            figure.growth =
                CounterGrowth::Reported(seen.0.entry(name.clone()).or_default().record(series, most));
        }
        found.push(figure);
    }
    if found.is_empty() {
        let ours = |name: &&String| !name.ends_with(PER_SECOND);
        let names: Vec<&str> = wanted.iter().filter(ours).map(String::as_str).collect();
        return Err(format!("the page has no {}", names.join(", ")));
    }
    Ok(found)
}

#[cfg(any(test, fuzzing))]
pub(crate) mod invariants;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agents_tell_values_with_or_without_age() {
        let said = parse_agent(
            br#"{"host": "a", "values": {"cpu": {"value": 0.43, "age_seconds": 0.2}, "in_flight": 7,
            "old": {"value": 1, "age_seconds": 1e9}, "young": {"value": 2, "age_seconds": -5},
            "a b": 1, "text": "x", "none": null}}"#,
        );
        let said = said.unwrap();
        let find = |wanted: &str| {
            said.iter().find(|figure| figure.name == wanted).map(|figure| (figure.value, figure.age))
        };
        assert_eq!(find("cpu"), Some((0.43, Duration::from_millis(200))));
        assert_eq!(find("in_flight"), Some((7.0, Duration::ZERO)));
        assert_eq!(find("old"), Some((1.0, MAX_AGE)));
        assert_eq!(find("young"), Some((2.0, Duration::ZERO)));
        assert_eq!(said.len(), 4);
        for bad in ["", "[]", "{}", "{\"values\": 3}", "<html>"] {
            assert!(parse_agent(bad.as_bytes()).is_err(), "{bad}");
        }
    }

    #[test]
    fn pages_give_sums_of_what_is_wanted() {
        let body =
            b"load 0.5\nother 3\nbusy{cpu=\"0\"} 1\nbusy{cpu=\"1\"} 2\nbusy{cpu=\"2\"} NaN\nlimit +Inf\n";
        let wanted: Vec<String> = ["busy", "limit", "load", "missing"].map(str::to_owned).to_vec();
        let mut seen = CounterHistory::default();
        let found = parse_metrics_page(body, &wanted, &mut seen).unwrap();
        let found: Vec<_> = found.iter().map(|figure| (figure.name.as_str(), figure.value)).collect();
        assert_eq!(found, [("busy", 3.0), ("load", 0.5)]);
        assert_eq!(
            parse_metrics_page(b"a 1\n", &wanted[3..], &mut seen).unwrap_err(),
            "the page has no missing"
        );
        assert!(parse_metrics_page(b"\xff 1\n", &wanted, &mut seen).is_err());
        assert!(seen.0.is_empty(), "nobody wants a rate");
    }

    #[test]
    fn a_counter_grows_series_by_series() {
        let wanted: Vec<String> = ["done", "done_per_second", "queue"].map(str::to_owned).to_vec();
        let mut seen = CounterHistory::default();
        let mut look = |body: String| {
            let found = parse_metrics_page(body.as_bytes(), &wanted, &mut seen).unwrap();
            assert_eq!(found[1], MetricSample::new("queue".into(), 3.0, Duration::ZERO), "a gauge");
            (found[0].value, found[0].growth)
        };
        let both = |one: f64, other: f64| {
            format!("done{{w=\"a\"}} {one}\ndone{{w=\"b\"}} {other}\nqueue 1\nqueue{{of=\"x\"}} 2\n")
        };
        assert_eq!(look(both(1e9, 5e8)), (1.5e9, CounterGrowth::Reported(None)));
        assert_eq!(look(both(1e9 + 40.0, 5e8 + 2.0)), (1.5e9 + 42.0, CounterGrowth::Reported(Some(42.0))));
        // One worker restarts; another one is new.
        assert_eq!(look(both(1e9 + 80.0, 2.0)), (1e9 + 82.0, CounterGrowth::Reported(Some(42.0))));
        let third = both(1e9 + 80.0, 2.0) + "done{w=\"c\"} 9e9\n";
        assert_eq!(look(third), (1e10 + 82.0, CounterGrowth::Reported(Some(0.0))));
    }
}
