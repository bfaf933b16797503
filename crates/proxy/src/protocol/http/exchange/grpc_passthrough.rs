//! Passthrough of a gRPC call between two streams of HTTP/2, frame by frame. For text, [`Exchange::request`]
//! and [`Exchange::forward_response`] do this.

use std::io::ErrorKind;
use std::task::{Context, Poll};

use http::Response;
use plimsoll_wire::http1::{BodyFraming, ChunkedParser};

use super::{Exchange, MAX_INTERIM_RESPONSES, MAX_STEPS, ResponseProgress};
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
        steps: &mut u32,
    ) -> Result<bool, ExchangeFailure> {
        while *steps < MAX_STEPS && self.forward_request_frames(cx)? {
            *steps += 1;
        }
        while *steps < MAX_STEPS && self.forward_response_frames(cx)? {
            *steps += 1;
            let frame_taken =
                self.request.passthrough_call.as_deref().is_none_or(|call| call.pending_to_client.is_none());
            if frame_taken && matches!(self.response, ResponseProgress::Done) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Moves the request on; returns `true` if any of it moved. `sent` counts what was sent: the head, then
    /// the buffered pieces.
    fn forward_request_frames(&mut self, cx: &mut Context<'_>) -> Result<bool, ExchangeFailure> {
        let (Some(call), false) = (&mut self.request.passthrough_call, self.member_stopped_reading) else {
            return Ok(false);
        };
        let Some(member) = self.member.http2_response() else { return self.refused_by_member() };
        if self.sent == 0 {
            let ended = self.request.body.is_done() && call.frames.is_empty();
            let send_result = member.poll_send_head(cx, call, ended);
            let len = call.len;
            return match send_result {
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
        if call.pending_to_member.is_none() {
            match call.frames.get(self.sent - 1) {
                Some(frame) => {
                    call.pending_to_member = Some(frame.clone());
                    self.sent += 1;
                }
                None if self.request.body.is_done() => return Ok(false),
                None => {
                    let Some(client) = self.session.stream.http2_request() else { return Ok(false) };
                    let frame = match client.poll_frame(cx) {
                        Poll::Ready(Ok(frame)) => frame,
                        Poll::Ready(Err(_)) => return Err(ExchangeFailure::ClientLeft(self.answered)),
                        Poll::Pending => return Ok(false),
                    };
                    if frame.is_last() {
                        self.request.body = BodyFraming::Done;
                    }
                    self.request.body_started = true;
                    self.request.streamed |= call.is_full();
                    if self.request.streamed {
                        call.pending_to_member = Some(frame);
                    } else {
                        call.keep_frame(frame);
                    }
                    return Ok(true);
                }
            }
        }
        match member.poll_send_frame(cx, &mut call.pending_to_member) {
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
        let Some(call) = &mut self.request.passthrough_call else { return Ok(false) };
        let Some(member) = self.member.http2_response() else { return self.member_closed(true) };
        if call.pending_to_client.is_none() {
            match self.response {
                ResponseProgress::Done | ResponseProgress::Tunnel => return Ok(false),
                ResponseProgress::Head => {
                    return match member.poll_response_head(cx) {
                        Poll::Ready(Ok(head)) => self.forward_head(head),
                        Poll::Ready(Err(error)) if error.kind() == ErrorKind::InvalidData => {
                            Err(self.malformed())
                        }
                        Poll::Ready(Err(_)) => self.member_closed(true),
                        Poll::Pending => Ok(false),
                    };
                }
                ResponseProgress::Body(_) => {}
            }
            let frame = match member.poll_frame(cx) {
                Poll::Ready(Ok(frame)) => frame,
                Poll::Ready(Err(error)) if error.kind() == ErrorKind::InvalidData => {
                    return Err(self.malformed());
                }
                Poll::Ready(Err(_)) => return self.member_closed(true),
                Poll::Pending => return Ok(false),
            };
            self.in_flight.counters().bytes_in.add(frame.len() as u64);
            if frame.is_last() {
                self.response = ResponseProgress::Done;
            }
            if self.refused {
                return Ok(true);
            }
            call.pending_to_client = Some(frame);
        }
        let Some(client) = self.session.stream.http2_request() else {
            return Err(ExchangeFailure::ClientLeft(self.answered));
        };
        match client.poll_send_frame(cx, &mut call.pending_to_client) {
            Poll::Ready(Ok(_)) => Ok(true),
            Poll::Ready(Err(_)) => Err(ExchangeFailure::ClientLeft(self.answered)),
            Poll::Pending => Ok(false),
        }
    }

    /// Forwards the head of a response.
    fn forward_head(&mut self, head: ResponseHead) -> Result<bool, ExchangeFailure> {
        self.member_responded = true;
        match head {
            ResponseHead::Final(response, ended) => self.forward_final_head(response, ended),
            ResponseHead::Interim(response) => {
                self.interim_count += 1;
                if self.interim_count > MAX_INTERIM_RESPONSES {
                    return Err(self.invalid_response());
                }
                if let Some(client) = self.session.stream.http2_request() {
                    client.send_interim(response);
                }
                Ok(true)
            }
        }
    }

    fn forward_final_head(
        &mut self,
        mut response: Response<()>,
        ended: bool,
    ) -> Result<bool, ExchangeFailure> {
        let strip = self.in_flight.settings().strip_reports;
        let Ok(checked) = http2::judge(&mut response, self.settings.max_head, strip) else {
            return Err(self.invalid_response());
        };
        self.in_flight.counters().bytes_in.add(checked.len as u64);
        self.status = response.status().as_u16();
        if let Some(report) = &checked.report {
            let unavailable = || super::load_report::is_unavailable_status(response.headers(), ended);
            self.record_report(self.status, unavailable, report.as_bytes(), None)?;
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
        match self.session.stream.http2_request().map(|client| client.send_answer(response, ended)) {
            Some(Ok(())) => Ok(true),
            Some(Err(_)) | None => Err(ExchangeFailure::ClientLeft(true)),
        }
    }
}
