//! The agent's listener: serves the values, and accepts reports from programs on this machine.
//!
//! ```text
//! GET  /load        numbers and ages, JSON: what a balancer pulls
//! GET  /metrics     Prometheus text format 0.0.4
//! GET  /healthz     200 ok
//! POST /v1/report   name=NAME&value=NUMBER, or JSON; from this machine only
//! ```
//!
//! Everything has a limit: the number of connections, the time for a head and for a body, the length of a
//! body, and the lifetime of a connection. So a client that does not read keeps its slot only for a bounded
//! time.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use http_body_util::{BodyExt as _, Full};
use hyper::body::{Body as _, Bytes, Incoming};
use hyper::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderValue, ORIGIN};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use serde_json::{Value as Json, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{sleep, timeout};

use crate::connection_slots::ConnectionSlots;
use crate::endpoints::{self, ValueSnapshot};
use crate::metric_store::ValueSource;
use crate::report::LoadReport;
use crate::state::AgentState;

/// The timeout for the first request head.
const FIRST_HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// The timeout for a later request head, from the end of the previous response.
const HEAD_TIMEOUT: Duration = Duration::from_secs(75);
/// The timeout for a request body.
const BODY_TIMEOUT: Duration = Duration::from_secs(5);
/// The largest request body in bytes.
const MAX_BODY: usize = 16 * 1024;
/// The lifetime of a connection, after which it is closed gracefully.
const MAX_CONNECTION_AGE: Duration = Duration::from_secs(600);
/// The time that a graceful close allows for the response in progress.
const GRACE: Duration = Duration::from_secs(5);

const INDEX: &str = "plimsoll agent

/load        what it knows, JSON; /load?member=HOST:PORT of one of several servers
/metrics     the same for Prometheus
/healthz     200 ok
POST /v1/report   name=NAME&value=NUMBER, or {\"values\": {NAME: NUMBER}}; from this machine only
";

type TextResponse = Response<Full<Bytes>>;

/// Serves connections until it is cancelled.
pub(crate) async fn run(listener: TcpListener, shared: Arc<AgentState>) {
    let slots = Arc::new(ConnectionSlots::default());
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                let is_local_peer = is_local(peer, stream.local_addr().ok());
                // A connection without a slot is closed; the client may retry.
                let Some(slot) = ConnectionSlots::acquire(&slots, peer.ip(), is_local_peer) else { continue };
                let shared = shared.clone();
                tokio::spawn(async move {
                    serve_connection(stream, is_local_peer, shared).await;
                    drop(slot);
                });
            }
            // Without descriptors or memory, the connection stays in the queue and the next accept would fail
            // at once.
            Err(error) => {
                tracing::warn!("cannot accept a connection: {error}");
                sleep(Duration::from_millis(200)).await;
            }
        }
    }
}

