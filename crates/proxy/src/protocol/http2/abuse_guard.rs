//! Limits on a client's control frames: pings, settings, resets, window updates and empty frames. They cost
//! the client little and the balancer more, and the limit on streams bounds none of them (CVE-2019-9512,
//! -9515, -9518, CVE-2023-44487).
//!
//! Frames are counted in the byte stream, before `h2` gets them ([`AbuseBudget`]). A client that exceeds an
//! allowance gets ENHANCE_YOUR_CALM and loses the connection.

use std::cell::{Cell, RefCell};
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use plimsoll_brain::Time;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::MAX_LOCAL_RESETS;
use super::abuse_budget::{AbuseBudget, PREFACE_LEN};
use super::error_budget::ErrorBudget;
use crate::net::byte_stream::ByteStream;
use crate::upstream::thread_context::ThreadContext;

/// The bytes that are read and discarded from a client whose connection ends.
const LINGER_BYTES: usize = 1 << 20;

/// The state that a connection shares with its observers.
pub(crate) struct AbuseMonitor {
    core: Rc<ThreadContext>,
    budget: RefCell<AbuseBudget>,
    error_budget: ErrorBudget,
    /// Whether the client exceeded an allowance.
    pub(crate) exceeded: Cell<bool>,
    /// The time since which the client accepts none of the bytes for it.
    pub(super) blocked_since: Cell<Option<Time>>,
    /// Whether this side has closed the connection.
    pub(super) closing: Cell<bool>,
}

impl AbuseMonitor {
    pub(crate) fn new(core: &Rc<ThreadContext>) -> Rc<Self> {
        Rc::new(Self {
            core: Rc::clone(core),
            budget: RefCell::new(AbuseBudget::new(core.now())),
            error_budget: ErrorBudget::new((PREFACE_LEN, 0), MAX_LOCAL_RESETS),
            exceeded: Cell::default(),
            blocked_since: Cell::default(),
            closing: Cell::default(),
        })
    }

    /// Returns the time at which bytes last arrived from the client.
    pub(super) fn last_received(&self) -> Time {
        self.budget.borrow().last_received()
    }

    /// Records that a stream was answered.
    pub(super) fn record_response(&self) {
        self.budget.borrow_mut().record_response();
    }

    /// Returns `true` if the connection should end before `h2` ends it.
    pub(super) fn is_error_budget_spent(&self) -> bool {
        self.error_budget.is_spent()
    }
}

/// A client's connection, and bytes that were already read from it.
pub(crate) struct AbuseGuard<S> {
    stream: S,
    unread: Vec<u8>,
    read: usize,
    monitor: Rc<AbuseMonitor>,
    linger_left: usize,
}

impl<S: ByteStream> AbuseGuard<S> {
    pub(crate) fn new(stream: S, unread: Vec<u8>, monitor: Rc<AbuseMonitor>) -> Self {
        Self { stream, unread, read: 0, monitor, linger_left: LINGER_BYTES }
    }

    /// Records the part of `parts` that was sent, as given by `sent`.
    fn record_sent(&self, result: &Poll<io::Result<usize>>, bufs: &[IoSlice<'_>]) {
        let monitor = &self.monitor;
        if let Poll::Ready(Ok(bytes)) = result {
            let data = monitor.error_budget.record_sent(bufs, *bytes);
            monitor.budget.borrow_mut().record_sent(*bytes, data);
        }
    }
}

impl<S: ByteStream> AsyncRead for AbuseGuard<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.monitor.exceeded.get() {
            // The task that polls h2 notifies it, and h2 reads no more from this.
            return Poll::Pending;
        }
        let filled_before = buf.filled().len();
        if this.read < this.unread.len() {
            let len = buf.remaining().min(this.unread.len() - this.read);
            buf.put_slice(&this.unread[this.read..this.read + len]);
            this.read += len;
            if this.read == this.unread.len() {
                (this.unread, this.read) = (Vec::new(), 0);
            }
        } else {
            ready!(Pin::new(&mut this.stream).poll_read(cx, buf))?;
        }
        let now = this.monitor.core.tick();
        this.monitor.error_budget.record_received(&buf.filled()[filled_before..]);
        if !this.monitor.budget.borrow_mut().record_received(&buf.filled()[filled_before..], now) {
            this.monitor.exceeded.set(true);
            buf.set_filled(filled_before);
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: ByteStream> AsyncWrite for AbuseGuard<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.record_sent(&result, &[IoSlice::new(bytes)]);
        result
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.record_sent(&result, bufs);
        result
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    /// Shuts down the sending side, and reads until the client has closed as well. Closing with unread bytes
    /// would reset the connection, and the last bytes sent would be lost.
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if !this.monitor.closing.get() {
            ready!(Pin::new(&mut this.stream).poll_shutdown(cx))?;
            this.monitor.closing.set(true);
        }
        let mut discarded = [0; 4096];
        while this.linger_left > 0 {
            let mut buf = ReadBuf::new(&mut discarded);
            ready!(Pin::new(&mut this.stream).poll_read(cx, &mut buf))?;
            if buf.filled().is_empty() {
                break;
            }
            this.linger_left = this.linger_left.saturating_sub(buf.filled().len());
        }
        Poll::Ready(Ok(()))
    }
}
