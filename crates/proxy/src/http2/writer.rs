//! The text of a body of HTTP/1.1, sent on a stream: content as DATA, the trailers of a chunked one as such.
//!
//! No more is taken than the peer's windows have room for: what is not taken stays with whoever sends, which reads no more from
//! its own side until it is.

use std::io;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use h2::SendStream;
use http::HeaderMap;
use plimsoll_wire::http1::{Body, Piece};

use super::{SEND_BUFFER, fields};

/// What comes after the content of a chunked body that has no trailers.
const END: &[u8] = b"\r\n0\r\n\r\n";

/// How far the body is.
pub(super) struct Writer {
    body: Body,
    /// What came since the last content of a chunked body: its trailers are in there. Bounded by the limits of [`Body`].
    framing: Vec<u8>,
    ended: bool,
}

impl Writer {
    /// Nothing is to be sent if the body is done: then the head has said so.
    pub(super) fn new(body: Body) -> Self {
        Self { body, framing: Vec::new(), ended: body.done() }
    }

    /// Has all of it been sent?
    pub(super) fn ended(&self) -> bool {
        self.ended
    }

    /// Ends a body that has no other end; nothing for one that was not all sent: it was broken off.
    pub(super) fn part(&mut self, stream: &mut SendStream<Bytes>) {
        if !self.ended && self.body == Body::UntilClose {
            self.ended = true;
            // A stream that is closed already needs no end.
            let _ = stream.send_data(Bytes::new(), true);
        }
    }

    /// Ends a body that will not be ended by whoever sends it, if the peer can see by the trailers that it is not whole. What was
    /// sent of it arrives.
    pub(super) fn fail(&mut self, stream: &mut SendStream<Bytes>, trailers: HeaderMap) {
        if !self.ended && matches!(self.body, Body::Chunked(_) | Body::UntilClose) {
            self.ended = true;
            // A stream that is closed already needs no end.
            let _ = stream.send_trailers(trailers);
        }
    }

    /// Sends some of `text`; how much of it. `trailers` is told what comes after the body.
    ///
    /// # Errors
    /// The peer takes no more, or the text is not that of a body.
    pub(super) fn poll_send(
        &mut self,
        cx: &mut Context<'_>,
        stream: &mut SendStream<Bytes>,
        text: &[u8],
        mut trailers: impl FnMut(&HeaderMap),
    ) -> Poll<io::Result<usize>> {
        let mut taken = 0;
        while taken < text.len() {
            let rest = &text[taken..];
            let moved = match &mut self.body {
                // Nobody sends more than there is.
                Body::Done => Poll::Ready(Ok(rest.len())),
                Body::UntilClose => poll_data(cx, stream, rest, false),
                Body::Length(left) => {
                    let most = rest.len().min(usize::try_from(*left).unwrap_or(usize::MAX));
                    let moved = poll_data(cx, stream, &rest[..most], most as u64 == *left);
                    if let Poll::Ready(Ok(sent)) = moved {
                        *left -= sent as u64;
                        if *left == 0 {
                            (self.body, self.ended) = (Body::Done, true);
                        }
                    }
                    moved
                }
                Body::Chunked(chunks) => {
                    let mut ahead = *chunks;
                    match ahead.step(rest) {
                        Err(bad) => return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, bad))),
                        Ok(Piece::Framing(len)) => {
                            *chunks = ahead;
                            self.framing.extend_from_slice(&rest[..len]);
                            if ahead.done() {
                                (self.body, self.ended) = (Body::Done, true);
                                let after = fields::trailers(&self.framing);
                                trailers(&after);
                                let end = match after.is_empty() {
                                    true => stream.send_data(Bytes::new(), true),
                                    false => stream.send_trailers(after),
                                };
                                end.map_err(super::reader::broken)?;
                            }
                            Poll::Ready(Ok(len))
                        }
                        Ok(Piece::Content(len)) => {
                            // With the end behind it one frame says both.
                            let last = &rest[len..] == END && ahead.step(END).is_ok() && ahead.done();
                            let moved = poll_data(cx, stream, &rest[..len], last);
                            match moved {
                                Poll::Ready(Ok(sent)) if last && sent == len => {
                                    (self.body, self.ended) = (Body::Done, true);
                                    Poll::Ready(Ok(rest.len()))
                                }
                                Poll::Ready(Ok(sent)) => {
                                    self.framing.clear();
                                    // The same step, as far as it was taken: it was no error before.
                                    let _ = chunks.step(&rest[..sent]);
                                    moved
                                }
                                _ => moved,
                            }
                        }
                    }
                }
            };
            match moved {
                Poll::Ready(Ok(more)) => taken += more,
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending if taken == 0 => return Poll::Pending,
                Poll::Pending => break,
            }
        }
        Poll::Ready(Ok(taken))
    }
}

/// Sends as much of `content` as there is room for; `last`: its end is that of the stream.
fn poll_data(
    cx: &mut Context<'_>,
    stream: &mut SendStream<Bytes>,
    content: &[u8],
    last: bool,
) -> Poll<io::Result<usize>> {
    let most = content.len().min(SEND_BUFFER);
    stream.reserve_capacity(most);
    let mut room = stream.capacity();
    while room == 0 {
        room = match ready!(stream.poll_capacity(cx)) {
            Some(room) => room.map_err(super::reader::broken)?,
            None => return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into())),
        };
    }
    let sent = most.min(room);
    let end = last && sent == content.len();
    stream.send_data(Bytes::copy_from_slice(&content[..sent]), end).map_err(super::reader::broken)?;
    Poll::Ready(Ok(sent))
}
