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
use plimsoll_wire::http1::{self, Marks, Unread};

use super::pieces::{Answering, Framed, Piece, Pieces, Told};
use super::reader::{Framing, Reader, broken};
use super::wires::Place;
use super::writer::Writer;
use super::{fields, heads};
use crate::stream::{Stream, as_io};
use crate::trip::Trip;

/// The maximum size of a request's head, in bytes. Includes the relay's additions to the largest head that it
/// accepts.
const MAX_HEAD: usize = 128 * 1024;

/// A stream to a member.
pub(super) struct Outbound {
    /// The place on one of the member's connections.
    place: Place,
    /// The member's name, for requests that name no host.
    host: Option<Arc<str>>,
    to_head: bool,
    request: Option<(SendStream<Bytes>, Writer)>,
    answer: Answer,
    /// Whether the response's head is awaited. A member that has begun to respond may be silent for long.
    waiting: bool,
    /// The maximum time without any bytes from a member that has a request.
    patience: Duration,
    /// Whether the member reported that it did not process the request.
    untouched: bool,
    /// Whether it declined this request only, and still accepts others.
    declined: bool,
    /// Whether load reports are for the balancer only.
    strip: bool,
    /// The member's load report, from the trailers or from a head that is the whole response.
    report: Option<Vec<u8>>,
}

enum Answer {
    /// Nothing was requested yet.
    Unasked,
    Head(ResponseFuture),
    /// An interim head to be read first, and how many bytes of it were read.
    Interim(Vec<u8>, usize, ResponseFuture),
    Text(Box<Reader>),
}

/// A head, and its body.
enum Answered {
    Interim(Response<()>),
    Final(response::Parts, RecvStream),
}

impl Outbound {
    pub(super) fn new(place: Place, trip: &Trip) -> Self {
        let settings = trip.settings();
        Self {
            place,
            host: trip.shared_name(),
            to_head: false,
            request: None,
            answer: Answer::Unasked,
            waiting: false,
            patience: settings.timeouts.connect,
            untouched: false,
            declined: false,
            strip: settings.strip_reports,
            report: None,
        }
    }

    /// Sends a head, for which there is room; `writer` is for the body.
    fn ask(&mut self, request: Request<()>, writer: Writer) -> io::Result<()> {
        self.to_head = request.method() == http::Method::HEAD;
        let asked = self.place.sender().send_request(request, writer.ended());
        let (answer, stream) = asked.map_err(|error| {
            // The request did not leave this process.
            self.untouched = true;
            broken(error)
        })?;
        self.place.asked();
        self.request = Some((stream, writer));
        self.answer = Answer::Head(answer);
        Ok(())
    }

    /// Waits for room for another request.
    fn poll_place(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let room = ready!(self.place.sender().poll_ready(cx));
        self.untouched |= room.is_err();
        Poll::Ready(room.map_err(broken))
    }

    /// Returns the response's head, as `h2` represents it.
    fn poll_answered(&mut self, cx: &mut Context<'_>) -> Poll<Result<Answered, h2::Error>> {
        let Answer::Head(head) = &mut self.answer else { return Poll::Pending };
        match head.poll_informational(cx) {
            Poll::Ready(Some(Ok(interim))) => return Poll::Ready(Ok(Answered::Interim(interim))),
            // No head of either kind: `h2` wakes this task for both.
            Poll::Pending => return Poll::Pending,
            Poll::Ready(_) => {}
        }
        let (mut parts, body) = ready!(Pin::new(head).poll(cx))?.into_parts();
        if parts.status == http::StatusCode::SWITCHING_PROTOCOLS {
            // HTTP/2 has no such status (RFC 9113 section 8.6).
            return Poll::Ready(Err(Reason::PROTOCOL_ERROR.into()));
        }
        self.report = fields::report_bin(&mut parts.headers, self.strip);
        Poll::Ready(Ok(Answered::Final(parts, body)))
    }

    /// Starts reading the part after the head.
    fn read(&mut self, text: Vec<u8>, framing: Framing, body: RecvStream) {
        self.answer = Answer::Text(Box::new(Reader::new(text, framing, body).of_member(self.strip)));
    }

    /// Returns the error for a stream that the member reset, and records what it implies.
    fn broke_off(&mut self, error: h2::Error) -> io::Error {
        // A stream above the last one that the member will process ends with its GOAWAY; the others do not.
        self.declined = error.is_reset() && error.reason() == Some(Reason::REFUSED_STREAM);
        self.untouched = self.declined || (error.is_remote() && error.is_go_away());
        let ours = !error.is_remote() && !error.is_io();
        if error.is_library() || (ours && error.reason() == Some(Reason::PROTOCOL_ERROR)) {
            // This side ends the stream or the connection, because of what the member sent.
            return io::Error::new(io::ErrorKind::InvalidData, error);
        }
        broken(error)
    }

