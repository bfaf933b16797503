//! Receives load reports out of band (ORCA, gRFC A51). A long-lived gRPC call to each member delivers one
//! report per interval, even while the member sends no responses.
//!
//! A call that ends, fails or stays silent is made again after a pause. The pause is short after a call with
//! a report. Else it grows as in gRPC, by a factor of 1.6 from one second with a jitter of a fifth, up to
//! [`LONGEST`]. A member without the service is not called again until its connection ends, or for
//! [`UNSUPPORTED_RETRY_DELAY`].

use std::sync::{Arc, Weak};
use std::time::Duration;

use h2::client::{Builder, SendRequest};
use h2::{Reason, RecvStream};
use hyper::body::Bytes;
use hyper::header::{CONTENT_TYPE, TE, USER_AGENT};
use hyper::{HeaderMap, Request, StatusCode};
use plimsoll_wire::orca::{self, stream_request};
use plimsoll_wire::xds::FrameDecoder;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use crate::observations::MetricSample;
use crate::scrape::{MAX_FIRST_DELAY, ScrapeResult, ScrapeTarget, random_unit};
use crate::{ObserverShared, is_name};

/// The first pause, and the maximum.
const MIN_RETRY_PAUSE: Duration = Duration::from_secs(1);
const MAX_RETRY_PAUSE: Duration = Duration::from_secs(30);
/// The maximum time until a member without the service is called again.
const UNSUPPORTED_RETRY_DELAY: Duration = Duration::from_secs(600);
/// The minimum tolerated silence; three intervals if that is longer. Servers may have a minimum interval, 30
/// s with grpc-go.
const SILENCE_LIMIT: Duration = Duration::from_secs(60);

/// The `grpc-status` of a server without the service.
const UNIMPLEMENTED: &str = "12";

/// The end of a call.
struct StreamEnd {
    why: String,
    /// The connection, if the member does not have the service.
    unsupported_by: Option<OrcaConnection>,
}

/// A connection, which ends when it is dropped.
struct OrcaConnection {
    /// Keeps the connection open.
    sender: SendRequest<Bytes>,
    driver: JoinHandle<()>,
}

impl Drop for OrcaConnection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl From<String> for StreamEnd {
    fn from(reason: String) -> Self {
        Self { why: reason, unsupported_by: None }
    }
}

/// Receives the reports of one member forever.
pub(crate) async fn watch(
    (group, member): (Arc<str>, Arc<str>),
    target: Arc<ScrapeTarget>,
    inner: Weak<ObserverShared>,
) {
    sleep(target.interval.min(MAX_FIRST_DELAY).mul_f64(random_unit())).await;
    let mut pause = MIN_RETRY_PAUSE;
    // Whether the missing service has been reported.
    let mut is_noted = false;
    loop {
        let mut has_reported = false;
        let stream_end = receive_reports(&target, |outcome| {
            has_reported |= outcome.is_ok();
            if let Some(inner) = inner.upgrade() {
                inner.record_scrape(&group, &member, outcome);
            }
        });
        let stream_end = stream_end.await;
        let Some(inner) = inner.upgrade() else { return };
        let reason = format!("load reports of {}: {}", target.host, stream_end.why);
        if has_reported {
            (pause, is_noted) = (MIN_RETRY_PAUSE, false);
        }
        if stream_end.unsupported_by.is_some() && !std::mem::replace(&mut is_noted, true) {
            inner.note_missing_reports(&group, &member, &reason);
        }
        inner.record_scrape(&group, &member, Err(reason));
        drop(inner);
        if let Some(mut connection) = stream_end.unsupported_by {
            // Both results mean that the connection has ended, or the time is over.
            let _ = timeout(UNSUPPORTED_RETRY_DELAY, &mut connection.driver).await;
        }
        sleep(pause.mul_f64(0.8 + 0.4 * random_unit())).await;
        pause = pause.mul_f64(1.6).min(MAX_RETRY_PAUSE);
    }
}

/// Makes the call and passes on its results until it ends.
async fn receive_reports(target: &ScrapeTarget, mut on_report: impl FnMut(ScrapeResult)) -> StreamEnd {
    let timeout_message = || format!("no connection within {} s", target.timeout.as_secs_f64());
    let connection = match timeout(target.timeout, connect(target)).await {
        Ok(Ok(connection)) => connection,
        Ok(Err(reason)) => return reason.into(),
        Err(_) => return timeout_message().into(),
    };
    match call(target, connection.sender.clone(), &mut on_report).await {
        Ok(GrpcStatus(Some(code), _)) if code == UNIMPLEMENTED => {
            let reason = "it does not have the service xds.service.orca.v3.OpenRcaService (grpc-status 12)";
            StreamEnd { why: reason.into(), unsupported_by: Some(connection) }
        }
        Ok(GrpcStatus(Some(code), Some(text))) => format!("ended with grpc-status {code}: {text}").into(),
        Ok(GrpcStatus(Some(code), None)) => format!("ended with grpc-status {code}").into(),
        Ok(GrpcStatus(None, _)) => "ended without grpc-status".to_owned().into(),
        Err(reason) => reason.into(),
    }
}

