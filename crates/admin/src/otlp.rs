//! Exports spans to an OpenTelemetry collector: OTLP over HTTP, protobuf.
//!
//! One request is sent at a time, with the spans gathered so far, on a connection of its own. If the
//! collector is unreachable or responds with 429, 502, 503 or 504, there are up to five attempts. The first
//! pause is half a second, and each further one twice as long, or as requested (`Retry-After`). Meanwhile the
//! caller queues or drops new spans. Other errors are permanent, so their spans are dropped.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Bytes;
use hyper::header::{CONTENT_TYPE, HOST, RETRY_AFTER, USER_AGENT};
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use plimsoll_wire::otlp::{
    self, ExportTraceRequest, ExportTraceResponse, InstrumentationScope, Message as _, OtlpKeyValue,
    Resource, ResourceSpans, ScopeSpans, Span,
};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsConnector;

use crate::refresh::{Url, client_config, drive_connection};
use crate::reload::WatchedFiles;

/// The maximum number of attempts.
const MAX_ATTEMPTS: u32 = 5;
/// The pause before the second attempt.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
/// The maximum pause that the collector may request.
const MAX_PAUSE: Duration = Duration::from_secs(30);
/// The maximum length of a response, in bytes.
const MAX_RESPONSE: usize = 64 * 1024;
const USER_AGENT_VALUE: &str = concat!("plimsoll/", env!("CARGO_PKG_VERSION"));

/// The destination of spans.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OtlpCollector {
    /// The address, with the path for spans.
    pub url: Url,
    /// Additional header fields, names in lower case.
    pub headers: Vec<(String, String)>,
    /// The time limit of one request with its connection.
    pub timeout: Duration,
    /// The name of this service (`service.name`).
    pub service: String,
    /// The authorities of the collector's certificate, PEM; needed for https only.
    pub authorities: PathBuf,
}

/// Sends spans.
#[derive(Debug)]
pub struct SpanExporter {
    collector: OtlpCollector,
    authorities: Option<WatchedFiles<ClientConfig>>,
    resource: Resource,
    /// Whether the last export failed. A failure is logged once, until an export succeeds.
    is_failing: bool,
}

/// The reason why spans were not accepted.
#[derive(Debug, PartialEq, Eq)]
struct ExportError {
    why: String,
    /// The pause until a retry: `None` for a permanent error, `Some(None)` for the default.
    retry: Option<Option<Duration>>,
}

impl ExportError {
    fn transient(reason: impl ToString) -> Self {
        Self { why: reason.to_string(), retry: Some(None) }
    }

    fn permanent(reason: impl ToString) -> Self {
        Self { why: reason.to_string(), retry: None }
    }
}

impl SpanExporter {
    /// Creates the exporter without a connection.
    ///
    /// # Errors
    /// The authorities cannot be read; only https needs them.
    pub fn new(collector: OtlpCollector) -> Result<Self, String> {
        let path = collector.authorities.clone();
        let name = path.display().to_string();
        let open = || WatchedFiles::open(vec![path], move |files| client_config(&name, files.first()));
        let authorities = if collector.url.https { Some(open()?) } else { None };
        let text = |key: &str, value: &str| OtlpKeyValue::new(key, value);
        let attributes = vec![
            text("service.name", &collector.service),
            text("service.version", env!("CARGO_PKG_VERSION")),
            text("service.instance.id", &instance_id()),
            OtlpKeyValue::new("process.pid", i64::from(std::process::id())),
        ];
        Ok(Self { collector, authorities, resource: Resource { attributes }, is_failing: false })
    }

