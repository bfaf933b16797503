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
use plimsoll_wire::http1::{self, BodyFraming, ChunkedParser};

use super::body_frames::BodyFrame;
use super::{SEND_BUFFER, fields};

/// The end of a chunked body without trailers.
const LAST_CHUNK: &[u8] = b"\r\n0\r\n\r\n";
/// The bytes at the beginning of a body of pieces that are passed to `h2` without waiting for windows: it
/// buffers them. Requesting window capacity costs more than sending the few bytes of most calls.
const EAGER_BYTES: usize = 4 * 1024;

/// The progress of the body.
pub(super) struct BodyWriter {
    body: BodyFraming,
    /// The trailer section of a chunked body, as far as it has arrived. Bounded by the limits of
    /// [`BodyFraming`].
    section: Vec<u8>,
    ended: bool,
    /// The rest of [`EAGER_BYTES`].
    eager_left: usize,
}

impl BodyWriter {
    /// Creates a writer for a body. If it is done, nothing is to be sent, as the head was the end.
    pub(super) fn new(body: BodyFraming) -> Self {
        Self { body, section: Vec::new(), ended: body.is_done(), eager_left: EAGER_BYTES }
    }

    /// Creates a writer for pieces; for none if the head was the end.
    pub(super) fn for_frames(ended: bool) -> Self {
        // As for text with an unknown length.
        Self::new(if ended { BodyFraming::Done } else { BodyFraming::Chunked(ChunkedParser::new()) })
    }

    /// Sends a part of a piece, leaves the rest in place, and returns the number of bytes sent.
    ///
    /// # Errors
    /// The peer accepts no more.
    pub(super) fn poll_send_frame(
        &mut self,
        cx: &mut Context<'_>,
        stream: &mut SendStream<Bytes>,
        frame: &mut Option<BodyFrame>,
    ) -> Poll<io::Result<usize>> {
        let (sent, result) = match frame.take() {
            None => return Poll::Ready(Ok(0)),
            Some(trailers @ BodyFrame::Trailers(_)) => {
                self.ended = true;
                let len = trailers.len();
                let BodyFrame::Trailers(trailers) = trailers else { return Poll::Ready(Ok(0)) };
                (len, stream.send_trailers(trailers))
            }
            Some(BodyFrame::Content(mut content, last)) => {
                let capacity = self.poll_send_capacity(cx, stream, content.len());
                let len = match capacity {
                    Poll::Ready(Ok(capacity)) => capacity.min(content.len()),
                    Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                    Poll::Pending => {
                        *frame = Some(BodyFrame::Content(content, last));
                        return Poll::Pending;
                    }
                };
                let rest = content.split_off(len);
                if !rest.is_empty() {
                    *frame = Some(BodyFrame::Content(rest, last));
                }
                let end_stream = last && frame.is_none();
                self.ended |= end_stream;
                (len, stream.send_data(content, end_stream))
            }
        };
        Poll::Ready(result.map(|()| sent).map_err(super::text_reader::stream_error))
    }

    /// Returns how many of `len` bytes may be sent.
    fn poll_send_capacity(
        &mut self,
        cx: &mut Context<'_>,
        stream: &mut SendStream<Bytes>,
        len: usize,
    ) -> Poll<io::Result<usize>> {
        if len <= self.eager_left {
            self.eager_left -= len;
            return Poll::Ready(Ok(len));
        }
        poll_stream_capacity(cx, stream, len)
    }

    /// Returns `true` if the whole body was sent.
    pub(super) fn is_ended(&self) -> bool {
        self.ended
    }

    /// Ends a body without any other end. Does nothing for one that was not sent completely: it was aborted.
    pub(super) fn finish(&mut self, stream: &mut SendStream<Bytes>) {
        if !self.ended && self.body == BodyFraming::UntilClose {
            self.ended = true;
            // A stream that is already closed needs no end.
            let _ = stream.send_data(Bytes::new(), true);
        }
    }

