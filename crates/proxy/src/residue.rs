//! Bytes that a socket did not take at once.

use std::io::{self, IoSlice, Write};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use crate::stream::Stream;

/// What is left to be sent to one side. While it is not empty, the other side is not read.
#[derive(Default)]
pub(crate) struct Residue {
    bytes: Vec<u8>,
    sent: usize,
}

impl Residue {
    /// Has all of `bytes` yet to be sent.
    pub(crate) fn of(bytes: Vec<u8>) -> Self {
        Self { bytes, sent: 0 }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.sent == self.bytes.len()
    }

    /// Returns how many bytes the other side has not accepted yet.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len() - self.sent
    }

    /// Sends some of what is left; how much.
    pub(crate) fn poll_send<W: Stream>(
        &mut self,
        cx: &mut Context<'_>,
        to: &mut W,
    ) -> Poll<io::Result<usize>> {
        let sent = ready!(to.poll_send(cx, &self.bytes[self.sent..]))?;
        if sent == 0 {
            return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
        }
        self.sent += sent;
        if self.is_empty() {
            // Long transfers fill it again and again, but an idle connection is to own nothing.
            *self = Self::default();
        }
        Poll::Ready(Ok(sent))
    }

    /// Sends `head` and `body` and keeps what is not taken at once; how much was taken. To be called only
    /// when nothing is left from before.
    pub(crate) fn send_or_keep<W: Stream>(
        &mut self,
        cx: &mut Context<'_>,
        to: &mut W,
        head: &[u8],
        body: &[u8],
    ) -> io::Result<usize> {
        let all = head.len() + body.len();
        let mut sent = 0;
        while sent < all {
            let attempt = if sent >= head.len() {
                to.poll_send(cx, &body[sent - head.len()..])
            } else if body.is_empty() {
                to.poll_send(cx, &head[sent..])
            } else {
                Pin::new(&mut *to).poll_write_vectored(cx, &[IoSlice::new(&head[sent..]), IoSlice::new(body)])
            };
            match attempt {
                Poll::Ready(Ok(0)) => return Err(io::ErrorKind::WriteZero.into()),
                Poll::Ready(Ok(more)) => sent += more,
                Poll::Ready(Err(error)) => return Err(error),
                Poll::Pending => break,
            }
        }
        if sent < all {
            // Writing to a vector cannot fail.
            let _ = self.bytes.write_all(&head[sent.min(head.len())..]);
            let _ = self.bytes.write_all(&body[sent.saturating_sub(head.len())..]);
        }
        Ok(sent)
    }
}
