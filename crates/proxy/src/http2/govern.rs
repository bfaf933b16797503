//! What a client may say that asks for nothing: pings, settings, resets, window updates and empty frames cost it little and us
//! more, and none of them is bounded by the number of streams (CVE-2019-9512, -9515, -9518, CVE-2023-44487).
//!
//! Frames are counted as their bytes come by, before `h2` sees them. Each kind has an allowance that grows with time and with what
//! the connection does that is of use; a client that uses it up is told ENHANCE_YOUR_CALM and loses the connection.

use std::cell::{Cell, RefCell};
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use plimsoll_brain::Time;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::core::Core;
use crate::stream::Stream;

/// Bytes of a frame's head.
const HEAD: usize = 9;
/// Bytes that a client's connection begins with.
const PREFACE: usize = 24;
/// Bytes that are read, and thrown away, from a client that was told to go.
const LINGER_BYTES: usize = 1 << 20;

/// An allowance: so many at once, so many more in a second.
#[derive(Debug)]
struct Allowance {
    left: f64,
    most: f64,
    rate: f64,
}

impl Allowance {
    fn new(most: f64, rate: f64) -> Self {
        Self { left: most, most, rate }
    }

    fn grow(&mut self, by: f64) {
        self.left = (self.left + by).min(self.most);
    }

    fn spend(&mut self) -> bool {
        self.left -= 1.0;
        self.left >= 0.0
    }
}

/// What one connection says.
#[derive(Debug)]
pub(super) struct Meter {
    /// PING, SETTINGS, PRIORITY, DATA without any, and what nobody knows.
    idle: Allowance,
    /// RST_STREAM.
    resets: Allowance,
    /// WINDOW_UPDATE.
    updates: Allowance,
    last: Time,
    /// Bytes of the preface and of a frame's payload that are still to go by.
    skip: usize,
    head: [u8; HEAD],
    filled: usize,
}

impl Meter {
    pub(super) fn new(now: Time) -> Self {
        Self {
            idle: Allowance::new(1000.0, 100.0),
            resets: Allowance::new(200.0, 20.0),
            updates: Allowance::new(10_000.0, 100.0),
            last: now,
            skip: PREFACE,
            head: [0; HEAD],
            filled: 0,
        }
    }

    /// A stream was answered.
    fn answered(&mut self) {
        self.resets.grow(1.0);
    }

    /// So many bytes were sent: the client may open its windows again for them.
    fn sent(&mut self, bytes: usize) {
        self.updates.grow(bytes as f64 / 100.0);
    }

    /// Bytes have come; false if they are too much.
    pub(super) fn came(&mut self, mut bytes: &[u8], now: Time) -> bool {
        let passed = now.since(self.last).as_secs_f64();
        self.last = now;
        for allowance in [&mut self.idle, &mut self.resets, &mut self.updates] {
            allowance.grow(passed * allowance.rate);
        }
        loop {
            let skipped = self.skip.min(bytes.len());
            self.skip -= skipped;
            bytes = &bytes[skipped..];
            if bytes.is_empty() {
                return true;
            }
            let most = (HEAD - self.filled).min(bytes.len());
            self.head[self.filled..self.filled + most].copy_from_slice(&bytes[..most]);
            self.filled += most;
            bytes = &bytes[most..];
            if self.filled == HEAD {
                self.filled = 0;
                if !self.frame() {
                    return false;
                }
            }
        }
    }

    /// Counts the frame whose head has come.
    fn frame(&mut self) -> bool {
        let [a, b, c, kind, flags, ..] = self.head;
        self.skip = usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c);
        let ends = flags & 1 == 1;
        match kind {
            // DATA that says something, or that it is the last.
            0 if self.skip > 0 || ends => true,
            // HEADERS and CONTINUATION: h2 bounds them, by streams and by size.
            1 | 9 => true,
            3 => self.resets.spend(),
            // Answers to our settings, of which there are few. Those to our pings are as few and may not come unasked.
            4 if ends => true,
            8 => self.updates.spend(),
            _ => self.idle.spend(),
        }
    }
}

/// What a connection and those who look at it share.
pub(crate) struct Watch {
    core: Rc<Core>,
    meter: RefCell<Meter>,
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
            exceeded: Cell::default(),
            stuck: Cell::default(),
            closing: Cell::default(),
        })
    }

    /// A stream was answered.
    pub(super) fn answered(&self) {
        self.meter.borrow_mut().answered();
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

    fn sent(&self, sent: &Poll<io::Result<usize>>) {
        let watch = &self.watch;
        match sent {
            Poll::Ready(Ok(bytes)) => {
                watch.stuck.set(None);
                watch.meter.borrow_mut().sent(*bytes);
            }
            Poll::Pending if watch.stuck.get().is_none() => watch.stuck.set(Some(watch.core.now())),
            _ => {}
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
        self.sent(&sent);
        sent
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let sent = Pin::new(&mut self.stream).poll_write_vectored(cx, parts);
        self.sent(&sent);
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn frame(kind: u8, flags: u8, payload: usize) -> Vec<u8> {
        let mut bytes = vec![0, (payload >> 8) as u8, payload as u8, kind, flags, 0, 0, 0, 1];
        bytes.resize(HEAD + payload, 0);
        bytes
    }

    fn meter() -> Meter {
        let mut meter = Meter::new(Time(0));
        assert!(meter.came(&[b'x'; PREFACE], Time(0)));
        meter
    }

    /// How many of a frame pass at once.
    fn passes(bytes: &[u8]) -> usize {
        let mut meter = meter();
        (0..20_000).take_while(|_| meter.came(bytes, Time(0))).count()
    }

    #[test]
    fn each_kind_has_its_allowance() {
        for (kind, flags, payload, most) in [
            (6, 0, 8, 1000),
            (4, 0, 6, 1000),
            (2, 0, 5, 1000),
            (0, 0, 0, 1000),
            (16, 0, 4, 1000),
            (3, 0, 4, 200),
            (8, 0, 4, 10_000),
            (6, 1, 8, 1000),
            (4, 1, 0, 20_000),
            (0, 0, 1, 20_000),
            (0, 1, 0, 20_000),
            (1, 4, 5, 20_000),
        ] {
            assert_eq!(passes(&frame(kind, flags, payload)), most, "kind {kind}, flags {flags}");
        }
    }

    #[test]
    fn allowances_grow_with_time_and_with_what_is_of_use() {
        let mut meter = meter();
        let reset = frame(3, 0, 4);
        assert!((0..200).all(|_| meter.came(&reset, Time(0))));
        meter.answered();
        assert!(meter.came(&reset, Time(0)));
        let later = Time(0) + Duration::from_secs(1);
        assert!((0..20).all(|_| meter.came(&reset, later)));
        assert!(!meter.came(&reset, later));
    }

    #[test]
    fn cuts_do_not_matter() {
        let mut bytes = vec![b'x'; PREFACE];
        for payload in [0, 1, 300] {
            bytes.extend(frame(0, 0, payload));
            bytes.extend(frame(6, 0, 8));
        }
        for size in 1..40 {
            let mut meter = Meter::new(Time(0));
            assert!(bytes.chunks(size).all(|piece| meter.came(piece, Time(0))));
            assert_eq!((meter.idle.left, meter.skip, meter.filled), (996.0, 0, 0), "{size}");
        }
    }
}
