//! The balancer's own responses: for requests that were not forwarded, or were not answered.

use std::io::Write;

use http::StatusCode;

use super::bound_connection::RedirectLocation;
use super::dispatch::ColdFuture;
use super::{ByteStream, HttpSession, MethodClass, ParsedRequest};
use crate::net::grpc;
use crate::net::reason::Reason;
use crate::upstream::access_log::RequestOutcome;
use crate::upstream::request_record::RequestRecord;
use crate::upstream::trace::ConnectionAttributes;
use plimsoll_brain::Time;

/// The largest body that is copied behind its head, in bytes.
const MAX_COPIED_BODY: usize = 4096;

impl<S: ByteStream> HttpSession<S> {
    /// Rejects a request whose head is invalid; the connection ends with the response.
    pub(super) async fn reject_invalid(&mut self, reason: Reason) {
        self.listener.pool().group.record_rejection(self.core.index, reason);
        let response = local_response(self.is_grpc_call(), reason, false, true, (1, b""));
        if self.send(&response).await {
            self.linger().await;
        }
    }

    /// Closes the connection of a client that would not understand a response.
    pub(super) async fn close_without_response(&mut self, reason: Reason) {
        self.listener.pool().group.record_rejection(self.core.index, reason);
        self.linger().await;
    }

    /// Answers a request that no member answered; returns `true` if the connection continues.
    pub(super) async fn reject(&mut self, request: &ParsedRequest, reason: Reason) -> bool {
        self.answered_locally = true;
        let keep_alive =
            request.keep_alive && request.body.is_done() && !request.http10 && !self.is_last_request();
        let is_head_request = request.method == MethodClass::Head;
        let retry_after = self.listener.pool().retry_after_seconds();
        let unreachable = matches!(reason, Reason::ConnectFailed | Reason::ConnectTimeout | Reason::NoMember);
        let extra_fields = if unreachable {
            request.meter.unreachable_header()
        } else {
            request.meter.rejection_header().to_vec()
        };
        let response = local_response(
            self.is_grpc_call(),
            reason,
            is_head_request,
            !keep_alive,
            (retry_after, &extra_fields),
        );
        if !self.send(&response).await {
            return false;
        }
        if !keep_alive {
            self.linger().await;
        }
        keep_alive
    }

    /// Redirects a request that was not forwarded; returns `true` if the connection continues.
    pub(super) async fn redirect(&mut self, request: &ParsedRequest, location: &RedirectLocation) -> bool {
        let mut fields = b"Location: ".to_vec();
        fields.extend_from_slice(&location.0);
        fields.extend_from_slice(b"\r\n");
        self.answer_locally(request, 307, &fields, &[]).await
    }

