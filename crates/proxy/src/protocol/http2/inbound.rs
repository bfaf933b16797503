//! Presents a client's stream to the relay of HTTP/1.1 as a connection with one request.

use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use h2::server::SendResponse;
use h2::{Reason, SendStream};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response, request};
use plimsoll_wire::http1::{self, BodyFraming, HeadError, MarkedFields};

use super::body_frames::{BodyFrame, BodyTransfer, H2Request, PassthroughCall};
use super::body_writer::BodyWriter;
use super::heads;
use super::serve::StreamGuard;
use super::text_reader::{TextReader, stream_error};
use super::websocket;
use crate::net::byte_stream::{ByteStream, as_io};
use crate::net::grpc::{self, GrpcCall};

/// The maximum size of a response's head, in bytes. Includes the relay's additions to the largest head that
/// it accepts.
const MAX_HEAD: usize = 128 * 1024;

/// A stream of a client.
pub(super) struct InboundStream {
    /// The stream counts with its connection while this exists.
    guard: Rc<StreamGuard>,
    request: TextReader,
    is_head_request: bool,
    /// Whether the request asks for a tunnel.
    tunnel: bool,
    respond: SendResponse<Bytes>,
    /// The beginning of a response's head.
    partial: Vec<u8>,
    response: Option<(SendStream<Bytes>, BodyWriter)>,
    call: Option<GrpcCall>,
    /// The request, if it passes through.
    passthrough_call: Option<Box<PassthroughCall>>,
}

impl InboundStream {
    /// Creates the stream. `request` begins with the text of `head`.
    pub(super) fn new(
        guard: Rc<StreamGuard>,
        head: &request::Parts,
        request: TextReader,
        respond: SendResponse<Bytes>,
    ) -> Self {
        let fields = &head.headers;
        let call = heads::is_call(fields).then(|| GrpcCall {
            timeout: fields.get(&TIMEOUT).and_then(|value| grpc::timeout(value.as_bytes())),
            status: None,
        });
        let (is_head_request, tunnel) = (head.method == Method::HEAD, websocket::is_websocket(head));
        Self {
            guard,
            request,
            is_head_request,
            tunnel,
            respond,
            partial: Vec::new(),
            response: None,
            call,
            passthrough_call: None,
        }
    }

    /// Lets a call pass through: nothing of it is to be read as text.
    pub(super) fn with_passthrough(mut self, call: PassthroughCall) -> Self {
        self.passthrough_call = Some(Box::new(call));
        self
    }

    /// Returns `true` if the whole response was sent.
    fn is_response_sent(&self) -> bool {
        self.response.as_ref().is_some_and(|(_, writer)| writer.is_ended())
    }

    /// Completes when the client has reset the stream.
    fn poll_reset(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let _: Result<Reason, h2::Error> = ready!(match &mut self.response {
            Some((stream, _)) => stream.poll_reset(cx),
            None => self.respond.poll_reset(cx),
        });
        Poll::Ready(())
    }

    /// Consumes the text of heads, and returns how many bytes of `text` belong to them.
    fn consume_head(&mut self, text: &[u8]) -> io::Result<usize> {
        let previous_len = self.partial.len();
        self.partial.extend_from_slice(text);
        let mut marks = MarkedFields::new();
        let head = match http1::parse_response(&self.partial, MAX_HEAD, self.is_head_request, &mut marks) {
            Ok(head) => head,
            Err(HeadError::Partial) => return Ok(text.len()),
            Err(HeadError::Invalid(error)) => return Err(io::Error::new(io::ErrorKind::InvalidData, error)),
        };
        let converted = heads::response_head(&head);
        let mut response = converted.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        let consumed = head.len - previous_len;
        if head.is_interim() {
            // Optional: interim responses that cannot be sent now are dropped.
            *response.version_mut() = http::Version::HTTP_2;
            let _ = self.respond.send_informational(response);
        } else {
            let mut body = head.body;
            if head.status == 101 {
                if !self.tunnel {
                    return Err(io::ErrorKind::InvalidData.into());
                }
                websocket::accept_upgrade(&mut response);
                body = BodyFraming::UntilClose;
            }
            self.record_status(response.headers());
            let stream = self.respond.send_response(response, body.is_done()).map_err(stream_error)?;
            self.response = Some((stream, BodyWriter::new(body)));
        }
        self.partial = Vec::new();
        Ok(consumed)
    }

    fn record_status(&mut self, fields: &HeaderMap) {
        record_call_status(&mut self.call, fields);
    }
}