    /// Ends a body that its sender will not complete, if trailers can show the peer that it is incomplete.
    /// The bytes sent so far arrive.
    pub(super) fn fail(&mut self, stream: &mut SendStream<Bytes>, trailers: HeaderMap) {
        if !self.ended && matches!(self.body, BodyFraming::Chunked(_) | BodyFraming::UntilClose) {
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
        mut on_trailers: impl FnMut(&HeaderMap),
    ) -> Poll<io::Result<usize>> {
        let mut consumed = 0;
        while consumed < text.len() {
            let rest = &text[consumed..];
            let progress = match &mut self.body {
                // Senders send no more than the body.
                BodyFraming::Done => Poll::Ready(Ok(rest.len())),
                BodyFraming::UntilClose => poll_data(cx, stream, rest, false),
                BodyFraming::Length(remaining) => {
                    let max_len = rest.len().min(usize::try_from(*remaining).unwrap_or(usize::MAX));
                    let progress = poll_data(cx, stream, &rest[..max_len], max_len as u64 == *remaining);
                    if let Poll::Ready(Ok(sent)) = progress {
                        *remaining -= sent as u64;
                        if *remaining == 0 {
                            (self.body, self.ended) = (BodyFraming::Done, true);
                        }
                    }
                    progress
                }
                BodyFraming::Chunked(chunks) => {
                    let mut parser = *chunks;
                    match parser.next_piece(rest) {
                        Err(error) => {
                            return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, error)));
                        }
                        Ok(
                            piece @ (http1::ChunkPiece::Framing(len)
                            | http1::ChunkPiece::Padding(len)
                            | http1::ChunkPiece::Trailer(len)),
                        ) => {
                            *chunks = parser;
                            if let http1::ChunkPiece::Trailer(_) = piece {
                                self.section.extend_from_slice(&rest[..len]);
                            }
                            if parser.is_done() {
                                (self.body, self.ended) = (BodyFraming::Done, true);
                                let trailer_map = fields::parse_trailers(&self.section);
                                on_trailers(&trailer_map);
                                let result = match trailer_map.is_empty() {
                                    true => stream.send_data(Bytes::new(), true),
                                    false => stream.send_trailers(trailer_map),
                                };
                                result.map_err(super::text_reader::stream_error)?;
                            }
                            Poll::Ready(Ok(len))
                        }
                        Ok(http1::ChunkPiece::Content(len)) => {
                            // With the end behind it, one frame is enough.
                            let is_final = &rest[len..] == LAST_CHUNK
                                && parser.next_piece(LAST_CHUNK).is_ok()
                                && parser.is_done();
                            let progress = poll_data(cx, stream, &rest[..len], is_final);
                            match progress {
                                Poll::Ready(Ok(sent)) if is_final && sent == len => {
                                    (self.body, self.ended) = (BodyFraming::Done, true);
                                    Poll::Ready(Ok(rest.len()))
                                }
                                Poll::Ready(Ok(sent)) => {
                                    // The same step, as far as it was sent: it was valid before.
                                    let _ = chunks.next_piece(&rest[..sent]);
                                    progress
                                }
                                _ => progress,
                            }
                        }
                    }
                }
            };
            match progress {
                Poll::Ready(Ok(sent)) => consumed += sent,
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending if consumed == 0 => return Poll::Pending,
                Poll::Pending => break,
            }
        }
        Poll::Ready(Ok(consumed))
    }
}

/// Returns for how many of `len` bytes the peer and `h2` have room; never 0.
fn poll_stream_capacity(
    cx: &mut Context<'_>,
    stream: &mut SendStream<Bytes>,
    len: usize,
) -> Poll<io::Result<usize>> {
    let max_len = len.min(SEND_BUFFER);
    stream.reserve_capacity(max_len);
    let mut capacity = stream.capacity();
    while capacity == 0 {
        capacity = match ready!(stream.poll_capacity(cx)) {
            Some(capacity) => capacity.map_err(super::text_reader::stream_error)?,
            None => return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into())),
        };
    }
    Poll::Ready(Ok(max_len.min(capacity)))
}

/// Sends as much of `content` as there is room for. `last` is `true` if its end is that of the stream.
fn poll_data(
    cx: &mut Context<'_>,
    stream: &mut SendStream<Bytes>,
    content: &[u8],
    end_stream: bool,
) -> Poll<io::Result<usize>> {
    let sent = content.len().min(ready!(poll_stream_capacity(cx, stream, content.len()))?);
    let is_end = end_stream && sent == content.len();
    stream
        .send_data(Bytes::copy_from_slice(&content[..sent]), is_end)
        .map_err(super::text_reader::stream_error)?;
    Poll::Ready(Ok(sent))
}
