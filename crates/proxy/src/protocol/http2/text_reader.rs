//! Reads a stream as the text of HTTP/1.1: a head, then the body as it is or in chunks, then trailers. For a
//! call that passes through, reads it in pieces instead.
//!
//! The peer's windows are opened again only for bytes that were already read: the reader returns when it
//! could forward them. So a slow reader holds the sender back, whichever versions the two speak.

use std::io;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use h2::RecvStream;
use http::HeaderMap;
use plimsoll_wire::http1::is_trailer_field;

use super::body_frames::BodyFrame;
use super::{STREAM_WINDOW, fields, grpc_passthrough};

/// The number of bytes read in pieces for which the peer's window is opened again at once. For fewer, it is
/// opened when there is nothing else to do, and never if the message has ended by then.
const RELEASE_STEP: usize = STREAM_WINDOW as usize / 4;

/// The way in which HTTP/1.1 marks the end of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TextFraming {
    /// There is no body.
    Empty,
    /// The Content-Length in the head.
    Length,
    /// Chunks.
    Chunks,
}

/// A stream that is read as text.
pub(super) struct TextReader {
    /// Text to return before anything else, and how many bytes of it were returned.
    text: Vec<u8>,
    returned: usize,
    /// Content of the body to return next.
    content: Bytes,
    framing: TextFraming,
    stream: RecvStream,
    /// Bytes that were read, but for which the peer's window was not opened again yet.
    unreleased: usize,
    /// Whether all of the body has arrived.
    ended: bool,
    failed: Option<h2::Error>,
    /// For a member's stream: whether load reports are for the balancer only.
    strip: Option<bool>,
    /// The load report after the body.
    report: Option<Vec<u8>>,
}

impl TextReader {
    /// Creates a reader that first returns `head`.
    pub(super) fn new(head: Vec<u8>, framing: TextFraming, stream: RecvStream) -> Self {
        let ended = framing == TextFraming::Empty;
        let (content, strip) = (Bytes::new(), None);
        Self {
            text: head,
            returned: 0,
            content,
            framing,
            stream,
            unreleased: 0,
            ended,
            failed: None,
            strip,
            report: None,
        }
    }

    /// Marks the stream as a member's response: its load report is taken from the trailers, and with `strip`
    /// it is not forwarded.
    pub(super) fn for_member(self, strip: bool) -> Self {
        Self { strip: Some(strip), ..self }
    }

    /// Returns `true` if all of it has arrived.
    pub(super) fn is_ended(&self) -> bool {
        self.ended
    }

    /// Returns the member's load report after the body: the value of an ORCA report.
    pub(super) fn take_report(&mut self) -> Option<Vec<u8>> {
        self.report.take()
    }

    /// Reads the available bytes; 0 at the end.
    ///
    /// # Errors
    /// The peer reset the stream.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>, buffer: &mut [u8]) -> Poll<Result<usize, h2::Error>> {
        self.release();
        let mut filled = 0;
        while filled < buffer.len() {
            let unfilled = &mut buffer[filled..];
            if self.returned < self.text.len() {
                let len = unfilled.len().min(self.text.len() - self.returned);
                unfilled[..len].copy_from_slice(&self.text[self.returned..self.returned + len]);
                self.returned += len;
                filled += len;
                if self.returned == self.text.len() {
                    self.text.clear();
                    self.returned = 0;
                }
            } else if self.content.has_remaining() {
                let len = unfilled.len().min(self.content.len());
                self.content.copy_to_slice(&mut unfilled[..len]);
                self.unreleased += len;
                filled += len;
                if self.content.is_empty() && self.framing == TextFraming::Chunks {
                    self.text.extend_from_slice(b"\r\n");
                }
            } else if self.ended || self.failed.is_some() || self.poll_more(cx).is_pending() {
                break;
            }
        }
        match &self.failed {
            _ if filled > 0 => Poll::Ready(Ok(filled)),
            Some(_) => Poll::Ready(self.failed.take().map_or(Ok(0), Err)),
            None if self.ended => Poll::Ready(Ok(0)),
            None => Poll::Pending,
        }
    }

    /// Opens the peer's windows again for the bytes that were read.
    fn release(&mut self) {
        let unreleased = std::mem::take(&mut self.unreleased);
        if unreleased > 0 {
            // The amount cannot exceed what was received; a closed stream needs no window.
            let _ = self.stream.flow_control().release_capacity(unreleased);
        }
    }

    /// Returns the next piece of the body, or its end; replaces [`Self::poll`] while there is no text to
    /// return. To be called when the previous piece was forwarded.
    ///
    /// # Errors
    /// The peer reset the stream.
    pub(super) fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Result<BodyFrame, h2::Error>> {
        loop {
            if self.unreleased >= RELEASE_STEP {
                self.release();
            }
            match self.stream.poll_data(cx) {
                Poll::Ready(Some(Ok(content))) => {
                    self.unreleased += content.len();
                    self.ended = self.stream.is_end_stream();
                    // `h2` bounds the number of empty frames.
                    if self.ended || !content.is_empty() {
                        return Poll::Ready(Ok(BodyFrame::Content(content, self.ended)));
                    }
                }
                Poll::Ready(None) => {
                    let trailers = ready!(self.stream.poll_trailers(cx))?;
                    self.ended = true;
                    return Poll::Ready(Ok(match trailers {
                        Some(trailers) => BodyFrame::Trailers(self.finish_trailers(trailers)),
                        None => BodyFrame::Content(Bytes::new(), true),
                    }));
                }
                Poll::Ready(Some(Err(error))) => return Poll::Ready(Err(error)),
                Poll::Pending => {
                    self.release();
                    return Poll::Pending;
                }
            }
        }
    }

    /// Returns trailers in the form that is forwarded.
    fn finish_trailers(&mut self, mut trailers: HeaderMap) -> HeaderMap {
        if let Some(strip) = self.strip {
            self.report = fields::take_report(&mut trailers, strip);
        }
        grpc_passthrough::remove_fields(&mut trailers, |name| !is_trailer_field(name.as_bytes()));
        fields::trim_values(&mut trailers);
        trailers
    }

    /// Fetches the next piece of the body, or its end.
    fn poll_more(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let trailers_poll = match self.stream.poll_data(cx) {
            Poll::Ready(Some(Ok(content))) => {
                if self.framing == TextFraming::Chunks && !content.is_empty() {
                    self.text.extend_from_slice(format!("{:x}\r\n", content.len()).as_bytes());
                }
                self.content = content;
                return Poll::Ready(());
            }
            Poll::Ready(None) => self.stream.poll_trailers(cx),
            Poll::Ready(Some(Err(error))) => Poll::Ready(Err(error)),
            Poll::Pending => Poll::Pending,
        };
        match trailers_poll {
            Poll::Ready(Ok(mut trailers)) => {
                self.ended = true;
                if let (Some(strip), Some(trailers)) = (self.strip, &mut trailers) {
                    self.report = fields::take_report(trailers, strip);
                }
                if self.framing == TextFraming::Chunks {
                    fields::push_chunks_end(trailers.as_ref(), &mut self.text);
                }
            }
            Poll::Ready(Err(error)) => self.failed = Some(error),
            Poll::Pending => return Poll::Pending,
        }
        Poll::Ready(())
    }
}

/// Converts an error of `h2` into an I/O error.
pub(super) fn stream_error(error: h2::Error) -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionReset, error)
}