/// The client's timeout.
static TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");
/// The status of a call.
static STATUS: HeaderName = HeaderName::from_static("grpc-status");

/// Records the status of a call: from the trailers, or from the head of a response without a body.
fn record_call_status(call: &mut Option<GrpcCall>, fields: &HeaderMap) {
    if let Some(call) = call
        && let Some(status) = fields.get(&STATUS)
    {
        // An invalid number means UNKNOWN.
        call.status = Some(status.to_str().ok().and_then(|text| text.parse().ok()).unwrap_or(2));
    }
}

impl ByteStream for InboundStream {
    fn scheme(&self) -> &'static str {
        self.guard.scheme()
    }

    fn poll_recv(
        &mut self,
        cx: &mut Context<'_>,
        buffer: &mut [u8],
        _watched: &mut bool,
    ) -> Poll<io::Result<usize>> {
        if self.is_response_sent() {
            // The rest of the client's body is discarded; it may be read, so that the stream is not reset.
            return self.request.poll(cx, buffer).map(|result| Ok(result.unwrap_or(0)));
        }
        match self.request.poll(cx, buffer) {
            Poll::Ready(Ok(0)) if !buffer.is_empty() => {}
            Poll::Ready(result) => return Poll::Ready(result.map_err(stream_error)),
            Poll::Pending => return Poll::Pending,
        }
        if self.tunnel {
            return Poll::Ready(Ok(0));
        }
        // The request is complete and the client waits: only a reset can follow.
        ready!(self.poll_reset(cx));
        Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()))
    }

    fn poll_send(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let Some((stream, writer)) = &mut self.response else { return Poll::Ready(self.consume_head(bytes)) };
        let call = &mut self.call;
        writer.poll_send(cx, stream, bytes, |trailers| record_call_status(call, trailers))
    }

    fn part(&mut self) {
        if let Some((stream, writer)) = &mut self.response {
            writer.finish(stream);
        }
    }

    fn poll_closed(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.poll_reset(cx)
    }

    fn fail(&mut self, late: bool) {
        if let (Some(_), Some((stream, writer))) = (&self.call, &mut self.response) {
            let abort_fields = grpc::abort_trailers(late);
            let trailers = abort_fields
                .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)));
            writer.fail(stream, HeaderMap::from_iter(trailers));
        }
    }

    fn is_multiplexed(&self) -> bool {
        true
    }

    fn close_connection(&mut self) {
        self.guard.drain_connection();
    }

    fn is_shed(&self) -> bool {
        self.guard.is_shedding()
    }

    fn call(&self) -> Option<&GrpcCall> {
        self.call.as_ref()
    }

    fn http2_request(&mut self) -> Option<&mut dyn H2Request> {
        Some(self)
    }

    fn is_tunnel(&self) -> bool {
        self.tunnel
    }
}

impl BodyTransfer for InboundStream {
    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<BodyFrame>> {
        self.request.poll_frame(cx).map_err(stream_error)
    }

    fn poll_send_frame(
        &mut self,
        cx: &mut Context<'_>,
        frame: &mut Option<BodyFrame>,
    ) -> Poll<io::Result<usize>> {
        // Valid only after the head.
        let Some((stream, writer)) = &mut self.response else {
            return Poll::Ready(Err(io::ErrorKind::InvalidData.into()));
        };
        if let Some(BodyFrame::Trailers(trailers)) = frame {
            record_call_status(&mut self.call, trailers);
        }
        writer.poll_send_frame(cx, stream, frame)
    }
}

impl H2Request for InboundStream {
    fn take_call(&mut self) -> Option<(Box<PassthroughCall>, bool)> {
        Some((self.passthrough_call.take()?, self.request.is_ended()))
    }

    fn send_interim(&mut self, response: Response<()>) {
        // Optional: interim responses that cannot be sent now are dropped.
        let _ = self.respond.send_informational(response);
    }

    fn send_answer(&mut self, response: Response<()>, ended: bool) -> io::Result<()> {
        self.record_status(response.headers());
        let stream = self.respond.send_response(response, ended).map_err(stream_error)?;
        self.response = Some((stream, BodyWriter::for_frames(ended)));
        Ok(())
    }
}

impl Drop for InboundStream {
    fn drop(&mut self) {
        match &mut self.response {
            Some((_, writer)) if writer.is_ended() => self.guard.record_response(),
            // This must not look like a regular end.
            Some((stream, _)) => stream.send_reset(Reason::INTERNAL_ERROR),
            None => self.respond.send_reset(Reason::INTERNAL_ERROR),
        }
    }
}

as_io!(InboundStream);
