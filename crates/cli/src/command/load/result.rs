//! The outcome of a run: counts, latencies, the course over time, and its validity.

use std::time::Duration;

use plimsoll_bench::record::{LatencyHistogram, RunRecord};
use serde_json::{Value, json};

use super::threshold::ThresholdVerdict;

/// The least share of requests that must leave on time.
pub(super) const MIN_PUNCTUAL_SHARE: f64 = 0.99;
/// The percentiles that all reports have.
pub(super) const QUANTILES: [(&str, f64); 6] =
    [("p50", 0.5), ("p90", 0.9), ("p95", 0.95), ("p99", 0.99), ("p999", 0.999), ("p9999", 0.9999)];

/// The settings of the run.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct RunSetup {
    /// The URLs.
    pub(super) targets: Vec<String>,
    /// The pace: `poisson, 5000/s`, `closed loop, 64 clients`, …
    pub(super) pace: String,
    /// Whether it is a closed loop, in which nothing was due at a time of its own.
    pub(super) is_closed_loop: bool,
    /// The seed of arrivals and choices; none for several runs together.
    pub(super) seed: Option<u64>,
}

/// A run that has ended.
#[derive(Clone, Debug, Default)]
pub(super) struct LoadResult {
    pub(super) setup: RunSetup,
    pub(super) record: RunRecord,
    /// The course, in slices of a second or so.
    pub(super) timeline: Vec<TimelineSlice>,
    /// The time for which requests were due.
    pub(super) elapsed: Duration,
    /// Requests answered without fault in that time; the others were answered when nothing was sent any more.
    pub(super) answered_in_time: u64,
    /// The processor time of the generator.
    pub(super) cpu_time: Duration,
    /// Whether Ctrl-C ended it.
    pub(super) is_interrupted: bool,
    /// The reason for which a part of this run is invalid.
    pub(super) run_flaw: Option<String>,
}

/// A part of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct TimelineSlice {
    /// Its end, in seconds since the start.
    pub(super) at: f64,
    /// Its length, in seconds.
    pub(super) span: f64,
    /// Requests that became due in it.
    pub(super) due: u64,
    /// Requests that were answered in it.
    pub(super) ok: u64,
    /// Requests that failed in it.
    pub(super) failed: u64,
    /// The latency of those that ended in it, in seconds; `None` if none did.
    pub(super) p50: Option<f64>,
    pub(super) p99: Option<f64>,
}

impl TimelineSlice {
    /// Returns the part of a run that ended `at` seconds after its start and took `span` of them.
    pub(super) fn from_record(record: &RunRecord, time: f64, span: f64) -> Self {
        let quantile = |q| (record.latency.count() > 0).then(|| record.latency.quantile(q).as_secs_f64());
        Self {
            at: time,
            span,
            due: record.due,
            ok: record.ok,
            failed: record.failures(),
            p50: quantile(0.5),
            p99: quantile(0.99),
        }
    }
}

impl LoadResult {
    /// Returns the requests per second that became due.
    pub(super) fn offered_rate(&self) -> f64 {
        self.record.due as f64 / self.elapsed.as_secs_f64().max(1e-9)
    }

    /// Returns the requests per second that were answered without fault while requests were due.
    pub(super) fn completed_rate(&self) -> f64 {
        self.answered_in_time as f64 / self.elapsed.as_secs_f64().max(1e-9)
    }

    /// Returns `true` if there was not one connection, nor a server to connect to.
    pub(super) fn is_unreachable(&self) -> bool {
        let is_connect_failure = |name: &str| name.starts_with("connect") || name == "unpicked";
        let connects = self.record.failed.iter().filter(|(fault, _)| is_connect_failure(fault.name()));
        let unconnected = connects.map(|(_, count)| *count).sum::<u64>();
        self.record.ok == 0 && unconnected > 0 && unconnected == self.record.failures()
    }