    /// Sends the head and returns how many bytes of `text` it takes. The head is complete: the relay has it
    /// in one piece.
    fn poll_head(&mut self, cx: &mut Context<'_>, text: &[u8]) -> Poll<io::Result<usize>> {
        ready!(self.poll_place(cx))?;
        let mut marks = Marks::new();
        let bad = |why: &dyn std::fmt::Display| io::Error::new(io::ErrorKind::InvalidInput, why.to_string());
        let head = match http1::request(text, MAX_HEAD, &mut marks) {
            Ok(head) => head,
            Err(Unread::Bad(refusal)) => return Poll::Ready(Err(bad(&refusal))),
            Err(Unread::Partial) => return Poll::Ready(Err(io::ErrorKind::InvalidInput.into())),
        };
        let told = heads::request_head(&head, self.place.secure(), self.host.as_deref().unwrap_or_default())
            .map_err(|untold| bad(&untold))?;
        let sent = self.ask(told, Writer::new(head.body));
        Poll::Ready(sent.map(|()| head.len))
    }

    fn poll_answer(&mut self, cx: &mut Context<'_>, buffer: &mut [u8]) -> Poll<Result<usize, h2::Error>> {
        loop {
            match &mut self.answer {
                Answer::Unasked => return Poll::Pending,
                Answer::Text(reader) => return reader.poll(cx, buffer),
                Answer::Interim(text, told, _) => {
                    let most = buffer.len().min(text.len() - *told);
                    buffer[..most].copy_from_slice(&text[*told..*told + most]);
                    *told += most;
                    if *told == text.len()
                        && let Answer::Interim(.., head) =
                            std::mem::replace(&mut self.answer, Answer::Unasked)
                    {
                        self.answer = Answer::Head(head);
                    }
                    return Poll::Ready(Ok(most));
                }
                Answer::Head(_) => {
                    let answered = ready!(self.poll_answered(cx))?;
                    let mut text = Vec::with_capacity(512);
                    match answered {
                        Answered::Interim(interim) => {
                            let (parts, ()) = interim.into_parts();
                            heads::answer_text(&parts, true, false, &mut text);
                            if let Answer::Head(head) = std::mem::replace(&mut self.answer, Answer::Unasked) {
                                self.answer = Answer::Interim(text, 0, head);
                            }
                        }
                        Answered::Final(parts, body) => {
                            let ended = body.is_end_stream();
                            let framing = heads::answer_text(&parts, ended, self.to_head, &mut text);
                            debug_assert!(framing != Framing::Length || !self.to_head);
                            self.read(text, framing, body);
                        }
                    }
                }
            }
        }
    }
}

impl Stream for Outbound {
    fn poll_recv(
        &mut self,
        cx: &mut Context<'_>,
        buffer: &mut [u8],
        _watched: &mut bool,
    ) -> Poll<io::Result<usize>> {
        if self.untouched {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        let came = self.poll_answer(cx, buffer);
        self.waiting = came.is_pending() && matches!(self.answer, Answer::Head(_));
        came.map_err(|error| self.broke_off(error))
    }

    fn poll_send(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match &mut self.request {
            None => self.poll_head(cx, bytes),
            Some((stream, writer)) => writer.poll_send(cx, stream, bytes, |_| {}),
        }
    }

    fn untouched(&self) -> bool {
        self.untouched
    }

    fn declined(&self) -> bool {
        self.declined
    }

    fn report(&mut self) -> Option<Vec<u8>> {
        match &mut self.answer {
            Answer::Text(reader) => reader.report().or_else(|| self.report.take()),
            _ => self.report.take(),
        }
    }

    fn answering(&mut self) -> Option<&mut dyn Answering> {
        Some(self)
    }
}

impl Pieces for Outbound {
    fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Piece>> {
        let Answer::Text(reader) = &mut self.answer else { return Poll::Pending };
        let came = ready!(reader.poll_piece(cx));
        Poll::Ready(came.map_err(|error| self.broke_off(error)))
    }

    fn poll_give(&mut self, cx: &mut Context<'_>, piece: &mut Option<Piece>) -> Poll<io::Result<usize>> {
        // Valid only after the head.
        let Some((stream, writer)) = &mut self.request else {
            return Poll::Ready(Err(io::ErrorKind::InvalidInput.into()));
        };
        writer.poll_give(cx, stream, piece)
    }
}

impl Answering for Outbound {
    fn poll_ask(&mut self, cx: &mut Context<'_>, asked: &Framed, ended: bool) -> Poll<io::Result<()>> {
        ready!(self.poll_place(cx))?;
        let request = asked.request(self.place.secure());
        Poll::Ready(self.ask(request, Writer::of_pieces(ended)))
    }

    fn poll_told(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Told>> {
        if self.untouched {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        let answered = self.poll_answered(cx);
        self.waiting = answered.is_pending();
        Poll::Ready(match ready!(answered) {
            Ok(Answered::Interim(interim)) => Ok(Told::Interim(interim)),
            Ok(Answered::Final(parts, body)) => {
                let ended = body.is_end_stream();
                self.read(Vec::new(), if ended { Framing::Empty } else { Framing::Chunks }, body);
                Ok(Told::Final(Response::from_parts(parts, ()), ended))
            }
            Err(error) => Err(self.broke_off(error)),
        })
    }
}

impl Drop for Outbound {
    fn drop(&mut self) {
        if self.waiting {
            self.place.gave_up(self.patience);
        }
    }
}

as_io!(Outbound);
