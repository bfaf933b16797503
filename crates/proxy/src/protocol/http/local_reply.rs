//! The balancer's own responses: for requests that were not forwarded, or were not answered.

use std::io::Write;

use super::bound_connection::RedirectLocation;
use super::{ByteStream, HttpSession, MethodClass, ParsedRequest};
use crate::net::grpc;
use crate::net::reason::Reason;
use crate::upstream::access_log::RequestOutcome;
use crate::upstream::request_record::RequestRecord;
use crate::upstream::trace::ConnectionAttributes;
use plimsoll_brain::Time;

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
        self.answered_locally = true;
        let keep_alive =
            request.keep_alive && request.body.is_done() && !request.http10 && !self.is_last_request();
        let mut response = b"HTTP/1.1 307 Temporary Redirect\r\nLocation: ".to_vec();
        response.extend_from_slice(&location.0);
        response.extend_from_slice(b"\r\nContent-Length: 0\r\n");
        if !keep_alive {
            response.extend_from_slice(b"Connection: close\r\n");
        }
        response.extend_from_slice(b"\r\n");
        if !self.send(&response).await {
            return false;
        }
        if !keep_alive {
            self.linger().await;
        }
        keep_alive
    }

    /// Answers a certificate authority's challenge; returns `true` if the connection continues.
    pub(super) async fn answer_acme_challenge(&mut self, request: &mut ParsedRequest, body: &[u8]) -> bool {
        self.answered_locally = true;
        let keep_alive =
            request.keep_alive && request.body.is_done() && !request.http10 && !self.is_last_request();
        // Writing to a vector cannot fail.
        let mut response = Vec::with_capacity(256);
        let _ = write!(
            response,
            "HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\nContent-Length: {}\r\n{}\r\n",
            body.len(),
            if keep_alive { "" } else { "Connection: close\r\n" },
        );
        if request.method != MethodClass::Head {
            response.extend_from_slice(body);
        }
        self.log_request(request, 200, None, self.core.now());
        self.core.recycle(std::mem::take(&mut request.outgoing));
        if !self.send(&response).await {
            return false;
        }
        if !keep_alive {
            self.linger().await;
        }
        keep_alive
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
        if let Some(record) = request.record.take() {
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
