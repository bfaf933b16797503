//! Write coalescing: all that an HTTP/2 connection writes in one turn of its task is sent at the end of the
//! turn.
//!
//! `h2` writes each larger DATA frame by itself, as soon as it is ready. For gRPC calls with responses of a
//! kilobyte, that means four times as many system calls, which cost more than all other work for such a call.

use std::cell::RefCell;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::net::byte_stream::ByteStream;

/// The maximum number of buffered bytes; more are sent before the turn ends.
const MAX_BUFFERED: usize = 64 * 1024;

/// The connection for `h2`: it accepts all writes, and flushing is immediate.
pub(super) struct WriteBatch<S>(Rc<RefCell<BatchBuffer<S>>>);

/// The handle that is flushed at the end of each turn. Without it nothing would be sent.
pub(super) struct BatchFlusher<S>(Rc<RefCell<BatchBuffer<S>>>);

struct BatchBuffer<S> {
    stream: S,
    bytes: Vec<u8>,
    sent: usize,
    /// The number of bytes of the last turn: the buffer's initial capacity.
    initial_capacity: usize,
    /// The error after which nothing more is accepted.
    failed: Option<io::ErrorKind>,
}

pub(super) fn new_write_batch<S: ByteStream>(stream: S) -> (WriteBatch<S>, BatchFlusher<S>) {
    let buffer = Rc::new(RefCell::new(BatchBuffer {
        stream,
        bytes: Vec::new(),
        sent: 0,
        initial_capacity: 0,
        failed: None,
    }));
    (WriteBatch(Rc::clone(&buffer)), BatchFlusher(buffer))
}

impl<S: ByteStream> BatchFlusher<S> {
    /// Sends the buffered bytes and returns how many were sent. The socket takes the rest later: the task is
    /// woken then.
    pub(super) fn flush(&self, cx: &mut Context<'_>) -> usize {
        let buffer = &mut *self.0.borrow_mut();
        let unsent_before = buffer.unsent_len();
        if let Poll::Ready(Err(error)) = buffer.poll_write_out(cx)
            && buffer.failed.is_none()
        {
            // `h2` gets the error when it writes or reads again, which it does at once.
            buffer.failed = Some(error.kind());
            cx.waker().wake_by_ref();
        }
        unsent_before - buffer.unsent_len()
    }

    /// Makes closing a reset: no task should wait for a peer that does not read.
    pub(super) fn abort(&self) {
        self.0.borrow().stream.abort();
    }

    /// Returns `true` if there are bytes that the socket has not accepted yet.
    pub(super) fn has_unsent(&self) -> bool {
        let buffer = self.0.borrow();
        buffer.failed.is_none() && buffer.unsent_len() > 0
    }
}

impl<S: ByteStream> BatchBuffer<S> {
    fn unsent_len(&self) -> usize {
        self.bytes.len() - self.sent
    }

    fn failed(&self) -> io::Result<()> {
        self.failed.map_or(Ok(()), |kind| Err(kind.into()))
    }

    /// Sends all buffered bytes.
    fn poll_write_out(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
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
        // An idle connection owns no buffer.
        (self.initial_capacity, self.bytes, self.sent) = (self.bytes.len(), Vec::new(), 0);
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_append(&mut self, cx: &mut Context<'_>, bufs: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        let total: usize = bufs.iter().map(|buf| buf.len()).sum();
        if self.bytes.len() + total > MAX_BUFFERED {
            ready!(self.poll_write_out(cx))?;
            if total > MAX_BUFFERED {
                return Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
            }
        }
        self.failed()?;
        if self.bytes.capacity() == 0 {
            self.bytes.reserve(self.initial_capacity.max(total));
        }
        for buf in bufs {
            self.bytes.extend_from_slice(buf);
        }
        Poll::Ready(Ok(total))
    }
}

impl<S: ByteStream> AsyncRead for WriteBatch<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let buffer = &mut *self.0.borrow_mut();
        buffer.failed()?;
        Pin::new(&mut buffer.stream).poll_read(cx, buf)
    }
}

impl<S: ByteStream> AsyncWrite for WriteBatch<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.0.borrow_mut().poll_append(cx, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.0.borrow_mut().poll_append(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    /// Returns at once: the end of the turn flushes.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.0.borrow().failed())
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let buffer = &mut *self.0.borrow_mut();
        ready!(buffer.poll_write_out(cx))?;
        Pin::new(&mut buffer.stream).poll_shutdown(cx)
    }
}

