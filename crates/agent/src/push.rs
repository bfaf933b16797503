//! Sends reports to one balancer: at each interval, the values written since the last report.
//!
//! Each balancer has its own task and connection, so that one that is down or hangs delays neither the others
//! nor the sensors. After a failure the task waits for half a second, doubled each time up to half a minute,
//! with jitter. Beats during this delay are not queued: the next report has the values of its time. A new
//! connection may lead to a new process, so it starts with all values.

use std::sync::Arc;
use std::time::Duration;

use hyper::Method;
use tokio::sync::watch;
use tokio::time::sleep;

use crate::alert::parse_decision;
use crate::http_client::{HttpClient, HttpFailure, ServerUrl};
use crate::jitter::JitterSource;
use crate::metric_store::MetricValue;
use crate::report::{FRESH_AGE, LoadReport};
use crate::report_subject::ReportSubject;
use crate::state::AgentState;

/// The delay after the first failure.
const FIRST_BACKOFF: Duration = Duration::from_millis(500);
/// The longest delay.
const MAX_BACKOFF: Duration = Duration::from_secs(30);
/// The largest response body in bytes.
const MAX_RESPONSE: usize = 64 * 1024;

/// Sends reports of the subject with index `place` to `url`, the target with this number, at every beat.
pub(crate) async fn run(
    shared: Arc<AgentState>,
    subject_index: usize,
    target_index: usize,
    url: ServerUrl,
    mut ticks: watch::Receiver<u64>,
) {
    let Some(subject) = shared.subject(subject_index) else { return };
    let mut client = HttpClient::new(url);
    let mut jitter = JitterSource::new();
    // The write counter up to which the balancer has all values.
    let mut last_sent = 0;
    let mut backoff = FIRST_BACKOFF;
    while ticks.changed().await.is_ok() {
        if !client.is_open() {
            last_sent = 0;
        }
        let (values, write_number) = subject.metrics().written_since(last_sent, shared.now());
        let connection_count = client.connection_count();
        match send(&shared, subject, target_index, &mut client, values).await {
            Ok(reports) => {
                // The old connection was dead: the balancer on the new one has only this report.
                let reconnected = last_sent > 0 && client.connection_count() != connection_count;
                last_sent = if reconnected { 0 } else { write_number };
                backoff = FIRST_BACKOFF;
                subject.record_delivered(target_index, reports);
            }
            Err(failure) => {
                subject.record_failed(target_index, failure);
                sleep(jitter.scale(backoff, 0.5, 1.0)).await;
                backoff = (backoff * 2).min(MAX_BACKOFF);
            }
        }
    }
}

/// The reason why a report did not arrive.
pub(crate) struct ReportFailure {
    /// The kind of failure; each kind is logged once in a row.
    pub(crate) kind: u16,
    /// The reason as text.
    pub(crate) why: String,
}

impl From<HttpFailure> for ReportFailure {
    fn from(failure: HttpFailure) -> Self {
        let kind = match failure {
            HttpFailure::Connect(_) => 1,
            HttpFailure::TimedOut => 2,
            HttpFailure::Broken(_) => 3,
        };
        Self { kind, why: failure.to_string() }
    }
}

/// Sends the fresh values in one report and the older ones in another, which states their age. Returns the
/// number of reports.
async fn send(
    shared: &AgentState,
    subject: &ReportSubject,
    target_index: usize,
    client: &mut HttpClient,
    values: Vec<MetricValue>,
) -> Result<u64, ReportFailure> {
    let (fresh_values, old_values): (Vec<_>, Vec<_>) =
        values.into_iter().partition(|value| value.age < FRESH_AGE);
    let mut sent_reports = 0;
    for values in [old_values, fresh_values] {
        if values.is_empty() {
            continue;
        }
        let report = LoadReport::from_values(shared.group.as_deref(), subject.member.as_deref(), &values);
        let body =
            serde_json::to_vec(&report).map_err(|error| ReportFailure { kind: 4, why: error.to_string() })?;
        let (status, response_body) =
            client.send_request(Method::POST, Some(body.into()), MAX_RESPONSE).await?;
        if !status.is_success() {
            return Err(ReportFailure {
                kind: status.as_u16(),
                why: refusal_text(status.as_u16(), &response_body),
            });
        }
        // With several servers, an alert in the answer about the machine is ignored: each server gets it in
        // the answer to its own reports.
        if shared.servers.is_empty() || !std::ptr::eq(subject, &shared.machine) {
            subject.record_answer(target_index, parse_decision(&response_body), shared.now());
        }
        sent_reports += 1;
    }
    Ok(sent_reports)
}

/// Formats a refusal, such as `it answered 422: there is no member 10.0.0.9:80`.
pub(crate) fn refusal_text(status: u16, response_body: &[u8]) -> String {
    let json = serde_json::from_slice::<serde_json::Value>(response_body).ok();
    let error_text = json.as_ref().and_then(|json| json["error"].as_str().map(str::to_owned));
    let full_text = error_text.unwrap_or_else(|| String::from_utf8_lossy(response_body).into_owned());
    let short_text: String =
        full_text.trim().chars().take(300).map(|c| if c.is_control() { ' ' } else { c }).collect();
    if short_text.is_empty() {
        format!("it answered {status}")
    } else {
        format!("it answered {status}: {short_text}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_are_told_in_one_line() {
        assert_eq!(refusal_text(404, b""), "it answered 404");
        assert_eq!(refusal_text(422, b"{\"error\": \"no member\"}\n"), "it answered 422: no member");
        assert_eq!(refusal_text(500, b"<b>\r\nno</b>\x1b"), "it answered 500: <b>  no</b> ");
        assert!(refusal_text(500, &[b'x'; 4000]).len() < 400);
    }
}
