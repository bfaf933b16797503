//! What comes in on a stream, as the text of HTTP/1.1: a head, then the body as it is or in chunks, then trailers. Or, for a call that goes
//! straight, in the pieces that it comes in.
//!
//! The peer's windows are opened again only for bytes that were handed over before: whoever reads comes back when it could pass
//! them on. So a slow reader holds the sender back, whichever versions the two speak.

use std::io;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use h2::RecvStream;
use http::HeaderMap;
use plimsoll_wire::http1::may_trail;

use super::pieces::Piece;
use super::{STREAM_WINDOW, fields, straight};

/// Bytes handed over in pieces for which the peer's window is opened again at once; for fewer only when there is nothing else to do, which
/// is never where the message has ended by then.
const STEP: usize = STREAM_WINDOW as usize / 4;

/// How the end of a body is told in HTTP/1.1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Framing {
    /// There is none.
    Empty,
    /// By the Content-Length in the head.
    Length,
    /// By chunks.
    Chunks,
}

/// A stream that is read as text.
pub(super) struct Reader {
    /// Text to hand over before anything else, and how much of it was.
    text: Vec<u8>,
    told: usize,
    /// Content of the body to hand over then.
    content: Bytes,
    framing: Framing,
    stream: RecvStream,
    /// Bytes handed over for which the peer's window was not opened again yet.
    owed: usize,
    /// Has all of the body come?
    ended: bool,
    failed: Option<h2::Error>,
    /// If it is a member's: are its reports of load for us alone?
    strip: Option<bool>,
    /// What it said of its load after the body.
    report: Option<Vec<u8>>,
}

impl Reader {
    /// `head` is handed over first.
    pub(super) fn new(head: Vec<u8>, framing: Framing, stream: RecvStream) -> Self {
        let ended = framing == Framing::Empty;
        let (content, strip) = (Bytes::new(), None);
        Self {
            text: head,
            told: 0,
            content,
            framing,
            stream,
            owed: 0,
            ended,
            failed: None,
            strip,
            report: None,
        }
    }

    /// It is a member's answer: what that says of its load is looked for in the trailers, and with `strip` goes no further.
    pub(super) fn of_member(self, strip: bool) -> Self {
        Self { strip: Some(strip), ..self }
    }

    /// Has all of it come?
    pub(super) fn ended(&self) -> bool {
        self.ended
    }

    /// What a member said of its load after the body: the value of an ORCA report.
    pub(super) fn report(&mut self) -> Option<Vec<u8>> {
        self.report.take()
    }

    /// Hands over what is there; 0 when all of it was.
    ///
    /// # Errors
    /// The peer broke off.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>, buffer: &mut [u8]) -> Poll<Result<usize, h2::Error>> {
        self.release();
        let mut filled = 0;
        while filled < buffer.len() {
            let room = &mut buffer[filled..];
            if self.told < self.text.len() {
                let most = room.len().min(self.text.len() - self.told);
                room[..most].copy_from_slice(&self.text[self.told..self.told + most]);
                self.told += most;
                filled += most;
                if self.told == self.text.len() {
                    self.text.clear();
                    self.told = 0;
                }
            } else if self.content.has_remaining() {
                let most = room.len().min(self.content.len());
                self.content.copy_to_slice(&mut room[..most]);
                self.owed += most;
                filled += most;
                if self.content.is_empty() && self.framing == Framing::Chunks {
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

    /// Opens the peer's windows again for what was handed over.
    fn release(&mut self) {
        let owed = std::mem::take(&mut self.owed);
        if owed > 0 {
            // More than was received it cannot be; a stream that is closed needs none.
            let _ = self.stream.flow_control().release_capacity(owed);
        }
    }

    /// The next piece of the body, or its end; instead of [`Self::poll`], while there is no text to hand over. To be asked when what came
    /// before was passed on.
    ///
    /// # Errors
    /// The peer broke off.
    pub(super) fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<Result<Piece, h2::Error>> {
        loop {
            if self.owed >= STEP {
                self.release();
            }
            match self.stream.poll_data(cx) {
                Poll::Ready(Some(Ok(content))) => {
                    self.owed += content.len();
                    self.ended = self.stream.is_end_stream();
                    // `h2` bounds how many of those that say nothing there are.
                    if self.ended || !content.is_empty() {
                        return Poll::Ready(Ok(Piece::Content(content, self.ended)));
                    }
                }
                Poll::Ready(None) => {
                    let trailers = ready!(self.stream.poll_trailers(cx))?;
                    self.ended = true;
                    return Poll::Ready(Ok(match trailers {
                        Some(trailers) => Piece::Trailers(self.trailers(trailers)),
                        None => Piece::Content(Bytes::new(), true),
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

    /// Trailers as they are passed on.
    fn trailers(&mut self, mut trailers: HeaderMap) -> HeaderMap {
        if let Some(strip) = self.strip {
            self.report = fields::report(&mut trailers, strip);
        }
        straight::remove(&mut trailers, |name| !may_trail(name.as_bytes()));
        fields::trim(&mut trailers);
        trailers
    }

    /// Fetches the next piece of the body, or its end.
    fn poll_more(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let end = match self.stream.poll_data(cx) {
            Poll::Ready(Some(Ok(content))) => {
                if self.framing == Framing::Chunks && !content.is_empty() {
                    self.text.extend_from_slice(format!("{:x}\r\n", content.len()).as_bytes());
                }
                self.content = content;
                return Poll::Ready(());
            }
            Poll::Ready(None) => self.stream.poll_trailers(cx),
            Poll::Ready(Some(Err(error))) => Poll::Ready(Err(error)),
            Poll::Pending => Poll::Pending,
        };
        match end {
            Poll::Ready(Ok(mut trailers)) => {
                self.ended = true;
                if let (Some(strip), Some(trailers)) = (self.strip, &mut trailers) {
                    self.report = fields::report(trailers, strip);
                }
                if self.framing == Framing::Chunks {
                    fields::chunks_end(trailers.as_ref(), &mut self.text);
                }
            }
            Poll::Ready(Err(error)) => self.failed = Some(error),
            Poll::Pending => return Poll::Pending,
        }
        Poll::Ready(())
    }
}

/// The same for those who know of input and output only.
pub(super) fn broken(error: h2::Error) -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionReset, error)
}
