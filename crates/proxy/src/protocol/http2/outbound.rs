//! Presents a stream to a member to the relay of HTTP/1.1 as a connection that takes one request.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use h2::client::ResponseFuture;
use h2::{Reason, RecvStream, SendStream};
use http::{Request, Response, response};
use plimsoll_wire::http1::{self, HeadError, MarkedFields};

use super::body_frames::{BodyFrame, BodyTransfer, H2Response, PassthroughCall, ResponseHead};
use super::body_writer::BodyWriter;
use super::text_reader::{TextFraming, TextReader, stream_error};
use super::upstream_pool::StreamSlot;
use super::{fields, heads};
use crate::net::byte_stream::{ByteStream, as_io};
use crate::upstream::in_flight::InFlight;

/// The maximum size of a request's head, in bytes. Includes the relay's additions to the largest head that it
/// accepts.
const MAX_HEAD: usize = 128 * 1024;

/// A stream to a member.
pub(super) struct OutboundStream {
    /// The place on one of the member's connections.
    slot: StreamSlot,
    /// The member's name, for requests that name no host.
    host: Option<Arc<str>>,
    is_head_request: bool,
    request: Option<(SendStream<Bytes>, BodyWriter)>,
    response: ResponseState,
    /// Whether the response's head is awaited. A member that has begun to respond may be silent for long.
    awaiting_head: bool,
    /// The maximum time without any bytes from a member that has a request.
    silence_limit: Duration,
    /// Whether the member reported that it did not process the request.
    unprocessed: bool,
    /// Whether it declined this request only, and still accepts others.
    refused: bool,
    /// Whether load reports are for the balancer only.
    strip: bool,
    /// The member's load report, from the trailers or from a head that is the whole response.
    report: Option<Vec<u8>>,
}

enum ResponseState {
    /// Nothing was requested yet.
    NotRequested,
    AwaitingHead(ResponseFuture),
    /// An interim head to be read first, and how many bytes of it were read.
    Interim(Vec<u8>, usize, ResponseFuture),
    Body(Box<TextReader>),
}

/// A head, and its body.
enum ReceivedResponse {
    Interim(Response<()>),
    Final(response::Parts, RecvStream),
}

impl OutboundStream {
    pub(super) fn new(slot: StreamSlot, in_flight: &InFlight) -> Self {
        let settings = in_flight.settings();
        Self {
            slot,
            host: in_flight.shared_name(),
            is_head_request: false,
            request: None,
            response: ResponseState::NotRequested,
            awaiting_head: false,
            silence_limit: settings.timeouts.connect,
            unprocessed: false,
            refused: false,
            strip: settings.strip_reports,
            report: None,
        }
    }

    /// Sends a head, for which there is room; `writer` is for the body.
    fn send_head(&mut self, request: Request<()>, writer: BodyWriter) -> io::Result<()> {
        self.is_head_request = request.method() == http::Method::HEAD;
        let sent = self.slot.sender().send_request(request, writer.is_ended());
        let (response_future, stream) = sent.map_err(|error| {
            // The request did not leave this process.
            self.unprocessed = true;
            stream_error(error)
        })?;
        self.slot.record_request();
        self.request = Some((stream, writer));
        self.response = ResponseState::AwaitingHead(response_future);
        Ok(())
    }

