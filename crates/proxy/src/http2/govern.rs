//! Limits on a client's control frames: pings, settings, resets, window updates and empty frames. They cost
//! the client little and the balancer more, and the limit on streams bounds none of them (CVE-2019-9512,
//! -9515, -9518, CVE-2023-44487).
//!
//! Frames are counted in the byte stream, before `h2` gets them ([`Meter`]). A client that exceeds an
//! allowance gets ENHANCE_YOUR_CALM and loses the connection.

use std::cell::{Cell, RefCell};
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use plimsoll_brain::Time;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::RESET_BY_US;
use super::meter::{Meter, PREFACE};
use super::wear::Wear;
use crate::core::Core;
use crate::stream::Stream;

/// The bytes that are read and discarded from a client whose connection ends.
const LINGER_BYTES: usize = 1 << 20;

/// The state that a connection shares with its observers.
pub(crate) struct Watch {
    core: Rc<Core>,
    meter: RefCell<Meter>,
    wear: Wear,
    /// Whether the client exceeded an allowance.
    pub(crate) exceeded: Cell<bool>,
    /// The time since which the client accepts none of the bytes for it.
    pub(super) stuck: Cell<Option<Time>>,
    /// Whether this side has closed the connection.
    pub(super) closing: Cell<bool>,
}

impl Watch {
    pub(crate) fn new(core: &Rc<Core>) -> Rc<Self> {
        Rc::new(Self {
            core: Rc::clone(core),
            meter: RefCell::new(Meter::new(core.now())),
            wear: Wear::new((PREFACE, 0), RESET_BY_US),
            exceeded: Cell::default(),
            stuck: Cell::default(),
            closing: Cell::default(),
        })
    }

    /// Returns the time at which bytes last arrived from the client.
    pub(super) fn heard(&self) -> Time {
        self.meter.borrow().last()
    }

    /// Records that a stream was answered.
    pub(super) fn answered(&self) {
        self.meter.borrow_mut().answered();
    }

    /// Returns `true` if the connection should end before `h2` ends it.
    pub(super) fn worn(&self) -> bool {
        self.wear.worn()
    }
}

/// A client's connection, and bytes that were already read from it.
pub(crate) struct Governed<S> {
    stream: S,
    ahead: Vec<u8>,
    read: usize,
    watch: Rc<Watch>,
    left: usize,
}

impl<S: Stream> Governed<S> {
    pub(crate) fn new(stream: S, ahead: Vec<u8>, watch: Rc<Watch>) -> Self {
        Self { stream, ahead, read: 0, watch, left: LINGER_BYTES }
    }

    /// Records the part of `parts` that was sent, as given by `sent`.
    fn sent(&self, sent: &Poll<io::Result<usize>>, parts: &[IoSlice<'_>]) {
        let watch = &self.watch;
        if let Poll::Ready(Ok(bytes)) = sent {
            let data = watch.wear.went(parts, *bytes);
            watch.meter.borrow_mut().sent(*bytes, data);
        }
    }
}

impl<S: Stream> AsyncRead for Governed<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        space: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.watch.exceeded.get() {
            // The task that polls h2 notifies it, and h2 reads no more from this.
            return Poll::Pending;
        }
        let before = space.filled().len();
        if this.read < this.ahead.len() {
            let most = space.remaining().min(this.ahead.len() - this.read);
            space.put_slice(&this.ahead[this.read..this.read + most]);
            this.read += most;
            if this.read == this.ahead.len() {
                (this.ahead, this.read) = (Vec::new(), 0);
            }
        } else {
            ready!(Pin::new(&mut this.stream).poll_read(cx, space))?;
        }
        let now = this.watch.core.tick();
        this.watch.wear.came(&space.filled()[before..]);
        if !this.watch.meter.borrow_mut().came(&space.filled()[before..], now) {
            this.watch.exceeded.set(true);
            space.set_filled(before);
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: Stream> AsyncWrite for Governed<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let sent = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.sent(&sent, &[IoSlice::new(bytes)]);
        sent
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let sent = Pin::new(&mut self.stream).poll_write_vectored(cx, parts);
        self.sent(&sent, parts);
        sent
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
        if !this.watch.closing.get() {
            ready!(Pin::new(&mut this.stream).poll_shutdown(cx))?;
            this.watch.closing.set(true);
        }
        let mut waste = [0; 4096];
        while this.left > 0 {
            let mut space = ReadBuf::new(&mut waste);
            ready!(Pin::new(&mut this.stream).poll_read(cx, &mut space))?;
            if space.filled().is_empty() {
                break;
            }
            this.left = this.left.saturating_sub(space.filled().len());
        }
        Poll::Ready(Ok(()))
    }
}
