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

use crate::board::Source;
use crate::page::{self, Snapshot};
use crate::report::Report;
use crate::room::Room;
use crate::shared::Shared;

/// The timeout for the first request head.
const FIRST_HEAD: Duration = Duration::from_secs(10);
/// The timeout for a later request head, from the end of the previous response.
const HEAD: Duration = Duration::from_secs(75);
/// The timeout for a request body.
const BODY_TIME: Duration = Duration::from_secs(5);
/// The largest request body in bytes.
const BODY: usize = 16 * 1024;
/// The lifetime of a connection, after which it is closed gracefully.
const LIFE: Duration = Duration::from_secs(600);
/// The time that a graceful close allows for the response in progress.
const GRACE: Duration = Duration::from_secs(5);

const INDEX: &str = "plimsoll agent

/load        what it knows, JSON; /load?member=HOST:PORT of one of several servers
/metrics     the same for Prometheus
/healthz     200 ok
POST /v1/report   name=NAME&value=NUMBER, or {\"values\": {NAME: NUMBER}}; from this machine only
";

type Answer = Response<Full<Bytes>>;

/// Serves connections until it is cancelled.
pub(crate) async fn run(listener: TcpListener, shared: Arc<Shared>) {
    let room = Arc::new(Room::default());
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                let near = near(peer, stream.local_addr().ok());
                // A connection without a slot is closed; the client may retry.
                let Some(place) = Room::enter(&room, peer.ip(), near) else { continue };
                let shared = shared.clone();
                tokio::spawn(async move {
                    connection(stream, near, shared).await;
                    drop(place);
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

async fn connection(stream: TcpStream, near: bool, shared: Arc<Shared>) {
    let _ = stream.set_nodelay(true);
    let spoke = AtomicBool::new(false);
    let service = service_fn(|request| {
        spoke.store(true, Relaxed);
        answer(shared.clone(), near, request)
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD)
        .max_buf_size(32 * 1024)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = std::pin::pin!(connection);
    // A client's error is answered or ends its connection, and is not logged.
    if timeout(FIRST_HEAD, connection.as_mut()).await.is_ok() || !spoke.load(Relaxed) {
        return;
    }
    if timeout(LIFE, connection.as_mut()).await.is_err() {
        connection.as_mut().graceful_shutdown();
        let _ = timeout(GRACE, connection).await;
    }
}

/// Returns `true` if the client runs on this machine.
fn near(peer: SocketAddr, local: Option<SocketAddr>) -> bool {
    let peer = peer.ip().to_canonical();
    peer.is_loopback() || local.is_some_and(|local| local.ip().to_canonical() == peer)
}

async fn answer(shared: Arc<Shared>, near: bool, request: Request<Incoming>) -> Result<Answer, Infallible> {
    let path = request.uri().path().to_owned();
    let reads = [Method::GET, Method::HEAD].contains(request.method());
    Ok(match path.as_str() {
        "/v1/report" if request.method() != Method::POST => not_allowed("POST", "use POST"),
        "/v1/report" if !near => {
            error(StatusCode::FORBIDDEN, "only programs on the agent's own machine may report to it".into())
        }
        // A web page can make a browser post here, but the browser then sends an `Origin` header.
        "/v1/report" if request.headers().contains_key(ORIGIN) => {
            error(StatusCode::FORBIDDEN, "web pages may not report: leave the header origin out".into())
        }
        "/v1/report" => report(&shared, request).await,
        _ if !reads => not_allowed("GET, HEAD", "use GET here, POST on /v1/report"),
        "/" => full(StatusCode::OK, "text/plain; charset=utf-8", INDEX.into()),
        "/healthz" => full(StatusCode::OK, "text/plain; charset=utf-8", "ok\n".into()),
        "/load" => load(&shared, request.uri().query()),
        "/metrics" => {
            full(StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8", page::metrics(&shared))
        }
        path => error(StatusCode::NOT_FOUND, format!("there is no {path}: see / for what there is")),
    })
}

/// Returns all values, or with `member=` those of one server and its machine.
fn load(shared: &Shared, query: Option<&str>) -> Answer {
    let member = query.and_then(|query| query.split('&').find_map(|pair| pair.strip_prefix("member=")));
    // The colon may be percent-encoded; no other character of an address needs it.
    let member = member.filter(|_| !shared.servers.is_empty());
    match member.map(|member| member.replace("%3A", ":").replace("%3a", ":")) {
        None => to_json(StatusCode::OK, &Snapshot::of(shared).load()),
        Some(member) => match shared.named(&member) {
            Some(subject) => to_json(StatusCode::OK, &Snapshot::of_one(shared, subject).load()),
            None => error(StatusCode::NOT_FOUND, unknown(shared)),
        },
    }
}

async fn report(shared: &Shared, request: Request<Incoming>) -> Answer {
    let announced = request.body().size_hint().lower();
    let too_long = || error(StatusCode::PAYLOAD_TOO_LARGE, format!("give at most {BODY} bytes"));
    let come = timeout(BODY_TIME, body(request.into_body()));
    if announced > BODY as u64 {
        // The response is certain. Read the body anyway, so that the client sees the response after sending
        // it.
        tokio::spawn(come);
        return too_long();
    }
    let body = match come.await {
        Ok(Ok(Some(body))) => body,
        Ok(Ok(None)) => return too_long(),
        Ok(Err(why)) => return error(StatusCode::BAD_REQUEST, format!("the body cannot be read: {why}")),
        Err(_) => return error(StatusCode::REQUEST_TIMEOUT, "the body did not arrive".into()),
    };
    match take(shared, &body) {
        Ok(()) => {
            let mut done = Response::new(Full::default());
            *done.status_mut() = StatusCode::NO_CONTENT;
            done
        }
        Err((status, why)) => error(status, why),
    }
}

fn take(shared: &Shared, body: &[u8]) -> Result<(), (StatusCode, String)> {
    let report = Report::read(body).map_err(|why| (StatusCode::BAD_REQUEST, why))?;
    let unfit = |why| (StatusCode::UNPROCESSABLE_ENTITY, why);
    if let (Some(ours), Some(theirs)) = (&shared.group, &report.group)
        && ours != theirs
    {
        return Err(unfit(format!("this agent reports for group {ours}: leave group out, or give that")));
    }
    let subject = match &report.member {
        None => &shared.whole,
        Some(_) if shared.subjects().all(|subject| subject.member.is_none()) => &shared.whole,
        Some(member) => shared.named(member).ok_or_else(|| unfit(unknown(shared)))?,
    };
    let age = report.age();
    let wrote =
        |(name, value): (&String, &f64)| shared.write_of(subject, name, *value, Source::Told, age, false);
    // Write the remaining values even if one is invalid.
    report.values.iter().map(wrote).fold(Ok(()), Result::and).map_err(unfit)
}

/// Formats the refusal of a report for another member.
fn unknown(shared: &Shared) -> String {
    let ours: Vec<&str> = shared.subjects().filter_map(|subject| subject.member.as_deref()).collect();
    format!("this agent reports for member {}: leave member out, or give that", ours.join(" or "))
}

/// Reads a body; returns `None` if it is too long. Even then it is read to its end: closing a socket with
/// unread bytes resets the connection, and the client would lose the response.
async fn body(mut body: Incoming) -> Result<Option<Vec<u8>>, hyper::Error> {
    let mut kept = Some(Vec::new());
    while let Some(frame) = body.frame().await {
        if let Ok(data) = frame?.into_data() {
            kept = kept.filter(|kept| kept.len() + data.len() <= BODY);
            if let Some(kept) = &mut kept {
                kept.extend_from_slice(&data);
            }
        }
    }
    Ok(kept)
}

fn not_allowed(allow: &'static str, why: &str) -> Answer {
    let mut refused = error(StatusCode::METHOD_NOT_ALLOWED, why.into());
    refused.headers_mut().insert(ALLOW, HeaderValue::from_static(allow));
    refused
}

fn error(status: StatusCode, why: String) -> Answer {
    to_json(status, &json!({"error": why}))
}

fn to_json(status: StatusCode, json: &Json) -> Answer {
    full(status, "application/json", format!("{json}\n"))
}

fn full(status: StatusCode, kind: &'static str, body: String) -> Answer {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_near() {
        let near = |peer: &str, local: &str| near(peer.parse().unwrap(), local.parse().ok());
        assert!(near("127.0.0.1:5", "127.0.0.1:80"));
        assert!(near("[::1]:5", "[::1]:80"));
        assert!(near("[::ffff:127.0.0.1]:5", "[::ffff:127.0.0.1]:80"));
        assert!(near("192.0.2.7:5", "192.0.2.7:80"));
        assert!(!near("192.0.2.8:5", "192.0.2.7:80"));
        assert!(!near("192.0.2.8:5", ""));
    }

    #[tokio::test]
    async fn reports_are_taken_or_refused() {
        let shared = Shared::new(Some("web".into()), Some("a:80".into()), Vec::new(), &[]);
        assert_eq!(take(&shared, b"name=x&value=1"), Ok(()));
        assert_eq!(take(&shared, b"{\"member\": \"a:80\", \"values\": {\"y\": 2, \"z\": 3}}"), Ok(()));
        let refused = |body: &str| take(&shared, body.as_bytes()).unwrap_err();
        assert_eq!(refused("name=x").0, StatusCode::BAD_REQUEST);
        assert_eq!(refused("name=x&value=1&age_seconds=-5").0, StatusCode::BAD_REQUEST);
        assert!(refused("member=b%3A80&name=x&value=1").1.contains("for member a:80"));
        assert!(refused("group=db&name=x&value=1").1.contains("for group web"));
        assert!(refused("name=no+name&value=1").1.contains("is no name"));
        let (values, _) = shared.whole.board().since(0, shared.now());
        assert_eq!(values.iter().map(|value| value.value).collect::<Vec<_>>(), [1.0, 2.0, 3.0]);
    }
}
