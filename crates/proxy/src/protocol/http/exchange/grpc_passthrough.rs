//! Passthrough of a gRPC call between two streams of HTTP/2, frame by frame. For text, [`Exchange::request`]
//! and [`Exchange::forward_response`] do this.

use std::io::ErrorKind;
use std::task::{Context, Poll};

use http::Response;
use plimsoll_wire::http1::{BodyFraming, ChunkedParser};

use super::{Exchange, INTERIM, ResponseProgress, TURNS};
use crate::net::byte_stream::ByteStream;
use crate::net::reason::Reason;
use crate::protocol::http::outcome::ExchangeFailure;
use crate::protocol::http2::{self, ResponseHead};

impl<S: ByteStream, M: ByteStream> Exchange<'_, S, M> {
    /// Moves both sides on; returns `true` once the response has ended.
    #[inline(never)]
    pub(super) fn poll_passthrough(
        &mut self,
        cx: &mut Context<'_>,
        turns: &mut u32,
    ) -> Result<bool, ExchangeFailure> {
        while *turns < TURNS && self.forward_request_frames(cx)? {
            *turns += 1;
        }
        while *turns < TURNS && self.forward_response_frames(cx)? {
            *turns += 1;
            let taken = self
                .request
                .passthrough_call
                .as_deref()
                .is_none_or(|framed| framed.pending_to_client.is_none());
            if taken && matches!(self.response, ResponseProgress::Done) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Moves the request on; returns `true` if any of it moved. `sent` counts what was sent: the head, then
    /// the buffered pieces.
    fn forward_request_frames(&mut self, cx: &mut Context<'_>) -> Result<bool, ExchangeFailure> {
        let (Some(framed), false) = (&mut self.request.passthrough_call, self.member_stopped_reading) else {
            return Ok(false);
        };
        let Some(member) = self.member.http2_response() else { return self.refused_by_member() };
        if self.sent == 0 {
            let ended = self.request.body.is_done() && framed.frames.is_empty();
            let asked = member.poll_send_head(cx, framed, ended);
            let len = framed.len;
            return match asked {
                Poll::Ready(Ok(())) => {
                    self.sent = 1;
                    self.in_flight.counters().bytes_out.add(len as u64);
                    Ok(true)
                }
                Poll::Ready(Err(error)) if error.kind() == ErrorKind::InvalidInput => {
                    Err(ExchangeFailure::RequestRejected(Reason::BadRequest))
                }
                Poll::Ready(Err(_)) => self.refused_by_member(),
                Poll::Pending => Ok(false),
            };
        }
        if framed.pending_to_member.is_none() {
            match framed.frames.get(self.sent - 1) {
                Some(piece) => {
                    framed.pending_to_member = Some(piece.clone());
                    self.sent += 1;
                }
                None if self.request.body.is_done() => return Ok(false),
                None => {
                    let Some(client) = self.session.stream.http2_request() else { return Ok(false) };
                    let piece = match client.poll_frame(cx) {
                        Poll::Ready(Ok(piece)) => piece,
                        Poll::Ready(Err(_)) => return Err(ExchangeFailure::ClientLeft(self.answered)),
                        Poll::Pending => return Ok(false),
                    };
                    if piece.is_last() {
                        self.request.body = BodyFraming::Done;
                    }
                    self.request.body_begun = true;
                    self.request.streamed |= framed.is_full();
                    if self.request.streamed {
                        framed.pending_to_member = Some(piece);
                    } else {
                        framed.keep_frame(piece);
                    }
                    return Ok(true);
                }
            }
        }
        match member.poll_send_frame(cx, &mut framed.pending_to_member) {
            Poll::Ready(Ok(sent)) => {
                self.in_flight.counters().bytes_out.add(sent as u64);
                Ok(true)
            }
            Poll::Ready(Err(_)) => self.refused_by_member(),
            Poll::Pending => Ok(false),
        }
    }

    /// Moves the response on; returns `true` if any of it moved.
    fn forward_response_frames(&mut self, cx: &mut Context<'_>) -> Result<bool, ExchangeFailure> {
        let Some(framed) = &mut self.request.passthrough_call else { return Ok(false) };
        let Some(member) = self.member.http2_response() else { return self.member_closed(true) };
        if framed.pending_to_client.is_none() {
            match self.response {
                ResponseProgress::Done | ResponseProgress::Tunnel => return Ok(false),
                ResponseProgress::Head => {
                    return match member.poll_response_head(cx) {
                        Poll::Ready(Ok(told)) => self.forward_head(told),
                        Poll::Ready(Err(error)) if error.kind() == ErrorKind::InvalidData => {
                            Err(self.malformed())
                        }
                        Poll::Ready(Err(_)) => self.member_closed(true),
                        Poll::Pending => Ok(false),
                    };
                }
                ResponseProgress::Body(_) => {}
            }
            let piece = match member.poll_frame(cx) {
                Poll::Ready(Ok(piece)) => piece,
                Poll::Ready(Err(error)) if error.kind() == ErrorKind::InvalidData => {
                    return Err(self.malformed());
                }
                Poll::Ready(Err(_)) => return self.member_closed(true),
                Poll::Pending => return Ok(false),
            };
            self.in_flight.counters().bytes_in.add(piece.len() as u64);
            if piece.is_last() {
                self.response = ResponseProgress::Done;
            }
            if self.refused {
                return Ok(true);
            }
            framed.pending_to_client = Some(piece);
        }
        let Some(client) = self.session.stream.http2_request() else {
            return Err(ExchangeFailure::ClientLeft(self.answered));
        };
        match client.poll_send_frame(cx, &mut framed.pending_to_client) {
            Poll::Ready(Ok(_)) => Ok(true),
            Poll::Ready(Err(_)) => Err(ExchangeFailure::ClientLeft(self.answered)),
            Poll::Pending => Ok(false),
        }
    }

    /// Forwards the head of a response.
    fn forward_head(&mut self, told: ResponseHead) -> Result<bool, ExchangeFailure> {
        self.member_responded = true;
        match told {
            ResponseHead::Final(answer, ended) => self.forward_final_head(answer, ended),
            ResponseHead::Interim(answer) => {
                self.interim += 1;
                if self.interim > INTERIM {
                    return Err(self.invalid_response());
                }
                if let Some(client) = self.session.stream.http2_request() {
                    client.send_interim(answer);
                }
                Ok(true)
            }
        }
    }

    fn forward_final_head(&mut self, mut answer: Response<()>, ended: bool) -> Result<bool, ExchangeFailure> {
        let strip = self.in_flight.settings().strip_reports;
        let Ok(judged) = http2::judge(&mut answer, self.settings.max_head, strip) else {
            return Err(self.invalid_response());
        };
        self.in_flight.counters().bytes_in.add(judged.len as u64);
        self.status = answer.status().as_u16();
        if let Some(said) = &judged.report {
            let unavailable = || super::load_report::is_unavailable_status(answer.headers(), ended);
            self.record_report(self.status, unavailable, said.as_bytes(), None)?;
        }
        self.response = if ended {
            ResponseProgress::Done
        } else {
            ResponseProgress::Body(BodyFraming::Chunked(ChunkedParser::new()))
        };
        if self.refused {
            return Ok(true);
        }
        self.answered = true;
        match self.session.stream.http2_request().map(|client| client.send_answer(answer, ended)) {
            Some(Ok(())) => Ok(true),
            Some(Err(_)) | None => Err(ExchangeFailure::ClientLeft(true)),
        }
    }
}