async fn serve_connection(stream: TcpStream, is_local_peer: bool, shared: Arc<AgentState>) {
    let _ = stream.set_nodelay(true);
    let had_request = AtomicBool::new(false);
    let service = service_fn(|request| {
        had_request.store(true, Relaxed);
        route(shared.clone(), is_local_peer, request)
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(32 * 1024)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = std::pin::pin!(connection);
    // A client's error is answered or ends its connection, and is not logged.
    if timeout(FIRST_HEAD_TIMEOUT, connection.as_mut()).await.is_ok() || !had_request.load(Relaxed) {
        return;
    }
    if timeout(MAX_CONNECTION_AGE, connection.as_mut()).await.is_err() {
        connection.as_mut().graceful_shutdown();
        let _ = timeout(GRACE, connection).await;
    }
}

/// Returns `true` if the client runs on this machine.
fn is_local(peer: SocketAddr, local: Option<SocketAddr>) -> bool {
    let peer = peer.ip().to_canonical();
    peer.is_loopback() || local.is_some_and(|local| local.ip().to_canonical() == peer)
}

async fn route(
    shared: Arc<AgentState>,
    is_local_peer: bool,
    request: Request<Incoming>,
) -> Result<TextResponse, Infallible> {
    let path = request.uri().path().to_owned();
    let is_read_method = [Method::GET, Method::HEAD].contains(request.method());
    Ok(match path.as_str() {
        "/v1/report" if request.method() != Method::POST => not_allowed("POST", "use POST"),
        "/v1/report" if !is_local_peer => error_response(
            StatusCode::FORBIDDEN,
            "only programs on the agent's own machine may report to it".into(),
        ),
        // A web page can make a browser post here, but the browser then sends an `Origin` header.
        "/v1/report" if request.headers().contains_key(ORIGIN) => error_response(
            StatusCode::FORBIDDEN,
            "web pages may not report: leave the header origin out".into(),
        ),
        "/v1/report" => handle_report(&shared, request).await,
        _ if !is_read_method => not_allowed("GET, HEAD", "use GET here, POST on /v1/report"),
        "/" => text_response(StatusCode::OK, "text/plain; charset=utf-8", INDEX.into()),
        "/healthz" => text_response(StatusCode::OK, "text/plain; charset=utf-8", "ok\n".into()),
        "/load" => load_response(&shared, request.uri().query()),
        "/metrics" => text_response(
            StatusCode::OK,
            "text/plain; version=0.0.4; charset=utf-8",
            endpoints::metrics_page(&shared),
        ),
        path => error_response(StatusCode::NOT_FOUND, format!("there is no {path}: see / for what there is")),
    })
}

/// Returns all values, or with `member=` those of one server and its machine.
fn load_response(shared: &AgentState, query: Option<&str>) -> TextResponse {
    let member = query.and_then(|query| query.split('&').find_map(|pair| pair.strip_prefix("member=")));
    // The colon may be percent-encoded; no other character of an address needs it.
    let member = member.filter(|_| !shared.servers.is_empty());
    match member.map(|member| member.replace("%3A", ":").replace("%3a", ":")) {
        None => json_response(StatusCode::OK, &ValueSnapshot::from_state(shared).load_json()),
        Some(member) => match shared.subject_of_member(&member) {
            Some(subject) => {
                json_response(StatusCode::OK, &ValueSnapshot::of_server(shared, subject).load_json())
            }
            None => error_response(StatusCode::NOT_FOUND, wrong_member_text(shared)),
        },
    }
}

async fn handle_report(shared: &AgentState, request: Request<Incoming>) -> TextResponse {
    let announced_length = request.body().size_hint().lower();
    let too_long = || error_response(StatusCode::PAYLOAD_TOO_LARGE, format!("give at most {MAX_BODY} bytes"));
    let body_read = timeout(BODY_TIMEOUT, read_body(request.into_body()));
    if announced_length > MAX_BODY as u64 {
        // The response is certain. Read the body anyway, so that the client sees the response after sending
        // it.
        tokio::spawn(body_read);
        return too_long();
    }
    let body = match body_read.await {
        Ok(Ok(Some(body))) => body,
        Ok(Ok(None)) => return too_long(),
        Ok(Err(error)) => {
            return error_response(StatusCode::BAD_REQUEST, format!("the body cannot be read: {error}"));
        }
        Err(_) => return error_response(StatusCode::REQUEST_TIMEOUT, "the body did not arrive".into()),
    };
    match record_report(shared, &body) {
        Ok(()) => {
            let mut response = Response::new(Full::default());
            *response.status_mut() = StatusCode::NO_CONTENT;
            response
        }
        Err((status, error)) => error_response(status, error),
    }
}

fn record_report(shared: &AgentState, body: &[u8]) -> Result<(), (StatusCode, String)> {
    let report = LoadReport::parse(body).map_err(|error| (StatusCode::BAD_REQUEST, error))?;
    let unprocessable = |error| (StatusCode::UNPROCESSABLE_ENTITY, error);
    if let (Some(own_group), Some(reported_group)) = (&shared.group, &report.group)
        && own_group != reported_group
    {
        return Err(unprocessable(format!(
            "this agent reports for group {own_group}: leave group out, or give that"
        )));
    }
    let subject = match &report.member {
        None => &shared.machine,
        Some(_) if shared.subjects().all(|subject| subject.member.is_none()) => &shared.machine,
        Some(member) => {
            shared.subject_of_member(member).ok_or_else(|| unprocessable(wrong_member_text(shared)))?
        }
    };
    let age = report.age();
    let write_value = |(name, value): (&String, &f64)| {
        shared.write_subject(subject, name, *value, ValueSource::Reported, age, false)
    };
    // Write the remaining values even if one is invalid.
    report.values.iter().map(write_value).fold(Ok(()), Result::and).map_err(unprocessable)
}

/// Formats the refusal of a report for another member.
fn wrong_member_text(shared: &AgentState) -> String {
    let own_members: Vec<&str> = shared.subjects().filter_map(|subject| subject.member.as_deref()).collect();
    format!("this agent reports for member {}: leave member out, or give that", own_members.join(" or "))
}

/// Reads a body; returns `None` if it is too long. Even then it is read to its end: closing a socket with
/// unread bytes resets the connection, and the client would lose the response.
async fn read_body(mut body: Incoming) -> Result<Option<Vec<u8>>, hyper::Error> {
    let mut body_bytes = Some(Vec::new());
    while let Some(frame) = body.frame().await {
        if let Ok(data) = frame?.into_data() {
            body_bytes = body_bytes.filter(|bytes| bytes.len() + data.len() <= MAX_BODY);
            if let Some(bytes) = &mut body_bytes {
                bytes.extend_from_slice(&data);
            }
        }
    }
    Ok(body_bytes)
}

fn not_allowed(allow: &'static str, message: &str) -> TextResponse {
    let mut response = error_response(StatusCode::METHOD_NOT_ALLOWED, message.into());
    response.headers_mut().insert(ALLOW, HeaderValue::from_static(allow));
    response
}

fn error_response(status: StatusCode, message: String) -> TextResponse {
    json_response(status, &json!({"error": message}))
}

fn json_response(status: StatusCode, json: &Json) -> TextResponse {
    text_response(status, "application/json", format!("{json}\n"))
}

fn text_response(status: StatusCode, content_type: &'static str, body: String) -> TextResponse {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_near() {
        let is_near = |peer: &str, local: &str| is_local(peer.parse().unwrap(), local.parse().ok());
        assert!(is_near("127.0.0.1:5", "127.0.0.1:80"));
        assert!(is_near("[::1]:5", "[::1]:80"));
        assert!(is_near("[::ffff:127.0.0.1]:5", "[::ffff:127.0.0.1]:80"));
        assert!(is_near("192.0.2.7:5", "192.0.2.7:80"));
        assert!(!is_near("192.0.2.8:5", "192.0.2.7:80"));
        assert!(!is_near("192.0.2.8:5", ""));
    }

    #[tokio::test]
    async fn reports_are_taken_or_refused() {
        let shared = AgentState::new(Some("web".into()), Some("a:80".into()), Vec::new(), &[]);
        assert_eq!(record_report(&shared, b"name=x&value=1"), Ok(()));
        assert_eq!(
            record_report(&shared, b"{\"member\": \"a:80\", \"values\": {\"y\": 2, \"z\": 3}}"),
            Ok(())
        );
        let refusal = |body: &str| record_report(&shared, body.as_bytes()).unwrap_err();
        assert_eq!(refusal("name=x").0, StatusCode::BAD_REQUEST);
        assert_eq!(refusal("name=x&value=1&age_seconds=-5").0, StatusCode::BAD_REQUEST);
        assert!(refusal("member=b%3A80&name=x&value=1").1.contains("for member a:80"));
        assert!(refusal("group=db&name=x&value=1").1.contains("for group web"));
        assert!(refusal("name=no+name&value=1").1.contains("is no name"));
        let (values, _) = shared.machine.metrics().written_since(0, shared.now());
        assert_eq!(values.iter().map(|value| value.value).collect::<Vec<_>>(), [1.0, 2.0, 3.0]);
    }
}