    /// Waits for room for another request.
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let readiness = ready!(self.slot.sender().poll_ready(cx));
        self.unprocessed |= readiness.is_err();
        Poll::Ready(readiness.map_err(stream_error))
    }

    /// Returns the response's head, as `h2` represents it.
    fn poll_response(&mut self, cx: &mut Context<'_>) -> Poll<Result<ReceivedResponse, h2::Error>> {
        let ResponseState::AwaitingHead(head) = &mut self.response else { return Poll::Pending };
        match head.poll_informational(cx) {
            Poll::Ready(Some(Ok(interim))) => return Poll::Ready(Ok(ReceivedResponse::Interim(interim))),
            // No head of either kind: `h2` wakes this task for both.
            Poll::Pending => return Poll::Pending,
            Poll::Ready(_) => {}
        }
        let (mut parts, body) = ready!(Pin::new(head).poll(cx))?.into_parts();
        if parts.status == http::StatusCode::SWITCHING_PROTOCOLS {
            // HTTP/2 has no such status (RFC 9113 section 8.6).
            return Poll::Ready(Err(Reason::PROTOCOL_ERROR.into()));
        }
        self.report = fields::take_binary_report(&mut parts.headers, self.strip);
        Poll::Ready(Ok(ReceivedResponse::Final(parts, body)))
    }

    /// Starts reading the part after the head.
    fn read(&mut self, text: Vec<u8>, framing: TextFraming, body: RecvStream) {
        self.response =
            ResponseState::Body(Box::new(TextReader::new(text, framing, body).for_member(self.strip)));
    }

    /// Returns the error for a stream that the member reset, and records what it implies.
    fn reset_error(&mut self, error: h2::Error) -> io::Error {
        // A stream above the last one that the member will process ends with its GOAWAY; the others do not.
        self.refused = error.is_reset() && error.reason() == Some(Reason::REFUSED_STREAM);
        self.unprocessed = self.refused || (error.is_remote() && error.is_go_away());
        let is_local = !error.is_remote() && !error.is_io();
        if error.is_library() || (is_local && error.reason() == Some(Reason::PROTOCOL_ERROR)) {
            // This side ends the stream or the connection, because of what the member sent.
            return io::Error::new(io::ErrorKind::InvalidData, error);
        }
        stream_error(error)
    }

    /// Sends the head and returns how many bytes of `text` it takes. The head is complete: the relay has it
    /// in one piece.
    fn poll_head(&mut self, cx: &mut Context<'_>, text: &[u8]) -> Poll<io::Result<usize>> {
        ready!(self.poll_ready(cx))?;
        let mut marks = MarkedFields::new();
        let invalid_input =
            |reason: &dyn std::fmt::Display| io::Error::new(io::ErrorKind::InvalidInput, reason.to_string());
        let head = match http1::request(text, MAX_HEAD, &mut marks) {
            Ok(head) => head,
            Err(HeadError::Invalid(rejection)) => return Poll::Ready(Err(invalid_input(&rejection))),
            Err(HeadError::Partial) => return Poll::Ready(Err(io::ErrorKind::InvalidInput.into())),
        };
        let request =
            heads::request_head(&head, self.slot.is_secure(), self.host.as_deref().unwrap_or_default())
                .map_err(|error| invalid_input(&error))?;
        let sent = self.send_head(request, BodyWriter::new(head.body));
        Poll::Ready(sent.map(|()| head.len))
    }

    fn poll_response_text(
        &mut self,
        cx: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<Result<usize, h2::Error>> {
        loop {
            match &mut self.response {
                ResponseState::NotRequested => return Poll::Pending,
                ResponseState::Body(reader) => return reader.poll(cx, buffer),
                ResponseState::Interim(text, returned_len, _) => {
                    let len = buffer.len().min(text.len() - *returned_len);
                    buffer[..len].copy_from_slice(&text[*returned_len..*returned_len + len]);
                    *returned_len += len;
                    if *returned_len == text.len()
                        && let ResponseState::Interim(.., head) =
                            std::mem::replace(&mut self.response, ResponseState::NotRequested)
                    {
                        self.response = ResponseState::AwaitingHead(head);
                    }
                    return Poll::Ready(Ok(len));
                }
                ResponseState::AwaitingHead(_) => {
                    let received = ready!(self.poll_response(cx))?;
                    let mut text = Vec::with_capacity(512);
                    match received {
                        ReceivedResponse::Interim(interim) => {
                            let (parts, ()) = interim.into_parts();
                            heads::response_text(&parts, true, false, &mut text);
                            if let ResponseState::AwaitingHead(head) =
                                std::mem::replace(&mut self.response, ResponseState::NotRequested)
                            {
                                self.response = ResponseState::Interim(text, 0, head);
                            }
                        }
                        ReceivedResponse::Final(parts, body) => {
                            let ended = body.is_end_stream();
                            let framing =
                                heads::response_text(&parts, ended, self.is_head_request, &mut text);
                            debug_assert!(framing != TextFraming::Length || !self.is_head_request);
                            self.read(text, framing, body);
                        }
                    }
                }
            }
        }
    }
}