async fn connect(target: &ScrapeTarget) -> Result<OrcaConnection, String> {
    let stream = TcpStream::connect(target.address).await.map_err(|error| error.to_string())?;
    let handshake = Builder::new().enable_push(false).max_header_list_size(16 * 1024).handshake(stream).await;
    let (sender, connection) = handshake.map_err(|error| format!("HTTP/2: {error}"))?;
    let driver = tokio::spawn(async {
        // The call reports the reason of the end.
        let _ = connection.await;
    });
    Ok(OrcaConnection { sender, driver })
}

/// `grpc-status` and `grpc-message`.
struct GrpcStatus(Option<String>, Option<String>);

impl GrpcStatus {
    fn of(fields: &HeaderMap) -> Self {
        let field = |name| Some(fields.get(name)?.to_str().ok()?.chars().take(200).collect());
        Self(field("grpc-status"), field("grpc-message"))
    }
}

async fn call(
    target: &ScrapeTarget,
    sender: SendRequest<Bytes>,
    on_report: &mut impl FnMut(ScrapeResult),
) -> Result<GrpcStatus, String> {
    let silence_limit = (target.interval * 3).max(SILENCE_LIMIT);
    let silence_error = |_| format!("nothing came for {} s", silence_limit.as_secs());
    let connection_error = |error: h2::Error| match error.reason() {
        Some(Reason::NO_ERROR) => "the connection was closed".to_owned(),
        _ => format!("HTTP/2: {error}"),
    };
    let request = Request::post(format!("http://{}{}", target.host, orca::STREAM_PATH))
        .header(CONTENT_TYPE, "application/grpc")
        .header(TE, "trailers")
        .header(USER_AGENT, concat!("plimsoll/", env!("CARGO_PKG_VERSION")))
        .body(())
        .map_err(|error| error.to_string())?;
    let response_future = async {
        let mut sender = sender.ready().await?;
        let (response, mut out) = sender.send_request(request, false)?;
        // The request is smaller than any window.
        out.send_data(stream_request(target.interval).into(), true)?;
        response.await
    };
    let response =
        timeout(silence_limit, response_future).await.map_err(silence_error)?.map_err(connection_error)?;
    if response.status() != StatusCode::OK {
        return Err(format!("answered {}", response.status().as_u16()));
    }
    let (head, mut body) = response.into_parts();
    let mut frames = FrameDecoder::new(orca::MAX_LEN);
    while let Some(chunk) = timeout(silence_limit, next_chunk(&mut body)).await.map_err(silence_error)? {
        frames.push(&chunk.map_err(connection_error)?);
        let mut last_message = None;
        while let Some(message) = frames.next_message().map_err(|error| error.to_string())? {
            last_message = Some(message);
        }
        if let Some(message) = last_message {
            on_report(
                parse_report(&message).map_err(|error| format!("load reports of {}: {error}", target.host)),
            );
            // A member that reports faster than requested is not read faster.
            sleep(target.interval.min(MIN_RETRY_PAUSE) / 4).await;
        }
    }
    let trailers =
        timeout(silence_limit, body.trailers()).await.map_err(silence_error)?.map_err(connection_error)?;
    // A call that is rejected at once has its status in the head.
    Ok(GrpcStatus::of(trailers.as_ref().unwrap_or(&head.headers)))
}

/// Returns the next bytes of a response, and reopens the flow-control window for as many.
async fn next_chunk(body: &mut RecvStream) -> Option<Result<Bytes, h2::Error>> {
    let chunk = body.data().await?;
    Some(chunk.and_then(|chunk| body.flow_control().release_capacity(chunk.len()).map(|()| chunk)))
}

/// Returns the figures of a report whose names are valid.
fn parse_report(message: &[u8]) -> ScrapeResult {
    let mut values = Vec::new();
    orca::read_message(message, |metric| {
        if let Some(name) = metric.figure().filter(|name| is_name(name)) {
            values.push(MetricSample::new(name, metric.value, Duration::ZERO));
        }
    })
    .map_err(|error| error.to_string())?;
    Ok(values)
}

#[cfg(test)]
mod tests;
