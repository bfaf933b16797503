//! Answers of our own: why a request was not passed on, or had no answer.

use std::io::Write;

use super::bound::Location;
use super::{Asked, Method, Session, Stream};
use crate::access::Outcome;
use crate::grpc;
use crate::reason::Reason;
use plimsoll_brain::Time;

impl<S: Stream> Session<S> {
    /// Answers a request whose head could not be read; the connection ends with it.
    pub(super) async fn refuse(&mut self, reason: Reason) {
        self.listener.pool().group.reject(self.core.index, reason);
        let answer = own_answer(self.is_call(), reason, false, true, b"");
        if self.send(&answer).await {
            self.linger().await;
        }
    }

    /// Answers a request that no member answered; true if the connection goes on.
    pub(super) async fn reject(&mut self, asked: &Asked, reason: Reason) -> bool {
        self.answered_alone = true;
        let keep = asked.keep_alive && asked.body.done() && !asked.http10 && !self.ending();
        let to_head = asked.method == Method::Head;
        let answer = own_answer(self.is_call(), reason, to_head, !keep, asked.metered.refusal());
        if !self.send(&answer).await {
            return false;
        }
        if !keep {
            self.linger().await;
        }
        keep
    }

    /// Sends the client elsewhere with a request that no member has seen; true if the connection goes on.
    pub(super) async fn redirect(&mut self, asked: &Asked, location: &Location) -> bool {
        self.answered_alone = true;
        let keep = asked.keep_alive && asked.body.done() && !asked.http10 && !self.ending();
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

    fn is_call(&self) -> bool {
        self.stream.call().is_some()
    }

    /// Writes a line of the access log, if this request is to have one.
    pub(super) fn log(&self, asked: &mut Asked, status: u16, reason: Option<Reason>, now: Time) {
        let Some(line) = asked.line.take() else { return };
        let outcome = Outcome { status, reason: reason.map(Reason::label), took: now.since(asked.begun) };
        self.core.log(&line, &self.client.text, &self.listener.pool().group.name, &outcome);
    }
}

/// The text of an answer of our own, to a `call` as gRPC has it. `close`: the client's connection ends with it; `more` are whole
/// header lines.
pub(crate) fn own_answer(call: bool, reason: Reason, to_head: bool, close: bool, more: &[u8]) -> Vec<u8> {
    if call { grpc::refusal(reason, more) } else { answer(reason, to_head, close, more) }
}

fn answer(reason: Reason, to_head: bool, close: bool, more: &[u8]) -> Vec<u8> {
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
        if status == 503 { "Retry-After: 1\r\n" } else { "" },
        if close { "Connection: close\r\n" } else { "" },
    );
    answer.extend_from_slice(more);
    answer.extend_from_slice(b"\r\n");
    if !to_head {
        answer.extend_from_slice(body.as_bytes());
    }
    answer
}