impl ByteStream for OutboundStream {
    fn poll_recv(
        &mut self,
        cx: &mut Context<'_>,
        buffer: &mut [u8],
        _watched: &mut bool,
    ) -> Poll<io::Result<usize>> {
        if self.unprocessed {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        let result = self.poll_response_text(cx, buffer);
        self.awaiting_head = result.is_pending() && matches!(self.response, ResponseState::AwaitingHead(_));
        result.map_err(|error| self.reset_error(error))
    }

    fn poll_send(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match &mut self.request {
            None => self.poll_head(cx, bytes),
            Some((stream, writer)) => writer.poll_send(cx, stream, bytes, |_| {}),
        }
    }

    fn is_unprocessed(&self) -> bool {
        self.unprocessed
    }

    fn was_refused(&self) -> bool {
        self.refused
    }

    fn take_report(&mut self) -> Option<Vec<u8>> {
        match &mut self.response {
            ResponseState::Body(reader) => reader.take_report().or_else(|| self.report.take()),
            _ => self.report.take(),
        }
    }

    fn http2_response(&mut self) -> Option<&mut dyn H2Response> {
        Some(self)
    }
}

impl BodyTransfer for OutboundStream {
    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<BodyFrame>> {
        let ResponseState::Body(reader) = &mut self.response else { return Poll::Pending };
        let result = ready!(reader.poll_frame(cx));
        Poll::Ready(result.map_err(|error| self.reset_error(error)))
    }

    fn poll_send_frame(
        &mut self,
        cx: &mut Context<'_>,
        frame: &mut Option<BodyFrame>,
    ) -> Poll<io::Result<usize>> {
        // Valid only after the head.
        let Some((stream, writer)) = &mut self.request else {
            return Poll::Ready(Err(io::ErrorKind::InvalidInput.into()));
        };
        writer.poll_send_frame(cx, stream, frame)
    }
}

impl H2Response for OutboundStream {
    fn poll_send_head(
        &mut self,
        cx: &mut Context<'_>,
        call: &PassthroughCall,
        ended: bool,
    ) -> Poll<io::Result<()>> {
        ready!(self.poll_ready(cx))?;
        let request = call.to_request(self.slot.is_secure());
        Poll::Ready(self.send_head(request, BodyWriter::for_frames(ended)))
    }

    fn poll_response_head(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<ResponseHead>> {
        if self.unprocessed {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        let polled = self.poll_response(cx);
        self.awaiting_head = polled.is_pending();
        Poll::Ready(match ready!(polled) {
            Ok(ReceivedResponse::Interim(interim)) => Ok(ResponseHead::Interim(interim)),
            Ok(ReceivedResponse::Final(parts, body)) => {
                let ended = body.is_end_stream();
                self.read(Vec::new(), if ended { TextFraming::Empty } else { TextFraming::Chunks }, body);
                Ok(ResponseHead::Final(Response::from_parts(parts, ()), ended))
            }
            Err(error) => Err(self.reset_error(error)),
        })
    }
}

impl Drop for OutboundStream {
    fn drop(&mut self) {
        if self.awaiting_head {
            self.slot.record_abandoned(self.silence_limit);
        }
    }
}

as_io!(OutboundStream);
