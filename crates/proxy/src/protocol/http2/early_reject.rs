//! Rejects requests before they are converted to HTTP/1.1: contradictory ones, and those on the wrong
//! connection.

use std::time::Duration;

use bytes::Bytes;
use h2::server::SendResponse;
use http::header::USER_AGENT;
use http::{Method, request};
use plimsoll_wire::http1::{self, MarkedFields};

use super::heads;
use crate::listener::Listener;
use crate::net::reason::Reason;
use crate::upstream::access_log::{AccessLogEntry, LogContext, RequestOutcome};
use crate::upstream::connect::PeerAddresses;
use crate::upstream::thread_context::ThreadContext;

/// The maximum size of the head of the balancer's own response, in bytes.
const MAX_HEAD: usize = 4096;

/// Rejects a request, counts it and writes a line of the access log, as for other requests.
pub(super) fn reject_early(
    core: &ThreadContext,
    listener: &Listener,
    peer: &PeerAddresses,
    head: &request::Parts,
    respond: SendResponse<Bytes>,
    reason: Reason,
) {
    let group = &listener.pool().group;
    group.record_rejection(core.index, reason);
    if let Some(entry) = AccessLogEntry::new_if_logged(core, || log_entry(head)) {
        let client = peer.client.ip().to_canonical().to_string();
        let outcome = RequestOutcome {
            status: reason.status().0,
            reason: Some(reason.label()),
            duration: Duration::ZERO,
        };
        core.log(&entry, &client, &group.name, &outcome, &LogContext::default());
    }
    let to_head = head.method == Method::HEAD;
    let text = crate::protocol::http::local_response(
        heads::is_call(&head.headers),
        reason,
        to_head,
        false,
        (1, b""),
    );
    send_response_text(&text, to_head, respond);
}

/// Returns the access log's line about a request.
fn log_entry(head: &request::Parts) -> AccessLogEntry {
    let user_agent =
        head.headers.get(USER_AGENT).map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned());
    AccessLogEntry {
        method: head.method.to_string(),
        target: head.uri.path_and_query().map(ToString::to_string).unwrap_or_default(),
        host: head.uri.authority().map(ToString::to_string).unwrap_or_default(),
        agent: user_agent.unwrap_or_default(),
    }
}

/// Sends the balancer's own response, given as text. As it is short, it may wait in the stream until the
/// client reads it.
fn send_response_text(text: &[u8], to_head: bool, mut respond: SendResponse<Bytes>) {
    let mut marks = MarkedFields::new();
    let Ok(head) = http1::parse_response(text, MAX_HEAD, to_head, &mut marks) else { return };
    let Ok(response_head) = heads::response_head(&head) else { return };
    let body = &text[head.len..];
    // A client that has gone needs none.
    if let Ok(mut stream) = respond.send_response(response_head, body.is_empty())
        && !body.is_empty()
    {
        let _ = stream.send_data(Bytes::copy_from_slice(body), true);
    }
}