    /// Sends spans and returns the number that was accepted. It may take minutes if the collector is
    /// unreachable.
    pub async fn send(&mut self, spans: Vec<Span>) -> usize {
        let count = spans.len();
        let scope =
            InstrumentationScope { name: "plimsoll".into(), version: env!("CARGO_PKG_VERSION").into() };
        let scope_spans = vec![ScopeSpans { scope: Some(scope), spans }];
        let resource_spans = vec![ResourceSpans { resource: Some(self.resource.clone()), scope_spans }];
        let body = Bytes::from(ExportTraceRequest { resource_spans }.encode_to_vec());
        let mut pause = FIRST_PAUSE;
        for attempt in 1..=MAX_ATTEMPTS {
            let limit = self.collector.timeout;
            let result = timeout(limit, self.post(body.clone())).await;
            let error = match result
                .unwrap_or_else(|_| Err(ExportError::transient(format!("no answer in {limit:?}"))))
            {
                Ok(rejected_count) => {
                    if std::mem::take(&mut self.is_failing) {
                        tracing::info!("spans are sent to {} again", self.collector.url);
                    }
                    return count.saturating_sub(rejected_count);
                }
                Err(error) => error,
            };
            if !std::mem::replace(&mut self.is_failing, true) {
                tracing::warn!("cannot send spans to {}: {}", self.collector.url, error.why);
            }
            match error.retry {
                Some(retry_after) if attempt < MAX_ATTEMPTS => {
                    sleep(retry_after.unwrap_or(pause).min(MAX_PAUSE)).await
                }
                _ => break,
            }
            pause *= 2;
        }
        0
    }

    /// Sends a request once. Returns the number of rejected spans.
    async fn post(&self, body: Bytes) -> Result<usize, ExportError> {
        let OtlpCollector { url, .. } = &self.collector;
        let stream =
            TcpStream::connect((url.host.as_str(), url.port)).await.map_err(ExportError::transient)?;
        // A delay of the body would add only latency.
        let _ = stream.set_nodelay(true);
        match &self.authorities {
            None => self.exchange(stream, body).await,
            Some(authorities) => {
                let config = authorities.current_or_log("the authorities of the collector of spans");
                let name = ServerName::try_from(url.host.clone()).map_err(ExportError::permanent)?;
                let tls_stream = TlsConnector::from(config).connect(name, stream).await;
                self.exchange(tls_stream.map_err(|error: io::Error| ExportError::transient(error))?, body)
                    .await
            }
        }
    }

    async fn exchange<S>(&self, stream: S, body: Bytes) -> Result<usize, ExportError>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let OtlpCollector { url, headers, .. } = &self.collector;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .map_err(ExportError::transient)?;
        let mut request = Request::post(&url.path)
            .header(HOST, url.authority())
            .header(USER_AGENT, USER_AGENT_VALUE)
            .header(CONTENT_TYPE, otlp::CONTENT_TYPE);
        for (name, value) in headers {
            request = request.header(name, value);
        }
        let request = request.body(Full::new(body)).map_err(ExportError::permanent)?;
        let exchange = async {
            let response = sender.send_request(request).await.map_err(ExportError::transient)?;
            let (head, body) = response.into_parts();
            let body =
                Limited::new(body, MAX_RESPONSE).collect().await.map_err(ExportError::transient)?.to_bytes();
            let retry_after =
                head.headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
            interpret(head.status, &body, retry_after.map(Duration::from_secs))
        };
        drive_connection(connection, exchange).await
    }
}

/// Interprets a response: the number of rejected spans, or the reason why none was accepted.
fn interpret(status: StatusCode, body: &[u8], retry_after: Option<Duration>) -> Result<usize, ExportError> {
    match status.as_u16() {
        200..=299 => {
            // A collector with an unknown response body has accepted the spans nevertheless.
            let partial_success =
                ExportTraceResponse::decode(body).ok().and_then(|parsed| parsed.partial_success);
            let Some(partial_success) = partial_success else { return Ok(0) };
            if partial_success.rejected_spans > 0 {
                let message = printable(&partial_success.error_message);
                tracing::warn!(
                    "the collector of spans did not take {}: {message}",
                    partial_success.rejected_spans
                );
            }
            Ok(usize::try_from(partial_success.rejected_spans).unwrap_or_default())
        }
        429 | 502 | 503 | 504 => {
            Err(ExportError { why: format!("it answered {status}"), retry: Some(retry_after) })
        }
        _ => Err(ExportError::permanent(format!("it answered {status}"))),
    }
}

