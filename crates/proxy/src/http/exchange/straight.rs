//! Passthrough of a gRPC call between two streams of HTTP/2, frame by frame. For text, [`Exchange::request`]
//! and [`Exchange::answer`] do this.

use std::io::ErrorKind;
use std::task::{Context, Poll};

use http::Response;
use plimsoll_wire::http1::{Body, Chunked};

use super::{Answer, Exchange, INTERIM, TURNS};
use crate::http::ending::Failure;
use crate::http2::{self, Told};
use crate::reason::Reason;
use crate::stream::Stream;

impl<S: Stream, M: Stream> Exchange<'_, S, M> {
    /// Moves both sides on; returns `true` once the response has ended.
    #[inline(never)]
    pub(super) fn straight(&mut self, cx: &mut Context<'_>, turns: &mut u32) -> Result<bool, Failure> {
        while *turns < TURNS && self.give(cx)? {
            *turns += 1;
        }
        while *turns < TURNS && self.take(cx)? {
            *turns += 1;
            let taken = self.asked.framed.as_deref().is_none_or(|framed| framed.to_client.is_none());
            if taken && matches!(self.answer, Answer::Done) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Moves the request on; returns `true` if any of it moved. `sent` counts what was sent: the head, then
    /// the buffered pieces.
    fn give(&mut self, cx: &mut Context<'_>) -> Result<bool, Failure> {
        let (Some(framed), false) = (&mut self.asked.framed, self.deaf) else { return Ok(false) };
        let Some(member) = self.member.answering() else { return self.refused_by_member() };
        if self.sent == 0 {
            let ended = self.asked.body.done() && framed.pieces.is_empty();
            let asked = member.poll_ask(cx, framed, ended);
            let len = framed.len;
            return match asked {
                Poll::Ready(Ok(())) => {
                    self.sent = 1;
                    self.trip.stripe().bytes_out.add(len as u64);
                    Ok(true)
                }
                Poll::Ready(Err(error)) if error.kind() == ErrorKind::InvalidInput => {
                    Err(Failure::Refused(Reason::BadRequest))
                }
                Poll::Ready(Err(_)) => self.refused_by_member(),
                Poll::Pending => Ok(false),
            };
        }
        if framed.to_member.is_none() {
            match framed.pieces.get(self.sent - 1) {
                Some(piece) => {
                    framed.to_member = Some(piece.clone());
                    self.sent += 1;
                }
                None if self.asked.body.done() => return Ok(false),
                None => {
                    let Some(client) = self.session.stream.asking() else { return Ok(false) };
                    let piece = match client.poll_piece(cx) {
                        Poll::Ready(Ok(piece)) => piece,
                        Poll::Ready(Err(_)) => return Err(Failure::Client(self.answered)),
                        Poll::Pending => return Ok(false),
                    };
                    if piece.last() {
                        self.asked.body = Body::Done;
                    }
                    self.asked.came = true;
                    self.asked.streamed |= framed.full();
                    if self.asked.streamed {
                        framed.to_member = Some(piece);
                    } else {
                        framed.keep(piece);
                    }
                    return Ok(true);
                }
            }
        }
        match member.poll_give(cx, &mut framed.to_member) {
            Poll::Ready(Ok(sent)) => {
                self.trip.stripe().bytes_out.add(sent as u64);
                Ok(true)
            }
            Poll::Ready(Err(_)) => self.refused_by_member(),
            Poll::Pending => Ok(false),
        }
    }

    /// Moves the response on; returns `true` if any of it moved.
    fn take(&mut self, cx: &mut Context<'_>) -> Result<bool, Failure> {
        let Some(framed) = &mut self.asked.framed else { return Ok(false) };
        let Some(member) = self.member.answering() else { return self.ended(true) };
        if framed.to_client.is_none() {
            match self.answer {
                Answer::Done | Answer::Tunnel => return Ok(false),
                Answer::Head => {
                    return match member.poll_told(cx) {
                        Poll::Ready(Ok(told)) => self.told(told),
                        Poll::Ready(Err(error)) if error.kind() == ErrorKind::InvalidData => {
                            Err(self.malformed())
                        }
                        Poll::Ready(Err(_)) => self.ended(true),
                        Poll::Pending => Ok(false),
                    };
                }
                Answer::Body(_) => {}
            }
            let piece = match member.poll_piece(cx) {
                Poll::Ready(Ok(piece)) => piece,
                Poll::Ready(Err(error)) if error.kind() == ErrorKind::InvalidData => {
                    return Err(self.malformed());
                }
                Poll::Ready(Err(_)) => return self.ended(true),
                Poll::Pending => return Ok(false),
            };
            self.trip.stripe().bytes_in.add(piece.len() as u64);
            if piece.last() {
                self.answer = Answer::Done;
            }
            if self.refused {
                return Ok(true);
            }
            framed.to_client = Some(piece);
        }
        let Some(client) = self.session.stream.asking() else { return Err(Failure::Client(self.answered)) };
        match client.poll_give(cx, &mut framed.to_client) {
            Poll::Ready(Ok(_)) => Ok(true),
            Poll::Ready(Err(_)) => Err(Failure::Client(self.answered)),
            Poll::Pending => Ok(false),
        }
    }

    /// Forwards the head of a response.
    fn told(&mut self, told: Told) -> Result<bool, Failure> {
        self.heard = true;
        match told {
            Told::Final(answer, ended) => self.told_last(answer, ended),
            Told::Interim(answer) => {
                self.interim += 1;
                if self.interim > INTERIM {
                    return Err(self.bad_answer());
                }
                if let Some(client) = self.session.stream.asking() {
                    client.send_interim(answer);
                }
                Ok(true)
            }
        }
    }

    fn told_last(&mut self, mut answer: Response<()>, ended: bool) -> Result<bool, Failure> {
        let strip = self.trip.settings().strip_reports;
        let Ok(judged) = http2::judge(&mut answer, self.settings.max_head, strip) else {
            return Err(self.bad_answer());
        };
        self.trip.stripe().bytes_in.add(judged.len as u64);
        self.status = answer.status().as_u16();
        if let Some(said) = &judged.report {
            let unavailable = || super::report::unavailable_by(answer.headers(), ended);
            self.hear(self.status, unavailable, said.as_bytes(), None)?;
        }
        self.answer = if ended { Answer::Done } else { Answer::Body(Body::Chunked(Chunked::new())) };
        if self.refused {
            return Ok(true);
        }
        self.answered = true;
        match self.session.stream.asking().map(|client| client.send_answer(answer, ended)) {
            Some(Ok(())) => Ok(true),
            Some(Err(_)) | None => Err(Failure::Client(true)),
        }
    }
}
