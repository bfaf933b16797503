//! Health checks over HTTP/2: a path, or gRPC's health service (`grpc.health.v1`).

use bytes::Bytes;
use h2::client::Builder;
use http::uri::Scheme;
use http::{HeaderMap, HeaderValue, Method, Request, Uri};
use tokio::io::{AsyncRead, AsyncWrite};

use super::ProbeTarget;

/// The maximum size of a response in bytes: a state takes two.
const MAX_RESPONSE: usize = 4096;
/// The state of a usable service (`ServingStatus.SERVING`).
const SERVING: u64 = 1;

/// Returns the call's message: the service, in the only field (1) of a `HealthCheckRequest`.
pub(super) fn health_request(service: &str) -> Vec<u8> {
    let mut message = Vec::new();
    if !service.is_empty() {
        message.push(0x0a);
        varint(service.len() as u64, &mut message);
        message.extend_from_slice(service.as_bytes());
    }
    // Not compressed, and the length.
    let mut frame = vec![0];
    frame.extend_from_slice(&u32::try_from(message.len()).unwrap_or(u32::MAX).to_be_bytes());
    frame.extend(message);
    frame
}

fn varint(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Returns the status of the response to GET.
pub(super) async fn get<T: AsyncRead + AsyncWrite + Unpin + Send>(
    stream: T,
    target: &ProbeTarget,
    path: &str,
    host: &str,
) -> Result<u16, String> {
    let request = request(Method::GET, target, path, host)?;
    Ok(exchange(stream, request, None).await?.status)
}

/// Queries the health service.
pub(super) async fn check_health<T: AsyncRead + AsyncWrite + Unpin + Send>(
    stream: T,
    target: &ProbeTarget,
    host: &str,
) -> Result<(), String> {
    let mut request = request(Method::POST, target, "/grpc.health.v1.Health/Check", host)?;
    request.headers_mut().insert("content-type", HeaderValue::from_static("application/grpc"));
    request.headers_mut().insert("te", HeaderValue::from_static("trailers"));
    let response = exchange(stream, request, Some(Bytes::copy_from_slice(&target.request))).await?;
    if response.status != 200 {
        return Err(format!("answered {}", response.status));
    }
    match response.grpc_status.as_deref() {
        Some("0") => {}
        Some("5") => return Err("does not know this service (grpc-status 5)".into()),
        Some("12") => return Err("has no health service (grpc-status 12)".into()),
        Some(code) => return Err(format!("answered with grpc-status {code}")),
        None => return Err("answered without grpc-status".into()),
    }
    match serving_status(&response.content) {
        Some(SERVING) => Ok(()),
        Some(2) => Err("says NOT_SERVING".into()),
        Some(other) => Err(format!("says state {other}")),
        None => Err("answered with something else than a state".into()),
    }
}

/// Returns the only field (1) of a `HealthCheckResponse`; an omitted field is 0.
fn serving_status(frame: &[u8]) -> Option<u64> {
    let [0, a, b, c, d, message @ ..] = frame else { return None };
    if u32::from_be_bytes([*a, *b, *c, *d]) as usize != message.len() {
        return None;
    }
    match message {
        [] => Some(0),
        [0x08, value, ..] if *value < 0x80 => Some(u64::from(*value)),
        _ => None,
    }
}

fn request(method: Method, target: &ProbeTarget, path: &str, host: &str) -> Result<Request<()>, String> {
    let scheme = if target.tls.is_some() { Scheme::HTTPS } else { Scheme::HTTP };
    let uri = Uri::builder().scheme(scheme).authority(host).path_and_query(path).build();
    let agent = concat!("plimsoll/", env!("CARGO_PKG_VERSION"));
    let request = Request::builder().method(method).uri(uri.map_err(|error| error.to_string())?);
    request.header("user-agent", agent).body(()).map_err(|error| error.to_string())
}

/// A response.
struct ProbeResponse {
    status: u16,
    /// The value of `grpc-status`.
    grpc_status: Option<String>,
    content: Vec<u8>,
}

/// Sends one request on a connection of its own, and returns its response.
async fn exchange<T: AsyncRead + AsyncWrite + Unpin + Send>(
    stream: T,
    request: Request<()>,
    body: Option<Bytes>,
) -> Result<ProbeResponse, String> {
    let handshake = Builder::new().enable_push(false).max_header_list_size(16 * 1024).handshake(stream).await;
    let (sender, connection) = handshake.map_err(|error| format!("HTTP/2: {error}"))?;
    let requesting = async {
        let mut sender = sender.ready().await?;
        let (response_future, mut body_sender) = sender.send_request(request, body.is_none())?;
        if let Some(body) = body {
            // A query is smaller than any window.
            body_sender.send_data(body, true)?;
        }
        let (head, mut response_body) = response_future.await?.into_parts();
        let find_status = |fields: &HeaderMap| Some(fields.get("grpc-status")?.to_str().ok()?.to_owned());
        let mut response = ProbeResponse {
            status: head.status.as_u16(),
            grpc_status: find_status(&head.headers),
            content: Vec::new(),
        };
        while let Some(chunk) = response_body.data().await {
            response.content.extend_from_slice(&chunk?);
            if response.content.len() > MAX_RESPONSE {
                // Only the status of a response to GET is relevant.
                return Ok(response);
            }
        }
        if let Some(trailers) = response_body.trailers().await? {
            response.grpc_status = response.grpc_status.or_else(|| find_status(&trailers));
        }
        Ok::<ProbeResponse, h2::Error>(response)
    };
    tokio::select! {
        biased;
        result = requesting => result.map_err(|error| format!("HTTP/2: {error}")),
        closed = connection => Err(match closed {
            Ok(()) => "closed the connection before it answered".into(),
            Err(error) => format!("HTTP/2: {error}"),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_and_states_are_as_protobuf_has_them() {
        assert_eq!(health_request(""), [0, 0, 0, 0, 0]);
        assert_eq!(health_request("ab"), [0, 0, 0, 0, 4, 0x0a, 2, b'a', b'b']);
        assert_eq!(health_request(&"x".repeat(300))[5..8], [0x0a, 0xac, 0x02]);
        assert_eq!(serving_status(&[0, 0, 0, 0, 2, 8, 1]), Some(SERVING));
        assert_eq!(serving_status(&[0, 0, 0, 0, 0]), Some(0));
        for invalid in [&[][..], &[1, 0, 0, 0, 2, 8, 1], &[0, 0, 0, 0, 3, 8, 1], &[0, 0, 0, 0, 2, 9, 1]] {
            assert_eq!(serving_status(invalid), None);
        }
    }
}
