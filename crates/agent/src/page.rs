//! What the agent shows: its numbers with their ages as JSON, and a page for Prometheus.

use std::fmt::Write as _;

use serde_json::{Map, Value as Json, json};

use crate::board::Value;
use crate::report::tidy;
use crate::sensor::Unread;
use crate::shared::Shared;

/// What an agent knows at one moment.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// Group of the server, if told.
    pub group: Option<String>,
    /// Address of the server as balancers know it, if told.
    pub member: Option<String>,
    /// By name.
    pub values: Vec<Value>,
    /// What could not be read.
    pub unread: Vec<Unread>,
}

impl Snapshot {
    pub(crate) fn of(shared: &Shared) -> Self {
        let (values, _) = shared.board().since(0, shared.now());
        Self { group: shared.group.clone(), member: shared.member.clone(), values, unread: shared.unread() }
    }

    /// `{"group": …, "member": …, "values": {"cpu": {"value": 0.43, "age_seconds": 0.2}}}`: what balancers pull.
    pub fn load(&self) -> Json {
        self.json(|value| json!({"value": tidy(value.value), "age_seconds": tidy(value.age.as_secs_f64())}))
    }

    /// The same with the source of each value, and what could not be read.
    pub fn full(&self) -> Json {
        let mut json = self.json(|value| {
            json!({
                "value": tidy(value.value),
                "age_seconds": tidy(value.age.as_secs_f64()),
                "source": value.source.name(),
            })
        });
        json["unread"] = json!(self.unread);
        json
    }

    fn json(&self, each: impl Fn(&Value) -> Json) -> Json {
        let mut json = Map::new();
        for (key, value) in [("group", &self.group), ("member", &self.member)] {
            if let Some(value) = value {
                json.insert(key.to_owned(), json!(value));
            }
        }
        let values: Map<_, _> = self.values.iter().map(|value| (value.name.clone(), each(value))).collect();
        json.insert("values".to_owned(), values.into());
        json.into()
    }
}

/// The page for Prometheus, text format 0.0.4.
pub(crate) fn metrics(shared: &Shared) -> String {
    let Snapshot { values, unread, .. } = Snapshot::of(shared);
    let tally = shared.tally();
    let mut page = String::new();
    let mut family =
        |name: &str, kind: &str, help: &str, samples: &mut dyn Iterator<Item = (String, f64)>| {
            // Writing to a string cannot fail.
            let _ =
                writeln!(page, "# HELP plimsoll_agent_{name} {help}\n# TYPE plimsoll_agent_{name} {kind}");
            for (labels, value) in samples {
                let _ = writeln!(page, "plimsoll_agent_{name}{{{labels}}} {value}");
            }
        };
    let version = format!("version=\"{}\"", env!("CARGO_PKG_VERSION"));
    family("build_info", "gauge", "What runs; always 1.", &mut std::iter::once((version, 1.0)));
    let each = |value: &Value| format!("name=\"{}\",source=\"{}\"", value.name, value.source.name());
    let said = &mut values.iter().map(|value| (each(value), value.value));
    family("value", "gauge", "What the agent knows.", said);
    let ages = &mut values.iter().map(|value| (each(value), value.age.as_secs_f64()));
    family("value_age_seconds", "gauge", "Since it was read or told.", ages);
    let to = |target: &str| format!("target=\"{}\"", escaped(target));
    let sent = &mut tally.iter().map(|tally| (to(&tally.target), tally.reports as f64));
    family("reports_total", "counter", "Reports that arrived.", sent);
    let failed = &mut tally.iter().map(|tally| (to(&tally.target), tally.failures as f64));
    family("report_failures_total", "counter", "Attempts to report that failed.", failed);
    let up = &mut tally.iter().map(|tally| (to(&tally.target), f64::from(tally.well())));
    family("target_up", "gauge", "1 if the last report arrived.", up);
    let lost = &mut unread
        .iter()
        .map(|unread| (format!("sensor=\"{}\",what=\"{}\"", unread.sensor, escaped(&unread.what)), 1.0));
    family("unread", "gauge", "What cannot be read; always 1.", lost);
    page
}

fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use plimsoll_wire::prometheus::samples;

    use super::*;
    use crate::board::Source;

    #[tokio::test(start_paused = true)]
    async fn both_forms_say_the_same() {
        let targets = ["http://127.0.0.1:1/".parse().unwrap()];
        let shared = Shared::new(Some("web".into()), Some("a:80".into()), &targets);
        shared.write("cpu", 0.25, Source::Told, Duration::ZERO, true).unwrap();
        let what = "/x\"y".to_owned();
        shared.unread_by_sensors(vec![Unread { sensor: "cpu", what, why: "gone".into() }]);
        shared.delivered(0, 3);
        tokio::time::advance(Duration::from_secs(2)).await;
        let snapshot = Snapshot::of(&shared);
        assert_eq!(
            snapshot.load(),
            json!({"group": "web", "member": "a:80", "values": {"cpu": {"value": 0.25, "age_seconds": 2.0}}})
        );
        let full = snapshot.full();
        assert_eq!(full["values"]["cpu"]["source"], "told");
        assert_eq!(full["unread"], json!([{"sensor": "cpu", "what": "/x\"y", "why": "gone"}]));
        let page = metrics(&shared);
        let found = |name: &str| samples(&page).find(|sample| sample.name == name).unwrap();
        assert_eq!(found("plimsoll_agent_value").labels, "name=\"cpu\",source=\"told\"");
        assert_eq!(found("plimsoll_agent_value").value, 0.25);
        assert_eq!(found("plimsoll_agent_value_age_seconds").value, 2.0);
        assert_eq!(found("plimsoll_agent_reports_total").value, 3.0);
        assert_eq!(found("plimsoll_agent_unread").labels, "sensor=\"cpu\",what=\"/x\\\"y\"");
        assert!(page.lines().all(|line| line.starts_with('#') || line.starts_with("plimsoll_agent_")));
    }
}