    /// Sends a response without a member; returns `true` if the connection continues. `fields` are complete
    /// header lines.
    #[cold]
    pub(super) fn answer_locally<'a>(
        &'a mut self,
        request: &ParsedRequest,
        status: u16,
        fields: &[u8],
        body: &'a [u8],
    ) -> ColdFuture<'a, bool> {
        self.answered_locally = true;
        let keep_alive =
            request.keep_alive && request.body.is_done() && !request.http10 && !self.is_last_request();
        let phrase = StatusCode::from_u16(status).ok().and_then(|code| code.canonical_reason());
        let mut response = Vec::with_capacity(256);
        // Writing to a vector cannot fail.
        let _ = write!(response, "HTTP/1.1 {status} {}\r\n", phrase.unwrap_or_default());
        response.extend_from_slice(fields);
        // 204, 205 and 304 have no body; a length is allowed for 205 only (RFC 9110 sections 8.6 and 15.3.6).
        let body = if status == 205 { &[] } else { body };
        let has_body = !matches!(status, 204 | 304);
        if has_body {
            let _ = write!(response, "Content-Length: {}\r\n", body.len());
        }
        if !keep_alive {
            response.extend_from_slice(b"Connection: close\r\n");
        }
        response.extend_from_slice(b"\r\n");
        let sends_body = has_body && request.method != MethodClass::Head;
        // A large body is sent from where it is: each client would have a copy.
        let is_small = body.len() <= MAX_COPIED_BODY;
        if sends_body && is_small {
            response.extend_from_slice(body);
        }
        let body = if sends_body && !is_small { body } else { &[] };
        Box::pin(async move {
            if !self.send(&response).await || !self.send(body).await {
                return false;
            }
            if !keep_alive {
                self.linger().await;
            }
            keep_alive
        })
    }

    /// Answers a certificate authority's challenge; returns `true` if the connection continues.
    pub(super) async fn answer_acme_challenge(&mut self, request: &mut ParsedRequest, body: &[u8]) -> bool {
        self.log_request(request, 200, None, self.core.now());
        self.core.recycle(std::mem::take(&mut request.outgoing));
        self.answer_locally(request, 200, b"Content-Type: application/octet-stream\r\n", body).await
    }

    fn is_grpc_call(&self) -> bool {
        self.stream.call().is_some()
    }

    /// Writes a line of the access log and ends the trace, if this request has them.
    pub(super) fn log_request(
        &self,
        request: &mut ParsedRequest,
        status: u16,
        reason: Option<Reason>,
        now: Time,
    ) {
        if let Some(extras) = &mut request.extras
            && let Some(record) = extras.record.take()
        {
            self.write_record(record, request, status, reason, now);
        }
    }

    /// Out of line: most requests have no record.
    #[cold]
    #[inline(never)]
    fn write_record(
        &self,
        record: Box<RequestRecord>,
        request: &ParsedRequest,
        status: u16,
        reason: Option<Reason>,
        now: Time,
    ) {
        let outcome = RequestOutcome {
            status,
            reason: reason.map(Reason::label),
            duration: now.since(request.started_at),
        };
        let attributes = ConnectionAttributes {
            client: &self.client.text,
            group: &self.listener.pool().group.name,
            route: request.extras.as_ref().and_then(|extras| extras.route.as_ref()?.name()),
            scheme: self.stream.scheme(),
            version: match request.http10 {
                _ if self.stream.is_multiplexed() => "2",
                true => "1.0",
                false => "1.1",
            },
            call: self.stream.call().copied(),
        };
        record.end(&self.core, &attributes, &outcome, request.started_at, now);
    }
}

/// Returns the text of the balancer's own response, in gRPC's form for a `call`. `close` is `true` if the
/// client's connection ends with it. `more` are the seconds after which the client should retry, and complete
/// header lines.
pub(crate) fn local_response(
    is_grpc: bool,
    reason: Reason,
    is_head_request: bool,
    close: bool,
    (retry_after, extra_fields): (u64, &[u8]),
) -> Vec<u8> {
    if is_grpc {
        grpc::rejection(reason, extra_fields)
    } else {
        text_response(reason, is_head_request, close, (retry_after, extra_fields))
    }
}

fn text_response(
    reason: Reason,
    is_head_request: bool,
    close: bool,
    (retry_after, extra_fields): (u64, &[u8]),
) -> Vec<u8> {
    let (status, phrase) = reason.status();
    let body = format!("plimsoll: {}\n", reason.sentence());
    let mut response = Vec::with_capacity(256);
    // Writing to a vector cannot fail.
    let _ = write!(
        response,
        "HTTP/1.1 {status} {phrase}\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: {}\r\n\
         plimsoll-reason: {}\r\n{}{}",
        body.len(),
        reason.label(),
        if status == 503 { format!("Retry-After: {retry_after}\r\n") } else { String::new() },
        if close { "Connection: close\r\n" } else { "" },
    );
    response.extend_from_slice(extra_fields);
    response.extend_from_slice(b"\r\n");
    if !is_head_request {
        response.extend_from_slice(body.as_bytes());
    }
    response
}
