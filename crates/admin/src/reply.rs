//! Constructors of responses, and readers of request bodies.

use std::sync::Arc;
use std::time::Duration;

use http_body_util::channel::Channel;
use http_body_util::{BodyExt, Either, Full};
use hyper::body::{Body as _, Bytes, Incoming};
use hyper::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderName, HeaderValue};
use hyper::{HeaderMap, Request, Response, StatusCode};
use serde::Serialize;
use serde_json::json;

use crate::connection_slots::ConnectionSlot;

/// The maximum length of a request's body, in bytes.
const MAX_BODY: usize = 16 * 1024;
/// The time limit for a body.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);

pub(crate) type ResponseBody = Either<Full<Bytes>, Channel<Bytes>>;

/// Reads a request's whole body, or returns the response to an invalid one.
pub(crate) async fn read_body(request: Request<Incoming>) -> Result<Vec<u8>, Response<ResponseBody>> {
    let slot = request.extensions().get::<Arc<ConnectionSlot>>().cloned();
    // The connection is idle until the body has arrived.
    slot.iter().for_each(|slot| slot.mark_idle());
    let result = read_body_in_time(request).await;
    slot.iter().for_each(|slot| slot.mark_busy());
    result
}

async fn read_body_in_time(request: Request<Incoming>) -> Result<Vec<u8>, Response<ResponseBody>> {
    let content_length = request.body().size_hint().lower();
    let too_long = || error(StatusCode::PAYLOAD_TOO_LARGE, format!("give at most {MAX_BODY} bytes"));
    let read_task = tokio::time::timeout(BODY_TIMEOUT, collect_body(request.into_body()));
    if content_length > MAX_BODY as u64 {
        // The rest cannot change the response, which a client that sends all of it receives, too.
        tokio::spawn(read_task);
        return Err(too_long());
    }
    match read_task.await {
        Ok(Ok(Some(body))) => Ok(body),
        Ok(Ok(None)) => Err(too_long()),
        Ok(Err(error_message)) => {
            Err(error(StatusCode::BAD_REQUEST, format!("the body cannot be read: {error_message}")))
        }
        Err(_) => Err(error(StatusCode::REQUEST_TIMEOUT, "the body did not arrive".into())),
    }
}

/// Reads a whole body; `None` if it is too long. Even then it is read to its end: closing a socket with
/// unread bytes resets the connection, and the client would not see the response.
async fn collect_body(mut body: Incoming) -> Result<Option<Vec<u8>>, hyper::Error> {
    let mut collected = Some(Vec::new());
    while let Some(frame) = body.frame().await {
        if let Ok(data) = frame?.into_data() {
            collected = collected.filter(|collected| collected.len() + data.len() <= MAX_BODY);
            if let Some(collected) = &mut collected {
                collected.extend_from_slice(&data);
            }
        }
    }
    Ok(collected)
}

pub(crate) fn header(headers: &HeaderMap, name: HeaderName) -> Option<&str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

pub(crate) fn not_allowed(allowed_methods: &'static str, reason: &str) -> Response<ResponseBody> {
    let mut response = error(StatusCode::METHOD_NOT_ALLOWED, reason.into());
    response.headers_mut().insert(ALLOW, HeaderValue::from_static(allowed_methods));
    response
}

pub(crate) fn error(status: StatusCode, reason: String) -> Response<ResponseBody> {
    to_json(status, &json!({"error": reason}))
}

pub(crate) fn to_json(status: StatusCode, value: &impl Serialize) -> Response<ResponseBody> {
    match serde_json::to_string(value) {
        Ok(mut body) => {
            body.push('\n');
            with_content_type(status, "application/json", body)
        }
        Err(error_message) => text(StatusCode::INTERNAL_SERVER_ERROR, error_message.to_string()),
    }
}

pub(crate) fn text(status: StatusCode, body: String) -> Response<ResponseBody> {
    with_content_type(status, "text/plain; charset=utf-8", body)
}

pub(crate) fn with_content_type(
    status: StatusCode,
    content_type: &'static str,
    body: String,
) -> Response<ResponseBody> {
    response(status, content_type, Either::Left(Full::new(body.into())))
}

pub(crate) fn response(
    status: StatusCode,
    content_type: &'static str,
    body: ResponseBody,
) -> Response<ResponseBody> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}
