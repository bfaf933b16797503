//! WebSocket on a stream of HTTP/2 (RFC 8441): the client sends CONNECT with a `:protocol`. The member, which
//! speaks HTTP/1.1, gets an upgrade (RFC 6455 section 4), and its 101 becomes a 200. From then on, the stream
//! is the tunnel.
//!
//! The key and its answer, by which the two ends of HTTP/1.1 confirm the upgrade, are between the balancer
//! and the member. The member's answer to the key is not checked: its 101 confirms the upgrade.

use h2::ext::Protocol;
use http::header::{CONTENT_LENGTH, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY};
use http::{Method, StatusCode, request};

use super::fields::push_line;
use super::heads::{HeadError, host_field, request_fields};

/// Returns the protocol of a CONNECT for another protocol on its stream.
pub(super) fn connect_protocol(head: &request::Parts) -> Option<&str> {
    let protocol = head.extensions.get::<Protocol>().filter(|_| head.method == Method::CONNECT);
    protocol.map(Protocol::as_str)
}

/// Returns `true` for a WebSocket.
pub(super) fn is_websocket(head: &request::Parts) -> bool {
    connect_protocol(head).is_some_and(|protocol| protocol.eq_ignore_ascii_case("websocket"))
}

/// Appends the request as the text of an upgrade. `nonce` are 16 random bytes.
///
/// # Errors
/// It names two hosts.
pub(super) fn request_text(
    head: &request::Parts,
    nonce: [u8; 16],
    out: &mut Vec<u8>,
) -> Result<(), HeadError> {
    let host = host_field(head)?;
    // h2 accepts none without a path.
    let path = head.uri.path_and_query().map_or("/", |path| path.as_str());
    out.extend_from_slice(b"GET ");
    out.extend_from_slice(path.as_bytes());
    out.extend_from_slice(b" HTTP/1.1\r\n");
    if let Some(host) = host {
        push_line(b"Host", host, out);
    }
    // The bytes that follow are no body.
    request_fields(&head.headers, |name| [CONTENT_LENGTH, SEC_WEBSOCKET_KEY].contains(name), out);
    // A stream has one request: bytes that its client sends before the response are never parsed as another.
    push_line(b"Connection", b"Upgrade, close", out);
    push_line(b"Upgrade", b"websocket", out);
    push_line(b"Sec-WebSocket-Key", &base64(nonce), out);
    out.extend_from_slice(b"\r\n");
    Ok(())
}

/// Converts a member's 101 into the response on a stream.
pub(super) fn accept_upgrade(response: &mut http::Response<()>) {
    *response.status_mut() = StatusCode::OK;
    response.headers_mut().remove(SEC_WEBSOCKET_ACCEPT);
}

/// Encodes bytes as in RFC 4648 section 4, padded.
fn base64(bytes: [u8; 16]) -> [u8; 24] {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = [b'='; 24];
    for (input, output) in bytes.chunks(3).zip(text.chunks_mut(4)) {
        let mut bits = [0; 4];
        bits[1..1 + input.len()].copy_from_slice(input);
        let bits = u32::from_be_bytes(bits);
        // One digit more than bytes.
        for (position, digit) in output.iter_mut().take(input.len() + 1).enumerate() {
            *digit = DIGITS[(bits >> (18 - 6 * position) & 63) as usize];
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use plimsoll_wire::http1::{self, BodyFraming, MarkedFields};

    use super::*;

    fn connect_request(protocol: &'static str) -> request::Parts {
        let head = http::Request::connect("https://web.example/chat?x")
            .extension(Protocol::from_static(protocol))
            .header("sec-websocket-version", "13")
            .header("sec-websocket-key", "mine")
            .header("content-length", "7")
            .header("origin", "https://web.example");
        head.body(()).expect("a head").into_parts().0
    }

    #[test]
    fn a_connect_becomes_an_upgrade() {
        let head = connect_request("websocket");
        assert!(is_websocket(&head) && !is_websocket(&connect_request("connect-udp")));
        let mut text = Vec::new();
        request_text(&head, *b"the sample nonce", &mut text).expect("told");
        // The key and its nonce are those of RFC 6455 section 1.3.
        assert_eq!(
            String::from_utf8_lossy(&text),
            "GET /chat?x HTTP/1.1\r\nHost: web.example\r\nsec-websocket-version: 13\r\n\
             origin: https://web.example\r\nConnection: Upgrade, close\r\nUpgrade: websocket\r\n\
             Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        );
        let mut marks = MarkedFields::new();
        let parsed = http1::request(&text, 4096, &mut marks).expect("good");
        assert!(parsed.upgrade && !parsed.keep_alive && parsed.body == BodyFraming::Done);
    }
}
