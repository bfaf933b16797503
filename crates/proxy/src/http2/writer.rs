//! Sends the text of an HTTP/1.1 body on a stream: content as DATA, the trailers of a chunked body as
//! trailers. Sends pieces of a call that passes through unchanged.
//!
//! Bytes are accepted only as far as the peer's windows permit. The rest stays with the sender, which reads
//! no more from its own side until it is accepted.

use std::io;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use h2::SendStream;
use http::HeaderMap;
use plimsoll_wire::http1::{self, Body, Chunked};

use super::pieces::Piece;
use super::{SEND_BUFFER, fields};

/// The end of a chunked body without trailers.
const END: &[u8] = b"\r\n0\r\n\r\n";
/// The bytes at the beginning of a body of pieces that are passed to `h2` without waiting for windows: it
/// buffers them. Requesting window capacity costs more than sending the few bytes of most calls.
const FREE: usize = 4 * 1024;

/// The progress of the body.
pub(super) struct Writer {
    body: Body,
    /// The trailer section of a chunked body, as far as it has arrived. Bounded by the limits of [`Body`].
    section: Vec<u8>,
    ended: bool,
    /// The rest of [`FREE`].
    free: usize,
}

impl Writer {
    /// Creates a writer for a body. If it is done, nothing is to be sent, as the head was the end.
    pub(super) fn new(body: Body) -> Self {
        Self { body, section: Vec::new(), ended: body.done(), free: FREE }
    }

    /// Creates a writer for pieces; for none if the head was the end.
    pub(super) fn of_pieces(ended: bool) -> Self {
        // As for text with an unknown length.
        Self::new(if ended { Body::Done } else { Body::Chunked(Chunked::new()) })
    }

    /// Sends a part of a piece, leaves the rest in place, and returns the number of bytes sent.
    ///
    /// # Errors
    /// The peer accepts no more.
    pub(super) fn poll_give(
        &mut self,
        cx: &mut Context<'_>,
        stream: &mut SendStream<Bytes>,
        piece: &mut Option<Piece>,
    ) -> Poll<io::Result<usize>> {
        let (sent, result) = match piece.take() {
            None => return Poll::Ready(Ok(0)),
            Some(trailers @ Piece::Trailers(_)) => {
                self.ended = true;
                let len = trailers.len();
                let Piece::Trailers(trailers) = trailers else { return Poll::Ready(Ok(0)) };
                (len, stream.send_trailers(trailers))
            }
            Some(Piece::Content(mut content, last)) => {
                let room = self.poll_room(cx, stream, content.len());
                let most = match room {
                    Poll::Ready(Ok(room)) => room.min(content.len()),
                    Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                    Poll::Pending => {
                        *piece = Some(Piece::Content(content, last));
                        return Poll::Pending;
                    }
                };
                let rest = content.split_off(most);
                if !rest.is_empty() {
                    *piece = Some(Piece::Content(rest, last));
                }
                let end = last && piece.is_none();
                self.ended |= end;
                (most, stream.send_data(content, end))
            }
        };
        Poll::Ready(result.map(|()| sent).map_err(super::reader::broken))
    }

    /// Returns how many of `len` bytes may be sent.
    fn poll_room(
        &mut self,
        cx: &mut Context<'_>,
        stream: &mut SendStream<Bytes>,
        len: usize,
    ) -> Poll<io::Result<usize>> {
        if len <= self.free {
            self.free -= len;
            return Poll::Ready(Ok(len));
        }
        poll_room(cx, stream, len)
    }

    /// Returns `true` if the whole body was sent.
    pub(super) fn ended(&self) -> bool {
        self.ended
    }

    /// Ends a body without any other end. Does nothing for one that was not sent completely: it was aborted.
    pub(super) fn part(&mut self, stream: &mut SendStream<Bytes>) {
        if !self.ended && self.body == Body::UntilClose {
            self.ended = true;
            // A stream that is already closed needs no end.
            let _ = stream.send_data(Bytes::new(), true);
        }
    }

    /// Ends a body that its sender will not complete, if trailers can show the peer that it is incomplete.
    /// The bytes sent so far arrive.
    pub(super) fn fail(&mut self, stream: &mut SendStream<Bytes>, trailers: HeaderMap) {
        if !self.ended && matches!(self.body, Body::Chunked(_) | Body::UntilClose) {
            self.ended = true;
            // A stream that is already closed needs no end.
            let _ = stream.send_trailers(trailers);
        }
    }

    /// Sends a part of `text`, and returns its size. `trailers` gets the fields after the body.
    ///
    /// # Errors
    /// The peer accepts no more, or the text is not that of a body.
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
                // Senders send no more than the body.
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
                        Ok(
                            piece @ (http1::Piece::Framing(len)
                            | http1::Piece::Padding(len)
                            | http1::Piece::Trailer(len)),
                        ) => {
                            *chunks = ahead;
                            if let http1::Piece::Trailer(_) = piece {
                                self.section.extend_from_slice(&rest[..len]);
                            }
                            if ahead.done() {
                                (self.body, self.ended) = (Body::Done, true);
                                let after = fields::trailers(&self.section);
                                trailers(&after);
                                let end = match after.is_empty() {
                                    true => stream.send_data(Bytes::new(), true),
                                    false => stream.send_trailers(after),
                                };
                                end.map_err(super::reader::broken)?;
                            }
                            Poll::Ready(Ok(len))
                        }
                        Ok(http1::Piece::Content(len)) => {
                            // With the end behind it, one frame is enough.
                            let last = &rest[len..] == END && ahead.step(END).is_ok() && ahead.done();
                            let moved = poll_data(cx, stream, &rest[..len], last);
                            match moved {
                                Poll::Ready(Ok(sent)) if last && sent == len => {
                                    (self.body, self.ended) = (Body::Done, true);
                                    Poll::Ready(Ok(rest.len()))
                                }
                                Poll::Ready(Ok(sent)) => {
                                    // The same step, as far as it was sent: it was valid before.
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

/// Returns for how many of `len` bytes the peer and `h2` have room; never 0.
fn poll_room(cx: &mut Context<'_>, stream: &mut SendStream<Bytes>, len: usize) -> Poll<io::Result<usize>> {
    let most = len.min(SEND_BUFFER);
    stream.reserve_capacity(most);
    let mut room = stream.capacity();
    while room == 0 {
        room = match ready!(stream.poll_capacity(cx)) {
            Some(room) => room.map_err(super::reader::broken)?,
            None => return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into())),
        };
    }
    Poll::Ready(Ok(most.min(room)))
}

/// Sends as much of `content` as there is room for. `last` is `true` if its end is that of the stream.
fn poll_data(
    cx: &mut Context<'_>,
    stream: &mut SendStream<Bytes>,
    content: &[u8],
    last: bool,
) -> Poll<io::Result<usize>> {
    let sent = content.len().min(ready!(poll_room(cx, stream, content.len()))?);
    let end = last && sent == content.len();
    stream.send_data(Bytes::copy_from_slice(&content[..sent]), end).map_err(super::reader::broken)?;
    Poll::Ready(Ok(sent))
}
