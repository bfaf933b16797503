//! What monitors answer: the JSON of an agent, or a page of Prometheus metrics.

use std::time::Duration;

use plimsoll_wire::prometheus;
use serde_json::Value;

use crate::facts::{LIMIT_AGE, LIMIT_NAMES};
use crate::is_name;
use crate::pull::Answer;

/// `{"values": {"cpu": {"value": 0.43, "age_seconds": 0.2}, "in_flight": 7}}`: each value with its age, or alone.
/// What is no number, or has no name that a figure may have, is left out.
pub(crate) fn agent(body: &[u8]) -> Answer {
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
            let age = Duration::from_secs_f64(age.clamp(0.0, LIMIT_AGE.as_secs_f64()));
            found.push((name.clone(), number, age));
        }
        if found.len() == LIMIT_NAMES {
            break;
        }
    }
    Ok(found)
}

/// The sum over all label sets of each of the names that are `wanted` (sorted).
pub(crate) fn page(body: &[u8], wanted: &[String]) -> Answer {
    let text = std::str::from_utf8(body).map_err(|_| "the page is not UTF-8 text".to_owned())?;
    let mut sums: Vec<Option<f64>> = vec![None; wanted.len()];
    for sample in prometheus::samples(text).filter(|sample| sample.value.is_finite()) {
        if let Ok(place) = wanted.binary_search_by(|name| name.as_str().cmp(sample.name)) {
            let sum = sums[place].get_or_insert(0.0);
            *sum += sample.value;
        }
    }
    let named = wanted.iter().zip(sums);
    let found: Vec<_> = named
        .filter_map(|(name, sum)| Some((name.clone(), sum.filter(|sum| sum.is_finite())?, Duration::ZERO)))
        .take(LIMIT_NAMES)
        .collect();
    if found.is_empty() {
        let ours = |name: &&String| !name.ends_with("_per_second");
        let names: Vec<&str> = wanted.iter().filter(ours).map(String::as_str).collect();
        return Err(format!("the page has no {}", names.join(", ")));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agents_tell_values_with_or_without_age() {
        let said = agent(
            br#"{"host": "a", "values": {"cpu": {"value": 0.43, "age_seconds": 0.2}, "in_flight": 7,
            "old": {"value": 1, "age_seconds": 1e9}, "young": {"value": 2, "age_seconds": -5},
            "a b": 1, "text": "x", "none": null}}"#,
        );
        let said = said.unwrap();
        let find = |wanted: &str| {
            said.iter().find(|(name, ..)| name == wanted).map(|(_, value, age)| (*value, *age))
        };
        assert_eq!(find("cpu"), Some((0.43, Duration::from_millis(200))));
        assert_eq!(find("in_flight"), Some((7.0, Duration::ZERO)));
        assert_eq!(find("old"), Some((1.0, LIMIT_AGE)));
        assert_eq!(find("young"), Some((2.0, Duration::ZERO)));
        assert_eq!(said.len(), 4);
        for bad in ["", "[]", "{}", "{\"values\": 3}", "<html>"] {
            assert!(agent(bad.as_bytes()).is_err(), "{bad}");
        }
    }

    #[test]
    fn pages_give_sums_of_what_is_wanted() {
        let body =
            b"load 0.5\nother 3\nbusy{cpu=\"0\"} 1\nbusy{cpu=\"1\"} 2\nbusy{cpu=\"2\"} NaN\nlimit +Inf\n";
        let wanted: Vec<String> = ["busy", "limit", "load", "missing"].map(str::to_owned).to_vec();
        let found = page(body, &wanted).unwrap();
        let found: Vec<_> = found.iter().map(|(name, value, _)| (name.as_str(), *value)).collect();
        assert_eq!(found, [("busy", 3.0), ("load", 0.5)]);
        assert_eq!(page(b"a 1\n", &wanted[3..]).unwrap_err(), "the page has no missing");
        assert!(page(b"\xff 1\n", &wanted).is_err());
    }
}