impl<S: ByteStream> ByteStream for WriteBatch<S> {}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;

    /// A socket that accepts a limited number of bytes in all, and records each write.
    #[derive(Default)]
    struct LimitedSocket {
        writes: Vec<usize>,
        write_capacity: usize,
        broken: bool,
    }

    impl ByteStream for LimitedSocket {}

    impl AsyncRead for LimitedSocket {
        fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, _: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
            Poll::Pending
        }
    }

    impl AsyncWrite for LimitedSocket {
        fn poll_write(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            bytes: &[u8],
        ) -> Poll<io::Result<usize>> {
            if self.broken {
                return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
            }
            let sent = bytes.len().min(self.write_capacity);
            if sent == 0 {
                return Poll::Pending;
            }
            self.write_capacity -= sent;
            self.writes.push(sent);
            Poll::Ready(Ok(sent))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    type FlushPoll = Poll<Option<usize>>;

    /// Writes `size` bytes.
    fn write(batch: &mut WriteBatch<LimitedSocket>, cx: &mut Context<'_>, size: usize) -> FlushPoll {
        Pin::new(batch).poll_write(cx, &vec![b'x'; size]).map(Result::ok)
    }

    #[test]
    fn a_turn_is_one_write() {
        let cx = &mut Context::from_waker(Waker::noop());
        let (mut batch, flusher) =
            new_write_batch(LimitedSocket { write_capacity: usize::MAX, ..LimitedSocket::default() });
        for size in [9, 1029, 9, 20] {
            assert_eq!(write(&mut batch, cx, size), Poll::Ready(Some(size)));
            assert!(Pin::new(&mut batch).poll_flush(cx).is_ready());
        }
        assert!(flusher.0.borrow().stream.writes.is_empty());
        assert!(flusher.has_unsent());
        assert_eq!((flusher.flush(cx), flusher.flush(cx)), (1067, 0));
        assert!(!flusher.has_unsent());
        assert_eq!(flusher.0.borrow().stream.writes, [1067]);
        // A large write is sent at once and not buffered.
        assert_eq!(write(&mut batch, cx, 9), Poll::Ready(Some(9)));
        assert_eq!(write(&mut batch, cx, MAX_BUFFERED + 1), Poll::Ready(Some(MAX_BUFFERED + 1)));
        assert_eq!(flusher.0.borrow().stream.writes, [1067, 9, MAX_BUFFERED + 1]);
    }

    #[test]
    fn no_more_is_kept_than_that() {
        let cx = &mut Context::from_waker(Waker::noop());
        let (mut batch, flusher) =
            new_write_batch(LimitedSocket { write_capacity: 1000, ..LimitedSocket::default() });
        assert_eq!(write(&mut batch, cx, MAX_BUFFERED - 10), Poll::Ready(Some(MAX_BUFFERED - 10)));
        assert_eq!((flusher.flush(cx), flusher.flush(cx)), (1000, 0));
        assert!(flusher.has_unsent());
        // The peer does not read.
        assert_eq!(write(&mut batch, cx, 11), Poll::Pending);
        assert_eq!(write(&mut batch, cx, 10), Poll::Ready(Some(10)));
        flusher.0.borrow_mut().stream.write_capacity = usize::MAX;
        assert!(Pin::new(&mut batch).poll_shutdown(cx).is_ready());
        assert_eq!(flusher.0.borrow().stream.writes, [1000, MAX_BUFFERED - 1000]);
    }

    #[test]
    fn what_cannot_be_sent_is_an_error_of_whatever_comes_next() {
        let cx = &mut Context::from_waker(Waker::noop());
        let (mut batch, flusher) =
            new_write_batch(LimitedSocket { broken: true, ..LimitedSocket::default() });
        assert_eq!(write(&mut batch, cx, 9), Poll::Ready(Some(9)));
        flusher.flush(cx);
        assert_eq!(write(&mut batch, cx, 9), Poll::Ready(None));
        assert!(matches!(Pin::new(&mut batch).poll_flush(cx), Poll::Ready(Err(_))));
        let mut buf = [0; 9];
        assert!(matches!(
            Pin::new(&mut batch).poll_read(cx, &mut ReadBuf::new(&mut buf)),
            Poll::Ready(Err(_))
        ));
    }
}
