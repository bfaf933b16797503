//! Presents a client's stream to the relay of HTTP/1.1 as a connection with one request.

use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use h2::server::SendResponse;
use h2::{Reason, SendStream};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response, request};
use plimsoll_wire::http1::{self, Body, Marks, Unread};

use super::heads;
use super::pieces::{Asking, Framed, Piece, Pieces};
use super::reader::{Reader, broken};
use super::serve::Guest;
use super::websocket;
use super::writer::Writer;
use crate::grpc::{self, Call};
use crate::stream::{Stream, as_io};

/// The maximum size of a response's head, in bytes. Includes the relay's additions to the largest head that
/// it accepts.
const MAX_HEAD: usize = 128 * 1024;

/// A stream of a client.
pub(super) struct Inbound {
    /// The stream counts with its connection while this exists.
    guest: Rc<Guest>,
    request: Reader,
    to_head: bool,
    /// Whether the request asks for a tunnel.
    tunnel: bool,
    respond: SendResponse<Bytes>,
    /// The beginning of a response's head.
    partial: Vec<u8>,
    answer: Option<(SendStream<Bytes>, Writer)>,
    call: Option<Call>,
    /// The request, if it passes through.
    framed: Option<Box<Framed>>,
}

impl Inbound {
    /// Creates the stream. `request` begins with the text of `head`.
    pub(super) fn new(
        guest: Rc<Guest>,
        head: &request::Parts,
        request: Reader,
        respond: SendResponse<Bytes>,
    ) -> Self {
        let fields = &head.headers;
        let call = heads::is_call(fields).then(|| Call {
            timeout: fields.get(&TIMEOUT).and_then(|value| grpc::timeout(value.as_bytes())),
            status: None,
        });
        let (to_head, tunnel) = (head.method == Method::HEAD, websocket::is_asked(head));
        Self {
            guest,
            request,
            to_head,
            tunnel,
            respond,
            partial: Vec::new(),
            answer: None,
            call,
            framed: None,
        }
    }

    /// Lets a call pass through: nothing of it is to be read as text.
    pub(super) fn straight(mut self, framed: Framed) -> Self {
        self.framed = Some(Box::new(framed));
        self
    }

    /// Returns `true` if the whole response was sent.
    fn over(&self) -> bool {
        self.answer.as_ref().is_some_and(|(_, writer)| writer.ended())
    }

    /// Completes when the client has reset the stream.
    fn poll_reset(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let _: Result<Reason, h2::Error> = ready!(match &mut self.answer {
            Some((stream, _)) => stream.poll_reset(cx),
            None => self.respond.poll_reset(cx),
        });
        Poll::Ready(())
    }

    /// Consumes the text of heads, and returns how many bytes of `text` belong to them.
    fn head(&mut self, text: &[u8]) -> io::Result<usize> {
        let before = self.partial.len();
        self.partial.extend_from_slice(text);
        let mut marks = Marks::new();
        let head = match http1::response(&self.partial, MAX_HEAD, self.to_head, &mut marks) {
            Ok(head) => head,
            Err(Unread::Partial) => return Ok(text.len()),
            Err(Unread::Bad(bad)) => return Err(io::Error::new(io::ErrorKind::InvalidData, bad)),
        };
        let told = heads::answer_head(&head);
        let mut answer = told.map_err(|untold| io::Error::new(io::ErrorKind::InvalidData, untold))?;
        let taken = head.len - before;
        if head.interim() {
            // Optional: interim responses that cannot be sent now are dropped.
            *answer.version_mut() = http::Version::HTTP_2;
            let _ = self.respond.send_informational(answer);
        } else {
            let mut body = head.body;
            if head.status == 101 {
                if !self.tunnel {
                    return Err(io::ErrorKind::InvalidData.into());
                }
                websocket::switch(&mut answer);
                body = Body::UntilClose;
            }
            self.judge(answer.headers());
            let stream = self.respond.send_response(answer, body.done()).map_err(broken)?;
            self.answer = Some((stream, Writer::new(body)));
        }
        self.partial = Vec::new();
        Ok(taken)
    }