    /// Returns the reason for which the run proves nothing about the server, if there is one.
    pub(super) fn invalid_reason(&self) -> Option<String> {
        let record = &self.record;
        if self.run_flaw.is_some() {
            return self.run_flaw.clone();
        }
        if record.due == 0 {
            return Some("nothing was due: the rate or the duration is too small".to_owned());
        }
        let cpu_percent = self.cpu_time.as_secs_f64() / self.elapsed.as_secs_f64().max(1e-9) * 100.0;
        let unsent =
            record.failed.iter().find(|(fault, _)| fault.name() == "unsent").map_or(0, |(_, count)| *count);
        if unsent as f64 > (1.0 - MIN_PUNCTUAL_SHARE) * record.due as f64 {
            return Some(format!(
                "{unsent} requests could not be sent at all: more are in flight than there may be, or \
                 sockets are \
                 used up; give a shorter --timeout, or raise the limit on open files (ulimit -n)"
            ));
        }
        if self.setup.is_closed_loop || record.punctuality() >= MIN_PUNCTUAL_SHARE {
            return None;
        }
        Some(format!(
            "{:.2} % of the requests left on time, 99 % must: the generator, not the server, was the limit \
             (it used \
             {cpu_percent:.0} % of a processor); give it more of the machine or a lower --rate",
            record.punctuality() * 100.0
        ))
    }

    /// Returns one document for programs.
    pub(super) fn to_json(&self, verdicts: &[ThresholdVerdict]) -> Value {
        let record = &self.record;
        let invalid_reason = self.invalid_reason();
        let shares = record.shares();
        let members: serde_json::Map<String, Value> = record
            .members
            .iter()
            .map(|(name, answers)| {
                let share = shares.get(name).copied().unwrap_or(0.0);
                let p99 = (answers.latency.count() > 0).then(|| answers.latency.quantile(0.99).as_secs_f64());
                (
                    name.to_string(),
                    json!({"ok": answers.ok, "failed": answers.failed, "share": share, "p99_seconds": p99}),
                )
            })
            .collect();
        let timeline: Vec<Value> = self
            .timeline
            .iter()
            .map(|slice| {
                json!({
                    "at": slice.at, "seconds": slice.span, "due": slice.due, "ok": slice.ok,
                    "failed": slice.failed, "p50_seconds": slice.p50, "p99_seconds": slice.p99,
                })
            })
            .collect();
        let thresholds: Vec<Value> = verdicts
            .iter()
            .map(|verdict| json!({"text": verdict.text, "value": verdict.value, "met": verdict.passed}))
            .collect();
        json!({
            "version": 1,
            "targets": self.setup.targets,
            "arrival": self.setup.pace,
            "closed": self.setup.is_closed_loop,
            "seed": self.setup.seed,
            "seconds": self.elapsed.as_secs_f64(),
            "due": record.due,
            "on_time": record.on_time,
            "punctuality": record.punctuality(),
            "waited": record.waited,
            "ok": record.ok,
            "failed": record.failed.iter().map(|(fault, count)| (fault.name().to_owned(), json!(count)))
                .collect::<serde_json::Map<_, _>>(),
            "exceptions": record.exceptions.iter().map(|(name, count)| (name.to_string(), json!(count)))
                .collect::<serde_json::Map<_, _>>(),
            "forwarded": record.forwarded,
            "returned": record.returned_sessions,
            "ok_in_time": self.answered_in_time,
            "cut": record.cut,
            "offered_per_second": self.offered_rate(),
            "completed_per_second": self.completed_rate(),
            "cpu_seconds": self.cpu_time.as_secs_f64(),
            "latency_seconds": quantiles(&record.latency),
            "service_seconds": quantiles(&record.service),
            "lateness_seconds": quantiles(&record.lateness),
            "pick_seconds": quantiles(&record.picks),
            "members": members,
            "timeline": timeline,
            "verdict": if invalid_reason.is_some() { "invalid" } else { "valid" },
            "reason": invalid_reason,
            "interrupted": self.is_interrupted,
            "thresholds": thresholds,
            "histograms": {
                "latency": record.latency.encode(),
                "service": record.service.encode(),
                "lateness": record.lateness.encode(),
            },
        })
    }
}

