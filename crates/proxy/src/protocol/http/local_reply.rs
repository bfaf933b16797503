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
        let answer = local_response(self.is_grpc_call(), reason, false, true, (1, b""));
        if self.send(&answer).await {
            self.linger().await;
        }
    }

    /// Closes the connection of a client that would not understand a response.
    pub(super) async fn close_without_response(&mut self, reason: Reason) {
        self.listener.pool().group.record_rejection(self.core.index, reason);
        self.linger().await;
    }

    /// Answers a request that no member answered; returns `true` if the connection continues.
    pub(super) async fn reject(&mut self, asked: &ParsedRequest, reason: Reason) -> bool {
        self.answered_locally = true;
        let keep = asked.keep_alive && asked.body.is_done() && !asked.http10 && !self.is_last_request();
        let to_head = asked.method == MethodClass::Head;
        let again = self.listener.pool().retry_after_seconds();
        let away = matches!(reason, Reason::ConnectFailed | Reason::ConnectTimeout | Reason::NoMember);
        let said =
            if away { asked.meter.unreachable_header() } else { asked.meter.rejection_header().to_vec() };
        let answer = local_response(self.is_grpc_call(), reason, to_head, !keep, (again, &said));
        if !self.send(&answer).await {
            return false;
        }
        if !keep {
            self.linger().await;
        }
        keep
    }

    /// Redirects a request that was not forwarded; returns `true` if the connection continues.
    pub(super) async fn redirect(&mut self, asked: &ParsedRequest, location: &RedirectLocation) -> bool {
        self.answered_locally = true;
        let keep = asked.keep_alive && asked.body.is_done() && !asked.http10 && !self.is_last_request();
        let mut answer = b"HTTP/1.1 307 Temporary Redirect\r\nLocation: ".to_vec();
        answer.extend_from_slice(&location.0);
        answer.extend_from_slice(b"\r\nContent-Length: 0\r\n");
        if !keep {
            answer.extend_from_slice(b"Connection: close\r\n");
        }
        answer.extend_from_slice(b"\r\n");
        if !self.send(&answer).await {
            return false;
        }
        if !keep {
            self.linger().await;
        }
        keep
    }

    /// Answers a certificate authority's challenge; returns `true` if the connection continues.
    pub(super) async fn answer_acme_challenge(&mut self, asked: &mut ParsedRequest, body: &[u8]) -> bool {
        self.answered_locally = true;
        let keep = asked.keep_alive && asked.body.is_done() && !asked.http10 && !self.is_last_request();
        // Writing to a vector cannot fail.
        let mut answer = Vec::with_capacity(256);
        let _ = write!(
            answer,
            "HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\nContent-Length: {}\r\n{}\r\n",
            body.len(),
            if keep { "" } else { "Connection: close\r\n" },
        );
        if asked.method != MethodClass::Head {
            answer.extend_from_slice(body);
        }
        self.log_request(asked, 200, None, self.core.now());
        self.core.recycle(std::mem::take(&mut asked.outgoing));
        if !self.send(&answer).await {
            return false;
        }
        if !keep {
            self.linger().await;
        }
        keep
    }

    fn is_grpc_call(&self) -> bool {
        self.stream.call().is_some()
    }

    /// Writes a line of the access log and ends the trace, if this request has them.
    pub(super) fn log_request(
        &self,
        asked: &mut ParsedRequest,
        status: u16,
        reason: Option<Reason>,
        now: Time,
    ) {
        if let Some(account) = asked.record.take() {
            self.write_record(account, asked, status, reason, now);
        }
    }

    /// Out of line: most requests have no record.
    #[cold]
    #[inline(never)]
    fn write_record(
        &self,
        account: Box<RequestRecord>,
        asked: &ParsedRequest,
        status: u16,
        reason: Option<Reason>,
        now: Time,
    ) {
        let outcome =
            RequestOutcome { status, reason: reason.map(Reason::label), took: now.since(asked.begun) };
        let side = ConnectionAttributes {
            client: &self.client.text,
            group: &self.listener.pool().group.name,
            scheme: self.stream.scheme(),
            version: match asked.http10 {
                _ if self.stream.is_multiplexed() => "2",
                true => "1.0",
                false => "1.1",
            },
            call: self.stream.call().copied(),
        };
        account.end(&self.core, &side, &outcome, asked.begun, now);
    }
}

/// Returns the text of the balancer's own response, in gRPC's form for a `call`. `close` is `true` if the
/// client's connection ends with it. `more` are the seconds after which the client should retry, and complete
/// header lines.
pub(crate) fn local_response(
    call: bool,
    reason: Reason,
    to_head: bool,
    close: bool,
    (again, more): (u64, &[u8]),
) -> Vec<u8> {
    if call { grpc::rejection(reason, more) } else { answer(reason, to_head, close, (again, more)) }
}

fn answer(reason: Reason, to_head: bool, close: bool, (again, more): (u64, &[u8])) -> Vec<u8> {
    let (status, phrase) = reason.status();
    let body = format!("plimsoll: {}\n", reason.sentence());
    let mut answer = Vec::with_capacity(256);
    // Writing to a vector cannot fail.
    let _ = write!(
        answer,
        "HTTP/1.1 {status} {phrase}\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: {}\r\n\
         plimsoll-reason: {}\r\n{}{}",
        body.len(),
        reason.label(),
        if status == 503 { format!("Retry-After: {again}\r\n") } else { String::new() },
        if close { "Connection: close\r\n" } else { "" },
    );
    answer.extend_from_slice(more);
    answer.extend_from_slice(b"\r\n");
    if !to_head {
        answer.extend_from_slice(body.as_bytes());
    }
    answer
}
