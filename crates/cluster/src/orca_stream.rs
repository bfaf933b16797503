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
const SHORTEST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(30);
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
    fn from(why: String) -> Self {
        Self { why, unsupported_by: None }
    }
}

/// Receives the reports of one member forever.
pub(crate) async fn watch(
    (group, member): (Arc<str>, Arc<str>),
    aim: Arc<ScrapeTarget>,
    inner: Weak<ObserverShared>,
) {
    sleep(aim.interval.min(MAX_FIRST_DELAY).mul_f64(random_unit())).await;
    let mut pause = SHORTEST;
    // Whether the missing service has been reported.
    let mut said = false;
    loop {
        let mut told = false;
        let over = receive_reports(&aim, |outcome| {
            told |= outcome.is_ok();
            if let Some(inner) = inner.upgrade() {
                inner.record_scrape(&group, &member, outcome);
            }
        });
        let over = over.await;
        let Some(inner) = inner.upgrade() else { return };
        let why = format!("load reports of {}: {}", aim.host, over.why);
        if told {
            (pause, said) = (SHORTEST, false);
        }
        if over.unsupported_by.is_some() && !std::mem::replace(&mut said, true) {
            inner.note_missing_reports(&group, &member, &why);
        }
        inner.record_scrape(&group, &member, Err(why));
        drop(inner);
        if let Some(mut line) = over.unsupported_by {
            // Both results mean that the connection has ended, or the time is over.
            let _ = timeout(UNSUPPORTED_RETRY_DELAY, &mut line.driver).await;
        }
        sleep(pause.mul_f64(0.8 + 0.4 * random_unit())).await;
        pause = pause.mul_f64(1.6).min(LONGEST);
    }
}

/// Makes the call and passes on its results until it ends.
async fn receive_reports(aim: &ScrapeTarget, mut each: impl FnMut(ScrapeResult)) -> StreamEnd {
    let late = || format!("no connection within {} s", aim.timeout.as_secs_f64());
    let line = match timeout(aim.timeout, connect(aim)).await {
        Ok(Ok(line)) => line,
        Ok(Err(why)) => return why.into(),
        Err(_) => return late().into(),
    };
    match call(aim, line.sender.clone(), &mut each).await {
        Ok(GrpcStatus(Some(code), _)) if code == UNIMPLEMENTED => {
            let why = "it does not have the service xds.service.orca.v3.OpenRcaService (grpc-status 12)";
            StreamEnd { why: why.into(), unsupported_by: Some(line) }
        }
        Ok(GrpcStatus(Some(code), Some(text))) => format!("ended with grpc-status {code}: {text}").into(),
        Ok(GrpcStatus(Some(code), None)) => format!("ended with grpc-status {code}").into(),
        Ok(GrpcStatus(None, _)) => "ended without grpc-status".to_owned().into(),
        Err(why) => why.into(),
    }
}

async fn connect(aim: &ScrapeTarget) -> Result<OrcaConnection, String> {
    let stream = TcpStream::connect(aim.address).await.map_err(|error| error.to_string())?;
    let begun = Builder::new().enable_push(false).max_header_list_size(16 * 1024).handshake(stream).await;
    let (sender, connection) = begun.map_err(|error| format!("HTTP/2: {error}"))?;
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
    aim: &ScrapeTarget,
    sender: SendRequest<Bytes>,
    each: &mut impl FnMut(ScrapeResult),
) -> Result<GrpcStatus, String> {
    let silence = (aim.interval * 3).max(SILENCE_LIMIT);
    let silent = |_| format!("nothing came for {} s", silence.as_secs());
    let broken = |error: h2::Error| match error.reason() {
        Some(Reason::NO_ERROR) => "the connection was closed".to_owned(),
        _ => format!("HTTP/2: {error}"),
    };
    let request = Request::post(format!("http://{}{}", aim.host, orca::STREAM_PATH))
        .header(CONTENT_TYPE, "application/grpc")
        .header(TE, "trailers")
        .header(USER_AGENT, concat!("plimsoll/", env!("CARGO_PKG_VERSION")))
        .body(())
        .map_err(|error| error.to_string())?;
    let begun = async {
        let mut sender = sender.ready().await?;
        let (answer, mut out) = sender.send_request(request, false)?;
        // The request is smaller than any window.
        out.send_data(stream_request(aim.interval).into(), true)?;
        answer.await
    };
    let answer = timeout(silence, begun).await.map_err(silent)?.map_err(broken)?;
    if answer.status() != StatusCode::OK {
        return Err(format!("answered {}", answer.status().as_u16()));
    }
    let (head, mut body) = answer.into_parts();
    let mut frames = FrameDecoder::new(orca::MAX_LEN);
    while let Some(piece) = timeout(silence, next_chunk(&mut body)).await.map_err(silent)? {
        frames.push(&piece.map_err(broken)?);
        let mut last = None;
        while let Some(message) = frames.next_message().map_err(|bad| bad.to_string())? {
            last = Some(message);
        }
        if let Some(message) = last {
            each(parse_report(&message).map_err(|why| format!("load reports of {}: {why}", aim.host)));
            // A member that reports faster than requested is not read faster.
            sleep(aim.interval.min(SHORTEST) / 4).await;
        }
    }
    let trailers = timeout(silence, body.trailers()).await.map_err(silent)?.map_err(broken)?;
    // A call that is rejected at once has its status in the head.
    Ok(GrpcStatus::of(trailers.as_ref().unwrap_or(&head.headers)))
}

/// Returns the next bytes of a response, and reopens the flow-control window for as many.
async fn next_chunk(body: &mut RecvStream) -> Option<Result<Bytes, h2::Error>> {
    let piece = body.data().await?;
    Some(piece.and_then(|piece| body.flow_control().release_capacity(piece.len()).map(|()| piece)))
}

/// Returns the figures of a report whose names are valid.
fn parse_report(message: &[u8]) -> ScrapeResult {
    let mut values = Vec::new();
    orca::read_message(message, |metric| {
        if let Some(name) = metric.figure().filter(|name| is_name(name)) {
            values.push(MetricSample::new(name, metric.value, Duration::ZERO));
        }
    })
    .map_err(|bad| bad.to_string())?;
    Ok(values)
}

#[cfg(test)]
mod tests;