    fn judge(&mut self, fields: &HeaderMap) {
        judge(&mut self.call, fields);
    }
}

/// The client's timeout.
static TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");
/// The status of a call.
static STATUS: HeaderName = HeaderName::from_static("grpc-status");

/// Records the status of a call: from the trailers, or from the head of a response without a body.
fn judge(call: &mut Option<Call>, fields: &HeaderMap) {
    if let Some(call) = call
        && let Some(status) = fields.get(&STATUS)
    {
        // An invalid number means UNKNOWN.
        call.status = Some(status.to_str().ok().and_then(|text| text.parse().ok()).unwrap_or(2));
    }
}

impl Stream for Inbound {
    fn scheme(&self) -> &'static str {
        self.guest.scheme()
    }

    fn poll_recv(
        &mut self,
        cx: &mut Context<'_>,
        buffer: &mut [u8],
        _watched: &mut bool,
    ) -> Poll<io::Result<usize>> {
        if self.over() {
            // The rest of the client's body is discarded; it may be read, so that the stream is not reset.
            return self.request.poll(cx, buffer).map(|came| Ok(came.unwrap_or(0)));
        }
        match self.request.poll(cx, buffer) {
            Poll::Ready(Ok(0)) if !buffer.is_empty() => {}
            Poll::Ready(came) => return Poll::Ready(came.map_err(broken)),
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
        let Some((stream, writer)) = &mut self.answer else { return Poll::Ready(self.head(bytes)) };
        let call = &mut self.call;
        writer.poll_send(cx, stream, bytes, |trailers| judge(call, trailers))
    }

    fn part(&mut self) {
        if let Some((stream, writer)) = &mut self.answer {
            writer.part(stream);
        }
    }

    fn poll_gone(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.poll_reset(cx)
    }

    fn fail(&mut self, late: bool) {
        if let (Some(_), Some((stream, writer))) = (&self.call, &mut self.answer) {
            let why = grpc::broken_off(late);
            let trailers =
                why.map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)));
            writer.fail(stream, HeaderMap::from_iter(trailers));
        }
    }

    fn shared(&self) -> bool {
        true
    }

    fn farewell(&mut self) {
        self.guest.leave();
    }

    fn shed(&self) -> bool {
        self.guest.shed()
    }

    fn call(&self) -> Option<&Call> {
        self.call.as_ref()
    }

    fn asking(&mut self) -> Option<&mut dyn Asking> {
        Some(self)
    }

    fn tunnels(&self) -> bool {
        self.tunnel
    }
}

impl Pieces for Inbound {
    fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Piece>> {
        self.request.poll_piece(cx).map_err(broken)
    }

    fn poll_give(&mut self, cx: &mut Context<'_>, piece: &mut Option<Piece>) -> Poll<io::Result<usize>> {
        // Valid only after the head.
        let Some((stream, writer)) = &mut self.answer else {
            return Poll::Ready(Err(io::ErrorKind::InvalidData.into()));
        };
        if let Some(Piece::Trailers(trailers)) = piece {
            judge(&mut self.call, trailers);
        }
        writer.poll_give(cx, stream, piece)
    }
}

impl Asking for Inbound {
    fn framed(&mut self) -> Option<(Box<Framed>, bool)> {
        Some((self.framed.take()?, self.request.ended()))
    }

    fn send_interim(&mut self, answer: Response<()>) {
        // Optional: interim responses that cannot be sent now are dropped.
        let _ = self.respond.send_informational(answer);
    }

    fn send_answer(&mut self, answer: Response<()>, ended: bool) -> io::Result<()> {
        self.judge(answer.headers());
        let stream = self.respond.send_response(answer, ended).map_err(broken)?;
        self.answer = Some((stream, Writer::of_pieces(ended)));
        Ok(())
    }
}

impl Drop for Inbound {
    fn drop(&mut self) {
        match &mut self.answer {
            Some((_, writer)) if writer.ended() => self.guest.answered(),
            // This must not look like a regular end.
            Some((stream, _)) => stream.send_reset(Reason::INTERNAL_ERROR),
            None => self.respond.send_reset(Reason::INTERNAL_ERROR),
        }
    }
}

as_io!(Inbound);
