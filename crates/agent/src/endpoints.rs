//! The agent's pages: its values with their ages as JSON, and metrics for Prometheus.

use std::fmt::Write as _;

use serde_json::{Map, Value as Json, json};

use crate::metric_store::MetricValue;
use crate::report::round_significant;
use crate::report_subject::{ReportSubject, TargetCounts};
use crate::sensor::UnreadSource;
use crate::state::AgentState;

/// The values of an agent at one moment.
#[derive(Clone, Debug)]
pub struct ValueSnapshot {
    /// The server's group, if configured.
    pub group: Option<String>,
    /// The server's address in the balancers' configuration, if configured.
    pub member: Option<String>,
    /// The values, sorted by name.
    pub values: Vec<MetricValue>,
    /// The values of each of several servers, with the server's address.
    pub servers: Vec<(String, Vec<MetricValue>)>,
    /// The sources that could not be read.
    pub unread: Vec<UnreadSource>,
}

impl ValueSnapshot {
    pub(crate) fn from_state(shared: &AgentState) -> Self {
        let current_values = |subject: &ReportSubject| subject.metrics().written_since(0, shared.now()).0;
        let servers = shared.servers.iter();
        Self {
            group: shared.group.clone(),
            member: shared.machine.member.clone(),
            values: current_values(&shared.machine),
            servers: servers
                .filter_map(|server| Some((server.member.clone()?, current_values(server))))
                .collect(),
            unread: shared.unread(),
        }
    }

    /// Returns the values of one server, completed by those of the machine.
    pub(crate) fn of_server(shared: &AgentState, subject: &ReportSubject) -> Self {
        let (mut values, _) = subject.metrics().written_since(0, shared.now());
        if !std::ptr::eq(subject, &shared.machine) {
            let (machine_values, _) = shared.machine.metrics().written_since(0, shared.now());
            let unshadowed = machine_values
                .into_iter()
                .filter(|machine_value| values.iter().all(|value| value.name != machine_value.name));
            let unshadowed_values: Vec<MetricValue> = unshadowed.collect();
            values.extend(unshadowed_values);
        }
        let (group, member) = (shared.group.clone(), subject.member.clone());
        Self { group, member, values, servers: Vec::new(), unread: shared.unread() }
    }

    /// Formats the values for a balancer's pull: `{"group": …, "member": …, "values": {"cpu": {"value": 0.43,
    /// "age_seconds": 0.2}}}`.
    pub fn load_json(&self) -> Json {
        self.values_json(|value| {
            let age = round_significant(value.age.as_secs_f64());
            json!({"value": round_significant(value.value), "age_seconds": age})
        })
    }

    /// Formats the same with the source of each value and the sources that could not be read.
    pub fn full_json(&self) -> Json {
        let mut json = self.values_json(|value| {
            json!({
                "value": round_significant(value.value),
                "age_seconds": round_significant(value.age.as_secs_f64()),
                "source": value.source.name(),
            })
        });
        json["unread"] = json!(self.unread);
        json
    }

    fn values_json(&self, value_json: impl Fn(&MetricValue) -> Json) -> Json {
        let mut json = Map::new();
        for (key, value) in [("group", &self.group), ("member", &self.member)] {
            if let Some(value) = value {
                json.insert(key.to_owned(), json!(value));
            }
        }
        let values_map = |values: &[MetricValue]| -> Json {
            values.iter().map(|value| (value.name.clone(), value_json(value))).collect::<Map<_, _>>().into()
        };
        json.insert("values".to_owned(), values_map(&self.values));
        if !self.servers.is_empty() {
            let servers = self.servers.iter();
            let servers: Map<_, _> = servers
                .map(|(member, values)| (member.clone(), json!({"values": values_map(values)})))
                .collect();
            json.insert("servers".to_owned(), servers.into());
        }
        json.into()
    }
}

