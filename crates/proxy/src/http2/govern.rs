//! What a client may say that asks for nothing: pings, settings, resets, window updates and empty frames cost it little and us
//! more, and none of them is bounded by the number of streams (CVE-2019-9512, -9515, -9518, CVE-2023-44487).
//!
//! Frames are counted as their bytes come by, before `h2` sees them ([`Meter`]). A client that uses up an allowance is told
//! ENHANCE_YOUR_CALM and loses the connection.

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

/// Bytes that are read, and thrown away, from a client that was told to go.
const LINGER_BYTES: usize = 1 << 20;

/// What a connection and those who look at it share.
pub(crate) struct Watch {
    core: Rc<Core>,
    meter: RefCell<Meter>,
    wear: Wear,
    /// Did it say too much?
    pub(crate) exceeded: Cell<bool>,
    /// Since when the client takes nothing of what there is for it.
    pub(super) stuck: Cell<Option<Time>>,
    /// Is it closed on our side?
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

    /// When the client last said something.
    pub(super) fn heard(&self) -> Time {
        self.meter.borrow().last()
    }

    /// A stream was answered.
    pub(super) fn answered(&self) {
        self.meter.borrow_mut().answered();
    }

    /// Is the connection to be let go before `h2` ends it?
    pub(super) fn worn(&self) -> bool {
        self.wear.worn()
    }
}

/// A client's connection, and what of it was read already.
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

    /// As much of `parts` was taken as `sent` says.
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
            // h2 is told by whoever polls it, and reads no more of this.
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

    /// Says that nothing more will come, and reads on until the client has ended, too: closed with bytes unread, the connection
    /// would be reset, and what was said last be lost.
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