/// Returns the percentiles in seconds; null if there are none.
fn quantiles(latencies: &LatencyHistogram) -> Value {
    if latencies.count() == 0 {
        return Value::Null;
    }
    let mut out = serde_json::Map::new();
    out.insert("mean".to_owned(), json!(latencies.mean().as_secs_f64()));
    for (name, q) in QUANTILES {
        out.insert(name.to_owned(), json!(latencies.quantile(q).as_secs_f64()));
    }
    out.insert("max".to_owned(), json!(latencies.max().as_secs_f64()));
    Value::Object(out)
}

#[cfg(test)]
pub(super) mod sample {
    //! A run for tests.

    use plimsoll_bench::record::FailureKind;

    use super::*;

    /// Returns 100 requests in 10 s: 98 answered in 1 to 98 ms, by two members, and two that timed out after
    /// 5 s.
    pub(in super::super) fn outcome() -> LoadResult {
        let mut record = RunRecord::new();
        let millis = Duration::from_millis;
        let members = ["m1".into(), "m2".into()];
        record.due = 100;
        record.on_time = 100;
        for n in 1..=98 {
            record.ok += 1;
            record.latency.record(millis(n));
            record.service.record(millis(n));
            let answers =
                record.members.entry(std::sync::Arc::clone(&members[usize::from(n % 4 == 0)])).or_default();
            answers.ok += 1;
            answers.latency.record(millis(n));
        }
        record.failed.insert(FailureKind::Timeout, 2);
        (0..2).for_each(|_| record.latency.record(millis(5000)));
        (0..100).for_each(|_| record.lateness.record(Duration::from_micros(40)));
        let timeline = (1..=10)
            .map(|second| TimelineSlice {
                at: f64::from(second),
                span: 1.0,
                due: 10,
                ok: 9,
                failed: 0,
                p50: Some(0.05),
                p99: Some(0.09),
            })
            .collect();
        LoadResult {
            setup: RunSetup {
                targets: vec!["http://127.0.0.1:8080/".into()],
                pace: "poisson, 10/s".into(),
                is_closed_loop: false,
                seed: Some(7),
            },
            record,
            timeline,
            elapsed: Duration::from_secs(10),
            answered_in_time: 98,
            cpu_time: millis(120),
            is_interrupted: false,
            run_flaw: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use plimsoll_bench::record::FailureKind;

    use super::*;

    #[test]
    fn a_run_that_was_late_proves_nothing() {
        let mut outcome = sample::outcome();
        assert_eq!(outcome.invalid_reason(), None);
        outcome.record.on_time = 98;
        let reason = outcome.invalid_reason().unwrap();
        assert!(
            reason.starts_with("98.00 %") && reason.contains("the generator, not the server"),
            "{reason}"
        );
        assert_eq!(outcome.to_json(&[])["verdict"], "invalid");
        outcome.record.failed.insert(FailureKind::Unsent, 2);
        assert!(outcome.invalid_reason().unwrap().contains("2 requests could not be sent"));
        outcome.record.failed.clear();
        outcome.setup.is_closed_loop = true;
        assert_eq!(outcome.invalid_reason(), None);
        assert!(LoadResult::default().invalid_reason().is_some(), "nothing was due");
    }

    #[test]
    fn only_connections_that_never_came_about_are_unreachable() {
        let mut outcome = sample::outcome();
        outcome.record.ok = 0;
        outcome.record.failed = [(FailureKind::Connect, 50), (FailureKind::ConnectTimeout, 50)].into();
        assert!(outcome.is_unreachable());
        outcome.record.failed.insert(FailureKind::Timeout, 1);
        assert!(!outcome.is_unreachable());
    }

    #[test]
    fn programs_get_what_people_get() {
        let json = sample::outcome().to_json(&[]);
        assert_eq!(
            (&json["due"], &json["ok"], &json["failed"]["timeout"]),
            (&100.into(), &98.into(), &2.into())
        );
        assert_eq!(json["offered_per_second"], 10.0);
        assert!(json["latency_seconds"]["p999"].as_f64().unwrap() >= 5.0, "time-outs count");
        assert_eq!(json["timeline"].as_array().unwrap().len(), 10);
    }
}
