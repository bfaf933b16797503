//! A write buffer: bytes that a socket did not accept at once.

use std::io::{self, IoSlice, Write};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use crate::net::byte_stream::ByteStream;

/// The bytes left to be sent to one side. While there are any, the other side is not read.
#[derive(Default)]
pub(crate) struct WriteBuffer {
    bytes: Vec<u8>,
    sent: usize,
}

impl WriteBuffer {
    /// Creates a buffer from which all of `bytes` are still to be sent.
    pub(crate) fn from_bytes(bytes: Vec<u8>) -> Self {
        Self { bytes, sent: 0 }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.sent == self.bytes.len()
    }

    /// Returns the number of bytes that are still to be sent.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len() - self.sent
    }

    /// Sends some of the bytes, and returns how many.
    pub(crate) fn poll_send<W: ByteStream>(
        &mut self,
        cx: &mut Context<'_>,
        receiver: &mut W,
    ) -> Poll<io::Result<usize>> {
        let sent = ready!(receiver.poll_send(cx, &self.bytes[self.sent..]))?;
        if sent == 0 {
            return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
        }
        self.sent += sent;
        if self.is_empty() {
            // Long transfers allocate it repeatedly, but an idle connection should own nothing.
            *self = Self::default();
        }
        Poll::Ready(Ok(sent))
    }

    /// Sends `head` and `body`, keeps the bytes that are not accepted at once, and returns how many were
    /// sent. To be called only on an empty buffer.
    pub(crate) fn send_or_keep<W: ByteStream>(
        &mut self,
        cx: &mut Context<'_>,
        receiver: &mut W,
        head: &[u8],
        body: &[u8],
    ) -> io::Result<usize> {
        let total_len = head.len() + body.len();
        let mut sent = 0;
        while sent < total_len {
            let attempt = if sent >= head.len() {
                receiver.poll_send(cx, &body[sent - head.len()..])
            } else if body.is_empty() {
                receiver.poll_send(cx, &head[sent..])
            } else {
                Pin::new(&mut *receiver)
                    .poll_write_vectored(cx, &[IoSlice::new(&head[sent..]), IoSlice::new(body)])
            };
            match attempt {
                Poll::Ready(Ok(0)) => return Err(io::ErrorKind::WriteZero.into()),
                Poll::Ready(Ok(len)) => sent += len,
                Poll::Ready(Err(error)) => return Err(error),
                Poll::Pending => break,
            }
        }
        if sent < total_len {
            // Writing to a vector cannot fail.
            let _ = self.bytes.write_all(&head[sent.min(head.len())..]);
            let _ = self.bytes.write_all(&body[sent.saturating_sub(head.len())..]);
        }
        Ok(sent)
    }
}
