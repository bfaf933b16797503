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
    let guest = request.extensions().get::<Arc<ConnectionSlot>>().cloned();
    // The connection is idle until the body has arrived.
    guest.iter().for_each(|guest| guest.mark_idle());
    let whole = read_body_in_time(request).await;
    guest.iter().for_each(|guest| guest.mark_busy());
    whole
}

async fn read_body_in_time(request: Request<Incoming>) -> Result<Vec<u8>, Response<ResponseBody>> {
    let announced = request.body().size_hint().lower();
    let too_long = || error(StatusCode::PAYLOAD_TOO_LARGE, format!("give at most {MAX_BODY} bytes"));
    let come = tokio::time::timeout(BODY_TIMEOUT, collect_body(request.into_body()));
    if announced > MAX_BODY as u64 {
        // The rest cannot change the response, which a client that sends all of it receives, too.
        tokio::spawn(come);
        return Err(too_long());
    }
    match come.await {
        Ok(Ok(Some(body))) => Ok(body),
        Ok(Ok(None)) => Err(too_long()),
        Ok(Err(why)) => Err(error(StatusCode::BAD_REQUEST, format!("the body cannot be read: {why}"))),
        Err(_) => Err(error(StatusCode::REQUEST_TIMEOUT, "the body did not arrive".into())),
    }
}

/// Reads a whole body; `None` if it is too long. Even then it is read to its end: closing a socket with
/// unread bytes resets the connection, and the client would not see the response.
async fn collect_body(mut body: Incoming) -> Result<Option<Vec<u8>>, hyper::Error> {
    let mut kept = Some(Vec::new());
    while let Some(frame) = body.frame().await {
        if let Ok(data) = frame?.into_data() {
            kept = kept.filter(|kept| kept.len() + data.len() <= MAX_BODY);
            if let Some(kept) = &mut kept {
                kept.extend_from_slice(&data);
            }
        }
    }
    Ok(kept)
}

pub(crate) fn header(headers: &HeaderMap, name: HeaderName) -> Option<&str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

pub(crate) fn not_allowed(allow: &'static str, why: &str) -> Response<ResponseBody> {
    let mut refused = error(StatusCode::METHOD_NOT_ALLOWED, why.into());
    refused.headers_mut().insert(ALLOW, HeaderValue::from_static(allow));
    refused
}

pub(crate) fn error(status: StatusCode, why: String) -> Response<ResponseBody> {
    to_json(status, &json!({"error": why}))
}

pub(crate) fn to_json(status: StatusCode, value: &impl Serialize) -> Response<ResponseBody> {
    match serde_json::to_string(value) {
        Ok(mut body) => {
            body.push('\n');
            with_content_type(status, "application/json", body)
        }
        Err(why) => text(StatusCode::INTERNAL_SERVER_ERROR, why.to_string()),
    }
}

pub(crate) fn text(status: StatusCode, body: String) -> Response<ResponseBody> {
    with_content_type(status, "text/plain; charset=utf-8", body)
}

pub(crate) fn with_content_type(
    status: StatusCode,
    kind: &'static str,
    body: String,
) -> Response<ResponseBody> {
    response(status, kind, Either::Left(Full::new(body.into())))
}

pub(crate) fn response(status: StatusCode, kind: &'static str, body: ResponseBody) -> Response<ResponseBody> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}