/// Formats the page for Prometheus, text format 0.0.4.
pub(crate) fn metrics_page(shared: &AgentState) -> String {
    let ValueSnapshot { values, servers, unread, .. } = ValueSnapshot::from_state(shared);
    // Series of one of several servers have a label `member`; those of the machine have none.
    let member_label = |member: Option<&str>| {
        member.map_or_else(String::new, |name| format!(",member=\"{}\"", escaped(name)))
    };
    let mut labeled_values: Vec<(String, &MetricValue)> =
        values.iter().map(|value| (String::new(), value)).collect();
    for (member, values) in &servers {
        labeled_values.extend(values.iter().map(|value| (member_label(Some(member)), value)));
    }
    let mut labeled_counts = Vec::new();
    for subject in shared.subjects().filter(|subject| subject.member.is_some()) {
        let server = subject.member.as_deref().filter(|_| !std::ptr::eq(subject, &shared.machine));
        labeled_counts
            .extend(subject.target_counts().into_iter().map(|counts| (member_label(server), counts)));
    }
    let mut page = String::new();
    let mut write_family =
        |name: &str, kind: &str, help: &str, samples: &mut dyn Iterator<Item = (String, f64)>| {
            // Writing to a string cannot fail.
            let _ =
                writeln!(page, "# HELP plimsoll_agent_{name} {help}\n# TYPE plimsoll_agent_{name} {kind}");
            for (labels, value) in samples {
                let _ = writeln!(page, "plimsoll_agent_{name}{{{labels}}} {value}");
            }
        };
    let version = format!("version=\"{}\"", env!("CARGO_PKG_VERSION"));
    write_family("build_info", "gauge", "What runs; always 1.", &mut std::iter::once((version, 1.0)));
    let value_labels = |(member_label, value): &(String, &MetricValue)| {
        format!("name=\"{}\",source=\"{}\"{member_label}", value.name, value.source.name())
    };
    let value_samples = &mut labeled_values.iter().map(|labeled| (value_labels(labeled), labeled.1.value));
    write_family("value", "gauge", "What the agent knows.", value_samples);
    let ages = &mut labeled_values.iter().map(|labeled| (value_labels(labeled), labeled.1.age.as_secs_f64()));
    write_family("value_age_seconds", "gauge", "Since it was read or told.", ages);
    let target_labels = |(member_label, counts): &(String, TargetCounts)| {
        format!("target=\"{}\"{member_label}", escaped(&counts.target))
    };
    let report_samples =
        &mut labeled_counts.iter().map(|labeled| (target_labels(labeled), labeled.1.reports as f64));
    write_family("reports_total", "counter", "Reports that arrived.", report_samples);
    let failure_samples =
        &mut labeled_counts.iter().map(|labeled| (target_labels(labeled), labeled.1.failures as f64));
    write_family("report_failures_total", "counter", "Attempts to report that failed.", failure_samples);
    let health_samples =
        &mut labeled_counts.iter().map(|labeled| (target_labels(labeled), f64::from(labeled.1.is_healthy())));
    write_family("target_up", "gauge", "1 if the last report arrived.", health_samples);
    let unread_samples = &mut unread
        .iter()
        .map(|unread| (format!("sensor=\"{}\",what=\"{}\"", unread.sensor, escaped(&unread.what)), 1.0));
    write_family("unread", "gauge", "What cannot be read; always 1.", unread_samples);
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
    use crate::metric_store::ValueSource;

    #[tokio::test(start_paused = true)]
    async fn both_forms_say_the_same() {
        let targets = ["http://127.0.0.1:1/".parse().unwrap()];
        let shared = AgentState::new(Some("web".into()), Some("a:80".into()), Vec::new(), &targets);
        shared.write("cpu", 0.25, ValueSource::Reported, Duration::ZERO, true).unwrap();
        let source_path = "/x\"y".to_owned();
        shared.set_unread_sensors(vec![UnreadSource {
            sensor: "cpu",
            what: source_path,
            why: "gone".into(),
        }]);
        shared.machine.record_delivered(0, 3);
        tokio::time::advance(Duration::from_secs(2)).await;
        let snapshot = ValueSnapshot::from_state(&shared);
        assert_eq!(
            snapshot.load_json(),
            json!({"group": "web", "member": "a:80", "values": {"cpu": {"value": 0.25, "age_seconds": 2.0}}})
        );
        let full = snapshot.full_json();
        assert_eq!(full["values"]["cpu"]["source"], "told");
        assert_eq!(full["unread"], json!([{"sensor": "cpu", "what": "/x\"y", "why": "gone"}]));
        let page = metrics_page(&shared);
        let find_sample = |name: &str| samples(&page).find(|sample| sample.name == name).unwrap();
        assert_eq!(find_sample("plimsoll_agent_value").labels, "name=\"cpu\",source=\"told\"");
        assert_eq!(find_sample("plimsoll_agent_value").value, 0.25);
        assert_eq!(find_sample("plimsoll_agent_value_age_seconds").value, 2.0);
        assert_eq!(find_sample("plimsoll_agent_reports_total").value, 3.0);
        assert_eq!(find_sample("plimsoll_agent_unread").labels, "sensor=\"cpu\",what=\"/x\\\"y\"");
        assert!(page.lines().all(|line| line.starts_with('#') || line.starts_with("plimsoll_agent_")));
    }
}
