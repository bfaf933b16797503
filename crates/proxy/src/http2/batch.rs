//! What a connection of HTTP/2 writes in one turn of its task goes out together, at the turn's end.
//!
//! `h2` writes each larger DATA frame by itself, as soon as it has it. For calls of gRPC with answers of a kilobyte those are four times as
//! many calls of the kernel, and they cost more than all that we do for such a call.

use std::cell::RefCell;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::stream::Stream;

/// As much is kept; more goes out before the turn ends.
const MOST: usize = 64 * 1024;

/// A connection as `h2` sees it: it takes what it is given, and is flushed at once.
pub(super) struct Batch<S>(Rc<RefCell<Kept<S>>>);

/// What is told at the end of each turn. Without it nothing would leave.
pub(super) struct Outlet<S>(Rc<RefCell<Kept<S>>>);

struct Kept<S> {
    stream: S,
    bytes: Vec<u8>,
    sent: usize,
    /// Why it takes nothing more.
    failed: Option<io::ErrorKind>,
}

pub(super) fn batch<S: Stream>(stream: S) -> (Batch<S>, Outlet<S>) {
    let kept = Rc::new(RefCell::new(Kept { stream, bytes: Vec::new(), sent: 0, failed: None }));
    (Batch(Rc::clone(&kept)), Outlet(kept))
}

impl<S: Stream> Outlet<S> {
    /// Sends what was written. What the socket does not take goes when it does: the task is woken then.
    pub(super) fn flush(&self, cx: &mut Context<'_>) {
        let kept = &mut *self.0.borrow_mut();
        if let Poll::Ready(Err(error)) = kept.poll_out(cx)
            && kept.failed.is_none()
        {
            // `h2` is told when it writes or reads again, which it does at once.
            kept.failed = Some(error.kind());
            cx.waker().wake_by_ref();
        }
    }
}

impl<S: Stream> Kept<S> {
    fn failed(&self) -> io::Result<()> {
        self.failed.map_or(Ok(()), |kind| Err(kind.into()))
    }

    /// Sends all that is kept.
    fn poll_out(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.failed()?;
        if self.bytes.is_empty() {
            return Poll::Ready(Ok(()));
        }
        while self.sent < self.bytes.len() {
            match ready!(self.stream.poll_send(cx, &self.bytes[self.sent..]))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                sent => self.sent += sent,
            }
        }
        // A connection that rests owns nothing.
        (self.bytes, self.sent) = (Vec::new(), 0);
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_take(&mut self, cx: &mut Context<'_>, parts: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        let all: usize = parts.iter().map(|part| part.len()).sum();
        if self.bytes.len() + all > MOST {
            ready!(self.poll_out(cx))?;
            if all > MOST {
                return Pin::new(&mut self.stream).poll_write_vectored(cx, parts);
            }
        }
        self.failed()?;
        for part in parts {
            self.bytes.extend_from_slice(part);
        }
        Poll::Ready(Ok(all))
    }
}

impl<S: Stream> AsyncRead for Batch<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        space: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let kept = &mut *self.0.borrow_mut();
        kept.failed()?;
        Pin::new(&mut kept.stream).poll_read(cx, space)
    }
}

impl<S: Stream> AsyncWrite for Batch<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.0.borrow_mut().poll_take(cx, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.0.borrow_mut().poll_take(cx, parts)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    /// At the end of the turn.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.0.borrow().failed())
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let kept = &mut *self.0.borrow_mut();
        ready!(kept.poll_out(cx))?;
        Pin::new(&mut kept.stream).poll_shutdown(cx)
    }
}

impl<S: Stream> Stream for Batch<S> {}
