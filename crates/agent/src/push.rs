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
    place: usize,
    number: usize,
    url: ServerUrl,
    mut beat: watch::Receiver<u64>,
) {
    let Some(subject) = shared.subject(place) else { return };
    let mut link = HttpClient::new(url);
    let mut chance = JitterSource::new();
    // The write counter up to which the balancer has all values.
    let mut known = 0;
    let mut wait = FIRST_BACKOFF;
    while beat.changed().await.is_ok() {
        if !link.is_open() {
            known = 0;
        }
        let (values, turn) = subject.metrics().written_since(known, shared.now());
        let made = link.connection_count();
        match send(&shared, subject, number, &mut link, values).await {
            Ok(reports) => {
                // The old connection was dead: the balancer on the new one has only this report.
                let renewed = known > 0 && link.connection_count() != made;
                known = if renewed { 0 } else { turn };
                wait = FIRST_BACKOFF;
                subject.record_delivered(number, reports);
            }
            Err(trouble) => {
                subject.record_failed(number, trouble);
                sleep(chance.scale(wait, 0.5, 1.0)).await;
                wait = (wait * 2).min(MAX_BACKOFF);
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
    fn from(trouble: HttpFailure) -> Self {
        let kind = match trouble {
            HttpFailure::Connect(_) => 1,
            HttpFailure::TimedOut => 2,
            HttpFailure::Broken(_) => 3,
        };
        Self { kind, why: trouble.to_string() }
    }
}

/// Sends the fresh values in one report and the older ones in another, which states their age. Returns the
/// number of reports.
async fn send(
    shared: &AgentState,
    subject: &ReportSubject,
    number: usize,
    link: &mut HttpClient,
    values: Vec<MetricValue>,
) -> Result<u64, ReportFailure> {
    let (fresh, old): (Vec<_>, Vec<_>) = values.into_iter().partition(|value| value.age < FRESH_AGE);
    let mut sent = 0;
    for values in [old, fresh] {
        if values.is_empty() {
            continue;
        }
        let report = LoadReport::from_values(shared.group.as_deref(), subject.member.as_deref(), &values);
        let body =
            serde_json::to_vec(&report).map_err(|error| ReportFailure { kind: 4, why: error.to_string() })?;
        let (status, answer) = link.send_request(Method::POST, Some(body.into()), MAX_RESPONSE).await?;
        if !status.is_success() {
            return Err(ReportFailure { kind: status.as_u16(), why: refusal_text(status.as_u16(), &answer) });
        }
        // With several servers, an alert in the answer about the machine is ignored: each server gets it in
        // the answer to its own reports.
        if shared.servers.is_empty() || !std::ptr::eq(subject, &shared.machine) {
            subject.record_answer(number, parse_decision(&answer), shared.now());
        }
        sent += 1;
    }
    Ok(sent)
}

/// Formats a refusal, such as `it answered 422: there is no member 10.0.0.9:80`.
pub(crate) fn refusal_text(status: u16, answer: &[u8]) -> String {
    let json = serde_json::from_slice::<serde_json::Value>(answer).ok();
    let said = json.as_ref().and_then(|json| json["error"].as_str().map(str::to_owned));
    let said = said.unwrap_or_else(|| String::from_utf8_lossy(answer).into_owned());
    let said: String = said.trim().chars().take(300).map(|c| if c.is_control() { ' ' } else { c }).collect();
    if said.is_empty() { format!("it answered {status}") } else { format!("it answered {status}: {said}") }
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