fn printable(text: &str) -> String {
    text.chars().take(200).map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// Returns an identifier of this process among those of the same service.
fn instance_id() -> String {
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    format!("{name}-{}", std::process::id())
}

/// Returns the address for spans below a collector's base address for all signals.
pub fn traces_url(base: &Url) -> Url {
    let path = base.path.trim_end_matches('/');
    let path = if path.ends_with(otlp::PATH) { path.to_owned() } else { format!("{path}{}", otlp::PATH) };
    Url { path, ..base.clone() }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;

    /// Starts a collector with these responses. Returns its address and the received requests.
    async fn collector(responses: &'static [&'static str]) -> (Url, tokio::task::JoinHandle<Vec<Vec<u8>>>) {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let server_task = tokio::spawn(async move {
            let mut requests = Vec::new();
            for response in responses {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut request = Vec::new();
                loop {
                    let mut buffer = [0; 4096];
                    let len = stream.read(&mut buffer).await.unwrap();
                    request.extend_from_slice(&buffer[..len]);
                    let text = String::from_utf8_lossy(&request).to_lowercase();
                    let length =
                        text.split("content-length: ").nth(1).and_then(|rest| rest.split("\r\n").next());
                    let head = request.windows(4).position(|window| window == b"\r\n\r\n");
                    if let (Some(head), Some(length)) = (head, length)
                        && request.len() >= head + 4 + length.parse::<usize>().unwrap()
                    {
                        break;
                    }
                    assert!(len > 0, "{text}");
                }
                stream.write_all(response.as_bytes()).await.unwrap();
                let _ = stream.shutdown().await;
                requests.push(request);
            }
            requests
        });
        (Url { https: false, host: "127.0.0.1".into(), port, path: "/v1/traces".into() }, server_task)
    }

    fn exporter(url: Url) -> SpanExporter {
        let headers = vec![("authorization".to_owned(), "Bearer x".to_owned())];
        let timeout = Duration::from_secs(60);
        SpanExporter::new(OtlpCollector {
            url,
            headers,
            timeout,
            service: "lb".into(),
            authorities: PathBuf::new(),
        })
        .unwrap()
    }

    fn spans() -> Vec<Span> {
        vec![Span { name: "GET".into(), ..Span::default() }, Span::default(), Span::default()]
    }

    #[tokio::test]
    async fn what_is_put_off_is_sent_again() {
        let (url, requests) = collector(&[
            "HTTP/1.1 503 No\r\nRetry-After: 0\r\nContent-Length: 0\r\n\r\n",
            "HTTP/1.1 429 No\r\nRetry-After: 0\r\nContent-Length: 0\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
        ])
        .await;
        assert_eq!(exporter(url).send(spans()).await, 3);
        let requests = requests.await.unwrap();
        let head = String::from_utf8_lossy(&requests[0]).to_lowercase();
        assert!(head.starts_with("post /v1/traces http/1.1\r\n"), "{head}");
        assert!(
            head.contains("authorization: bearer x\r\n") && head.contains("application/x-protobuf"),
            "{head}"
        );
        let body = |request: &[u8]| {
            let head = request.windows(4).position(|window| window == b"\r\n\r\n").unwrap();
            ExportTraceRequest::decode(&request[head + 4..]).unwrap()
        };
        assert_eq!(body(&requests[0]), body(&requests[2]));
        let resource_spans = &body(&requests[0]).resource_spans[0];
        assert_eq!(
            resource_spans.resource.as_ref().unwrap().attributes[0],
            OtlpKeyValue::new("service.name", "lb")
        );
        assert_eq!(resource_spans.scope_spans[0].spans, spans());
    }

    #[tokio::test]
    async fn what_is_refused_is_dropped_and_some_may_be() {
        let (url, requests) = collector(&[
            "HTTP/1.1 400 No\r\nContent-Length: 0\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\n\x0a\x06\x08\x02\x12\x02no",
        ])
        .await;
        let mut exporter = exporter(url);
        assert_eq!(exporter.send(spans()).await, 0);
        assert_eq!(exporter.send(spans()).await, 1);
        assert_eq!(requests.await.unwrap().len(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_collector_that_is_not_there_is_given_up() {
        let url = Url { https: false, host: "127.0.0.1".into(), port: 1, path: "/".into() };
        assert_eq!(exporter(url).send(spans()).await, 0);
    }

    #[test]
    fn spans_are_taken_below_the_endpoint() {
        for (base_url, expected) in [
            ("http://a:4318", "http://a:4318/v1/traces"),
            ("http://a:4318/", "http://a:4318/v1/traces"),
            ("https://a/otlp", "https://a:443/otlp/v1/traces"),
            ("https://a/otlp/v1/traces", "https://a:443/otlp/v1/traces"),
        ] {
            assert_eq!(traces_url(&base_url.parse().unwrap()).to_string(), expected);
        }
    }
}
